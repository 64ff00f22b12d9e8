"""COPA, the files as published: --data_dir has copa-dev.xml, which is trained on, and copa-test.xml."""

from bert_tf.config import ExampleData, FinetuneConfig, MultipleChoiceConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=MultipleChoiceConfig(max_length=64),
        data=ExampleData(format="copa"),
        # 500 questions: it takes many passes until anything is learned from so few.
        train=TrainConfig(batch_size=16, epochs=10, learning_rate=3e-5),
    )
