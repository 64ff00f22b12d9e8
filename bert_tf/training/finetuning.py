"""Fine-tuning, from a config to a model directory."""

import math

import keras
import tensorflow as tf

from bert_tf.checkpoints import load
from bert_tf.config import FinetuneConfig, to_dict
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.examples import Skips
from bert_tf.inputs.identity import weights_identity
from bert_tf.inputs.records import settings_of
from bert_tf.inputs.sources import Source
from bert_tf.tasks import task_of
from bert_tf.training.evaluation import answering
from bert_tf.training.phases import Input
from bert_tf.training.run import Run, expect

# Examples that `predict` holds at once: enough to sort by length, whatever the size of the file.
_CHUNK = 4096


def finetune(config, data_dir, init, model_dir, strategy, *, accept_config_change=False):
    """Fine-tunes a pre-trained encoder on labelled examples.

    Args:
        config: FinetuneConfig.
        data_dir: holds the files that config.data names.
        init: checkpoint that `bert_tf.load` reads; a pooler that it lacks starts untrained.
        model_dir, strategy, accept_config_change: as in `runs.pretrain`.

    Returns:
        dict, what results.json holds.

    Raises:
        BertTfError: for anything wrong in config or files, before training starts.
    """
    expect(config, FinetuneConfig)
    config.train.check()
    if config.train.phases:
        raise ConfigError("train.phases is set, but only pre-training has phases; leave it out")
    kind = task_of(config.task)
    source = Source(config.data, data_dir, kind.example)
    skips = {role: Skips() for role in ("train", "evaluation")}
    examples = read(source, "train", skips["train"], kind.learnable)
    heldout = read(source, "evaluation", skips["evaluation"])
    inputs = {role: source.identity(role) for role in ("train", "evaluation")}
    run = Run("finetune", config, model_dir, strategy, inputs, accept_config_change, data_dir=data_dir, init=init)
    keras.utils.set_random_seed(config.train.seed)  # a pooler that the checkpoint lacks is drawn here
    with strategy.scope():
        encoder, tokenizer = load(init, pooler=True, dtype=run.dtype)
    if tokenizer is None:
        raise DataError(f"{init}: no WordPiece vocabulary, so no text can go in; expected a checkpoint with vocab.txt")
    inputs["init"] = {
        "model": to_dict(encoder.config),
        "tokenizer": settings_of(tokenizer)["fingerprint"],
        "weights": weights_identity(encoder.weights),
    }
    limit = encoder.config.max_position_embeddings
    if not 8 <= config.task.max_length <= limit:
        raise ConfigError(f"task.max_length is {config.task.max_length}; it must be from 8 to the model's {limit}")
    task = kind.create(tokenizer, config.task, config.data, examples, source.labels())
    columns = task.columns(examples, labelled=True)
    task.columns(heldout, labelled=True)  # a label that the training examples lack is told before training, too
    for role, read_examples in (("train", examples), ("evaluation", heldout)):
        task.check(read_examples, skips[role])
        say(source, role, skips[role])
    batch_size = config.train.batch_size
    steps_an_epoch = math.ceil(task.count_rows(columns) / batch_size)
    total_steps = config.train.steps or math.ceil(steps_an_epoch * config.train.epochs)

    def epoch_batches(epoch):
        seed = tf.stack([tf.constant(config.train.seed, tf.int64), epoch])
        return task.batches(columns, batch_size, seed=seed)

    def evaluations(model):
        return [evaluating(task, model, heldout, batch_size, strategy, tune=True)]

    return run.fit(
        task,
        lambda: encoder,
        total_steps,
        [Input(epoch_batches)],
        evaluations,
        config.train.evaluate_every or steps_an_epoch,
    )


def read(source, role, skips, keep=lambda examples, skips: examples):
    """All labelled examples of a part.

    Args:
        source: Source.
        role: as for `Source.examples`.
        skips: Skips.
        keep: function of (examples, skips) to those that are of use, such as `Downstream.learnable`.

    Raises:
        BertTfError: as `Source.examples`; none are left.
    """
    examples = keep(list(source.examples(skips, role)), skips)
    if not examples:
        say(source, role, skips)
        raise DataError(f"{source.where(role)}: no examples left; expected at least one")
    return examples


def say(source, role, skips):
    """A line on standard output for each reason to leave examples of a part out, or to change them."""
    for line in skips.lines():
        print(f"{source.where(role)}: {line}")


def evaluating(task, model, examples, batch_size, strategy, *, tune=False):
    """A function without arguments that measures the model as it is when called.

    Args:
        task: Downstream.
        model: what `task.build` made.
        examples: list, labelled.
        batch_size: rows at once.
        strategy: tf.distribute.Strategy.
        tune: whether the task settles something by these examples, as `Downstream.tune` does.

    Returns:
        function to dict name -> float: the task's measures and its official scores.
    """
    answers = answering(task, model, strategy, labelled=True)

    def evaluate():
        found, measured = answers(examples, batch_size)
        predictions = task.predictions(examples, found)
        if tune:
            task.tune(examples, predictions)
        return measured | task.scores(examples, predictions)

    return evaluate


def predicting(task, model, examples, batch_size, strategy):
    """Predictions of a stream of examples, in their order; memory does not grow with it.

    Args:
        task, model, batch_size, strategy: as for `evaluating`.
        examples: iterable.

    Yields:
        (example, its prediction: a JSON-ready dict).
    """
    answers = answering(task, model, strategy, labelled=False)
    for chunk in task.chunks(examples, _CHUNK):
        found, _ = answers(chunk, batch_size)
        yield from zip(chunk, task.predictions(chunk, found), strict=True)
