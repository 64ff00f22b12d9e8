"""The masked language model alone (paper, section 3.1, task 1); served, it fills in [MASK]."""

import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.inputs.packing import dense_features, pack, truncate
from bert_tf.model.build import build
from bert_tf.model.chunks import map_in_chunks
from bert_tf.model.encoder import encoder_of
from bert_tf.tasks.signatures import DEFAULT, TOKENS, signature, token_signature
from bert_tf.tasks.task import Task

# Answers for each [MASK].
_FILLINGS = 5


class MaskedLM(Task):
    """Predicts masked tokens; features as `inputs.corpus.pretraining` makes them.

    Args:
        tokenizer: Tokenizer.
        max_length: tokens an input, specials counted.
    """

    name = "masked_lm"
    losses = ("mlm_loss",)
    metric_names = ("mlm_accuracy", "padding_share")

    def __init__(self, tokenizer, max_length):
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.histograms = dict.fromkeys(("sequence_length", "masks_a_sequence"), max_length + 1)

    def settings(self):
        return {"max_length": self.max_length}

    @classmethod
    def from_settings(cls, settings, tokenizer):
        return cls(tokenizer, **settings)

    def build(self, encoder):
        return build(encoder, self.head(self.settings()))

    def weights(self, features):
        # The constant is google-research/bert's (run_pretraining.py): a batch without masks must not divide by zero.
        return {"mlm_loss": tf.reduce_sum(features["masked_lm_weights"]) + 1e-5}

    def loss_and_metrics(self, features, outputs):
        masks, masked = features["masked_lm_weights"], features["masked_lm_ids"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(masked, outputs["mlm_logits"])
        found = tf.cast(tf.argmax(outputs["mlm_logits"], -1, tf.int32) == masked, tf.float32)
        count = tf.reduce_sum(masks)
        padding = tf.cast(features["input_mask"] == 0, tf.float32)
        return {
            "mlm_loss": (tf.reduce_sum(loss * masks), count),
            "mlm_accuracy": (tf.reduce_sum(found * masks), count),
            "padding_share": (tf.reduce_sum(padding), tf.cast(tf.size(padding), tf.float32)),
        }

    def counts(self, features):
        numbers = features["input_mask"]  # of each token's sequence: there may be several in a row
        # Each has [CLS], [SEP] and another token at least; number 0 is padding.
        most = self.max_length // 3 + 1
        masked = tf.gather(numbers, features["masked_lm_positions"], batch_dims=1)
        lengths = _a_sequence(numbers, tf.ones(tf.shape(numbers)), most)
        masks = _a_sequence(masked, features["masked_lm_weights"], most)
        there = tf.cast(lengths > 0, tf.float32)  # 0 for numbers that no sequence has
        return {
            name: tf.math.unsorted_segment_sum(there, tf.cast(values, tf.int32), bins)
            for (name, bins), values in zip(self.histograms.items(), (lengths, masks), strict=True)
        }

    def inputs(self):
        return (tf.TensorSpec([None], tf.string, name="text"),)

    def token_features(self, columns):
        ids = self.tokenizer.tokenize(columns["text"], special_tokens=True)
        ids, _, _ = truncate(ids, budget=self.max_length - 2)
        return dense_features(*pack(ids, cls_id=self.tokenizer.cls_id, sep_id=self.tokenizer.sep_id))

    def signatures(self, model):
        if encoder_of(model).config.attention == "causal":
            raise ConfigError("a model from left to right fills no [MASK]; fine-tune it and export that")

        def fill(features):
            return self._fillings(model, features)

        def fill_text(text):
            found = fill(self.token_features({"text": text}))
            return {name: value for name, value in found.items() if name != "ids"}

        return {DEFAULT: signature(fill_text, self.inputs()), TOKENS: token_signature(model, fill)}

    def _fillings(self, model, features):
        """The likeliest pieces for every [MASK], in graph code.

        Args:
            model: keras.Model.
            features: dict of the encoder's inputs, int32 [batch, length].

        Returns:
            dict: tokens string, ids int32 and probabilities float32, each [batch, masks, 5]: masks is the largest
            number of [MASK] in a row of the batch; "" and 0 where a row has fewer. mask_count int32 [batch].
        """
        ids = features["input_word_ids"]
        found = tf.where(ids == self.tokenizer.mask_id)
        batch = tf.shape(ids, out_type=tf.int64)[0]
        positions = tf.RaggedTensor.from_value_rowids(tf.cast(found[:, 1], tf.int32), found[:, 0], nrows=batch)
        shown = tf.expand_dims(tf.ones_like(positions).to_tensor() > 0, -1)  # [batch, masks, 1]

        def likeliest(part):
            logits = model(part, training=False)["mlm_logits"]
            probabilities, best = tf.math.top_k(tf.nn.softmax(logits), min(_FILLINGS, logits.shape[-1]))
            return {"probabilities": probabilities, "ids": best}

        best = map_in_chunks(likeliest, features | {"masked_lm_positions": positions.to_tensor()})
        return {
            "tokens": tf.where(shown, tf.gather(tf.constant(self.tokenizer.vocab), best["ids"]), ""),
            "ids": tf.where(shown, best["ids"], 0),
            "probabilities": tf.where(shown, best["probabilities"], 0.0),
            "mask_count": tf.cast(positions.row_lengths(), tf.int32),
        }


def _a_sequence(numbers, values, most):
    """Sums of `values` by sequence: float32 [batch * most], from numbers int32 and values float32 [batch, n]."""
    rows = tf.shape(numbers)[0]
    indices = tf.range(rows)[:, tf.newaxis] * (most + 1) + numbers
    sums = tf.math.unsorted_segment_sum(tf.reshape(values, [-1]), tf.reshape(indices, [-1]), rows * (most + 1))
    return tf.reshape(tf.reshape(sums, [rows, most + 1])[:, 1:], [-1])
