"""The Stanford Sentiment Treebank's 6,920 sentences as `sentence<TAB>label`: train.tsv, dev.tsv, test.tsv."""

from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(max_length=128),
        data=ExampleData(format="sst"),
        train=TrainConfig(batch_size=32, epochs=3),
    )
