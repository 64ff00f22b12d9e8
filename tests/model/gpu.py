"""Programs for a GPU, on a machine without one: XLA's input for it, and the same operations computed on the CPU."""

import contextlib
import json
import re
from unittest import mock

import numpy as np
import tensorflow as tf

from bert_tf.model import fused


@contextlib.contextmanager
def as_on_a_gpu():
    """Layers choose their operations as on a machine with a GPU."""
    with mock.patch.object(fused, "only_cpus", lambda: False):
        yield


def program(function, *arguments):
    """The HLO, before XLA changes it, of what it would compile for a GPU."""
    compiled = tf.function(function, autograph=False, jit_compile=True)
    with as_on_a_gpu():
        return compiled.experimental_get_compiler_ir(*arguments)(stage="hlo", platform_name="GPU")


def operations(hlo):
    """The names of the operations in a program, in its order, with repetitions."""
    return re.findall(r"= (?:\([^)]*\)|\S+) ([a-z][a-z0-9-]+)\(", hlo)


def cudnn(text, arguments, results):
    """What a module of `model.flash` computes, by the settings in its text: in place of `fused.module` on the CPU."""
    target, config = re.search(r'@(__cudnn\S+)\(.*backend_config = "(.*?)"', text, re.DOTALL).groups()
    config = json.loads(config.replace(r"\22", '"'))["cudnn_fmha_backend_config"]
    backward = target.endswith("Backward")
    query, key, value, *others = arguments
    if backward:
        statistics, upstream, *others = others
    bias = others.pop(0) if "ScaleBias" in target else 0.0
    if backward:
        context, *others = others
    length = config["intermediate_tensor_shape"]["dimensions"][3]
    if config["mask_type"] == "CAUSAL":
        seen = tf.linalg.band_part(tf.ones([1, 1, length, length]), -1, 0) > 0
    elif config["mask_type"] == "NO_MASK":
        seen = tf.ones([1, 1, length, length], tf.bool)
    else:
        assert config["mask_type"] == "PADDING"
        of_queries, of_keys = others
        np.testing.assert_array_equal(of_queries, length)
        seen = tf.sequence_mask(of_keys, length)[:, tf.newaxis, tf.newaxis]

    def product(name, left, right):
        return _dot_general(left, right, config[f"{name}_dot_dimension_numbers"])

    scores = _dot_general(query, key, {"lhs_contracting_dimensions": [3], "rhs_contracting_dimensions": [3],
                                       "lhs_batch_dimensions": [0, 2], "rhs_batch_dimensions": [0, 2]})  # fmt: skip
    scores = tf.where(seen, config["fmha_scale"] * scores + bias, -np.inf)
    if not backward:
        by_text = config["fmha_scale"] * product("bmm1", query, key) + bias
        np.testing.assert_array_equal(scores, tf.where(seen, by_text, -np.inf))
        found = [product("bmm2", tf.nn.softmax(scores), value), tf.reduce_logsumexp(scores, -1)]
    else:
        probabilities = tf.exp(scores - statistics[..., tf.newaxis])
        of_probabilities = product("bmm2_grad_gemm2", upstream, value)
        sums = tf.einsum("btnh,btnh->bnt", upstream, context)[..., tf.newaxis]
        of_scores = config["fmha_scale"] * probabilities * (of_probabilities - sums)
        found = [product("bmm1_grad_gemm2", of_scores, key), product("bmm1_grad_gemm1", of_scores, query),
                 product("bmm2_grad_gemm1", probabilities, upstream)]  # fmt: skip
    found = found[: len(results)]
    assert [(tuple(one.shape), one.dtype) for one in found] == [(tuple(shape), dtype) for shape, dtype in results]
    return found


def _dot_general(left, right, dimensions):
    """XLA's product: dimensions that are kept on both sides first, then the others of each side."""
    names = iter("abcdefghijkl")
    left_names, right_names, kept = [""] * left.shape.rank, [""] * right.shape.rank, []
    for kind in ("batch", "contracting"):
        pairs = zip(dimensions[f"lhs_{kind}_dimensions"], dimensions[f"rhs_{kind}_dimensions"], strict=True)
        for of_left, of_right in pairs:
            left_names[of_left] = right_names[of_right] = next(names)
            kept += left_names[of_left] if kind == "batch" else []
    for side in (left_names, right_names):
        for index, name in enumerate(side):
            if not name:
                side[index] = next(names)
                kept.append(side[index])
    return tf.einsum(f"{''.join(left_names)},{''.join(right_names)}->{''.join(kept)}", left, right)
