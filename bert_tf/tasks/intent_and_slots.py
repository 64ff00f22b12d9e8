"""Joint intent and slots: a class for a text, and a tag for each of its words (Chen et al., 2019, arXiv:1902.10909)."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.config import IntentAndSlotsConfig
from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import Labels, ReadReport, TaggedExample
from bert_tf.metrics.statistics import bootstrap_intervals
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.tasks.benchmark import Benchmark, ErrorAnalysis
from bert_tf.tasks.classification import ClassificationObjective, OneLabel
from bert_tf.tasks.codec import strings
from bert_tf.tasks.labels import LabelsState, Probabilities, labels_of
from bert_tf.tasks.objective import Sum
from bert_tf.tasks.tagging import Tagging, TaggingBenchmark, TaggingObjective
from bert_tf.tasks.tagging_codec import TaggingCodec, TaggingState
from bert_tf.tasks.tags import learned
from bert_tf.text.base import BaseTokenizer
from bert_tf.types import Array, Json, Metrics, Tensors

_HEAD = "intent_and_slots"


@dataclasses.dataclass
class IntentAndSlotsState(TaggingState):
    """State of the task: `labels` are the slot tags, `intents` the classes of texts."""

    intents: Sequence[str] = ()


class IntentAndSlotsCodec(TaggingCodec):
    """Of texts with a class and tagged words; the answers of a tagger, and `intent`."""

    config: IntentAndSlotsConfig
    state: IntentAndSlotsState

    def __init__(self, tokenizer: BaseTokenizer, config: Any, state: IntentAndSlotsState) -> None:
        super().__init__(tokenizer, config, state)
        self._intent = OneLabel(config)

    def to_tensors(self, examples: list[TaggedExample], *, labelled: bool) -> Tensors:
        columns = super().to_tensors(examples, labelled=labelled)
        if labelled:
            intents = [[intent_of(example)] for example in examples]
            columns["labels"] = self._intent.targets(intents, self.state.intents)
        return columns

    def unlabelled(self, examples: list[TaggedExample]) -> list[TaggedExample]:
        return [example._replace(label=self.state.intents[0]) for example in super().unlabelled(examples)]

    def preprocess(self, columns: Tensors) -> Tensors:
        features = super().preprocess(columns)
        return features | {name: tf.gather(columns[name], features["row"]) for name in ("labels",) if name in columns}

    def postprocess(self, features: Tensors, outputs: Tensors) -> Tensors:
        slots = super().postprocess(features, {"logits": outputs["slot_logits"]})
        return slots | {"intent_logits": outputs["intent_logits"]}

    def aggregate_windows(self, columns: Tensors, rows: tf.Tensor, decoded: Tensors) -> Tensors:
        """As a tagger's, with `intent` string [texts] and `intent_probabilities` float32 [texts, intents]."""
        decoded = dict(decoded)
        logits = tf.math.unsorted_segment_mean(decoded.pop("intent_logits"), rows, tf.shape(columns["text"])[0])
        return super().aggregate_windows(columns, rows, decoded) | self._decided(logits)

    def _decided(self, logits: tf.Tensor) -> Tensors:
        decided = self._intent.decide(logits, self.state.intents)
        return {"intent": decided["label"], "intent_probabilities": decided["probabilities"]}

    def served(self, answers: Tensors) -> Tensors:
        rows = tf.shape(answers["intent"])[0]
        return super().served(answers) | {"intents": tf.repeat([self.state.intents], rows, 0)}

    def answer_tokens(self, features: Tensors, outputs: Tensors) -> Tensors:
        slots = super().answer_tokens(features, {"logits": outputs["slot_logits"]})
        return self.served(slots | self._decided(outputs["intent_logits"]))

    def _predictions(self, examples: list[TaggedExample], answers: dict[str, Array]) -> list[Json]:
        numbers = {intent: number for number, intent in enumerate(self.state.intents)}
        intents = zip(strings(answers["intent"]), answers["intent_probabilities"], strict=True)
        return [
            one | {"intent": intent, "intent_probabilities": Probabilities(numbers, shares)}
            for one, (intent, shares) in zip(super()._predictions(examples, answers), intents, strict=True)
        ]


def intent_of(example: TaggedExample) -> str:
    """The class of a labelled text."""
    if example.label is None or not example.label.strip():
        raise DataError(f"{example.location}: no intent; expected the class of the text beside the tags of its words")
    return example.label


class IntentAndSlotsBenchmark(Benchmark[IntentAndSlotsCodec]):
    """Accuracy of the intent, the tagger's metrics of slots, and the share of texts in which all of it is right."""

    monitor = "sentence_accuracy"

    def __init__(self, codec: IntentAndSlotsCodec, metrics: str) -> None:
        super().__init__(codec, metrics)
        self._slots = TaggingBenchmark(codec, metrics)

    def _right(self, examples: list[TaggedExample], predictions: list[Json]) -> tuple[Array, Array]:
        """bool [examples]: whether the intent, and whether every tag is right."""
        rows = list(zip(examples, predictions, strict=True))
        slots = [learned(example, self.codec.scheme) == one["tags"] for example, one in rows]
        return np.array([intent_of(example) == one["intent"] for example, one in rows]), np.array(slots)

    def official_metrics(self, examples: list[TaggedExample], predictions: list[Json]) -> Metrics:
        slots = self._slots.official_metrics(examples, predictions)
        whole = _shares(*self._right(examples, predictions))
        return whole | {f"slot_{name}": value for name, value in slots.items()}

    def baseline(self, examples: list[TaggedExample]) -> Metrics:
        counts = collections.Counter(tag for example in examples for tag in learned(example, self.codec.scheme))
        tag = counts.most_common(1)[0][0]
        intent = collections.Counter(map(intent_of, examples)).most_common(1)[0][0]
        return self.official_metrics(
            examples, [{"tags": [tag] * len(example.tags or ()), "intent": intent} for example in examples]
        )

    def error_analysis(self, examples: list[TaggedExample], predictions: list[Json]) -> ErrorAnalysis:
        """As a tagger's."""
        analysis = self._slots.error_analysis(examples, predictions)
        intervals = {f"slot_{name}": value for name, value in analysis.intervals.items()}
        intervals |= bootstrap_intervals(_shares, *self._right(examples, predictions))
        return analysis._replace(intervals=intervals)


def _shares(intents: Array, slots: Array) -> Metrics:
    return {"sentence_accuracy": float((intents & slots).mean()), "intent_accuracy": float(intents.mean())}


class IntentAndSlots(Tagging):
    """Classification and tagging of a text by one encoder: the sum of both losses."""

    name = "intent_and_slots"
    Config = IntentAndSlotsConfig
    State = IntentAndSlotsState

    def _parts(self, metrics: str) -> tuple[IntentAndSlotsCodec, Sum, IntentAndSlotsBenchmark]:  # type: ignore[override]
        codec, state = IntentAndSlotsCodec(self.tokenizer, self.config, self.state), self.state
        intent = ClassificationObjective(_HEAD, LabelsState(state.intents), truncates=False)
        slots = TaggingObjective(_HEAD, self.config, state)

        def model(encoder: BertEncoder) -> Any:
            return build(encoder, _HEAD, (len(state.intents), len(state.labels)))

        return codec, Sum([("intent_", intent), ("slot_", slots)], model), IntentAndSlotsBenchmark(codec, metrics)

    @classmethod
    def head(cls, settings: Json) -> str:
        return _HEAD

    def _learn(self, examples: list[TaggedExample], labels: Labels | None) -> None:
        super()._learn(examples, labels)
        self.state.intents = labels_of(map(intent_of, examples), examples[0].location, kind="intent")

    def check(self, examples: list[TaggedExample], read_report: ReadReport) -> None:
        super().check(examples, read_report)
        intents = self.state.intents
        if examples and not any(intent_of(example) in intents for example in examples):
            raise DataError(
                f"{examples[0].location}: intent {intent_of(examples[0])!r}; neither this intent nor any other is one "
                f"of the model's: {', '.join(map(repr, intents[:20]))}"
            )
        for example in examples:
            if intent_of(example) not in intents:
                read_report.add(
                    f"never predicted: intent {example.label!r}, not in the training data", example.location
                )
