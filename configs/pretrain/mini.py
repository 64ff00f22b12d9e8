"""Four layers of 256 units on the bundled English and Korean text: 36 minutes on two shared CPU cores.

The vocabulary keeps Hangul syllables whole (docs/results.md shows the run):

    python -m bert_tf.learn_vocab --input='data/sotu/train.txt.gz,data/korean/*_train.txt.gz' --output=vocab.txt \\
        --vocab_size=12000 --nostrip_accents
"""

from bert_tf.config import BertConfig, PhaseConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled


def get_config():
    return PretrainConfig(
        input=f"{bundled('data/sotu/train.txt.gz')},{bundled('data/korean')}/*_train.txt.gz",
        validation=f"{bundled('data/sotu/heldout.txt.gz')},{bundled('data/korean')}/*_heldout.txt.gz",
        # Stripping accents would decompose Hangul syllables into single letters.
        tokenizer=TokenizerConfig(vocab="vocab.txt", lower_case=True, strip_accents=False),
        # As in tiny.py: no dropout, and an initial range scaled by 1 / sqrt(width).
        model=BertConfig.from_name("mini", vocab_size=0, dropout=0.0, attention_dropout=0.0, initializer_range=0.035),
        # Not nsp: the language alone would often reveal a random second segment.
        # Help pages are short: without packing, 27% of the positions in Korean rows would be padding.
        # One group for all documents: with 1,000, the last eighth of an epoch is mostly Korean, the rest a tenth.
        data=PretrainingData(max_length=128, max_predictions=20, pairs="sop", pack=True, group_size=2000),
        train=TrainConfig(
            steps=1500,
            # Equal numbers of tokens per batch: a sequence of 512 costs little more than four of 128.
            phases=(
                PhaseConfig(share=0.9, batch_size=32),
                PhaseConfig(share=0.1, batch_size=8, max_length=512, max_predictions=80),
            ),
            learning_rate=1e-3,
            warmup=0.1,
            evaluate_every=150,
            save_every=100,
        ),
    )
