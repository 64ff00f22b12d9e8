"""SQuAD 2.0 as published. --data_dir holds train-v2.0.json and dev-v2.0.json."""

from bert_tf.config import ExampleData, FinetuneConfig, QuestionAnsweringConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=QuestionAnsweringConfig(unanswerable=True),
        data=ExampleData(format="squad2"),
        # As in the paper, section 4.3.
        train=TrainConfig(batch_size=48, epochs=2),
    )
