"""The encoder's layers: embeddings, self-attention, transformer block (paper, section 3; Vaswani et al., 2017)."""

import math
from collections.abc import Callable
from typing import Any, Self

import keras
import tensorflow as tf

from bert_tf.config import BertConfig, from_dict, to_dict
from bert_tf.config.model import has_bias
from bert_tf.errors import ConfigError
from bert_tf.model import flash, long_rows
from bert_tf.model.activations import Gated, activation
from bert_tf.model.compute import (
    AttentionForm,
    CompiledAttention,
    CompiledDense,
    DenseForm,
    InferredAttention,
    InferredDense,
    PlainAttention,
    PlainDense,
)
from bert_tf.model.dropout import Dropout
from bert_tf.model.mode import AllPositions, current, repeatable
from bert_tf.model.normalization import LayerNorm, Shape
from bert_tf.model.positions import rotated
from bert_tf.types import Json


def initializer(config: BertConfig, *, always: bool = False) -> keras.initializers.Initializer:
    """Truncated normal with the config's standard deviation; zeros in a mode of zeros, unless `always`."""
    # Made in any case: it takes its seed from Python's random numbers, which weights that are drawn later follow.
    drawn = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
    return keras.initializers.Zeros() if current().zeros and not always else drawn


def sublayer_initializers(config: BertConfig) -> tuple[keras.initializers.Initializer, keras.initializers.Initializer]:
    """As `initializer`, for the first dense layer of attention or feed-forward network and for the last one."""
    first = initializer(config)
    if current().zeros:
        return first, first
    range_of_last = config.initializer_range / (math.sqrt(2 * config.num_layers) if config.initializer_by_depth else 1)
    # The next seed: with the same one, the last kernel would have the numbers of the first, in another shape.
    return first, keras.initializers.TruncatedNormal(stddev=range_of_last, seed=first.seed + 1)


@keras.saving.register_keras_serializable("bert_tf")
class Dense(keras.layers.Dense):
    """keras.layers.Dense that computes in one of several ways.

    Attributes:
        converted: computes instead of the layer's own weights; None for these.
    """

    converted: DenseForm | None = None

    @property
    def compute(self) -> DenseForm:
        """How it computes now."""
        return self.converted or _DENSE_FORMS[current().way(self.compute_dtype)](self)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        outputs = self.compute(flattened(inputs))
        return outputs if inputs.shape.rank == 2 else unflattened(outputs, inputs)

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        """Raises ConfigError: an encoder is rebuilt from its `BertConfig`, which knows no quantized layers."""
        raise ConfigError(
            f"layer {self.path!r} of the encoder cannot be quantized to {mode or getattr(config, 'mode', mode)!r}: the "
            "model could not be loaded again; export it with optimize='int8' or 'int4', or quantize other layers only "
            "(filters=...)"
        )


_DENSE_FORMS = {"plain": PlainDense, "compiled": CompiledDense, "inference": InferredDense}


def flattened(inputs: tf.Tensor) -> tf.Tensor:
    """[..., size] -> [rows, size]."""
    return inputs if inputs.shape.rank == 2 else tf.reshape(inputs, [-1, inputs.shape[-1]])


def unflattened(rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """[rows, size] -> [..., size], with all but the last dimension of `like`."""
    return tf.reshape(rows, tf.concat([tf.shape(like)[:-1], [rows.shape[-1]]], 0))


class ConfiguredLayer(keras.layers.Layer):
    """Base class of layers that are created, and saved, with the encoder's config."""

    def __init__(self, config: BertConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config

    def get_config(self) -> Json:
        return super().get_config() | {"config": to_dict(self.config)}

    @classmethod
    def from_config(cls, config: Json) -> Self:
        return cls(**(config | {"config": read_config(config["config"])}))


class NumberedLayer(ConfiguredLayer):
    """Base class of a block's layers whose size depends on the number of the block in the encoder, from 0."""

    def __init__(self, config: BertConfig, index: int = 0, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.index = index

    def get_config(self) -> Json:
        return super().get_config() | {"index": self.index}


def layer_norm(config: BertConfig, name: str, dtype: keras.DTypePolicy) -> LayerNorm:
    """A LayerNorm of the encoder."""
    return LayerNorm(config.layer_norm_epsilon, config.norm_offset, name=name, dtype=dtype)


def transform_layer(config: BertConfig, units: int, dtype: keras.DTypePolicy) -> Dense:
    """The dense layer with the encoder's activation at the beginning of a head."""
    return Dense(
        units,
        activation(config.activation),
        use_bias=config.biases,
        kernel_initializer=initializer(config),
        name="transform",
        dtype=dtype,
    )


@keras.saving.register_keras_serializable("bert_tf")
class HeadTransform(ConfiguredLayer):
    """Dense layer, the pooler's activation and LayerNorm: states [..., hidden] -> [..., hidden].

    Of models with `head_transform` the pooler, and the beginning of heads on tokens.
    """

    def __init__(self, config: BertConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.dense = Dense(
            config.hidden_size,
            activation(config.pooler_activation),
            use_bias=config.biases,
            kernel_initializer=initializer(config, always=True),
            name="dense",
            dtype=self.dtype_policy,
        )
        self.norm = layer_norm(config, "norm", self.dtype_policy)

    def build(self, states_shape: Shape) -> None:
        self.dense.build(states_shape)
        self.norm.build(states_shape)

    def call(self, states: tf.Tensor) -> tf.Tensor:
        return self.norm(self.dense(states))

    def compute_output_shape(self, states_shape: Shape) -> Shape:
        return states_shape


def read_config(values: Json) -> BertConfig:
    """Reads the config of an encoder or layer from a .keras file."""
    return from_dict(BertConfig, values)


@keras.saving.register_keras_serializable("bert_tf")
class Embeddings(ConfiguredLayer):
    """Sum of word, position and segment embeddings, LayerNorm, dropout (paper, figure 2).

    With `embedding_size`, then a projection to the hidden size (Lan et al., 2019, arXiv:1909.11942, section 3.1).

    Args:
        config: shape of the encoder.
        tables: another layer of the same width, built, whose tables and LayerNorm this one shares; None for its own.

    Attributes:
        converted: looks words up in a converted table; None for the layer's own.
    """

    converted: Callable[[tf.Tensor], tf.Tensor] | None = None
    norm: LayerNorm
    word_embeddings: keras.Variable
    position_embeddings: keras.Variable
    type_embeddings: keras.Variable

    def __init__(self, config: BertConfig, tables: Self | None = None, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.norm = tables.norm if tables else layer_norm(config, "norm", self.dtype_policy)
        # Not as an attribute: Keras would take the rest of that layer for a part of this one.
        self._shared = (lambda: tables) if tables else None
        self.dropout = Dropout(config.dropout, dtype=self.dtype_policy)
        if config.embedding_size:
            self.projection = Dense(
                config.hidden_size,
                kernel_initializer=initializer(config),
                name="projection",
                dtype=self.dtype_policy,
            )

    def build(
        self, ids_shape: Shape, type_ids_shape: Shape | None = None, positions_shape: Shape | None = None
    ) -> None:
        config = self.config

        def table(rows: int, name: str) -> keras.Variable:
            # autocast=False: casting the rows that are looked up is much cheaper than casting the whole table.
            shape = (rows, config.embedding_width)
            return self.add_weight(shape=shape, initializer=initializer(config), name=name, autocast=False)

        if self._shared:
            tables = self._shared()
            self.word_embeddings = tables.word_embeddings
            if config.position_rows:
                self.position_embeddings = tables.position_embeddings
            if config.type_vocab_size:
                self.type_embeddings = tables.type_embeddings
        else:
            self.word_embeddings = table(config.vocab_size, "word_embeddings")
            if config.position_rows:
                self.position_embeddings = table(config.position_rows, "position_embeddings")
            if config.type_vocab_size:
                self.type_embeddings = table(config.type_vocab_size, "type_embeddings")
            self.norm.build((None, None, config.embedding_width))
        if config.embedding_size:
            self.projection.build((None, None, config.embedding_size))

    def call(
        self, ids: tf.Tensor, type_ids: tf.Tensor, positions: tf.Tensor | None = None, training: bool = False
    ) -> tf.Tensor:
        x = self.lookup(ids) + self._type_vectors(type_ids)  # [batch, length, width]
        if self.config.position_rows:
            x += self._position_vectors(ids, positions)
        x = self.dropout(self.norm(x), training=training)
        return self.projection(x) if self.config.embedding_size else x  # [batch, length, hidden]

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Word embeddings of ids [batch, length]: [batch, length, width]."""
        return tf.gather(self.word_embeddings, ids) if self.converted is None else self.converted(ids)

    def _position_vectors(self, ids: tf.Tensor, positions: tf.Tensor | None) -> tf.Tensor:
        offset = self.config.position_offset
        if positions is None:
            # Padding follows the tokens of a row, so the position is the index in the row.
            return self.position_embeddings[offset : offset + tf.shape(ids)[1]]
        return tf.gather(self.position_embeddings, offset + positions)

    def _type_vectors(self, type_ids: tf.Tensor) -> tf.Tensor | float:
        if self.config.type_vocab_size < 2:
            return self.type_embeddings[0] if self.config.type_vocab_size else 0.0
        # A product with about two rows: the gradient of a gather would add up [batch * length] rows one by one.
        types = tf.one_hot(type_ids, self.config.type_vocab_size, dtype=self.type_embeddings.dtype)
        return tf.matmul(types, self.type_embeddings)

    def compute_output_shape(
        self, ids_shape: Shape, type_ids_shape: Shape | None = None, positions_shape: Shape | None = None
    ) -> Shape:
        return (*ids_shape, self.config.hidden_size)


@keras.saving.register_keras_serializable("bert_tf")
class SelfAttention(NumberedLayer):
    """Multi-head self-attention with its output projection; query, key and value in one matmul.

    Not called itself: a `TransformerBlock` calls `attend` and adds the output projection to its input.

    Attributes:
        converted: computes in inference; None for float32.
    """

    converted: AttentionForm | None = None

    def __init__(self, config: BertConfig, index: int = 0, **kwargs: Any) -> None:
        super().__init__(config, index, **kwargs)
        self._heads_shape = config.layer_heads[index], config.head_size
        self._width = math.prod(self._heads_shape)
        # The kernel's columns are [3, heads, head_size]: query, key, value.
        first, last = sublayer_initializers(config)
        self.qkv = Dense(
            3 * self._width,
            name="qkv",
            use_bias=has_bias(config, "attention/qkv"),
            kernel_initializer=first,
            dtype=self.dtype_policy,
        )
        self.output_projection = Dense(
            config.hidden_size,
            name="output",
            use_bias=has_bias(config, "attention/output"),
            kernel_initializer=last,
            dtype=self.dtype_policy,
        )
        self.dropout = Dropout(config.attention_dropout, dtype=self.dtype_policy)
        self._distance = config.local_distance if index in config.local_layers else None

    def build(self, inputs_shape: Shape) -> None:
        self.qkv.build(inputs_shape)
        self.output_projection.build((*inputs_shape[:-1], self._width))

    def compute(self, training: bool) -> AttentionForm:
        """How it computes now."""
        if not training:
            return self.converted or InferredAttention()
        return CompiledAttention() if current().way(self.compute_dtype) == "compiled" else PlainAttention()

    def attend(
        self, rows: tf.Tensor, layout: AllPositions, seen: tf.Tensor, positions: tf.Tensor | None, training: bool
    ) -> tf.Tensor:
        """Attention without the output projection, from [rows, hidden] of this layout to [rows, heads * head_size]."""
        compute, causal = self.compute(training), self.config.attention == "causal"
        # Not through the layer of dropout if there is none, which would convert the probabilities to its dtype.
        dropout = self.dropout if training else None
        qkv = layout.with_padding(self.qkv(rows))
        if self._distance:
            qkv = tf.reshape(qkv, [layout.shape[0], layout.shape[1], 3 * self._width])

            def heads_at(states: tf.Tensor, at: tf.Tensor) -> list[tf.Tensor]:
                # Not by the shape of the states, which tf2onnx would take for that of the rows before they were cut.
                return self._heads(states, None if positions is None else at, [-1, tf.shape(at)[1]])

            context = long_rows.local(compute, heads_at, qkv, seen, self._distance, causal, dropout)
            return layout.without_padding(tf.reshape(context, [-1, self._width]))
        if self.converted is None and flash.suits(
            qkv.dtype, self.config.head_size, layout.shape, seen, causal, dropout
        ):
            query, key, value = self._heads(qkv, positions, layout.shape, heads=2)
            context = flash.attention(query, key, value, flash.mask_of(seen, causal))
            return layout.without_padding(tf.reshape(context, [-1, self._width]))
        query, key, value = self._heads(qkv, positions, layout.shape)
        if long_rows.is_long(self.config):
            context = long_rows.of_all(compute, query, key, value, seen, dropout, causal=causal)
        else:
            context = compute(query, key, value, seen, dropout)
        return layout.without_padding(long_rows.side_by_side(context))

    def probabilities(self, inputs: tf.Tensor, seen: tf.Tensor, positions: tf.Tensor | None) -> tf.Tensor:
        """Attention probabilities without dropout: float32 [batch, heads, length, length]."""
        query, key, _ = self._heads(self.qkv(inputs), positions, tf.shape(inputs))
        if seen.shape.rank == 2:
            at = tf.expand_dims(tf.range(tf.shape(seen)[1]), 0)
            seen = long_rows.score_bias((seen, at), (seen, at), self._distance, self.config.attention == "causal")
        return InferredAttention().probabilities(query, key, seen)

    def _heads(
        self, states: tf.Tensor, positions: tf.Tensor | None, shape: tf.Tensor | list[tf.Tensor], heads: int = 1
    ) -> list[tf.Tensor]:
        """Query, key and value, or some of them, each [batch, heads, length, head_size], from their columns.

        Args:
            states: [batch, length, columns], in any shape.
            positions: int32 [batch or 1, length], by which query and key are rotated; None for no rotation.
            shape: int32, batch and length first.
            heads: their dimension: 2 for [batch, length, heads, head_size], which takes no transposition.
        """
        count = states.shape[-1] // self._width
        states = tf.reshape(states, [shape[0], shape[1], count, *self._heads_shape])
        parts = tf.unstack(tf.transpose(states, [2, 0, 3, 1, 4])) if heads == 1 else tf.unstack(states, axis=2)
        if positions is not None:
            turned = max(count - 1, 1)  # the last of several is the value
            base = self.config.local_rotary_base if self._distance else current().rotary_base or self.config.rotary_base
            parts[:turned] = [rotated(part, positions, base, heads) for part in parts[:turned]]
        return parts


@keras.saving.register_keras_serializable("bert_tf")
class WithoutPadding(keras.layers.Layer):
    """States [batch, length, hidden] -> [rows, hidden] of the layout of the mode; without one, unchanged."""

    def call(self, states: tf.Tensor) -> tf.Tensor:
        layout = current().layout
        return states if layout is None else layout.without_padding(flattened(states))


@keras.saving.register_keras_serializable("bert_tf")
class WithPadding(keras.layers.Layer):
    """The inverse of `WithoutPadding`; `like` [batch, length, ...] are states with padding."""

    def call(self, rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        layout = current().layout
        return rows if layout is None else unflattened(layout.with_padding(rows), like)


@keras.saving.register_keras_serializable("bert_tf")
class TransformerBlock(NumberedLayer):
    """Self-attention and a feed-forward network, each with dropout, residual and LayerNorm; of parts that the config
    names.
    """

    def __init__(self, config: BertConfig, index: int = 0, **kwargs: Any) -> None:
        super().__init__(config, index, **kwargs)
        policy, inner = self.dtype_policy, config.layer_intermediates[index]
        first, last = sublayer_initializers(config)
        gated, applied = config.feed_forward == "gated", activation(config.activation)
        self._pre = config.norm == "pre"
        self.attention = SelfAttention(config, index, name="attention", dtype=policy)
        has_norm = index > 0 or config.first_norm
        self.attention_norm = (
            layer_norm(config, "attention_norm", policy) if has_norm else keras.layers.Identity(dtype=policy)
        )
        self.intermediate = Dense(
            2 * inner if gated else inner,
            Gated(applied) if gated else applied,
            name="intermediate",
            use_bias=has_bias(config, "intermediate"),
            kernel_initializer=first,
            dtype=policy,
        )
        self.output_projection = Dense(
            config.hidden_size,
            name="output",
            use_bias=has_bias(config, "output"),
            kernel_initializer=last,
            dtype=policy,
        )
        self.output_norm = layer_norm(config, "output_norm", policy)
        self.dropout = Dropout(config.dropout, dtype=policy)
        own = config.attention_output_dropout
        self.attention_dropout = None if own is None else Dropout(own, dtype=policy)

    def build(self, inputs_shape: Shape, seen_shape: Shape | None = None, positions_shape: Shape | None = None) -> None:
        intermediate_shape = (*inputs_shape[:-1], self.config.layer_intermediates[self.index])
        self.attention.build(inputs_shape)
        self.attention_norm.build(inputs_shape)
        self.intermediate.build(inputs_shape)
        self.output_projection.build(intermediate_shape)
        self.output_norm.build(inputs_shape)

    def call(
        self, inputs: tf.Tensor, seen: tf.Tensor, positions: tf.Tensor | None = None, training: bool = False
    ) -> tf.Tensor:
        """The block on states [batch, length, hidden], or in a mode with a layout on [rows, hidden].

        Args:
            inputs: the states.
            seen: added to the scores of the attention, as it broadcasts to [batch, heads, length, length]; or the mask
                int32 [batch, length], from which layers compute that for parts of a row, see `BertEncoder`.
            positions: int32 [batch or 1, length]; None unless the config says "rotary".
            training: whether there is dropout.
        """
        mode = current()
        if mode.layout is not None:
            return self._rows(inputs, mode.layout, seen, positions, training)

        def block(inputs: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
            # Rows throughout: reshapes and their shapes would be half of the ops.
            layout = AllPositions(tf.shape(inputs))
            return unflattened(self._rows(flattened(inputs), layout, seen, positions, training), inputs)

        return (tf.recompute_grad(repeatable(block)) if training and mode.recompute else block)(inputs, seen)

    def attention_probabilities(self, inputs: tf.Tensor, seen: tf.Tensor, positions: tf.Tensor | None) -> tf.Tensor:
        """Attention probabilities for the block's inputs: float32 [batch, heads, length, length]."""
        return self.attention.probabilities(self._attended(inputs), seen, positions)

    def queries_keys_values(self, inputs: tf.Tensor) -> tf.Tensor:
        """Queries, keys and values for the block's inputs, before any rotation, heads side by side: [batch, length,
        3 * heads * head_size].
        """
        return self.attention.qkv(self._attended(inputs))

    def _attended(self, inputs: tf.Tensor) -> tf.Tensor:
        """The states that the attention reads."""
        return self.attention_norm(inputs) if self._pre else inputs

    def _rows(
        self, x: tf.Tensor, layout: AllPositions, seen: tf.Tensor, positions: tf.Tensor | None, training: bool
    ) -> tf.Tensor:
        """The block on inputs [rows, hidden]."""
        context = self.attention.attend(self._attended(x), layout, seen, positions, training)
        dropout = self.dropout if training else None
        dropout_of_context = self.attention_dropout if training and self.attention_dropout else dropout
        # Not as Keras layers, which would check the number of columns: exports in int8 have additional ones.
        x = self.attention.output_projection.compute.added(x, context, dropout_of_context)
        x = x if self._pre else self.attention_norm(x)
        intermediate = self.intermediate(self.output_norm(x) if self._pre else x)
        x = self.output_projection.compute.added(x, intermediate, dropout)
        return x if self._pre else self.output_norm(x)

    def compute_output_shape(
        self, inputs_shape: Shape, seen_shape: Shape | None = None, positions_shape: Shape | None = None
    ) -> Shape:
        return inputs_shape
