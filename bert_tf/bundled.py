"""Resources that ship with the project: its configs, and a vocabulary learned from its English text."""

import gzip
import runpy
from typing import Any

from bert_tf.files import bundled

_VOCAB_SIZE = 5000


def config(name: str, *arguments: str) -> Any:
    """The PretrainConfig or FinetuneConfig of a file in configs/, such as "pretrain/tiny.py", and its argument."""
    return runpy.run_path(bundled(f"configs/{name}"))["get_config"](*arguments)


def write_english_vocabulary(path: str) -> int:
    """Learns a vocabulary from the bundled State of the Union addresses and writes it; returns its size."""
    from bert_tf.text import learn_vocabulary, write_vocabulary  # with TensorFlow, which configs must not import

    with gzip.open(bundled("data/sotu/train.txt.gz"), "rt", encoding="utf-8") as file:
        pieces = learn_vocabulary(file, _VOCAB_SIZE)
    write_vocabulary(path, pieces)
    return len(pieces)
