"""The steps of a compression: how each makes its model."""

import dataclasses
import glob
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypedDict

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import adapt, directory, static_model
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.student import check_smaller, copy_words
from bert_tf.config import (
    BertConfig,
    FinetuneConfig,
    PretrainConfig,
    PretrainingData,
    TaskDistillation,
    TokenizerConfig,
    TrainConfig,
)
from bert_tf.errors import UnsuitedError
from bert_tf.files import read_json, replacing, replacing_directory, write_json
from bert_tf.inference.embedder import open_embedder
from bert_tf.inference.static_vectors import SIZE, static_of
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.model.pruning import layer_weights
from bert_tf.tasks import FineTuningTask
from bert_tf.text import BaseTokenizer, Tokenizer, learn_vocabulary, write_vocabulary
from bert_tf.text.learning import read_lines
from bert_tf.training.reporter import SILENT, Reporter
from bert_tf.training.runs.pretraining import PretrainingRun
from bert_tf.training.runs.pruning import prune_model
from bert_tf.training.runs.run import Place
from bert_tf.training.runs.stage import isolated_session, stage
from bert_tf.training.runs.task_distillation import distill
from bert_tf.types import Json

_CHUNK = 4096  # examples at a time
_VOCABULARY = "vocabulary.json"  # in the model directory of `trimmed`
# The student that is pre-trained on the texts: the size of its vocabulary is that of Zhao et al., 2019,
# arXiv:1909.11687; 0.035 is 0.02 at 768 units in proportion to 1 / sqrt(width).
_PIECES = 5000
_STUDENT = BertConfig.from_name("mini", vocab_size=0, num_layers=3, initializer_range=0.035)
_PASSES, _LEAST_UPDATES = 15, 1000  # of its pre-training over the texts, in rows of up to so many tokens
_ROW_TOKENS, _UPDATE_TOKENS = 128, 4096


@dataclasses.dataclass(frozen=True)
class Job:
    """What the steps have in common.

    Attributes:
        model_dir: the fine-tuned model.
        data_dir: of the examples.
        task: of the model.
        source: of the examples.
        validation: the examples on which models are measured.
        strategy: for steps that train.
        texts: file with further examples, labelled or not; "" for none.
        reporter: for steps that train.
    """

    model_dir: str
    data_dir: str
    task: FineTuningTask
    source: Source
    validation: Sequence[Any]
    strategy: tf.distribute.Strategy
    texts: str = ""
    reporter: Reporter = SILENT

    def more(self) -> Iterable[Any]:
        """The further examples, without their labels."""
        if not self.texts:
            return iter(())
        return Source(self.task.data, self.texts, self.task.example).examples(ReadReport(), "test", labelled=False)

    def training_texts(self) -> Iterator[list[bytes]]:
        """The texts of each training example and each further one."""
        yield from self.texts_of(self.source.examples(ReadReport(), "train", labelled=False))
        yield from self.texts_of(self.more())

    def texts_of(self, examples: Iterable[Any]) -> Iterator[list[bytes]]:
        """The texts of each example, such as two of a pair, or its words."""
        codec = self.task.codec
        for chunk in codec.chunks(examples, _CHUNK):
            lists = codec.read_texts(codec.to_tensors(chunk, labelled=False))
            listed = [one.to_list() if isinstance(one, tf.RaggedTensor) else one.numpy().tolist() for one in lists]
            for row in zip(*listed, strict=True):
                yield tf.nest.flatten(row)


@dataclasses.dataclass(frozen=True)
class Step:
    """A way to a smaller model.

    Attributes:
        name: of its folder.
        title: for people.
        optimize: as for `export`.
        make: writes its model, from the job, the model directory from which it starts, and that of its model, which may
            be there, or a part of it, from a run that was killed; None for the model from which it starts. Returns what
            is to be said of the model, or "".
        is_start: whether later steps start from its model, unless it loses too much.
    """

    name: str
    title: str
    optimize: str = "int8"
    make: Callable[[Job, str, str], str] | None = None
    is_start: bool = False


def _trim(job: Job, start: str, path: str) -> str:
    """Keeps only the pieces of the training texts and all characters, and as many positions as inputs have."""
    if not os.path.exists(path):
        before = directory.read(start)
        checkpoint, report = adapt.trim_vocabulary(before, (text for texts in job.training_texts() for text in texts))
        report["validation"] = _changed(job, *(one.tokenizer_of_text(start) for one in (before, checkpoint)))
        longest = job.task.config.max_length
        if longest < checkpoint.config.max_position_embeddings:
            checkpoint = adapt.resize_positions(checkpoint, longest)
        with replacing_directory(path) as temporary:
            directory.save_checkpoint(dataclasses.replace(checkpoint, moments={}, step=None), temporary)
            write_json(os.path.join(temporary, _VOCABULARY), report)
    changed, examples = read_json(os.path.join(path, _VOCABULARY), _Trimmed)["validation"]
    return f"{changed:,} of {examples:,} validation examples ({changed / examples:.1%}) have other tokens than before"


class _Trimmed(TypedDict):
    validation: list[int]


def _changed(job: Job, *tokenizers: BaseTokenizer) -> list[int]:
    """How many of the validation examples two tokenizers split into other pieces, and the number of examples."""
    examples = list(job.texts_of(job.validation))
    flat = [text for texts in examples for text in texts]
    pieces = []
    for tokenizer in tokenizers:
        vocabulary = np.array(tokenizer.vocab)
        tokens = tokenizer.tokenize(flat)
        pieces.append(np.split(vocabulary[tokens.values.numpy()], tokens.row_splits.numpy()[1:-1]))
    differs = iter([not np.array_equal(*pair) for pair in zip(*pieces, strict=True)])
    return [sum(any([next(differs) for _ in texts]) for texts in examples), len(examples)]


def _prune(job: Job, start: str, path: str, share: float) -> str:
    """Removes a share of the layers' weights; nothing is trained."""
    if not os.path.exists(path):
        prune_model(start, path, lambda _: job.source, "train", share, job.strategy)
    return ""


def _prune_and_train(job: Job, start: str, path: str, share: float) -> str:
    """The pruned model as a student of the whole one."""
    pruned = os.path.join(os.path.dirname(path), "pruned")
    _prune(job, start, pruned, share)
    return _distil(job, start, path, TrainConfig(batch_size=32, epochs=3), init=pruned)


def _shrink(job: Job, start: str, path: str) -> str:
    """A new student of BERT-tiny's size; its layers are random, so it learns longer."""
    return _distil(job, start, path, TrainConfig(batch_size=32, epochs=10), size="tiny")


def _distil(job: Job, start: str, path: str, train: TrainConfig, size: str = "", init: str = "") -> str:
    settings = TaskDistillation(size=size, texts=os.path.abspath(job.texts) if job.texts else "")
    config = FinetuneConfig(task=job.task.config, data=job.task.data, distillation=settings, train=train)
    distill(config, job.data_dir, init, path, job.strategy, teacher=start, reporter=job.reporter)
    return ""


def _pretrain_and_distil(job: Job, start: str, path: str) -> str:
    """A student with a small vocabulary of its own, which reads the texts before its teacher teaches it the task."""
    if not job.texts:
        raise UnsuitedError("it learns its words from texts without labels; name a file of them with --texts")
    if job.task.codec.compared_by_token:
        raise UnsuitedError(
            f"the answers of {job.task.name} are about tokens, so it needs the vocabulary of its teacher"
        )
    folder = os.path.dirname(path)
    if "," in folder:
        raise UnsuitedError(f"{folder}: commas separate the files of a corpus; choose an --output_dir without one")
    teacher = directory.read(start)
    encoder = os.path.join(folder, "encoder")
    config, tokenizer, passes = _pretraining(job, teacher.tokenizer_of_text(start), folder)
    model = dataclasses.replace(config.model, vocab_size=tokenizer.vocab_size)
    check_smaller(model, teacher.config, start)
    train = TrainConfig(batch_size=64, epochs=5, learning_rate=3e-4)  # as in docs/small/index.md, for larger batches

    def run() -> _Student:
        return _Student(config, Place(encoder, job.strategy, reporter=job.reporter), teacher)

    def pretrain() -> Json:
        with isolated_session():
            seconds = run().dry_run()["seconds"]
        # An epoch of the distillation takes as long as a pass of the pre-training, or less: it predicts no words. The
        # teacher reads each text once, and forwards alone, which is a third of the work.
        read = train.epochs + layer_weights(teacher.config) / layer_weights(model) / 3
        first, second = math.ceil(seconds / 60), math.ceil(seconds * read / passes / 60)
        print(
            f"{os.path.basename(folder)}: the pre-training, on {job.texts} and the training texts, takes about "
            f"{first:,} minutes, and then the distillation about {second:,}; without --texts this step is left out",
            flush=True,
        )
        return run().run()

    stage(encoder, ("steps",), pretrain)
    return _distil(job, start, path, train, init=encoder)


class _Student(PretrainingRun):
    """Pre-trains a student that starts with the words of a teacher."""

    def __init__(self, config: PretrainConfig, place: Place, teacher: Checkpoint) -> None:
        super().__init__(config, place)
        self._teacher = teacher

    def initialize(self, model: keras.Model) -> None:
        copy_words(self._teacher, model, self.tokenizer)


def _pretraining(job: Job, theirs: BaseTokenizer, folder: str) -> tuple[PretrainConfig, BaseTokenizer, float]:
    """The pre-training of a student, its tokenizer, and how often it reads the texts.

    Writes its corpus and its vocabulary, unless they are there.

    Args:
        theirs: the tokenizer of the teacher.
        folder: for both.
    """
    corpus, vocabulary = os.path.join(folder, "texts.txt"), os.path.join(folder, "vocab.txt")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(corpus):
        with replacing(corpus) as temporary, open(temporary, "wb") as file:  # an empty line ends a document
            file.writelines(b" ".join(b" ".join(texts).split()) + b"\n\n" for texts in job.training_texts())
    # Of the kinds besides WordPiece, all tell apart cases and accents but ALBERT's. Not what belongs to the teacher's
    # own pieces, such as those that were added to them.
    settings: Json = {
        "lower_case": getattr(theirs, "lower_case", False),
        "strip_accents": theirs.strip_accents,
        "split_cjk": getattr(theirs, "split_cjk", True),
    }
    if not os.path.exists(vocabulary):
        write_vocabulary(vocabulary, learn_vocabulary(read_lines(corpus), _PIECES, **settings))
    tokenizer = Tokenizer(vocabulary, **settings)
    with open(corpus, "rb") as file:
        lines = iter(lambda: list(itertools.islice(file, _CHUNK)), [])
        tokens = sum(int(tokenizer.tokenize(chunk).row_splits[-1]) for chunk in lines)
    length = min(job.task.config.max_length, _ROW_TOKENS)
    rows = _UPDATE_TOKENS // length
    updates = max(_LEAST_UPDATES, math.ceil(_PASSES * tokens / (rows * length)))
    config = PretrainConfig(
        input=glob.escape(corpus),
        tokenizer=TokenizerConfig(vocab=vocabulary, **settings),
        model=dataclasses.replace(_STUDENT, max_position_embeddings=job.task.config.max_length),
        data=PretrainingData(
            max_length=length, max_predictions=max(1, length * 3 // 20), pairs="none", pack=True, group_size=70_000
        ),
        train=TrainConfig(batch_size=rows, steps=updates, learning_rate=1e-3),
    )
    return config, tokenizer, updates * rows * length / tokens


def _static(_: Job, start: str, path: str) -> str:
    """The vectors that a sentence encoder gives to single pieces."""
    if not os.path.exists(path):
        embedder = open_embedder(start)
        static = static_of(embedder, min(SIZE, embedder.size))
        with replacing_directory(path) as temporary:
            static_model.write(static, temporary)
    return ""


_CHEAP = (
    Step("original", "the model itself", "none"),
    Step("trimmed", "with the words and lengths that it needs", "none", _trim, is_start=True),
    Step("int8", "the same in 8 bits"),
)
# In the order of what they cost: seconds, a minute, the time of a training, more of it, and much of the accuracy.
STEPS: tuple[Step, ...] = (
    *_CHEAP,
    Step("pruned", "without a quarter of the layers' weights, in 8 bits", make=partial(_prune, share=0.25)),
    Step("half", "without half of them, distilled, in 8 bits", make=partial(_prune_and_train, share=0.5)),
    Step("quarter", "without three quarters, distilled, in 8 bits", make=partial(_prune_and_train, share=0.75)),
    Step(
        "pretrained",
        "3 layers of 256 units with 5,000 pieces, pre-trained on the texts, distilled, in 8 bits",
        make=_pretrain_and_distil,
    ),
    Step("tiny", "2 layers of 128 units, distilled, in 8 bits", make=_shrink),
)
STEPS_OF_ENCODERS: tuple[Step, ...] = (
    *_CHEAP,
    Step("static", "the vectors of single pieces, without layers", "none", _static),
)
