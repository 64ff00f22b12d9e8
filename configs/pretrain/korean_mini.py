"""Four layers of 256 units on NSMC's training reviews and the bundled Korean pages; see docs/results.md.

nsmc_train.txt and nsmc_heldout.txt hold a review a line with an empty line behind it: each is a document.
"""

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled


def get_config():
    return PretrainConfig(
        input=f"nsmc_train.txt,{bundled('data/korean')}/*_train.txt.gz",
        validation="nsmc_heldout.txt",
        # Stripping accents would decompose Hangul syllables into single letters.
        tokenizer=TokenizerConfig(vocab="vocab.txt", lower_case=True, strip_accents=False),
        # 0.035: 0.02 at 768 units in proportion to 1 / sqrt(width).
        model=BertConfig.from_name("mini", vocab_size=0, initializer_range=0.035),
        # Reviews are single texts of about 20 wordpieces: three fit into a row. One group for all documents, so that
        # reviews and pages are mixed.
        data=PretrainingData(max_length=64, max_predictions=12, pairs="none", pack=True, group_size=70_000),
        train=TrainConfig(
            batch_size=64, steps=6000, learning_rate=1e-3, warmup=0.1, evaluate_every=500, save_every=250
        ),
    )
