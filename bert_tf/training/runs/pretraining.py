"""Pre-training, from a config to a model directory."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from bert_tf.config import BertConfig, PretrainConfig, PretrainingData
from bert_tf.config.data import named_corpora
from bert_tf.config.encoder_distillation import OBJECTIVES
from bert_tf.config.train import PRETRAINING_RATE
from bert_tf.errors import ConfigError
from bert_tf.inputs.corpus.corpus import Corpus, check_unchanged, corpus_identity, find_corpus
from bert_tf.inputs.corpus.dataset import checked_corpus, pretraining_dataset, reading
from bert_tf.inputs.corpus.languages import Language
from bert_tf.inputs.corpus.packed_rows import most_pairs
from bert_tf.inputs.corpus.service import through_service
from bert_tf.inputs.identity import tokenizer_identity
from bert_tf.inputs.masking import Masker
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.tasks.replaced_tokens import Electra
from bert_tf.tasks.span_boundary import SpanBoundary
from bert_tf.tasks.task import Task
from bert_tf.text import BaseTokenizer, open_tokenizer
from bert_tf.training.evaluation import evaluator
from bert_tf.training.phases import Input, split
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.runs.dry_run import languages_read, rows_per_epoch
from bert_tf.training.runs.encoder_teacher import EncoderTeacher
from bert_tf.training.runs.runner import Runner, expect
from bert_tf.training.speed import pretraining_flops
from bert_tf.training.strategy import is_chief
from bert_tf.types import Json, Metrics

# Pairs of validation text per evaluation during pre-training; always the same ones.
_VALIDATION_PAIRS = 1024


def pretrain(
    config: PretrainConfig,
    model_dir: str,
    strategy: tf.distribute.Strategy,
    *,
    teacher: str = "",
    accept_config_change: bool = False,
    initialize: Callable[[keras.Model], None] | None = None,
    reporter: Reporter = SILENT,
    dry_run: bool = False,
) -> Json:
    """Pre-trains from raw text or prepared shards.

    Args:
        teacher: checkpoint for `bert_tf.load` from which the encoder learns, for the objectives of
            `config.distillation`, with its tokenizer; "" for the others.
        model_dir: gets the model, checkpoints, history and results.json; an interrupted run is resumed.
        accept_config_change: whether an interrupted run may resume with settings that change its result.
        initialize: called with the new model, to assign some of its variables; without a teacher.
        reporter: gets the curves.
        dry_run: trains a few updates to measure their cost and writes nothing.

    Returns:
        The contents of results.json; for a dry run, "plan", a text, and "seconds", the time of all updates.

    Raises:
        Interrupted: as `Trainer.run`.
    """
    expect(config, PretrainConfig)
    config.check()
    if not (config.input or config.data.languages):
        raise ConfigError("input is empty; name the text to train on, e.g. --config.input='corpus/*.txt.gz'")
    if not config.train.steps:
        raise ConfigError("train.steps is 0; set the number of updates, e.g. --config.train.steps=100000")
    if config.train.seeds != 1:
        raise ConfigError(
            f"train.seeds is {config.train.seeds}, but only fine-tuning takes the best of several runs; set it to 1"
        )
    if config.data.objective in OBJECTIVES and not teacher:
        raise ConfigError(
            f"data.objective is {config.data.objective!r}, which needs a teacher: python -m bert_tf.distill "
            "--teacher=DIR, with the same config"
        )
    if config.train.quantization != "none":
        raise ConfigError(
            f"train.quantization is {config.train.quantization!r}, but only fine-tuning learns to make up for an "
            "export's rounding; set it to 'none'"
        )
    # Raises errors before the corpus is read.
    parts = split(config.train, config.train.steps, strategy.num_replicas_in_sync)
    files = _find(config.data.languages or config.input, "data.languages", config)
    validation_files = _find(config.validation, "validation", config)
    larger = EncoderTeacher(teacher, config) if teacher else None
    tokenizer = larger.tokenizer if larger else open_tokenizer(config.tokenizer.vocab, config.tokenizer)
    # Data settings and batch size of each phase.
    phases = [
        (config.data.in_phase(phase), config.train.in_phase(phase).batch_size) for phase in config.train.phases
    ] or [(config.data, config.train.batch_size)]
    longest = max(data.max_length for data, _ in phases)
    model_config = _model_config(config, tokenizer, longest, teacher or config.tokenizer.vocab)
    if larger:
        larger.check(model_config, longest)
    corpus, warnings = checked_corpus(files, tokenizer, phases[0][0])
    validation = checked_corpus(validation_files, tokenizer, config.data)[0] if validation_files else None
    for name, warning in warnings if is_chief(strategy) else ():
        print(f"{name or config.input}: {warning}")
    identity = {"input": _contents(files), "tokenizer": tokenizer_identity(tokenizer)["fingerprint"]}
    if validation:
        identity["validation"] = _contents(validation_files)
    runner = Runner(
        "distill" if larger else "pretrain",
        config,
        model_dir,
        strategy,
        identity,
        accept_config_change,
        reporter=reporter,
        few_shapes=config.data.length_multiple is None,
        **({"teacher": teacher} if larger else {}),
    )
    runner.choose_rate(PRETRAINING_RATE, model_config.hidden_size)
    seed = config.train.seed
    languages = [language.name for language in corpus.languages]
    task: Task
    if larger:
        task, identity["teacher"] = larger.task(model_config, longest, languages, runner.dtype, strategy)
    else:
        most = max(data.max_predictions for data, _ in phases)
        task = pretraining_task(config.data, tokenizer, longest, most, languages)
    check = functools.partial(_check_unchanged, files, identity["input"])
    inputs = [
        _training_input(
            corpus._replace(data=data),
            batch_size,
            seed,
            larger.row_flops(model_config, data) if larger else _row_flops(model_config, corpus, data),
        )._replace(check=check)
        for data, batch_size in phases
    ]

    def make_encoder() -> BertEncoder:
        return BertEncoder(model_config, dtype=runner.dtype, packed=config.data.shares_rows)

    def evaluations(model: keras.Model) -> list[Callable[[], Metrics] | None]:
        if not validation:
            return [None] * len(phases)
        batches = [
            _validation_batches(validation._replace(data=data), languages, batch_size, seed)
            for data, batch_size in phases
        ]
        return [
            evaluator(task.objective, model, own, strategy, source.prepare)
            for own, source in zip(batches, inputs, strict=True)
        ]

    with reading(config.data.languages or config.input):
        if dry_run:
            epochs = [rows_per_epoch(corpus, source.batches(0)) for source in inputs]
            swapped = config.data.pairs == "sop"
            plan = runner.dry_run(task, make_encoder, config.train.steps, inputs, epochs, swapped=swapped)
            if languages:
                rows = [(part.end - part.first) * part.config.batch_size for part in parts]
                read = sum(count / whole for count, (whole, _) in zip(rows, epochs, strict=True))
                plan["languages"] = languages_read(corpus.languages, read)
            return plan
        return runner.fit(
            task,
            make_encoder,
            config.train.steps,
            inputs,
            evaluations,
            config.train.evaluate_every,
            initialize=larger.initialize if larger else initialize,
            finish=functools.partial(_add_languages, corpus.languages),
        )


def pretraining_task(
    data: PretrainingData, tokenizer: BaseTokenizer, max_length: int, max_predictions: int, languages: Sequence[str]
) -> Task:
    """The task of the configured objective; the limits are the largest of all phases."""
    if data.objective == "electra":
        return Electra(tokenizer, max_length, languages, generator_size=data.generator_size)
    if data.objective == "span_boundary":
        return SpanBoundary(tokenizer, max_length, languages, longest=max_predictions)
    return (MaskedLM if data.pairs == "none" else Pretraining)(tokenizer, max_length, languages)


def _add_languages(languages: Sequence[Language], results: Json) -> None:
    """Adds "languages" to results.json: each one's shares, the tokens that were read, and its part of "final"."""
    if not languages:
        return
    rows = []
    for one in languages:
        prefix = f"{one.name}/"
        counts = [point[f"{prefix}tokens"] for point in results["history"]]
        row: Json = {"language": one.name, "text_share": one.text_share, "share": one.share}
        row["tokens"] = round(sum(count for count in counts if math.isfinite(count)))  # NaN if updates were skipped
        found = {name.removeprefix(prefix): x for name, x in results["final"].items() if name.startswith(prefix)}
        rows.append(row | {name: value for name, value in found.items() if name != "tokens"})
    results["languages"] = rows


def _find(text: str, where: str, config: PretrainConfig) -> dict[str, list[str]]:
    """The files of each language or, of a config without languages, {"": files}; {} if `text` is empty."""
    if not text:
        return {}
    named = named_corpora(text, where) if config.data.languages else {"": text}
    return {name: find_corpus(patterns) for name, patterns in named.items()}


def _contents(files: Mapping[str, Sequence[str]]) -> Json:
    """Identifies a corpus in run.json."""
    contents: Json = {name: corpus_identity(own) for name, own in files.items()}
    return contents.get("", contents)


def _check_unchanged(files: Mapping[str, Sequence[str]], before: Json) -> None:
    """As `check_unchanged`, for files and `_contents` of them."""
    for name, own in files.items():
        check_unchanged(own, before[name] if name else before)


def _model_config(config: PretrainConfig, tokenizer: BaseTokenizer, longest: int, source: str) -> BertConfig:
    """The model's config, checked against the vocabulary of `source` and sequences of up to `longest` tokens."""
    model = dataclasses.replace(config.model, vocab_size=config.model.vocab_size or tokenizer.vocab_size).check()
    if model.vocab_size != tokenizer.vocab_size:
        raise ConfigError(
            f"model.vocab_size is {model.vocab_size}, but {source} has "
            f"{tokenizer.vocab_size} pieces; set model.vocab_size=0 to use the vocabulary's size"
        )
    if model.embedding_size > model.hidden_size:  # which only generators of ELECTRA have: the table of a larger model
        raise ConfigError(
            f"model.embedding_size {model.embedding_size} is over model.hidden_size {model.hidden_size}; lower it, or "
            "set it to 0 for embeddings without projection"
        )
    if longest > model.max_position_embeddings:
        raise ConfigError(
            f"data.max_length {longest} is over model.max_position_embeddings {model.max_position_embeddings}; "
            "lower the former or raise the latter"
        )
    if (model.attention == "causal") != (config.data.masking == "causal_lm"):
        raise ConfigError(
            f"model.attention is {model.attention!r} and data.masking {config.data.masking!r}; 'causal' goes with "
            "'causal_lm', any other masking with 'bidirectional'"
        )
    # Without a label nothing would train the pooler: fine-tuning adds a new one.
    return dataclasses.replace(model, pooler=False) if config.data.pairs == "none" else model


def _row_flops(model_config: BertConfig, corpus: Corpus, data: PretrainingData) -> Callable[[float], float]:
    """The `row_flops` of a phase's `Input`."""
    # In packed rows including the unused slots (`packed_rows.join_rows`).
    pairs = most_pairs(data.max_length, corpus.tokenizer.specials(pairs=True)) if data.pack else 1
    pooled = 0 if data.pairs == "none" else pairs
    return functools.partial(pretraining_flops, config=model_config, data=data, pooled=pooled)


def _training_input(corpus: Corpus, batch_size: int, seed: int, row_flops: Callable[[float], float]) -> Input:
    """The training data of a phase."""
    data = corpus.data

    def make(epoch: tf.Tensor | int, shard: tuple[int, int] | None = None) -> tf.data.Dataset:
        return pretraining_dataset(corpus, seed=seed, epoch=epoch, batch_size=batch_size, shard=shard)

    epoch_batches = through_service(make, data.service, data.service_workers) if data.service else make
    source = Input(epoch_batches, length=data.max_length, row_flops=row_flops)
    return source._replace(prepare=Masker(data, corpus.tokenizer).in_step()) if data.mask_on == "device" else source


def _validation_batches(corpus: Corpus, languages: Sequence[str], batch_size: int, seed: int) -> tf.data.Dataset:
    """Validation batches of each language, the same pairs and masks at every evaluation.

    Args:
        languages: of the training text, which number those of the corpus.
    """

    def of(part: Corpus) -> tf.data.Dataset:
        # Numbered as in training.
        part = part._replace(languages=tuple(one._replace(number=languages.index(one.name)) for one in part.languages))
        batches = pretraining_dataset(part, seed=seed, epoch=-1, batch_size=batch_size, drop_remainder=False)
        return batches.take(max(1, _VALIDATION_PAIRS // batch_size))

    return functools.reduce(tf.data.Dataset.concatenate, map(of, corpus.parts())).cache()
