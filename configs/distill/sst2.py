"""A new, tiny student of a teacher that was fine-tuned on SST-2, with the data of configs/finetune/sst2.py.

For students that start with a checkpoint or with layers of the teacher, use the config of the fine-tuning itself.
"""

from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TaskDistillation, TrainConfig


def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(max_length=128),
        data=ExampleData(format="sst"),
        distillation=TaskDistillation(size="tiny"),
        # The layers start from random weights: more epochs than for a fine-tuning.
        train=TrainConfig(batch_size=32, epochs=10),
    )
