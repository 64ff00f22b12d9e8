"""Four layers of 256 on the bundled English and Korean: half an hour on two CPU cores.

The vocabulary keeps Hangul syllables whole (docs/pretraining.md has the run):

    python -m bert_tf.learn_vocab --input='data/sotu/train.txt.gz,data/korean/*_train.txt.gz' --output=vocab.txt \\
        --vocab_size=12000 --nostrip_accents
"""

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled


def get_config():
    return PretrainConfig(
        input=",".join([bundled("data/sotu/train.txt.gz"), bundled("data/korean") + "/*_train.txt.gz"]),
        heldout=",".join([bundled("data/sotu/heldout.txt.gz"), bundled("data/korean") + "/*_heldout.txt.gz"]),
        # Stripping accents would take Hangul syllables apart into single letters.
        tokenizer=TokenizerConfig(vocab="vocab.txt", lower_case=True, strip_accents=False),
        model=BertConfig.from_name("mini", vocab_size=0, dropout=0.0, attention_dropout=0.0, initializer_range=0.04),
        data=PretrainingData(max_length=128, max_predictions=20, pack=True),
        train=TrainConfig(
            batch_size=32, steps=3000, learning_rate=1e-3, warmup=0.1, evaluate_every=500, save_every=100
        ),
    )
