"""CLINC150: 150 intents and queries that belong to none, learned as one more class: data_full.json."""

from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(max_length=64),
        data=ExampleData(format="clinc150"),
        # A hundred examples a class: three passes leave most of the 151 classes hardly told apart.
        train=TrainConfig(batch_size=32, epochs=5, learning_rate=1e-4),
    )
