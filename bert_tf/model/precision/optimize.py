"""Encoders for export with weights and matrix products in bfloat16, also compiled by XLA, or int8, or with weights in
int4.

An encoder is not copied: in the scope of `optimized` some of its layers have converted weights (`converted`), so every
signature that is traced there contains these instead of the float32 variables.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf import processor_flags, quiet
from bert_tf.errors import ConfigError, UnsuitedError
from bert_tf.model import fused
from bert_tf.model.compute import Form, converted
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.layers import Dense
from bert_tf.model.mode import computing, current, infer
from bert_tf.model.precision import bfloat16, int4, int8
from bert_tf.model.precision.dispatch import VARIANTS, CpuDispatch, Variant
from bert_tf.model.precision.xla import Programs, XlaDispatch
from bert_tf.model.ranges import Largest
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.packing import dense_features
from bert_tf.types import Array, Tensors


class Optimization(NamedTuple):
    """What an export in the scope of `optimized` computes.

    Attributes:
        approximation: how far it is from float32, as text; "" for the mode "none".
        variants: of the graph, of which it chooses one by the processor; () if it has only one.
        dispatch: makes this choice; None if there is none.
        programs: of XLA, that a server compiles before it answers; None if XLA compiles nothing.
        resources: objects that a SavedModel must track besides the variables that its signatures read.
    """

    approximation: str = ""
    variants: tuple[Variant, ...] = ()
    dispatch: CpuDispatch | None = None
    programs: Programs | None = None
    resources: tuple[Any, ...] = ()


@contextlib.contextmanager
def optimized(
    encoder: BertEncoder | None,
    mode: str,
    tokenizer: BaseTokenizer,
    sentences: Sequence[str],
    tolerance: float,
    calibration_texts: Sequence[str] = (),
) -> Iterator[Optimization]:
    """Scope in which `encoder` computes as it does in an export of this mode.

    In bfloat16 are the word embedding, the weights of all dense layers except the pooler and the head, their products,
    GELU and the products of the attention. LayerNorm, softmax and residual connections stay in float32; in int8, so
    does a projection of the embeddings, which has less than a hundredth of the operations.

    Args:
        encoder: with float32 weights; it is unchanged after the scope. None only for the mode "none".
        mode: a key of `VARIANTS`.
        tokenizer: for `sentences` and `calibration_texts`.
        sentences: on which the encoder is compared with itself in float32.
        tolerance: largest difference of the last layer from float32, root mean square, relative; for int8 from what
            the encoder was fine-tuned with, if it has `ranges`.
        calibration_texts: for int8, as for `ranges_of`.

    Raises:
        ConfigError: the processor is not to use what the export would use here.
        UnsuitedError: the encoder differs too much from float32, or TensorFlow has no kernels for int8.
    """
    if mode == "none":
        yield Optimization()
        return
    assert encoder
    compiled = XlaDispatch(encoder.config.max_position_embeddings) if mode == "xla" else None
    if mode == "int8":
        int8.require_kernels()
    # Of bfloat16, GPUs compute TensorFlow's usual operations fastest.
    variants = VARIANTS[mode] if mode != "bfloat16" or fused.has_bfloat16() else ()
    if problem := processor_flags.unsuitable([variant.described() for variant in variants]):
        raise ConfigError(problem)
    features = tokenizer.encode(sentences, max_length=encoder.config.max_position_embeddings)
    trained = mode == "int8" and encoder.ranges is not None  # with the rounding of the export
    reference = "its fine-tuning in int8" if trained else "float32"
    with converted(int8.rounded_forms(encoder) if trained else ()):
        expected = _states(encoder, features)
    resources: list[Any] = []
    if mode == "int8":
        forms = functools.partial(_in_int8, encoder, ranges_of(encoder, tokenizer, calibration_texts))
    elif mode == "int4":
        packed = int4.kernels_of(encoder)
        resources = [part for _, kernel in packed for part in (kernel, *kernel.variables)]
        forms = functools.partial(_in_int4, encoder, packed)
    else:
        forms = functools.partial(_in_bfloat16, encoder)
    kept: list[int] = []  # numbers of the blocks that stay in float32
    while True:
        with contextlib.ExitStack() as scope:
            scope.enter_context(converted(forms(kept)))
            dispatch = CpuDispatch(mode, variants) if variants else None
            # By this processor's variant alone: tracing takes a second for each variant of a small model.
            used = dispatch.chosen().kernels if dispatch else frozenset[str]() if compiled else current().kernels
            with computing(dataclasses.replace(current(), kernels=used)):
                states = _states(encoder, features)
            differences = np.sqrt(np.square(states - expected).sum((1, 2)) / np.square(expected).sum((1, 2)))
            if dispatch:
                scope.enter_context(computing(dataclasses.replace(current(), dispatch=dispatch)))
            if compiled:  # XLA has no kernels of oneDNN
                mode_of_programs = dataclasses.replace(current(), dispatch=compiled, kernels=frozenset())
                scope.enter_context(computing(mode_of_programs))
            if differences[-1] <= tolerance:
                within = f", with the layers {', '.join(map(str, sorted(kept)))} in float32" if kept else ""
                yield Optimization(
                    f"{mode}: the last layer differs by {differences[-1]:.1e} from {reference} (root mean square, "
                    f"relative){within}",
                    variants,
                    dispatch,
                    compiled.programs if compiled else None,
                    (*resources, *([dispatch.table] if dispatch else [])),
                )
                return
        added = np.diff(differences[:-1], prepend=0)
        added[kept] = -np.inf
        may_keep = mode == "int8" and not trained and len(kept) < encoder.config.num_blocks // 2
        if not may_keep or not np.isfinite(differences).all():
            raise UnsuitedError(
                f"{mode}: the last layer differs by {differences[-1]:.1e} from {reference} (root mean square, "
                f"relative; at most {tolerance:.0e} is exported); nothing was exported, use --optimize=none"
            )
        kept.append(int(added.argmax()))


def ranges_of(encoder: BertEncoder, tokenizer: BaseTokenizer, texts: Sequence[str]) -> list[Largest]:
    """The ranges of the inputs of an encoder's int8 products.

    Those of its fine-tuning for int8, or else those on `texts`, pairs of them, and random words.
    """
    return encoder.ranges.values if encoder.ranges else int8.calibrate(encoder, _calibration(encoder, tokenizer, texts))


def to_bfloat16(encoder: BertEncoder) -> None:
    """Makes an encoder compute from now on as it does in an export of the mode "bfloat16"; for inference only.

    It computes from copies of its weights. The weights themselves stay float32, and so does what is saved.

    Args:
        encoder: with float32 weights; nothing that calls it has been traced.
    """
    for layer, form in _in_bfloat16(encoder, ()):
        layer.converted = form


def _calibration(encoder: BertEncoder, tokenizer: BaseTokenizer, texts: Sequence[str]) -> Iterator[Tensors]:
    """Batches of texts, of a pair of all of them, and of random words."""
    for start in range(0, len(texts), 32):
        yield tokenizer.encode(texts[start : start + 32], max_length=encoder.config.max_position_embeddings)
    ids = tokenizer.tokenize(tf.constant([" ".join(texts)] * 2))
    half = encoder.config.max_position_embeddings // 2 - 2
    yield dense_features(*tokenizer.pack(ids[:1, :half], ids[1:, -half:]))
    words = np.random.default_rng(0).integers(encoder.config.vocab_size, size=[8, min(64, 2 * half)])
    ids = tf.RaggedTensor.from_tensor(tf.constant(words, tf.int32))
    yield dense_features(*tokenizer.pack(ids))


def _in_int8(encoder: BertEncoder, ranges: list[Largest], kept: Collection[int]) -> Iterator[Form]:
    yield encoder.embeddings, int8.Lookup(encoder.embeddings)
    for index, (block, largest) in enumerate(zip(encoder.blocks(), ranges, strict=True)):
        if index not in kept:
            yield from int8.converted_block(block, largest)


def _in_int4(encoder: BertEncoder, weights: list[tuple[Dense, int4.Kernel]], _: Collection[int]) -> Iterator[Form]:
    yield from int4.converted_layers(encoder, weights)


def _in_bfloat16(encoder: BertEncoder, _: Collection[int]) -> Iterator[Form]:
    yield from bfloat16.converted_embeddings(encoder.embeddings)
    for block in encoder.blocks():
        yield from bfloat16.converted_block(block)


def _states(encoder: BertEncoder, features: Tensors) -> Array:
    """float32 [layers + 1, tokens, hidden]: the outputs of all layers and the sequence output.

    As a graph, which TensorFlow rewrites as in a server.
    """

    def compute() -> tf.Tensor:
        outputs = infer(encoder, features)
        return tf.stack([*outputs["encoder_outputs"], outputs["sequence_output"]])

    return tf.boolean_mask(quiet.traced_function(compute)(), features["input_mask"] > 0, axis=1).numpy()
