"""One checkpoint into another format: open, adapt, write, verify, report."""

import dataclasses
import math
import os
import re

import numpy as np

from bert_tf.checkpoints import adapt, directory
from bert_tf.checkpoints.formats import google, huggingface, local, open_checkpoint
from bert_tf.checkpoints.verification import compare
from bert_tf.errors import ConfigError
from bert_tf.files import replacing_directory, write_json

WRITERS = {format.FORMAT: format for format in (directory, google, huggingface)}


@dataclasses.dataclass
class Report:
    """What a conversion did; written as conversion.json beside the model.

    Attributes:
        source, output, format: where from, where to, and in which format.
        model: the name of the task ("encoder" without a head) and the sizes.
        tensors: list of {"name", "shape", "dtype", "from", "to"}: our variable, and what it is called on either side.
        unused_tensors: dict tensor or setting -> why it is not in the output.
        warnings: what was guessed, made up or changed.
        verification: what `verification.compare` measured, or None.
    """

    source: str
    output: str
    format: str
    model: dict
    tensors: list
    unused_tensors: dict
    warnings: list
    verification: dict | None = None


def convert(
    source, format, output, *, dtype=None, add_pieces=(), max_position_embeddings=None, allow_pickle=False, verify=False
):
    """Converts a checkpoint; needs memory for a few tensors at a time, `verify` apart.

    Args:
        source: what `bert_tf.load` reads.
        format: "bert_tf", "google" or "huggingface".
        output: directory, which must not exist; it appears under its name when all went well.
        dtype: a name in `adapt.DTYPES` for the weights; None keeps each tensor's.
        add_pieces: pieces to append to the vocabulary.
        max_position_embeddings: longest input the result is to take; None for the source's.
        allow_pickle: see `bert_tf.load`.
        verify: run both sides on real sentences and refuse a result that differs.

    Returns:
        Report.

    Raises:
        ConfigError: the format can not hold this model, or `output` exists.
        DataError: as `bert_tf.load`; or the two sides do not agree.
    """
    if format not in WRITERS:
        raise ConfigError(f"format {format!r} is unknown; choose one of {', '.join(WRITERS)}")
    path = local(source, allow_pickle)
    checkpoint = open_checkpoint(path, allow_pickle=allow_pickle)
    if add_pieces:
        checkpoint = adapt.add_pieces(checkpoint, list(add_pieces))
    if max_position_embeddings is not None:
        checkpoint = adapt.extend_positions(checkpoint, max_position_embeddings)
    if dtype:
        checkpoint = adapt.cast(checkpoint, dtype)
    if checkpoint.head == "cosine" and format != "bert_tf":
        checkpoint.task = None
        checkpoint.warnings.append("the encoder alone is written: the head, a cosine of mean vectors, has no weights")
    with replacing_directory(output) as temporary:
        names = WRITERS[format].write(checkpoint, temporary)
        report = Report(
            source=str(source),
            output=str(output),
            format=format,
            model={"task": checkpoint.task["name"] if checkpoint.task else "encoder"} | _sizes(checkpoint),
            tensors=_rows(checkpoint, names),
            unused_tensors=dict(sorted(checkpoint.unused_tensors.items())),
            warnings=checkpoint.warnings,
        )
        if verify:
            report.verification = compare(path, temporary, allow_pickle=allow_pickle)
        write_json(os.path.join(temporary, "conversion.json"), dataclasses.asdict(report))
    return report


def _sizes(checkpoint):
    config = checkpoint.config
    sizes = ("num_layers", "hidden_size", "num_heads", "vocab_size", "max_position_embeddings")
    parameters = sum(tensor.size for tensor in checkpoint.tensors.values())
    return {name: getattr(config, name) for name in sizes} | {"parameters": parameters, "step": checkpoint.step}


def _rows(checkpoint, names):
    tensors = checkpoint.tensors | checkpoint.slots
    return [
        {"name": path, "shape": list(tensor.shape), "dtype": tensor.dtype, "from": tensor.source, "to": names[path]}
        for path, tensor in tensors.items()
        if path in names
    ]


def text(report):
    """A Report as a person reads it: tensors, what was left out, warnings, verification, result."""
    model = report.model
    lines = [
        f"{report.source}: {model['task']}, {model['num_layers']} layers, hidden {model['hidden_size']}, "
        f"{model['num_heads']} heads, vocabulary {model['vocab_size']}, {model['max_position_embeddings']} positions, "
        f"{model['parameters']:,} parameters",
        "",
        *_table(report.tensors),
        "",
    ]
    if report.unused_tensors:
        lines += ["Left out:", *(f"  {name}: {why}" for name, why in _grouped(report.unused_tensors)), ""]
    if report.warnings:
        lines += ["Notes:", *(f"  {note}" for note in report.warnings), ""]
    if report.verification:
        lines += [*_verified(report.verification), ""]
    size = sum(math.prod(row["shape"]) * np.dtype(row["dtype"]).itemsize for row in report.tensors)
    lines.append(f"{report.output}: {report.format}, {len(report.tensors)} tensors, {size / 1e6:,.1f} MB")
    return "\n".join(lines)


def _table(rows):
    """Rows of a table; layers that differ in nothing but their number share one, with * for the number."""
    merged = {}
    for row in rows:
        number = re.match(r"layer_(\d+)/", row["name"])
        names = [row[key] for key in ("name", "from", "to")]
        if number:
            names = [re.sub(rf"(layers?[._]){number[1]}(?=[./])", r"\1*", name) for name in names]
        name, source, target = names
        key = (name, "x".join(map(str, row["shape"])) or "scalar", row["dtype"], _short(source), _short(target))
        merged[key] = merged.get(key, 0) + 1
    table = [("name", "shape", "dtype", "from", "to")]
    table += [(f"{key[0]} ({count}x)" if count > 1 else key[0], *key[1:]) for key, count in merged.items()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _short(names):
    """ "a.x.c + a.y.c" as "a.{x,y}.c"."""
    columns = list(zip(*(re.split(r"([./])", name) for name in names.split(" + ")), strict=True))
    return "".join(parts[0] if len(set(parts)) == 1 else f"{{{','.join(parts)}}}" for parts in columns)


def _grouped(unused_tensors):
    """Names with the same reason on one line."""
    reasons = {}
    for name, why in unused_tensors.items():
        starred = re.sub(r"(layers?[._])\d+(?=[./])", r"\1*", name)
        reasons.setdefault(why, {})[starred] = None  # each once, in order
    return [(_some(list(names)), why) for why, names in reasons.items()]


def _some(names, shown=8):
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more, listed in conversion.json" if more > 0 else "")


def _verified(verification):
    lines = [
        f"Verified on {verification['inputs']}: {verification['source_run_by']} before, "
        f"{verification['output_run_by']} after; largest differences:"
    ]
    differences = verification["differences"]
    layers = [found for name, found in differences.items() if name.startswith("layer_")]
    if layers:
        worst = max(layers, key=lambda found: found["largest"])
        differences = {f"hidden states of {len(layers)} layers": worst} | {
            name: found for name, found in differences.items() if not name.startswith("layer_")
        }
    for name, found in differences.items():
        lines.append(f"  {name}: {found['largest']:.2g} (values up to {found['of']:.3g})")
    return lines
