"""The files of predictions that the official scripts of question answering read."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from bert_tf.inputs.datasets.examples import QuestionExample
from bert_tf.types import Json


def write_official(path: str, predicted: Iterable[tuple[QuestionExample, Json]], *, unanswerable: bool) -> None:
    """Writes the file that the official script scores: an object from each id to its answer.

    With `unanswerable`, it also writes, beside NAME.json, NAME.nbest.json with the best answers to each question and
    their probabilities, and NAME.null_odds.json for the script's --na-prob-file.
    """
    stem = os.path.splitext(path)[0]
    files: dict[str, Callable[[Json], Any]] = {path: lambda prediction: prediction["answer"]}
    if unanswerable:
        files[f"{stem}.nbest.json"] = lambda prediction: prediction["nbest"]
        files[f"{stem}.null_odds.json"] = lambda prediction: prediction["null_odds"]
    with contextlib.ExitStack() as stack:
        opened = [(stack.enter_context(open(file, "w", encoding="utf-8")), part) for file, part in files.items()]
        for file, _ in opened:
            file.write("{")
        for number, (_, prediction) in enumerate(predicted):
            for file, part in opened:
                pair = (json.dumps(value, ensure_ascii=False) for value in (prediction["id"], part(prediction)))
                file.write((",\n" if number else "\n") + ": ".join(pair))
        for file, _ in opened:
            file.write("\n}\n")
