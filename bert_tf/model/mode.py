"""How models compute now: one object, entered by the step, the evaluator and the export, and read by the layers; and
calls of models in inference, with or without the padding.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from bert_tf.types import Tensors

# Calls an `Inference` on features, in one of several ways.
Dispatch: TypeAlias = Callable[["Inference", Tensors], Any]
# Numbers of rows are rounded up to one of 16 in each power of two, below 64 to multiples of 4: TensorFlow prepares a
# kernel for each number and keeps a limited number of kernels.
_POWERS = [2**power for power in range(6, 24)]


def fold_in(seed: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """A seed for part `number` of what is drawn from `seed`: int32 [2], the same in programs compiled by XLA.

    XLA extends negative seeds of 32 bits to 64 by zeros, TensorFlow's own kernels by ones; so these seeds have 31 bits.
    """
    folded = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int32))
    return tf.bitwise.bitwise_and(folded, tf.int32.max)


class Seeds:
    """The seeds of the dropout masks of one call of a model: another one for each layer.

    Args:
        seed: int [2].
        drawn: number of seeds that were drawn before.
    """

    def __init__(self, seed: tf.Tensor, drawn: int = 0) -> None:
        self.seed, self.drawn = seed, drawn

    def next(self) -> tf.Tensor:
        """The seed of the next layer, int32 [2]."""
        self.drawn += 1
        return fold_in(self.seed, self.drawn)


class AllPositions:
    """Layout of the positions of a batch as the rows of a matrix: all of them, [batch * length, size].

    Args:
        shape: int32, batch and length first.
    """

    def __init__(self, shape: tf.Tensor) -> None:
        self.shape = shape

    def with_padding(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows of this layout -> [batch * length, size]."""
        return rows

    def without_padding(self, rows: tf.Tensor) -> tf.Tensor:
        """[batch * length, size] -> the rows of this layout."""
        return rows


class Tokens(AllPositions):
    """Layout without padding: the tokens and the first position of each row, [rows, size]; all positions if there is
    hardly any padding.

    Padding that is added again has the values of the last token, or first position, before it in its row.

    Args:
        mask: int32 [batch, length], 0 at padding.
    """

    def __init__(self, mask: tf.Tensor) -> None:
        super().__init__(tf.shape(mask))
        # The first position in any case: else its values, which some heads read, would be those of another row.
        kept = tf.reshape(tf.concat([tf.ones_like(mask[:, :1]), mask[:, 1:]], 1), [-1]) > 0
        rows = tf.cast(tf.where(kept)[:, 0], tf.int32)
        count, powers = tf.size(rows), tf.constant(_POWERS)
        multiple = tf.reduce_max(tf.where(count >= powers, powers // 16, 4))
        rounded = -(-count // multiple) * multiple
        self._is_shorter = rounded * 16 < tf.size(kept) * 15
        self._rows = tf.pad(rows, [[0, rounded - count]])  # further rows repeat the first one
        self._places = tf.cumsum(tf.cast(kept, tf.int32)) - 1

    def with_padding(self, rows: tf.Tensor) -> tf.Tensor:
        return self._gathered(rows, self._places)

    def without_padding(self, rows: tf.Tensor) -> tf.Tensor:
        return self._gathered(rows, self._rows)

    def _gathered(self, rows: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        gathered = tf.cond(self._is_shorter, lambda: tf.gather(rows, indices), lambda: rows)
        return tf.ensure_shape(gathered, [None, rows.shape[-1]])


@dataclasses.dataclass(frozen=True)
class Mode:
    """How models compute. The default is that of a Keras model in other people's code.

    Attributes:
        seeds: seeds of the dropout masks in training; None for masks by Keras' seed generator.
        fusion: what XLA compiles in training, to pass over memory once instead of several times: "none"; "static",
            elementwise operations on tensors of static shape, and GELU; "every", on all tensors. XLA compiles a program
            for every shape, about half a second for all of a model, which pays where each is used often.
        gpu_program: whether XLA compiles all of it for a GPU, so that operations can be used that only it has there.
        flash_attention: whether cuDNN computes the attention of layers that it suits, in such a program.
        recompute: whether blocks store only their inputs in training, and compute the rest again in the backward pass
            (rematerialization: Chen et al., 2016, arXiv:1604.06174). Needs `seeds`: Keras' own dropout would draw
            other masks.
        inference: whether nobody differentiates the outputs. Hand-written gradients are left out: they put an operation
            between product, bias and activation, which prevents TensorFlow's kernel for all three.
        skip_padding: whether encoders in inference compute nothing but attention for padding, so that their outputs
            there mean nothing. XLA, and so TPUs, cannot compile that.
        layout: how the positions of a batch are the rows of a matrix, in the call of an encoder that skips its padding.
        whole_rows: whether attention to long rows is computed at once, not in parts, for runtimes without such loops.
        dispatch: calls models in inference; None calls them once.
        kernels: number formats whose kernels of oneDNN low precision uses, whatever this processor has; None for those
            that it has.
        rotary_base: of layers that attend to whole rows, instead of that of their config; None for the latter.
        zeros: whether layers that are built start with zeros, except for poolers and the last layers of heads, because
            their weights are assigned next: to draw the 110 million of base takes two seconds.
    """

    seeds: Seeds | None = None
    fusion: Literal["none", "static", "every"] = "none"
    gpu_program: bool = False
    flash_attention: bool = False
    recompute: bool = False
    inference: bool = False
    skip_padding: bool = False
    layout: AllPositions | None = None
    whole_rows: bool = False
    dispatch: Dispatch | None = None
    kernels: frozenset[str] | None = None
    rotary_base: float | None = None
    zeros: bool = False

    def __post_init__(self) -> None:
        if self.recompute and self.seeds is None:
            raise ValueError("recompute without seeds: the backward pass would draw other dropout masks")

    def way(self, dtype: str) -> Literal["plain", "compiled", "inference"]:
        """How layers with this compute dtype compute: a key of their ways.

        What XLA compiles computes in float32, so nothing is compiled in float64.
        """
        if self.inference:
            return "inference"
        return "compiled" if self.fusion != "none" and dtype != "float64" else "plain"

    def fuses(self, tensor: tf.Tensor) -> bool:
        """Whether XLA compiles chains of elementwise operations on this tensor."""
        may = self.way(tensor.dtype.name) == "compiled"
        return may and (self.fusion == "every" or tensor.shape.is_fully_defined())


_DEFAULT = Mode()
_thread = threading.local()


def current() -> Mode:
    """The mode of the innermost `computing` of this thread."""
    mode: Mode = getattr(_thread, "mode", _DEFAULT)
    return mode


@contextlib.contextmanager
def computing(mode: Mode) -> Iterator[None]:
    """Models that are called or built inside compute in this mode.

    `dataclasses.replace(current(), ...)` changes a part of the present one.
    """
    outer = current()
    _thread.mode = mode
    try:
        yield
    finally:
        _thread.mode = outer


def repeatable(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps `function` so that every call computes as the first one would now, with the same dropout masks.

    For backward passes that recompute the forward pass, possibly in another mode.

    Args:
        function: is called in the present mode, which has seeds.
    """
    mode, seeds = current(), current().seeds
    assert seeds is not None
    first = seeds.drawn

    def call(*arguments: tf.Tensor) -> tf.Tensor:
        again = Seeds(seeds.seed, first)
        with computing(dataclasses.replace(mode, seeds=again)):
            results = function(*arguments)
        seeds.drawn = max(seeds.drawn, again.drawn)
        return results

    return call


class Inference(NamedTuple):
    """A call of a model, as a function of its features; equal calls compute the same.

    Attributes:
        function: called with the model and the features.
        model: whose layers `function` calls.
        skip_padding: as in `Mode`.
    """

    function: Callable[[keras.Model, Tensors], Any]
    model: keras.Model
    skip_padding: bool

    @property
    def calls_model(self) -> bool:
        """Whether the results are the outputs of the model itself."""
        return self.function is _called

    def __call__(self, features: Tensors) -> Any:
        with computing(dataclasses.replace(current(), inference=True, skip_padding=self.skip_padding)):
            return self.function(self.model, features)


def infer(model: keras.Model, features: Tensors, *, skip_padding: bool = True) -> Any:
    """`model(features, training=False)` in the mode of inference; of the features, the model gets its inputs."""
    inputs = {tensor.name: features[tensor.name] for tensor in model.inputs}
    return inferred(_called, model, inputs, skip_padding=skip_padding)


def inferred(
    function: Callable[[keras.Model, Tensors], Any], model: keras.Model, features: Tensors, *, skip_padding: bool = True
) -> Any:
    """`function(model, features)` in the mode of inference, through the dispatch of the mode if it has one."""
    inference, dispatch = Inference(function, model, skip_padding), current().dispatch
    return dispatch(inference, features) if dispatch else inference(features)


def _called(model: keras.Model, features: Tensors) -> Any:
    return model(features, training=False)
