"""CPU dispatch in the graph: optimized exports choose their kernels by the processor on which they run.

oneDNN's kernels for bfloat16 end the process on a processor without AVX-512, and those for int8 return wrong numbers on
one without int8 dot products. So an optimized export has a variant of the graph for each kind of processor, all with
the same weights, and chooses one when it is loaded: the initializer of a table reads the flags in /proc/cpuinfo.
"""

import dataclasses
import re
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf import processor_flags
from bert_tf.model import fused
from bert_tf.model.mode import Inference, computing, current
from bert_tf.types import Tensors, TfFunction

# The names of instruction sets are in the first lines, those of the first core.
_LINES = 64


class Variant(NamedTuple):
    """A variant of the graph of an optimized encoder, for some processors.

    Attributes:
        computes: how its products are computed, for people.
        kernels: the kernels of oneDNN that it uses, by their number format.
        instructions: groups of instruction sets of x86, in /proc/cpuinfo's names; it needs one of each group.
    """

    computes: str
    kernels: frozenset[str]
    instructions: tuple[tuple[str, ...], ...]

    def described(self) -> processor_flags.Variant:
        """For the model card."""
        return {"computes": self.computes, "instructions": [list(group) for group in self.instructions]}


# Dot products of int8 in AVX-512 or AMX; and of bfloat16.
_INT8, _BFLOAT16 = ("avx512_vnni", "amx_int8"), ("avx512_bf16", "amx_bf16")
# Mode -> its variants, the fastest first; the last one is for every processor.
VARIANTS = {
    "none": (),
    "int4": (),
    "xla": (),
    "bfloat16": (
        Variant("by kernels for bfloat16", frozenset({"bfloat16"}), ((fused.AVX512,),)),
        Variant("by TensorFlow's usual operations", frozenset(), ()),
    ),
    "int8": (
        Variant("by kernels for int8 and bfloat16", frozenset({"int8", "bfloat16"}), (_INT8, _BFLOAT16)),
        Variant("by kernels for int8", frozenset({"int8"}), ((*_INT8, "avx_vnni"),)),
        Variant("by TensorFlow's usual operations, in float32", frozenset(), ()),
    ),
}


class CpuDispatch:
    """A `Dispatch` of `model.mode` in the graph, to one of several variants, by the processor.

    Args:
        mode: as in `VARIANTS`.
        variants: of this mode.

    Attributes:
        table: contains the index of the variant. A SavedModel must track it: its initializer makes the choice.
    """

    def __init__(self, mode: str, variants: tuple[Variant, ...]) -> None:
        self._variants = variants
        self.table = tf.lookup.StaticHashTable(_VariantIndex(mode, variants), default_value=len(variants) - 1)
        self._functions: dict[tuple[Inference, tuple[int, ...]], TfFunction] = {}

    def chosen(self) -> Variant:
        """That of this processor."""
        return self._variants[int(self.table.lookup(tf.constant(0, tf.int64)))]

    def __call__(self, inference: Inference, features: Tensors) -> Any:
        inputs = {tensor.name: features[tensor.name] for tensor in inference.model.inputs}
        indices = tuple(range(len(self._variants)))
        # Each variant takes a hundredth of the file of a small model: what people look at has two.
        return self._computed(inference, inputs, indices if inference.calls_model else (indices[0], indices[-1]))

    def _computed(self, inference: Inference, features: Tensors, indices: tuple[int, ...]) -> Any:
        """The results of `inference` by the first of these variants that the processor allows."""
        index, others = indices[0], indices[1:]
        if not others:
            with computing(dataclasses.replace(current(), kernels=self._variants[index].kernels)):
                return inference(features)
        # What depends on the features is computed in one variant only. Not by tf.cond, which passes each variable
        # through an operation in each request: that takes a twentieth of the time of a short text.
        chosen = tf.equal(self.table.lookup(tf.constant(0, tf.int64)), index)
        switched = {name: tf.raw_ops.Switch(data=value, pred=chosen) for name, value in features.items()}
        # TensorFlow puts the body of the fast variant into each signature when it loads them, but not of the others.
        fast = self._function(inference, (index,))({name: one.output_true for name, one in switched.items()})
        other = self._function(inference, others, _noinline=True)(
            {name: one.output_false for name, one in switched.items()}
        )
        # Outputs of an operation that is a function have no rank for TensorFlow, which complains of that in the log.
        fast, other = (
            tf.nest.map_structure(lambda value: tf.ensure_shape(value, value.shape), outputs)
            for outputs in (fast, other)
        )
        return tf.nest.map_structure(lambda *values: tf.raw_ops.Merge(inputs=values).output, fast, other)

    def _function(self, inference: Inference, indices: tuple[int, ...], **attributes: bool) -> TfFunction:
        """These variants as one function, which is traced once for all signatures of a model."""
        if (inference, indices) not in self._functions:
            specs = {tensor.name: tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inference.model.inputs}

            def compute(features: Tensors) -> Any:
                # While TensorFlow optimizes a function, it does not know with what shapes it is called.
                known = {name: tf.ensure_shape(features[name], spec.shape) for name, spec in specs.items()}
                return self._computed(inference, known, indices)

            self._functions[inference, indices] = tf.function(
                compute, input_signature=[specs], autograph=False, experimental_attributes=attributes
            )
        return self._functions[inference, indices]


class _VariantIndex(tf.lookup.KeyValueTensorInitializer):
    """Content of a table: 0 -> the index of the first variant that this processor has the instruction sets for."""

    def __init__(self, mode: str, variants: tuple[Variant, ...]) -> None:
        super().__init__([0], [0], tf.int64, tf.int64)
        self._mode, self._variants = mode, variants

    def initialize(self, table: tf.lookup.StaticHashTable) -> tf.Operation:
        """Fills a table; in a SavedModel, a part of the graph that a server runs when it has loaded the graph."""
        names = sorted({name for variant in self._variants for group in variant.instructions for name in group})
        # No file if there is none, as outside of Linux. It has no size, so it cannot be read as a whole.
        lines = tf.data.TextLineDataset(tf.io.matching_files(processor_flags.CPUINFO)).take(_LINES)
        options = tf.data.Options()
        options.autotune.enabled = False  # its thread may complain in the log that it is ended so soon
        lines = lines.with_options(options)

        def found(names_before: tf.Tensor, line: tf.Tensor) -> tf.Tensor:
            return names_before | tf.stack(
                [tf.strings.regex_full_match(line, rf"flags\s*:(.*\s)?{re.escape(name)}(\s.*)?") for name in names]
            )

        has = dict(zip(names, tf.unstack(lines.reduce(tf.zeros([len(names)], tf.bool), found)), strict=True))
        number = tf.constant(len(self._variants) - 1, tf.int64)
        for index, variant in reversed(list(enumerate(self._variants[:-1]))):
            groups = [tf.reduce_any([has[name] for name in group]) for group in variant.instructions]
            number = tf.where(tf.reduce_all(groups), tf.constant(index, tf.int64), number)
        log = tf.gather([f"bert_tf: {self._mode}, computed {variant.computes}" for variant in self._variants], number)
        with tf.control_dependencies([tf.print(log, output_stream=tf.compat.v1.logging.info)]):
            return tf.raw_ops.LookupTableImportV2(
                table_handle=table.resource_handle, keys=tf.constant([0], tf.int64), values=number[tf.newaxis]
            )
