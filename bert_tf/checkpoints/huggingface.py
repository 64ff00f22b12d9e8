"""Hugging Face's layout: config.json, model.safetensors, vocab.txt (transformers, models/bert/modeling_bert.py)."""

import os
import re

from bert_tf.checkpoints.checkpoint import TRANSPOSED, Checkpoint, Place, collect, names_of
from bert_tf.checkpoints.tensor_files import open_tensors
from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.files import read_json
from bert_tf.model.variables import encoder_shapes
from bert_tf.text.vocabulary import check_size, read_vocabulary

FORMAT = "huggingface"

_ACTIVATIONS = {"gelu": "erf_gelu", "gelu_new": "tanh_gelu", "gelu_pytorch_tanh": "tanh_gelu", "relu": "relu"}

# Tensors that are not the encoder's: the heads of the task the checkpoint was trained on.
_HEADS = re.compile(r"(cls|classifier|qa_outputs)\.")
# A buffer 0, 1, 2, ... that older releases saved; it carries nothing.
_BUFFERS = {"embeddings.position_ids"}


def recognises(path):
    """Whether `path` is a directory of this layout."""
    return os.path.exists(os.path.join(path, "config.json"))


def read(path, allow_pickle=False):
    """Opens a directory.

    Returns:
        Checkpoint.

    Raises:
        DataError: for another architecture, and for tensors that are missing, misshapen or unknown, all by name.
    """
    config = read_config(_json(path), path)
    file = os.path.join(path, "vocab.txt")
    pieces = read_vocabulary(file)
    check_size(pieces, config.vocab_size, file)
    file = os.path.join(path, "model.safetensors")
    # The encoder of a model with a head is called bert.*, a bare one has no prefix; TF-era files say gamma and beta.
    store = {}
    for name, tensor in open_tensors(file).items():
        plain = name.removeprefix("bert.")
        store[plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    table, shapes = places(config), encoder_shapes(config)
    tensors = collect(table, shapes, store, file)
    unused = store.keys() - names_of(table, shapes) - _BUFFERS
    unknown = sorted(store[name].source for name in unused if not _HEADS.match(name))
    if unknown:
        raise DataError(f"{file} does not hold the encoder that config.json describes: unknown {', '.join(unknown)}")
    return Checkpoint(
        config=config,
        tensors=tensors,
        pieces=pieces,
        tokenizer_settings=read_tokenizer(path),
        left_out={store[name].source: "not the encoder's" for name in sorted(unused)},
    )


def _json(path):
    config = read_json(os.path.join(path, "config.json"))
    if not isinstance(config, dict):
        raise DataError(f"{path}/config.json: a JSON {type(config).__name__}; expected an object, {{...}}")
    return config


def read_config(config, path):
    """BertConfig from the dict of a config.json."""
    if config.get("model_type", "bert") != "bert":
        raise DataError(f"{path}/config.json: model_type {config['model_type']!r}; expected 'bert'")
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise DataError(f"{path}/config.json: position_embedding_type {positions!r}; expected 'absolute'")
    activation = config.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise DataError(f"{path}/config.json: hidden_act {activation!r}; expected one of {', '.join(_ACTIVATIONS)}")
    try:
        return BertConfig(
            vocab_size=config["vocab_size"],
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            num_heads=config["num_attention_heads"],
            intermediate_size=config["intermediate_size"],
            max_position_embeddings=config["max_position_embeddings"],
            type_vocab_size=config.get("type_vocab_size", 2),
            dropout=config.get("hidden_dropout_prob", 0.1),
            attention_dropout=config.get("attention_probs_dropout_prob", 0.1),
            activation=_ACTIVATIONS[activation],
            layer_norm_epsilon=config.get("layer_norm_eps", 1e-12),
            initializer_range=config.get("initializer_range", 0.02),
        ).check()
    except KeyError as error:
        raise DataError(f"{path}/config.json: no {error.args[0]!r}; expected the config.json of a BERT model") from None


def read_tokenizer(path):
    """The settings of tokenizer_config.json for `Tokenizer`, Hugging Face's defaults where that is silent."""
    file = os.path.join(path, "tokenizer_config.json")
    settings = read_json(file) if os.path.exists(file) else {}
    return {
        "lower_case": settings.get("do_lower_case", True),
        "strip_accents": settings.get("strip_accents"),
        "split_cjk": settings.get("tokenize_chinese_chars", True),
    }


def places(config):
    """dict path of an encoder's variable -> Place. PyTorch keeps dense kernels as [outputs, inputs]."""
    table = {
        "embeddings/word_embeddings": Place(("embeddings.word_embeddings.weight",)),
        "embeddings/position_embeddings": Place(("embeddings.position_embeddings.weight",)),
        "embeddings/type_embeddings": Place(("embeddings.token_type_embeddings.weight",)),
        **_norm("embeddings/norm", "embeddings.LayerNorm"),
        **_dense("pooler", "pooler.dense"),
    }
    for index in range(config.num_layers):
        ours, theirs = f"layer_{index}", f"encoder.layer.{index}"
        attention = f"{theirs}.attention.self"
        table |= _dense(f"{ours}/attention/qkv", f"{attention}.query", f"{attention}.key", f"{attention}.value")
        table |= _dense(f"{ours}/attention/output", f"{theirs}.attention.output.dense")
        table |= _norm(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm")
        table |= _dense(f"{ours}/intermediate", f"{theirs}.intermediate.dense")
        table |= _dense(f"{ours}/output", f"{theirs}.output.dense")
        table |= _norm(f"{ours}/output_norm", f"{theirs}.output.LayerNorm")
    return table


def _dense(ours, *theirs):
    return {
        f"{ours}/kernel": Place(tuple(f"{name}.weight" for name in theirs), TRANSPOSED),
        f"{ours}/bias": Place(tuple(f"{name}.bias" for name in theirs)),
    }


def _norm(ours, theirs):
    return {f"{ours}/gamma": Place((f"{theirs}.weight",)), f"{ours}/beta": Place((f"{theirs}.bias",))}
