"""Sample requests to a model: they check its export, warm a server up and are the examples in the model card."""

import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.files import bundled
from bert_tf.tasks.signatures import CLASSIFY, REGRESS, TOKENS, WORDS, Served
from bert_tf.types import Array, ConcreteFunction

SENTENCES = (
    "A film to remember.",
    "The committee met in Geneva on Tuesday and heard three reports.",
    "오늘 본 영화는 정말 재미있었다.",
    "He said he would come, but nobody in the village had seen him since the spring of 1998.",
    "서울에서 부산까지 기차로 두 시간 반쯤 걸린다.",
    "Café Zürich (near the station) isn't open on Sundays!",
    "The acting is fine; the story is not.",
    "2,500 people lost their homes.",
)
_LONG_TEXT = " ".join(SENTENCES * 10)  # more than 512 tokens, the maximum of most models
FULL_BATCH = 32
# The kinds that servers are warmed up with. The others are what clients send by mistake.
WARM_UP = ("short", "long", "full")
_TEXTS: dict[str, tuple[str | bytes, ...]] = {
    "short": SENTENCES[:1],
    "long": (_LONG_TEXT,),
    "full": SENTENCES * (FULL_BATCH // len(SENTENCES)),
    "empty": ("", " ", "\u200b"),
    "broken": (b"caf\xe9 \xff\xfe", "끊긴 글".encode()[:-1], b"\x00"),
    "no rows": (),
}


_DTYPES = {"O": tf.string, "i": tf.int32}


class Request(NamedTuple):
    """A request to a signature.

    Attributes:
        signature: name of the signature.
        kind: what the request tests, such as "short".
        inputs: arrays of int32 or of objects (bytes), by input name.
    """

    signature: str
    kind: str
    inputs: dict[str, Array]

    def answered(self, signatures: Mapping[str, ConcreteFunction]) -> dict[str, Array]:
        """Computes the outputs of the model in memory, given its signatures by name."""
        with tf.device("/CPU:0"):  # a GPU computes with fewer digits
            tensors = {name: tf.constant(value, _DTYPES[value.dtype.kind]) for name, value in self.inputs.items()}
            return {name: value.numpy() for name, value in signatures[self.signature](**tensors).items()}


def calibration_texts() -> list[str]:
    """English and Korean texts on which the ranges of int8 exports are measured."""
    with open(bundled("data/reviews/heldout.tsv"), encoding="utf-8") as file:
        texts = [line.split("\t")[0] for line in file][1:97]
    with gzip.open(bundled("data/korean/gnome_heldout.txt.gz"), "rt", encoding="utf-8") as file:
        return texts + [line.strip() for line in file if line.strip()][:32]


def sample_requests(codec: Served, names: Iterable[str]) -> list[Request]:
    """Creates requests of each kind to each signature in `names`."""
    mask = f" {codec.tokenizer.special_names.mask}".encode() if codec.reads_masks else b""
    requests = []
    for kind, texts in _TEXTS.items():
        in_bytes = [text if isinstance(text, bytes) else text.encode() for text in texts]
        columns = {spec.name: _column(spec, in_bytes, number, mask) for number, spec in enumerate(codec.inputs())}
        for name in names:
            requests.append(request_of(codec, name, kind, columns))
    return requests


def _column(spec: tf.TensorSpec, texts: Sequence[bytes], number: int, mask: bytes) -> Array:
    """Values of the input with this number: the texts, followed by `mask`; input 1 gets other texts than input 0."""
    others = [sentence.encode() for sentence in SENTENCES]
    if number:
        texts = [others[row % len(others)] if text in others else text for row, text in enumerate(texts, number)]
    if spec.shape.rank == 1:
        return _strings([text + mask for text in texts])
    rows = [[text, others[row % len(others)], b""] for row, text in enumerate(texts, number + 1)]
    return _strings(rows) if rows else np.empty([0, 0], object)


def _strings(values: Sequence[Any]) -> Array:
    return np.array(values, object)


def request_of(codec: Served, signature: str, kind: str, columns: dict[str, Array]) -> Request:
    """Creates a request to a signature.

    Args:
        codec: computes token ids for the signature `tokens`.
        signature, kind: as in `Request`.
        columns: inputs of the signature `serving_default`, arrays of objects (bytes).
    """
    if signature == WORDS:
        words = [text.split() for text in columns["text"]]
        most = max(map(len, words), default=0)
        words = [row + [b""] * (most - len(row)) for row in words]
        columns = {"words": _strings(words).reshape(len(words), most)}
    elif signature == TOKENS:
        features = codec.token_features({name: tf.constant(value, tf.string) for name, value in columns.items()})
        columns = {name: features[name].numpy() for name in ("input_word_ids", "input_mask", "input_type_ids")}
    elif signature in (CLASSIFY, REGRESS):
        columns = {"inputs": _strings(_examples(columns))}
    return Request(signature, kind, columns)


def _examples(columns: dict[str, Array]) -> list[bytes]:
    """Rows of string columns as serialized tf.train.Examples; lists lose the "" that pad them."""
    serialized = []
    for values in zip(*columns.values(), strict=True):
        example = tf.train.Example()
        for name, value in zip(columns, values, strict=True):
            texts = [text for text in value if text] if isinstance(value, np.ndarray) else [value]
            example.features.feature[name].bytes_list.value.extend(texts)
        serialized.append(example.SerializeToString())
    return serialized
