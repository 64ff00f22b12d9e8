"""The zip file for GLUE's leaderboard, with one table per test set (gluebenchmark.com/faq)."""

import functools
import os
import zipfile
from collections.abc import Iterable

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Scale, TextExample
from bert_tf.inputs.datasets.formats import GLUE
from bert_tf.metrics.glue import GLUE_SETS, check_submission, sets_of
from bert_tf.types import Json, Writer


def submission_writers(metrics: str) -> dict[str, Writer]:
    """The writer of .zip for a task of GLUE; none for other data.

    Args:
        metrics: as for `tasks.benchmark.Benchmark`.
    """
    family, _, task = metrics.partition("/")
    return {".zip": functools.partial(write_submission, task)} if family == "glue" else {}


def write_submission(task: str, path: str, predicted: Iterable[tuple[TextExample, Json]]) -> str:
    """Writes the file of one test set into a submission, replacing a previous one; other files stay.

    For MNLI, the number of rows tells the matched, mismatched and AX test sets apart.

    Args:
        task: a key of `inputs.datasets.formats.GLUE`.
        path: zip file, which may exist; an empty file counts as a new one.
        predicted: the whole test set as (example, prediction) pairs; the example's id is its index in the set.

    Returns:
        A line that lists the files that the zip still lacks.
    """
    is_scale = isinstance(GLUE[task].labels, Scale)
    answers: dict[int, str | float] = {}
    for example, prediction in predicted:
        if not example.id.isdecimal():
            raise DataError(
                f"{example.location}: the index is {example.id!r}; expected a number, as in GLUE's test files"
            )
        answers[int(example.id)] = prediction["value" if is_scale else "label"]
    sets = {GLUE_SETS[name].test_rows: name for name in sets_of(task)}
    if len(answers) not in sets:
        expected = ", ".join(f"{rows} ({GLUE_SETS[name].file})" for rows, name in sets.items())
        raise DataError(f"{len(answers)} predictions; a submission has {expected}: predict the whole test set")
    name = sets[len(answers)]
    check_submission(name, list(answers.values()))
    lines = [f"{index}\t{value:.3f}" if is_scale else f"{index}\t{value}" for index, value in sorted(answers.items())]
    written = f"{GLUE_SETS[name].file}.tsv"
    files = _files(path) | {written: "\n".join(["index\tprediction", *lines, ""]).encode()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in sorted(files.items()):
            archive.writestr(file, content)
    missing = [f"{one.file}.tsv" for one in GLUE_SETS.values() if f"{one.file}.tsv" not in files]
    return f"{written} written, the zip " + (f"lacks {', '.join(missing)}" if missing else "is complete")


def _files(path: str) -> dict[str, bytes]:
    """The files in a zip: name -> content."""
    if not (os.path.exists(path) and os.path.getsize(path)):
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise DataError(f"the file to add to is not a zip ({error}); choose another name for --output") from None
