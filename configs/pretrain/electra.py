"""ELECTRA (Clark et al., 2020, arXiv:2003.10555), by size after a colon: --config=configs/pretrain/electra.py:small.

small, base and large have the paper's numbers (table 6; large is ELECTRA-400K); give files and vocabulary as with
base.py. mini is four layers of 256 units on the bundled text, with the vocabulary of mini.py.
"""

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled

# The generator's share of the model's width; tokens of a sequence, masked share; sequences of an update, updates,
# learning rate.
SIZES = {
    "small": (1 / 4, 128, 0.15, 128, 1_000_000, 5e-4),
    "base": (1 / 3, 512, 0.15, 256, 766_000, 2e-4),
    "large": (1 / 4, 512, 0.25, 2048, 400_000, 2e-4),
}


def get_config(size="small"):
    if size == "mini":
        return mini()
    generator, length, rate, batch, steps, learning_rate = SIZES[size]
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="vocab.txt"),
        model=BertConfig.from_name(f"electra_{size}", vocab_size=0),
        data=PretrainingData(
            objective="electra",
            generator_size=generator,
            pairs="none",
            max_length=length,
            masking_rate=rate,
            max_predictions=round(rate * length),
        ),
        train=TrainConfig(
            batch_size=batch, steps=steps, learning_rate=learning_rate, warmup_steps=10_000, save_every=1000,
            log_every=100,
        ),
    )  # fmt: skip


def mini():
    return PretrainConfig(
        input=f"{bundled('data/sotu/train.txt.gz')},{bundled('data/korean')}/*_train.txt.gz",
        validation=f"{bundled('data/sotu/heldout.txt.gz')},{bundled('data/korean')}/*_heldout.txt.gz",
        tokenizer=TokenizerConfig(vocab="vocab.txt", lower_case=True, strip_accents=False),
        model=BertConfig.from_name(
            "mini", vocab_size=0, dropout=0.0, attention_dropout=0.0, initializer_range=0.035,
            activation="erf_gelu", pooler_activation="erf_gelu",
        ),
        data=PretrainingData(
            objective="electra", max_length=128, max_predictions=20, pairs="none", pack=True, group_size=2000
        ),
        train=TrainConfig(
            batch_size=32, steps=1500, learning_rate=1e-3, warmup=0.1, evaluate_every=150, save_every=100
        ),
    )  # fmt: skip
