"""Many rows through a model, some at a time, in graph code: memory is that of some rows and of what is kept of all."""

import tensorflow as tf

# Tokens that go through at once: 32 windows of 512. The windows of one long text can be thousands.
_TOKENS = 2**14


def map_in_chunks(compute, features):
    """What a function makes of features, some rows at a time.

    Args:
        compute: function of a dict of tensors [some rows, ...] to another, as in `chunked_map`.
        features: dict of tensors [rows, ...], `input_word_ids` among them.

    Returns:
        dict of tensors [rows, ...].
    """
    shape = tf.shape(features["input_word_ids"])
    return chunked_map(
        lambda first, last: compute({name: value[first:last] for name, value in features.items()}),
        shape[0],
        tf.reduce_prod(shape[1:]),
    )


def chunked_map(compute, rows, tokens):
    """What a function makes of rows, called for a part of them after the other.

    Args:
        compute: function of two int32 scalars, the first row of a part and the one behind its last, to a dict of
            tensors, of equal shape but for the first dimension.
        rows: int scalar, how many there are.
        tokens: int scalar, of each row.

    Returns:
        dict of tensors, those of the parts one behind the other.
    """
    some = tf.maximum(_TOKENS // tf.maximum(tf.cast(tokens, tf.int32), 1), 1)
    parts = tf.maximum(-(-tf.cast(rows, tf.int32) // some), 1)  # of no rows there is a part without any
    # Traced before the loop, which must know beforehand what it gathers.
    scalar = tf.TensorSpec([], tf.int32)
    compute = tf.function(compute).get_concrete_function(scalar, scalar)
    found = {
        name: tf.TensorArray(spec.dtype, parts, infer_shape=False, element_shape=[None, *spec.shape[1:]])
        for name, spec in compute.structured_outputs.items()
    }

    def step(part, found):
        made = compute(part * some, (part + 1) * some)
        return part + 1, {name: array.write(part, made[name]) for name, array in found.items()}

    _, found = tf.while_loop(lambda part, _: part < parts, step, (0, found), parallel_iterations=1)
    return {name: array.concat() for name, array in found.items()}
