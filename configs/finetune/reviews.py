"""The bundled movie reviews, positive or negative: --data_dir=data/reviews."""

from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(),
        data=ExampleData(train="train.tsv", validation="heldout.tsv", text="sentence", label="label"),
        # 1.25 epochs and one evaluation, because the quick start takes seven minutes in all. Three epochs
        # (--config.train.epochs=3) give another point of accuracy. The learning rate was chosen for BERT's Adam.
        train=TrainConfig(batch_size=32, epochs=1.25, learning_rate=5e-5, bias_correction=False, evaluate_every=1000),
    )
