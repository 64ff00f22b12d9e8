"""A two-layer BiLSTM on the encoder's states (paper, sections 5.1 and 5.3)."""

import keras

LAYERS = 2
WAYS = ("forward", "backward")


def bilstm(states, mask, units, dtype, *, sequences):
    """Reads the states of each row's tokens forwards and backwards.

    Args:
        states: KerasTensor [batch, length, size].
        mask: KerasTensor int32 [batch, length], 0 at padding, which stands behind the tokens.
        units: size of each direction; in the paper 768, BERT-base's hidden size.
        dtype: Keras dtype policy.
        sequences: whether the result is a state a token, or one a row: what both directions have come to at their end.

    Returns:
        KerasTensor [batch, length, 2 * units] or [batch, 2 * units].
    """
    tokens = keras.ops.greater(mask, 0)
    for layer in range(LAYERS):
        every = sequences or layer < LAYERS - 1
        ways = []
        # Not keras.layers.Bidirectional: from a .keras file its variables come back under other paths.
        for way in WAYS:
            backward = way == "backward"
            name = f"bilstm_{layer}_{way}"
            lstm = keras.layers.LSTM(units, return_sequences=every, go_backwards=backward, name=name, dtype=dtype)
            read = lstm(states, mask=tokens)
            ways.append(keras.ops.flip(read, axis=1) if backward and every else read)
        states = keras.ops.concatenate(ways, axis=-1)
    return states
