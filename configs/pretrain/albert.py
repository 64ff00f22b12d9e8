"""ALBERT (Lan et al., 2019, arXiv:1909.11942), by size after a colon: --config=configs/pretrain/albert.py:base.

base, large, xlarge and xxlarge have the paper's numbers (table 1 and section 4.1) and, as the published version 2, no
dropout; give files and vocabulary as with base.py, the latter learned by learn_vocab --kind=albert --vocab_size=30000
--output=spiece.model. mini is four layers of 256 units on the bundled text, with the vocabulary of mini.py.
"""

import dataclasses

from bert_tf.bundled import config
from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.errors import ConfigError

SIZES = ("base", "large", "xlarge", "xxlarge")


def get_config(size="base"):
    if size == "mini":
        return mini()
    if size not in SIZES:
        raise ConfigError(f"size {size!r}; expected {', '.join(SIZES)} or mini")
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="spiece.model"),
        model=BertConfig.from_name(f"albert_{size}", vocab_size=0),
        # Sentence order instead of next sentences; words masked in ones, twos and threes.
        data=PretrainingData(pairs="sop", masking="ngram", max_length=512, max_predictions=77),
        train=TrainConfig(
            optimizer="lamb",
            batch_size=4096,
            steps=125_000,
            learning_rate=1.76e-3,
            warmup_steps=3125,  # of google-research/albert
            # A micro-batch has 256 sequences over all replicas.
            accumulation=16,
            save_every=1000,
            log_every=100,
        ),
    )


def mini():
    """As mini.py, but in rows of a single length, as in the other models of this family."""
    shared = config("pretrain/mini.py")
    shared.model = dataclasses.replace(shared.model, embedding_size=128, shared_layers=True)
    shared.data = dataclasses.replace(shared.data, masking="ngram")
    # Adam: LAMB is for large batches.
    shared.train = dataclasses.replace(shared.train, phases=(), batch_size=32)
    return shared
