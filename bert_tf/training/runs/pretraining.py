"""Pre-training, from a config to a model directory."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Unpack

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
from bert_tf.inputs.corpus.shards import are_shards
from bert_tf.inputs.identity import tokenizer_identity
from bert_tf.inputs.masking import Masker
from bert_tf.model import flash
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.mode import computing, current
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.tasks.replaced_tokens import Electra
from bert_tf.tasks.span_boundary import SpanBoundary
from bert_tf.tasks.task import Task
from bert_tf.text import BaseTokenizer, open_tokenizer
from bert_tf.text.subwords import check_in_graph
from bert_tf.training.evaluation import evaluator
from bert_tf.training.phases import Input, split
from bert_tf.training.runs import dry_run
from bert_tf.training.runs.run import Place, PlaceOptions, Run, expect
from bert_tf.training.speed import peak_flops, pretraining_flops
from bert_tf.training.strategy import is_chief, parallel_parts
from bert_tf.types import Json, Metrics, Tensors

# Pairs of validation text per evaluation during pre-training; always the same ones.
_VALIDATION_PAIRS = 1024


class PretrainingRun(Run):
    """Pre-trains from raw text or prepared shards.

    Args:
        config: of the run.
        place: where it trains.
        files: further paths, to be recorded.
    """

    program = "pretrain"

    def __init__(self, config: PretrainConfig, place: Place, **files: str) -> None:
        expect(config, PretrainConfig)
        config.check()
        self.config = config
        self._check()
        # Raises errors before the corpus is read.
        self._parts = split(config.train, config.train.steps, place.strategy.num_replicas_in_sync)
        self._files = self._find(config.data.languages or config.input, "data.languages")
        validation_files = self._find(config.validation, "validation")
        self.tokenizer = self.open_tokenizer()
        # Data settings and batch size of each phase.
        self._phases = [
            (config.data.in_phase(phase), config.train.in_phase(phase).batch_size) for phase in config.train.phases
        ] or [(config.data, config.train.batch_size)]
        self.longest = max(data.max_length for data, _ in self._phases)
        self.model_config = _model_config(config, self.tokenizer, self.longest, self.vocabulary)
        self.check_model()
        if config.data.service and not are_shards([*itertools.chain(*self._files.values())]):
            check_in_graph(self.tokenizer, "data.service, on other machines and without prepared shards,")
        self._corpus, warnings = checked_corpus(self._files, self.tokenizer, self._phases[0][0])
        self._validation = (
            checked_corpus(validation_files, self.tokenizer, config.data)[0] if validation_files else None
        )
        for name, warning in warnings if is_chief(place.strategy) else ():
            print(f"{name or config.input}: {warning}")
        identity = {
            "input": _contents(self._files),
            "tokenizer": tokenizer_identity(self.tokenizer)["fingerprint"],
        }
        if validation_files:
            identity["validation"] = _contents(validation_files)
        super().__init__(
            config,
            place,
            identity,
            files,
            few_shapes=config.data.length_multiple is None,
            # Its kernels are made for one length.
            unsuited=None if config.data.length_multiple else self._unsuited,
        )
        self.choose_rate(PRETRAINING_RATE, self.model_config.hidden_size)
        self._read_from = config.data.languages or config.input
        self.total_steps, self.evaluate_every = config.train.steps, config.train.evaluate_every
        self.languages = [language.name for language in self._corpus.languages]
        self.task = self.make_task()
        self.inputs = [self._input(data, batch_size) for data, batch_size in self._phases]

    def _unsuited(self, dtype: str) -> str:
        packed = [data.max_length for data, _ in self._phases if data.shares_rows]
        return flash.unsuited(self.model_config, dtype, packed=packed)

    def _check(self) -> None:
        """Raises ConfigError for settings that cannot be trained."""
        config = self.config
        if not (config.input or config.data.languages):
            raise ConfigError("input is empty; name the text to train on, e.g. --config.input='corpus/*.txt.gz'")
        if not config.train.steps:
            raise ConfigError("train.steps is 0; set the number of updates, e.g. --config.train.steps=100000")
        if config.train.seeds != 1:
            raise ConfigError(
                f"train.seeds is {config.train.seeds}, but only fine-tuning takes the best of several runs; set it to 1"
            )
        self.check_objective(config.data.objective)
        if config.train.quantization != "none":
            raise ConfigError(
                f"train.quantization is {config.train.quantization!r}, but only fine-tuning learns to make up for an "
                "export's rounding; set it to 'none'"
            )

    def check_objective(self, objective: str) -> None:
        """Raises ConfigError for an objective of another kind of run."""
        if objective in OBJECTIVES:
            raise ConfigError(
                f"data.objective is {objective!r}, which needs a teacher: python -m bert_tf.distill "
                "--teacher=DIR, with the same config"
            )

    def open_tokenizer(self) -> BaseTokenizer:
        """The tokenizer of the model."""
        return open_tokenizer(self.config.tokenizer.vocab, self.config.tokenizer)

    @property
    def vocabulary(self) -> str:
        """Where the tokenizer comes from, for messages."""
        return self.config.tokenizer.vocab

    def check_model(self) -> None:
        """Raises ConfigError for an architecture that this run cannot train."""

    def make_task(self) -> Task:
        """The task of the objective."""
        most = max(data.max_predictions for data, _ in self._phases)
        return pretraining_task(self.config.data, self.tokenizer, self.longest, most, self.languages)

    def row_flops(self, data: PretrainingData) -> Callable[[float], float]:
        """The `row_flops` of the `Input` of a phase."""
        # In packed rows including the unused slots (`packed_rows.join_rows`).
        pairs = most_pairs(data.max_length, self.tokenizer.specials(pairs=True)) if data.pack else 1
        pooled = 0 if data.pairs == "none" else pairs
        return functools.partial(pretraining_flops, config=self.model_config, data=data, pooled=pooled)

    def build_encoder(self) -> BertEncoder:
        return BertEncoder(self.model_config, dtype=self.dtype, packed=self.config.data.shares_rows)

    def evaluations(self, model: keras.Model) -> Sequence[Callable[[], Metrics] | None]:
        if not self._validation:
            return [None] * len(self._phases)
        return [
            functools.partial(_computing, phase.rotary_base, self._evaluator(model, data.of_validation(), batch_size))
            for (data, batch_size), phase in zip(self._phases, self._parts, strict=True)
        ]

    def _evaluator(self, model: keras.Model, data: PretrainingData, batch_size: int) -> Callable[[], Metrics]:
        """Evaluates the model on validation text."""
        assert self._validation
        corpus = self._validation._replace(data=data)
        batches = _validation_batches(corpus, self.languages, batch_size, self.train.seed)
        return evaluator(self.task.objective, model, batches, self.strategy, self._prepare(data))

    def _prepare(self, data: PretrainingData) -> Callable[[Tensors], Tensors]:
        """The `prepare` of an `Input` of such batches."""
        return Masker(data, self.tokenizer).in_step() if data.mask_on == "device" else lambda features: features

    def run(self) -> Json:
        with reading(self._read_from):
            return super().run()

    def finish(self, results: Json) -> None:
        if self._corpus.languages:
            results["languages"] = _by_language(self._corpus.languages, results)

    def dry_run(self) -> Json:
        """Trains a few updates to measure their cost; writes nothing.

        Returns:
            "parameters", from `dry_run.parameters`; "memory", bytes of one replica by use; "phases", a list of dicts:
            steps, batch_size, length, rows of an epoch and rows_from (how they were counted), flops and seconds of an
            update and of_peak (MFU); "examples", from `dry_run.examples`; "seconds", the time of all updates; and of
            several languages "languages", from `dry_run.languages_read`.
        """
        with reading(self._read_from):
            epochs = [dry_run.rows_per_epoch(self._corpus, source.batches(0)) for source in self.inputs]
            plan = self._plan(epochs)
            if self.languages:
                rows = [(part.end - part.first) * part.config.batch_size for part in self._parts]
                read = sum(count / whole for count, (whole, _) in zip(rows, epochs, strict=True))
                plan["languages"] = dry_run.languages_read(self._corpus.languages, read)
            return plan

    def _plan(self, epochs: Sequence[tuple[int, str]]) -> Json:
        """The result of `dry_run` without languages; `epochs` are from `rows_per_epoch`, one per phase."""
        before = dry_run.peak_bytes()
        trainer, _ = self.trainer()
        model, works = trainer.model, trainer.work(self.inputs)
        costs, kept = [], []
        for number, (work, source) in enumerate(zip(works, self.inputs, strict=True)):
            seconds, length = trainer.benchmark(number, source, dry_run.STEPS)
            costs.append((work, seconds, work.flops(length) / seconds))
        grown = dry_run.peak_bytes() - before
        most = peak_flops(self.strategy, self.dtype)
        objective, remat = self.task.objective, self.train.remat
        firsts = [next(iter(source.batches(0))) for source in self.inputs]
        for work, source, phase, first in zip(works, self.inputs, trainer.phases, firsts, strict=True):
            rows = work.batch_size // self.strategy.num_replicas_in_sync // phase.config.accumulation
            microbatch = {name: value[:rows] for name, value in first.items()}
            kept.append(dry_run.kept_bytes(objective, model, source.prepare(microbatch), remat=remat))
        size = 4 * model.count_params()
        parts = parallel_parts(self.strategy)
        gradients = size if parts == 1 else (parts + 1) * size  # those of each part, and their sum
        memory = {"weights": size, "gradients": gradients, "moments": 2 * size, "kept for the backward pass": max(kept)}
        if objective.teacher_size:
            memory["weights of the teacher"] = 4 * objective.teacher_size
        memory |= {"total": sum(memory.values()), "measured in training": grown}
        masked, swapped = self.inputs[0].prepare(firsts[0]), self.config.data.pairs == "sop"
        examples = dry_run.examples(firsts[0], masked, self.tokenizer, swapped=swapped)
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

    def _find(self, text: str, where: str) -> dict[str, list[str]]:
        """The files of each language or, of a config without languages, {"": files}; {} if `text` is empty."""
        if not text:
            return {}
        named = named_corpora(text, where) if self.config.data.languages else {"": text}
        return {name: find_corpus(patterns) for name, patterns in named.items()}

    def _input(self, data: PretrainingData, batch_size: int) -> Input:
        """The training data of a phase."""
        corpus, seed = self._corpus._replace(data=data), self.train.seed
        contents = self.record["inputs"]["input"]

        def make(epoch: tf.Tensor | int, shard: tuple[int, int] | None = None) -> tf.data.Dataset:
            return pretraining_dataset(corpus, seed=seed, epoch=epoch, batch_size=batch_size, shard=shard)

        return Input(
            through_service(make, data.service, data.service_workers) if data.service else make,
            length=data.max_length,
            row_flops=self.row_flops(data),
            check=functools.partial(_check_unchanged, self._files, contents),
            prepare=self._prepare(data),
        )


def pretrain(
    config: PretrainConfig,
    model_dir: str,
    strategy: tf.distribute.Strategy,
    *,
    dry_run: bool = False,
    **how: Unpack[PlaceOptions],
) -> Json:
    """Pre-trains a model.

    Args:
        config: of the run.
        model_dir, strategy, how: fields of `Place`.
        dry_run: trains a few updates to measure their cost and writes nothing.

    Returns:
        The contents of results.json; for a dry run, the result of `PretrainingRun.dry_run`.
    """
    run = PretrainingRun(config, Place(model_dir, strategy, **how))
    return run.dry_run() if dry_run else run.run()


def pretraining_task(
    data: PretrainingData, tokenizer: BaseTokenizer, max_length: int, max_predictions: int, languages: Sequence[str]
) -> Task:
    """The task of the configured objective; the limits are the largest of all phases."""
    if data.objective == "electra":
        return Electra(tokenizer, max_length, languages, generator_size=data.generator_size)
    if data.objective == "span_boundary":
        return SpanBoundary(tokenizer, max_length, languages, longest=max_predictions)
    return (MaskedLM if data.pairs == "none" else Pretraining)(tokenizer, max_length, languages)


def _computing(rotary_base: float | None, evaluate: Callable[[], Metrics]) -> Metrics:
    """Evaluates in a phase with this rotary base."""
    with computing(dataclasses.replace(current(), rotary_base=rotary_base)):
        return evaluate()


def _by_language(languages: Sequence[Language], results: Json) -> list[Json]:
    """ "languages" of results.json: each one's shares, the tokens that were read, and its part of "final"."""
    rows = []
    for one in languages:
        prefix = f"{one.name}/"
        counts = [point[f"{prefix}tokens"] for point in results["history"]]
        row: Json = {"language": one.name, "text_share": one.text_share, "share": one.share}
        row["tokens"] = round(sum(count for count in counts if math.isfinite(count)))  # NaN if updates were skipped
        found = {name.removeprefix(prefix): x for name, x in results["final"].items() if name.startswith(prefix)}
        rows.append(row | {name: value for name, value in found.items() if name != "tokens"})
    return rows


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
