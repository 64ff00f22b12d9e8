"""Static models of encoders: every piece of the vocabulary is read by itself (model2vec)."""

import re

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import tokenizer_files
from bert_tf.checkpoints.static_model import StaticModel
from bert_tf.config import EmbeddingConfig
from bert_tf.config.values import shown
from bert_tf.errors import ConfigError
from bert_tf.inference.embedder import Embedder, StaticEmbedder
from bert_tf.model.static_vectors import piece_table
from bert_tf.progress import bar
from bert_tf.quiet import traced_function
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.packing import dense_features
from bert_tf.types import Array

# model2vec's defaults.
SIZE, COEFFICIENT = 256, 1e-4

_BATCH = 256
_LENGTH = 512  # of texts, in pieces: model2vec's default
_NO_WORDS = re.compile(r"\[(unused|padding)\d+\]")  # pieces that no text has


def static_of(embedder: Embedder, size: int = SIZE, coefficient: float = COEFFICIENT) -> StaticModel:
    """Makes a static model; arguments as for `piece_table`.

    The vectors of pieces are pooled as the encoder's are, but not normalized: their lengths are weights, too. As in
    model2vec, the rows are the pieces without [CLS], [SEP], [MASK] and those that no text has.

    Args:
        embedder: of sentences.
        size: number of values of a vector.
        coefficient: above 0 and below 1.

    Raises:
        ConfigError: one of these is out of its range, or the tokenizer has no tokenizer.json.
    """
    if isinstance(embedder, StaticEmbedder):
        raise ConfigError("this is a static model already; make another one from its encoder")
    if embedder.config.per != "sentence":
        raise ConfigError(f"per is {embedder.config.per!r}; expected 'sentence', whose vectors a static model has")
    if not 0 < coefficient < 1:
        raise ConfigError(f"coefficient is {shown(coefficient)}; expected a number above 0 and below 1, such as 1e-4")
    ids = rows_of_vocabulary(embedder.tokenizer)
    most = min(embedder.size, len(ids))
    if not 1 <= size <= most:
        raise ConfigError(f"size is {shown(size)}; expected 1 to {most}, the size of the encoder's vectors")
    names = embedder.tokenizer.special_names
    pieces = embedder.tokenizer.vocab
    specials = [pieces.index(name) for name in (names.sep, names.cls, names.mask)]
    tokenizer = embedder.tokenizer.subset([*ids, *specials])
    library = tokenizer_files.library_of(tokenizer, tokenizer.vocab[: len(ids)])
    table = piece_table(_vectors(embedder, ids), size, coefficient).astype(np.float16)
    vectors = EmbeddingConfig(max_length=_LENGTH, long_texts="head", normalize=True)
    return StaticModel(tokenizer, library, table, vectors, uncounted=(tokenizer.unk_id,))


def rows_of_vocabulary(tokenizer: BaseTokenizer) -> list[int]:
    """The ids of the pieces that a static model knows."""
    left_out = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    return [
        number
        for number, piece in enumerate(tokenizer.vocab)
        if number not in left_out and not _NO_WORDS.fullmatch(piece)
    ]


def _vectors(embedder: Embedder, ids: list[int]) -> Array:
    """float32 [pieces, size]: the vector of each piece, between special tokens."""
    embedder = embedder.replaced(normalize=False, prompt_name="")

    def vectors(pieces: tf.Tensor) -> tf.Tensor:
        features = dense_features(*embedder.tokenizer.pack(tf.RaggedTensor.from_tensor(pieces[:, tf.newaxis])))
        return embedder.task.codec.token_outputs(embedder.model, features)["sentence_embedding"]

    traced = traced_function(vectors, input_signature=[tf.TensorSpec([None], tf.int32)])
    found = []
    with bar("pieces", len(ids), "piece") as line:
        for first in range(0, len(ids), _BATCH):
            batch = ids[first : first + _BATCH]
            found.append(traced(tf.constant(batch, tf.int32)).numpy())
            line.update(len(batch))
    return np.concatenate(found)
