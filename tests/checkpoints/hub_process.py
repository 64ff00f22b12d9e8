"""Processes that download models, each with the environment that huggingface_hub reads once, when it is imported.

They are forked from one that has loaded TensorFlow and this package, which takes seconds.
"""

import contextlib
import logging
import multiprocessing
import os

from absl import logging as absl_logging

from bert_tf.checkpoints import formats, hub
from bert_tf.errors import BertTfError

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


@contextlib.contextmanager
def asking(cache, **environment):
    """A function from a name to the answer of a process with this cache."""
    own = {"HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"} | environment
    ours, theirs = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=_serve, args=(theirs, own), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is an error here

    def ask(name, allow_pickle=False, opened=False):
        ours.send((name, allow_pickle, opened))
        return ours.recv()

    with ours:
        yield ask
    process.join()


def _serve(connection, environment):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # progress bars
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        del os.environ[name]
    os.environ.update(environment)
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    absl_logging.get_absl_logger().addHandler(handler)
    with contextlib.suppress(EOFError):
        while True:
            lines.clear()
            connection.send(_answer(*connection.recv()) | {"log": lines})


def _answer(name, allow_pickle, opened):
    try:
        if not opened:
            return {"path": hub.fetch(name, allow_pickle)}
        tensors = formats.open_checkpoint(name, allow_pickle=allow_pickle).tensors
        return {"first": tensors["embeddings/norm/gamma"].read().tolist()}
    except BertTfError as error:
        return {"error": f"{type(error).__name__}: {error}"}
