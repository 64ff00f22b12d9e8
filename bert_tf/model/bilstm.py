"""Two-layer BiLSTM on the encoder's states (paper, sections 5.1 and 5.3)."""

import keras

LAYERS = 2
DIRECTIONS = ("forward", "backward")


def bilstm(
    states: keras.KerasTensor, mask: keras.KerasTensor, units: int, dtype: keras.DTypePolicy | str, *, sequences: bool
) -> keras.KerasTensor:
    """Reads the states of each row's tokens forwards and backwards.

    Args:
        states: [batch, length, size].
        mask: int32 [batch, length], 0 at padding, which follows the tokens.
        units: size of each direction; in the paper 768, BERT-base's hidden size.
        dtype: Keras dtype policy.
        sequences: whether to return the states of all tokens or only the final state of both directions.

    Returns:
        [batch, length, 2 * units] or, without `sequences`, [batch, 2 * units].
    """
    is_token = keras.ops.greater(mask, 0)
    for layer in range(LAYERS):
        return_sequences = sequences or layer < LAYERS - 1
        outputs = []
        # Not keras.layers.Bidirectional: its variables have other paths when loaded from a .keras file.
        for direction in DIRECTIONS:
            backward = direction == "backward"
            name = f"bilstm_{layer}_{direction}"
            lstm = keras.layers.LSTM(
                units, return_sequences=return_sequences, go_backwards=backward, name=name, dtype=dtype
            )
            output = lstm(states, mask=is_token)
            outputs.append(keras.ops.flip(output, axis=1) if backward and return_sequences else output)
        states = keras.ops.concatenate(outputs, axis=-1)
    return states
