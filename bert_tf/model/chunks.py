"""Chunked inference in graph code: limits memory by running a model on a few rows at a time."""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.types import Tensors

# Tokens per chunk: 32 windows of 512. A single long text can have thousands of windows.
_TOKENS = 2**14


def map_in_chunks(compute: Callable[[Tensors], Tensors], features: Tensors) -> Tensors:
    """Applies a function to features, a chunk of rows at a time.

    Args:
        compute: maps tensors [chunk, ...] to tensors [chunk, ...], as in `chunked_map`.
        features: tensors [rows, ...], including `input_word_ids`.

    Returns:
        Tensors [rows, ...].
    """
    shape = tf.shape(features["input_word_ids"])
    return chunked_map(
        lambda first, last: compute({name: value[first:last] for name, value in features.items()}),
        shape[0],
        tf.reduce_prod(shape[1:]),
    )


def chunked_map(
    compute: Callable[[tf.Tensor, tf.Tensor], Tensors], rows: tf.Tensor | int, tokens: tf.Tensor | int
) -> Tensors:
    """Applies a function to consecutive ranges of rows and concatenates the results.

    Args:
        compute: maps the int32 scalars `first` and `last` to tensors for the rows [first, last). Their shapes may
            differ between calls only in the first dimension; `last` may exceed `rows` in the last call.
        rows: int scalar, total number of rows.
        tokens: int scalar, tokens per row.

    Returns:
        The tensors of all calls, concatenated along the first dimension.
    """
    chunk_size = tf.maximum(_TOKENS // tf.maximum(tf.cast(tokens, tf.int32), 1), 1)
    chunks = tf.maximum(-(-tf.cast(rows, tf.int32) // chunk_size), 1)  # zero rows make one empty chunk
    # Traced before the loop, which needs the dtypes and shapes of the results in advance.
    scalar = tf.TensorSpec([], tf.int32)
    traced = tf.function(compute, autograph=False).get_concrete_function(scalar, scalar)
    initial = {
        name: tf.TensorArray(spec.dtype, chunks, infer_shape=False, element_shape=[None, *spec.shape[1:]])
        for name, spec in traced.structured_outputs.items()
    }

    def step(chunk: tf.Tensor, arrays: dict[str, tf.TensorArray]) -> tuple[tf.Tensor, dict[str, tf.TensorArray]]:
        outputs = traced(chunk * chunk_size, (chunk + 1) * chunk_size)
        return chunk + 1, {name: array.write(chunk, outputs[name]) for name, array in arrays.items()}

    _, arrays = tf.while_loop(lambda chunk, _: chunk < chunks, step, (0, initial), parallel_iterations=1)
    return {name: array.concat() for name, array in arrays.items()}
