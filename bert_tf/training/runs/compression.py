"""Compression of a fine-tuned model: steps that make it smaller, from the cheapest on, until a target is met."""

import dataclasses
import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.checkpoints import directory, static_model
from bert_tf.checkpoints.tensor_files.safetensors import open_tensors
from bert_tf.config import EmbeddingConfig, EmbeddingsConfig, ExampleData, to_dict
from bert_tf.config.values import fitting
from bert_tf.errors import ConfigError, DataError, UnsuitedError
from bert_tf.files import check_output, here_or_bundled, write_json
from bert_tf.inference import ask, latency, predictions
from bert_tf.inference.check import rest_body
from bert_tf.inference.embedder import open_embedder
from bert_tf.inference.predictions import Predictor
from bert_tf.inference.samples import Request
from bert_tf.inference.saved_model import export, export_run, on_cpu
from bert_tf.inputs.identity import file_identity
from bert_tf.locks import locked
from bert_tf.tasks import FineTuningTask
from bert_tf.tasks.embeddings import Embeddings
from bert_tf.tasks.objective import check_of_examples
from bert_tf.tasks.sparse_encoding import SparseEncoding
from bert_tf.training.evaluation import Split, evenly_spaced
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.runs.compression_steps import STEPS, Job, Step
from bert_tf.training.runs.finetuning import source_of
from bert_tf.training.runs.run import DivergedError
from bert_tf.training.runs.stage import isolated_session, stage
from bert_tf.training.state.run_manifest import AnotherRunError, RunManifest, remedy
from bert_tf.types import Json

THREADS = (1, 2)
_FILE = "model.safetensors"  # of all models, static ones, too
_FORMAT = 2  # of the folders: other steps, or other keys of results.json, make it another one
# Of a step's results.json, besides name, title, note and parameters.
_MEASURED = ("value", "interval", "megabytes", "ms_1_thread", "ms_2_threads", "texts_per_second")
_FREE = 0.002  # share of the metric that a start of later steps may lose: not an example of 500
_TIMED, _BATCH = 50, 32  # examples of which each is timed, and that are timed together


class Target(NamedTuple):
    """What a model must not exceed.

    Attributes:
        megabytes: size of the export on disk, in 10^6 bytes; None for any.
        milliseconds: median time for one text, with one thread; None for any.
    """

    megabytes: float | None = None
    milliseconds: float | None = None

    def check(self) -> "Target":
        """Raises ConfigError unless it has one limit above 0."""
        given = {name: value for name, value in self._asdict().items() if value is not None}
        if len(given) != 1:
            found = "both a size and a time" if given else "no target"
            raise ConfigError(f"{found}; expected either --target_size, such as 20MB, or --target_ms")
        for name, value in given.items():
            fitting(value, float, name, {"above": 0, "at_most": 1e9})
        return self

    @property
    def key(self) -> str:
        """The key of a step's result that the target limits."""
        return "ms_1_thread" if self.megabytes is None else "megabytes"

    @property
    def limit(self) -> float:
        """The largest value of it."""
        limit = self.milliseconds if self.megabytes is None else self.megabytes
        assert limit is not None
        return limit

    def text(self, value: float) -> str:
        """A value as text, with its unit."""
        number = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
        return f"{number} ms for a text" if self.megabytes is None else f"{number} MB"


def task_of(model_dir: str, data_dir: str, data: Callable[[ExampleData], ExampleData]) -> FineTuningTask:
    """The task of a fine-tuned model; for a sentence encoder, one that judges vectors by the validation examples.

    Args:
        model_dir, data_dir: as for `compress`.
        data: adds the user's settings of the data to those of the model.
    """
    if static_model.recognises(model_dir):
        raise ConfigError(f"{model_dir}: a static model, which is small already; expected its encoder")
    checkpoint = directory.read(model_dir)
    if checkpoint.is_for(SparseEncoding):
        raise ConfigError(f"{model_dir}: a sparse encoder; expected a sentence encoder or a fine-tuned model")
    vectors = checkpoint.vectors
    if checkpoint.task or not vectors:
        with on_cpu():
            task, _ = directory.load_fine_tuned(model_dir)
        return task.replaced(data=data(task.data))
    if not vectors.include_prompt:
        raise ConfigError(
            f"{model_dir}: this encoder does not pool its prompts, which compress sends as part of the texts; export "
            "it with --optimize=int8 instead: python -m bert_tf.extract"
        )
    given = data(ExampleData(format="groups"))
    length = vectors.max_length or checkpoint.config.max_position_embeddings
    config = _with_prompts(EmbeddingsConfig(max_length=length, vectors=vectors), vectors)
    examples = Split(source_of(given, config, data_dir), "validation").examples
    return Embeddings.judging(checkpoint.tokenizer_of_text(model_dir), given, examples, config)


def compress(
    model_dir: str,
    data_dir: str,
    output_dir: str,
    target: Target,
    strategy: tf.distribute.Strategy,
    *,
    task: FineTuningTask,
    texts: str = "",
    steps: Sequence[Step] = STEPS,
    reporter: Reporter = SILENT,
) -> Json:
    """Makes a fine-tuned model or a sentence encoder smaller or faster until it meets a target.

    Steps start from the trimmed model, once there is one, unless trimming takes more than 0.2% of the metric; those
    that it cannot have are left out, with the reason. Each step has a folder in `output_dir` with its export,
    results.json and its model, unless that is the one from which it starts. A run that was killed goes on after the
    last step that has results.json, and another target uses those that are there.

    Args:
        model_dir: of the model.
        data_dir: its labelled examples, for the training and for the metrics.
        output_dir: gets the folders, results.json and report.html.
        target: what to meet.
        strategy: for steps that train.
        task: of the model, with the settings of the data, as `task_of` returns it.
        texts: file with examples, labelled or not, like those that the model will read: their words are kept, students
            learn from them without their labels, and their speed counts. "" for none: then the speed of the validation
            examples counts, and students read the training examples alone.
        steps: in their order; the first is the model itself, with which the others are compared.
        reporter: gets the results.

    Returns:
        The contents of results.json: program; target; metric, the name of the task's; examples, their number; best, the
        name of the step that met the target, else of the nearest; reached; left_out, a list of dicts: name and reason;
        and rows, a list of dicts: name, title, note (what else is to be said, or ""), value (of the metric), interval
        (95%, by bootstrap; None if the task has none), megabytes, parameters, ms_1_thread and ms_2_threads (medians for
        one text), texts_per_second (in batches of 32, one thread), and model and export, their paths.

    Raises:
        ConfigError, DataError: of wrong arguments; and if no step meets the target, when everything else is done and
            written.
    """
    target.check()
    if not isinstance(task, Embeddings):
        check_of_examples(task.objective, "compress")
    texts = here_or_bundled(texts)
    check_output(output_dir, directory=True, inputs=directory.files_of(model_dir))
    source = source_of(task.data, task.config, data_dir)
    split = Split(source, "validation")
    split.prepare(task)
    predictions.check(task, split.examples)
    job = Job(model_dir, data_dir, task, source, split.examples, strategy, texts, reporter)
    timed = list(job.more()) if texts else split.examples
    if not timed:
        raise DataError(f"{texts}: no examples; expected at least one text to measure the speed with")
    identity = {
        "program": "compress",
        "format": _FORMAT,
        "data_dir": data_dir,
        "init": model_dir,
        "config": {"data": to_dict(task.data)},
        "inputs": {role: source.identity(role) for role in ("train", "validation")}
        | {"model": file_identity(os.path.join(model_dir, _FILE))}
        | ({"texts": file_identity(texts)} if texts else {}),
    }
    rows: list[Json] = []
    left_out: list[Json] = []
    with locked(output_dir), remedy("choose another --output_dir"):
        RunManifest(output_dir, identity).write(0)
        start = model_dir
        for step in steps:
            try:
                rows.append(_done(job, step, os.path.join(output_dir, step.name), start, split, timed))
            except (ConfigError, UnsuitedError, DivergedError) as error:
                if not rows or isinstance(error, AnotherRunError):  # the model itself, or a folder in the way
                    raise
                left_out.append({"name": step.name, "reason": str(error)})
                reporter.compression_step({"name": step.name, "title": step.title, "reason": str(error)}, task.monitor)
                continue
            if step.is_start:
                if _lost(task, rows[0], rows[-1]) <= _FREE:
                    start = rows[-1]["model"]
                else:
                    rows[-1]["note"] += (
                        f", which costs {task.monitor}: later steps start from the model itself; with more texts "
                        "(--texts) it keeps more words"
                    )
            reporter.compression_step(rows[-1], task.monitor)
            if rows[-1][target.key] <= target.limit:
                break
        reached = rows[-1][target.key] <= target.limit
        best = rows[-1] if reached else min(rows, key=lambda row: row[target.key])
        results: Json = {
            "program": "compress",
            "target": {target.key: target.limit},
            "metric": task.monitor,
            "examples": len(split.examples),
            "rows": rows,
            "left_out": left_out,
            "best": best["name"],
            "reached": reached,
        }
        write_json(os.path.join(output_dir, "results.json"), results)
        reporter.compression(output_dir, results)
    if not reached:
        raise DataError(
            f"no step meets {target.text(target.limit)}; the nearest is {best['name']} with "
            f"{target.text(best[target.key])} and {task.monitor} {best['value']:.4f}, in {best['export']}: allow more"
        )
    return results


def _lost(task: FineTuningTask, before: Json, after: Json) -> float:
    """The share of its metric that a model has lost."""
    gained = (after["value"] - before["value"]) * (1 if task.mode == "max" else -1)
    return -gained / max(abs(before["value"]), 1e-9)


def _key(threads: int) -> str:
    return f"ms_{threads}_thread" + ("s" if threads > 1 else "")


def _done(job: Job, step: Step, folder: str, start: str, split: Split, timed: Sequence[Any]) -> Json:
    """The result of a step, which is made unless it is there."""
    model, exports = os.path.join(folder, "model") if step.make else start, os.path.join(folder, "export")

    def make() -> Json:
        note = ""
        if step.make:
            with isolated_session():
                note = step.make(job, start, model)
        shutil.rmtree(exports, ignore_errors=True)  # of a run that was killed
        predictor, version = _exported(job.task, model, exports, step.optimize)
        row = {"name": step.name, "title": step.title, "note": note, **measured(predictor, version, split, timed)}
        row["parameters"] = sum(tensor.size for tensor in open_tensors(os.path.join(model, _FILE)).values())
        write_json(os.path.join(folder, "results.json"), row)
        return row

    row = stage(folder, (*_MEASURED, "note", "parameters"), make)
    return row | {"model": model, "export": predictions.find_version(exports)}


def _exported(task: FineTuningTask, model: str, exports: str, optimize: str) -> tuple[Predictor, str]:
    """Exports a model; returns what answers examples by its export, and the path of its version."""
    if not isinstance(task, Embeddings):
        version = export_run(model, exports, optimize=optimize).path
        return predictions.load(version, task.data), version
    with on_cpu():
        embedder = open_embedder(model)
    config = _with_prompts(task.config, embedder.config)  # of which a static model has none
    embedder = embedder.with_prompt("")
    version = export(embedder.task, embedder.model, exports, optimize=optimize).path
    return Predictor(task.replaced(config=config), ask.Model(version)), version


def _with_prompts(config: EmbeddingsConfig, vectors: EmbeddingConfig) -> EmbeddingsConfig:
    query, passage = (vectors.prompts.get(name, "") for name in (vectors.query_name, vectors.passage_name))
    return dataclasses.replace(config, query_prompt=query, passage_prompt=passage)


def measured(predictor: Predictor, version: str, split: Split, timed: Sequence[Any]) -> Json:
    """Metric, size and speed of an export.

    Args:
        predictor: answers by the export.
        version: its path.
        split: labelled examples.
        timed: examples, labelled or not.
    """
    task, found = predictor.task, dict[int, Json]()
    predictions.check(task, split.examples)
    examples, of_examples = task.codec.distinct(split.examples)
    timed, _ = task.codec.distinct(list(timed))
    for batch in predictions.batches(task, examples, _BATCH):
        found |= zip(batch, predictor.predictions([examples[row] for row in batch]), strict=True)
    answers = of_examples([found[row] for row in range(len(examples))])
    metric, benchmark = task.monitor, task.benchmark
    interval = benchmark.error_analysis(split.examples, answers).intervals.get(metric)
    single = [body for example in evenly_spaced(timed, _TIMED) for body in _bodies(task, [example])]
    together = evenly_spaced(timed, _BATCH)
    times = {threads: _seconds(version, single, _bodies(task, together), threads) for threads in THREADS}
    return {
        "value": benchmark.official_metrics(split.examples, answers)[metric],
        "interval": None if interval is None else list(interval),
        "megabytes": _bytes(version) / 1e6,
        **{_key(threads): 1e3 * statistics.median(times[threads][0]) for threads in THREADS},
        "texts_per_second": len(together) / sum(times[1][1]),
    }


def _seconds(version: str, single: list[Json], batch: list[Json], threads: int) -> tuple[list[float], list[float]]:
    found = latency.seconds_of(version, [*single, *batch], threads)
    return found[: len(single)], found[len(single) :]


def _bodies(task: FineTuningTask, examples: list[Any]) -> list[Json]:
    """Requests for examples."""
    return [rest_body(Request(signature, "", inputs)) for _, signature, inputs in task.codec.requests(examples)]


def _bytes(path: str) -> int:
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)
