"""Common part of all runs: from a checked config and its inputs to a model directory."""

import contextlib
import dataclasses
import gc
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import keras
import tensorflow as tf

from bert_tf.checkpoints import directory
from bert_tf.checkpoints.run_files import RESULTS, read_results, read_run
from bert_tf.config import FinetuneConfig, PretrainConfig, to_dict
from bert_tf.config.train import scaled_rate
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.files import nan_for_null, write_json
from bert_tf.inputs.identity import digest
from bert_tf.locks import locked
from bert_tf.model.compute import converted
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.precision.int8 import rounded_forms
from bert_tf.model.ranges import Ranges
from bert_tf.progress import log
from bert_tf.tasks.task import Task
from bert_tf.training.dtype import policy
from bert_tf.training.loop import Trainer
from bert_tf.training.phases import Input
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.runs import dry_run
from bert_tf.training.speed import peak_flops
from bert_tf.training.state.run_manifest import RunManifest
from bert_tf.training.strategy import accelerator, is_chief, parallel_parts
from bert_tf.training.tf_internals import forgetting_custom_gradients, in_multi_worker_mode
from bert_tf.types import Json, Metrics, Tensors

# The purely numeric parts of results.json, where null stands for nan.
_NUMERIC = ("history", "evaluations", "final", "baseline")


class DivergedError(BertTfError):
    """A run has ended with a model whose answers mean nothing, which is not saved.

    Args:
        found: what is wrong with it.
        results: what results.json would have held.
    """

    def __init__(self, found: str, results: Json) -> None:
        super().__init__(
            f"the training has diverged: {found}; no model was written; check the labels, or lower "
            "train.learning_rate, and start again in another directory"
        )
        self.results = results


def expect(config: object, kind: type) -> None:
    """Raises ConfigError for the config of another program."""
    if not isinstance(config, kind):
        raise ConfigError(f"--config holds a {type(config).__name__}; expected a {kind.__name__}")


@contextlib.contextmanager
def isolated_session() -> Iterator[None]:
    """Frees models and graphs built inside, which would otherwise stay in memory until the process ends."""
    # Without keras.backend.clear_session: it clears TensorFlow's kernels, too, which can take minutes.
    try:
        with forgetting_custom_gradients():
            yield
    finally:
        gc.collect()


def results_of(folder: str, *needed: str) -> Json:
    """The results.json of a finished run; {} if the run has not finished, or the file is damaged or lacks a key."""
    try:
        results = read_results(folder)
    except DataError:
        return {}
    if not {*needed} <= results.keys():
        return {}
    return results | {name: nan_for_null(results[name]) for name in _NUMERIC if name in results}


class Runner:
    """Runs training: claims the directory, trains, saves the model, writes results.json.

    Args:
        program: "pretrain", "finetune" or "distill".
        config: the whole config of the program.
        model_dir, strategy, accept_config_change: as in `pretrain`.
        inputs: JSON-ready identity of the inputs; entries may be added until `fit` is called.
        computes_in: name of the Keras policy that "auto" stands for; None measures it.
        reporter: gets the curves.
        few_shapes: whether the batches have so few shapes that compiling a program for each is worth its time.
        files: paths, to be recorded.

    Attributes:
        dtype: name of the Keras policy for the encoder.
        jit_compile: whether XLA compiles the update.
    """

    def __init__(
        self,
        program: str,
        config: PretrainConfig | FinetuneConfig,
        model_dir: str,
        strategy: tf.distribute.Strategy,
        inputs: Json,
        accept_config_change: bool,
        computes_in: str | None = None,
        reporter: Reporter = SILENT,
        *,
        few_shapes: bool = False,
        **files: str,
    ) -> None:
        # Records the settings of the recipe, not only its name, and compares them when the run resumes.
        config = dataclasses.replace(config, train=config.train.resolved())
        self.program, self.config, self.model_dir, self.strategy = program, config.train, model_dir, strategy
        # A resumed run keeps what "auto" chose at its start.
        path = os.path.join(model_dir, "run.json")
        before = read_run(path) if os.path.exists(path) else {}
        self.dtype = policy(self._dtype(before.get("computes_in", computes_in)))
        self.jit_compile = self._jit_compile(before, few_shapes)
        self.accept_config_change, self.reporter = accept_config_change, reporter
        self.record: Json = {
            "program": program,
            **files,
            "config": to_dict(config),
            "computes_in": self.dtype,
            "jit_compile": self.jit_compile,
            "replicas": strategy.num_replicas_in_sync,
            "inputs": inputs,
        }

    def choose_rate(self, base: float, width: int) -> None:
        """Sets the learning rate of an encoder of `width` units, unless the config has one, from that of BERT-base."""
        if self.config.learning_rate is not None:
            return
        rate = scaled_rate(base, width)
        self.config = dataclasses.replace(self.config, learning_rate=rate).check()
        self.record["config"]["train"]["learning_rate"] = rate
        log(f"the learning rate is {rate:g}, by the model's width of {width}; train.learning_rate sets another one")

    def _dtype(self, computes_in: str | None) -> str:
        """The configured number format, where "auto" is the one of this policy, if any."""
        if self.config.dtype != "auto":
            return self.config.dtype
        if self.config.quantization != "none":
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
        if self.config.jit_compile != "auto":
            return self.config.jit_compile == "on"
        if "jit_compile" in before:
            return before["jit_compile"]
        compiled = few_shapes and accelerator(self.strategy) == "GPU"
        if compiled:
            log("compiling the update with XLA, which takes a while at the start; train.jit_compile=off turns it off")
        return compiled

    def _pipeline(self) -> str:
        """A digest of everything that determines the batches."""
        config = {name: value for name, value in self.record["config"].items() if name != "train"}
        train = {name: self.record["config"]["train"][name] for name in ("batch_size", "phases", "seed")}
        return digest([config, train, self.record["inputs"]])

    def _trainer(
        self, task: Task, make_encoder: Callable[[], BertEncoder], total_steps: int
    ) -> tuple[Trainer, BertEncoder]:
        """A Trainer of a new model, and the model's encoder."""
        keras.utils.set_random_seed(self.config.seed)
        with self.strategy.scope():
            encoder = make_encoder()
            model = task.build(encoder)
            encoder.ranges = None if self.config.quantization == "none" else Ranges(encoder.blocks())
        trainer = Trainer(task, model, self.config, self.strategy, total_steps, jit_compile=self.jit_compile)
        return trainer, encoder

    def dry_run(
        self,
        task: Task,
        make_encoder: Callable[[], BertEncoder],
        total_steps: int,
        inputs: Sequence[Input],
        epochs: Sequence[tuple[int, str]],
        *,
        swapped: bool,
    ) -> Json:
        """Plan and cost of `fit`; nothing is written.

        Args:
            epochs: from `dry_run.rows_per_epoch`, one per phase.
            swapped: as for `dry_run.examples`.

        Returns:
            "parameters", from `dry_run.parameters`; "memory", bytes of one replica by use; "phases", a list of dicts:
            steps, batch_size, length, rows of an epoch and rows_from (how they were counted), flops and seconds of an
            update and of_peak (MFU); "examples", from `dry_run.examples`; and "seconds", the time of all updates.
        """
        before = dry_run.peak_bytes()
        trainer, _ = self._trainer(task, make_encoder, total_steps)
        model, works = trainer.model, trainer.work(inputs)
        costs, kept = [], []
        for number, (work, source) in enumerate(zip(works, inputs, strict=True)):
            seconds, length = trainer.benchmark(number, source, dry_run.STEPS)
            costs.append((work, seconds, work.flops(length) / seconds))
        grown = dry_run.peak_bytes() - before
        most = peak_flops(self.strategy, self.dtype)
        firsts = [next(iter(source.batches(0))) for source in inputs]
        for work, source, phase, first in zip(works, inputs, trainer.phases, firsts, strict=True):
            rows = work.batch_size // self.strategy.num_replicas_in_sync // phase.config.accumulation
            microbatch = {name: value[:rows] for name, value in first.items()}
            kept.append(dry_run.kept_bytes(task.objective, model, source.prepare(microbatch), remat=self.config.remat))
        size = 4 * model.count_params()
        parts = parallel_parts(self.strategy)
        gradients = size if parts == 1 else (parts + 1) * size  # those of each part, and their sum
        memory = {"weights": size, "gradients": gradients, "moments": 2 * size, "kept for the backward pass": max(kept)}
        if task.objective.teacher_size:
            memory["weights of the teacher"] = 4 * task.objective.teacher_size
        memory |= {"total": sum(memory.values()), "measured in training": grown}
        examples = dry_run.examples(firsts[0], inputs[0].prepare(firsts[0]), task.tokenizer, swapped=swapped)
        return {
            "parameters": dry_run.parameters(model),
            "memory": memory,
            "phases": [
                {
                    "steps": work.steps,
                    "batch_size": work.batch_size,
                    "length": work.length,
                    "rows": rows,
                    "rows_from": source,
                    "flops": work.flops(),
                    "seconds": seconds,
                    "of_peak": flops / most,
                }
                for (work, seconds, flops), (rows, source) in zip(costs, epochs, strict=True)
            ],
            "examples": list(itertools.islice(examples, dry_run.EXAMPLES)),
            "seconds": sum(work.steps * seconds for work, seconds, _ in costs),
        }

    def fit(
        self,
        task: Task,
        make_encoder: Callable[[], BertEncoder],
        total_steps: int,
        inputs: Sequence[Input],
        evaluations: Callable[[keras.Model], Sequence[Callable[[], Metrics] | None]],
        evaluate_every: int,
        *,
        evaluate_first: bool = True,
        prepare: Callable[[], None] | None = None,
        initialize: Callable[[keras.Model], None] | None = None,
        meanwhile: Callable[[], None] | None = None,
        calibration: Iterable[Tensors] = (),
        finish: Callable[[Json], None] = lambda results: None,
        report: Callable[[Json], None] = lambda results: None,
    ) -> Json:
        """Trains, or resumes training, and writes the model and results.json.

        Args:
            make_encoder: called under the strategy's scope.
            total_steps: updates.
            inputs: one per phase, without `evaluate`.
            evaluations: returns the `evaluate` of each phase for the model.
            evaluate_every, evaluate_first, meanwhile: as in `Trainer.run`.
            prepare: called when the directory belongs to this run, before the model is built; may write files into it.
            initialize: called with the new model, to assign some of its variables.
            calibration: as in `Trainer.run`.
            finish: called with the results when the model has the weights that will be saved; may add to the results.
            report: called by the chief with the results after the model is saved, so that a failing report does not
                lose the model.

        Returns:
            The contents of results.json.

        Raises:
            DivergedError: weights or the loss are NaN or infinite; neither is then written.
        """
        chief = is_chief(self.strategy)  # only one of several workers that share the directory
        with contextlib.ExitStack() as scope:
            if chief:
                scope.enter_context(locked(self.model_dir))
            record = RunManifest(self.model_dir, self.record, self.accept_config_change) if chief else None
            if prepare:
                if record:
                    record.claim()
                prepare()
            trainer, encoder = self._trainer(task, make_encoder, total_steps)
            model = trainer.model
            for folder in filter(None, task.saved(encoder.config) if chief else ()):
                directory.check_place(os.path.join(self.model_dir, folder))  # now, not when the run is over
            if initialize:
                initialize(model)
            if encoder.ranges:
                scope.enter_context(converted(rounded_forms(encoder)))
            inputs = [
                source._replace(evaluate=evaluate) for source, evaluate in zip(inputs, evaluations(model), strict=True)
            ]
            if self.config.keep_best and not all(source.evaluate for source in inputs):
                raise ConfigError("train.keep_best needs evaluations, but there is no validation text; set validation")
            most = peak_flops(self.strategy, self.dtype) if inputs[0].row_flops else None
            history = trainer.run(
                inputs,
                self.model_dir,
                title=self.program,
                evaluate_every=evaluate_every,
                evaluate_first=evaluate_first,
                started=record.write if record else None,
                meanwhile=meanwhile,
                calibration=calibration,
                pipeline=self._pipeline(),
                peak_flops=most,
                reporter=self.reporter,
            )
            if not trainer.advanced:
                before = results_of(self.model_dir)
                if before.get("steps") == trainer.step:
                    return before  # the run had finished; its metrics stand
            best = trainer.best.restore(history.evaluations)
            rows = [row for row in history.evaluations if best is None or row["step"] == best]
            results = (record.value if record else self.record) | {
                "task": task.name,
                "parameters": model.count_params(),
                "steps": trainer.step,
                "skipped_updates": trainer.skipped,
                "seconds": round(sum(sum(phase["seconds"].values()) for phase in trainer.reached), 1),
                "matmul_flops_per_second": most,
                "phases": trainer.reached,
                "history": history.points,
                "evaluations": history.evaluations,
                "final": (rows or history.points or [{}])[-1],
            }
            if best is not None:
                results["best_step"] = best
            finish(results)
            if chief:
                if found := _divergence(trainer, results["final"]):
                    raise DivergedError(found, results)
                directory.save(self.model_dir, model, encoder, task)
                report(results)
                write_json(os.path.join(self.model_dir, RESULTS), results)
            return results


def _divergence(trainer: Trainer, final: Json) -> str | None:
    """What shows that a model is of no use after its training, in words; None for nothing.

    Args:
        final: the last point or evaluation, or that of the weights that will be saved.
    """
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
    return None
