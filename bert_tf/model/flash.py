"""Attention by cuDNN's fused kernels (FlashAttention: Dao et al., 2022, arXiv:2205.14135), for a GPU.

Scores, softmax and the sum of the values are one kernel, which keeps nothing of size [length, length]. XLA calls it
where a program has a custom call with one of cuDNN's names. TensorFlow makes none, but its XLA has them, and takes
programs in StableHLO as text: `fused.module` puts such a text into the graph. What the calls expect is in OpenXLA's
xla/service/gpu/backend_configs.proto and cudnn_custom_call_compiler.cc.

Whatever does not suit is computed in the plain way: `unsuited` says why. Probabilities have no dropout here,
because cuDNN's masks depend on what has been computed before, and not only on a seed: a resumed run would have others.
"""

import functools
import json
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model import fused
from bert_tf.model.compute import PlainAttention
from bert_tf.model.dropout import Dropout
from bert_tf.model.long_rows import score_bias
from bert_tf.model.mode import current
from bert_tf.model.positions import MASKED_SCORE

# In the words of StableHLO, and of cuDNN's settings.
_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "int32": "i32", "uint8": "ui8"}
_DTYPES = {"bfloat16": "BF16", "float16": "F16"}
_MOST = 128  # columns of a head, on all cards
# The products, over batch, queries (t), keys (s), heads (n) and columns (h).
_PRODUCTS = {"bmm1": "btnh,bsnh->bnts", "bmm2": "bnts,bsnh->btnh"}
_GRADIENTS = {
    "bmm1_grad_gemm1": "bnts,btnh->bsnh",
    "bmm1_grad_gemm2": "bnts,bsnh->btnh",
    "bmm2_grad_gemm1": "bnts,btnh->bsnh",
    "bmm2_grad_gemm2": "btnh,bsnh->bnts",
}
_SECOND_LAST = (3, 1, 2, 0)  # of [batch, heads, length, size]: as [batch, length, heads, size] lies in memory

# Which tokens of a row attend to which: all to those before the padding, to those up to themselves, or to their own
# sequence.
Rows: TypeAlias = Literal["padded", "causal", "packed"]
_Gradients: TypeAlias = Callable[[tf.Tensor], tuple[tf.Tensor | None, ...]]


class _Result(NamedTuple):
    """A result of a call: shape, dtype, and its dimensions from the one whose elements lie side by side."""

    shape: tuple[int, ...]
    dtype: tf.DType
    layout: tuple[int, ...]


class _Seen(NamedTuple):
    """Which keys a query attends to.

    Attributes:
        mask_type: cuDNN's name for it.
        bias: what is added to the scores, or nothing.
        tokens: for padding, the numbers of queries and keys of each row, or nothing.
    """

    mask_type: str
    bias: list[tf.Tensor]
    tokens: list[tf.Tensor]

    @property
    def target(self) -> str:
        """The name of cuDNN's call."""
        return "__cudnn$fmhaScaleBiasSoftmax" if self.bias else "__cudnn$fmhaSoftmax"


def unsuited(config: BertConfig, dtype: str, *, packed: Collection[int] = ()) -> str:
    """Why cuDNN cannot compute a model's attention on this machine; "" if it can, in some of its layers at least.

    Args:
        config: of the encoder.
        dtype: in which its layers compute.
        packed: lengths of rows that contain several sequences.
    """
    if dtype not in _DTYPES:
        return f"the model computes in {dtype}, not in bfloat16 or float16"
    if config.attention_dropout:
        return f"model.attention_dropout is {config.attention_dropout:g}, not 0"
    if not _has_size(config.head_size):
        return f"the model's heads have {config.head_size} columns; cuDNN has multiples of 8 up to {_MOST}"
    if len(config.local_layers) == config.num_layers:
        return "all layers of the model are local"
    if odd := [length for length in packed if length % 2]:
        return f"rows of several sequences have {odd[0]} tokens; cuDNN needs an even number"
    rows: Rows = "causal" if config.attention == "causal" else "packed" if packed else "padded"
    return fault(config.head_size, dtype, rows)


@functools.cache
def fault(size: int, dtype: str, rows: Rows) -> str:
    """Why cuDNN cannot be used on this machine; "" if it computes a small example, and its gradients, correctly.

    Args:
        size: columns of a head.
        dtype: "bfloat16" or "float16".
        rows: their kind.
    """
    if not tf.config.list_logical_devices("GPU"):
        return "there is no GPU"
    shape = (2, 128, 2, size)
    *inputs, upstream = (tf.cast(tf.random.stateless_normal(shape, [seed, 0]), dtype) for seed in range(4))
    mask = None
    if rows == "padded":
        mask = tf.constant([128, 70])
    elif rows == "packed":
        mask = mask_of(tf.repeat([[1, 2, 3, 0], [1, 2, 0, 0]], [50, 40, 30, 8], axis=1), causal=False)

    def both(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, upstream: tf.Tensor) -> tuple[list[tf.Tensor], ...]:
        found = []
        for compute in (attention, plain):
            with tf.GradientTape() as tape:
                tape.watch([query, key, value])
                outputs = compute(query, key, value, mask)
            found.append([outputs, *tape.gradient(outputs, [query, key, value], upstream)])
        return tuple(found)

    try:
        found, expected = fused.Compiled(both).fused(*inputs, upstream)
        errors = [_error(*pair) for pair in zip(found, expected, strict=True)]
    except tf.errors.OpError as error:  # no compiler, no cuDNN, an old one, or an old card
        return f"cuDNN's kernel fails here ({' '.join(error.message.split())[:200]})"
    # Of bfloat16, which has 8 bits, in sums of a few dozen products.
    return "" if max(errors) < 0.05 else f"cuDNN's numbers differ from those of the plain way by {max(errors):.3g}"


def _has_size(size: int) -> bool:
    """Whether cuDNN has heads with this number of columns."""
    return size % 8 == 0 and size <= _MOST


def suits(dtype: tf.DType, size: int, shape: tf.Tensor, seen: tf.Tensor, causal: bool, dropout: Dropout | None) -> bool:
    """Whether `attention` can be called in the present mode.

    Args:
        dtype: of the states.
        size: columns of a head.
        shape: int32, batch and length first.
        seen: as for `TransformerBlock`.
        causal: whether tokens attend to none that follows.
        dropout: of the probabilities; None for none.
    """
    found = tf.get_static_value(shape)
    return (
        current().flash_attention
        and dtype.name in _DTYPES
        and _has_size(size)
        and not (dropout and dropout.rate)
        and found is not None
        # cuDNN has no gradients of an odd number of scores to which something is added.
        and (causal or _is_padded(seen) or found[1] % 2 == 0)
    )


def mask_of(seen: tf.Tensor, causal: bool) -> tf.Tensor | None:
    """The argument `mask` of `attention`, from `seen` as for `TransformerBlock`."""
    if causal:
        return None
    if seen.shape.rank == 2:  # the number of each token's sequence
        numbers = seen, tf.range(tf.shape(seen)[1])[tf.newaxis]
        return score_bias(numbers, numbers, None, False)
    # Padding follows the tokens.
    return tf.reduce_sum(tf.cast(tf.equal(seen, 0), tf.int32), [1, 2, 3]) if _is_padded(seen) else seen


def _is_padded(seen: tf.Tensor) -> bool:
    """Whether all tokens of a row attend to the same ones."""
    return seen.shape.rank == 4 and seen.shape[2] == 1


def attention(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """The mean of the values for each query, weighted by its attention; in a program for a GPU.

    Args:
        query, key, value: bfloat16 or float16 [batch, length, heads, size], of static shape.
        mask: int32 [batch], to how many of the first positions of its row a query attends, at least to one; or what is
            added to the scores, [batch, 1, length, length], which gets no gradient; None: to those up to its own.

    Returns:
        [batch, length, heads, size] in the dtype of the query, with gradients unless the mode is one of inference.
    """
    seen = _Seen("CAUSAL", [], [])
    if mask is not None and mask.shape.rank == 4:
        seen = _Seen("NO_MASK", [tf.cast(mask, query.dtype)], [])
    elif mask is not None:
        # Queries of padding attend as others do, as in the plain way: undefined numbers could spread in sums of
        # gradients.
        length = query.shape[1]
        seen = _Seen("PADDING", [], [tf.fill([query.shape[0]], length), tf.clip_by_value(mask, 1, length)])
    if current().inference:
        return _forward(query, key, value, seen, statistics=False)[0]

    @tf.custom_gradient
    def mixed(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, _Gradients]:
        context, statistics = _forward(query, key, value, seen, statistics=True)
        return context, lambda upstream: _backward(query, key, value, statistics, upstream, context, seen)

    return mixed(query, key, value)


def _forward(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, seen: _Seen, *, statistics: bool) -> list[tf.Tensor]:
    """The context like the query and, if asked for, what the gradient needs, float32 [batch, heads, length]."""
    context = _like(query)
    kept = [_Result(context.shape[:3], tf.float32, (2, 1, 0))] if statistics else []
    operands = [query, key, value, *seen.bias, *seen.tokens]
    text = _module(seen.target, operands, [context, *kept], _PRODUCTS, query, mask_type=seen.mask_type)
    found = fused.module(text, operands, [(one.shape, one.dtype) for one in (context, *kept)])
    return [_back(found[0]), *found[1:]]


def _backward(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    statistics: tf.Tensor,
    upstream: tf.Tensor,
    context: tf.Tensor,
    seen: _Seen,
) -> tuple[tf.Tensor, ...]:
    """The gradients of query, key and value, in their shape."""
    operands = [query, key, value, statistics, upstream, *seen.bias, context, *seen.tokens]
    results = [_like(query)] * 3
    # Else the order of its sums, and so their rounding, would change from call to call.
    settings = {"mask_type": seen.mask_type, "force_deterministic": True}
    text = _module(f"{seen.target}Backward", operands, results, _GRADIENTS, query, **settings)
    return tuple(_back(one) for one in fused.module(text, operands, [(one.shape, one.dtype) for one in results]))


def _like(query: tf.Tensor) -> _Result:
    batch, length, heads, size = query.shape
    return _Result((batch, heads, length, size), query.dtype, _SECOND_LAST)


def _back(states: tf.Tensor) -> tf.Tensor:
    """[batch, heads, length, size] -> [batch, length, heads, size], by the layout of `_like` without a copy."""
    return tf.transpose(states, [0, 2, 1, 3])


def _module(
    target: str,
    operands: Sequence[tf.Tensor],
    results: Sequence[_Result],
    products: dict[str, str],
    query: tf.Tensor,
    **settings: Any,
) -> str:
    """A module of StableHLO whose main function is one call of cuDNN, without its workspace, which is its last result.

    Args:
        target: the name of the call.
        operands: of it, from the query on.
        results: of it, without the workspace.
        products: that it fuses, by their names in its settings.
        query: [batch, length, heads, size].
        **settings: further ones, such as the type of the mask.
    """
    batch, length, heads, size = query.shape
    settings |= {
        "algorithm": {"math_type": "TENSOR_OP_MATH", "is_cudnn_frontend": True},
        "fmha_scale": 1 / math.sqrt(size),
        "intermediate_tensor_shape": {
            "element_type": _DTYPES[query.dtype.name],
            "dimensions": [batch, heads, length, length],
            "layout": {"minor_to_major": [3, 2, 1, 0]},
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "max_seg_per_batch": 1,
    }
    settings |= {f"{name}_dot_dimension_numbers": _dimensions(product) for name, product in products.items()}
    config = json.dumps({"cudnn_fmha_backend_config": settings}).replace('"', r"\22")
    all_results = [*results, _Result((0,), tf.uint8, (0,))]
    names = [f"%arg{number}" for number in range(len(operands))]
    inputs = [_type(operand.shape, operand.dtype) for operand in operands]
    outputs, kept = ([_type(one.shape, one.dtype) for one in some] for some in (all_results, results))
    layouts = [range(operand.shape.rank)[::-1] for operand in operands], [one.layout for one in all_results]
    of_operands, of_results = (", ".join(map(_layout, some)) for some in layouts)
    return f"""module @attention {{
  func.func public @main({", ".join(map(": ".join, zip(names, inputs, strict=True)))}) -> ({", ".join(kept)}) {{
    %0:{len(outputs)} = stablehlo.custom_call @{target}({", ".join(names)}) {{
      api_version = 2 : i32, backend_config = "{config}",
      operand_layouts = [{of_operands}],
      result_layouts = [{of_results}]
    }} : ({", ".join(inputs)}) -> ({", ".join(outputs)})
    return {", ".join(f"%0#{number}" for number in range(len(kept)))} : {", ".join(kept)}
  }}
}}"""


def _type(shape: Sequence[int], dtype: tf.DType) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{_TYPES[dtype.name]}>"


def _layout(order: Sequence[int]) -> str:
    return f"dense<{list(order)}> : tensor<{len(order)}xindex>"


def _dimensions(product: str) -> dict[str, list[int]]:
    """The dimensions of both sides that a product, as einsum writes it, sums over, and those that it keeps apart."""
    sides, result = product.split("->")
    left, right = sides.split(",")
    both = [letter for letter in left if letter in right]
    return {
        f"{side}_{kind}_dimensions": [letters.index(letter) for letter in both if (letter in result) == kept]
        for side, letters in (("lhs", left), ("rhs", right))
        for kind, kept in (("contracting", False), ("batch", True))
    }


def plain(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """The same as `attention` in TensorFlow's operations."""
    length = query.shape[1]
    if mask is None or mask.shape.rank == 1:  # [length, length], or [batch, 1, 1, length]
        tokens = tf.range(1, length + 1) if mask is None else mask[:, tf.newaxis, tf.newaxis]
        mask = tf.where(tf.sequence_mask(tokens, length), 0.0, MASKED_SCORE)
    query, key, value = (tf.transpose(one, [0, 2, 1, 3]) for one in (query, key, value))
    return _back(PlainAttention()(query, key, value, mask, Dropout(0.0)))


def _error(found: tf.Tensor, expected: tf.Tensor) -> float:
    """The largest error, over the largest value; infinite if a number is none."""
    found, expected = (tf.cast(one, tf.float32) for one in (found, expected))
    error = float(tf.reduce_max(tf.abs(found - expected)) / tf.reduce_max(tf.abs(expected)))
    return error if math.isfinite(error) else math.inf
