"""Intent and slots of SNIPS. --data_dir holds train/, valid/ and test/, each with seq.in, seq.out and label."""

from bert_tf.config import ExampleData, FinetuneConfig, IntentAndSlotsConfig, TrainConfig


def get_config():
    return FinetuneConfig(
        task=IntentAndSlotsConfig(max_length=64),
        data=ExampleData(format="snips"),
        train=TrainConfig(epochs=10.0, batch_size=32),
    )
