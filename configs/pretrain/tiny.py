"""Two layers of 128 on the bundled State of the Union addresses: minutes on a laptop."""

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled


def get_config():
    return PretrainConfig(
        input=bundled("data/sotu/train.txt.gz"),
        heldout=bundled("data/sotu/heldout.txt.gz"),
        tokenizer=TokenizerConfig(vocab="vocab.txt"),
        model=BertConfig.from_name("tiny", vocab_size=0),
        data=PretrainingData(max_length=128),
        train=TrainConfig(batch_size=64, steps=400, learning_rate=1e-3, evaluate_every=100, weight_decay=0.01),
    )
