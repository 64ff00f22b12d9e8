"""COPA as published. --data_dir holds copa-dev.xml, used for training, and copa-test.xml."""

from bert_tf.config import ExampleData, FinetuneConfig, MultipleChoiceConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=MultipleChoiceConfig(max_length=64),
        data=ExampleData(format="copa"),
        # Only 500 questions: learning anything takes many epochs.
        train=TrainConfig(batch_size=16, epochs=10, learning_rate=3e-5),
    )
