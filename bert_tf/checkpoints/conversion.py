"""Conversion of a checkpoint to another format: open, adapt, write, verify, report."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Sequence

from bert_tf.checkpoints import adapt, directory
from bert_tf.checkpoints.formats import WritableFormat, google, huggingface, local, open_checkpoint
from bert_tf.checkpoints.verification import compare
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import replacing_directory, require_space, write_json
from bert_tf.inputs.corpus.readers import check_text_files
from bert_tf.model.head_table import HEADS
from bert_tf.text.learning import read_lines
from bert_tf.types import Json

WRITERS: dict[str, WritableFormat] = {format.FORMAT: format for format in (directory, google, huggingface)}


def convert(
    source: str,
    format: str,
    output: str,
    *,
    dtype: str | None = None,
    trim_vocab: Sequence[str] = (),
    keep_characters: bool = True,
    add_pieces: Iterable[str] = (),
    max_position_embeddings: int | None = None,
    allow_pickle: bool = False,
    verify: bool = False,
) -> Json:
    """Converts a checkpoint; holds only a few tensors in memory at a time, except for `verify`.

    Args:
        source: any path that `bert_tf.load` reads.
        format: "bert_tf", "google" or "huggingface".
        output: a directory that must not exist yet; it appears under its name only when the conversion has succeeded.
        dtype: a name in `adapt.DTYPES` to cast the weights to; None keeps the dtype of each tensor.
        trim_vocab: text files, plain or .gz, one text per line: keep only the pieces that they use.
        keep_characters: with `trim_vocab`, keep also all pieces that are one character (see `adapt.trim_vocabulary`).
        add_pieces: pieces to append to the vocabulary.
        max_position_embeddings: longest input of the result; None for the source's.
        allow_pickle: see `bert_tf.load`.
        verify: run source and result on real sentences and reject a result that differs.

    Returns:
        The report, which is also written as conversion.json beside the model: source, output and format; model, the
        name of the task ("encoder" without a head) and the sizes; tensors, a list of {"name", "shape", "dtype", "from",
        "to"}: our variable, and its names in source and output; vocabulary, the report of `adapt.trim_vocabulary`, or
        None; unused_tensors, the tensors and settings that are not
        in the output, each with the reason; warnings: guesses, made-up values and changes; verification, the result of
        `verification.compare` or None.
    """
    if format not in WRITERS:
        raise ConfigError(f"format {format!r} is unknown; choose one of {', '.join(WRITERS)}")
    path = local(source, allow_pickle)
    checkpoint = open_checkpoint(path, allow_pickle=allow_pickle)
    if checkpoint.report.no_head:
        raise DataError(checkpoint.report.no_head)
    vocabulary = None
    if trim_vocab:
        checkpoint.tokenizer_of_text(path)
        check_text_files(trim_vocab)
        lines = itertools.chain.from_iterable(map(read_lines, trim_vocab))
        checkpoint, vocabulary = adapt.trim_vocabulary(checkpoint, lines, keep_characters)
    if add_pieces:
        checkpoint = adapt.add_pieces(checkpoint, list(add_pieces))
    if max_position_embeddings is not None:
        checkpoint = adapt.resize_positions(checkpoint, max_position_embeddings)
    if dtype:
        checkpoint = adapt.cast(checkpoint, dtype)
    if checkpoint.head and not HEADS[checkpoint.head].parts and format != "bert_tf":
        note = f"only the encoder is written: the head, a {checkpoint.head}, has no weights"
        checkpoint = dataclasses.replace(checkpoint, task=None).reported(note)
    if checkpoint.ranges and format != "bert_tf":
        checkpoint = checkpoint.reported(
            "the ranges of the fine-tuning for int8 are not written, as the format has no place for them: an export "
            "with int8 will measure others"
        )
    tensors = checkpoint.tensors | (
        checkpoint.moments if format != "huggingface" else {}
    )  # which has no place for them
    require_space(output, sum(tensor.nbytes for tensor in tensors.values()), "the checkpoint")
    sizes = ("num_layers", "hidden_size", "vocab_size", "max_position_embeddings")
    with replacing_directory(output) as temporary:
        names, written = WRITERS[format].write(checkpoint, temporary)
        done = checkpoint.report + written
        rows = [
            {"name": path, "shape": list(one.shape), "dtype": one.dtype, "from": one.source, "to": names[path]}
            for path, one in tensors.items()
            if path in names
        ]
        report: Json = {
            "source": str(source),
            "output": str(output),
            "format": format,
            "model": {
                "task": checkpoint.task["name"] if checkpoint.task else "encoder",
                **{name: getattr(checkpoint.config, name) for name in sizes},
                "num_heads": max(checkpoint.config.layer_heads),
                "parameters": sum(tensor.size for tensor in checkpoint.tensors.values()),
                "step": checkpoint.step,
            },
            "tensors": rows,
            "vocabulary": vocabulary,
            "unused_tensors": dict(sorted(done.unused_tensors.items())),
            "warnings": list(done.warnings),
            "verification": compare(path, temporary, allow_pickle=allow_pickle) if verify else None,
        }
        write_json(os.path.join(temporary, "conversion.json"), report)
    return report
