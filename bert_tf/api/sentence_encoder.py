"""SentenceEncoder: vectors of texts, and training for search."""

import abc
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np

from bert_tf.api.base import Lines, Trainable, absolute, check_export
from bert_tf.api.plain_values import Values, group_label, group_of, plain, texts_of
from bert_tf.checkpoints import directory as model_directory
from bert_tf.checkpoints import static_model
from bert_tf.checkpoints.static_model import StaticModel
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import EmbeddingsConfig, ExampleData, FeatureConfig, TrainConfig
from bert_tf.config.tasks import NEW_VECTORS
from bert_tf.config.train import BatchSize, InferenceDtype
from bert_tf.config.values import checked_arguments
from bert_tf.errors import ConfigError
from bert_tf.files import temporary_directory, text_path
from bert_tf.inference.embedder import Embedder, StaticEmbedder, embedder_of, open_vectors
from bert_tf.inference.extraction import vectors_of
from bert_tf.inference.portable import ExportedFile, export_embedder
from bert_tf.inference.saved_model import Exported, export, on_cpu
from bert_tf.inference.session import ExportFormat, Optimization
from bert_tf.inference.static_vectors import COEFFICIENT, SIZE, static_of
from bert_tf.inputs.datasets.sources import Data, InMemory
from bert_tf.tasks.embeddings import Embeddings
from bert_tf.text.base import BaseTokenizer
from bert_tf.training.dtype import infer_in
from bert_tf.training.evaluation import Split
from bert_tf.training.runs.finetuning import Start
from bert_tf.types import Array, Json, Metrics, StrPath


@checked_arguments
class VectorModel(Trainable):
    """Base class of models that learn vectors of texts; for inputs and labels see `SentenceEncoder`."""

    _kind = Embeddings
    _format = ExampleData(format="groups")
    _inputs = "texts, or tuples of texts,"
    _needs_labels = False
    _sparse: ClassVar[bool] = False
    tokenizer: BaseTokenizer

    def fit(
        self,
        x: Values,
        y: Values = None,
        *,
        objective: str = "",
        teacher: "StrPath | SentenceEncoder | None" = None,
        validation_data: Any = None,
        epochs: float = 1.0,
        batch_size: BatchSize = 32,
        learning_rate: float | None = None,
        directory: StrPath | None = None,
        verbose: bool | int = True,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **settings: Any,
    ) -> keras.callbacks.History:
        """Trains the encoder, as `python -m bert_tf.finetune` does with an `EmbeddingsConfig`.

        Every call starts from the weights that `from_pretrained` opened.

        Args:
            x: inputs; see the class.
            y: their labels, if they have any.
            objective: what is learned, a name of `EmbeddingsConfig.objective`; "" for the one that fits x and y.
            teacher: an encoder, or its path, whose vector of its first text all texts of an input learn; x then has no
                labels.
            validation_data: (x, y), or what `x` alone can be; evaluated after every epoch.
            epochs: passes over the data.
            batch_size: inputs per update: with `accumulation=8` in the memory of an eighth of them.
            learning_rate, directory, verbose, callbacks: as for `TextClassifier.fit`.
            **settings: other fields of `EmbeddingsConfig` and of `bert_tf.config.TrainConfig`, such as scale,
                matryoshka, both_directions, seed or accumulation.

        Returns:
            Keras' History, as of `TextClassifier.fit`.
        """
        names = {field.name for field in dataclasses.fields(EmbeddingsConfig)}
        own = {name: plain(settings.pop(name)) for name in list(settings) if name in names}
        if unknown := settings.keys() - {field.name for field in dataclasses.fields(TrainConfig)}:
            raise ConfigError(f"fit has no argument {min(unknown)!r}; see EmbeddingsConfig and TrainConfig for others")
        train = settings | {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
        given: dict[str, Lines | Data] = {"train": self._labelled(x, y, "x")}
        if validation_data is not None:
            given["validation"] = self._both(validation_data, "validation x")
        with temporary_directory() as folder:
            path = ""
            if isinstance(teacher, SentenceEncoder):
                path = os.path.join(folder, "teacher")
                teacher.save(path)
            elif teacher is not None:
                path = absolute(teacher)
            before = self._config
            objective = objective or ("same_vectors" if path else "")
            if path and y is not None:
                raise ConfigError("y has labels, but with a teacher its vectors are learned; leave y out")
            self._config = EmbeddingsConfig(objective=objective, teacher=path, **self._own_vectors() | own).check()
            try:
                return self._train(given, train, directory, bool(verbose), callbacks)
            finally:
                self._config = before

    def evaluate(self, x: Values, y: Values = None, *, batch_size: BatchSize = 32) -> Metrics:
        """Evaluates the vectors.

        All are held in memory; those of a sparse encoder have a value for each piece. `python -m bert_tf.retrieve`
        measures large collections.

        Args:
            x: as for `fit`.
            y: as for `fit`.
            batch_size: texts per batch.

        Returns:
            For inputs of several texts recall, MRR, nDCG and MAP of the second text of each, among all but the first
            texts; for pairs with numbers, correlations of their cosines; for classes, the accuracy of the nearest text.
        """
        given = self._labelled(x, y, "x")
        split = Split(InMemory(self._data(given), self._kind.example, {"validation": given}), "validation")
        config = EmbeddingsConfig(sparse=self._sparse)
        task = Embeddings.judging(self.tokenizer, self._data(given), split.examples, config)
        texts, of_examples = task.codec.distinct(split.examples)
        vectors: dict[int, Array] = {}
        for first in (True, False):
            rows = [row for row, one in enumerate(texts) if one.is_first == first]
            found = self._vectors([texts[row].texts[0] for row in rows], batch_size, first=first)
            vectors |= zip(rows, found, strict=True)
        predictions = of_examples([{"vectors": vectors[row][np.newaxis]} for row in range(len(texts))])
        return task.benchmark.official_metrics(split.examples, predictions)

    @abc.abstractmethod
    def _vectors(self, texts: list[str], batch_size: int, *, first: bool) -> Array:
        """Vectors of texts, float32 [texts, size]; `first` of those that come first in an example."""

    @abc.abstractmethod
    def _own_vectors(self) -> Json:
        """Fields of the config that the model decides."""

    def _input(self, value: Any, location: str, *, labelled: bool) -> Json:
        return group_of(value, location)

    def _gold(self, label: Any, line: Json, location: str) -> Json:
        return group_label(label, line, location)


@checked_arguments
class SentenceEncoder(VectorModel):
    """Computes vectors of texts, and learns from texts that belong together.

    For `fit` and `evaluate`, an input is a text, or a tuple of texts: a query and a text that belongs to it, and
    further texts that do not. A label is a number for a pair, a class for a single text, or a list with a number for
    each text after the first; pairs, and tuples of more texts, need none.

    Attributes:
        encoder: the Keras model.
        tokenizer: its tokenizer.

    Examples:
        >>> encoder = bert_tf.SentenceEncoder.from_pretrained("hf://sentence-transformers/all-MiniLM-L6-v2")
        >>> vectors = encoder.encode(["A man plays a guitar.", "Someone makes music.", "The market fell."])
        >>> vectors.shape
        (3, 384)
        >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
        True
        >>> pairs = [("Who wrote Faust?", "Faust is a play by Goethe."), ("Where is Oslo?", "Oslo lies in Norway.")]
        >>> history = encoder.fit(pairs, epochs=1)
        >>> sorted(encoder.evaluate(pairs))
        ['map@100', 'mrr@10', 'ndcg@10', 'recall@1', 'recall@10', 'recall@100']
    """

    def __init__(
        self, path: str, checkpoint: Checkpoint | StaticModel, settings: Json, dtype: InferenceDtype = "float32"
    ) -> None:
        self._path, self._dtype = path, dtype
        self._settings, self._config, self._results = settings, EmbeddingsConfig(), {}
        if isinstance(checkpoint, Checkpoint):
            self._start = Start(path, checkpoint.lasting())
            checkpoint = self._start.checkpoint
        self._open(checkpoint, settings)
        self._opened = self._embedder.config  # from which each `fit` starts

    def _open(self, checkpoint: Checkpoint | StaticModel, settings: Json) -> None:
        self._embedder = embedder_of(checkpoint, self._path, **settings)
        self._with_prompt: dict[str, Embedder] = {}
        infer_in(self._dtype, self._embedder.model)
        self.encoder, self.tokenizer = self._embedder.encoder, self._embedder.tokenizer

    @classmethod
    def from_pretrained(
        cls,
        path: StrPath,
        *,
        pool: str | None = None,
        layers: Sequence[int] | None = None,
        max_length: int | None = None,
        long_texts: str | None = None,
        dtype: InferenceDtype = "float32",
    ) -> Self:
        """Opens a model.

        A sentence encoder as sentence-transformers publishes it (modules.json) computes the vectors that it was trained
        for: pooling, dense layers, normalization, its maximum length and its prompts are read with it. What is given
        here replaces these settings; for other models, the defaults are those in parentheses. A static model, which
        `static` makes or model2vec has written, takes `max_length` only, and cannot be trained by `fit`.

        Args:
            path: a model in any format that `bert_tf.load` reads, a static model, or "hf://OWNER/NAME".
            pool: how the vectors of tokens are pooled: "mean" (default), "cls", "max", "mean_sqrt_len", "weightedmean"
                or "lasttoken", or several joined by "+"; see `bert_tf.config.EmbeddingConfig`.
            layers: the layers whose states are summed; 0 for the embeddings, -1 for the last layer (default).
            max_length: tokens per text or window; 0 for the model's maximum (default).
            long_texts: "window" (default) averages over windows of a longer text, "head" cuts it.
            dtype: as for `TextClassifier.from_pretrained`.
        """
        settings: Json = {"pool": pool, "max_length": max_length, "long_texts": long_texts}
        settings["features"] = None if layers is None else FeatureConfig(tuple(layers))
        settings = {name: value for name, value in settings.items() if value is not None}
        path = absolute(path)
        return cls(path, open_vectors(path), settings, dtype)

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that the model was published with, by name."""
        return dict(self._embedder.config.prompts)

    def encode(self, texts: Values, *, prompt_name: str | None = None, batch_size: BatchSize = 32) -> Array:
        """Computes vectors, in batches of texts of similar length.

        Args:
            texts: the texts.
            prompt_name: the one of `prompts` to put in front of each text; None for the model's default, "" for none.
            batch_size: texts per batch.

        Returns:
            float32 [texts, size].
        """
        return vectors_of(self._prompted(prompt_name), texts_of(texts), batch_size)

    def _prompted(self, prompt_name: str | None) -> Embedder:
        if prompt_name is None:
            return self._embedder
        if prompt_name not in self._with_prompt:
            self._with_prompt[prompt_name] = self._embedder.with_prompt(prompt_name)
        return self._with_prompt[prompt_name]

    def static(self, *, size: int = SIZE, coefficient: float = COEFFICIENT) -> "SentenceEncoder":
        """Makes a static model: a table with a vector for each piece of the vocabulary, and no encoder (model2vec).

        The vector of a text is the mean of those of its pieces, normalized: 40 times as fast for single texts, over 200
        times in batches, and less exact, as it does not depend on the order of words. The table has the principal
        components of the vectors that the encoder gives to single pieces, with the weights a / (a + p) of SIF (Arora et
        al., 2017), p from Zipf's law.

        Args:
            size: number of values of a vector, up to those of the encoder's.
            coefficient: a, above 0 and below 1: how much less frequent pieces count.

        Returns:
            An encoder whose `save` writes model2vec's layout.

        Raises:
            ConfigError: the size or the coefficient is out of its range, this is a static model, or its tokenizer
                has no tokenizer.json.

        Examples:
            >>> static = bert_tf.SentenceEncoder.from_pretrained("hf://sentence-transformers/all-MiniLM-L6-v2").static()
            >>> static.encode(["A man plays a guitar."]).shape
            (1, 256)
            >>> static.save("runs/static")
        """
        return SentenceEncoder("", static_of(self._embedder, size, coefficient), {})

    def _vectors(self, texts: list[str], batch_size: int, *, first: bool) -> Array:
        names = self._embedder.config.query_name, self._embedder.config.passage_name
        return self.encode(texts, prompt_name=names[0 if first else 1], batch_size=batch_size)

    def _own_vectors(self) -> Json:
        """The settings of vectors that `from_pretrained` got or the model was published with, if any."""
        if isinstance(self._embedder, StaticEmbedder):
            raise ConfigError("a static model is not trained by fit; train its encoder, and make a new one (static)")
        if self._start.checkpoint.own_vectors:
            return {"vectors": self._opened, "max_length": self._opened.max_length}
        return {"vectors": dataclasses.replace(NEW_VECTORS, **self._settings)} if self._settings else {}

    def _take(self, trained: Checkpoint) -> None:
        self._open(trained, {})

    def save(self, path: StrPath) -> None:
        """Writes the model with its settings to a directory, for `from_pretrained` and the programs of this package."""
        if isinstance(self._embedder, StaticEmbedder):
            static_model.write(self._embedder.static, text_path(path))
        else:
            model_directory.save_checkpoint(self._embedder.checkpoint(), text_path(path))

    def export(
        self,
        path: StrPath,
        *,
        format: ExportFormat = "saved_model",
        prompt_name: str | None = None,
        size: int | None = None,
        values: str = "float32",
        check: bool = True,
        optimize: Optimization = "none",
    ) -> Exported | ExportedFile:
        """Exports a SavedModel that takes text and returns vectors; or another format.

        Args:
            path: as for `TextClassifier.export`.
            format: as for `TextClassifier.export`; formats other than a SavedModel return the vectors of tokens, too.
            check: as for `TextClassifier.export`.
            optimize: as for `TextClassifier.export`.
            prompt_name: as for `encode`; the SavedModel puts this one in front of every text. With other formats, the
                caller does.
            size: number of values of a vector that are kept, the first ones, of a model that was trained for it
                (`matryoshka`); None for all.
            values: number format of the vectors that a SavedModel returns: "float32", "float16", or "int8", each vector
                divided by its largest value and multiplied by 127.
        """
        check_export(path, format, optimize)
        with on_cpu():  # an export is compared with the model on the CPU
            embedder = self._embedder
            if not isinstance(embedder, StaticEmbedder):
                embedder = embedder_of(embedder.checkpoint(), self._path)
        given = {"prompt_name": prompt_name, "size": size, "values": values}
        embedder = embedder.replaced(**{name: value for name, value in given.items() if value is not None})
        if format != "saved_model" and values != "float32":
            raise ConfigError(f"values is {values!r}, but only a SavedModel returns such vectors; leave it out")
        if format != "saved_model":
            return export_embedder(embedder, text_path(path), format, check=check, optimize=optimize)
        return export(embedder.task, embedder.model, os.fspath(path), check=check, optimize=optimize)
