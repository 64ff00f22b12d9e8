"""Numerical parity check: runs source and converted checkpoint on the same sentences and compares outputs.

Each side is run with its own library, as far as that is installed.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.formats import format_of, open_checkpoint
from bert_tf.checkpoints.formats.sentence_modules import encoder_folder
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.errors import DataError
from bert_tf.files import bundled, temporary_directory
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.model.head_table import HEADS
from bert_tf.model.heads import POSITIONS
from bert_tf.types import Array, Json
from bert_tf.version import __version__

_OURS = "bert_tf "
_SENTENCES = 16
_LENGTH = 64
_CHOICES = 2  # choices per question of a multiple-choice model, and texts per cosine
# Format -> the library that would have to confirm a conversion, and why it is not run.
_NOT_RUN = {
    "huggingface": "Transformers: it is not installed; pip install transformers 'bert_tf[torch]'",
    "google": "google-research/bert: it needs TensorFlow 1",
    "model_garden": "TF Model Garden: only its SavedModels can be run",
}
# Transformers' names of logits where a class has several kinds -> ours.
_LOGITS = {"prediction_logits": "mlm_logits", "seq_relationship_logits": "nsp_logits", "sop_logits": "nsp_logits"}
# Largest difference allowed, relative to the largest value of an output. Float32 sums in another order differ by about
# 1e-6; a number with 8 or 11 bits is off by 1/256 or 1/2048, and the error accumulates over layers.
_TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def compare(source: str, output: str, *, allow_pickle: bool = False) -> Json:
    """Computes the largest differences between two checkpoints of the same model.

    Compares the hidden states of every layer at tokens (not padding), the pooled output and the logits of the head, as
    far as both have them. A Hugging Face directory is run with Transformers if that is installed, a SavedModel with
    TensorFlow, everything else with this project.

    Args:
        source: a path that `open_checkpoint` reads.
        output: the same; its model may have more pieces and positions, or only some of the pieces.
        allow_pickle: see `bert_tf.load`.

    Returns:
        {"source_run_by", "output_run_by": library and version, "inputs": description of the inputs, "differences":
        {name of an output: {"largest": largest difference, "of": largest value of the source}}, "not_verified_against":
        if this project ran both, a list of the libraries of the two formats, with the reasons why they were not run;
        else None}.

    Raises:
        DataError: a difference is larger than the number format explains.
    """
    before = open_checkpoint(source, allow_pickle=allow_pickle)
    after = open_checkpoint(output)
    ids, new_ids = _common(before, after)
    features, described = _features(before, ids)
    renumbered = features | {"input_word_ids": new_ids[np.searchsorted(ids, features["input_word_ids"])]}
    sides = [_run(source, before, features), _run(output, after, renumbered)]
    (source_by, left), (output_by, right) = sides
    tokens = features["input_mask"] == 1
    rounded = _dtypes(after) - _dtypes(before)
    tolerance = max(_TOLERANCE.get(dtype, 0.0) for dtype in rounded | {"float32"})
    differences = {}
    for name in left:
        if name not in right:
            continue
        one, other = left[name].astype(np.float64), right[name].astype(np.float64)
        if name == "mlm_logits":  # without those of pieces that only one of them has
            one, other = one[..., ids], other[..., new_ids]
        if one.shape[: tokens.ndim] == tokens.shape:  # values at padding are meaningless
            one, other = one[tokens], other[tokens]
        differences[name] = {"largest": float(np.abs(one - other).max()), "of": float(np.abs(one).max())}
    wrong = [name for name, it in differences.items() if not it["largest"] <= tolerance * max(it["of"], 1.0)]
    if wrong:
        shown = ", ".join(f"{name} by {differences[name]['largest']:.3g}" for name in wrong)
        raise DataError(f"{source}, run with {source_by}, and its conversion, run with {output_by}, differ in {shown}")
    alone = source_by.startswith(_OURS) and output_by.startswith(_OURS)
    formats = [getattr(format_of(path), "FORMAT", None) for path in (source, output)]
    return {
        "source_run_by": source_by,
        "output_run_by": output_by,
        "inputs": described,
        "differences": differences,
        "not_verified_against": [_NOT_RUN[name] for name in formats if name in _NOT_RUN] if alone else None,
    }


def _dtypes(checkpoint: Checkpoint) -> set[str]:
    return {tensor.dtype for tensor in checkpoint.tensors.values()}


def _common(before: Checkpoint, after: Checkpoint) -> tuple[Array, Array]:
    """The ids of the pieces that two checkpoints share: in the first, ascending, and in the second."""
    size = before.config.vocab_size
    same = np.arange(size, dtype=np.int32)
    if not before.tokenizer or not after.tokenizer or before.tokenizer.vocab == after.tokenizer.vocab[:size]:
        return same, same
    numbers = {piece: number for number, piece in enumerate(after.tokenizer.vocab)}
    found = np.array([numbers.get(piece, -1) for piece in before.tokenizer.vocab], np.int32)
    return same[found >= 0], found[found >= 0]


def _features(checkpoint: Checkpoint, ids: Array) -> tuple[dict[str, Array], str]:
    """Encoder inputs of these ids, each int32 [sentences, length], and a description of them."""
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    length = min(_LENGTH, config.max_position_embeddings)
    if tokenizer and len(ids) == config.vocab_size:
        rows = read_table(os.path.join(bundled("data/reviews"), "heldout.tsv"), ["sentence"])
        texts = rows["sentence"]
        texts = texts[:: len(texts) // (2 * _SENTENCES)]
        first, second = texts[:_SENTENCES], texts[_SENTENCES : 2 * _SENTENCES]
        if np.mean(tokenizer.tokenize(first).values.numpy() == tokenizer.unk_id) < 0.5:
            encoded = tokenizer.encode(first, second, max_length=length)
            features = {name: value.numpy() for name, value in encoded.items()}
            features["input_type_ids"] = np.minimum(features["input_type_ids"], max(config.type_vocab_size, 1) - 1)
            return features, f"{_SENTENCES} pairs of the bundled review sentences"
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, length + 1, (_SENTENCES, 1))
    mask = (np.arange(length) < lengths).astype(np.int32)
    # The first few ids are special, so they are not drawn: Transformers' RoBERTa counts no position for [PAD].
    drawn = ids[rng.integers(min(5, len(ids) - 1), len(ids), mask.shape)]
    padding = ids[0]  # any id that both have
    return (
        {"input_word_ids": np.where(mask, drawn, padding), "input_mask": mask, "input_type_ids": np.zeros_like(mask)},
        f"{_SENTENCES} rows of random ids, as the vocabulary does not fit the bundled sentences",
    )


def _run(path: str, checkpoint: Checkpoint, features: dict[str, Array]) -> tuple[str, dict[str, Array]]:
    """Name and version of the library, and the model's outputs."""
    masked = {POSITIONS: np.tile(np.arange(1, 3, dtype=np.int32), (len(features["input_mask"]), 1))}
    reader = format_of(path)
    if reader and reader.FORMAT == "huggingface" and all(map(importlib.util.find_spec, ("torch", "transformers"))):
        return _with_transformers(encoder_folder(path), checkpoint, features | masked)
    if os.path.exists(os.path.join(path, "saved_model.pb")):
        return f"the SavedModel (TensorFlow {tf.__version__})", _with_saved_model(path, features, masked)
    return f"{_OURS}{__version__}", _with_bert_tf(checkpoint, features, masked)


def _with_bert_tf(checkpoint: Checkpoint, features: dict[str, Array], masked: dict[str, Array]) -> dict[str, Array]:
    outputs = _encoder_outputs(checkpoint.encoder()(features))
    if checkpoint.head:
        model, inputs = checkpoint.model(), features
        if HEADS[checkpoint.head].grouped:
            inputs = {name: value.reshape(-1, _CHOICES, value.shape[-1]) for name, value in features.items()}
        given = {tensor.name: (inputs | masked)[tensor.name] for tensor in model.inputs}
        outputs |= {name: value.numpy() for name, value in model(given).items()}
    return outputs


def _with_saved_model(path: str, features: dict[str, Array], masked: dict[str, Array]) -> dict[str, Array]:
    """Runs a TF-Hub encoder: from a dict to a dict since version 3; before, from a list to (pooled, sequence).

    Encoders with a masked language model have a method `mlm` that returns its logits too.
    """
    model, inputs = tf.saved_model.load(path), {name: tf.constant(value) for name, value in features.items()}
    if hasattr(model, "mlm"):
        outputs = model.mlm(inputs | {name: tf.constant(value) for name, value in masked.items()})
        return _encoder_outputs(outputs) | {"mlm_logits": outputs["mlm_logits"].numpy()}
    try:
        return _encoder_outputs(model(inputs))
    except (TypeError, ValueError):
        pooled, sequence = model([inputs[name] for name in ("input_word_ids", "input_mask", "input_type_ids")])
        return _encoder_outputs({"pooled_output": pooled, "sequence_output": sequence})


def _encoder_outputs(outputs: Mapping[str, tf.Tensor | list[tf.Tensor]]) -> dict[str, Array]:
    layers = {f"layer_{index}": value for index, value in enumerate(outputs.get("encoder_outputs", []))}
    named = layers | {name: outputs[name] for name in ("sequence_output", "pooled_output") if name in outputs}
    return {name: value.numpy() for name, value in named.items()}


def _with_transformers(path: str, checkpoint: Checkpoint, features: dict[str, Array]) -> tuple[str, dict[str, Array]]:
    """Runs the model as the class that its config.json names, or as an encoder if Transformers does not have it.

    Returns its outputs under this project's names.
    """
    head = HEADS[checkpoint.head] if checkpoint.head else None
    inputs: Json = {
        theirs: features[ours]
        for ours, theirs in (
            ("input_word_ids", "input_ids"),
            ("input_mask", "attention_mask"),
            ("input_type_ids", "token_type_ids"),
        )
    }
    part = "model" if head else "encoder" if checkpoint.config.pooler else "encoder_without_pooler"
    with temporary_directory() as folder:
        files = [os.path.join(folder, name) for name in ("inputs.npz", "outputs.npz")]
        inputs["choices"] = _CHOICES if head and head.grouped else 0
        np.savez(files[0], **inputs)
        program = os.path.join(os.path.dirname(__file__), "with_transformers.py")
        done = subprocess.run(
            [sys.executable, program, path, *files, part], capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise DataError(f"{path}: Transformers cannot run it: {reason}")
        outputs = dict(np.load(files[1]))
    version = outputs.pop("version")
    last = f"layer_{checkpoint.config.num_layers - 1}"
    outputs["sequence_output"] = outputs[last]
    if checkpoint.config.norm == "pre":  # there, after the norm that follows all layers
        del outputs[last]
    # A class that Transformers does not have is run without its head.
    names = _LOGITS | ({"logits": head.output} if head else {})
    outputs = {names.get(name, name): value for name, value in outputs.items()}
    if "mlm_logits" in outputs:  # Transformers computes them at every position
        outputs["mlm_logits"] = np.take_along_axis(outputs["mlm_logits"], features[POSITIONS][..., np.newaxis], 1)
    return f"transformers {version}", outputs
