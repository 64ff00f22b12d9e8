"""The private API of TensorFlow Text that this package uses; everything else that it uses is public.

The public classes wrap these ops, but cannot return the offsets that the tokenizer needs, nor take its own model.
`tests/text/test_tf_text.py` fails first if a new version of TensorFlow Text changes one of them.
"""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow_text.core.pybinds import pywrap_fast_wordpiece_tokenizer_model_builder as _builder
from tensorflow_text.python.ops.fast_bert_normalizer import gen_fast_bert_normalizer as _normalizer
from tensorflow_text.python.ops.fast_wordpiece_tokenizer import gen_fast_wordpiece_tokenizer as _wordpiece


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
