"""Ablation results as a Markdown table and as a plot."""

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_tf.files import replacing
from bert_tf.report.curves import axes_style
from bert_tf.report.markdown import table
from bert_tf.report.style import LIGHT
from bert_tf.types import Json


def markdown(rows: Sequence[Json]) -> str:
    """Formats the results as a Markdown table.

    Args:
        rows: as returned by `training.runs.ablation.ablate`.
    """
    seeds = len(rows[0]["accuracies"])
    header = ("model", "size", "parameters", "mean accuracy", "deviation", "each seed", "difference from the first")
    lines = [
        (
            row["name"],
            row["size"],
            f"{row['parameters'] / 1e6:.1f} M",
            f"{row['mean']:.3f}",
            "" if row["deviation"] is None else f"{row['deviation']:.3f}",
            ", ".join(f"{value:.3f}" for value in row["accuracies"]),
            f"{row['mean'] - rows[0]['mean']:+.3f}" if row is not rows[0] else "",
        )
        for row in rows
    ]
    note = (
        f"Validation accuracy on the bundled movie reviews after pre-training on the bundled speeches; {seeds} seeds."
    )
    return f"{table(header, lines)}\n{note}\n"


def draw_ablation(path: str, rows: Sequence[Json]) -> None:
    """Writes a PNG, atomically: one line per model with a dot for each seed and a bar at their mean.

    Args:
        path: of the PNG.
        rows: as for `markdown`.
    """
    with rc_context(axes_style(*(LIGHT[name] for name in ("ink", "muted", "rule"))) | {"font.size": 9}):
        figure = Figure(figsize=(7.0, 1.1 + 0.42 * len(rows)), layout="constrained", dpi=160)
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for index, row in enumerate(rows):
            accuracies = [100 * accuracy for accuracy in row["accuracies"]]
            axes.plot(accuracies, [index] * len(accuracies), "o", color=LIGHT["series-1"], alpha=0.55)
            axes.plot([100 * row["mean"]] * 2, [index - 0.28, index + 0.28], color=LIGHT["series-2"], linewidth=2)
        axes.set_yticks(range(len(rows)), [f"{row['name']}, {row['size']}" for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("validation accuracy in %: one dot per seed, the bar is their mean")
        axes.grid(axis="x", color=LIGHT["rule"])
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", facecolor=LIGHT["ground"])
