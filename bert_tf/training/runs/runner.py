"""A run, from a checked config and its inputs to a model directory."""

import contextlib
import dataclasses
import gc
import itertools
import os

import keras
from tensorflow.python.framework import ops

from bert_tf.checkpoints import directory
from bert_tf.checkpoints.directory import RESULTS
from bert_tf.config import to_dict
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import nan_for_null, read_json_object, write_json
from bert_tf.inputs.corpus.shards import digest
from bert_tf.training.runs import dry_run
from bert_tf.training import precision
from bert_tf.training.loop import Trainer
from bert_tf.training.state.run_manifest import RunManifest
from bert_tf.training.speed import peak_flops
from bert_tf.training.strategy import is_chief

# Its parts that hold numbers alone: what has no number there was nan.
_MEASURED = ("history", "evaluations", "final", "baseline")


def expect(config, kind):
    """Raises ConfigError for the config of another program."""
    if not isinstance(config, kind):
        raise ConfigError(f"--config holds a {type(config).__name__}; expected a {kind.__name__}")


@contextlib.contextmanager
def isolated_session():
    """Frees what is built inside, models and graphs, which else would stay until the process ends."""
    # tf.custom_gradient enters a function for each trace into a registry, which has no way out; the function holds on
    # to the graph, some 50 MB a run of the smallest model.
    registry = ops.gradient_registry._registry
    before = set(registry)
    try:
        yield
    finally:
        for name in set(registry) - before:
            if name.startswith("CustomGradient-"):
                del registry[name]
        keras.backend.clear_session()
        gc.collect()


def results_of(folder):
    """What results.json of a run that has ended holds; {} of another one, or where it is damaged."""
    try:
        results = directory.read_results(folder)
    except DataError:
        return {}
    return results | {name: nan_for_null(results[name]) for name in _MEASURED if name in results}


class Run:
    """What every run does: claim the directory, train, save the model, write results.json.

    Args:
        program: str, "pretrain" or "finetune".
        config: the whole config of the program.
        model_dir, strategy, accept_config_change: as in `pretrain`.
        inputs: JSON-ready dict that identifies what the inputs hold; may be added to until `fit`.
        computes_in: name of the Keras policy that "auto" means; None: it is found out.
        files: paths, to be recorded.

    Attributes:
        dtype: name of the Keras policy to make the encoder with.
    """

    def __init__(self, program, config, model_dir, strategy, inputs, accept_config_change, computes_in=None, **files):
        # What the recipe came to, not only its name: recorded, and compared with when the run goes on.
        config = dataclasses.replace(config, train=config.train.resolved())
        self.program, self.config, self.model_dir, self.strategy = program, config.train, model_dir, strategy
        self.dtype = precision.policy(self._dtype(computes_in))
        self.accept_config_change = accept_config_change
        self.record = (
            {"program": program}
            | files
            | {
                "config": to_dict(config),
                "computes_in": self.dtype,
                "replicas": strategy.num_replicas_in_sync,
                "inputs": inputs,
            }
        )

    def _dtype(self, computes_in):
        """The configured number format; a run that goes on keeps the one that "auto" chose when it began."""
        path = os.path.join(self.model_dir, "run.json")
        if self.config.dtype != "auto":
            return self.config.dtype
        if os.path.exists(path):
            computes_in = read_json_object(path).get("computes_in")
        if computes_in:
            return computes_in.removeprefix("mixed_")
        if self.strategy.extended._in_multi_worker_mode():
            raise ConfigError("train.dtype is auto, which several workers could decide differently; name one")
        return "auto"

    def _pipeline(self):
        """A digest of what decides the batches, or how they are made."""
        config = {name: value for name, value in self.record["config"].items() if name != "train"}
        train = {name: self.record["config"]["train"][name] for name in ("batch_size", "phases", "seed")}
        return digest([config, train, self.record["inputs"]])

    def _trainer(self, task, make_encoder, total_steps):
        """A Trainer of a new model, and the encoder in it."""
        keras.utils.set_random_seed(self.config.seed)
        with self.strategy.scope():
            encoder = make_encoder()
            model = task.build(encoder)
        return Trainer(task, model, self.config, self.strategy, total_steps), encoder

    def dry_run(self, task, make_encoder, total_steps, inputs, epochs, *, swapped):
        """What `fit` would do and cost, as text; nothing is written."""
        before = dry_run.peak_bytes()
        trainer, _ = self._trainer(task, make_encoder, total_steps)
        model, works = trainer.model, trainer.work(inputs)
        measured, kept = [], []
        for number, (work, source) in enumerate(zip(works, inputs, strict=True)):
            seconds, length = trainer.benchmark(number, source, dry_run.STEPS)
            measured.append((work, seconds, work.flops(length) / seconds))
        grown = dry_run.peak_bytes() - before
        most = peak_flops(self.strategy, self.dtype)
        for work, source, phase in zip(works, inputs, trainer.phases, strict=True):
            rows = work.batch_size // self.strategy.num_replicas_in_sync // phase.config.accumulation
            microbatch = {name: value[:rows] for name, value in next(iter(source.batches(0))).items()}
            kept.append(dry_run.kept_bytes(task, model, source.prepare(microbatch), remat=self.config.remat))
        size = 4 * model.count_params()
        memory = {"weights": size, "gradients": size, "moments": 2 * size, "kept for the backward pass": max(kept)}
        memory |= {"all": sum(memory.values()), "measured in training": grown}
        whole = next(iter(inputs[0].batches(0)))
        texts = dry_run.example_texts(whole, inputs[0].prepare(whole), task.tokenizer, swapped=swapped)
        return dry_run.plan_text(
            counts=dry_run.parameters(model),
            memory=memory,
            epochs=epochs,
            phases=[(work, seconds, flops / most) for work, seconds, flops in measured],
            examples=list(itertools.islice(texts, dry_run.EXAMPLES)),
        )

    def fit(
        self,
        task,
        make_encoder,
        total_steps,
        inputs,
        evaluations,
        evaluate_every,
        *,
        evaluate_first=True,
        finish=lambda results: None,
        report=lambda results: None,
    ):
        """Trains, or goes on training, and writes the model and results.json.

        Args:
            task: Task.
            make_encoder: function without arguments to the BertEncoder, called under the strategy's scope.
            total_steps: updates.
            inputs: list of phases.Input without `evaluate`, one a phase.
            evaluations: function of the model to a list, one a phase: functions without arguments to a dict of floats,
                as `phases.Input` has them, or None for none.
            evaluate_every, evaluate_first: as in `Trainer.run`.
            finish: function of the results, called when the model is the one that will be saved; may add to them.
            report: function of the results, called by the chief when it has been saved: a page may fail, the model's
                training was not in vain.

        Returns:
            dict, what results.json holds.

        Raises:
            ConfigError: nothing is evaluated, and the best evaluation is asked for.
        """
        record = None
        if is_chief(self.strategy):  # one of several workers that share the directory
            record = RunManifest(self.model_dir, self.record, self.accept_config_change)
        trainer, encoder = self._trainer(task, make_encoder, total_steps)
        model = trainer.model
        inputs = [
            source._replace(evaluate=evaluate) for source, evaluate in zip(inputs, evaluations(model), strict=True)
        ]
        if self.config.keep_best and not all(source.evaluate for source in inputs):
            raise ConfigError("train.keep_best needs evaluations, and there is no validation text; set validation")
        most = peak_flops(self.strategy, self.dtype) if inputs[0].row_flops else None
        history = trainer.run(
            inputs,
            self.model_dir,
            title=self.program,
            evaluate_every=evaluate_every,
            evaluate_first=evaluate_first,
            started=record.write if record else None,
            pipeline=self._pipeline(),
            peak_flops=most,
        )
        if not trainer.advanced:
            before = results_of(self.model_dir)
            if before.get("steps") == trainer.step:
                return before  # it had ended before; what it measured then stands
        best = trainer.best.restore(history.evaluations)
        measured = [row for row in history.evaluations if best is None or row["step"] == best]
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
            "final": (measured or history.points or [{}])[-1],
        }
        if best is not None:
            results["best_step"] = best
        finish(results)
        if is_chief(self.strategy):
            directory.save(self.model_dir, model, encoder, task)
            report(results)
            write_json(os.path.join(self.model_dir, RESULTS), results)
        return results
