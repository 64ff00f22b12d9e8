"""Conversion of a checkpoint to another format: open, adapt, write, verify, report."""

import collections
import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence

import numpy as np

from bert_tf.checkpoints import adapt, directory
from bert_tf.checkpoints.formats import WritableFormat, google, huggingface, local, open_checkpoint
from bert_tf.checkpoints.verification import compare
from bert_tf.checkpoints.weight_map import first_names
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import replacing_directory, require_space, write_json
from bert_tf.inputs.corpus.readers import check_text_files
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
    if checkpoint.no_head:
        raise DataError(checkpoint.no_head)
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
    if checkpoint.head == "cosine" and format != "bert_tf":
        checkpoint.task = None
        checkpoint.warnings.append("only the encoder is written: the head, a cosine of mean vectors, has no weights")
    if checkpoint.ranges and format != "bert_tf":
        checkpoint.warnings.append(
            "the ranges of the fine-tuning for int8 are not written, as the format has no place for them: an export "
            "with int8 will measure others"
        )
    tensors = checkpoint.tensors | (checkpoint.slots if format != "huggingface" else {})  # which has no place for them
    require_space(output, sum(tensor.nbytes for tensor in tensors.values()), "the checkpoint")
    sizes = ("num_layers", "hidden_size", "vocab_size", "max_position_embeddings")
    with replacing_directory(output) as temporary:
        names = WRITERS[format].write(checkpoint, temporary)
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
            "unused_tensors": dict(sorted(checkpoint.unused_tensors.items())),
            "warnings": checkpoint.warnings,
            "verification": compare(path, temporary, allow_pickle=allow_pickle) if verify else None,
        }
        write_json(os.path.join(temporary, "conversion.json"), report)
    return report


def text(report: Json) -> str:
    """Formats the report of `convert` for the terminal: tensors, unused tensors, warnings, verification, result."""
    model = report["model"]
    lines = [
        f"{report['source']}: {model['task']}, {model['num_layers']} layers, hidden {model['hidden_size']}, "
        f"{model['num_heads']} heads, vocabulary {model['vocab_size']}, {model['max_position_embeddings']} positions, "
        f"{model['parameters']:,} parameters",
        "",
        *_table(report["tensors"]),
        "",
    ]
    if report["unused_tensors"]:
        names_of = collections.defaultdict[str, dict[str, None]](dict)  # reason -> names, each once, in order
        for name, why in report["unused_tensors"].items():
            names_of[why][re.sub(r"(layers?[._])\d+(?=[./])", r"\1*", name)] = None
        shown = {why: first_names(list(names), ", listed in conversion.json") for why, names in names_of.items()}
        lines += ["Not used:", *(f"  {names}: {why}" for why, names in shown.items()), ""]
    if report["vocabulary"]:
        lines += [*_trimmed(report["vocabulary"]), ""]
    if report["warnings"]:
        lines += ["Warnings:", *(f"  {note}" for note in report["warnings"]), ""]
    if report["verification"]:
        lines += [*_verified(report["verification"]), ""]
    size = sum(math.prod(row["shape"]) * np.dtype(row["dtype"]).itemsize for row in report["tensors"])
    lines.append(f"{report['output']}: {report['format']}, {len(report['tensors'])} tensors, {size / 1e6:,.1f} MB")
    return "\n".join(lines)


def _trimmed(vocabulary: Json) -> list[str]:
    (before, after), (weights, fewer), held_out = (vocabulary[name] for name in ("pieces", "weights", "held_out"))
    lines = [
        f"Vocabulary: {after:,} of {before:,} pieces kept; {vocabulary['texts']:,} texts use "
        f"{vocabulary['pieces_used']:,}, and their tokens stay the same; {weights:,} weights before, {fewer:,} now"
    ]
    if held_out:
        unknown = " before, ".join(f"{number:,}" for number in held_out["unknown"])
        lines.append(
            f"  other texts, estimated by trimming without every 20th text: {held_out['changed']:,} of "
            f"{held_out['tokens']:,} tokens change ({held_out['changed'] / max(held_out['tokens'], 1):.2%}); unknown "
            f"tokens: {unknown} then"
        )
    return lines


def _table(rows: Iterable[Json]) -> list[str]:
    """Lines of a table; layers that differ only in their number share a row, with * for the number."""
    merged = collections.Counter[tuple[str, ...]]()
    for row in rows:
        number = re.match(r"layer_(\d+)/", row["name"])
        names = [row[key] for key in ("name", "from", "to")]
        if number:
            names = [re.sub(rf"(layers?[._]){number[1]}(?=[./])", r"\1*", name) for name in names]
        name, source, target = names
        shape = "x".join(map(str, row["shape"])) or "scalar"
        merged[name, shape, row["dtype"], _short(source), _short(target)] += 1
    table: list[tuple[str, ...]] = [("name", "shape", "dtype", "from", "to")]
    table += [(f"{key[0]} ({count}x)" if count > 1 else key[0], *key[1:]) for key, count in merged.items()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _short(names: str) -> str:
    """ "a.x.c + a.y.c" as "a.{x,y}.c"."""
    columns = list(zip(*(re.split(r"([./])", name) for name in names.split(" + ")), strict=True))
    return "".join(parts[0] if len(set(parts)) == 1 else f"{{{','.join(parts)}}}" for parts in columns)


def _verified(verification: Json) -> list[str]:
    if verification["not_verified_against"] is not None:
        largest = max(entry["largest"] for entry in verification["differences"].values())
        return [
            *(f"Not verified against {library}" for library in verification["not_verified_against"]),
            f"{verification['source_run_by']} itself computes the same from source and output, up to {largest:.2g}, on "
            f"{verification['inputs']}",
        ]
    lines = [
        f"Verified on {verification['inputs']}: {verification['source_run_by']} before, "
        f"{verification['output_run_by']} after; largest differences:"
    ]
    differences = verification["differences"]
    layers = [name for name in differences if name.startswith("layer_")]
    if layers:
        worst = max((differences[name] for name in layers), key=lambda entry: entry["largest"])
        others = {name: entry for name, entry in differences.items() if name not in layers}
        differences = {f"hidden states of {len(layers)} layers": worst} | others
    return lines + [
        f"  {name}: {entry['largest']:.2g} (values up to {entry['of']:.3g})" for name, entry in differences.items()
    ]
