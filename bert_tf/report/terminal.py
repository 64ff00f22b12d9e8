"""What programs print of their results."""

import collections
import math
import re
import textwrap
from collections.abc import Iterable

import numpy as np

from bert_tf.checkpoints.weight_map import first_names
from bert_tf.metrics.units import unit_of
from bert_tf.progress import duration
from bert_tf.report.tables import aligned, indented, markdown
from bert_tf.types import Json

_WIDTH = 110  # of wrapped text, in columns


def print_pretrained(results: Json, model_dir: str) -> None:
    """Prints the end of a pre-training run: its results by language, if it has several, and what was written."""
    if "languages" in results:
        print(languages_table(results["languages"]))
    print(f"{model_dir}: {results['steps']} steps done; wrote the model and results.json")


def languages_table(rows: Iterable[Json]) -> str:
    """The languages of a pre-training run.

    Args:
        rows: "languages" in its results.json.
    """
    # Not all languages need to have validation text.
    names = [*dict.fromkeys(name for row in rows for name in row)]
    metrics = [name for name in names if name not in ("language", "text_share", "share", "tokens")]
    header = ("language", "share of the text", "share in training", "tokens read", *metrics)
    lines = [
        (
            row["language"],
            f"{row['text_share']:.1%}",
            f"{row['share']:.1%}",
            f"{row['tokens']:,}",
            *(unit_of(name, ()).text(row[name]) if name in row else "" for name in metrics),
        )
        for row in rows
    ]
    return markdown(header, lines)


def plan_text(plan: Json) -> str:
    """The plan of a pre-training run, as `pretrain` returns it with `dry_run`."""
    counts = plan["parameters"] | {"total": sum(plan["parameters"].values())}
    heading = ("", "updates", "batch", "length", "epochs", "GFLOP", "ms", "rows/s", "of peak", "time")
    phases = [
        (
            f"{number}",
            f"{phase['steps']:,}",
            f"{phase['batch_size']:,}",
            f"{phase['length']}",
            f"{phase['steps'] * phase['batch_size'] / phase['rows']:.1f}",
            f"{phase['flops'] / 1e9:,.1f}",
            f"{1000 * phase['seconds']:,.0f}",
            f"{phase['batch_size'] / phase['seconds']:,.1f}",
            f"{phase['of_peak']:.0%}",
            duration(phase["steps"] * phase["seconds"]),
        )
        for number, phase in enumerate(plan["phases"], 1)
    ]
    languages = [
        (row["language"], f"{row['text_share']:.1%}", f"{row['share']:.1%}", f"{row['passes']:.1f}")
        for row in plan.get("languages", ())
    ]
    mixture = {"Languages": indented([("", "of the text", "of the tokens", "passes"), *languages])} if languages else {}
    sections = mixture | {
        "Parameters": indented([(name, f"{count:,}") for name, count in counts.items()]),
        "Memory per replica": indented([(name, _bytes(size)) for name, size in plan["memory"].items()]),
        "Epoch": "\n".join(
            f"  {phase['rows']:,} rows of {phase['length']} ({phase['rows_from']})" for phase in plan["phases"]
        ),
        "Phases": indented([heading, *phases]) + "\n  GFLOP and ms per update, ms measured over ten updates; "
        "of peak: speed relative to that of large matrix products (MFU).\n  "
        f"Total time: {duration(plan['seconds'])}, without evaluations and checkpoints.",
        "Examples as the model sees them: [house>MASK] masked, [house=] kept, [house>tree] random; label: house": (
            "\n".join(map(_example, plan["examples"]))
        ),
    }
    return "\n\n".join(f"{title}\n{text}" for title, text in sections.items())


def _bytes(number: float) -> str:
    """A number of bytes as text: 0.4 MiB, 12 MiB, 1.3 GiB."""
    unit, *larger = "KiB", "MiB", "GiB", "TiB"
    number /= 1024
    while number >= 999.5 and larger:
        unit, *larger = larger
        number /= 1024
    return f"{number:.{0 if number >= 9.95 else 1}f} {unit}"


def _example(example: Json) -> str:
    head = f"  {example['tokens']} tokens, {example['hidden']} hidden" + f", {example['pair']}" * bool(example["pair"])
    indent = " " * 4
    wrapped = textwrap.fill(
        example["text"], _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return f"{head}\n{wrapped}"


def pruning_text(report: Json) -> str:
    """The report of `training.runs.pruning.prune`."""
    before, after = report["metrics"]
    names = [name for name in before if name in after]
    rows = [
        ("", "before", "after"),
        ("weights of layers", *(f"{count:,}" for count in report["layer_weights"])),
        ("all weights", *(f"{count:,}" for count in report["parameters"])),
        *((f"calibration {name}", f"{before[name]:.4f}", f"{after[name]:.4f}") for name in names),
    ]
    layers = zip(report["layers"], report["heads_per_layer"], report["intermediate_sizes"], strict=True)
    sizes = [("layer", "heads", "columns"), *(tuple(map(str, layer)) for layer in layers)]
    return f"Removed {report['removed']:.1%} of the weights of the layers\n{indented(rows)}\n{indented(sizes)}"


def compression_line(row: Json, metric: str) -> str:
    """A step of a compression; arguments as for `training.reporter.Reporter.compression_step`."""
    head = f"{row['name']}, {row['title']}: "
    if "reason" in row:
        return f"{head}left out: {row['reason']}"
    interval = "" if row["interval"] is None else " ({:.4f} to {:.4f})".format(*row["interval"])
    times = ", ".join(f"{row[f'ms_{key}']:.2f} ms with {key.replace('_', ' ')}" for key in ("1_thread", "2_threads"))
    note = f"; {row['note']}" * bool(row["note"])
    return f"{head}{metric} {row['value']:.4f}{interval}, {row['megabytes']:.2f} MB, {times}{note}"


def conversion_text(report: Json) -> str:
    """The report of `checkpoints.conversion.convert`: tensors, unused tensors, warnings, verification, result."""
    model = report["model"]
    lines = [
        f"{report['source']}: {model['task']}, {model['num_layers']} layers, hidden {model['hidden_size']}, "
        f"{model['num_heads']} heads, vocabulary {model['vocab_size']}, {model['max_position_embeddings']} positions, "
        f"{model['parameters']:,} parameters",
        "",
        *_tensors(report["tensors"]),
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


def _tensors(rows: Iterable[Json]) -> list[str]:
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
    return ["  ".join(row).rstrip() for row in aligned(table)]


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
