"""Fine-tuning, from a config to a model directory."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import new_encoder, open_with_warnings
from bert_tf.checkpoints.stored_model import Checkpoint, assign
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.config import EmbeddingConfig, ExampleData, FinetuneConfig, to_dict
from bert_tf.config.train import FINETUNING_RATE
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference.embedder import open_embedder
from bert_tf.inference.extraction import vectors_of
from bert_tf.inputs.datasets.examples import Labels
from bert_tf.inputs.datasets.sources import Examples, InMemory, Source
from bert_tf.inputs.identity import digest, tensors_identity, tokenizer_identity, weights_identity
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import HEADS
from bert_tf.progress import log
from bert_tf.tasks import FineTuningTask, task_of
from bert_tf.tasks.few_labels import FewLabels
from bert_tf.tasks.objective import JointObjective
from bert_tf.text.base import BaseTokenizer
from bert_tf.training.evaluation import Answering, Evaluation, Split
from bert_tf.training.phases import Input
from bert_tf.training.runs.run import Place, PlaceOptions, Run, expect
from bert_tf.training.state.run_manifest import differences
from bert_tf.training.strategy import accelerator, is_chief
from bert_tf.types import Json, Metrics, StrPath, Tensors

# Training examples on which the ranges of train.quantization are measured.
_CALIBRATION = 128


class Start(NamedTuple):
    """An open checkpoint from which a run starts, or a teacher.

    Attributes:
        path: from which it was opened, for messages and run.json.
        checkpoint: its weights are read from files that stay open, whatever becomes of the path.
    """

    path: str
    checkpoint: Checkpoint

    @classmethod
    def open(cls, path: StrPath) -> "Start":
        """Opens a path, as `bert_tf.load` does."""
        return cls(str(path), open_with_warnings(path))


class FineTuningRun(Run):
    """Fine-tunes a pre-trained encoder on labelled examples.

    Args:
        config: of this run alone.
        data: the folder that holds the files named in config.data; or the examples, and without those for validation
            nothing is evaluated.
        start: a missing pooler is initialized randomly, and so is the head, unless the checkpoint is a model of the
            same task with the same labels.
        place: where it trains.
        like: results of a run with which this one will be compared: requires the same inputs, and computes in the same
            number format.
        files: further paths, to be recorded.
    """

    program = "finetune"
    task: FineTuningTask
    _computed: tuple[str, ...] = ()  # columns that a teacher computes, on other processors with other last bits

    def __init__(
        self,
        config: FinetuneConfig,
        data: str | InMemory,
        start: Start | None,
        place: Place,
        *,
        like: Json | None = None,
        **files: str,
    ) -> None:
        self.config, self._start = config, start
        task_config: Any = config.task  # of the class that its task names
        source: Examples = source_of(config.data, task_config, data) if isinstance(data, str) else data
        task_config.check()
        self.splits = self.read(source)
        super().__init__(
            config,
            place,
            self.identities(source),
            {"data_dir": data if isinstance(data, str) else "", "init": start.path if start else ""} | files,
            computes_in=like.get("computes_in") if like else None,
        )
        self.evaluate_first = False  # an untrained head guesses, and the baseline has the metrics of guessing
        keras.utils.set_random_seed(self.train.seed)  # of a pooler that the checkpoint lacks
        inputs = self.record["inputs"]
        with self.strategy.scope():
            self.encoder, tokenizer, inputs["init"] = self.open_encoder(self.dtype)
        self.choose_rate(FINETUNING_RATE, self.encoder.config.hidden_size)
        self._limit = limit = self.encoder.config.max_position_embeddings
        if task_config.max_length > limit:
            raise ConfigError(f"task.max_length is {task_config.max_length}; it must be at most the model's {limit}")
        self._own = self.task = self.learn(tokenizer, source.labels())
        self._head = self._known_head()
        if self._head and start and not (self._own.vectors or isinstance(self._own.objective, JointObjective)):
            log(f"continuing with the head of {start.path}, which is for the same task")
            inputs["head"] = weights_identity(tf.constant(tensor.read()) for tensor in self._head.values())
        objective = self._own.objective
        if isinstance(objective, JointObjective) and self.train.batch_size < objective.least:
            raise ConfigError(
                f"train.batch_size is {self.train.batch_size}, and the examples of a batch learn from each other; "
                f"expected at least {objective.least}, better 32 or more"
            )
        for split in self.splits.values():  # before training, so that an unknown label is reported at once
            split.prepare(self._own)
        # The same files may be read or repaired differently by another version.
        inputs["examples"] = {
            role: tensors_identity({name: value for name, value in split.columns.items() if name not in self._computed})
            for role, split in self.splits.items()
        }
        check_inputs(inputs, like)
        self._rows, self._columns = self._own.codec.training_rows, self.columns()
        self.steps_per_epoch = math.ceil(self._rows.count(self._columns) / self.train.batch_size)
        self.total_steps = self.train.steps or math.ceil(self.steps_per_epoch * self.train.epochs)
        self.evaluate_every = self.train.evaluate_every or self.steps_per_epoch
        self.inputs = [Input(self.batches)]
        self._evaluation: Evaluation | None = None
        self._fit_head: Callable[[], None] = lambda: None  # what a head that is not trained by gradients needs

    def read(self, source: Examples) -> dict[str, Split]:
        """The examples by role."""
        return {role: Split(source, role) for role in source.roles}

    def identities(self, source: Examples) -> Json:
        """Fingerprints of the files of the examples."""
        return {role: source.identity(role) for role in source.roles}

    def open_encoder(self, dtype: str | None) -> tuple[BertEncoder, BaseTokenizer, Json]:
        """The pre-trained encoder, its tokenizer and the identity of the checkpoint."""
        assert self._start is not None
        return opened(self.config.task, self._start, dtype)

    def learn(self, tokenizer: BaseTokenizer, labels: Labels | None) -> FineTuningTask:
        """The task, which learns its labels from the training examples unless the format has some."""
        published = self._start.checkpoint.own_vectors if self._start else None
        given: Any = self.config.task
        config = given.published(published, self._limit)
        if config.teacher:
            self._teach(config.teacher)
        return task_of(config).learn(tokenizer, config, self.config.data, self.splits["train"].examples, labels)

    def _teach(self, path: str) -> None:
        """Labels all examples with the vector that the teacher gives their first text."""
        teacher = open_embedder(path)
        self.record["inputs"]["teacher"] = digest([weights_identity(teacher.weights), to_dict(teacher.config)])
        self._computed = ("labels",)
        for split in self.splits.values():
            texts = [example.texts[0] for example in split.examples]
            vectors = vectors_of(teacher, texts, self.train.batch_size, progress=True)
            split.examples = [
                example._replace(label=vector) for example, vector in zip(split.examples, vectors, strict=True)
            ]

    def columns(self) -> Tensors:
        """The columns of all training examples."""
        return self.splits["train"].columns

    def batches(self, epoch: tf.Tensor | int) -> tf.data.Dataset:
        """The batches of an epoch."""
        seed = tf.stack([tf.constant(self.train.seed, tf.int64), epoch])
        # XLA compiles the update, or at least GELU, for each length.
        few_lengths = self.jit_compile or accelerator(self.strategy) is not None
        objective = self._own.objective
        mixed = isinstance(objective, JointObjective) and not objective.separable
        return self._rows.batches(self._columns, self.train.batch_size, seed=seed, few_lengths=few_lengths, mixed=mixed)

    def build_encoder(self) -> BertEncoder:
        return self.encoder

    def initialize(self, model: keras.Model) -> None:
        assign((one for one in model.weights if one.path in self._head), self._head)

    def evaluations(self, model: keras.Model) -> Sequence[Callable[[], Metrics] | None]:
        if isinstance(objective := self._own.objective, FewLabels):
            self._fit_head = self._head_fitter(objective, model)
        if validation := self.splits.get("validation"):
            size = self.train.batch_size
            self._evaluation = Evaluation(self._own, model, validation, size, self.strategy, tune=True)
        return [self._evaluate if self._evaluation else None]

    def _evaluate(self) -> Metrics:
        assert self._evaluation
        self._fit_head()
        return self._evaluation()

    def _head_fitter(self, objective: FewLabels, model: keras.Model) -> Callable[[], None]:
        """Returns a function that sets the head of the model by its vectors of the training examples."""
        objective.check(self._columns["labels"].numpy())
        batches = self._own.codec.rows.batches(self._columns, self.train.batch_size)
        vectors_of_rows = Answering(
            model, lambda features, outputs: ((outputs["vector"], features["labels"]), ()), self.strategy
        )

        def fit_head() -> None:
            vectors, labels = zip(*(answers for _, answers, _ in vectors_of_rows(batches)), strict=True)
            objective.fit(model, np.concatenate(vectors), np.concatenate(labels))

        return fit_head

    def meanwhile(self) -> None:
        if self._evaluation:
            self._evaluation.trace()
        if is_chief(self.strategy):
            self.reporter.load()

    def calibration(self) -> Iterable[Tensors]:
        seed = tf.constant([self.train.seed, -1], tf.int64)
        batches = self._own.codec.rows.batches(self._columns, self.train.batch_size, seed=seed)
        return batches.take(math.ceil(_CALIBRATION / self.train.batch_size))

    def finish(self, results: Json) -> None:
        results["skipped"] = {role: split.read_report.counts for role, split in self.splits.items()}
        results["unknown_share"] = {role: split.unknown.share for role, split in self.splits.items()}
        results["steps_per_epoch"] = self.steps_per_epoch
        evaluation = self._evaluation
        if evaluation is None:
            self._fit_head()
            return
        results["measure"] = [self._own.monitor, self._own.mode]
        results["baseline"] = self._own.benchmark.baseline(evaluation.split.examples)
        if evaluation.predictions is None or results["final"]["step"] != results["steps"]:
            self._evaluate()  # with the weights that will be saved

    def report(self, results: Json) -> None:
        if self._evaluation:
            self.reporter.evaluation(self.directory, self._evaluation, results["final"])

    def _known_head(self) -> dict[str, Tensor]:
        """The weights of the checkpoint's head by path, if its outputs have the same meaning in this task; else {}."""
        if not self._start:
            return {}
        checkpoint, task = self._start.checkpoint, self._own
        if task.vectors:
            return self._known_layers(task.vectors)
        if isinstance(task.objective, FewLabels):
            return self._known_layers(task.config.vectors)
        settings = task.settings()
        ours = Checkpoint(self.encoder.config, {}, task={"name": task.name, "settings": settings})
        if ours.head == "masked_lm":
            return self._known_masked_lm(ours)
        theirs = checkpoint.task or {"name": "", "settings": {}}
        same = all(theirs["settings"].get(name, one) == settings.get(name, one) for name, one in task.meanings.items())
        if theirs["name"] not in (task.name, *task.continues) or not same or ours.shapes() != checkpoint.shapes():
            return {}
        known = {variable.path for variable in self.encoder.weights}
        return {path: checkpoint.tensors[path] for path in ours.shapes() if path not in known}

    def _known_masked_lm(self, ours: Checkpoint) -> dict[str, Tensor]:
        """The weights of the checkpoint's masked-language-model head; DataError if it has none."""
        assert self._start
        paths = [path for path in ours.shapes() if path.startswith("masked_lm/")]
        if missing := [path for path in paths if path not in self._start.checkpoint.tensors]:
            raise DataError(
                f"{self._start.path}: no {missing[0]}, a part of the masked-language-model head that sparse vectors "
                "come from; start from a pre-trained model that kept its head"
            )
        return {path: self._start.checkpoint.tensors[path] for path in paths}

    def _known_layers(self, vectors: EmbeddingConfig) -> dict[str, Tensor]:
        """The weights of the checkpoint's layers for vectors, if it was published with the same ones; else {}."""
        assert self._start
        checkpoint = self._start.checkpoint
        own = checkpoint.own_vectors
        if not own or own.dense != vectors.dense:
            return {}
        return {path: checkpoint.tensors[path] for path in vectors.shapes(self.encoder.config.hidden_size)}


def finetune(
    config: FinetuneConfig,
    data: str | InMemory,
    init: str,
    model_dir: str,
    strategy: tf.distribute.Strategy,
    **how: Unpack[PlaceOptions],
) -> Json:
    """Fine-tunes a model.

    Args:
        config, data: as for `FineTuningRun`.
        init: the checkpoint from which it starts, for `bert_tf.load`.
        model_dir, strategy, how: fields of `Place`.

    Returns:
        The contents of results.json.
    """
    check(config)
    return FineTuningRun(config, data, Start.open(init), Place(model_dir, strategy, **how)).run()


def check(config: FinetuneConfig, *, teacher: bool = False) -> None:
    """Raises ConfigError for a config that is wrong, or asks for several runs or for a teacher that there is not."""
    expect(config, FinetuneConfig)
    config.check()
    if config.search or config.train.seeds > 1:
        raise ConfigError(
            "search or train.seeds asks for several runs, but this is one; call training.runs.sweep.finetune_best"
        )
    if config.distillation and not teacher:
        raise ConfigError("distillation is set, but there is no teacher; use python -m bert_tf.distill --teacher=DIR")


def source_of(data: ExampleData, task: object, data_dir: str) -> Source:
    """The Source of the examples; `task` is the config of a task."""
    source = Source(data, data_dir, task_of(task).example)
    if not data.source and source.one_file:
        parts = " and ".join(source.part(role) for role in ("train", "validation"))
        raise ConfigError(f"--data_dir={data_dir} is one file; expected a folder that holds {parts}")
    return source


def needs_pooler(task: Any) -> bool:
    """Whether the task with this config reads the pooled output."""
    head = HEADS.get(task_of(task).head(to_dict(task)))
    return head is not None and head.pooled


def opened(task: object, start: Start, dtype: str | None = None) -> tuple[BertEncoder, BaseTokenizer, Json]:
    """The encoder of a checkpoint for the task with this config, its tokenizer and the identity of the checkpoint."""
    tokenizer = start.checkpoint.tokenizer_of_text(start.path)
    encoder = new_encoder(start.checkpoint, start.path, pooler=needs_pooler(task) or None, dtype=dtype)
    identity = {
        "model": to_dict(encoder.config),
        "tokenizer": tokenizer_identity(tokenizer)["fingerprint"],
        # Without the pooler: if the checkpoint lacks it, it depends on the seed.
        "weights": weights_identity(value for value in encoder.weights if "pooler" not in value.path.split("/")),
    }
    return encoder, tokenizer, identity


def check_inputs(inputs: Json, like: Json | None) -> None:
    """Raises ConfigError unless the run with the results `like` had the same data and the same checkpoint."""
    changed = differences(like["inputs"], json.loads(json.dumps(inputs))) if like else {}
    if changed:
        raise ConfigError(
            f"inputs have changed since the first of these runs ({', '.join(changed)}), so they cannot be compared; "
            "restore them, or start again in another --model_dir"
        )
