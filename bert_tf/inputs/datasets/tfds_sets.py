"""Reader of TensorFlow Datasets (TFDS), which yields the same examples as the readers of files.

TFDS downloads and stores the data sets in TFDS_DATA_DIR. It shuffles examples into a fixed order of its own, so `id`
is the number given by the data set itself, if there is one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets import text_files
from bert_tf.inputs.datasets.copa import COPA_QUESTIONS
from bert_tf.inputs.datasets.examples import (
    ChoiceExample,
    Labels,
    QuestionExample,
    ReadReport,
    Scale,
    TaggedExample,
    TextExample,
    tagged,
)
from bert_tf.inputs.datasets.formats import GLUE
from bert_tf.inputs.datasets.squad import answers_of, with_placed_answers

# Text features that are named otherwise than the columns of GLUE's files.
_GLUE_TEXTS = dict.fromkeys(("mnli", "ax"), ("premise", "hypothesis")) | {"mrpc": ("sentence1", "sentence2")}
# TFDS also has the two halves of MNLI as separate sets.
_GLUE_ALIASES = {"mnli_matched": "mnli", "mnli_mismatched": "mnli"}


def glue_of_tfds(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Maps a TFDS name such as "glue/mrpc" to its key in `formats.GLUE` and its text features; None if not GLUE."""
    family, _, task = name.partition("/")
    if family != "glue":
        return None
    task = _GLUE_ALIASES.get(task, task)
    if task not in GLUE:
        raise ConfigError(f'unknown GLUE task "{task}"; expected one of {", ".join(GLUE)}')
    return task, _GLUE_TEXTS.get(task, GLUE[task].layouts[0].texts)


def tfds_splits(name: str) -> tuple[str, str, str]:
    """Returns the default splits for training, validation and test."""
    halves = {"glue/mnli": ("train", "validation_matched", "test_matched"), "glue/ax": ("test", "test", "test")}
    return halves.get(name, ("train", "validation", "test"))


def tfds_labels(name: str, label: str = "label") -> Labels | None:
    """Returns the classes of a data set, in the order of its class numbers, or a Scale.

    GLUE's classes are written as on the leaderboard. None for labels that are numbers or text: only the examples
    have them.

    Args:
        name: in TFDS, such as "glue/mrpc" or "imdb_reviews".
        label: the label feature, not used for GLUE.
    """
    task = glue_of_tfds(name)
    return GLUE[task[0]].labels if task else _classes(name, label)


def read_tfds_texts(
    name: str, split: str, texts: tuple[str, ...] = ("text",), label: str = "label"
) -> Iterator[TextExample]:
    """Reads labelled texts or pairs.

    Args:
        name: in TFDS; for "glue/..." `texts` and `label` are not used.
        split: in TFDS, such as "train", "validation" or "validation_matched".
        texts: names of the one or two text features.
        label: name of the label feature: a class (negative for no label), a number or a text; or, for several labels,
            a list of these.
    """
    task = glue_of_tfds(name)
    texts, label = (task[1], "label") if task else (texts, label)
    labels = tfds_labels(name, label)
    names = () if isinstance(labels, Scale) else labels

    def named(value: Any) -> str | None:
        return str(value) if not names else names[value] if value >= 0 else None

    for identity, row, location in _rows(name, split, *texts, label):
        value = row[label]
        if isinstance(labels, Scale):
            value = round(value, 3) if value >= labels.low else None
        else:
            value = tuple(map(named, value)) if isinstance(value, list) else named(value)
        yield TextExample(identity, tuple(_text(row[text], location) for text in texts), value, location)


def read_tfds_tags(name: str, split: str, column: str) -> Iterator[TaggedExample]:
    """Reads tagged sentences, such as "conll2003" and "universal_dependencies/en_ewt".

    TFDS does not keep document boundaries, so `document` is None. The words of universal_dependencies do not include
    multiword tokens.

    Args:
        name: in TFDS.
        split: in TFDS.
        column: the tag feature, such as "ner", "pos", "chunks", "upos" or "xpos".
    """
    names = getattr(getattr(_builder(name, column).info.features[column], "feature", None), "names", None)
    for identity, row, location in _rows(name, split, "tokens", column):
        words = [_text(word, location) for word in row["tokens"]]
        tags = [names[tag] if names else _text(tag, location) for tag in row[column]]
        if len(words) != len(tags):
            raise DataError(f"{location}: {len(words)} words and {len(tags)} tags; expected one {column} per word")
        yield tagged(identity, words, tags, None, location)


def read_tfds_questions(
    name: str, split: str, read_report: ReadReport, *, unanswerable: bool = False
) -> Iterator[QuestionExample]:
    """Reads questions about texts, such as "squad/v1.1" and "squad/v2.0", with the code of `squad`.

    Args:
        name: in TFDS.
        split: in TFDS.
        read_report: counts answers that were moved or have no offset.
        unanswerable: whether questions may have no answer, as in SQuAD 2.0.
    """
    features = _builder(name, "question", "context", "answers").info.features
    identities = [feature for feature in ("id", "guid") if feature in features]
    seen = text_files.Seen()
    rows = _rows(name, split, *identities, "question", "context", "answers")
    for count, (number, row, location) in enumerate(rows):
        own = text_files.own_id(row) if identities else number
        own = text_files.identity(own, count, seen, location)
        location = f"{location} ({own})"
        answers = answers_of(row, location, unanswerable)
        question, context = (_text(row[feature], location) for feature in ("question", "context"))
        yield with_placed_answers(QuestionExample(own, question, context, answers, location), read_report)


def read_tfds_choices(name: str, split: str) -> Iterator[ChoiceExample]:
    """Reads multiple choice: "super_glue/copa", or a set with the features context, endings, label ("hellaswag")."""
    is_copa = name.startswith("super_glue/copa")
    features = ("premise", "question", "choice1", "choice2") if is_copa else ("context", "endings")
    for identity, row, location in _rows(name, split, *features, "label"):
        if is_copa:
            context, asked, *choices = (_text(row[feature], location) for feature in features)
            if asked not in COPA_QUESTIONS:
                raise DataError(f"{location}: the question is {asked!r}; expected {' or '.join(COPA_QUESTIONS)}")
            question = COPA_QUESTIONS[asked]
        else:
            context, question, choices = _text(row["context"], location), "", row["endings"]
        label = row["label"] if row["label"] >= 0 else None
        if label is not None and label >= len(choices):
            raise DataError(f"{location}: label {label}; expected the index of one of {len(choices)} choices")
        yield ChoiceExample(identity, context, question, tuple(choices), label, location)


def _builder(name: str, *features: str) -> Any:
    """The TFDS builder of a data set; checks that it has these features."""
    try:
        import tensorflow_datasets as tfds  # optional, and slow to import
    except ModuleNotFoundError:
        raise ConfigError(f"tfds:{name}: TFDS is not installed; pip install 'bert_tf[tfds]'") from None
    try:
        builder = tfds.builder(name)
    except ValueError as error:
        # The first line is the reason; a list of all data sets follows.
        raise ConfigError(f"tfds:{name}: {_first_line(error)}; see tensorflow.org/datasets/catalog") from None
    for feature in features:
        if feature not in builder.info.features:
            known = ", ".join(builder.info.features)
            raise ConfigError(f"tfds:{name}: no feature {feature!r}; the data set has {known}")
    return builder


def _rows(name: str, split: str, *features: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields (id of the data set or number, values of the features, location) of each example."""
    builder = _builder(name, *features)
    from tensorflow_datasets.core.download.util import DownloadError

    try:
        builder.download_and_prepare()
    except ModuleNotFoundError as error:
        # TFDS imports some packages only when a data set needs them, and does not require them all.
        raise ConfigError(f"tfds:{name}: TFDS needs the package {error.name}; pip install {error.name}") from None
    except (OSError, DownloadError) as error:
        raise DataError(
            f"tfds:{name}: cannot be downloaded ({_first_line(error)}); check the network or the disk"
        ) from None
    try:
        rows = builder.as_dataset(split=split)
    except ValueError as error:
        raise ConfigError(f'tfds:{name}: no split "{split}" ({_first_line(error)})') from None
    for number, row in enumerate(rows.as_numpy_iterator()):
        location = f"tfds:{name}: {split}[{number}]"
        values = {feature: _python(row[feature], location) for feature in features}
        yield str(_python(row.get("idx", np.int64(number)), location)), values, location


def _classes(name: str, label: str) -> tuple[str, ...] | None:
    """Names of the classes of a feature or of a list's elements; None for text and numbers."""
    feature = _builder(name, label).info.features[label]
    spec = feature.get_tensor_spec()
    if isinstance(spec, dict) or spec.shape.rank > 1:
        raise ConfigError(
            f"tfds:{name}: the feature {label!r} is neither a class, a number or a text, nor a list of these; choose "
            "another as the label"
        )
    names = getattr(feature, "names", None)
    return names and tuple(names)


def _python(value: Any, location: str) -> Any:
    """A value of TFDS as text, a number, or a list or dict of these."""
    if isinstance(value, dict):
        return {name: _python(part, location) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return [_python(element, location) for element in value]
    if isinstance(value, np.floating):
        return float(str(value))  # TFDS stores scores as float32: 3.8 would become 3.799999952316284
    if not isinstance(value, bytes):
        return value.item()
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{location}: byte 0x{value[error.start]:02x} is not UTF-8; prepare the data set again"
        ) from None


def _text(value: Any, location: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{location}: {value} is not text; choose another feature")
    return value


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
