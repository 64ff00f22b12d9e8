"""Hugging Face's layout: config.json, model.safetensors, vocab.txt (transformers, models/bert/modeling_bert.py)."""

import os
import re

import numpy as np
from absl import logging
from safetensors import SafetensorError, safe_open

from bert_tf.checkpoints.weights import assign
from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.files import read_json
from bert_tf.model.encoder import BertEncoder
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import check_size

_ACTIVATIONS = {"gelu": "erf_gelu", "gelu_new": "tanh_gelu", "gelu_pytorch_tanh": "tanh_gelu", "relu": "relu"}

# Tensors that are not the encoder's: the heads of the task the checkpoint was trained on.
_HEADS = re.compile(r"(cls|classifier|qa_outputs)\.")
# A buffer 0, 1, 2, ... that older releases saved; it carries nothing.
_BUFFERS = {"embeddings.position_ids"}


def load(path, config, dtype=None):
    """BertEncoder and Tokenizer; see `bert_tf.load`.

    Raises:
        DataError: for another architecture, and for tensors that are missing, misshapen or unknown, all by name.
    """
    encoder = BertEncoder(read_config(config, path), dtype=dtype)
    tokenizer = read_tokenizer(path)
    check_size(tokenizer.vocab, encoder.config.vocab_size)
    file = os.path.join(path, "model.safetensors")
    try:
        with safe_open(file, framework="numpy") as tensors:
            _assign(encoder, tensors, file)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{file} can not be read: {error}; expected a safetensors file") from None
    return encoder, tokenizer


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
    """Tokenizer with the settings of tokenizer_config.json, Hugging Face's defaults where that is silent."""
    file = os.path.join(path, "tokenizer_config.json")
    settings = read_json(file) if os.path.exists(file) else {}
    return Tokenizer(
        os.path.join(path, "vocab.txt"),
        lower_case=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        split_cjk=settings.get("tokenize_chinese_chars", True),
    )


def sources(config):
    """Where each variable of an encoder comes from.

    Returns:
        dict path of the variable -> names of the tensors it is put together from, side by side. PyTorch keeps dense
        kernels as [outputs, inputs], Keras as [inputs, outputs].
    """
    table = {
        "embeddings/word_embeddings": ["embeddings.word_embeddings.weight"],
        "embeddings/position_embeddings": ["embeddings.position_embeddings.weight"],
        "embeddings/type_embeddings": ["embeddings.token_type_embeddings.weight"],
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
        f"{ours}/kernel": [f"{name}.weight" for name in theirs],
        f"{ours}/bias": [f"{name}.bias" for name in theirs],
    }


def _norm(ours, theirs):
    return {f"{ours}/gamma": [f"{theirs}.weight"], f"{ours}/beta": [f"{theirs}.bias"]}


def _assign(encoder, tensors, file):
    # The encoder of a model with a head is called bert.*, a bare one has no prefix; TF-era files say gamma and beta.
    names = {}
    for name in tensors.keys():  # noqa: SIM118
        plain = name.removeprefix("bert.")
        names[plain.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = name
    table = sources(encoder.config)
    wanted = {name for parts in table.values() for name in parts}
    unused = sorted(names.keys() - wanted - _BUFFERS)
    unknown = [names[name] for name in unused if not _HEADS.match(name)]
    missing = sorted(wanted - names.keys())
    if missing or unknown:
        parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(unknown)
        raise DataError(f"{file} does not hold the encoder that config.json describes: {'; '.join(parts)}")
    if unused:
        logging.warning("%s: left out, not the encoder's: %s", file, ", ".join(names[name] for name in unused))

    def shape(path):
        shapes = [tensors.get_slice(names[name]).get_shape() for name in table[path]]
        if any(one != shapes[0] for one in shapes):  # side by side they might add up to the right shape
            parts = ", ".join(f"{names[name]} is {one}" for name, one in zip(table[path], shapes, strict=True))
            raise DataError(f"{file}: the parts of {path} differ in shape: {parts}")
        shapes = [list(reversed(one)) if path.endswith("/kernel") else one for one in shapes]
        return (*shapes[0][:-1], sum(one[-1] for one in shapes))

    def read(path):
        parts = [tensors.get_tensor(names[name]) for name in table[path]]
        return np.concatenate([part.T if path.endswith("/kernel") else part for part in parts], -1)

    assign(encoder.weights, {path: shape(path) for path in table}, read, file)
