"""The bundled movie reviews, positive or negative: --data_dir=data/reviews."""

from bert_tf.config import ClassificationConfig, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(train="train.tsv", evaluation="heldout.tsv", text="sentence", label="label"),
        train=TrainConfig(batch_size=32, epochs=1.5, learning_rate=5e-5),
    )
