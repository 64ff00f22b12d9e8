"""RoBERTa (Liu et al., 2019, arXiv:1907.11692), by size after a colon: --config=configs/pretrain/roberta.py:base.

base and large have the paper's numbers (table 9); give files and vocabulary as with base.py, the latter learned by
learn_vocab --kind=byte_bpe --vocab_size=50265 --output=vocab.json. mini is four layers of 256 units on the bundled
text:

    python -m bert_tf.learn_vocab --input='data/sotu/train.txt.gz,data/korean/*_train.txt.gz' --output=vocab.json \\
        --kind=byte_bpe --vocab_size=12000
"""

import dataclasses

from bert_tf.bundled import config
from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.errors import ConfigError

# Learning rate, updates of warm-up.
SIZES = {"base": (6e-4, 24_000), "large": (4e-4, 30_000)}


def get_config(size="base"):
    if size == "mini":
        return mini()
    if size not in SIZES:
        raise ConfigError(f"size {size!r}; expected {', '.join(SIZES)} or mini")
    learning_rate, warmup_steps = SIZES[size]
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="vocab.json"),
        # As in base.py: cuDNN's fused attention has no dropout.
        model=BertConfig.from_name(f"roberta_{size}", vocab_size=0, attention_dropout=0.0),
        # Full sentences of up to 512 tokens, no pairs; new masks in every epoch.
        data=PretrainingData(pairs="none", max_length=512, max_predictions=77),
        train=TrainConfig(
            batch_size=8192,
            steps=500_000,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            beta_2=0.98,
            clip_norm=0.0,
            # A micro-batch has 256 sequences over all replicas.
            accumulation=32,
            save_every=1000,
            log_every=100,
        ),
    )


def mini():
    """As mini.py, but in rows of a single length, as in the other models of this family."""
    shared = config("pretrain/mini.py")
    shared.tokenizer = TokenizerConfig(vocab="vocab.json")
    shared.model = dataclasses.replace(
        shared.model, position_offset=2, type_vocab_size=1, activation="erf_gelu", layer_norm_epsilon=1e-5
    )
    shared.data = dataclasses.replace(shared.data, pairs="none")
    shared.train = dataclasses.replace(shared.train, phases=(), batch_size=32, beta_2=0.98)
    return shared
