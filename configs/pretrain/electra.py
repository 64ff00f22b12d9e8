"""ELECTRA (Clark et al., 2020, arXiv:2003.10555), by size after a colon: --config=configs/pretrain/electra.py:small.

small, base and large have the paper's numbers (table 6; large is ELECTRA-400K); give files and vocabulary as with
base.py. mini is four layers of 256 units on the bundled text, with the vocabulary of mini.py.
"""

import dataclasses

from bert_tf.bundled import config
from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.errors import ConfigError

# The generator's share of the model's width; tokens of a sequence, masked share; sequences of an update, updates,
# learning rate.
SIZES = {
    "small": (1 / 4, 128, 0.15, 128, 1_000_000, 5e-4),
    "base": (1 / 3, 512, 0.15, 256, 766_000, 2e-4),
    "large": (1 / 4, 512, 0.25, 2048, 400_000, 2e-4),
}


def get_config(size="small"):
    if size == "mini":
        return mini()
    if size not in SIZES:
        raise ConfigError(f"size {size!r}; expected {', '.join(SIZES)} or mini")
    generator, length, rate, batch, steps, learning_rate = SIZES[size]
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="vocab.txt"),
        # As in base.py: cuDNN's fused attention has no dropout.
        model=BertConfig.from_name(f"electra_{size}", vocab_size=0, attention_dropout=0.0),
        data=PretrainingData(
            objective="electra",
            generator_size=generator,
            pairs="none",
            max_length=length,
            masking_rate=rate,
            max_predictions=round(rate * length),
        ),
        train=TrainConfig(
            batch_size=batch, steps=steps, learning_rate=learning_rate, warmup_steps=10_000, save_every=1000,
            log_every=100,
        ),
    )  # fmt: skip


def mini():
    """As mini.py, but in rows of a single length, as in the other models of this family."""
    shared = config("pretrain/mini.py")
    shared.model = dataclasses.replace(shared.model, activation="erf_gelu", pooler_activation="erf_gelu")
    shared.data = dataclasses.replace(shared.data, objective="electra", pairs="none")
    shared.train = dataclasses.replace(shared.train, phases=(), batch_size=32)
    return shared
