"""SpanBERT's training model: each masked token is predicted from its own encoding and from the bounds of its span.

Joshi et al., 2020, arXiv:1907.10529, section 3.2. Adjacent masked spans count as one, as in facebookresearch/SpanBERT,
so that the tokens at the bounds are always visible.
"""

from typing import Any

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import WEIGHTS, BertPretrainer, MaskedLanguageModelHead
from bert_tf.model.layers import ConfiguredLayer, initializer, transform_layer
from bert_tf.model.normalization import LayerNorm, Shape
from bert_tf.types import Json

POSITION_SIZE = 200  # of the embeddings of positions in a span, as in facebookresearch/SpanBERT


class SpanBoundaryLayer(ConfiguredLayer):
    """The first of the objective's two layers: dense, activation and LayerNorm on both bounds and the position.

    Inputs: states [batch, length, hidden], masked_lm_positions int32 and masked_lm_weights float32
    [batch, predictions]. Output: [batch, predictions, hidden].

    Args:
        config: shape of the encoder.
        longest: maximum number of tokens in a span.
    """

    def __init__(self, config: BertConfig, longest: int, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._longest = longest
        self.transform = transform_layer(config, config.hidden_size, self.dtype_policy)
        self.norm = LayerNorm(config.layer_norm_epsilon, name="norm", dtype=self.dtype_policy)

    def get_config(self) -> Json:
        return super().get_config() | {"longest": self._longest}

    def build(self, states_shape: Shape, positions_shape: Shape | None = None, weights_shape: Any = None) -> None:
        hidden = self.config.hidden_size
        self.position_embeddings = self.add_weight(
            shape=(self._longest, POSITION_SIZE),
            initializer=initializer(self.config),
            name="position_embeddings",
            autocast=False,
        )
        self.transform.build((None, None, 2 * hidden + POSITION_SIZE))
        self.norm.build((None, None, hidden))

    def call(self, states: tf.Tensor, positions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        left, right, indices = span_bounds(positions, weights > 0)
        bounds = tf.gather(states, tf.concat([left, right], 1), batch_dims=1)  # [batch, 2 * predictions, hidden]
        offsets = tf.cast(tf.gather(self.position_embeddings, indices), states.dtype)
        return self.norm(self.transform(tf.concat([*tf.split(bounds, 2, 1), offsets], -1)))

    def compute_output_spec(
        self, states: keras.KerasTensor, positions: keras.KerasTensor, weights: keras.KerasTensor
    ) -> keras.KerasTensor:
        return keras.KerasTensor((*positions.shape, states.shape[-1]), self.compute_dtype)


def span_bounds(positions: tf.Tensor, used: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The tokens around the span of each prediction; a span is a longest run of consecutive positions.

    Args:
        positions: int32 [batch, predictions], ascending in used slots.
        used: bool [batch, predictions], the used slots, which come first.

    Returns:
        int32 [batch, predictions] each: the positions before and after the span; the number of the token in its span,
        from 0. 0 in unused slots.
    """
    slots = tf.range(tf.shape(positions)[1])
    # The same in all slots of a run, and larger in each later run.
    runs = positions - slots
    together = (runs[:, :, tf.newaxis] == runs[:, tf.newaxis]) & used[:, tf.newaxis]  # [batch, predictions, those]
    before = tf.reduce_sum(tf.cast(together & (slots < slots[:, tf.newaxis]), tf.int32), 2)
    size = tf.reduce_sum(tf.cast(together, tf.int32), 2)
    left, right = positions - before - 1, positions - before + size
    return tf.where(used, left, 0), tf.where(used, right, 0), tf.where(used, before, 0)


def span_boundary(encoder: BertEncoder, longest: int) -> keras.Model:
    """A masked language model with the span boundary objective, for training.

    Args:
        encoder: of single sequences.
        longest: maximum number of tokens in a span.

    Returns:
        Model from the encoder's inputs, masked_lm_positions and masked_lm_weights to {"mlm_logits", "sbo_logits"},
        float32 [batch, predictions, vocabulary]: predictions from the encoding of each token, and from its bounds.
    """
    model = BertPretrainer(encoder, next_sentence=False)
    weights = keras.Input((None,), dtype="float32", name=WEIGHTS)
    states, positions = model.get_layer("masked_lm").input
    layer = SpanBoundaryLayer(encoder.config, longest, name="span_boundary", dtype=encoder.dtype_policy)
    head = MaskedLanguageModelHead(encoder.embeddings, name="span_boundary_output", dtype=encoder.dtype_policy)
    outputs = model.output | {"sbo_logits": head(layer(states, positions, weights))}
    both = keras.Model(model.input | {WEIGHTS: weights}, outputs)
    both.dtype_policy = encoder.dtype_policy
    return both
