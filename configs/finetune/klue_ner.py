"""KLUE's Korean named entities, tagged by character. --data_dir holds klue-ner-v1.1_train.tsv and _dev.tsv."""

from bert_tf.config import ExampleData, FinetuneConfig, TaggingConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=TaggingConfig(max_length=128),
        data=ExampleData(format="klue/ner"),
        train=TrainConfig(batch_size=32, epochs=3),
    )
