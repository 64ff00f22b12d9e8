"""A small encoder from a larger one, on the bundled English text: --config=configs/distill/encoder.py:OBJECTIVE.

minilm: 3 layers of 384 units learn the relations of the teacher's last layer; any encoder is a teacher.
minilm_mini: the same with 4 layers of 256 units.
distilbert: half the layers of a masked language model with 12 layers of 768 units.
tinybert: 3 layers of 384 units with 12 heads, from a teacher with 12 heads and a multiple of 3 layers.

Other sizes are settings, as --config.model.num_layers=6, and so is other text, --config.input='corpus/*.txt.gz'.
"""

from bert_tf.config import BertConfig, EncoderDistillation, PretrainConfig, PretrainingData, TrainConfig
from bert_tf.errors import ConfigError
from bert_tf.files import bundled

# 48 relation heads: Wang et al., 2021, arXiv:2012.15828. They do not divide 256 units; 64 do.
_SMALL = {"num_layers": 3, "hidden_size": 384, "num_heads": 12, "intermediate_size": 1536, "activation": "erf_gelu"}
OBJECTIVES = {
    "minilm": (BertConfig(vocab_size=0, **_SMALL), EncoderDistillation(relation_heads=48), "none"),
    "minilm_mini": (
        BertConfig.from_name("mini", vocab_size=0, activation="erf_gelu"),
        EncoderDistillation(relation_heads=64),
        "none",
    ),
    "distilbert": (BertConfig.from_name("distilbert", vocab_size=0), EncoderDistillation(copy_layers=True), "token"),
    "tinybert": (BertConfig(vocab_size=0, **_SMALL), EncoderDistillation(), "none"),
}


def get_config(name="minilm"):
    if name not in OBJECTIVES:
        raise ConfigError(f"{name!r}; expected {', '.join(OBJECTIVES)}")
    model, distillation, masking = OBJECTIVES[name]
    return PretrainConfig(
        input=bundled("data/sotu/train.txt.gz"),
        validation=bundled("data/sotu/heldout.txt.gz"),
        model=model,
        data=PretrainingData(
            objective=name.removesuffix("_mini"), masking=masking, pairs="none", pack=True, max_length=128
        ),
        distillation=distillation,
        train=TrainConfig(batch_size=16, steps=300, learning_rate=5e-4, warmup=0.1),
    )
