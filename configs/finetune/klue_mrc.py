"""KLUE-MRC as published. --data_dir holds klue-mrc-v1.1_train.json and klue-mrc-v1.1_dev.json."""

from bert_tf.config import ExampleData, FinetuneConfig, QuestionAnsweringConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        # Korean words, and so answers, have more wordpieces than English ones.
        task=QuestionAnsweringConfig(unanswerable=True, max_answer_length=40),
        data=ExampleData(format="klue/mrc"),
        train=TrainConfig(batch_size=32, epochs=3),
    )
