"""Examples that are already in memory, as a source for fine-tuning."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_tf.inputs.corpus.shards import digest
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import KINDS


class InMemory:
    """Labelled examples by role; used in the same way as `sources.Source`.

    Args:
        examples: "train" and, if there are any, "validation" -> examples with labels.
    """

    def __init__(self, examples: Mapping[str, Sequence[Any]]) -> None:
        self.roles, self._examples = tuple(examples), examples

    def where(self, role: str) -> str:
        """The name of the examples in messages."""
        return f"{role} examples"

    def identity(self, role: str) -> str:
        """A fingerprint of the examples."""
        return digest(self._examples[role])

    def labels(self) -> None:
        """None: only the examples have labels."""

    def examples(self, read_report: ReadReport, role: str) -> Iterator[Any]:
        """Streams the examples, without useless ones, which are counted."""
        for example in self._examples[role]:
            if reason := KINDS[type(example)].skip_reason(example):
                read_report.add(reason, example.location)
            else:
                yield example
