"""Vectors of the texts of a file, into a file; memory is flat in the number of texts, and bounded for long ones."""

import contextlib
import json
import os
import shutil
import tempfile
import zipfile

import numpy as np
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.datasets import tables
from bert_tf.inputs.datasets.conll import read_tagged_lines
from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.inputs.datasets.tagged import word_columns
from bert_tf.inputs.datasets.text_files import STDIN, read_lines
from bert_tf.progress import bar
from bert_tf.tasks.fine_tuning_task import strings

# Characters that a text of a batch has on average at most: about what a window of 512 tokens holds.
_CHARACTERS = 2048
# Texts are held, vectors and all, to be sorted by length: this many batches of them, fewer where they are long.
_BATCHES, _LONG_BATCHES = 16, 4


def read_texts(path, column="text"):
    """Texts of a file, as a stream.

    Args:
        path: .txt with a text a line; .tsv or .csv with a header; .jsonl, or "-" for the same on standard input, with
            objects that have a text, or {"words": [...]} as somebody else has divided it.
        column: that has the text, in tables and JSON lines.

    Yields:
        TaggedExample without tags; `words` only where the file gives them.

    Raises:
        DataError: as the readers of `inputs`; another ending.
    """
    if path == STDIN or path.endswith(".jsonl"):
        yield from read_tagged_lines(path, column)
        return
    if path.endswith(".txt"):
        rows = ((number, (text,)) for number, text in read_lines(path))
    else:
        rows = tables.table_rows(path, [column])
    for count, (number, (text,)) in enumerate(rows):
        yield TaggedExample(str(count), text, None, None, None, None, f"{path}:{number}")


def extract(embedder, examples, batch_size):
    """Vectors of a stream of texts.

    Args:
        embedder: Embedder.
        examples: iterable of TaggedExample, of words as they are given where they are.
        batch_size: texts at once, fewer where they are long.

    Yields:
        (example, dict of arrays: what the embedder gives of it), in the order of the examples.

    Raises:
        DataError: some examples have words, and some have none.
    """
    embed = tf.function(embedder.__call__, reduce_retracing=True)
    characters = batch_size * _CHARACTERS
    with bar("extract", None, "text") as line:
        for chunk in _cut(_alike(examples), _BATCHES * batch_size, _LONG_BATCHES * characters):
            ordered = sorted(enumerate(chunk), key=lambda numbered: len(numbered[1].text))
            found = [None] * len(chunk)
            for batch in _cut(ordered, batch_size, characters, lambda numbered: numbered[1].text):
                indices, some = zip(*batch, strict=True)
                answer = embed(tf.constant([example.text for example in some]), **_given_words(some))
                for index, *values in zip(indices, *map(_rows, answer.values()), strict=True):
                    found[index] = dict(zip(answer, values, strict=True))
                line.update(len(some))
            yield from zip(chunk, found, strict=True)


def _alike(examples):
    """The same examples, as long as all of them have words or none has."""
    first = None
    for example in examples:
        first = first or example
        if (example.words is None) != (first.words is None):
            found, others = ("no words", "has") if example.words is None else ("words", "has not")
            raise DataError(f"{example.location}: {found}, which {first.location} {others}; give all of them or none")
        yield example


def _cut(items, count, characters, text=lambda example: example.text):
    """Lists of neighbours: at most `count`, of at most so many characters together; a longer text is alone."""
    part, held = [], 0
    for item in items:
        length = len(text(item))
        if part and (len(part) == count or held + length > characters):
            yield part
            part, held = [], 0
        part.append(item)
        held += length
    if part:
        yield part


def _rows(values):
    """The rows of a tensor or RaggedTensor as arrays."""
    if not isinstance(values, tf.RaggedTensor):
        return values.numpy()
    # Taking rows from a RaggedTensor one by one is a hundred times as slow.
    return np.split(values.values.numpy(), values.row_splits.numpy()[1:-1])


def _given_words(examples):
    """Where the words of a batch are, as the embedder takes them; {} where nobody has divided the texts."""
    return {} if examples[0].words is None else word_columns([[example] for example in examples])


def write_npz(path, embedded):
    """Writes arrays for `numpy.load`.

    vector, float32 [texts, size], in the order of the texts. Of words and tokens vector is [units, size], those of all
    texts one after the other, with start and end, int32 [units], in characters of the text, and splits, int64
    [texts + 1]: the units of text i are splits[i] to splits[i + 1].

    Args:
        path: of the file.
        embedded: iterable as `extract` gives.

    Returns:
        int, how many texts.
    """
    with contextlib.ExitStack() as stack:
        columns, counts, shapes = {}, [0], {}
        for _, values in embedded:
            for name in ("vector", "start", "end"):
                if name in values:
                    array = values[name] if "start" in values else values[name][np.newaxis]
                    if name not in columns:
                        # Numbers go to disk as they come; only at the end is it known how many there are.
                        columns[name] = stack.enter_context(tempfile.TemporaryFile(dir=os.path.dirname(path) or "."))
                    columns[name].write(array.tobytes())
                    shapes[name] = (array.dtype, array.shape[1:])
            counts.append(counts[-1] + len(array))
        with zipfile.ZipFile(path, "w") as archive:
            for name, column in columns.items():
                dtype, rest = shapes[name]
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    header = {"descr": dtype.str, "fortran_order": False, "shape": (counts[-1], *rest)}
                    np.lib.format.write_array_header_1_0(member, header)
                    column.seek(0)
                    shutil.copyfileobj(column, member)
            if "start" in columns:
                with archive.open("splits.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.array(counts, np.int64))
    return len(counts) - 1


def write_json_lines(path, embedded):
    """Writes an object a text: id, text and vector; of words and tokens units, objects of text, start, end, vector.

    Numbers have seven decimals: what float32 holds of those below 1. Arguments and result as of `write_npz`.
    """
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for example, values in embedded:
            vectors = np.round(values["vector"].astype(np.float64), 7).tolist()
            record = {"id": example.id, "text": example.text}
            if "start" in values:
                columns = strings(values["text"]), values["start"].tolist(), values["end"].tolist(), vectors
                names = ("text", "start", "end", "vector")
                record["units"] = [dict(zip(names, unit, strict=True)) for unit in zip(*columns, strict=True)]
            else:
                record["vector"] = vectors
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def write_records(path, embedded):
    """Writes a tf.train.Example a text: id, text, vector (of words and tokens one behind the other), start, end.

    Arguments and result as of `write_npz`.
    """
    count = 0
    with tf.io.TFRecordWriter(path) as file:
        for example, values in embedded:
            texts = [example.id.encode()], [example.text.encode()]
            features = {
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
                for name, value in zip(("id", "text"), texts, strict=True)
            }
            features["vector"] = tf.train.Feature(float_list=tf.train.FloatList(value=values["vector"].ravel()))
            for name in ("start", "end"):
                if name in values:
                    features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values[name]))
            file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
            count += 1
    return count


# By the ending of the file.
WRITERS = {".npz": write_npz, ".jsonl": write_json_lines, ".tfrecord": write_records}
