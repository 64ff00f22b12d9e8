"""Small models, runs and exports that tests share.

Each is made once for a state of the sources, by the process that needs it first, in a folder that all processes read
and none changes. A test that writes into one takes a copy.
"""

import fcntl
import functools
import hashlib
import os
import pathlib
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable

import keras
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.tasks.masked_lm import MaskedLM
from tests.learned import learned
from tests.model.small import FAMILY, MODERNBERT, PIECES, randomize, small_config

ROOT = pathlib.Path(__file__).parent.parent
LENGTH = 32  # of all models
VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz"), *"0123456789", "오늘", "영화", "##는"]
_KEPT = 24 * 3600  # seconds for which folders of other sources stay
# What decides on numbers beside the sources.
_ENVIRONMENT = ("ONEDNN_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS")


def encoder(vocab_size: int = 0, dtype: str | None = None, **config) -> bert_tf.BertEncoder:
    """An encoder of one layer, if `config` says nothing else, for texts of LENGTH tokens."""
    shape = {"vocab_size": vocab_size or len(VOCABULARY), "max_position_embeddings": LENGTH, "num_layers": 1}
    return bert_tf.BertEncoder(small_config(**shape | config), dtype=dtype)


@functools.cache
def folder(library: str = "") -> pathlib.Path:
    """Where everything of these sources lies, or what a `library` makes alone; others are removed after a day."""
    digest = hashlib.sha256((library or tf.__version__).encode())
    if not library:
        digest.update(repr([os.environ.get(name) for name in _ENVIRONMENT]).encode())
        for package in ("bert_tf", "tests"):
            for file in sorted((ROOT / package).rglob("*.py")):
                if not file.name.startswith("test_"):
                    digest.update(file.read_bytes())
    parent = pathlib.Path(tempfile.gettempdir()) / f"bert_tf-zoo-{os.getuid()}"
    parent.mkdir(exist_ok=True)
    for other in parent.iterdir():
        if other.name != digest.hexdigest() and time.time() - other.stat().st_mtime > _KEPT:
            shutil.rmtree(other, ignore_errors=True)
    path = parent / digest.hexdigest()
    path.mkdir(exist_ok=True)
    os.utime(path)
    return path


def made(name: str, make: Callable[[pathlib.Path], object], library: str = "") -> pathlib.Path:
    """The folder `name`, which `make` has filled, now or earlier; other processes wait for it.

    `make` is called with another path, of a new folder. What depends on no source, but on a library alone, gives the
    name and the version of that.
    """
    path = folder(library) / name.replace(" ", "_")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                new = pathlib.Path(scratch) / "new"
                new.mkdir()
                make(new)
                new.rename(path)
    return path


def kept(name: str, make: Callable[[], object], library: str = ""):
    """A value that can be pickled, which `make` returns, now or earlier."""
    path = made(name, lambda new: (new / "value.pickle").write_bytes(pickle.dumps(make())), library)
    return pickle.loads((path / "value.pickle").read_bytes())


def pretrained(kind: str = "wordpiece", member: str = "") -> str:
    """Folder of a masked language model of BERT, or of a member of the family, with a tokenizer of `learned.KINDS`."""

    def make(path: pathlib.Path) -> None:
        keras.utils.set_random_seed(0)
        tokenizer = bert_tf.Tokenizer(VOCABULARY) if kind == "wordpiece" else learned(kind).tokenizer
        shape = {"num_layers": 2} | (FAMILY | {"modernbert": MODERNBERT})[member] if member else {}
        task, own = MaskedLM(tokenizer, LENGTH), encoder(tokenizer.vocab_size, **shape)
        directory.save(str(path), randomize(task.build(own)), own, task)

    return str(made(f"pretrained/{kind}-{member or 'bert'}", make))
