"""Tasks on one text or a pair of texts (paper, figure 4a and 4b): what goes into the model."""

import dataclasses
import itertools
import re

import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.datasets.sources import glue_task_of
from bert_tf.inputs.packing import pack, truncate
from bert_tf.inputs.windows import cut, windows
from bert_tf.tasks.fine_tuning_task import FineTuningTask, TaskConfig
from bert_tf.tasks.submission import write_submission

_BREAKS = re.compile(r"[\t\r\n]")
LONG_TEXTS = ("head", "tail", "head_tail", "window")


@dataclasses.dataclass
class TextConfig(TaskConfig):
    """What every task on texts can be told.

    Attributes:
        long_texts: what becomes of texts beyond it: their "head", "tail" or "head_tail" (half of each) is kept, of a
            pair the longer text loses; or "window": the text becomes several inputs whose logits are averaged; of a
            pair the second is cut into windows, and the first stands in each.
    """

    long_texts: str = "head"

    def check(self):
        if self.long_texts not in LONG_TEXTS:
            raise ConfigError(f"task.long_texts {self.long_texts!r} is unknown; choose one of {', '.join(LONG_TEXTS)}")
        return super().check()


class TextTask(FineTuningTask):
    """Whatever is said of one text or a pair.

    Attributes:
        pair: whether there are two texts; None until `to_tensors` has seen the first example, as of a converted
            checkpoint: a model that is exported before takes one.
    """

    example = TextExample
    state = ("pair",)
    pair = None

    @property
    def windows(self):
        return self.config.long_texts == "window"

    @property
    def glue(self):
        """The key of `inputs.datasets.glue.GLUE` whose examples it learned from; None for other data."""
        return glue_task_of(self.data)

    def inputs(self):
        names = ("text", "second_text") if self.pair else ("text",)
        return tuple(tf.TensorSpec([None], tf.string, name=name) for name in names)

    def text_columns(self, examples):
        """dict of the string columns, [examples] each.

        Raises:
            DataError: an example has one text where the model takes a pair, or the other way.
        """
        if self.pair is None:
            self.pair = len(examples[0].texts) == 2
        names = [spec.name for spec in self.inputs()]
        for example in examples:
            if len(example.texts) != len(names):
                raise DataError(
                    f"{example.location}: {len(example.texts)} text(s), and the model takes {len(names)}; data.text and "
                    "data.second_text name their columns"
                )
        return {name: tf.constant([example.texts[index] for example in examples]) for index, name in enumerate(names)}

    def preprocess(self, columns):
        texts = [columns[spec.name] for spec in self.inputs()]
        ids = [self.tokenizer.tokenize(text) for text in texts]
        budget = self.config.max_length - 1 - len(ids)
        rows = tf.range(tf.size(texts[0], tf.int64))
        if self.windows:
            rows, first, second, truncated = self._windows(ids, budget)
        else:
            first, second, truncated = truncate(*ids, budget=budget, keep=self.config.long_texts)
        packed, types = pack(first, second, cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id)
        made = {"input_word_ids": packed, "input_type_ids": types, "row": rows, "truncated": truncated}
        return made | {name: tf.gather(columns[name], rows) for name in ("labels",) if name in columns}

    def _windows(self, ids, budget):
        """Rows, first and second text of each window (None if there is none), and which rows lost tokens."""
        if not self.pair:
            rows, starts, ends = windows(ids[0].row_lengths(), budget, budget)
            return rows, cut(ids[0], rows, starts, ends), None, tf.zeros_like(rows, tf.bool)
        # The first text is what the second is asked about: it stands in every window, cut if it leaves no room.
        first = ids[0][:, : budget // 2]
        room = budget - first.row_lengths()
        rows, starts, ends = windows(ids[1].row_lengths(), room, room)
        truncated = ids[0].row_lengths() > budget // 2
        return rows, tf.gather(first, rows), cut(ids[1], rows, starts, ends), tf.gather(truncated, rows)

    def answer_tokens(self, features, outputs):
        rows = tf.shape(features["input_word_ids"])[0]
        decoded = self.postprocess(features, outputs)
        return self.aggregate_windows({"text": tf.fill([rows], "")}, tf.range(rows), decoded)  # each row is an example

    def writers(self):
        if not self.glue:
            return super().writers()
        return super().writers() | {".zip": lambda path, predicted: write_submission(self.glue, path, predicted)}


def pooled(values, rows, examples):
    """Means over the rows of each example: float [rows, n] -> [examples, n]."""
    return tf.math.unsorted_segment_mean(values, rows, examples)


def write_table(path, header, rows):
    """Writes a TSV.

    Args:
        path: of the file.
        header: names of the columns.
        rows: iterable of lists of str and floats; these get six decimals. A tab or line end within a str, which no
            reader of such a file would take for a part of it, becomes a space.
    """
    with open(path, "w", encoding="utf-8") as file:
        for row in itertools.chain([header], rows):
            cells = (f"{cell:.6f}" if isinstance(cell, float) else _BREAKS.sub(" ", cell) for cell in row)
            file.write("\t".join(cells) + "\n")
