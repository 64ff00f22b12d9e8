"""SparseEncoder: texts as weights of pieces, for inverted indices."""

import itertools
import os
from typing import Self

from bert_tf.api.base import absolute, check_export
from bert_tf.api.plain_values import Values, texts_of
from bert_tf.api.sentence_encoder import VectorModel
from bert_tf.checkpoints import directory as model_directory
from bert_tf.checkpoints import open_with_warnings
from bert_tf.checkpoints.adapt import as_masked_lm
from bert_tf.checkpoints.directory import task_and_model
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import EmbeddingsConfig
from bert_tf.config.train import BatchSize, InferenceDtype
from bert_tf.config.values import checked_arguments
from bert_tf.files import text_path
from bert_tf.inference.saved_model import Exported, export, on_cpu
from bert_tf.inference.session import Optimization
from bert_tf.inference.sparse_embedder import SparseEmbedder
from bert_tf.model.encoder import encoder_of
from bert_tf.training.dtype import infer_in
from bert_tf.training.runs.finetuning import Start
from bert_tf.types import Array, Json, StrPath


@checked_arguments
class SparseEncoder(VectorModel):
    """Computes sparse vectors of texts: weights of pieces, by which an inverted index finds texts (SPLADE).

    A text's weight of a piece is the largest log(1 + relu(logit)) that the masked language model gives it at any token.

    Attributes:
        encoder: the Keras model.
        tokenizer: its tokenizer.

    Examples:
        >>> encoder = bert_tf.SparseEncoder.from_pretrained("hf://google-bert/bert-base-uncased")
        >>> weights = encoder.encode(["A man plays a guitar."])[0]
        >>> all(weight > 0 for weight in weights.values())
        True
    """

    _sparse = True

    def __init__(self, path: str, checkpoint: Checkpoint, max_length: int | None, dtype: InferenceDtype) -> None:
        self._path, self._start, self._dtype = path, Start(path, as_masked_lm(checkpoint).lasting()), dtype
        self._config, self._results = EmbeddingsConfig(), {}
        self._max_length = max_length
        self._take(self._start.checkpoint)

    @classmethod
    def from_pretrained(
        cls, path: StrPath, *, max_length: int | None = None, dtype: InferenceDtype = "float32"
    ) -> Self:
        """Opens a sparse encoder, or a masked language model, which can become one by `fit`.

        Args:
            path: a model in any format that `bert_tf.load` reads, or "hf://OWNER/NAME".
            max_length: tokens per text, special tokens included; None for that of the model, or 256.
            dtype: as for `TextClassifier.from_pretrained`.
        """
        path = absolute(path)
        return cls(path, open_with_warnings(path), max_length, dtype)

    def encode(self, texts: Values, *, batch_size: BatchSize = 32) -> list[dict[str, float]]:
        """The pieces of each text with their weights, the largest first."""
        rows, names = self._embedder(texts_of(texts), batch_size), self.tokenizer.vocab
        return [
            dict(zip((names[one] for one in rows.indices[first:last]), rows.data[first:last].tolist(), strict=True))
            for first, last in itertools.pairwise(rows.indptr)
        ]

    def _vectors(self, texts: list[str], batch_size: int, *, first: bool) -> Array:
        return self._embedder(texts, batch_size).toarray()

    def save(self, path: StrPath) -> None:
        """Writes the model to a directory, for `from_pretrained` and the programs of this package."""
        model_directory.save(text_path(path), self.model, self.encoder, self.task)

    def export(self, path: StrPath, *, check: bool = True, optimize: Optimization = "none") -> Exported:
        """Exports a SavedModel from texts to pieces and their weights; arguments as for `TextClassifier.export`."""
        check_export(path, "saved_model", optimize)
        with on_cpu():
            task, model = task_and_model(self._stored(), self._path)
        return export(task, model, os.fspath(path), check=check, optimize=optimize)

    def _stored(self) -> Checkpoint:
        return model_directory.stored(self.model, self.encoder, self.task)[""]

    def _own_vectors(self) -> Json:
        return {"sparse": True, "max_length": self._embedder.task.max_length}

    def _take(self, trained: Checkpoint) -> None:
        # What `fit` has trained knows its length.
        length = self._max_length if trained is self._start.checkpoint else None
        self._embedder = SparseEmbedder(trained, self._path, length)
        self.task, self.model, self.tokenizer = self._embedder.task, self._embedder.model, self._embedder.task.tokenizer
        infer_in(self._dtype, self.model)
        self.encoder = encoder_of(self.model)
