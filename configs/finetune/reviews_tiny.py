"""The bundled movie reviews with a tiny model: it needs a higher rate and more passes than a large one."""

from bert_tf.config import ClassificationConfig, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(train="train.tsv", evaluation="heldout.tsv", text="sentence", label="label"),
        train=TrainConfig(batch_size=32, epochs=1, learning_rate=3e-4, bias_correction=False),
    )
