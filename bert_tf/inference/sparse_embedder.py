"""A model that computes sparse vectors of texts, opened from a checkpoint in any format."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse
import tensorflow as tf

from bert_tf.checkpoints.adapt import as_masked_lm
from bert_tf.checkpoints.directory import task_and_model
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.errors import DataError
from bert_tf.quiet import traced_function
from bert_tf.tasks.sparse_encoding import SparseEncoding
from bert_tf.types import StrPath, Tensors

_LENGTH = 256  # tokens per text, of a masked language model


class SparseEmbedder:
    """A masked language model with the task of its sparse vectors.

    Args:
        checkpoint: the model.
        path: its name in errors.
        max_length: tokens per text, special tokens included; None for that of a sparse encoder, or 256.

    Raises:
        DataError: the model has no masked-language-model head.

    Attributes:
        task, model: of the vectors.
    """

    def __init__(self, checkpoint: Checkpoint, path: StrPath, max_length: int | None = None) -> None:
        checkpoint = as_masked_lm(checkpoint)
        if checkpoint.head != "masked_lm":
            raise DataError(
                f"{path}: no masked-language-model head, from which sparse vectors come; expected a pre-trained model "
                "that kept its head, or a sparse encoder"
            )
        if checkpoint.task and checkpoint.is_for(SparseEncoding):
            max_length = max_length or checkpoint.task["settings"]["max_length"]
        length = min(max_length or _LENGTH, checkpoint.config.max_position_embeddings)
        _, model = task_and_model(checkpoint, str(path))
        self.task, self.model = SparseEncoding(checkpoint.tokenizer_of_text(path), length), model
        codec = self.task.codec

        def pieces(text: tf.Tensor) -> Tensors:
            return codec.pieces(codec.vectors(model, codec.token_features({"text": text})))

        self._pieces = traced_function(pieces, reduce_retracing=True)

    def __call__(self, texts: Sequence[str], batch_size: int) -> scipy.sparse.csr_array:
        """float32 [texts, vocabulary]: the weights of the pieces of each text, the largest first."""
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            answers = self._pieces(tf.constant([texts[row] for row in rows]))
            values = (answers[name].numpy() for name in ("ids", "weights"))
            found |= zip(rows, zip(*values, strict=True), strict=True)
        ids, weights = ([found[row][part] for row in range(len(texts))] for part in (0, 1))
        ends = np.cumsum([0, *map(len, ids)])
        shape = (len(texts), self.task.tokenizer.vocab_size)
        none = np.zeros(0, np.float32)
        return scipy.sparse.csr_array((np.concatenate([none, *weights]), np.concatenate([none, *ids]), ends), shape)
