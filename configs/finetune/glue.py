"""Any GLUE task, named after a colon: --config=configs/finetune/glue.py:mrpc --data_dir=glue_data.

Tasks: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli. The diagnostic set is answered by a model of mnli.
"""

from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, RegressionConfig, TrainConfig


def get_config(task="mrpc"):
    kind = RegressionConfig if task == "stsb" else ClassificationConfig
    return FinetuneConfig(
        task=kind(max_length=128),
        data=ExampleData(format=f"glue/{task}"),
        # The paper (section 4.1) uses batch 32, 3 epochs and the best of 5e-5, 4e-5, 3e-5 and 2e-5 on the development
        # set. The small sets are best after more than 3 epochs, which are cheap for them.
        train=TrainConfig(
            batch_size=32,
            epochs=3 if task in ("sst2", "qqp", "mnli", "qnli") else 5,
            keep_best=True,
        ),
    )
