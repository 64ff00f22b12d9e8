"""SpanBERT (Joshi et al., 2020, arXiv:1907.10529), by size after a colon: --config=configs/pretrain/spanbert.py:large.

large has the paper's numbers (section 4.2); give files and a cased vocabulary as with base.py. mini is four layers of
256 units on the bundled text, with the vocabulary of mini.py.
"""

import dataclasses

from bert_tf.bundled import config
from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.errors import ConfigError

SIZES = ("base", "large")


def get_config(size="large"):
    if size == "mini":
        return mini()
    if size not in SIZES:
        raise ConfigError(f"size {size!r}; expected {', '.join(SIZES)} or mini")
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="vocab.txt", lower_case=False),
        # As in base.py: cuDNN's fused attention has no dropout.
        model=BertConfig.from_name(size, vocab_size=0, attention_dropout=0.0),
        # Single sequences, none of them shorter.
        data=PretrainingData(
            objective="span_boundary", masking="span", pairs="none", max_length=512, max_predictions=77
        ),
        train=TrainConfig(
            batch_size=256,
            steps=2_400_000,
            learning_rate=1e-4,
            warmup_steps=10_000,
            weight_decay=0.1,
            epsilon=1e-8,
            save_every=1000,
            log_every=100,
        ),
    )


def mini():
    """As mini.py, but in rows of a single length, as in the other models of this family."""
    shared = config("pretrain/mini.py")
    shared.data = dataclasses.replace(shared.data, objective="span_boundary", masking="span", pairs="none")
    shared.train = dataclasses.replace(shared.train, phases=(), batch_size=32)
    return shared
