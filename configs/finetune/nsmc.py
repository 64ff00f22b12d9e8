"""Naver's movie reviews (github.com/e9t/nsmc). --data_dir holds ratings_train.txt and ratings_test.txt."""

from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        # A review has up to 140 characters, and about as many Korean wordpieces at most.
        task=ClassificationConfig(max_length=128),
        data=ExampleData(format="nsmc"),
        train=TrainConfig(batch_size=32, epochs=3, evaluate_every=2000),
    )
