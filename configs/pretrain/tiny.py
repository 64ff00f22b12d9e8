"""Two layers of 128 units on the bundled State of the Union addresses: two minutes on two CPU cores."""

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled


def get_config():
    return PretrainConfig(
        input=bundled("data/sotu/train.txt.gz"),
        validation=bundled("data/sotu/heldout.txt.gz"),
        tokenizer=TokenizerConfig(vocab="vocab.txt"),
        # vocab_size 0: the size of the vocabulary. No dropout: so short a run cannot overfit. The initial range is 0.02
        # for 768 units, scaled by 1 / sqrt(width).
        model=BertConfig.from_name("tiny", vocab_size=0, dropout=0.0, attention_dropout=0.0, initializer_range=0.05),
        data=PretrainingData(max_length=96, max_predictions=15),
        # BERT's Adam has no bias correction, so its first hundreds of updates are several times too large. Hence the
        # long warm-up: with a short one, the model gets stuck at word frequencies.
        train=TrainConfig(
            batch_size=32, steps=1200, learning_rate=1e-3, bias_correction=False, warmup=0.3, evaluate_every=600
        ),
    )
