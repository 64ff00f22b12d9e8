"""The families of models in Transformers that this project's encoder computes: their classes, tensors and settings."""

import dataclasses
from collections.abc import Collection

from bert_tf.checkpoints.formats import modernbert, nomic_bert, rotary
from bert_tf.checkpoints.formats.google_families import FIELDS
from bert_tf.checkpoints.formats.huggingface_family import Family, Layers
from bert_tf.config.model import DENSE_LAYERS
from bert_tf.model.head_table import HEADS

_EMBEDDINGS = {
    "embeddings/word_embeddings": "embeddings.word_embeddings.weight",
    "embeddings/position_embeddings": "embeddings.position_embeddings.weight",
    "embeddings/norm": "embeddings.LayerNorm",
}
_TYPES = {"embeddings/type_embeddings": "embeddings.token_type_embeddings.weight"}
_LAYERS = {
    "layer_*/attention/qkv": "encoder.layer.*.attention.self.{query,key,value}",
    "layer_*/attention/output": "encoder.layer.*.attention.output.dense",
    "layer_*/attention_norm": "encoder.layer.*.attention.output.LayerNorm",
    "layer_*/intermediate": "encoder.layer.*.intermediate.dense",
    "layer_*/output": "encoder.layer.*.output.dense",
    "layer_*/output_norm": "encoder.layer.*.output.LayerNorm",
}
_POOLER = {"pooler": "pooler.dense"}
_MASKED_LM = {
    "masked_lm/transform": "cls.predictions.transform.dense",
    "masked_lm/norm": "cls.predictions.transform.LayerNorm",
    "masked_lm/bias": "cls.predictions.bias",
}
_NEXT_SENTENCE = {"next_sentence": "cls.seq_relationship"}
# On the last layer or BERT's pooler; the names are the same in all families.
_TASK_HEADS: dict[str | None, Layers] = {
    name: Layers(head.transformers_names) for name, head in HEADS.items() if head.transformers_names
}
_FIELDS = FIELDS | {"activation": "hidden_act", "layer_norm_epsilon": "layer_norm_eps"}
_GELU = {"hidden_act": "gelu"}
_TWO_LAYERS = Layers({"pooler": "classifier.dense", "classifier": "classifier.out_proj"})
_WIDTH = {"embedding_size": "embedding_size"}
_CONSTANTS = {"position_offset": 0, "shared_layers": False, "pooler_activation": "tanh"}
_DEFAULTS = {
    "type_vocab_size": 2,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation": "gelu",
    "layer_norm_epsilon": 1e-12,
    "initializer_range": 0.02,
}

_BERT = Family(
    model_type="bert",
    stem="Bert",
    prefix="bert.",
    names=_EMBEDDINGS | _TYPES | _LAYERS | _POOLER,
    heads={
        None: Layers(),
        "pretraining": Layers(_MASKED_LM | _NEXT_SENTENCE),
        "masked_lm": Layers(_MASKED_LM),
        "next_sentence": Layers(_NEXT_SENTENCE),
        **_TASK_HEADS,
    },
    decoder="cls.predictions.decoder",
    fields=_FIELDS,
    constants=_CONSTANTS,
    defaults=_DEFAULTS,
)

_ROBERTA = Family(
    model_type="roberta",
    stem="Roberta",
    prefix="roberta.",
    names=_EMBEDDINGS | _TYPES | _LAYERS | _POOLER,
    heads={
        None: Layers(),
        # Its activation is always gelu, whatever the encoder uses.
        "masked_lm": Layers(
            {
                "masked_lm/transform": "lm_head.dense",
                "masked_lm/norm": "lm_head.layer_norm",
                "masked_lm/bias": "lm_head.bias",
            },
            _GELU,
        ),
        **_TASK_HEADS,
        "classification": _TWO_LAYERS,
    },
    decoder="lm_head.decoder",
    fields=_FIELDS | {"position_offset": "pad_token_id"},
    constants={"shared_layers": False, "pooler_activation": "tanh"},
    defaults=_DEFAULTS | {"position_offset": 1},
)

_DISTILBERT = Family(
    model_type="distilbert",
    stem="DistilBert",
    prefix="distilbert.",
    names=_EMBEDDINGS
    | {
        "layer_*/attention/qkv": "transformer.layer.*.attention.{q_lin,k_lin,v_lin}",
        "layer_*/attention/output": "transformer.layer.*.attention.out_lin",
        "layer_*/attention_norm": "transformer.layer.*.sa_layer_norm",
        "layer_*/intermediate": "transformer.layer.*.ffn.lin1",
        "layer_*/output": "transformer.layer.*.ffn.lin2",
        "layer_*/output_norm": "transformer.layer.*.output_layer_norm",
    },
    heads={
        None: Layers(),
        "masked_lm": Layers(
            {
                "masked_lm/transform": "vocab_transform",
                "masked_lm/norm": "vocab_layer_norm",
                "masked_lm/bias": "vocab_projector.bias",
            },
        ),
        **_TASK_HEADS,
        "classification": Layers({"pooler": "pre_classifier", "classifier": "classifier"}),
        "multiple_choice": Layers({"pooler": "pre_classifier", "classifier": "classifier"}),
    },
    decoder="vocab_projector",
    fields={
        "vocab_size": "vocab_size",
        "num_layers": "n_layers",
        "hidden_size": "dim",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_position_embeddings": "max_position_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation": "activation",
        "initializer_range": "initializer_range",
    },
    constants=_CONSTANTS | {"type_vocab_size": 0, "layer_norm_epsilon": 1e-12, "pooler_activation": "relu"},
    defaults=_DEFAULTS,
)

_ELECTRA = Family(
    model_type="electra",
    stem="Electra",
    prefix="electra.",
    names=_EMBEDDINGS | _TYPES | {"embeddings/projection": "embeddings_project"} | _LAYERS,
    heads={
        None: Layers(),
        "replaced_token_detection": Layers(
            {
                "detector/transform": "discriminator_predictions.dense",
                "detector/output": "discriminator_predictions.dense_prediction",
            },
        ),
        "masked_lm": Layers(
            {
                "masked_lm/transform": "generator_predictions.dense",
                "masked_lm/norm": "generator_predictions.LayerNorm",
                "masked_lm/bias": "generator_lm_head.bias",
            },
            _GELU,
        ),
        "question_answering": _TASK_HEADS["question_answering"],
        "classification": _TWO_LAYERS,
        "multiple_choice": Layers(
            {"pooler": "sequence_summary.summary", "classifier": "classifier"},
            {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
        ),
        "tagging": _TASK_HEADS["tagging"],
    },
    decoder="generator_lm_head",
    fields=_FIELDS | _WIDTH,
    constants=_CONSTANTS | {"pooler_activation": "erf_gelu"},
    defaults=_DEFAULTS,
)

_ALBERT_MASKED_LM = {
    "masked_lm/transform": "predictions.dense",
    "masked_lm/norm": "predictions.LayerNorm",
    "masked_lm/bias": "predictions.bias",
}
_ALBERT_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
_ALBERT = Family(
    model_type="albert",
    stem="Albert",
    prefix="albert.",
    names=_EMBEDDINGS
    | _TYPES
    | {
        "embeddings/projection": "encoder.embedding_hidden_mapping_in",
        "layer_0/attention/qkv": f"{_ALBERT_LAYER}.attention.{{query,key,value}}",
        "layer_0/attention/output": f"{_ALBERT_LAYER}.attention.dense",
        "layer_0/attention_norm": f"{_ALBERT_LAYER}.attention.LayerNorm",
        "layer_0/intermediate": f"{_ALBERT_LAYER}.ffn",
        "layer_0/output": f"{_ALBERT_LAYER}.ffn_output",
        "layer_0/output_norm": f"{_ALBERT_LAYER}.full_layer_layer_norm",
        "pooler": "pooler",
    },
    heads={
        None: Layers(),
        # The order of two sentences in place of the next sentence; 0 is the order of the text in both.
        "pretraining": Layers(_ALBERT_MASKED_LM | {"next_sentence": "sop_classifier.classifier"}),
        "masked_lm": Layers(_ALBERT_MASKED_LM),
        **_TASK_HEADS,
    },
    decoder="predictions.decoder",
    fields=_FIELDS | _WIDTH,
    constants=_CONSTANTS | {"shared_layers": True},
    defaults=_DEFAULTS | {"dropout": 0.0, "attention_dropout": 0.0, "activation": "gelu_new"},
    always_projects=True,
    tokenizer="AlbertTokenizer",
)

_HEAD = "head.dense", "head.norm"
_POOLED = dict(zip(("pooler/dense", "pooler/norm"), _HEAD, strict=True))
_OF_TOKENS = dict(zip(("transform/dense", "transform/norm"), _HEAD, strict=True))
_MODERNBERT = Family(
    model_type="modernbert",
    stem="ModernBert",
    prefix="model.",
    names={
        "embeddings/word_embeddings": "embeddings.tok_embeddings.weight",
        "embeddings/norm": "embeddings.norm",
        "layer_*/attention_norm": "layers.*.attn_norm",
        "layer_*/attention/qkv": "layers.*.attn.Wqkv",
        "layer_*/attention/output": "layers.*.attn.Wo",
        "layer_*/output_norm": "layers.*.mlp_norm",
        "layer_*/intermediate": "layers.*.mlp.Wi",
        "layer_*/output": "layers.*.mlp.Wo",
        "final_norm": "final_norm",
    },
    heads={
        None: Layers(),
        "classification": Layers(_POOLED | {"classifier": "classifier"}),
        "tagging": Layers(_OF_TOKENS | {"classifier": "classifier"}),
        "question_answering": Layers(_OF_TOKENS | {"span": "classifier"}),
        "multiple_choice": Layers(_POOLED | {"classifier": "classifier"}),
        # Last, as its first layer is that of all heads.
        "masked_lm": Layers(
            {
                **dict(zip(("masked_lm/transform", "masked_lm/norm"), _HEAD, strict=True)),
                "masked_lm/bias": "decoder.bias",
            }
        ),
    },
    decoder="decoder",
    fields={name: theirs for name, theirs in _FIELDS.items() if name != "type_vocab_size"}
    | {"activation": "hidden_activation", "layer_norm_epsilon": "norm_eps", "dropout": "embedding_dropout"}
    | {"attention_dropout": "attention_dropout"},
    constants=_CONSTANTS | modernbert.CONSTANTS,
    defaults=_DEFAULTS | {"dropout": 0.0, "attention_dropout": 0.0, "layer_norm_epsilon": 1e-5},
    parts=modernbert.Parts(),
)

# nomic_bert and GTE: BERT's encoder with rotary positions and a gate.
_ROTARY = {ours: name for ours, name in (_EMBEDDINGS | _TYPES).items() if ours != "embeddings/position_embeddings"} | {
    "layer_*/attention/qkv": "layers.*.self_attn.{q_proj,k_proj,v_proj}",
    "layer_*/attention/output": "layers.*.self_attn.o_proj",
    "layer_*/attention_norm": "layers.*.post_attention_layernorm",
    "layer_*/intermediate": "layers.*.mlp.{gate_proj,up_proj}",
    "layer_*/output": "layers.*.mlp.down_proj",
    "layer_*/output_norm": "layers.*.post_mlp_layernorm",
    **_POOLER,
}
_OF_TEXTS_AND_TOKENS: dict[str | None, Layers] = {head: _TASK_HEADS[head] for head in ("classification", "tagging")}
_NOMIC_BERT = Family(
    model_type="nomic_bert",
    stem="NomicBert",
    prefix="nomic_bert.",
    names=_ROTARY,
    heads={
        None: Layers(),
        "masked_lm": Layers(_MASKED_LM | {"masked_lm/norm": "cls.predictions.transform.layer_norm"}),
        **_OF_TEXTS_AND_TOKENS,
    },
    decoder="cls.predictions.decoder",
    fields=_FIELDS,
    constants=_CONSTANTS | rotary.CONSTANTS | {"unbiased_layers": DENSE_LAYERS},
    defaults=_DEFAULTS | {"dropout": 0.0, "attention_dropout": 0.0, "activation": "silu"},
    parts=rotary.Parts(1000.0, nomic_bert.KEYS),
    todays_settings=nomic_bert.todays_settings,
    # In the files that Transformers writes, too.
    older={
        r"^bert\.": "",
        r"^encoder\.": "",
        r"^emb_ln\.": "embeddings.LayerNorm.",
        r"\.attn\.Wqkv\.": ".self_attn.{q_proj,k_proj,v_proj}.",
        r"\.attn\.out_proj\.": ".self_attn.o_proj.",
        r"\.fc11\.": ".up_proj.",
        r"\.fc12\.": ".gate_proj.",
        r"\.fc2\.": ".down_proj.",
        r"\.norm1\.": ".post_attention_layernorm.",
        r"\.norm2\.": ".post_mlp_layernorm.",
    },
    adds_pooler=False,
)
_GTE = Family(
    model_type="gte",
    stem="Gte",
    prefix="gte.",
    names=_ROTARY,
    heads={
        None: Layers(),
        # Its activation is always gelu.
        "masked_lm": Layers({**_ROBERTA.heads["masked_lm"].names, "masked_lm/bias": "lm_head.decoder.bias"}, _GELU),
        **_OF_TEXTS_AND_TOKENS,
    },
    decoder="lm_head.decoder",
    fields=_FIELDS,
    constants=_CONSTANTS | rotary.CONSTANTS | {"unbiased_layers": ("intermediate",)},
    defaults=_DEFAULTS | {"type_vocab_size": 1, "attention_dropout": 0.0},
    parts=rotary.Parts(160_000.0),
    older={
        r"^new\.": "",
        r"^encoder\.layer\.": "layers.",
        r"\.attention\.qkv_proj\.": ".self_attn.{q_proj,k_proj,v_proj}.",
        r"\.attention\.o_proj\.": ".self_attn.o_proj.",
        r"\.attn_ln\.": ".post_attention_layernorm.",
        r"\.mlp\.up_gate_proj\.": ".mlp.{up_proj,gate_proj}.",
        r"\.mlp_ln\.": ".post_mlp_layernorm.",
        r"^lm_head\.norm\.": "lm_head.layer_norm.",
    },
    adds_pooler=False,
    has_types=False,
    tokenizer="XLMRobertaTokenizer",
)

# By model_type. A model of no family here is written as the first that can hold it.
FAMILIES = {
    family.model_type: family
    for family in (
        _BERT,
        _ROBERTA,
        dataclasses.replace(_ROBERTA, model_type="xlm-roberta", stem="XLMRoberta", tokenizer="XLMRobertaTokenizer"),
        dataclasses.replace(_ROBERTA, model_type="camembert", stem="Camembert", tokenizer="CamembertTokenizer"),
        _DISTILBERT,
        _ELECTRA,
        _ALBERT,
        _MODERNBERT,
        _NOMIC_BERT,
        _GTE,
    )
}


def other_family(family: Family, tensors: Collection[str]) -> tuple[Family, str] | None:
    """Another family that tensors belong to, and the name of one of them; None if they may be those of `family`."""
    if family.layer_in(tensors):
        return None
    named = [
        (other, other.layer_in(name for name in tensors if name.startswith(other.prefix)))
        for other in FAMILIES.values()
    ]
    plain = [(other, other.layer_in(tensors)) for other in FAMILIES.values()]
    return next(((other, name) for other, name in named + plain if name), None)
