"""Named entities of CoNLL-2003, as in the paper's table 7: --data_dir holds train.txt, valid.txt and test.txt.

--config.data.column=1 learns parts of speech instead, 2 chunks; --config.task.scheme="" then.
"""

from bert_tf.config import ExampleData, FinetuneConfig, TaggingConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        # The files are IOB1. The paper's model saw as much of the document as fits.
        task=TaggingConfig(max_length=512, context="document", scheme="BIO"),
        data=ExampleData(format="conll"),
        train=TrainConfig(batch_size=16, epochs=4),
    )
