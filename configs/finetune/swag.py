"""SWAG as published. --data_dir holds train.csv and val.csv."""

from bert_tf.config import ExampleData, FinetuneConfig, MultipleChoiceConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=MultipleChoiceConfig(),
        data=ExampleData(format="swag"),
        # As in the paper, section 4.4. A row is four sequences.
        train=TrainConfig(batch_size=16, epochs=3, learning_rate=2e-5),
    )
