"""A model that computes vectors of texts, opened from a checkpoint in any format."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.checkpoints import open_with_warnings, static_model
from bert_tf.checkpoints.formats import local
from bert_tf.checkpoints.static_model import StaticModel
from bert_tf.checkpoints.stored_model import Checkpoint, assign
from bert_tf.checkpoints.tensor import Tensor, tensor_of_variable
from bert_tf.config import EmbeddingConfig
from bert_tf.config.paths import unknown_field
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import text_path
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.sentence_vectors import SentenceVectors
from bert_tf.quiet import traced_function
from bert_tf.tasks.reranking import Reranking
from bert_tf.tasks.sparse_encoding import SparseEncoding
from bert_tf.tasks.static_vectors import Static
from bert_tf.tasks.vectors import Vectors
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import StrPath, Tensors, TfFunction


def open_embedder(path: StrPath, per: str = "sentence", **settings: Any) -> "Embedder":
    """Opens a model to compute vectors.

    Args:
        path: as for `checkpoints.load`.
        per: as in `EmbeddingConfig`. Vectors of sentences are computed in the way that the model was published for.
        **settings: fields of `EmbeddingConfig` with other values.
    """
    return embedder_of(open_vectors(path, per), path, per, **settings)


def open_vectors(path: StrPath, per: str = "sentence") -> Checkpoint | StaticModel:
    """Opens a model that computes vectors, for `embedder_of`; arguments as for `open_embedder`."""
    found = local(text_path(path))
    if static_model.recognises(found):
        return static_model.read(found)
    return open_with_warnings(path, vectors=per == "sentence")


def embedder_of(
    checkpoint: Checkpoint | StaticModel, path: StrPath, per: str = "sentence", **settings: Any
) -> "Embedder":
    """As `open_embedder`, of an open model; `path` is its name in errors."""
    for name in settings.keys() - {field.name for field in dataclasses.fields(EmbeddingConfig)}:
        raise ConfigError(unknown_field(EmbeddingConfig, name, "vectors"))
    if isinstance(checkpoint, StaticModel):
        return static_embedder(checkpoint, path, per=per, **settings)
    if checkpoint.is_for(SparseEncoding):
        raise DataError(f"{path}: a sparse encoder, which bert_tf.SparseEncoder opens; expected a sentence encoder")
    if per == "sentence" and checkpoint.is_for(Reranking):
        raise DataError(f"{path}: a reranker, which gives scores (retrieve --reranker); expected a sentence encoder")
    tokenizer = checkpoint.tokenizer_of_text(path)
    config = EmbeddingConfig(per)
    if per == "sentence":
        if checkpoint.report.no_vectors:
            raise DataError(checkpoint.report.no_vectors)
        config = checkpoint.own_vectors or config
    return Embedder(
        checkpoint.encoder(dtype="float32"), tokenizer, dataclasses.replace(config, **settings), checkpoint.tensors
    )


class Embedder:
    """A model with the task of its vectors.

    Attributes:
        task: its `Vectors`.
        config: of the task.
        model: maps the encoder's inputs to token vectors, float32 [batch, length, size].
    """

    task: Vectors | Static

    def __init__(
        self,
        encoder: BertEncoder,
        tokenizer: BaseTokenizer,
        config: EmbeddingConfig,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Builds the model on an encoder.

        Args:
            encoder: its variables are shared.
            tokenizer: of the encoder.
            config: which vectors.
            tensors: by path; those of `config.dense` are used.
        """
        config.check()
        limit = encoder.config.max_position_embeddings
        length = config.max_length or limit
        if not 3 <= length <= limit:
            raise ConfigError(f"max_length is {config.max_length}; expected 3 to {limit}, the model's maximum")
        self.config = dataclasses.replace(config, pool="+".join(config.pools), max_length=length)
        self.encoder, self.tokenizer = encoder, tokenizer
        self._layer = _layer_of(self.config, encoder.config.hidden_size, tensors or {})
        self.task = Vectors(tokenizer, self.config, self._layer)
        self.model = self.task.build(encoder)

    def __call__(self, text: tf.Tensor, **words: tf.RaggedTensor) -> Tensors:
        """The vectors of a batch of texts; arguments and results as of `VectorsCodec.vectors`."""
        return self.task.codec.vectors(self.model, text, **words)

    @functools.cached_property
    def traced(self) -> TfFunction:
        """`__call__` as a graph."""
        return traced_function(self.__call__, reduce_retracing=True)

    def with_prompt(self, name: str) -> "Embedder":
        """The same model with another prompt, by its name in the config; "" for none."""
        return self if name == self.config.prompt_name else self.replaced(prompt_name=name)

    def replaced(self, **fields: Any) -> "Embedder":
        """The same model with other values of fields of its config."""
        config = dataclasses.replace(self.config, **fields)
        return Embedder(self.encoder, self.tokenizer, config, self._tensors())

    @property
    def size(self) -> int:
        """Number of values of a vector."""
        return self.task.codec.size(self.model)

    def checkpoint(self) -> Checkpoint:
        """The model with its settings, to be written."""
        return Checkpoint(
            config=self.encoder.config,
            tensors={variable.path: tensor_of_variable(variable) for variable in self.encoder.weights}
            | self._tensors(),
            tokenizer=self.tokenizer,
            vectors=self.config,
        )

    @property
    def weights(self) -> list[keras.Variable]:
        """All variables that decide the vectors."""
        return [*self.encoder.weights, *self._layer.weights]

    def _tensors(self) -> dict[str, Tensor]:
        """Tensors of the dense layers by path."""
        return {variable.path: tensor_of_variable(variable) for variable in self._layer.weights}


# Fields of EmbeddingConfig that may differ in a static model.
_OF_STATIC = ("max_length", "size", "values", "normalize")


class StaticEmbedder(Embedder):
    """A static model with the task of its vectors.

    Attributes:
        static: the model.
        model: a `StaticVectors`; `encoder`, too.
    """

    def __init__(self, static: StaticModel, config: EmbeddingConfig) -> None:
        self.static, self.config, self.tokenizer = static, config.check(), static.tokenizer
        width = static.table.shape[1]
        if config.size > width:
            raise ConfigError(f"size is {config.size}; expected up to the {width} of the model's vectors, or 0")
        self.task = Static(static.tokenizer, config)
        self.model = self.encoder = static.model()

    @property
    def weights(self) -> list[keras.Variable]:
        return list(self.model.weights)

    def replaced(self, **fields: Any) -> Embedder:
        return StaticEmbedder(self.static, dataclasses.replace(self.config, **fields))


def static_embedder(static: StaticModel, path: StrPath, **settings: Any) -> StaticEmbedder:
    """The embedder of a static model; arguments as for `embedder_of`."""
    config = dataclasses.replace(static.vectors, **settings)
    for field in dataclasses.fields(EmbeddingConfig):
        if field.name not in _OF_STATIC and getattr(config, field.name) != getattr(static.vectors, field.name):
            raise ConfigError(
                f"{path}: {field.name} is {getattr(config, field.name)!r}, and a static model, which has no encoder, "
                "takes only " + ", ".join(_OF_STATIC)
            )
    return StaticEmbedder(static, config)


def _layer_of(config: EmbeddingConfig, hidden: int, tensors: Mapping[str, Tensor]) -> SentenceVectors:
    """The layer of vectors of sentences, with its weights."""
    layer = SentenceVectors(config, name="vectors")
    for path, shape in config.shapes(hidden).items():
        found = tensors[path].shape
        if path.endswith("kernel") and shape[0] != found[0]:
            raise ConfigError(
                f"vectors of pool {config.pool!r} have {shape[0]} values, and the model's dense layer reads "
                f"{found[0]}; leave pool and layers out"
            )
    layer.build((None, None, config.features.width * hidden))
    assign(layer.weights, tensors)
    return layer
