"""The private API of TensorFlow Text that this package uses; everything else that it uses is public.

The public classes wrap these ops, but cannot return the offsets that the tokenizer needs, nor take its own model.
`tests/text/test_tf_text.py` fails first if a new version of TensorFlow Text changes one of them.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow_text.core.pybinds import pywrap_fast_wordpiece_tokenizer_model_builder as _builder
from tensorflow_text.python.ops.fast_bert_normalizer import gen_fast_bert_normalizer as _normalizer
from tensorflow_text.python.ops.fast_wordpiece_tokenizer import gen_fast_wordpiece_tokenizer as _wordpiece
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer as _sentencepiece


def wordpiece_model(pieces: Sequence[str], max_bytes: int, unknown: str) -> bytes:
    """Builds the model of `wordpiece`.

    Args:
        pieces: the vocabulary by id; pieces inside of words begin with "##".
        max_bytes: words with more bytes become `unknown`.
        unknown: one of the pieces.
    """
    return _builder.build_fast_wordpiece_model(pieces, max_bytes, "##", unknown, False, False)


def wordpiece(texts: tf.Tensor, model: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Splits texts at white space and punctuation into words, and these into pieces.

    Args:
        texts: string [batch].
        model: uint8 [bytes], a `wordpiece_model`.

    Returns:
        ids int32 [pieces], row_splits int64 [batch + 1], starts and ends int64 [pieces] in bytes of the text.
    """
    _, ids, row_splits, starts, ends = _wordpiece.fast_wordpiece_tokenize_with_offsets(
        input_values=texts, wp_model=model
    )
    return tf.cast(ids, tf.int32), row_splits, starts, ends


def normalize(texts: tf.Tensor, model: tf.Tensor, *, with_offsets: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Replaces characters as a model says.

    Args:
        texts: string [batch].
        model: uint8 [bytes], a `codepoints.normalizer_model`.
        with_offsets: also return the origin of each byte.

    Returns:
        normalized string [batch], offsets int64 [total], row_splits int64 [batch + 1]: see `Normalizer.normalize`.
    """
    return _normalizer.fast_bert_normalize(
        input_values=texts, fast_bert_normalizer_model=model, get_offsets=with_offsets
    )


class SentencePiece:
    """Tokenizes texts by a SentencePiece model, in the graph.

    Args:
        model: a serialized ModelProto. A graph contains it as an attribute, from which the kernel makes the resource,
            so a session that loads a SavedModel has nothing to initialize.
    """

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._name = f"sentencepiece_{hashlib.sha256(model).hexdigest()}"
        with tf.init_scope():
            self._eager = self._resource()

    def _resource(self) -> tf.Tensor:
        with tf.device("/cpu:0"):  # there is no kernel for others
            return _sentencepiece.sentencepiece_op(model=self._model, shared_name=self._name)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts string [batch], valid UTF-8, to ids int32 [batch, None]."""
        ids, splits = self._called(_sentencepiece.sentencepiece_tokenize_op, texts)
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """As `tokenize`, and starts and ends int64 [pieces] in bytes of the text."""
        ids, splits, *offsets = self._called(_sentencepiece.sentencepiece_tokenize_with_offsets_op, texts)
        starts, ends = (tf.cast(values, tf.int64) for values in offsets)
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False), starts, ends

    def _called(self, op: Callable[..., Any], texts: tf.Tensor) -> Any:
        with tf.device("/cpu:0"):
            resource = self._eager if tf.executing_eagerly() else self._resource()
            # (nbest_size, alpha, add_bos, add_eos, reverse): the best segmentation, as it is.
            return op(resource, texts, 0, 1.0, False, False, False, out_type=tf.int32)
