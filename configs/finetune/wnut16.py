"""Named entities in tweets, WNUT-16. --data_dir holds train, dev and test, with one word and its tag per line."""

from bert_tf.config import ExampleData, FinetuneConfig, TaggingConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=TaggingConfig(max_length=128),
        data=ExampleData(format="conll", train="train", validation="dev", test="test"),
        # 2,000 tweets with few entities (one word in 15): more epochs than for a large set.
        train=TrainConfig(batch_size=32, epochs=8),
    )
