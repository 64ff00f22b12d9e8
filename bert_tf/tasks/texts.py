"""Base class of the codecs for one text or a pair of texts (paper, figure 4a and 4b)."""

import abc
import itertools
import re
from collections.abc import Iterable, Sequence

import tensorflow as tf

from bert_tf.config.tasks import TextConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.inputs.windows import cut, windows
from bert_tf.tasks.codec import Codec
from bert_tf.text.packing import truncate
from bert_tf.types import Tensors

_BREAKS = re.compile(r"[\t\r\n]")


class TextCodec(Codec):
    """Of a task on one text or a pair.

    Its state has `pair`: whether there are two texts. It is None in a converted checkpoint until `to_tensors` sees the
    first example; a model exported before that takes one text.
    """

    config: TextConfig

    @property
    def windows(self) -> bool:
        return self.config.long_texts == "window"

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        names = ("text", "second_text") if self.state.pair else ("text",)
        return tuple(tf.TensorSpec([None], tf.string, name=name) for name in names)

    def to_tensors(self, examples: list[TextExample], *, labelled: bool) -> Tensors:
        """As in Codec; the targets are one column, `labels` [examples, ...]."""
        if self.state.pair is None:
            self.state.pair = len(examples[0].texts) == 2
        names = [spec.name for spec in self.inputs()]
        for example in examples:
            if len(example.texts) != len(names):
                raise DataError(
                    f"{example.location}: {len(example.texts)} text(s), but the model takes {len(names)}; data.text "
                    "and data.second_text name their columns"
                )
        columns = {
            name: tf.constant([example.texts[index] for example in examples]) for index, name in enumerate(names)
        }
        return columns | {"labels": self.targets(examples)} if labelled else columns

    @abc.abstractmethod
    def targets(self, examples: list[TextExample]) -> tf.Tensor:
        """The column `labels`."""

    def preprocess(self, columns: Tensors) -> Tensors:
        texts = [columns[spec.name] for spec in self.inputs()]
        ids = [self.tokenizer.tokenize(text) for text in texts]
        budget = self.config.max_length - self.tokenizer.specials(len(ids) == 2)
        rows = tf.range(tf.size(texts[0], tf.int64))
        if self.windows:
            rows, first, second, truncated = self._windows(ids, budget)
        else:
            first, second, truncated = truncate(*ids, budget=budget, keep=self.config.long_texts)
        packed, types = self.tokenizer.pack(first, second)
        features = {"input_word_ids": packed, "input_type_ids": types, "row": rows, "truncated": truncated}
        return features | {name: tf.gather(columns[name], rows) for name in ("labels",) if name in columns}

    def _windows(
        self, ids: list[tf.RaggedTensor], budget: int
    ) -> tuple[tf.Tensor, tf.RaggedTensor, tf.RaggedTensor | None, tf.Tensor]:
        """The row, first text, second text (if any) of each window, and whether it lost tokens."""
        if not self.state.pair:
            rows, starts, ends = windows(ids[0].row_lengths(), budget, budget)
            return rows, cut(ids[0], rows, starts, ends), None, tf.zeros_like(rows, tf.bool)
        # The second text is read with respect to the first, so every window has the first, cut if it leaves no room.
        first = ids[0][:, : budget // 2]
        room = budget - first.row_lengths()
        rows, starts, ends = windows(ids[1].row_lengths(), room, room)
        truncated = ids[0].row_lengths() > budget // 2
        return rows, tf.gather(first, rows), cut(ids[1], rows, starts, ends), tf.gather(truncated, rows)

    def answer_tokens(self, features: Tensors, outputs: Tensors) -> Tensors:
        rows = tf.shape(features["input_word_ids"])[0]
        decoded = self.postprocess(features, outputs)
        # Each row is an example.
        return self.served(self.aggregate_windows({"text": tf.fill([rows], "")}, tf.range(rows), decoded))


def write_table(path: str, header: Sequence[str], rows: Iterable[Sequence[str | float]]) -> None:
    """Writes a TSV.

    Args:
        path: of the file.
        header: names of the columns.
        rows: floats are written with six decimals. A tab or line end in a text, which a reader of TSV would take for
            the end of the cell, becomes a space.
    """
    with open(path, "w", encoding="utf-8") as file:
        for row in itertools.chain([header], rows):
            cells = (f"{cell:.6f}" if isinstance(cell, float) else _BREAKS.sub(" ", cell) for cell in row)
            file.write("\t".join(cells) + "\n")
