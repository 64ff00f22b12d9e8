"""Sample requests to a model: to check its export by, to warm a server up, and to show in its card."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.signatures import CLASSIFY, REGRESS, TOKENS

_SENTENCES = (
    "A film to remember.",
    "The committee met in Geneva on Tuesday and heard three reports.",
    "오늘 본 영화는 정말 재미있었다.",
    "He said he would come, but nobody in the village had seen him since the spring of 1998.",
    "서울에서 부산까지 기차로 두 시간 반쯤 걸린다.",
    "Café Zürich (near the station) isn't open on Sundays!",
    "The acting is fine; the story is not.",
    "2,500 people lost their homes.",
)
_LONG_TEXT = " ".join(_SENTENCES * 10)  # more than the 512 tokens that most models take
FULL_BATCH = 32
# What servers are warmed up with. The others are what clients send by mistake.
WARM_UP = ("short", "long", "full")
_TEXTS = {
    "short": _SENTENCES[:1],
    "long": (_LONG_TEXT,),
    "full": _SENTENCES * (FULL_BATCH // len(_SENTENCES)),
    "empty": ("", " ", "\u200b"),
    "broken": (b"caf\xe9 \xff\xfe", "끊긴 글".encode()[:-1], b"\x00"),
    "no rows": (),
}


_DTYPES = {"O": tf.string, "i": tf.int32}


class Request(NamedTuple):
    """Rows that a signature is asked with.

    Attributes:
        signature: its name.
        kind: what is tried, such as "short".
        inputs: dict name -> array: of objects (bytes) or int32.
    """

    signature: str
    kind: str
    inputs: dict[str, np.ndarray]

    def answered(self, signatures):
        """What a model in memory answers: dict name -> array.

        Args:
            signatures: dict name -> concrete function.
        """
        with tf.device("/CPU:0"):  # where a GPU is, too: it computes with fewer digits
            tensors = {name: tf.constant(value, _DTYPES[value.dtype.kind]) for name, value in self.inputs.items()}
            return {name: value.numpy() for name, value in signatures[self.signature](**tensors).items()}


def sample_requests(task, names):
    """Requests of each kind to each signature.

    Args:
        task: Task.
        names: of the signatures.

    Returns:
        list of Request.
    """
    mask = b" [MASK]" if isinstance(task, MaskedLM) else b""
    found = []
    for kind, texts in _TEXTS.items():
        texts = [text if isinstance(text, bytes) else text.encode() for text in texts]
        columns = {spec.name: _column(spec, texts, turn, mask) for turn, spec in enumerate(task.inputs())}
        for name in names:
            found.append(request_of(task, name, kind, columns))
    return found


def _column(spec, texts, number, mask):
    """The values of one input: the texts with `mask` behind them; of the second input, `number` 1, others."""
    others = [sentence.encode() for sentence in _SENTENCES]
    if number:
        texts = [others[row % len(others)] if text in others else text for row, text in enumerate(texts, number)]
    if spec.shape.rank == 1:
        return _strings([text + mask for text in texts])
    rows = [[text, others[row % len(others)], b""] for row, text in enumerate(texts, number + 1)]
    return _strings(rows) if rows else np.empty([0, 0], object)


def _strings(values):
    return np.array(values, object)


def request_of(task, signature, kind, columns):
    """A Request to a signature.

    Args:
        task: Task.
        signature, kind: as of Request.
        columns: dict name -> array of objects: what `serving_default` would take.
    """
    if signature == TOKENS:
        features = task.token_features({name: tf.constant(value, tf.string) for name, value in columns.items()})
        columns = {name: features[name].numpy() for name in ("input_word_ids", "input_mask", "input_type_ids")}
    elif signature in (CLASSIFY, REGRESS):
        columns = {"inputs": _strings(_examples(columns))}
    return Request(signature, kind, columns)


def _examples(columns):
    """Rows of string columns as serialized tf.train.Examples; of a list, without the "" that fill it up."""
    found = []
    for values in zip(*columns.values(), strict=True):
        example = tf.train.Example()
        for name, value in zip(columns, values, strict=True):
            texts = [text for text in value if text] if isinstance(value, np.ndarray) else [value]
            example.features.feature[name].bytes_list.value.extend(texts)
        found.append(example.SerializeToString())
    return found
