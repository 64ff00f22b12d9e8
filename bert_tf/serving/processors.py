"""Graphs that choose their kernels by the processor on which they run.

oneDNN's kernels for bfloat16 end the process on a processor without AVX-512, and those for int8 return wrong numbers on
one without int8 dot products. So an optimized export has a graph for each kind of processor, all with the same weights,
and takes one when it is loaded: the initializer of a table reads the instruction sets in /proc/cpuinfo.
"""

import re
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.model.inference import Inference
from bert_tf.serving import ask, kernels
from bert_tf.types import Tensors, TfFunction

# The names of instruction sets are in the first lines, those of the first core.
_LINES = 64


class Way(NamedTuple):
    """A way to compute an optimized encoder.

    Attributes:
        computes: description for people.
        kernels: the kernels of oneDNN that it uses, by their number format.
        instructions: groups of instruction sets of x86, in /proc/cpuinfo's names; it needs one of each group.
    """

    computes: str
    kernels: frozenset[str]
    instructions: tuple[tuple[str, ...], ...]

    def described(self) -> ask.Way:
        """For the model card."""
        return {"computes": self.computes, "instructions": [list(group) for group in self.instructions]}


# Dot products of int8 in AVX-512 or AMX; and of bfloat16.
_INT8, _BFLOAT16 = ("avx512_vnni", "amx_int8"), ("avx512_bf16", "amx_bf16")
# Mode -> its ways, the fastest first; the last one is for every processor.
WAYS = {
    "none": (),
    "bfloat16": (
        Way("by kernels for bfloat16", frozenset({"bfloat16"}), ((kernels.AVX512,),)),
        Way("by TensorFlow's usual operations", frozenset(), ()),
    ),
    "int8": (
        Way("by kernels for int8 and bfloat16", frozenset({"int8", "bfloat16"}), (_INT8, _BFLOAT16)),
        Way("by kernels for int8", frozenset({"int8"}), ((*_INT8, "avx_vnni"),)),
        Way("by TensorFlow's usual operations, in float32", frozenset(), ()),
    ),
}


class ProcessorChoice:
    """A `Choice` of `model.inference`, made by the graph: one of several ways to compute, by the processor.

    Args:
        mode: as in `WAYS`.
        ways: of this mode.

    Attributes:
        table: what a SavedModel must track: its initializer makes the choice.
    """

    def __init__(self, mode: str, ways: tuple[Way, ...]) -> None:
        self._ways = ways
        self.table = tf.lookup.StaticHashTable(_WayNumber(mode, ways), default_value=len(ways) - 1)
        self._others: dict[tuple[Inference, int], TfFunction] = {}

    def __call__(self, inference: Inference, features: Tensors) -> Any:
        inputs = {tensor.name: features[tensor.name] for tensor in inference.model.inputs}
        return self._computed(inference, inputs, 0)

    def _computed(self, inference: Inference, features: Tensors, index: int) -> Any:
        """What `inference` computes in the first of the ways from `index` on that the processor allows."""
        way = self._ways[index]
        if index == len(self._ways) - 1:
            with kernels.used(way.kernels):
                return inference(features)
        # Not tf.cond, for which each variable takes an operation in each request, a fifteenth of a short text's time:
        # here what depends on the features is left out, and variables do not.
        chosen = tf.equal(self.table.lookup(tf.constant(0, tf.int64)), index)
        switched = {name: tf.raw_ops.Switch(data=value, pred=chosen) for name, value in features.items()}
        with kernels.used(way.kernels):
            fast = inference({name: one.output_true for name, one in switched.items()})
        other = self._other(inference, index + 1)({name: one.output_false for name, one in switched.items()})
        return tf.nest.map_structure(lambda *values: tf.raw_ops.Merge(inputs=values).output, fast, other)

    def _other(self, inference: Inference, index: int) -> TfFunction:
        """The ways from `index` on, one operation of the graph; traced once for all signatures of a model."""
        if (inference, index) not in self._others:
            specs = {tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inference.model.inputs}

            def compute(features: Tensors) -> Any:
                # While TensorFlow optimizes a function, it does not know with what shapes it is called.
                known = {name: tf.ensure_shape(features[name], spec.shape) for name, spec in specs.items()}
                return self._computed(inference, known, index)

            self._others[inference, index] = tf.function(
                compute, input_signature=[specs], autograph=False, experimental_attributes={"_noinline": True}
            )
        return self._others[inference, index]


class _WayNumber(tf.lookup.KeyValueTensorInitializer):
    """Content of a table: 0 -> the index of the first way that this processor has the instruction sets for."""

    def __init__(self, mode: str, ways: tuple[Way, ...]) -> None:
        super().__init__([0], [0], tf.int64, tf.int64)
        self._mode, self._ways = mode, ways

    def initialize(self, table: tf.lookup.StaticHashTable) -> tf.Operation:
        """Fills a table; in a SavedModel, a part of the graph that a server runs when it has loaded the graph."""
        names = sorted({name for way in self._ways for group in way.instructions for name in group})
        # No file if there is none, as outside of Linux. It has no size, so it cannot be read as a whole.
        lines = tf.data.TextLineDataset(tf.io.matching_files(ask.CPUINFO)).take(_LINES)

        def found(names_before: tf.Tensor, line: tf.Tensor) -> tf.Tensor:
            return names_before | tf.stack(
                [tf.strings.regex_full_match(line, rf"flags\s*:(.*\s)?{re.escape(name)}(\s.*)?") for name in names]
            )

        has = dict(zip(names, tf.unstack(lines.reduce(tf.zeros([len(names)], tf.bool), found)), strict=True))
        number = tf.constant(len(self._ways) - 1, tf.int64)
        for index, way in reversed(list(enumerate(self._ways[:-1]))):
            groups = [tf.reduce_any([has[name] for name in group]) for group in way.instructions]
            number = tf.where(tf.reduce_all(groups), tf.constant(index, tf.int64), number)
        log = tf.gather([f"bert_tf: {self._mode}, computed {way.computes}" for way in self._ways], number)
        with tf.control_dependencies([tf.print(log, output_stream=tf.compat.v1.logging.info)]):
            return tf.raw_ops.LookupTableImportV2(
                table_handle=table.resource_handle, keys=tf.constant([0], tf.int64), values=number[tf.newaxis]
            )
