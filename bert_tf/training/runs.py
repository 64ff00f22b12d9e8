"""Whole runs, from a config and files to a model directory: what the programs and the quick start call."""

import dataclasses
import functools
import itertools
import math
import os
import time

import keras
import tensorflow as tf

from bert_tf.checkpoints import directory, load
from bert_tf.config import FinetuneConfig, PretrainConfig, to_dict
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_json_object, write_json
from bert_tf.inputs.corpus import find_corpus
from bert_tf.inputs.identity import corpus_identity, file_identity, weights_identity
from bert_tf.inputs.masking import Masker
from bert_tf.inputs.pretraining import check_corpus, pretraining_dataset, reading
from bert_tf.inputs.records import digest, settings_of
from bert_tf.inputs.service import through_service
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks.classification import Classification, labels_of
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.pretraining import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training import plan, precision
from bert_tf.training.evaluation import evaluator
from bert_tf.training.loop import Trainer
from bert_tf.training.phases import Input, split
from bert_tf.training.record import Record
from bert_tf.training.speed import ceiling, row_flops
from bert_tf.training.strategy import is_chief

# Pairs of held-out text that an evaluation during pre-training looks at; always the same ones.
_HELDOUT_PAIRS = 1024
# The settings of a task that name files.
_TABLES = ("train", "evaluation")


def pretrain(config, model_dir, strategy, *, accept_config_change=False, dry_run=False):
    """Pre-trains from raw text or prepared shards.

    Args:
        config: PretrainConfig.
        model_dir: gets the model, checkpoints, history and results.json; an interrupted run goes on.
        strategy: tf.distribute.Strategy.
        accept_config_change: whether an interrupted run may go on with settings that change its result.
        dry_run: trains some updates to see what they cost and writes nothing.

    Returns:
        dict, what results.json holds; of a dry run, the plan, a str.

    Raises:
        BertTfError: for anything wrong in config or files, before training starts; and as `Trainer.run`.
    """
    _expect(config, PretrainConfig)
    config.train.check()
    config.data.check()
    if not config.input:
        raise ConfigError("input is empty; name the text to train on, e.g. --config.input='corpus/*.txt.gz'")
    if not config.train.steps:
        raise ConfigError("train.steps is 0; say how long to pre-train, e.g. --config.train.steps=100000")
    split(config.train, config.train.steps, strategy.num_replicas_in_sync)  # before the corpus is read for nothing
    files = find_corpus(config.input)
    heldout = find_corpus(config.heldout) if config.heldout else []
    tokenizer = Tokenizer(
        config.tokenizer.vocab,
        lower_case=config.tokenizer.lower_case,
        strip_accents=config.tokenizer.strip_accents,
        split_cjk=config.tokenizer.split_cjk,
    )
    for some in (files, heldout) if heldout else (files,):
        check_corpus(some, tokenizer, config.data)
    # Of each phase the data settings and the batch size.
    phases = [
        (config.data.in_phase(phase).check(), config.train.in_phase(phase).batch_size) for phase in config.train.phases
    ] or [(config.data, config.train.batch_size)]
    longest = max(data.max_length for data, _ in phases)
    model_config = _model_config(config, tokenizer, longest)
    identity = {"input": corpus_identity(files), "tokenizer": settings_of(tokenizer)["fingerprint"]}
    if heldout:
        identity["heldout"] = corpus_identity(heldout)
    run = _Run("pretrain", config, model_dir, strategy, identity, accept_config_change)
    seed = config.train.seed
    task = (MaskedLM if config.data.pairs == "none" else Pretraining)(tokenizer, longest)
    inputs = [_training_input(files, tokenizer, *phase, seed, model_config) for phase in phases]

    def make_encoder():
        return BertEncoder(model_config, dtype=run.dtype, packed=config.data.shares_rows)

    with reading(config.input):
        if dry_run:
            epochs = [plan.rows_an_epoch(files, tokenizer, config.data.pairs, source.batches(0)) for source in inputs]
            return run.plan(task, make_encoder, config.train.steps, inputs, epochs, swapped=config.data.pairs == "sop")
        return run.fit(
            task,
            make_encoder,
            config.train.steps,
            inputs,
            [_heldout(heldout, tokenizer, *phase, seed) for phase in phases],
            config.train.evaluate_every,
        )


def _model_config(config, tokenizer, longest):
    """The BertConfig of a PretrainConfig's model, for this vocabulary and sequences of up to `longest` tokens."""
    model = dataclasses.replace(config.model, vocab_size=config.model.vocab_size or tokenizer.vocab_size).check()
    if model.vocab_size != tokenizer.vocab_size:
        raise ConfigError(
            f"model.vocab_size is {model.vocab_size}, but {config.tokenizer.vocab} has "
            f"{tokenizer.vocab_size} pieces; 0 takes the vocabulary's"
        )
    if longest > model.max_position_embeddings:
        raise ConfigError(
            f"data.max_length {longest} is over model.max_position_embeddings {model.max_position_embeddings}"
        )
    # Without a label nothing would train the pooler: fine-tuning puts a new one on.
    return dataclasses.replace(model, pooler=False) if config.data.pairs == "none" else model


def _training_input(files, tokenizer, data, batch_size, seed, model_config):
    """phases.Input of a phase with these settings."""

    def epoch_batches(epoch, shard=None):
        return pretraining_dataset(files, tokenizer, data, seed=seed, epoch=epoch, batch_size=batch_size, shard=shard)

    if data.service:
        epoch_batches = through_service(epoch_batches, data.service, data.service_workers)
    # Of packed rows also the unused places (`inputs.packing.join_rows`).
    pooled = 0 if data.pairs == "none" else data.max_length // 5 if data.pack else 1
    flops = functools.partial(row_flops, config=model_config, predictions=data.max_predictions, pooled=pooled)
    source = Input(epoch_batches, length=data.max_length, row_flops=flops)
    return source._replace(prepare=Masker(data, tokenizer).in_step()) if data.mask_on == "device" else source


def _heldout(files, tokenizer, data, batch_size, seed):
    """Dataset of held-out batches, the same pairs and masks at every evaluation; None without files."""
    if not files:
        return None
    batches = pretraining_dataset(
        files, tokenizer, data, seed=seed, epoch=-1, batch_size=batch_size, drop_remainder=False
    )
    return batches.take(max(1, _HELDOUT_PAIRS // batch_size)).cache()


def finetune(config, data_dir, init, model_dir, strategy, *, accept_config_change=False):
    """Fine-tunes a pre-trained encoder on labelled texts.

    Args:
        config: FinetuneConfig.
        data_dir: holds the tables that config.task names.
        init: checkpoint that `bert_tf.load` reads; a pooler that it lacks starts untrained.
        model_dir, strategy, accept_config_change: as in `pretrain`.

    Returns:
        dict, what results.json holds.

    Raises:
        BertTfError: for anything wrong in config or files, before training starts.
    """
    _expect(config, FinetuneConfig)
    config.train.check()
    if config.train.phases:
        raise ConfigError("train.phases is set, but only pre-training has phases; leave it out")
    table = os.path.join(data_dir, config.task.train)
    labels = labels_of(table, config.task.label)
    inputs = {name: file_identity(os.path.join(data_dir, getattr(config.task, name))) for name in _TABLES}
    run = _Run("finetune", config, model_dir, strategy, inputs, accept_config_change, data_dir=data_dir, init=init)
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
    columns = {name: getattr(config.task, name) for name in ("text", "second_text", "label", "max_length")}
    task = Classification(tokenizer, labels, evaluation=config.task.evaluation, **columns)
    rows = task.read(table)
    evaluation = task.read(os.path.join(data_dir, config.task.evaluation))
    steps_an_epoch = math.ceil(len(rows[task.label]) / config.train.batch_size)
    total_steps = config.train.steps or math.ceil(steps_an_epoch * config.train.epochs)

    def epoch_batches(epoch):
        seed = tf.stack([tf.constant(config.train.seed, tf.int64), epoch])
        return task.batches(rows, config.train.batch_size, seed=seed)

    return run.fit(
        task,
        lambda: encoder,
        total_steps,
        [Input(epoch_batches)],
        [task.batches(evaluation, config.train.batch_size)],
        config.train.evaluate_every or steps_an_epoch,
    )


def _expect(config, kind):
    if not isinstance(config, kind):
        raise ConfigError(f"--config holds a {type(config).__name__}; expected a {kind.__name__}")


def _results(path):
    """What a results.json holds; {} where it is missing or damaged: then it and the model are written again."""
    try:
        return read_json_object(path)
    except DataError:
        return {}


class _Run:
    """What every run does: claim the directory, train, save the model, write results.json.

    Args:
        program: str, "pretrain" or "finetune".
        config: the whole config of the program.
        model_dir, strategy, accept_config_change: as in `pretrain`.
        inputs: JSON-ready dict that identifies what the inputs hold; may be added to until `fit`.
        files: paths, to be recorded.

    Attributes:
        dtype: name of the Keras policy to make the encoder with.
    """

    def __init__(self, program, config, model_dir, strategy, inputs, accept_config_change, **files):
        # What the recipe came to, not only its name: recorded, and compared with when the run goes on.
        config = dataclasses.replace(config, train=config.train.resolved())
        self.program, self.config, self.model_dir, self.strategy = program, config.train, model_dir, strategy
        self.dtype = precision.policy(self._dtype())
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

    def _dtype(self):
        """The configured number format; a run that goes on keeps the one that "auto" chose when it began."""
        path = os.path.join(self.model_dir, "run.json")
        if self.config.dtype != "auto":
            return self.config.dtype
        if os.path.exists(path):
            return read_json_object(path).get("computes_in", "auto").removeprefix("mixed_")
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

    def plan(self, task, make_encoder, total_steps, inputs, epochs, *, swapped):
        """What `fit` would do and cost, as text; nothing is written."""
        before = plan.peak_bytes()
        trainer, _ = self._trainer(task, make_encoder, total_steps)
        model, works = trainer.model, trainer.work(inputs)
        measured, kept = [], []
        for number, (work, source) in enumerate(zip(works, inputs, strict=True)):
            seconds, length = trainer.rehearse(number, source, plan.STEPS)
            measured.append((work, seconds, work.flops(length) / seconds))
        grown = plan.peak_bytes() - before
        most = ceiling(self.strategy, self.dtype)
        for work, source, phase in zip(works, inputs, trainer.phases, strict=True):
            rows = work.batch_size // self.strategy.num_replicas_in_sync // phase.config.accumulation
            piece = {name: value[:rows] for name, value in next(iter(source.batches(0))).items()}
            kept.append(plan.kept_bytes(task, model, source.prepare(piece), remat=self.config.remat))
        size = 4 * model.count_params()
        memory = {"weights": size, "gradients": size, "moments": 2 * size, "kept for the backward pass": max(kept)}
        memory |= {"all": sum(memory.values()), "measured in training": grown}
        whole = next(iter(inputs[0].batches(0)))
        texts = plan.example_texts(whole, inputs[0].prepare(whole), task.tokenizer, swapped=swapped)
        return plan.plan_text(
            counts=plan.parameters(model),
            memory=memory,
            epochs=epochs,
            phases=[(work, seconds, flops / most) for work, seconds, flops in measured],
            examples=list(itertools.islice(texts, plan.EXAMPLES)),
        )

    def fit(self, task, make_encoder, total_steps, inputs, heldout, evaluate_every):
        """Trains, or goes on training, and writes the model and results.json.

        Args:
            task: Task.
            make_encoder: function without arguments to the BertEncoder, called under the strategy's scope.
            total_steps: updates.
            inputs: list of phases.Input without `evaluate`, one a phase.
            heldout: list of Datasets of batches that are evaluated on, one a phase; None for none.
            evaluate_every: as in `Trainer.run`.

        Returns:
            dict, what results.json holds.
        """
        started = time.time()
        record = None
        if is_chief(self.strategy):  # one of several workers that share the directory
            record = Record(self.model_dir, self.record, self.accept_config_change)
        trainer, encoder = self._trainer(task, make_encoder, total_steps)
        model = trainer.model
        inputs = [
            source
            if batches is None
            else source._replace(evaluate=evaluator(task, model, batches, self.strategy, source.prepare))
            for source, batches in zip(inputs, heldout, strict=True)
        ]
        path = os.path.join(self.model_dir, "results.json")
        most = ceiling(self.strategy, self.dtype) if inputs[0].row_flops else None
        history = trainer.run(
            inputs,
            self.model_dir,
            title=self.program,
            evaluate_every=evaluate_every,
            started=record.write if record else None,
            pipeline=self._pipeline(),
            ceiling=most,
        )
        if not trainer.advanced:
            before = _results(path)
            if before.get("steps") == trainer.step:
                return before  # it had ended before; what it measured then stands
        results = (record.value if record else self.record) | {
            "task": task.name,
            "parameters": model.count_params(),
            "steps": trainer.step,
            "skipped_updates": trainer.skipped,
            "seconds": round(time.time() - started, 1),
            "matmul_flops_per_second": most,
            "phases": trainer.reached,
            "history": history.points,
            "evaluations": history.evaluations,
            "final": (history.evaluations or history.points or [{}])[-1],
        }
        if is_chief(self.strategy):
            directory.save(self.model_dir, model, encoder, task)
            write_json(path, results)
        return results
