"""Common part of all runs: from a checked config and its inputs to a model directory."""

import abc
import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import keras
import tensorflow as tf

from bert_tf.checkpoints import directory
from bert_tf.checkpoints.run_files import RESULTS, read_run
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.config import FinetuneConfig, FlashAttention, PretrainConfig, to_dict
from bert_tf.config.train import scaled_rate
from bert_tf.errors import BertTfError, ConfigError
from bert_tf.files import write_json
from bert_tf.inputs.identity import digest
from bert_tf.locks import locked
from bert_tf.model.compute import converted
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.precision.int8 import rounded_forms
from bert_tf.model.ranges import Ranges
from bert_tf.progress import log
from bert_tf.tasks.task import Task
from bert_tf.training import callbacks
from bert_tf.training.dtype import policy
from bert_tf.training.loop import Hooks, Loop
from bert_tf.training.phases import Input
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.runs.stage import results_of
from bert_tf.training.speed import peak_flops
from bert_tf.training.state.run_manifest import RunManifest, has_progress
from bert_tf.training.strategy import accelerator, is_chief
from bert_tf.training.tf_internals import in_multi_worker_mode
from bert_tf.training.trainer import NonFiniteError, Trainer
from bert_tf.types import Json, Metrics


class DivergedError(BertTfError):
    """A run has ended with a model whose answers mean nothing, which is not saved.

    Args:
        message: what is wrong with it, and what to do.
        results: what results.json would have held.
    """

    def __init__(self, message: str, results: Json) -> None:
        super().__init__(message)
        self.results = results


class PlaceOptions(TypedDict, total=False):
    """Optional fields of `Place`."""

    accept_config_change: bool
    reporter: Reporter
    callbacks: Sequence[keras.callbacks.Callback]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a run trains, and who is told of it.

    Attributes:
        model_dir: gets the model, checkpoints, history and results.json; an interrupted run is resumed.
        strategy: on whose devices it trains.
        accept_config_change: whether an interrupted run may resume with settings that change its result.
        reporter: gets the curves and the results.
        callbacks: Keras callbacks, besides those that the config names.
    """

    model_dir: str
    strategy: tf.distribute.Strategy
    accept_config_change: bool = False
    reporter: Reporter = SILENT
    callbacks: Sequence[keras.callbacks.Callback] = ()


class Run(Hooks, abc.ABC):
    """A run that trains a model. `run` calls the methods in this order.

    - `prepare`, when the directory belongs to this run, before the model is built.
    - `build_encoder`, then `task.build` and `initialize`.
    - `evaluations`, then the hooks of the loop.
    - `finish`, when the model has the weights that will be saved.
    - `report`, by the chief, after the model is saved, so that a failing report does not lose it.

    Args:
        config: the whole config of the program, checked.
        place: where it trains.
        inputs: JSON-ready identity of the inputs; entries may be added until `run` is called.
        files: paths, to be recorded.
        computes_in: name of the Keras policy that "auto" stands for; None measures it.
        few_shapes: whether the batches have so few shapes that compiling a program for each is worth its time.
        unsuited: from the name of the compute dtype to the reason why cuDNN cannot compute the attention, "" if it can;
            None for batches of many shapes.

    Attributes:
        program: "pretrain", "finetune" or "distill".
        train: the optimization, with the settings of its recipe.
        dtype: name of the Keras policy for the encoder.
        jit_compile: whether XLA compiles the update.
        flash_attention: whether cuDNN computes the attention, and why or why not; None where XLA does not compile for a
            GPU, and for a run that began before there was a choice.
        record: the contents of run.json.
        trained: the model, when `run` has returned.
    """

    program: str
    # Of a subclass, set by its constructor:
    task: Task  # what is trained
    total_steps: int  # updates
    inputs: Sequence[Input]  # one per phase, without `evaluate`

    trained: Checkpoint

    def __init__(
        self,
        config: PretrainConfig | FinetuneConfig,
        place: Place,
        inputs: Json,
        files: Mapping[str, str],
        *,
        computes_in: str | None = None,
        few_shapes: bool = False,
        unsuited: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(place.model_dir, self.program, reporter=place.reporter, callbacks=place.callbacks)
        self._named_callbacks = callbacks.named(config.callbacks)
        # Records the settings of the recipe, not only its name, and compares them when the run resumes.
        config = dataclasses.replace(config, train=config.train.resolved())
        self.train, self.strategy, self._accept = config.train, place.strategy, place.accept_config_change
        # A resumed run keeps what "auto" chose at its start.
        path = os.path.join(place.model_dir, "run.json")
        before = read_run(path) if os.path.exists(path) and has_progress(place.model_dir) else {}
        self.dtype = policy(self._dtype(before.get("computes_in", computes_in)))
        self.jit_compile = self._jit_compile(before, few_shapes)
        self.flash_attention = self._flash_attention(before, unsuited)
        self._manifest: RunManifest | None = None
        self.record: Json = {
            "program": self.program,
            **files,
            "config": to_dict(config),
            "computes_in": self.dtype,
            "jit_compile": self.jit_compile,
            **({"flash_attention": self.flash_attention} if self.flash_attention else {}),
            "replicas": self.strategy.num_replicas_in_sync,
            "inputs": inputs,
        }

    @abc.abstractmethod
    def build_encoder(self) -> BertEncoder:
        """The encoder that is trained; called under the strategy's scope."""

    @abc.abstractmethod
    def evaluations(self, model: keras.Model) -> Sequence[Callable[[], Metrics] | None]:
        """The `evaluate` of each phase."""

    def prepare(self) -> None:
        """Computes what the run needs; may write files into its directory, after `claim`."""

    def initialize(self, model: keras.Model) -> None:
        """Assigns some variables of the new model."""

    def finish(self, results: Json) -> None:
        """Adds to the results."""

    def report(self, results: Json) -> None:
        """Presents the results."""

    def started(self, step: int) -> None:
        if self._manifest:
            self._manifest.write(step)

    def claim(self) -> None:
        """Makes the directory this run's before it has a checkpoint."""
        if self._manifest:
            self._manifest.claim()

    def choose_rate(self, base: float, width: int) -> None:
        """Sets the learning rate of an encoder of `width` units, unless the config has one, from that of BERT-base."""
        if self.train.learning_rate is not None:
            return
        rate = scaled_rate(base, width)
        self.train = dataclasses.replace(self.train, learning_rate=rate).check()
        self.record["config"]["train"]["learning_rate"] = rate
        log(f"the learning rate is {rate:g}, by the model's width of {width}; train.learning_rate sets another one")

    def run(self) -> Json:
        """Trains, or resumes training, and writes the model and results.json.

        Returns:
            The contents of results.json.

        Raises:
            DivergedError: weights, the loss or too many updates in a row are NaN or infinite; neither is then written.
            Interrupted: as `Loop.run`.
        """
        with contextlib.ExitStack() as scope:
            if is_chief(self.strategy):  # only one of several workers that share the directory
                scope.enter_context(locked(self.directory))
                self._manifest = RunManifest(self.directory, self.record, self._accept)
            self._add_named_callbacks()
            self.prepare()
            trainer, encoder = self.trainer()
            self._check_places(encoder)
            self.initialize(trainer.model)
            if encoder.ranges:
                scope.enter_context(converted(rounded_forms(encoder)))
            inputs = self._evaluated_inputs(trainer.model)
            self.pipeline = self._pipeline()
            self.peak_flops = peak_flops(self.strategy, self.dtype) if inputs[0].row_flops else None
            loop = Loop(trainer, inputs, self)
            stopped = _nonfinite(loop)
            before = {} if loop.advanced else results_of(self.directory)
            if before and before.get("steps") == trainer.step:  # the run had finished; its metrics stand
                self.trained = directory.read(self.directory)
                return before
            results = self._results(loop)
            self.finish(results)
            if found := stopped or _divergence(trainer, results["final"]):
                raise DivergedError(found, results)
            stored = directory.stored(trainer.model, encoder, self.task)
            self.trained = stored[""]
            if self._manifest:
                directory.save_all(stored, self.directory)
                self.report(results)
                write_json(os.path.join(self.directory, RESULTS), results)
            return results

    def trainer(self) -> tuple[Trainer, BertEncoder]:
        """A Trainer of a new model, and the model's encoder."""
        keras.utils.set_random_seed(self.train.seed)
        with self.strategy.scope():
            encoder = self.build_encoder()
            model = self.task.build(encoder)
            encoder.ranges = None if self.train.quantization == "none" else Ranges(encoder.blocks())
        trainer = Trainer(
            self.task,
            model,
            self.train,
            self.strategy,
            self.total_steps,
            jit_compile=self.jit_compile,
            flash_attention=bool(self.flash_attention and self.flash_attention["used"]),
        )
        return trainer, encoder

    def _add_named_callbacks(self) -> None:
        if self.record["config"]["callbacks"]:
            self.claim()  # they may write into the directory
            made = self._named_callbacks(self.directory) if self._manifest else [keras.callbacks.Callback()]
            self.callbacks = [*self.callbacks, *made]

    def _check_places(self, encoder: BertEncoder) -> None:
        """Refuses places of the models that cannot be written: now, not when the run is over."""
        for folder in filter(None, self.task.saved(encoder.config) if self._manifest else ()):
            directory.check_place(os.path.join(self.directory, folder))

    def _evaluated_inputs(self, model: keras.Model) -> list[Input]:
        pairs = zip(self.inputs, self.evaluations(model), strict=True)
        inputs = [source._replace(evaluate=evaluate) for source, evaluate in pairs]
        if self.train.keep_best and not all(source.evaluate for source in inputs):
            raise ConfigError("train.keep_best needs evaluations, but there is no validation text; set validation")
        return inputs

    def _pipeline(self) -> str:
        """A digest of everything that determines the batches."""
        config = {name: value for name, value in self.record["config"].items() if name not in ("train", "callbacks")}
        train = {name: self.record["config"]["train"][name] for name in ("batch_size", "phases", "seed")}
        return digest([config, train, self.record["inputs"]])

    def _results(self, loop: Loop) -> Json:
        """The contents of results.json; the model gets its best weights, if they are kept."""
        trainer, history = loop.trainer, loop.history
        best = loop.best.restore(history.evaluations)
        rows = [row for row in history.evaluations if best is None or row["step"] == best]
        results = (self._manifest.value if self._manifest else self.record) | {
            "task": self.task.name,
            "parameters": trainer.model.count_params(),
            "steps": trainer.step,
            "skipped_updates": trainer.skipped,
            "seconds": round(sum(sum(phase["seconds"].values()) for phase in loop.reached), 1),
            "matmul_flops_per_second": self.peak_flops,
            "phases": loop.reached,
            "history": history.points,
            "evaluations": history.evaluations,
            "final": (rows or history.points or [{}])[-1],
        }
        return results if best is None else results | {"best_step": best}

    def _dtype(self, computes_in: str | None) -> str:
        """The configured number format, where "auto" is the one of this policy, if any."""
        if self.train.dtype != "auto":
            return self.train.dtype
        if self.train.quantization != "none":
            return "float32"
        if computes_in:
            return computes_in.removeprefix("mixed_")
        if in_multi_worker_mode(self.strategy):
            raise ConfigError(
                "train.dtype is auto, which several workers could resolve differently; set it to a number format"
            )
        return "auto"

    def _jit_compile(self, before: Json, few_shapes: bool) -> bool:
        """The setting of this name, where "auto" is that of the run.json that exists already, if any."""
        if self.train.jit_compile != "auto":
            return self.train.jit_compile == "on"
        if "jit_compile" in before:
            return before["jit_compile"]
        compiled = few_shapes and accelerator(self.strategy) == "GPU"
        if compiled:
            log("compiling the update with XLA, which takes a while at the start; train.jit_compile=off turns it off")
        return compiled

    def _flash_attention(self, before: Json, unsuited: Callable[[str], str] | None) -> FlashAttention | None:
        """The attribute of this name. A resumed run goes on in the plain way if it began in it."""
        known: FlashAttention | None = before.get("flash_attention")
        if before and not (known and known["used"]):
            if known:
                log(f"attention is computed in the plain way, as since the start of this run: {known['reason']}")
            return known
        if not (unsuited and self.jit_compile and accelerator(self.strategy) == "GPU"):
            return None
        setting = self.train.flash_attention
        dtype = self.dtype.removeprefix("mixed_")
        if setting == "off":
            reason = "train.flash_attention is off"
        elif in_multi_worker_mode(self.strategy):
            reason = "there are several workers, which could choose differently"
        else:
            reason = unsuited(dtype)
        if reason:
            log(f"attention is computed in the plain way: {reason}")
        else:
            log("cuDNN's fused kernel computes the attention; train.flash_attention=off turns it off")
        return {"setting": setting, "used": not reason, "reason": reason or "it suits the model and this GPU"}


def expect(config: object, kind: type) -> None:
    """Raises ConfigError for the config of another program."""
    if not isinstance(config, kind):
        raise ConfigError(f"--config holds a {type(config).__name__}; expected a {kind.__name__}")


def _nonfinite(loop: Loop) -> str:
    """Runs the loop; returns the message of the error if it ends at non-finite updates."""
    try:
        loop.run()
    except NonFiniteError as error:
        return str(error)
    return ""


def _divergence(trainer: Trainer, final: Json) -> str:
    """The message of the error about a model that is of no use after its training; "" if there is none.

    Args:
        final: the last point or evaluation, or that of the weights that will be saved.
    """
    found = _useless(trainer, final)
    if not found:
        return ""
    return (
        f"the training has diverged: {found}; no model was written; check the labels, or lower "
        "train.learning_rate, and start again in another directory"
    )


def _useless(trainer: Trainer, final: Json) -> str:
    """What shows that a model is of no use, in words."""
    weights = trainer.model.weights
    broken = [one.path for one in weights if not tf.reduce_all(tf.math.is_finite(tf.cast(one.value, tf.float32)))]
    if broken:
        return f"{len(broken)} of {len(weights)} variables have NaN or infinite values, such as {broken[0]}"
    if trainer.step and trainer.skipped == trainer.step:
        return f"all of the {trainer.step} updates were skipped, because their loss or gradient was NaN or infinite"
    # Of training points, updates that were skipped are left out: the loss of those that have none is NaN. An evaluation
    # without targets has no loss.
    if final.get("kind") == "evaluation" and not math.isfinite(final.get("loss", 0.0)):
        return f"the loss on the validation set is {final['loss']}"
    return ""
