"""ALBERT (Lan et al., 2019, arXiv:1909.11942), by size after a colon: --config=configs/pretrain/albert.py:base.

base, large, xlarge and xxlarge have the paper's numbers (table 1 and section 4.1) and, as the published version 2, no
dropout; give files and vocabulary as with base.py, the latter learned by learn_vocab --kind=albert --vocab_size=30000
--output=spiece.model. mini is four layers of 256 units on the bundled text, with the vocabulary of mini.py.
"""

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled


def get_config(size="base"):
    if size == "mini":
        return mini()
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
    return PretrainConfig(
        input=f"{bundled('data/sotu/train.txt.gz')},{bundled('data/korean')}/*_train.txt.gz",
        validation=f"{bundled('data/sotu/heldout.txt.gz')},{bundled('data/korean')}/*_heldout.txt.gz",
        tokenizer=TokenizerConfig(vocab="vocab.txt", lower_case=True, strip_accents=False),
        model=BertConfig.from_name(
            "mini", vocab_size=0, dropout=0.0, attention_dropout=0.0, initializer_range=0.035, embedding_size=128,
            shared_layers=True,
        ),
        data=PretrainingData(
            max_length=128, max_predictions=20, pairs="sop", masking="ngram", pack=True, group_size=2000
        ),
        # Adam: LAMB is for large batches.
        train=TrainConfig(
            batch_size=32, steps=1500, learning_rate=1e-3, warmup=0.1, evaluate_every=150, save_every=100
        ),
    )  # fmt: skip
