"""What comes with the project, ready to use: its configs, and a vocabulary of its English text."""

import gzip
import runpy

from bert_tf.files import bundled
from bert_tf.text import learn_vocabulary, write_vocabulary

_PIECES = 5000


def config(name):
    """The config of a file of configs/, such as "pretrain/tiny.py"."""
    return runpy.run_path(bundled(f"configs/{name}"))["get_config"]()


def write_english_vocabulary(path):
    """Learns a vocabulary from the bundled State of the Union addresses and writes it to `path`; how many pieces."""
    with gzip.open(bundled("data/sotu/train.txt.gz"), "rt", encoding="utf-8") as file:
        pieces = learn_vocabulary(file, _PIECES)
    write_vocabulary(path, pieces)
    return len(pieces)
