"""Static models on disk, in model2vec's layout: a tokenizer and a table of the vectors of its pieces.

config.json           normalize, max_length
model.safetensors     embeddings [rows, size]; mapping [pieces], the row of each piece, and weights [pieces], if any
tokenizer.json        of the library `tokenizers`
modules.json          the same for sentence-transformers
"""

import contextlib
import dataclasses
import os
from typing import Annotated, Any, TypedDict

import numpy as np
from absl import logging

from bert_tf.checkpoints import tokenizer_files
from bert_tf.checkpoints.tensor import Tensor, finite, tensor_of
from bert_tf.checkpoints.tensor_files.safetensors import open_tensors, write_tensors
from bert_tf.config import EmbeddingConfig
from bert_tf.config.values import Rule
from bert_tf.errors import DataError
from bert_tf.files import check_output, check_own_directory, read_bytes, read_json, write_bytes, write_json, write_text
from bert_tf.model.static_vectors import StaticVectors
from bert_tf.text.base import BERT, ROBERTA, BaseTokenizer
from bert_tf.types import Array, Json

_CONFIG, _WEIGHTS, _LIBRARY, _MODULES = "config.json", "model.safetensors", "tokenizer.json", "modules.json"
_TYPE = "model2vec"
_TABLE, _MAPPING, _FACTORS = "embeddings", "mapping", "weights"
_LENGTH = 512  # model2vec's, if config.json has none
_MOST = 1_000_000  # pieces of a text
_ROOT = "sentence_transformers.models."
_README = """---
library_name: model2vec
tags:
- static-embeddings
- sentence-transformers
---

Static vectors in model2vec's layout: the vector of a text is the mean of the vectors of its pieces.
"""


class _Settings(TypedDict, total=False):
    normalize: bool | None
    max_length: Annotated[int | None, Rule(at_least=1)]


class _Model(TypedDict, total=False):
    vocab: dict[str, Any] | list[Any] | None  # what is in it is checked where the tokenizer is read
    unk_id: int | None
    unk_token: str | None


class _Token(TypedDict):
    content: str


class _Library(TypedDict, total=False):
    model: _Model
    added_tokens: list[_Token]


@dataclasses.dataclass(frozen=True)
class StaticModel:
    """A static model.

    Attributes:
        tokenizer: its last pieces may be special tokens that the vocabulary lacks, and that no text has.
        library: the content of tokenizer.json, for the pieces that the table knows.
        table: float32, float16 or int8 [rows, size].
        vectors: length of texts, and whether vectors are normalized.
        mapping: int [pieces], the row of each piece; None if piece i has row i.
        weights: float32 [pieces], factors of the rows; None for 1.
        uncounted: ids of pieces that are left out of the mean: the unknown token.
    """

    tokenizer: BaseTokenizer
    library: bytes
    table: Array
    vectors: EmbeddingConfig
    mapping: Array | None = None
    weights: Array | None = None
    uncounted: tuple[int, ...] = ()

    def model(self) -> StaticVectors:
        """The Keras model."""
        known = np.arange(len(self.table)) if self.mapping is None else self.mapping
        rows = np.full(self.tokenizer.vocab_size, -1, np.int32)
        rows[: len(known)] = known
        rows[[*self.uncounted]] = -1
        if self.mapping is None:
            table = self.table.astype(np.float32)
            return StaticVectors(table if self.weights is None else table * self.weights[:, np.newaxis], rows)
        weights = self.weights
        if weights is not None:
            weights = np.pad(weights, (0, len(rows) - len(weights))).astype(np.float32)
        return StaticVectors(self.table, rows, weights)


def recognises(path: str) -> bool:
    """Whether `path` is a directory in this layout; DataError if one of its files is missing."""
    files = [os.path.join(path, name) for name in (_CONFIG, _WEIGHTS, _LIBRARY)]
    if missing := [file for file in files if not os.path.isfile(file)]:
        if files[0] not in missing and read_json(files[0], Json).get("model_type") == _TYPE:
            raise DataError(
                f"{missing[0]}: no such file; expected the files of model2vec: {_CONFIG}, {_WEIGHTS}, {_LIBRARY}"
            )
        return False
    return _TABLE in open_tensors(files[1])


def read(path: str) -> StaticModel:
    """Reads a directory.

    Raises:
        DataError: a file is damaged, the tokenizer is not of a kind that is supported, or the tensors do not fit it.
    """
    settings = read_json(os.path.join(path, _CONFIG), _Settings)
    file = os.path.join(path, _WEIGHTS)
    tensors = open_tensors(file)
    pieces, unknown = _vocabulary(path)
    _check(tensors, len(pieces), file)
    family = BERT if {BERT.pad, BERT.unk} & pieces else ROBERTA
    names: Json = dict(zip((f"{name}_token" for name in family._fields), family, strict=True))
    names["tokenizer_class"] = "PreTrainedTokenizerFast"
    size = len(pieces.union(family))  # the special tokens that are lacking follow the pieces
    tokenizer, warnings = tokenizer_files.read_tokenizer(path, names, size, default_class=None, required=True)
    if tokenizer is None:
        raise DataError(f"{path}: {'; '.join(warnings)}")
    for warning in warnings:
        logging.warning("%s: %s", path, warning)
    found = {name: finite(tensors[name], file).read() for name in (_TABLE, _MAPPING, _FACTORS) if name in tensors}
    table, mapping = found[_TABLE], found.get(_MAPPING)
    if mapping is not None and not 0 <= mapping.min() <= mapping.max() < len(table):
        rows = f"{mapping.min()} to {mapping.max()}"
        raise DataError(f"{file}: {_MAPPING} has the rows {rows}; expected 0 to {len(table) - 1}, as {_TABLE} has")
    length = settings.get("max_length", _LENGTH) or 0
    normalize = bool(settings.get("normalize"))
    vectors = EmbeddingConfig(max_length=min(length, _MOST), long_texts="head", normalize=normalize)
    uncounted = tuple(sorted({tokenizer.unk_id, *unknown}))
    library = read_bytes(os.path.join(path, _LIBRARY))
    return StaticModel(tokenizer, library, table, vectors, mapping, found.get(_FACTORS), uncounted)


def _vocabulary(path: str) -> tuple[set[str], set[int]]:
    """The pieces of tokenizer.json, and the id of what stands for unknown words."""
    library = read_json(os.path.join(path, _LIBRARY), _Library)
    model = library.get("model") or {}
    vocab = model.get("vocab") or {}
    pieces = {str(piece[0] if isinstance(piece, list) and piece else piece) for piece in vocab}
    unknown = vocab.get(model.get("unk_token") or "") if isinstance(vocab, dict) else model.get("unk_id")
    added = {token["content"] for token in library.get("added_tokens") or []}
    return pieces | added, set() if unknown is None else {unknown}


def _check(tensors: dict[str, Tensor], pieces: int, file: str) -> None:
    """Raises DataError unless the tensors are those of a vocabulary of so many pieces."""
    for name, rank in {_TABLE: 2, _MAPPING: 1, _FACTORS: 1}.items():
        if name in tensors and len(tensors[name].shape) != rank:
            raise DataError(f"{file}: {name} has the shape {list(tensors[name].shape)}; expected {rank} dimensions")
    if not all(tensors[_TABLE].shape):
        raise DataError(f"{file}: {_TABLE} has the shape {list(tensors[_TABLE].shape)}; expected vectors with values")
    for name in (_MAPPING if _MAPPING in tensors else _TABLE, _FACTORS):
        if name in tensors and tensors[name].shape[0] != pieces:
            raise DataError(
                f"{file}: {name} has {tensors[name].shape[0]:,} rows; expected {pieces:,}, one for each piece of "
                f"{_LIBRARY}"
            )
    if _MAPPING in tensors and not tensors[_MAPPING].dtype.startswith("int"):
        raise DataError(f"{file}: {_MAPPING} is {tensors[_MAPPING].dtype}; expected int64 numbers of rows")


def write(static: StaticModel, path: str) -> None:
    """Writes a directory, whose files replace those of another static model.

    Raises:
        ConfigError: the directory has files, but no static model.
    """
    check_place(path)
    os.makedirs(path, exist_ok=True)
    size, vectors = static.table.shape[1], static.vectors
    settings: Json = {
        "model_type": _TYPE,
        "architectures": ["StaticModel"],
        "hidden_dim": size,
        "max_length": vectors.max_length or None,
        "normalize": vectors.normalize,
        "embedding_dtype": static.table.dtype.name,
    }
    tensors = {_TABLE: static.table}
    if static.mapping is not None:
        settings["vocabulary_quantization"] = len(static.table)
        tensors[_MAPPING] = static.mapping
    if static.weights is not None:
        tensors[_FACTORS] = static.weights
    with contextlib.suppress(FileNotFoundError):  # of another model, which a kill would leave half of
        os.remove(os.path.join(path, _CONFIG))
    write_tensors(os.path.join(path, _WEIGHTS), {name: tensor_of(value, name) for name, value in tensors.items()})
    write_bytes(os.path.join(path, _LIBRARY), static.library)
    modules = [("StaticEmbedding", "."), ("Normalize", "1_Normalize")][: 1 + vectors.normalize]
    listed = [
        {"idx": index, "name": str(index), "path": folder, "type": _ROOT + kind}
        for index, (kind, folder) in enumerate(modules)
    ]
    write_json(os.path.join(path, _MODULES), listed)
    write_text(os.path.join(path, "README.md"), _README)
    write_json(os.path.join(path, _CONFIG), settings)


def check_place(path: str) -> None:
    """Raises the errors of `write`, which writes to `path` later."""
    check_output(path, directory=True)
    check_own_directory(path, [_WEIGHTS] if recognises(path) else [], "static model")
