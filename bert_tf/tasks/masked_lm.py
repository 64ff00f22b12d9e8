"""The masked language model (paper, section 3.1, task 1); when served, it fills in the masks of a text."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import keras
import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.model import fused
from bert_tf.model.chunks import map_in_chunks
from bert_tf.model.encoder import BertEncoder, encoder_of
from bert_tf.model.head_table import build
from bert_tf.model.mode import infer
from bert_tf.tasks.objective import PredictionObjective, Predictions
from bert_tf.tasks.signatures import DEFAULT, TOKENS, Served, signature, token_signature
from bert_tf.tasks.task import PretrainingTask
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.packing import dense_features, truncate
from bert_tf.types import Tensors, TfFunction

# Predictions for each mask.
_FILLINGS = 5
# What tf.custom_gradient expects: the values and the function from their upstream gradients to the gradients.
_WithGradient: TypeAlias = tuple[tuple[tf.Tensor, tf.Tensor], Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, None]]]


class FillMask(Served):
    """The codec of masked language models: fills in the mask tokens of a text.

    Args:
        tokenizer: tokenizes the texts.
        max_length: tokens per input, special tokens included.
    """

    reads_masks = True
    counted: Mapping[str, tuple[str, ...]] = types.MappingProxyType({
        "mask_count": ("tokens", "continues", "ids", "probabilities")
    })  # fmt: skip

    def __init__(self, tokenizer: BaseTokenizer, max_length: int) -> None:
        self.tokenizer, self._max_length = tokenizer, max_length

    def inputs(self) -> tuple[tf.TensorSpec, ...]:
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def token_features(self, columns: Tensors) -> Tensors:
        ids = self.tokenizer.tokenize(columns["text"], special_tokens=True)
        ids, _, _ = truncate(ids, budget=self._max_length - self.tokenizer.specials())
        return dense_features(*self.tokenizer.pack(ids))

    def signatures(self, model: keras.Model) -> dict[str, TfFunction]:
        if encoder_of(model).config.attention == "causal":
            raise ConfigError("a causal model cannot fill in masks; fine-tune it and export that")

        def fill(features: Tensors) -> Tensors:
            return self._fillings(model, features)

        def fill_text(text: tf.Tensor) -> Tensors:
            answers = fill(self.token_features({"text": text}))
            return {name: value for name, value in answers.items() if name != "ids"}

        return {DEFAULT: signature(fill_text, self.inputs()), TOKENS: token_signature(model, fill)}

    def _fillings(self, model: keras.Model, features: Tensors) -> Tensors:
        """The most probable tokens for every mask, in graph code.

        Args:
            model: a model as `MaskedLMObjective.build` returns.
            features: the encoder's inputs, int32 [batch, length].

        Returns:
            tokens string, as to be shown; continues bool, whether a token joins the text before the mask without a
            space; ids int32 and probabilities float32: each [batch, masks, 5], where masks is the largest number of
            masks in a row; rows with fewer are padded with "", False and 0. mask_count int32 [batch].
        """
        ids = features["input_word_ids"]
        masks = tf.where(ids == self.tokenizer.mask_id)
        batch = tf.shape(ids, out_type=tf.int64)[0]
        positions = tf.RaggedTensor.from_value_rowids(tf.cast(masks[:, 1], tf.int32), masks[:, 0], nrows=batch)
        is_mask = tf.expand_dims(tf.ones_like(positions).to_tensor() > 0, -1)  # [batch, masks, 1]

        def most_probable(part: Tensors) -> Tensors:
            logits = infer(model, part)["mlm_logits"]
            probabilities, best = tf.math.top_k(tf.nn.softmax(logits), min(_FILLINGS, logits.shape[-1]))
            return {"probabilities": probabilities, "ids": best}

        best = map_in_chunks(most_probable, features | {"masked_lm_positions": positions.to_tensor()})
        return {
            "tokens": tf.where(is_mask, tf.gather(tf.constant(self.tokenizer.readable), best["ids"]), ""),
            "continues": is_mask & tf.gather(self.tokenizer.continues, best["ids"]),
            "ids": tf.where(is_mask, best["ids"], 0),
            "probabilities": tf.where(is_mask, best["probabilities"], 0.0),
            "mask_count": tf.cast(positions.row_lengths(), tf.int32),
        }


class MaskedTokenObjective(PredictionObjective):
    """Base class of objectives that predict the masked tokens.

    `losses` and `metric_names` begin with the names of the cross-entropy and of the accuracy, NAME_loss and
    NAME_accuracy; the model returns NAME_logits, float32 [batch, predictions, vocabulary].
    """

    def weights(self, features: Tensors) -> dict[str, tf.Tensor]:
        # The constant is google-research/bert's (run_pretraining.py): a batch without masks must not divide by zero.
        return {self.losses[0]: tf.reduce_sum(features["masked_lm_weights"]) + 1e-5}

    def predictions(self, features: Tensors, outputs: Tensors) -> Predictions:
        masked, name = features["masked_lm_ids"], self.losses[0].removesuffix("_loss")
        loss, best = sparse_cross_entropy(outputs[f"{name}_logits"], masked)
        values = {f"{name}_loss": loss, f"{name}_accuracy": tf.cast(best == masked, tf.float32)}
        return Predictions(values, features["masked_lm_weights"])

    def positions(self, features: Tensors) -> tf.Tensor:
        return features["masked_lm_positions"]


class CorpusObjective(PredictionObjective):
    """Base class of objectives on features as `inputs.corpus.dataset` makes them; also counts their tokens and masks.

    Args:
        tokenizer: of the text.
        max_length: tokens per input, special tokens included.
        languages: as for `PredictionObjective`; the number of tokens of each is counted, too, as "ko/tokens".
    """

    def __init__(self, tokenizer: BaseTokenizer, max_length: int, languages: Sequence[str] = ()) -> None:
        super().__init__(languages)
        self.totals = tuple(f"{language}/tokens" for language in languages)
        self.metric_names += ("padding_share", "unknown_share", *self.totals)
        self._max_length, self._unknown = max_length, tokenizer.unk_id
        self._others = sorted({*tokenizer.special_ids} - {tokenizer.unk_id})
        self.histograms = dict.fromkeys(("sequence_length", "masks_a_sequence"), max_length + 1)

    def loss_and_metrics(self, features: Tensors, outputs: Tensors) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        padding = tf.cast(features["input_mask"] == 0, tf.float32)
        positions = tf.cast(tf.size(padding), tf.float32)
        ids = features["input_word_ids"]
        text = tf.reduce_all(ids[..., tf.newaxis] != self._others, -1) & (features["input_mask"] > 0)
        unknown, seen = (tf.math.count_nonzero(found, dtype=tf.float32) for found in (ids == self._unknown, text))
        metrics = super().loss_and_metrics(features, outputs)
        metrics |= {"padding_share": (tf.reduce_sum(padding), positions), "unknown_share": (unknown, seen)}
        if self.languages:
            tokens = self.by_language(1.0 - padding, features["language_ids"])
            metrics |= {f"{language}/tokens": (count, positions) for language, count in tokens.items()}
        return metrics

    def counts(self, features: Tensors) -> dict[str, tf.Tensor]:
        numbers = features["input_mask"]  # the number of each token's sequence: a row may have several
        # A sequence has at least two special tokens and one more; number 0 is padding.
        most = self._max_length // 3 + 1
        masked = tf.gather(numbers, features["masked_lm_positions"], batch_dims=1)
        lengths = _sums_by_sequence(numbers, tf.ones(tf.shape(numbers)), most)
        masks = _sums_by_sequence(masked, features["masked_lm_weights"], most)
        exists = tf.cast(lengths > 0, tf.float32)  # 0 for numbers without a sequence
        return {
            name: tf.math.unsorted_segment_sum(exists, tf.cast(values, tf.int32), bins)
            for (name, bins), values in zip(self.histograms.items(), (lengths, masks), strict=True)
        }


class MaskedLMObjective(CorpusObjective, MaskedTokenObjective):
    """Cross-entropy of the masked tokens; arguments as for `CorpusObjective`."""

    losses = ("mlm_loss",)
    metric_names: tuple[str, ...] = ("mlm_accuracy",)

    def build(self, encoder: BertEncoder) -> keras.Model:
        return build(encoder, "masked_lm")


class MaskedLM(PretrainingTask):
    """Prediction of masked tokens.

    Args:
        tokenizer, max_length: as for `PretrainingTask`.
        languages: as for `MaskedLMObjective`.
    """

    name = "masked_lm"
    codec: FillMask

    def __init__(self, tokenizer: BaseTokenizer, max_length: int, languages: Sequence[str] = ()) -> None:
        super().__init__(tokenizer, max_length)
        self.codec, self.objective = (
            FillMask(tokenizer, max_length),
            MaskedLMObjective(tokenizer, max_length, languages),
        )


def _sums_by_sequence(numbers: tf.Tensor, values: tf.Tensor, most: int) -> tf.Tensor:
    """Sums of `values` by sequence: float32 [batch * most], from numbers int32 and values float32 [batch, n]."""
    rows = tf.shape(numbers)[0]
    indices = tf.range(rows)[:, tf.newaxis] * (most + 1) + numbers
    sums = tf.math.unsorted_segment_sum(tf.reshape(values, [-1]), tf.reshape(indices, [-1]), rows * (most + 1))
    return tf.reshape(tf.reshape(sums, [rows, most + 1])[:, 1:], [-1])


@tf.custom_gradient
def sparse_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> _WithGradient:
    """-log softmax(logits)[label], as tf.nn.sparse_softmax_cross_entropy_with_logits, and the best class.

    Built on TensorFlow's softmax, which is faster than its kernel for this: 1280 x 30522 with gradient take 62 instead
    of 160 ms of a processor.

    Args:
        logits: float32 [..., classes].
        labels: int32 [...], below `classes`.

    Returns:
        (float32 [...], int32 [...]): the losses, and the class with the highest logit.
    """
    classes = tf.shape(logits)[-1]
    rows, flat = tf.reshape(logits, [-1, classes]), tf.reshape(labels, [-1])
    probabilities = tf.nn.softmax(rows)
    best = tf.argmax(rows, -1, tf.int32)
    # The highest probability is at least 1 / classes, so its logarithm is exact; another one may round to 0.
    loss = _at(rows, best) - _at(rows, flat) - tf.math.log(_at(probabilities, best))
    gradient_of = fused.cross_entropy_gradient.on(rows)

    def backward(upstream: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, None]:
        gradient = gradient_of(probabilities, flat, tf.reshape(upstream, [-1]))
        return tf.reshape(gradient, tf.shape(logits)), None

    return (tf.reshape(loss, tf.shape(labels)), tf.reshape(best, tf.shape(labels))), backward


def _at(values: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """The value in the given column of each row: [rows, columns], int32 [rows] -> [rows]."""
    return tf.gather(values, columns, batch_dims=1)
