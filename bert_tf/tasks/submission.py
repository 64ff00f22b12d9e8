"""The zip that GLUE's leaderboard takes: a table a set (gluebenchmark.com/faq), one more with every prediction."""

import os
import zipfile

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.glue import GLUE
from bert_tf.inputs.datasets.labelled import Scale
from bert_tf.metrics.glue import GLUE_SETS, check_submission, sets_of


def write_submission(task, path, predicted):
    """Puts the file of one set into a submission, in the place of the one it may have; other files stay.

    Which of the three sets it is that a model of MNLI answered, the number of rows says where the data is called MNLI:
    they differ.

    Args:
        task: a key of `inputs.datasets.glue.GLUE`.
        path: a zip that may exist; an empty file is none.
        predicted: iterable of (example, prediction), all of the test set; the example's id is the set's index.

    Returns:
        A line that says which files the zip has yet to get.

    Raises:
        DataError: no submission by `check_submission`, an index that is no number, or the file is no zip.
    """
    is_scale = isinstance(GLUE[task].labels, Scale)
    answers = {}
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
    made = f"{GLUE_SETS[name].file}.tsv"
    files = _files(path) | {made: "\n".join(["index\tprediction", *lines, ""]).encode()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in sorted(files.items()):
            archive.writestr(file, content)
    missing = [f"{one.file}.tsv" for one in GLUE_SETS.values() if f"{one.file}.tsv" not in files]
    return f"{made} written, the zip " + (f"lacks {', '.join(missing)}" if missing else "is complete")


def _files(path):
    """dict name -> content of what is in a zip."""
    if not (os.path.exists(path) and os.path.getsize(path)):
        return {}
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise DataError(f"the file to add to is no zip ({error}); choose another name for --output") from None
