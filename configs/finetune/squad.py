"""SQuAD 1.1 as published. --data_dir holds train-v1.1.json and dev-v1.1.json."""

from bert_tf.config import ExampleData, FinetuneConfig, QuestionAnsweringConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=QuestionAnsweringConfig(),
        data=ExampleData(format="squad"),
        # As in the paper, section 4.2.
        train=TrainConfig(batch_size=32, epochs=3),
    )
