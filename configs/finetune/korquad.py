"""KorQuAD 1.0 as published. --data_dir holds KorQuAD_v1.0_train.json and KorQuAD_v1.0_dev.json."""

from bert_tf.config import ExampleData, FinetuneConfig, QuestionAnsweringConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        # Korean words, and so answers, have more wordpieces than English ones.
        task=QuestionAnsweringConfig(max_answer_length=40),
        data=ExampleData(format="korquad"),
        train=TrainConfig(batch_size=32, epochs=3),
    )
