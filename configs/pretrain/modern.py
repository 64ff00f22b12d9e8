"""ModernBERT (Warner et al., 2024, arXiv:2412.13663), by size after a colon: --config=configs/pretrain/modern.py:base.

base and large have the numbers of the paper (section 2.2 and appendix A) in updates of 4.7 million tokens; give files
and vocabulary as with base.py. mini is four layers of 256 units on the bundled text, with the vocabulary of mini.py.

What pays in short runs, part by part: docs/results.md.
"""

import dataclasses

from bert_tf.bundled import config
from bert_tf.config import BertConfig, PhaseConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.errors import ConfigError

# Peaks of the learning rate: of rows of 1,024 tokens and of 8,192.
RATES = {"base": (8e-4, 3e-4), "large": (5e-4, 5e-5)}
# Billions of tokens: with rows of 1,024, then of 8,192 with a constant rate, then with a falling one.
SHORT, LONG, DECAY = 1719, 250, 50
TOKENS = 4608 * 1024  # of an update


def get_config(size="base"):
    if size == "mini":
        return mini()
    if size not in RATES:
        raise ConfigError(f"size {size!r}; expected {', '.join(RATES)} or mini")
    first, second = RATES[size]
    whole = SHORT + LONG + DECAY
    return PretrainConfig(
        input="prepared",
        tokenizer=TokenizerConfig(vocab="vocab.txt"),
        model=BertConfig.from_name(f"modernbert_{size}", vocab_size=0, **TRAINED),
        data=PretrainingData(**DATA, max_length=1024, max_predictions=307),
        train=TrainConfig(
            **TRAIN,
            batch_size=4608,
            # Micro-batches of 49,152 tokens; replicas divide them further.
            accumulation=96,
            steps=round(whole * 1e9 / TOKENS),
            phases=(
                # Rotary positions reach further only where the rows are longer: model.rotary_base is for those.
                PhaseConfig(
                    share=SHORT / whole, learning_rate=first, warmup=3 / SHORT, decay=0.0, rotary_base=10_000.0
                ),
                PhaseConfig(
                    share=1 - SHORT / whole,
                    batch_size=576,
                    max_length=8192,
                    max_predictions=2458,
                    learning_rate=second,
                    warmup=0.0,
                    decay=DECAY / (LONG + DECAY),
                ),
            ),
            save_every=1000,
            log_every=100,
        ),
    )


# Dropout after attention alone; the layers whose outputs are added up start smaller.
TRAINED = {"attention_output_dropout": 0.1, "initializer_by_depth": True}
DATA = {"pairs": "none", "pack": True, "masking_rate": 0.3, "mask_special": True, "validation_masking_rate": 0.15}
TRAIN = {"optimizer": "stable_adamw", "schedule": "stable", "beta_2": 0.98, "weight_decay": 1e-5}


def mini():
    """As mini.py, in nine tenths of the updates with rows of 128 tokens, then with rows of 512."""
    shared = config("pretrain/mini.py")
    shared.model = BertConfig.from_name(
        "modernbert_base",
        vocab_size=0,
        num_layers=4,
        hidden_size=256,
        num_heads=4,
        intermediate_size=688,  # as many weights as 1,024 without a gate
        max_position_embeddings=512,
        local_layers=(1, 2),
        initializer_range=shared.model.initializer_range,
        **TRAINED,
    )
    shared.data = PretrainingData(**DATA, max_length=128, max_predictions=38, group_size=2000)
    shared.train = dataclasses.replace(
        shared.train,
        **TRAIN,
        phases=(
            PhaseConfig(share=0.9, batch_size=32, rotary_base=10_000.0),
            PhaseConfig(share=0.1, batch_size=8, max_length=512, max_predictions=154),
        ),
    )
    return shared
