"""Fine-tuning, from a config to a model directory."""

import json
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from bert_tf.checkpoints import load
from bert_tf.checkpoints.formats import open_checkpoint
from bert_tf.checkpoints.stored_model import Checkpoint, assign
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.config import FinetuneConfig, to_dict
from bert_tf.config.train import FINETUNING_RATE
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.sources import Examples, InMemory, Source
from bert_tf.inputs.identity import tensors_identity, tokenizer_identity, weights_identity
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import HEADS
from bert_tf.progress import log
from bert_tf.tasks import FineTuningTask, task_of
from bert_tf.text.base import BaseTokenizer
from bert_tf.training.evaluation import Evaluation, Split
from bert_tf.training.phases import Input
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.runs.distillation import ANSWERS, Distillation
from bert_tf.training.runs.runner import Runner, expect
from bert_tf.training.state.run_manifest import differences
from bert_tf.training.strategy import accelerator, is_chief
from bert_tf.types import Json, Metrics, Tensors

# Training examples on which the ranges of train.quantization are measured.
_CALIBRATION = 128


def finetune(
    config: FinetuneConfig,
    data: str | InMemory,
    init: str,
    model_dir: str,
    strategy: tf.distribute.Strategy,
    *,
    accept_config_change: bool = False,
    like: Json | None = None,
    teacher: str = "",
    answers: str = "",
    reporter: Reporter = SILENT,
) -> Json:
    """Fine-tunes a pre-trained encoder on labelled examples, or has it learn from a teacher.

    Args:
        data: the folder that holds the files named in config.data; or the examples, and without those for validation
            nothing is evaluated.
        init: checkpoint for `bert_tf.load`; a missing pooler is initialized randomly, and so is the head, unless the
            checkpoint is a model of the same task with the same labels. "" for a new encoder, that of
            config.distillation.
        model_dir, strategy, accept_config_change: as in `pretraining.pretrain`.
        like: results of a run with which this one will be compared: requires the same inputs, and computes in the same
            number format.
        teacher: model that was fine-tuned for the task, in any format that `bert_tf.load` reads; only and always with
            config.distillation.
        answers: folder for the teacher's answers, unless config.distillation names one; "" for one in model_dir.
        reporter: gets the curves and the last evaluation.

    Returns:
        The contents of results.json.
    """
    expect(config, FinetuneConfig)
    config.check()
    source: Examples = source_of(config, data) if isinstance(data, str) else data
    if config.search or config.train.seeds > 1:
        raise ConfigError(
            "search or train.seeds asks for several runs, but this is one; call training.runs.sweep.finetune"
        )
    kind = task_of(config.task)
    task_config: Any = config.task  # of the class kind.Config
    task_config.check()
    distillation = _distillation(config, teacher)
    splits = distillation.read(source) if distillation else {role: Split(source, role) for role in source.roles}
    inputs: Json = {role: source.identity(role) for role in source.roles}
    if distillation:
        inputs |= distillation.identities(source)
    runner = Runner(
        "distill" if distillation else "finetune",
        config,
        model_dir,
        strategy,
        inputs,
        accept_config_change,
        like.get("computes_in") if like else None,
        reporter,
        data_dir=data if isinstance(data, str) else "",
        init=init,
    )
    if distillation:
        runner.record["teacher"] = teacher
    keras.utils.set_random_seed(config.train.seed)  # of a pooler that the checkpoint lacks
    with strategy.scope():
        encoder, tokenizer, inputs["init"] = _load(config, init, distillation, runner.dtype)
    runner.choose_rate(FINETUNING_RATE, encoder.config.hidden_size)
    limit = encoder.config.max_position_embeddings
    if task_config.max_length > limit:
        raise ConfigError(f"task.max_length is {task_config.max_length}; it must be at most the model's {limit}")
    if distillation:
        distillation.check(encoder)
        task = distillation.learn(tokenizer, task_config, config.data, splits["train"], source.labels())
    else:
        task = kind.learn(tokenizer, task_config, config.data, splits["train"].examples, source.labels())
    head = _head(init, encoder, task)
    if head:
        log(f"continuing with the head of {init}, which is for the same task")
        inputs["head"] = weights_identity(tf.constant(tensor.read()) for tensor in head.values())
    for split in splits.values():  # before training, so that an unknown label in the validation set is reported at once
        split.prepare(task)
    # The same files may be read or repaired differently by another version.
    inputs["examples"] = {role: tensors_identity(split.columns) for role, split in splits.items()}
    _check_inputs(inputs, like)
    columns, validation = splits["train"].columns, splits.get("validation")
    if distillation:
        columns = distillation.columns(splits)
    batch_size = config.train.batch_size
    steps_per_epoch = math.ceil(task.codec.rows.count(columns) / batch_size)
    total_steps = config.train.steps or math.ceil(steps_per_epoch * config.train.epochs)

    # XLA compiles the update, or at least GELU, for each length.
    few_lengths = runner.jit_compile or accelerator(strategy) is not None

    def epoch_batches(epoch: tf.Tensor | int) -> tf.data.Dataset:
        seed = tf.stack([tf.constant(config.train.seed, tf.int64), epoch])
        batches = task.codec.rows.batches(columns, batch_size, seed=seed, few_lengths=few_lengths)
        return distillation.batches(batches) if distillation else batches

    def prepare() -> None:
        if distillation:
            distillation.prepare(task, splits, answers or os.path.join(model_dir, ANSWERS), strategy)

    calibration: Iterable[Tensors] = ()
    if config.train.quantization != "none":
        seed = tf.constant([config.train.seed, -1], tf.int64)
        calibration = task.codec.rows.batches(columns, batch_size, seed=seed).take(math.ceil(_CALIBRATION / batch_size))
    evaluation: Evaluation | None = None

    def evaluations(model: keras.Model) -> list[Callable[[], Metrics] | None]:
        nonlocal evaluation
        if validation:
            evaluation = Evaluation(task, model, validation, batch_size, strategy, tune=True)
        return [evaluation]

    def meanwhile() -> None:
        if evaluation:
            evaluation.trace()
        if is_chief(strategy):
            reporter.load()

    def finish(results: Json) -> None:
        results["skipped"] = {role: split.read_report.counts for role, split in splits.items()}
        results["unknown_share"] = {role: split.unknown.share for role, split in splits.items()}
        results["steps_per_epoch"] = steps_per_epoch
        if evaluation is None:
            return
        results |= {
            "measure": [task.monitor, task.mode],
            "baseline": task.benchmark.baseline(evaluation.split.examples),
        }
        if evaluation.predictions is None or results["final"]["step"] != results["steps"]:
            evaluation()  # with the weights that will be saved
        if distillation:
            results["teacher_results"] = distillation.results(evaluation.split, batch_size, strategy)

    def report(results: Json) -> None:
        if evaluation:
            reporter.evaluation(model_dir, evaluation, results["final"])

    return runner.fit(
        distillation.trained(task, splits) if distillation else task,
        lambda: encoder,
        total_steps,
        [Input(epoch_batches)],
        evaluations,
        config.train.evaluate_every or steps_per_epoch,
        evaluate_first=False,  # an untrained head guesses, and the baseline has the metrics of guessing
        prepare=prepare if distillation else None,
        initialize=lambda model: assign((one for one in model.weights if one.path in head), head),
        meanwhile=meanwhile,
        calibration=calibration,
        finish=finish,
        report=report,
    )


def source_of(config: FinetuneConfig, data_dir: str) -> Source:
    """The Source of the examples."""
    source = Source(config.data, data_dir, task_of(config.task).example)
    if not config.data.source and source.one_file:
        parts = " and ".join(source.part(role) for role in ("train", "validation"))
        raise ConfigError(f"--data_dir={data_dir} is one file; expected a folder that holds {parts}")
    return source


def _distillation(config: FinetuneConfig, teacher: str) -> Distillation | None:
    """The teacher of the run, if it has one."""
    if not config.distillation:
        return None
    if not teacher:
        raise ConfigError("distillation is set, but there is no teacher; use python -m bert_tf.distill --teacher=DIR")
    return Distillation(config, teacher)


def _load(
    config: FinetuneConfig, init: str, distillation: Distillation | None, dtype: str | None = None
) -> tuple[BertEncoder, BaseTokenizer, Json]:
    """The pre-trained encoder, its tokenizer and the identity of the checkpoint; or those of a new student."""
    task_config: Any = config.task
    needs_pooler = HEADS[task_of(task_config).head(to_dict(task_config))].pooled
    if distillation and not init:
        return distillation.new_student(needs_pooler, dtype)
    if config.distillation and (found := config.distillation.of_new_student):
        raise ConfigError(f"--init names the student {init}, and {found[0]} another, new one; leave one of them out")
    encoder, tokenizer = load(init, pooler=needs_pooler or None, dtype=dtype)
    if tokenizer is None:
        raise DataError(f"{init}: no vocabulary to tokenize text with; expected a checkpoint with its tokenizer")
    identity = {
        "model": to_dict(encoder.config),
        "tokenizer": tokenizer_identity(tokenizer)["fingerprint"],
        # Without the pooler: if the checkpoint lacks it, it depends on the seed.
        "weights": weights_identity(value for value in encoder.weights if "pooler" not in value.path.split("/")),
    }
    return encoder, tokenizer, identity


def _head(init: str, encoder: BertEncoder, task: FineTuningTask) -> dict[str, Tensor]:
    """The weights of the checkpoint's head by path, if its outputs have the same meaning in this task; else {}."""
    if not init:
        return {}
    checkpoint = open_checkpoint(init)
    settings = task.settings()
    ours = Checkpoint(config=encoder.config, tensors={}, task={"name": task.name, "settings": settings})
    theirs = checkpoint.task or {"name": "", "settings": {}}
    # What the head's outputs mean.
    meanings = {"labels": None, "intents": None, "activation": "linear"}
    same = all(theirs["settings"].get(name, one) == settings.get(name, one) for name, one in meanings.items())
    if theirs["name"] != task.name or not same or ours.shapes() != checkpoint.shapes():
        return {}
    known = {variable.path for variable in encoder.weights}
    return {path: checkpoint.tensors[path] for path in ours.shapes() if path not in known}


def width(config: FinetuneConfig, init: str, teacher: str) -> int:
    """`hidden_size` of the encoder that will be fine-tuned."""
    new = None if init else config.distillation
    known = open_checkpoint(init or teacher).config
    return (known if not new or new.layers else new.student_config(known, known.vocab_size)).hidden_size


def check_init(config: FinetuneConfig, init: str, teacher: str, like: Json) -> None:
    """Raises ConfigError unless the run with the results `like` had the same checkpoint and the same teacher."""
    distillation = _distillation(config, teacher)
    inputs = {"init": _load(config, init, distillation)[2]}
    if distillation:
        inputs["teacher"] = distillation.teacher.identity
    _check_inputs(like["inputs"] | inputs, like)


def _check_inputs(inputs: Json, like: Json | None) -> None:
    """Raises ConfigError unless the run with the results `like` had the same data and the same checkpoint."""
    changed = differences(like["inputs"], json.loads(json.dumps(inputs))) if like else {}
    if changed:
        raise ConfigError(
            f"inputs have changed since the first of these runs ({', '.join(changed)}), so they cannot be compared; "
            "restore them, or start again in another --model_dir"
        )
