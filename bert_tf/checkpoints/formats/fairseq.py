"""fairseq's RoBERTa checkpoints: a pickle NAME.pt with dict.txt beside it (fairseq, models/roberta).

The encoder is BERT's without token types and pooler. The position embedding has two rows before the first token's, as
fairseq counts positions from its padding id, 1; LayerNorm has PyTorch's epsilon.
"""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.checkpoints.stored_model import Checkpoint, foreign_config
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.tensor_files.pytorch import check_allowed, open_nested, tensors_of
from bert_tf.checkpoints.weight_map import PYTORCH, WeightMap, expand, names_of, read_mapped
from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.model.variables import variable_shapes
from bert_tf.text import Tokenizer
from bert_tf.text.encoding import decode
from bert_tf.text.vocabulary import check_vocabulary

FORMAT = "fairseq"
_DICTIONARY = "dict.txt"

# Our names for fairseq's special symbols; the mask comes last, after the dictionary (fairseq, data/dictionary.py).
_SPECIALS = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]  # <s>, <pad>, </s>, <unk>
_MASK = "<mask>"
_FIELDS = {  # of BertConfig -> fairseq's setting
    "num_layers": "encoder_layers",
    "hidden_size": "encoder_embed_dim",
    "num_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_embed_dim",
    "max_position_embeddings": "max_positions",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}
_ACTIVATIONS = {"gelu": "erf_gelu", "gelu_accurate": "tanh_gelu", "gelu_fast": "tanh_gelu", "relu": "relu"}
# Encoder and head are in a "decoder" in releases up to 0.9, and in an "encoder" since then.
_ENCODER = re.compile(r"(encoder|decoder)\.sentence_encoder\.")
_NAMES = {  # below the encoder; those of the head are beside it
    "embeddings/word_embeddings": "embed_tokens.weight",
    "embeddings/position_embeddings": "embed_positions.weight",
    "embeddings/norm": "layernorm_embedding",
    "masked_lm/transform": "lm_head.dense",
    "masked_lm/norm": "lm_head.layer_norm",
    "masked_lm/bias": "lm_head.bias",
    "layer_*/attention/qkv": "layers.*.self_attn.{q,k,v}_proj",
    "layer_*/attention/output": "layers.*.self_attn.out_proj",
    "layer_*/attention_norm": "layers.*.self_attn_layer_norm",
    "layer_*/intermediate": "layers.*.fc1",
    "layer_*/output": "layers.*.fc2",
    "layer_*/output_norm": "layers.*.final_layer_norm",
}
_TOKENIZER: dict[str, Any] = {"lower_case": False, "strip_accents": False, "split_cjk": False}


def recognises(path: str) -> bool:
    """Whether `path` is a .pt file, or a directory with .pt files and a dictionary."""
    if os.path.isdir(path):
        names = os.listdir(path)  # if it has a config.json, it is Hugging Face's copy of such a model
        return _DICTIONARY in names and "config.json" not in names and bool(_checkpoints(path))
    return path.endswith(".pt") and os.path.exists(path)


def read(path: str, allow_pickle: bool = False) -> Checkpoint:
    """Opens a checkpoint.

    Args:
        path: of the .pt file, or of a directory with only one.
        allow_pickle: must be True, as these files are always pickled.
    """
    file = _only_checkpoint(path) if os.path.isdir(path) else path
    dictionary = os.path.join(os.path.dirname(file), _DICTIONARY)
    if not os.path.exists(dictionary):
        raise DataError(f"{dictionary}: no such file; expected fairseq's dictionary beside {os.path.basename(file)}")
    check_allowed(file, allow_pickle)
    saved = open_nested(file)
    store = tensors_of(saved.get("model"), file) if isinstance(saved, dict) else None
    if not store:
        raise DataError(f"{file}: no tensors under 'model'; expected a checkpoint of fairseq")
    prefix = next((match[0] for match in map(_ENCODER.match, store) if match), None)
    if not prefix:
        raise DataError(f"{file}: no tensors in a 'sentence_encoder'; expected fairseq's RoBERTa")
    symbols = _read_dictionary(dictionary)
    config = _config(_settings(saved, file), store, prefix, file)
    pieces = _pieces(symbols, config.vocab_size, dictionary)

    root = prefix.removesuffix("sentence_encoder.")
    head = "masked_lm" if f"{root}lm_head.bias" in store else None
    table, shapes = _weight_map(config, store, prefix), variable_shapes(config, head)
    tensors = read_mapped(table, shapes, store, file)
    unused_tensors = _unused_tensors(store, names_of(table, shapes), tensors["embeddings/word_embeddings"], root, file)
    unused_tensors |= {
        str(name): "belongs to the training run, not to the model"
        for name in saved
        if name not in ("model", "args", "cfg")
    }
    why = _not_text(symbols, pieces)
    return Checkpoint(
        config=config,
        tensors=tensors,
        task={"name": head, "settings": {"max_length": config.max_position_embeddings}} if head else None,
        pieces=None if why else pieces,
        tokenizer_settings={} if why else dict(_TOKENIZER),
        unused_tensors=unused_tensors,
        warnings=[
            f"no vocabulary: {why}" if why else "texts must be symbols separated by spaces, as fairseq reads them"
        ],
        source_metadata={"format": FORMAT},
    )


def _checkpoints(path: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith(".pt"))


def _only_checkpoint(path: str) -> str:
    names = _checkpoints(path)
    if len(names) > 1:
        raise DataError(f"{path} holds {len(names)} checkpoints, {', '.join(names)}; name one of the files")
    return os.path.join(path, names[0])


def _settings(saved: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The settings of the model: a Namespace under "args", or since fairseq 0.10.1 a dict under "cfg"."""
    cfg = saved.get("cfg")
    settings = saved.get("args") or (cfg.get("model") if isinstance(cfg, dict) else None)
    if isinstance(settings, argparse.Namespace):
        settings = vars(settings)
    if not isinstance(settings, dict):
        raise DataError(
            f"{file}: no settings under 'args' or 'cfg'; expected a checkpoint of fairseq's training program"
        )
    return settings


def _config(settings: Mapping[str, Any], store: Mapping[str, Tensor], prefix: str, file: str) -> BertConfig:
    """BertConfig from fairseq's settings; the vocabulary size comes from the word embedding."""
    if settings.get("encoder_normalize_before"):
        raise DataError(
            f"{file}: encoder_normalize_before is set; expected fairseq's RoBERTa, which normalises after each sublayer"
        )
    activation = settings.get("activation_fn")
    if str(activation) not in _ACTIVATIONS:
        raise DataError(f"{file}: activation_fn {activation!r}; expected one of {', '.join(_ACTIVATIONS)}")
    words = store.get(f"{prefix}embed_tokens.weight")
    if words is None or len(words.shape) != 2:
        raise DataError(f"{file}: no {prefix}embed_tokens.weight of two axes; expected fairseq's RoBERTa")
    # Models trained on full blocks of text may set only tokens_per_sample.
    fields = _FIELDS | ({} if settings.get("max_positions") else {"max_position_embeddings": "tokens_per_sample"})
    values = {ours: settings.get(theirs) for ours, theirs in fields.items()} | {
        "vocab_size": words.shape[0],
        "position_offset": 2,
        "type_vocab_size": 0,
        "pooler": False,
        "activation": _ACTIVATIONS[str(activation)],
        "layer_norm_epsilon": 1e-5,
    }
    return foreign_config(values, fields, file)


def _weight_map(config: BertConfig, store: Mapping[str, Tensor], prefix: str) -> WeightMap:
    """The weight map; older names are used if `store` has them: emb_layer_norm; one matrix for q, k and v."""
    root = prefix.removesuffix("sentence_encoder.")
    names = {ours: (root if ours.startswith("masked_lm/") else prefix) + theirs for ours, theirs in _NAMES.items()}
    if f"{prefix}emb_layer_norm.weight" in store:
        names["embeddings/norm"] = f"{prefix}emb_layer_norm"
    table = expand(names, PYTORCH, config.num_layers)
    joined = {"layer_*/attention/qkv": f"{prefix}layers.*.self_attn.in_proj"}
    for path, mapping in expand(joined, {"kernel": "_weight", "bias": "_bias"}, config.num_layers).items():
        if mapping.names[0] in store:
            table[path] = mapping
    return table


def _unused_tensors(store: Mapping[str, Tensor], used: set[str], words: Tensor, root: str, file: str) -> dict[str, str]:
    """Tensors that the model does not use, each with the reason; DataError for any that would change its outputs."""
    unused_tensors, unknown = {}, []
    for name in sorted(store.keys() - used):
        if name == f"{root}lm_head.weight":
            if not np.array_equal(store[name].read(), words.read(), equal_nan=True):
                raise DataError(f"{file}: {name} is not the word embedding; expected the two to be tied")
            unused_tensors[name] = "a copy of the word embedding"
        elif name.endswith(".version"):
            unused_tensors[name] = "a version number of fairseq's code"
        elif name.startswith(root):
            unknown.append(name)
        else:  # classification_heads, and those of other projects
            unused_tensors[name] = "the head of a fine-tuned model, which is not supported here"
    if unknown:
        raise DataError(f"{file} does not hold the model that its settings describe: unknown {', '.join(unknown)}")
    return unused_tensors


def _read_dictionary(path: str) -> list[str]:
    """Symbols of a dictionary; each line has the symbol, a space, its count and perhaps "#fairseq:overwrite"."""
    symbols = []
    with open(path, "rb") as file:
        lines = decode(file.read(), path).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        symbol, _, count = line.removesuffix("\r").removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.isdecimal():
            raise DataError(f"{path}, line {number}: {line[:80]!r}; expected a symbol, a space and its count")
        symbols.append(symbol)
    return symbols


def _pieces(symbols: Sequence[str], vocab_size: int, path: str) -> list[str]:
    """The vocabulary by id, with our names for the special symbols."""
    pieces = [*_SPECIALS, *(symbols if _MASK in symbols else [*symbols, _MASK])]
    if len(pieces) != vocab_size:
        raise DataError(
            f"{path} has {len(symbols)} symbols, which make {len(pieces)} with fairseq's own, but the checkpoint was "
            f"trained with {vocab_size}; use the dictionary that came with it"
        )
    pieces = ["[MASK]" if piece == _MASK else piece for piece in pieces]
    check_vocabulary(pieces, path)
    return pieces


def _not_text(symbols: Sequence[str], pieces: Sequence[str]) -> str | None:
    """The reason why texts cannot be given as symbols separated by spaces; None if they can."""
    if sum(symbol.isdecimal() for symbol in symbols) > len(symbols) / 2:
        return "the dictionary's symbols are ids of another tokenizer (GPT-2's), which bert_tf lacks"
    if any(symbol.startswith(("▁", "Ġ")) for symbol in symbols):
        return (
            "the dictionary's symbols are pieces of another tokenizer (SentencePiece, byte pairs), which bert_tf lacks"
        )
    tokens = Tokenizer(pieces, **_TOKENIZER).tokenize(symbols).to_list()
    expected = {symbol: index for index, symbol in enumerate(pieces)}
    for symbol, ids in zip(symbols, tokens, strict=True):
        if symbol != _MASK and ids != [expected[symbol]]:
            return f"the dictionary's symbol {symbol!r} cannot occur as a word of a text"
    return None
