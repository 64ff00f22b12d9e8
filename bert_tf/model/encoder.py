"""The BERT encoder as an ordinary Keras model, with the input and output names of the TF-Hub BERT models."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator
from typing import Any, NoReturn, Self

import keras
import tensorflow as tf

from bert_tf.config import BertConfig, FeatureConfig, to_dict
from bert_tf.config.values import checked_arguments, shown
from bert_tf.errors import ConfigError
from bert_tf.files import check_output
from bert_tf.model import long_rows
from bert_tf.model.activations import erf_gelu
from bert_tf.model.inputs import checked_inputs
from bert_tf.model.layers import (
    Dense,
    Embeddings,
    HeadTransform,
    TransformerBlock,
    WithoutPadding,
    WithPadding,
    initializer,
    layer_norm,
    read_config,
)
from bert_tf.model.memory import check_memory
from bert_tf.model.mode import Tokens, computing, current, inferred
from bert_tf.model.positions import (
    AttentionBias,
    CausalAttentionBias,
    LastToken,
    MeanOfTokens,
    PackedAttentionBias,
    PackedPositions,
    Positions,
    TokensAt,
)
from bert_tf.model.ranges import Ranges
from bert_tf.model.variables import encoder_shapes
from bert_tf.types import Json, StrPath, Tensors

# As arguments of a layer; Keras' own gelu would be exported as Erfc, which blocks do not need.
_POOLER_ACTIVATIONS: dict[str, Any] = {"tanh": "tanh", "relu": "relu", "erf_gelu": erf_gelu}
_FLOATS = ("float32", "bfloat16", "float16", "float64")
FIRST_TOKENS = "first_token_positions"  # input name: where each sequence of a packed row starts


def encoder_inputs() -> dict[str, keras.KerasTensor]:
    """Creates the three inputs, int32 [batch, length]: input_word_ids, input_mask (1 at tokens), input_type_ids."""
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


def encoder_of(model: keras.Model) -> "BertEncoder":
    """Returns the encoder, trainable or frozen, of a model from `heads.build`."""
    return next(encoders_of(model))


def encoders_of(model: keras.Model) -> Iterator["BertEncoder"]:
    """The encoders, trainable or frozen, among the layers of any model."""
    layers = (getattr(layer, "model", layer) for layer in (model, *model.layers))
    return (layer for layer in layers if isinstance(layer, BertEncoder))


def ranges_of(model: keras.Model) -> Ranges:
    """The ranges of a model whose encoder is fine-tuned for int8; without variables for any other model."""
    return next((encoder.ranges for encoder in encoders_of(model)), None) or Ranges(())


def attention_probabilities(encoder: "BertEncoder", features: Tensors) -> tf.Tensor:
    """Computes the attention probabilities of every layer and head, for visualization.

    Args:
        encoder: must not be packed.
        features: the encoder's inputs, int32 [batch, length].

    Returns:
        float32 [batch, layers, heads, length, length]: the last dimension sums to 1 over the attended tokens. Layers
        with fewer heads than others have zeros instead of these.
    """
    return inferred(_attention_probabilities, encoder, features)


def _attention_probabilities(encoder: "BertEncoder", features: Tensors) -> tf.Tensor:
    outputs = encoder(features, training=False)
    inputs = [outputs["embedding_output"], *outputs["encoder_outputs"][:-1]]  # of each layer
    config, mask = encoder.config, tf.convert_to_tensor(features["input_mask"])
    bias = encoder.get_layer("attention_bias")(mask)
    positions = encoder.get_layer("positions")(mask) if config.positions == "rotary" else None
    blocks = zip(itertools.cycle(encoder.blocks()), inputs, strict=False)
    found = [
        block.attention_probabilities(x, mask if _reads_mask(config, index) else bias, positions)
        for index, (block, x) in enumerate(blocks)
    ]
    most = max(config.layer_heads)
    return tf.stack([tf.pad(one, [[0, 0], [0, most - one.shape[1]], [0, 0], [0, 0]]) for one in found], 1)


class FunctionalModel(keras.Model):
    """Base class of functional models that are saved by the arguments of their constructors.

    Args:
        trainable: False freezes all layers.
        frozen: names of single layers that are not trained.
        **kwargs: arguments of a functional `keras.Model`.
    """

    def __init__(self, *, trainable: bool = True, frozen: Collection[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Not an argument of keras.Model: that marks only the model, and a model around it would train the layers.
        if not trainable:
            self.trainable = False
        names = [layer.name for layer in self.layers]
        for layer in frozen:
            if layer not in names:
                raise ConfigError(f"frozen names the layer {shown(layer)}; expected some of {', '.join(names)}")
            self.get_layer(layer).trainable = False

    @tf.autograph.experimental.do_not_convert  # it cannot convert super()
    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the model; other entries of a dict, such as labels, are ignored."""
        encoder = encoder_of(self)
        # Keras aligns dicts by position in the order of their keys: one more shifts the others, with only a warning.
        inputs = checked_inputs(inputs, list(self.input), encoder.config, encoder.packed)
        return super().__call__(inputs, *args, **kwargs)

    def get_config(self) -> Json:
        """Returns the config that `keras.saving` stores."""
        frozen = [layer.name for layer in self.layers if not layer.trainable]
        return {"name": self.name, "trainable": self.trainable, "frozen": frozen}


@keras.saving.register_keras_serializable("bert_tf")
class BertEncoder(FunctionalModel):
    """BERT without a head (Devlin et al., 2019, section 3).

    Called on a dict of int32 [batch, length] tensors (`input_word_ids`, `input_mask`, `input_type_ids`), it returns

    - `sequence_output` [batch, length, hidden]: the last layer;
    - `pooled_output` [batch, hidden]: a dense layer and its activation (tanh in BERT) on the first position, if
      config.pooler; with causal attention, on the last token;
    - `encoder_outputs`: list of num_layers tensors [batch, length, hidden];
    - `embedding_output` [batch, length, hidden]: the input of the first layer, so after the projection if there is one.

    A packed encoder has the same weights and reads rows of several sequences, for training. Its
    `input_mask` contains the number of each token's sequence in the row, from 1 (0 at padding). Tokens attend within
    their own sequence, and positions count from its start. An additional input, `first_token_positions` int32
    [batch, sequences], selects the tokens for pooled_output [batch, sequences, hidden].

    Args:
        config: shape of the encoder.
        dtype: Keras dtype policy, its name, e.g. "mixed_bfloat16", or its config; None for the global policy. LayerNorm
            and softmax compute in float32 whatever the policy.
        packed: whether rows contain several sequences.
        tables: as for `Embeddings`; with them the encoder cannot be saved as a Keras model.
        trainable: as for `FunctionalModel`.
        frozen: as for `FunctionalModel`.

    Attributes:
        ranges: those with which the encoder was fine-tuned for int8, and which an export in int8 will use; None to
            calibrate it. They suit the present weights only.

    Examples:
        >>> import tensorflow as tf
        >>> encoder = bert_tf.BertEncoder(bert_tf.BertConfig.from_name("tiny"))
        >>> ones = tf.ones((1, 5), tf.int32)
        >>> inputs = {"input_word_ids": ones, "input_mask": ones, "input_type_ids": 0 * ones}
        >>> encoder(inputs)["pooled_output"].shape
        TensorShape([1, 128])
    """

    ranges: Ranges | None = None

    @checked_arguments
    def __init__(
        self,
        config: BertConfig,
        *,
        dtype: keras.DTypePolicy | str | Json | None = None,
        packed: bool = False,
        tables: Embeddings | None = None,
        name: str = "encoder",
        trainable: bool = True,
        frozen: Collection[str] = (),
    ) -> None:
        config.check()
        if packed and config.attention == "causal":
            raise ConfigError("model.attention is 'causal', but packed rows need 'bidirectional'; set data.pairs=none")
        if packed and config.pooler and config.pooling == "mean":
            raise ConfigError("model.pooling is 'mean', but packed rows need 'first'; set data.pairs=none")
        try:
            policy = keras.dtype_policies.get(dtype)
        except (TypeError, ValueError):
            raise ConfigError(f"dtype is {shown(dtype)}; expected a Keras dtype policy, as 'mixed_bfloat16'") from None
        if policy.quantization_mode:
            raise ConfigError(f"dtype {policy.name!r} is quantized, an encoder is not; use 'bfloat16' or another float")
        if not {policy.compute_dtype, policy.variable_dtype} <= set(_FLOATS):
            raise ConfigError(f"dtype {policy.name!r}: an encoder computes in one of {', '.join(_FLOATS)}")
        if tables is None:  # else it is a part of a model that is larger
            check_memory(encoder_shapes(config).values(), config, size=tf.as_dtype(policy.variable_dtype).size)
        embeddings = Embeddings(config, tables, name="embeddings", dtype=policy)
        inputs = encoder_inputs()
        mask, embedded = inputs["input_mask"], [inputs["input_word_ids"], inputs["input_type_ids"]]
        rotary, positions = config.positions == "rotary", None
        if rotary:  # which count from anywhere: only the distances of tokens matter
            positions = Positions(name="positions")(mask)
        elif packed:
            embedded.append(PackedPositions(name="positions")(mask))
        x = embedded_tokens = embeddings(*embedded)
        causal = config.attention == "causal"
        bias_layer = PackedAttentionBias if packed else CausalAttentionBias if causal else AttentionBias
        bias = bias_layer(name="attention_bias", dtype="float32")(mask)
        x = WithoutPadding(name="without_padding", autocast=False)(x)
        with_padding = WithPadding(name="with_padding", autocast=False)
        layer_outputs = []
        blocks = [
            TransformerBlock(config, index, name=f"layer_{index}", dtype=policy) for index in range(config.num_blocks)
        ]
        others = [positions] if rotary else []
        for index, block in enumerate(blocks * (config.num_layers // config.num_blocks)):
            x = block(x, mask if _reads_mask(config, index, packed) else bias, *others)
            layer_outputs.append(with_padding(x, embedded_tokens))
        if config.norm == "pre":
            x = layer_norm(config, "final_norm", policy)(x)
            x = with_padding(x, embedded_tokens)
        else:
            x = layer_outputs[-1]
        outputs = {"embedding_output": embedded_tokens, "sequence_output": x, "encoder_outputs": layer_outputs}
        if config.pooler:
            pooler = _pooler(config, policy)
            if config.pooling == "mean":
                first = MeanOfTokens(name="mean_of_tokens", dtype="float32")(x, mask)
            elif packed:
                inputs[FIRST_TOKENS] = keras.Input((None,), dtype="int32", name=FIRST_TOKENS)
                first = TokensAt(name="first_tokens", autocast=False)(x, inputs[FIRST_TOKENS])
            else:
                first = LastToken(name="last_token", autocast=False)(x, mask) if causal else x[:, 0]
            outputs["pooled_output"] = pooler(first)
        else:
            outputs = collections.defaultdict(_no_such_output, outputs)
        super().__init__(inputs=inputs, outputs=outputs, name=name, trainable=trainable, frozen=frozen)
        self.config = config
        self.dtype_policy = policy
        self.embeddings = embeddings
        self.packed = packed

    def call(self, inputs: Tensors, training: bool | None = None, mask: Any = None) -> Any:
        mode = current()
        if mode.skip_padding and self.can_skip_padding:
            mode = dataclasses.replace(mode, layout=Tokens(tf.cast(inputs["input_mask"], tf.int32)))
        with computing(mode):
            return super().call(inputs, training=training, mask=mask)

    @property
    def can_skip_padding(self) -> bool:
        """Whether a mode that skips padding changes what this encoder computes."""
        return not self.packed and self.config.attention == "bidirectional"

    def blocks(self) -> list[TransformerBlock]:
        """The transformer layers, first to last; only one if all layers share it."""
        return [layer for layer in self.layers if isinstance(layer, TransformerBlock)]

    @checked_arguments
    def export(self, filepath: StrPath, *args: Any, **kwargs: Any) -> None:
        """Exports as `keras.Model.export` does; `encoder_outputs` becomes `encoder_outputs_0`, `encoder_outputs_1`, ...

        Outputs of a SavedModel's signature are tensors, not lists of them.
        """
        check_output(filepath, directory=True)
        outputs = {name: output for name, output in self.output.items() if name != "encoder_outputs"}
        layers = {f"encoder_outputs_{index}": output for index, output in enumerate(self.output["encoder_outputs"])}
        keras.Model(self.input, outputs | layers, name=self.name).export(filepath, *args, **kwargs)

    def get_config(self) -> Json:
        """Returns the config that `keras.saving` stores."""
        dtype = keras.dtype_policies.serialize(self.dtype_policy)
        return super().get_config() | {"config": to_dict(self.config), "dtype": dtype, "packed": self.packed}

    @classmethod
    def from_config(cls, config: Json, custom_objects: Json | None = None) -> Self:
        """Creates the encoder from the output of `get_config`."""
        return cls(**(config | {"config": read_config(config["config"])}))


def _reads_mask(config: BertConfig, index: int, packed: bool = False) -> bool:
    """Whether a layer computes what it adds to its scores from the mask, for parts of a row, and not for all of it."""
    return index in config.local_layers or (long_rows.is_long(config) and (packed or config.attention == "causal"))


def _pooler(config: BertConfig, policy: keras.DTypePolicy) -> keras.layers.Layer:
    if config.head_transform:
        return HeadTransform(config, name="pooler", dtype=policy)
    pooler = keras.layers.Dense(
        config.hidden_size,
        _POOLER_ACTIVATIONS[config.pooler_activation],
        use_bias=config.biases,
        kernel_initializer=initializer(config, always=True),  # many checkpoints lack it
        name="pooler",
        dtype=policy,
    )
    # No subclass that refuses quantization: .keras files name weights by the classes of their layers.
    pooler.quantize = functools.partial(Dense.quantize, pooler)
    return pooler


def _no_such_output() -> NoReturn:
    raise KeyError(
        "no such output: the encoder has no pooler, so it returns embedding_output, sequence_output and "
        "encoder_outputs; bert_tf.load(PATH, pooler=True) adds a new, untrained pooler, which returns pooled_output"
    )


def token_features(encoder: BertEncoder, outputs: dict[str, Any], config: FeatureConfig) -> keras.KerasTensor:
    """Combines the states of selected layers into one vector per token.

    Args:
        encoder: checked for the layers that `config` names.
        outputs: the outputs of the encoder, or of a frozen copy of it.
        config: selects the layers and how to combine them.

    Returns:
        float32 [batch, length, config.width * hidden].
    """
    config.check(encoder.config.num_layers)
    states = [outputs["embedding_output"], *outputs["encoder_outputs"][:-1], outputs["sequence_output"]]
    selected = [keras.ops.cast(states[layer], "float32") for layer in config.layers]
    if config.combine == "concat":
        return keras.ops.concatenate(selected, axis=-1)
    weights = config.weights or [1.0] * len(selected)
    return sum(weight * state for weight, state in zip(weights, selected, strict=True))


def feature_model(encoder: BertEncoder, config: FeatureConfig) -> keras.Model:
    """Builds the model from the encoder's inputs to `token_features`."""
    inputs = encoder_inputs()
    return keras.Model(inputs, token_features(encoder, encoder(inputs), config))


@keras.saving.register_keras_serializable("bert_tf")
class Frozen(keras.layers.Layer):
    """Wraps a model that is not trained: it always runs in inference mode, also while layers on top of it are trained.

    Args:
        model: its variables are marked as not trainable.
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        model.trainable = False
        self.model = model
        self.built = True

    def call(self, inputs: Tensors) -> dict[str, tf.Tensor | list[tf.Tensor]]:
        return self.model(inputs, training=False)

    def get_config(self) -> Json:
        """Returns the config that `keras.saving` stores."""
        return super().get_config() | {"model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config: Json) -> Self:
        """Creates the layer from the output of `get_config`."""
        return cls(**(config | {"model": keras.saving.deserialize_keras_object(config["model"])}))
