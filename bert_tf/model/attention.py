"""Attention probabilities of all layers, for people to look at."""

import tensorflow as tf


def attention_probabilities(encoder, features):
    """How much each token attends to each other token, in every layer and head.

    Args:
        encoder: BertEncoder, not packed.
        features: dict of its inputs, int32 [batch, length].

    Returns:
        float32 [batch, layers, heads, length, length]: the last dimension sums to 1 over the tokens attended to.
    """
    outputs = encoder(features, training=False)
    inputs = [outputs["embedding_output"], *outputs["encoder_outputs"][:-1]]  # of each layer
    bias = encoder.get_layer("attention_bias")(features["input_mask"])
    layers = (encoder.get_layer(f"layer_{number}") for number in range(len(inputs)))
    return tf.stack([layer.attention_probabilities(x, bias) for layer, x in zip(layers, inputs, strict=True)], 1)
