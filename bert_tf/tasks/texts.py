"""Tasks on one text or a pair of texts (paper, figure 4a and 4b): what goes into the model."""

import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.inputs.examples import TextExample
from bert_tf.inputs.packing import pack, truncate
from bert_tf.inputs.windows import cut, windows
from bert_tf.tasks.downstream import Downstream

LONG_TEXTS = ("head", "tail", "head_tail", "window")


class TextTask(Downstream):
    """Whatever is said of one text or a pair.

    Attributes:
        pair: whether there are two texts.
    """

    example = TextExample
    state = ("pair",)
    pair = False

    @property
    def windows(self):
        return self.config.long_texts == "window"

    def inputs(self):
        names = ("text", "second_text") if self.pair else ("text",)
        return tuple(tf.TensorSpec([None], tf.string, name=name) for name in names)

    def text_columns(self, examples):
        """dict of the string columns, [examples] each."""
        names = [spec.name for spec in self.inputs()]
        return {name: tf.constant([example.texts[place] for example in examples]) for place, name in enumerate(names)}

    def check_long_texts(self):
        """Raises ConfigError for a setting that says nothing."""
        if self.config.long_texts not in LONG_TEXTS:
            raise ConfigError(
                f"task.long_texts {self.config.long_texts!r} is unknown; choose one of {', '.join(LONG_TEXTS)}"
            )

    def encode(self, columns):
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


def pooled(values, rows, examples):
    """Means over the rows of each example: float [rows, n] -> [examples, n]."""
    return tf.math.unsorted_segment_mean(values, rows, examples)
