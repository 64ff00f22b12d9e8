"""CLINC150: 150 intents, and out-of-scope queries as one more class. --data_dir holds data_full.json."""

from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(max_length=64),
        data=ExampleData(format="clinc150"),
        # 100 examples per class: after three epochs, most of the 151 classes are still confused.
        train=TrainConfig(batch_size=32, epochs=5),
    )
