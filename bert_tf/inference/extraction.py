"""Extraction of vectors from a file of texts. Memory does not grow with their number and is bounded for long texts."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TypeAlias

import numpy as np
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inference.embedder import Embedder
from bert_tf.inputs.datasets import tables
from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.inputs.datasets.json_lines import read_tagged_lines
from bert_tf.inputs.datasets.tagged import word_columns
from bert_tf.inputs.datasets.text_files import STDIN, read_lines
from bert_tf.memory import in_chunks, memory_errors
from bert_tf.progress import bar
from bert_tf.tasks.codec import check_finite, strings
from bert_tf.text.unknown import UnknownTokens
from bert_tf.types import Array

Embedded: TypeAlias = tuple[TaggedExample, dict[str, Array]]  # a text and the outputs of the Embedder for it

# Average number of characters per text of a batch, at most: about a window of 512 tokens.
_CHARACTERS = 2048
# Batches of texts (and their vectors) in memory, to be sorted by length; fewer if the texts are long.
_BATCHES, _LONG_BATCHES = 16, 4


def read_texts(path: str, column: str = "text") -> Iterator[TaggedExample]:
    """Streams the texts of a file.

    Args:
        path: .txt with one text per line; .tsv or .csv with a header; .jsonl, or "-" for JSON lines on standard input,
            with objects that have a text, or {"words": [...]} if the text is already split.
        column: column or JSON field with the text.

    Yields:
        Examples without tags; `words` is None unless the file gives them.
    """
    if path == STDIN or path.endswith(".jsonl"):
        yield from read_tagged_lines(path, column)
        return
    if path.endswith(".txt"):
        rows = ((f"{path}:{number}", text) for number, text in read_lines(path))
    else:
        rows = ((row.location, row.texts[0]) for row in tables.read_texts(path, [column]))
    for count, (location, text) in enumerate(rows):
        yield TaggedExample(str(count), text, None, None, None, None, location)


def extract(
    embedder: Embedder, examples: Iterable[TaggedExample], batch_size: int, *, progress: bool = True
) -> Iterator[Embedded]:
    """Computes vectors for a stream of texts.

    Args:
        embedder: its outputs are vectors per sentence, word or token.
        examples: either all have `words` or none has; given words are not split again.
        batch_size: texts per batch, fewer if they are long.
        progress: shows a progress bar.

    Yields:
        The examples in their order, each with the embedder's outputs as arrays.
    """
    characters = batch_size * _CHARACTERS
    chunks = in_chunks(
        _consistent(examples), _BATCHES * batch_size, _LONG_BATCHES * characters, lambda example: len(example.text)
    )
    unknown = UnknownTokens(embedder.tokenizer)
    with bar("extract", None, "text", shown=progress) as line:
        for chunk in chunks:
            unknown.read([tf.constant([example.text for example in chunk])])
            by_length = sorted(enumerate(chunk), key=lambda numbered: len(numbered[1].text))
            outputs: list[dict[str, Array]] = [{} for _ in chunk]
            for batch in in_chunks(by_length, batch_size, characters, lambda numbered: len(numbered[1].text)):
                indices, members = zip(*batch, strict=True)
                texts = tf.constant([example.text for example in members])
                with memory_errors("set a smaller batch_size, or a shorter max_length"):
                    tensors = embedder.traced(texts, **_given_words(members))
                rows = {name: _rows(value) for name, value in tensors.items()}
                check_finite(rows, [example.location for example in members])
                for index, *values in zip(indices, *rows.values(), strict=True):
                    outputs[index] = dict(zip(rows, values, strict=True))
                line.update(len(members))
            yield from zip(chunk, outputs, strict=True)


def vectors_of(embedder: Embedder, texts: Sequence[str], batch_size: int, *, progress: bool = False) -> Array:
    """The vectors of texts, float32 [texts, size]; arguments as for `extract`."""
    examples = [
        TaggedExample(str(index), text, None, None, None, None, f"texts[{index}]") for index, text in enumerate(texts)
    ]
    vectors = [values["vector"] for _, values in extract(embedder, examples, batch_size, progress=progress)]
    return np.stack(vectors) if vectors else np.zeros([0, embedder.size], np.float32)


def _consistent(examples: Iterable[TaggedExample]) -> Iterator[TaggedExample]:
    """Yields the examples; raises DataError if some have words and others do not."""
    first = None
    for example in examples:
        first = first or example
        if (example.words is None) != (first.words is None):
            found, others = ("no words", "words") if example.words is None else ("words", "no words")
            raise DataError(
                f"{example.location}: {found}, but {first.location} has {others}; give words for all texts or for none"
            )
        yield example


def _rows(values: tf.Tensor | tf.RaggedTensor) -> Iterable[Array]:
    """The rows of a tensor as arrays."""
    if not isinstance(values, tf.RaggedTensor):
        return values.numpy()
    # Indexing the rows of a RaggedTensor one by one takes a hundred times as long.
    return np.split(values.values.numpy(), values.row_splits.numpy()[1:-1])


def _given_words(examples: Sequence[TaggedExample]) -> dict[str, tf.RaggedTensor]:
    """The embedder's arguments for the words of a batch; {} if the examples have none."""
    return {} if examples[0].words is None else word_columns([[example] for example in examples])


def write_npz(path: str, embedded: Iterable[Embedded]) -> None:
    """Writes arrays for `numpy.load`.

    Per sentence: vector, float32 [texts, size], in the order of the texts.

    Per word or token: vector, float32 [units, size], the units of all texts concatenated; start and end, int32 [units],
    in characters of the text; splits, int64 [texts + 1]: text i has the units splits[i] to splits[i + 1] - 1.
    """
    with contextlib.ExitStack() as stack:
        columns: dict[str, IO[bytes]] = {}
        counts = [0]
        shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        for _, values in embedded:
            for name in ("vector", "start", "end"):
                if name in values:
                    array = values[name] if "start" in values else values[name][np.newaxis]
                    if name not in columns:
                        # The number of rows is known at the end. Until then values are on disk.
                        columns[name] = stack.enter_context(tempfile.TemporaryFile(dir=os.path.dirname(path) or "."))
                    columns[name].write(array.tobytes())
                    shapes[name] = (array.dtype, array.shape[1:])
            counts.append(counts[-1] + len(array))
        arrays: dict[str, Array] = {}
        for name, column in columns.items():
            column.flush()
            dtype, rest = shapes[name]
            shape = (counts[-1], *rest)
            arrays[name] = np.memmap(column, dtype, "r", shape=shape) if counts[-1] else np.zeros(shape, dtype)
        if "start" in columns:
            arrays["splits"] = np.array(counts, np.int64)
        with open(path, "wb") as file:  # by its name, NumPy would add an extension
            np.savez(file, **arrays)  # type: ignore[arg-type]  # which takes them for other arguments


def write_json_lines(path: str, embedded: Iterable[Embedded]) -> None:
    """Writes one JSON object per text: id, text and vector; per word or token, `units` of text, start, end, vector.

    Numbers have seven decimals, the precision of float32 below 1.
    """
    with open(path, "w", encoding="utf-8") as file:
        for example, values in embedded:
            vectors = np.round(values["vector"].astype(np.float64), 7).tolist()
            record: dict[str, Any] = {"id": example.id, "text": example.text}
            if "start" in values:
                columns = strings(values["text"]), values["start"].tolist(), values["end"].tolist(), vectors
                names = ("text", "start", "end", "vector")
                record["units"] = [dict(zip(names, unit, strict=True)) for unit in zip(*columns, strict=True)]
            else:
                record["vector"] = vectors
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_records(path: str, embedded: Iterable[Embedded]) -> None:
    """Writes a tf.train.Example per text: id, text, vector; per unit, `start`, `end` and all vectors in one."""
    with tf.io.TFRecordWriter(path) as file:
        for example, values in embedded:
            features = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
                for name, text in (("id", example.id), ("text", example.text))
            }
            features["vector"] = tf.train.Feature(float_list=tf.train.FloatList(value=values["vector"].ravel()))
            for name in ("start", "end"):
                if name in values:
                    features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values[name]))
            file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


# By the extension of the file.
WRITERS: dict[str, Callable[[str, Iterable[Embedded]], None]] = {
    ".npz": write_npz,
    ".jsonl": write_json_lines,
    ".tfrecord": write_records,
}
