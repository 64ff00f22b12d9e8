"""A number said of one text or of a pair of texts, such as how alike they are (paper, section 4.1: STS-B)."""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.labelled import Scale
from bert_tf.inputs.packing import pack, truncate
from bert_tf.metrics import bootstrap
from bert_tf.metrics.classification import binary_f1, class_intervals, correlations, correlations_of_resamples
from bert_tf.metrics.glue import glue_scores, with_score
from bert_tf.tasks.error_analysis import LISTED, ErrorAnalysis, ErrorExample
from bert_tf.tasks.fine_tuning_task import truncated_share
from bert_tf.tasks.texts import TextConfig, TextTask, pooled, write_table

# KLUE takes two sentences for paraphrases from this score on (Park et al., 2021, section 3.2).
_PARAPHRASE = 3.0


@dataclasses.dataclass
class RegressionConfig(TextConfig):
    """Texts into numbers.

    Attributes:
        head: "pooled": a dense layer on the pooled output; "cosine": of a pair, whose texts are read apart, up to
            `max_length` tokens each, the cosine of their mean vectors, from 0 at the lowest to 1 at the highest number.
            It has no weights: it begins with what the encoder has learned of whole texts.
        long_texts: as of the other tasks; of a cosine not "window", and each text is cut by itself.
    """

    head: str = "pooled"

    def check(self):
        if self.head not in ("pooled", "cosine"):
            raise ConfigError(f"task.head {self.head!r} is unknown; choose pooled or cosine")
        if self.head == "cosine" and self.long_texts == "window":
            raise ConfigError("task.head is cosine, which compares two vectors, and task.long_texts window makes "
                              "several of a text; set task.long_texts to head, tail or head_tail")  # fmt: skip
        return super().check()


class Regression(TextTask):
    """Texts into numbers, by the mean squared error.

    Scores are Pearson's and Spearman's correlation; of STS-B GLUE's "score", too, and of KLUE's STS the F1 of telling
    paraphrases, which its authors report.

    Attributes:
        labels: the name of the number: one.
        scale: (low, high) that answers are clipped to; None for any number. A cosine has one, if need be the lowest and
            the highest number of the training examples.
    """

    name = "regression"
    Config = RegressionConfig
    state = ("labels", "pair", "scale")
    scale = None
    example_api = "regress"
    losses = ("loss",)
    metric_names = ("truncated_share",)
    # What the head begins with, mean and deviation of the training examples' numbers: of no use once it is trained.
    _start = (0.0, 1.0)

    @property
    def monitor(self):
        return "score" if self.glue else "pearson" if self.data.format == "klue/sts" else "spearman"

    @classmethod
    def head(cls, settings):
        return "cosine" if settings.get("head") == "cosine" else "classification"

    @classmethod
    def create(cls, tokenizer, config, data, examples, labels):
        if labels is not None and not isinstance(labels, Scale):
            raise ConfigError(f"the labels are classes such as {labels[0]!r}; take ClassificationConfig")
        scale = None if labels is None else tuple(labels)
        values = [number(example) for example in examples]
        if config.head == "cosine":
            if len(examples[0].texts) != 2:
                raise ConfigError("task.head is cosine, which compares two texts, and the data has one; leave "
                                  "task.head out, or name the column of the other by data.second_text")  # fmt: skip
            scale = scale or (min(values), max(values))
            if scale[0] == scale[1]:
                raise DataError(f"{examples[0].location}: here and in all other examples the number is {scale[0]:g}; a "
                                "cosine stands for numbers between the lowest and the highest")  # fmt: skip
        task = cls(tokenizer, config, data, labels=("value",), scale=scale)
        task._start = float(np.mean(values)), float(np.std(values)) or 1.0
        return task

    @classmethod
    def from_settings(cls, settings, tokenizer):
        task = super().from_settings(settings, tokenizer)
        if len(task.labels) != 1:
            raise DataError(
                f"the model gives {len(task.labels)} numbers a text ({', '.join(task.labels)}); expected one"
            )
        return task

    def to_tensors(self, examples, *, labelled):
        columns = self.text_columns(examples)
        if labelled:
            if len(examples) < 2:
                raise DataError(f"{examples[0].location}: the only example; a correlation needs two at least")
            columns["labels"] = tf.constant([number(example) for example in examples], tf.float32)
        return columns

    def build(self, encoder):
        model = super().build(encoder)
        if self._apart:
            return model
        # At usual rates the head alone would need thousands of updates to get from 0 to numbers about 100.
        mean, deviation = self._start
        layer = model.get_layer("classifier")
        layer.kernel.assign(layer.kernel * deviation)
        layer.bias.assign(layer.bias + mean)
        return model

    @property
    def _apart(self):
        return self.config.head == "cosine"

    def preprocess(self, columns):
        if not self._apart:
            return super().preprocess(columns)
        made, truncated = [], []
        for text in (columns[spec.name] for spec in self.inputs()):
            ids, _, lost = truncate(
                self.tokenizer.tokenize(text), budget=self.config.max_length - 2, keep=self.config.long_texts
            )
            made.append(pack(ids, cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id))
            truncated.append(lost)
        ids, types = (tf.stack(values, 1) for values in zip(*made, strict=True))  # [rows, 2, None]
        rows = tf.range(tf.size(truncated[0], tf.int64))
        made = {"input_word_ids": ids, "input_type_ids": types, "row": rows, "truncated": tf.reduce_any(truncated, 0)}
        return made | {name: columns[name] for name in ("labels",) if name in columns}

    def pad(self, features):
        dense = super().pad(features)
        if self._apart:  # two sequences an example, also where there is no example that shows it
            for name in ("input_word_ids", "input_mask", "input_type_ids"):
                dense[name] = tf.reshape(dense[name], tf.stack([-1, 2, tf.shape(dense[name])[2]]))
        return dense

    def _numbers(self, outputs):
        """float32 [rows]: the numbers that the model's outputs stand for."""
        values = outputs["logits"][:, 0]
        if not self._apart:
            return values
        low, high = self.scale
        return low + (high - low) * values

    def weights(self, features):
        return {"loss": tf.cast(tf.size(features["labels"]), tf.float32)}

    def loss_and_metrics(self, features, outputs):
        errors = self._numbers(outputs) - features["labels"]
        return {
            "loss": (tf.reduce_sum(tf.square(errors)), self.weights(features)["loss"]),
            "truncated_share": truncated_share(features),
        }

    def postprocess(self, features, outputs):
        return {"values": self._numbers(outputs)[:, tf.newaxis]}

    def aggregate_windows(self, columns, rows, decoded):
        values = pooled(decoded["values"], rows, tf.shape(columns["text"])[0])[:, 0]
        return {"value": tf.clip_by_value(values, *self.scale) if self.scale else values}

    def example_outputs(self, columns, answers):
        return {"outputs": answers["value"]}

    def predictions(self, examples, answers):
        values = answers["value"].tolist()
        return [{"id": example.id, "value": value} for example, value in zip(examples, values, strict=True)]

    def official_metrics(self, examples, predictions):
        gold, found = _values(examples, predictions)
        if self.glue:
            return glue_scores(self.glue, gold, found)
        scores = correlations(gold, found)
        return scores | binary_f1(gold >= _PARAPHRASE, found >= _PARAPHRASE) if self._of_klue() else scores

    def _intervals(self, gold, found):
        measure = correlations_of_resamples(gold, found)
        metric = (lambda counts: with_score(measure(counts))) if self.glue else measure
        intervals = bootstrap.intervals_of_counts(metric, [np.arange(len(gold))], [len(gold)])
        if not self._of_klue():
            return intervals
        columns = ((values >= _PARAPHRASE).astype(int) for values in (gold, found))
        return intervals | class_intervals(lambda counts: {"f1": counts.f1_of(True)}, [False, True], *columns)

    def _of_klue(self):
        return self.data.format == "klue/sts"

    def baseline(self, examples):
        mean = float(np.mean([number(example) for example in examples]))
        return self.official_metrics(examples, [{"value": mean}] * len(examples))

    def error_analysis(self, examples, predictions):
        gold, found = _values(examples, predictions)
        worst = np.argsort(-np.abs(gold - found), kind="stable")[:LISTED]
        return ErrorAnalysis(
            intervals=self._intervals(gold, found),
            errors=[
                ErrorExample(examples[index].texts, f"{gold[index]:g}", f"{found[index]:.3g}", examples[index].location)
                for index in worst
            ],
        )

    def writers(self):
        return super().writers() | {".tsv": _write_table}


def number(example):
    """The label as a float.

    Raises:
        DataError: it is none.
    """
    try:
        value = math.nan if "_" in str(example.label) else float(example.label)  # of "1_5" Python makes 15
    except (TypeError, ValueError):
        value = math.nan
    if not str(example.label).strip():
        raise DataError(f"{example.location}: the label is empty; expected a number")
    if not math.isfinite(value):
        raise DataError(f"{example.location}: label {example.label!r}; expected a number")
    return value


def _values(examples, predictions):
    gold = np.array([number(example) for example in examples])
    return gold, np.array([prediction["value"] for prediction in predictions])


def _write_table(path, predicted):
    """A TSV of one column."""
    write_table(path, ["value"], ([prediction["value"]] for _, prediction in predicted))
