"""The bundled movie reviews, positive or negative: --data_dir=data/reviews."""

from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(),
        data=ExampleData(train="train.tsv", validation="heldout.tsv", text="sentence", label="label"),
        # For a tiny model two epochs are too few; one of MiniLM's size is nearly as good after one.
        train=TrainConfig(batch_size=32, epochs=3),
    )
