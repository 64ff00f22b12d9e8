"""The encoder's states as features for other models (paper, section 5.3)."""

import keras

from bert_tf.errors import ConfigError

COMBINATIONS = ("sum", "concat")


def feature_model(encoder, layers=(-1,), combine="sum", weights=()):
    """What some layers make of each token.

    The rows of the paper's table 7 are layers (0,), (-2,) and (-1,); (-4, -3, -2, -1) with weights of one's own; the
    same with "concat"; and all of 1 to the number of layers with weights. The last layer is what heads see: of a model
    with LayerNorms before its blocks, behind the one at its end.

    Args:
        encoder: BertEncoder.
        layers: their numbers, from 1; 0 for the embeddings; negative ones count from the end.
        combine: "sum", or "concat": side by side in the order of `layers`.
        weights: of a sum, one a layer, not normalised; () for 1 each.

    Returns:
        keras.Model from the encoder's inputs to float32 [batch, length, size].

    Raises:
        ConfigError: a layer that the encoder has not, another way to combine, or weights that do not fit.
    """
    count = encoder.config.num_layers
    if not layers:
        raise ConfigError(f"no layers; name some of {-count} to {count}, 0 for the embeddings")
    for layer in layers:
        if not -count <= layer <= count:
            raise ConfigError(f"layer {layer}: the model has {-count} to {count}, 0 for the embeddings")
    if combine not in COMBINATIONS:
        raise ConfigError(f"combine {combine!r} is unknown; choose one of {', '.join(COMBINATIONS)}")
    if weights and (combine != "sum" or len(weights) != len(layers)):
        raise ConfigError(
            f"{len(weights)} weights for {len(layers)} layers combined by {combine}; a sum has one a layer"
        )
    states = [encoder.get_layer("embeddings").output, *encoder.output["encoder_outputs"][:-1]]
    states.append(encoder.output["sequence_output"])
    chosen = [keras.ops.cast(states[layer], "float32") for layer in layers]
    if combine == "concat":
        features = keras.ops.concatenate(chosen, axis=-1)
    else:
        features = sum(weight * state for weight, state in zip(weights or [1.0] * len(layers), chosen, strict=True))
    return keras.Model(encoder.input, features)
