"""SpanBERT (Joshi et al., 2020, arXiv:1907.10529), by size after a colon: --config=configs/pretrain/spanbert.py:large.

large has the paper's numbers (section 4.2); give files and a cased vocabulary as with base.py. mini is four layers of
256 units on the bundled text, with the vocabulary of mini.py.
"""

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled


def get_config(size="large"):
    if size == "mini":
        return mini()
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="vocab.txt", lower_case=False),
        model=BertConfig.from_name(size, vocab_size=0),
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
    return PretrainConfig(
        input=f"{bundled('data/sotu/train.txt.gz')},{bundled('data/korean')}/*_train.txt.gz",
        validation=f"{bundled('data/sotu/heldout.txt.gz')},{bundled('data/korean')}/*_heldout.txt.gz",
        tokenizer=TokenizerConfig(vocab="vocab.txt", lower_case=True, strip_accents=False),
        model=BertConfig.from_name("mini", vocab_size=0, dropout=0.0, attention_dropout=0.0, initializer_range=0.035),
        data=PretrainingData(
            objective="span_boundary", masking="span", max_length=128, max_predictions=20, pairs="none", pack=True,
            group_size=2000,
        ),
        train=TrainConfig(
            batch_size=32, steps=1500, learning_rate=1e-3, warmup=0.1, evaluate_every=150, save_every=100
        ),
    )  # fmt: skip
