"""Fine-tuning, from a config to a model directory."""

import json
import math
import os

import keras
import tensorflow as tf

from bert_tf.checkpoints import load
from bert_tf.config import FinetuneConfig, to_dict
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import write_text
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.identity import weights_identity
from bert_tf.inputs.corpus.shards import settings_of
from bert_tf.inputs.datasets.sources import Source
from bert_tf.model.variables import ON_POOLED
from bert_tf.tasks import task_of
from bert_tf.training.evaluation import answering
from bert_tf.training.phases import Input
from bert_tf.training.state.run_manifest import differences
from bert_tf.training.runs.runner import Run, expect

REPORT = "report.html"
# Examples that `predict` holds at once: enough to sort by length, whatever the size of the file.
_CHUNK = 4096


def finetune(config, data_dir, init, model_dir, strategy, *, accept_config_change=False, like=None):
    """Fine-tunes a pre-trained encoder on labelled examples.

    Args:
        config: FinetuneConfig.
        data_dir: holds the files that config.data names.
        init: checkpoint that `bert_tf.load` reads; a pooler that it lacks starts untrained.
        model_dir, strategy, accept_config_change: as in `pretraining.pretrain`.
        like: results of a run that this one is to be compared with: of the same inputs, it computes in the same number
            format; None for none.

    Returns:
        dict, what results.json holds.

    Raises:
        BertTfError: for anything wrong in config or files, before training starts.
    """
    expect(config, FinetuneConfig)
    config.train.check()
    if config.train.phases:
        raise ConfigError("train.phases is set, but only pre-training has phases; leave it out")
    if config.search or config.train.seeds > 1:
        raise ConfigError("search or train.seeds asks for several runs; this is one: call training.sweep.finetune")
    kind, source = task_of(config.task), source_of(config, data_dir)
    config.task.check()
    read_report = {role: ReadReport() for role in ("train", "validation")}
    examples = read(source, "train", read_report["train"])
    validation = read(source, "validation", read_report["validation"])
    inputs = {role: source.identity(role) for role in ("train", "validation")}
    files = {"data_dir": data_dir, "init": init}
    computes_in = like and like["computes_in"]
    run = Run("finetune", config, model_dir, strategy, inputs, accept_config_change, computes_in, **files)
    keras.utils.set_random_seed(config.train.seed)  # a pooler that the checkpoint lacks is drawn here
    with strategy.scope():
        encoder, tokenizer, inputs["init"] = _load(config, init, run.dtype)
    _check_inputs(inputs, like)
    limit = encoder.config.max_position_embeddings
    if config.task.max_length > limit:
        raise ConfigError(f"task.max_length is {config.task.max_length}; it must be at most the model's {limit}")
    task = kind.create(tokenizer, config.task, config.data, examples, source.labels())
    columns = task.to_tensors(examples, labelled=True)
    validation_columns = task.to_tensors(validation, labelled=True)  # told before training, too: a label that is not trained on
    for role, read_examples in (("train", examples), ("validation", validation)):
        task.check(read_examples, read_report[role])
        print_report(source, role, read_report[role])
    batch_size = config.train.batch_size
    steps_per_epoch = math.ceil(task.count_rows(columns) / batch_size)
    total_steps = config.train.steps or math.ceil(steps_per_epoch * config.train.epochs)

    def epoch_batches(epoch):
        seed = tf.stack([tf.constant(config.train.seed, tf.int64), epoch])
        return task.batches(columns, batch_size, seed=seed)

    evaluation = None

    def evaluations(model):
        nonlocal evaluation
        evaluation = Evaluation(task, model, validation, validation_columns, batch_size, strategy, tune=True)
        return [evaluation]

    def finish(results):
        results |= {"measure": [task.monitor, task.mode], "baseline": task.baseline(validation)}
        results["skipped"] = {role: read_report[role].counts for role in read_report}
        if evaluation.predictions is None or results["final"]["step"] != results["steps"]:
            evaluation()  # of the model that is saved

    def report(results):
        path, where = os.path.join(model_dir, REPORT), source.where("validation")
        evaluation.report(path, where, read_report["validation"], results["final"])

    return run.fit(
        task,
        lambda: encoder,
        total_steps,
        [Input(epoch_batches)],
        evaluations,
        config.train.evaluate_every or steps_per_epoch,
        evaluate_first=False,  # a head that nobody has trained guesses, and the baseline says what guessing scores
        finish=finish,
        report=report,
    )


def source_of(config, data_dir):
    """The Source of a FinetuneConfig's examples.

    Raises:
        ConfigError: as `Source`; data_dir is a file, which can not be trained on and measured by at once.
    """
    source = Source(config.data, data_dir, task_of(config.task).example)
    if not config.data.source and not os.path.isdir(data_dir):
        parts = " and ".join(source.part(role) for role in ("train", "validation"))
        raise ConfigError(f"--data_dir={data_dir} is one file; expected a folder that holds {parts}")
    return source


def _load(config, init, dtype=None):
    """The encoder that fine-tuning begins with, its tokenizer, and a dict that tells the checkpoint from others."""
    needs_pooler = task_of(config.task).head(to_dict(config.task)) in ON_POOLED
    encoder, tokenizer = load(init, pooler=needs_pooler or None, dtype=dtype)
    if tokenizer is None:
        raise DataError(f"{init}: no WordPiece vocabulary, so no text can go in; expected a checkpoint with vocab.txt")
    identity = {
        "model": to_dict(encoder.config),
        "tokenizer": settings_of(tokenizer)["fingerprint"],
        # A pooler that the checkpoint lacks is another one with each seed.
        "weights": weights_identity(value for value in encoder.weights if "pooler" not in value.path.split("/")),
    }
    return encoder, tokenizer, identity


def check_init(config, init, like):
    """Raises ConfigError where a checkpoint is not the one that a run, whose results `like` is, began with."""
    _check_inputs(like["inputs"] | {"init": _load(config, init)[2]}, like)


def _check_inputs(inputs, like):
    """Raises ConfigError where the data or the model is not what another run had."""
    changed = differences(like["inputs"], json.loads(json.dumps(inputs))) if like else {}
    if changed:
        raise ConfigError(
            f"inputs have changed since the first of these runs ({', '.join(changed)}), so they can not be compared; "
            "put them back, or begin again in another --model_dir"
        )


def read(source, role, read_report):
    """All labelled examples of a part.

    Args:
        source: Source.
        role: as for `Source.examples`.
        read_report: ReadReport.

    Raises:
        BertTfError: as `Source.examples`; none are left.
    """
    examples = list(source.examples(read_report, role))
    if not examples:
        print_report(source, role, read_report)
        raise DataError(f"{source.where(role)}: no examples left; expected at least one")
    return examples


def print_report(source, role, read_report):
    """A line on standard output for each reason to leave examples of a part out, or to change them."""
    for line in read_report.lines():
        print(f"{source.where(role)}: {line}")


class Evaluation:
    """A function without arguments that metrics the model as it is when called.

    It returns a dict name -> float: the task's metrics and its official scores.

    Args:
        task: FineTuningTask.
        model: what `task.build` made.
        examples: list, labelled.
        columns: as `task.to_tensors` makes of them.
        batch_size: rows at once.
        strategy: tf.distribute.Strategy.
        tune: whether the task settles something by these examples, as `FineTuningTask.tune` does.

    Attributes:
        predictions: list of dicts, of the last call; None before.
    """

    def __init__(self, task, model, examples, columns, batch_size, strategy, *, tune=False):
        self._task, self._examples, self._columns = task, examples, columns
        self._batch_size, self._tune = batch_size, tune
        self._answers = answering(task, model, strategy, labelled=True)
        self.predictions = None

    def __call__(self):
        found, measured = self._answers(self._columns, self._batch_size)
        self.predictions = self._task.predictions(self._examples, found)
        if self._tune:
            self._task.tune(self._examples, self.predictions)
        return measured | self._task.official_metrics(self._examples, self.predictions)

    def report(self, path, where, read_report, measured):
        """Writes the page about the last call.

        Args:
            path: of the HTML file.
            where: what the examples are called.
            read_report: ReadReport of reading them.
            measured: what that call returned, or the row of it in History.evaluations.
        """
        # Matplotlib takes a second to load, which every program that imports this module would pay.
        from bert_tf.report.evaluation import evaluation_page

        task = self._task
        page = evaluation_page(
            title=task.name.replace("_", " ").capitalize(),
            data=where,
            examples=len(self._examples),
            monitor=task.monitor,
            measured={name: value for name, value in measured.items() if name not in ("kind", "step")},
            baseline=task.baseline(self._examples),
            error_analysis=task.error_analysis(self._examples, self.predictions),
            read_report=read_report,
        )
        write_text(path, page)


def predicting(task, model, examples, batch_size, strategy):
    """Predictions of a stream of examples, in their order; memory does not grow with it.

    Args:
        task, model, batch_size, strategy: as for `Evaluation`.
        examples: iterable, labelled or not.

    Yields:
        (example, its prediction: a JSON-ready dict).
    """
    answers = answering(task, model, strategy, labelled=False)
    for chunk in task.chunks(examples, _CHUNK):
        found, _ = answers(task.to_tensors(chunk, labelled=False), batch_size)
        yield from zip(chunk, task.predictions(chunk, found), strict=True)
