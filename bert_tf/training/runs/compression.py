"""Compression of a fine-tuned model: steps that make it smaller, from the cheapest on, until a target is met."""

import dataclasses
import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.checkpoints import adapt, directory
from bert_tf.config import BertConfig, FinetuneConfig, TaskDistillation, TrainConfig
from bert_tf.config.values import fitting
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import check_output, write_json
from bert_tf.inference import latency, predictions
from bert_tf.inference.check import rest_body
from bert_tf.inference.samples import Request
from bert_tf.inference.saved_model import export_run
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.inputs.identity import file_identity
from bert_tf.locks import locked
from bert_tf.tasks import FineTuningTask
from bert_tf.training.evaluation import Split
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.runs.finetuning import finetune
from bert_tf.training.runs.pruning import prune_model
from bert_tf.training.runs.runner import isolated_session, results_of
from bert_tf.training.state.run_manifest import RunManifest, remedy
from bert_tf.types import Json

THREADS = (1, 2)
_PRUNED = 0.25  # share of the weights of the layers
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
        return f"{value:.3g} ms for a text" if self.megabytes is None else f"{value:.3g} MB"


@dataclasses.dataclass(frozen=True)
class Job:
    """What the steps have in common.

    Attributes:
        model_dir: the fine-tuned model.
        data_dir: of the examples.
        task: of the model.
        source: of the examples.
        strategy: for steps that train.
        reporter: for steps that train.
    """

    model_dir: str
    data_dir: str
    task: FineTuningTask
    source: Source
    strategy: tf.distribute.Strategy
    reporter: Reporter = SILENT


@dataclasses.dataclass(frozen=True)
class Step:
    """A way to a smaller model.

    Attributes:
        name: of its folder.
        title: for people.
        make: returns the directory of its model, which it writes into the folder of the step unless another step has
            it, from the job, this folder and the models of the steps before, by name. What it has written before it
            was killed may be there.
        optimize: as for `export`.
        fits: whether there is such a step for a model; it is left out otherwise.
    """

    name: str
    title: str
    make: Callable[[Job, str, Mapping[str, str]], str]
    optimize: str = "int8"
    fits: Callable[[BertConfig], bool] = lambda config: True


def _original(job: Job, _: str, __: Mapping[str, str]) -> str:
    return job.model_dir


def _last(_: Job, __: str, models: Mapping[str, str]) -> str:
    return list(models.values())[-1]


def _trimmed(job: Job, folder: str, models: Mapping[str, str]) -> str:
    """A model with only the pieces of the training texts, and all characters."""
    checkpoint, report = adapt.trim_vocabulary(directory.read(_last(job, folder, models)), _texts(job))
    path = os.path.join(folder, "model")
    directory.save_checkpoint(dataclasses.replace(checkpoint, slots={}, step=None), path)
    write_json(os.path.join(folder, "vocabulary.json"), report)
    return path


def _texts(job: Job) -> Iterable[str | bytes]:
    """All texts of the training examples."""
    codec = job.task.codec
    for chunk in codec.chunks(job.source.examples(ReadReport(), "train", labelled=False), 4096):
        columns = codec.to_tensors(chunk, labelled=False)
        for spec in codec.inputs():
            column = columns[spec.name]
            yield from (column.flat_values if isinstance(column, tf.RaggedTensor) else tf.reshape(column, [-1])).numpy()


def _pruned(job: Job, folder: str, models: Mapping[str, str]) -> str:
    """The trimmed model without a part of its layers' weights; nothing is trained."""
    path = os.path.join(folder, "model")
    if not os.path.exists(path):
        prune_model(models["trimmed"], path, lambda _: job.source, "train", _PRUNED, job.strategy)
    return path


def _half(job: Job, folder: str, models: Mapping[str, str]) -> str:
    """A student that starts with half of the layers of the model, which is its teacher (Sanh et al., 2019)."""
    settings = TaskDistillation(layers=directory.read(models["trimmed"]).config.num_layers // 2)
    return _distilled(job, folder, models, settings, TrainConfig(batch_size=32, epochs=3, learning_rate=5e-5))


def _tiny(job: Job, folder: str, models: Mapping[str, str]) -> str:
    """A new student of BERT-tiny's size; it starts from random weights and so learns longer, at a higher rate."""
    settings = TaskDistillation(size="tiny")
    return _distilled(job, folder, models, settings, TrainConfig(batch_size=32, epochs=10, learning_rate=3e-4))


def _distilled(job: Job, folder: str, models: Mapping[str, str], settings: TaskDistillation, train: TrainConfig) -> str:
    path = os.path.join(folder, "model")
    config = FinetuneConfig(task=job.task.config, data=job.task.data, distillation=settings, train=train)
    finetune(config, job.data_dir, "", path, job.strategy, teacher=models["trimmed"], reporter=job.reporter)
    return path


# In the order of what they cost: seconds, a minute, and then the time of a training. Students learn from the trimmed
# model, whose vocabulary they have.
STEPS: tuple[Step, ...] = (
    Step("original", "the model itself", _original, "none"),
    Step("trimmed", "the vocabulary of the training texts", _trimmed, "none"),
    Step("int8", "the same in 8 bits", _last),
    Step(
        "pruned",
        f"without {_PRUNED:.0%} of the layers' weights, in 8 bits",
        _pruned,
        fits=lambda config: not config.shared_layers and config.num_layers > 1,
    ),
    Step("half", "half of the layers, distilled, in 8 bits", _half, fits=lambda config: config.num_blocks > 1),
    Step(
        "tiny",
        "2 layers of 128 units, distilled, in 8 bits",
        _tiny,
        fits=lambda config: config.num_layers * config.hidden_size > 2 * 128,
    ),
)


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
    """Makes a fine-tuned model smaller or faster until it meets a target.

    Each step has a folder in `output_dir` with its model, its export and results.json: a run that was killed goes on
    after the last one that has this file, and another target uses those that are there.

    Args:
        model_dir: of the model.
        data_dir: its labelled examples, for the training and for the metrics.
        output_dir: gets the folders, results.json and report.html.
        target: what to meet.
        strategy: for steps that train.
        task: of the model, with the settings of the data.
        texts: file with examples, labelled or not, whose speed counts; "" for the validation examples.
        steps: in their order; the first is the model itself, with which the others are compared.
        reporter: gets the results.

    Returns:
        The contents of results.json: program; target; metric, the name of the task's; examples, their number; best, the
        name of the step that met the target, else of the nearest; reached; and rows, a list of dicts: name, title,
        value (of the metric), interval (95%, by bootstrap; None if the task has none), megabytes, parameters,
        ms_1_thread and ms_2_threads (medians for one text), texts_per_second (in batches of 32, one thread), and
        model and export, their paths.

    Raises:
        DataError: no step meets the target; everything else is done and written before.
    """
    target.check()
    check_output(output_dir, directory=True, inputs=directory.files_of(model_dir))
    source = Source(task.data, data_dir, task.example)
    split = Split(source, "validation")
    split.prepare(task)
    timed = list(Source(task.data, texts, task.example).examples(ReadReport(), "", labelled=False)) if texts else []
    if texts and not timed:
        raise DataError(f"{texts}: no examples; expected at least one text to measure the speed with")
    job = Job(model_dir, data_dir, task, source, strategy, reporter)
    identity = {
        "program": "compress",
        "data_dir": data_dir,
        "init": model_dir,
        "inputs": {role: source.identity(role) for role in ("train", "validation")}
        | {"model": file_identity(os.path.join(model_dir, "model.safetensors"))}
        | ({"texts": file_identity(texts)} if texts else {}),
    }
    rows: list[Json] = []
    with locked(output_dir), remedy("choose another --output_dir"):
        manifest = RunManifest(output_dir, identity)
        manifest.write(0)
        config = directory.read(model_dir).config
        for step in (step for step in steps if step.fits(config)):
            models = {row["name"]: row["model"] for row in rows}
            rows.append(_done(job, step, os.path.join(output_dir, step.name), models, split, timed or split.examples))
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


def line(row: Json, metric: str) -> str:
    """A step's result for the terminal."""
    interval = "" if row["interval"] is None else " ({:.4f} to {:.4f})".format(*row["interval"])
    times = ", ".join(
        f"{row[key]:.2f} ms with {key.removeprefix('ms_').replace('_', ' ')}" for key in map(_key, THREADS)
    )
    return f"{row['name']}, {row['title']}: {metric} {row['value']:.4f}{interval}, {row['megabytes']:.2f} MB, {times}"


def _key(threads: int) -> str:
    return f"ms_{threads}_thread" + ("s" if threads > 1 else "")


def _done(job: Job, step: Step, folder: str, models: Mapping[str, str], split: Split, timed: Sequence[Any]) -> Json:
    """The result of a step, which is made unless it is there."""
    row = results_of(folder, "export", "model")
    if not row:
        with isolated_session():
            model = step.make(job, folder, models)
        with isolated_session():
            export = os.path.join(folder, "export")
            shutil.rmtree(export, ignore_errors=True)  # of a run that was killed
            version = export_run(model, export, optimize=step.optimize).path
            row = {"name": step.name, "title": step.title, **measured(job.task, version, split, timed)}
        checkpoint = directory.read(model)
        row |= {
            "parameters": sum(tensor.size for tensor in checkpoint.tensors.values()),
            "model": model,
            "export": version,
        }
        write_json(os.path.join(folder, "results.json"), row)
    print(line(row, job.task.monitor), flush=True)
    return row


def measured(task: FineTuningTask, version: str, split: Split, timed: Sequence[Any]) -> Json:
    """Metric, size and speed of an export."""
    predictor = predictions.load(version, task.data)
    examples, found = split.examples, dict[int, Json]()
    predictions.check(predictor.task, examples)
    for batch in predictions.batches(predictor.task, examples, _BATCH):
        found |= zip(batch, predictor.predictions([examples[row] for row in batch]), strict=True)
    answers = [found[row] for row in range(len(examples))]
    metric, benchmark = task.monitor, predictor.task.benchmark
    interval = benchmark.error_analysis(examples, answers).intervals.get(metric)
    stride = max(1, len(timed) // _TIMED)
    chosen = timed[::stride][:_TIMED]
    single = [body for example in chosen for body in _bodies(predictor.task, [example])]
    together = _bodies(predictor.task, list(timed[:_BATCH]))
    times = {threads: _seconds(version, single, together, threads) for threads in THREADS}
    return {
        "value": benchmark.official_metrics(examples, answers)[metric],
        "interval": None if interval is None else list(interval),
        "megabytes": _bytes(version) / 1e6,
        **{_key(threads): 1e3 * statistics.median(times[threads][0]) for threads in THREADS},
        "texts_per_second": len(timed[:_BATCH]) / sum(times[1][1]),
    }


def _seconds(version: str, single: list[Json], batch: list[Json], threads: int) -> tuple[list[float], list[float]]:
    found = latency.seconds_of(version, [*single, *batch], threads)
    return found[: len(single)], found[len(single) :]


def _bodies(task: FineTuningTask, examples: list[Any]) -> list[Json]:
    """Requests for examples."""
    return [rest_body(Request(signature, "", inputs)) for _, signature, inputs in task.codec.requests(examples)]


def _bytes(path: str) -> int:
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)
