"""Named entities of tweets, WNUT-16: --data_dir holds train, dev and test, a word and its tag a line."""

from bert_tf.config import ExampleData, FinetuneConfig, TaggingConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=TaggingConfig(max_length=128),
        data=ExampleData(format="conll", train="train", validation="dev", test="test"),
        # Two thousand tweets, one word in fifteen of an entity: it takes more passes than a large set.
        train=TrainConfig(batch_size=32, epochs=8, learning_rate=1e-4),
    )
