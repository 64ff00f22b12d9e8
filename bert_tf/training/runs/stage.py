"""Stages of programs that train several times: what is done already is not done again."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence

from bert_tf.checkpoints.run_files import read_results
from bert_tf.errors import DataError
from bert_tf.files import nan_for_null
from bert_tf.training.tf_internals import forgetting_custom_gradients
from bert_tf.types import Json

# The purely numeric parts of results.json, where null stands for nan.
_NUMERIC = ("history", "evaluations", "final", "baseline")


def stage(folder: str, needed: Sequence[str], make: Callable[[], Json]) -> Json:
    """The results of a stage, which is made in a session of its own unless it is done.

    Args:
        folder: of the stage, with results.json when it is done.
        needed: keys of it. Without any, `make` is always called: a run knows itself whether it has finished, and
            whether its settings are the same.
        make: does the stage, writes results.json and returns its contents.
    """
    results = results_of(folder, *needed) if needed else {}
    if not results:
        with isolated_session():
            results = make()
    return results


@contextlib.contextmanager
def isolated_session() -> Iterator[None]:
    """Frees models and graphs built inside, which would otherwise stay in memory until the process ends."""
    # Without keras.backend.clear_session: it clears TensorFlow's kernels, too, which can take minutes.
    try:
        with forgetting_custom_gradients():
            yield
    finally:
        gc.collect()


def results_of(folder: str, *needed: str) -> Json:
    """The results.json of a finished run; {} if the run has not finished, or the file is damaged or lacks a key."""
    try:
        results = read_results(folder)
    except DataError:
        return {}
    if not {*needed} <= results.keys():
        return {}
    return results | {name: nan_for_null(results[name]) for name in _NUMERIC if name in results}
