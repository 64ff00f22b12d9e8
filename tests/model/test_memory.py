"""A model that this machine's memory cannot hold is refused before it is built, or trained."""

import pytest
import tensorflow as tf

from bert_tf import BertEncoder
from bert_tf.config import BertConfig, TrainConfig
from bert_tf.errors import ConfigError
from bert_tf.model import memory
from bert_tf.model.head_table import build
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.text import Tokenizer
from bert_tf.training.trainer import Trainer
from tests.errors import raises
from tests.model.small import PIECES, small_config

pytestmark = pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="a GPU has memory of its own")


@pytest.mark.parametrize(
    "config",
    [
        BertConfig.from_name("tiny", hidden_size=100_000, num_heads=1),
        BertConfig.from_name("electra_small", embedding_size=100_000, vocab_size=300_000),
    ],
)
def test_an_encoder_of_hundreds_of_gigabytes_is_refused_with_its_sizes(config, monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 64 * 10**9)
    with raises(ConfigError, "64.0 GB", f"hidden_size {config.hidden_size}", f"vocab_size {config.vocab_size}"):
        BertEncoder(config)


def test_what_is_needed_is_the_encoders_weights_and_its_largest_once_more(monkeypatch):
    encoder = BertEncoder(small_config())
    largest = max(variable.numpy().size for variable in encoder.weights)
    needed = 4 * (encoder.count_params() + largest)
    monkeypatch.setattr(memory, "machine_memory", lambda: needed)
    model = build(BertEncoder(small_config()), "masked_lm")
    monkeypatch.setattr(memory, "machine_memory", lambda: needed - 1)
    with raises(ConfigError, f"{encoder.count_params():,} weights"):
        BertEncoder(small_config())
    BertEncoder(small_config(), dtype="bfloat16")  # half of it
    # Gradients and two moments.
    monkeypatch.setattr(memory, "machine_memory", lambda: 4 * 4 * encoder.count_params())
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with raises(ConfigError, "in training", "two moments"):
        Trainer(MaskedLM(Tokenizer(PIECES), 24), model, TrainConfig(steps=1), strategy, 1)


def test_the_limit_of_a_container_counts(monkeypatch, tmp_path):
    whole = memory.machine_memory()
    for content, expected in (("max\n", whole), ("1000000\n", 1_000_000), (f"{2**60}\n", whole)):
        (tmp_path / "memory.max").write_text(content)
        monkeypatch.setattr(memory, "_LIMITS", (str(tmp_path / "missing"), str(tmp_path / "memory.max")))
        assert memory.machine_memory() == expected
