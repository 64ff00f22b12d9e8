"""Two layers of 128 on the bundled State of the Union addresses: two minutes on two CPU cores."""

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled


def get_config():
    return PretrainConfig(
        input=bundled("data/sotu/train.txt.gz"),
        validation=bundled("data/sotu/heldout.txt.gz"),
        tokenizer=TokenizerConfig(vocab="vocab.txt"),
        # vocab_size 0: as many as the vocabulary has. No dropout: in so short a run no text is seen often enough to be
        # learned by heart. 0.05: what 0.02 is to 768 units, in proportion to 1 / sqrt(width).
        model=BertConfig.from_name("tiny", vocab_size=0, dropout=0.0, attention_dropout=0.0, initializer_range=0.05),
        data=PretrainingData(max_length=96, max_predictions=15),
        # BERT's Adam has no bias correction: in its first hundreds of steps it moves several times as far as the rate
        # says. So the warm-up is long; with a short one the model learns word frequencies and stays there.
        train=TrainConfig(
            batch_size=32, steps=1200, learning_rate=1e-3, bias_correction=False, warmup=0.3, evaluate_every=600
        ),
    )
