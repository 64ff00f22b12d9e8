"""Training curves of a run as a PNG plot, for a paper's appendix or a look at a run on another machine."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from bert_tf.files import replacing
from bert_tf.metrics.units import SHARE, unit_of
from bert_tf.report.curves import axes_style, scientific
from bert_tf.report.style import LIGHT
from bert_tf.types import Array, Json

_TRAINING, _VALIDATION = LIGHT["series-1"], LIGHT["series-2"]
_MANY = 80  # curves with at least this many points are also shown as a running mean
_PHASE_LINE: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (1, 2))}
_TITLES = {"mlm": "Masked tokens", "nsp": "Sentence pairs"}


def draw_curves(
    path: str,
    points: Sequence[Json],
    evaluations: Sequence[Json],
    resumes: Sequence[int],
    *,
    title: str,
    monitor: str = "loss",
) -> None:
    """Writes curves.png, atomically.

    One column per loss, with its accuracy below or, if it is the only loss, the monitored metric; and one column for
    learning rate and speed. Dotted lines show where a phase starts, short marks at the bottom where the run was resumed
    after an interruption.

    Args:
        path: of the PNG.
        points, evaluations: as in `training.state.history.History`; at least one point or evaluation.
        resumes: steps from which the run was resumed.
        title: shown above the plots.
        monitor: name of the metric that compares evaluations.
    """
    losses = [name for name in (points or evaluations)[0] if name.endswith("_loss")] or ["loss"]
    with rc_context(
        axes_style(*(LIGHT[name] for name in ("ink", "muted", "rule"))) | {"font.size": 9, "axes.titlesize": 10}
    ):
        figure = Figure(figsize=(3.4 * (len(losses) + 1), 5.2), layout="constrained", dpi=160)
        FigureCanvasAgg(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        upper, lower = figure.subplots(2, len(losses) + 1, squeeze=False, sharex=True)
        for name, top, bottom in zip(losses, upper, lower, strict=False):
            key = name.removesuffix("_loss")
            subject = "" if key == "loss" else f"{_TITLES.get(key, key)}: "
            _training_and_validation(top, points, evaluations, name)
            top.set_title(_capital(f"{subject}loss"))
            metric = monitor if key == "loss" and monitor != "loss" else name.replace("loss", "accuracy")
            _training_and_validation(bottom, points, evaluations, metric)
            bottom.set_title(_capital(subject + metric.removeprefix(f"{key}_").replace("_", " ")))
            if unit_of(metric, (evaluations or points)[-1]) is SHARE:
                bottom.yaxis.set_major_formatter(PercentFormatter(1.0))
        _learning_rate(upper[-1], points)
        _speed(lower[-1], points)
        changes = [before["step"] for before, after in itertools.pairwise(points) if before["phase"] < after["phase"]]
        for axes in (*upper, *lower):
            _finish(axes, changes, resumes)
        for axes in lower:
            axes.set_xlabel("step")
        _legend(figure, upper[0], changes, resumes)
        # The temporary name has no extension from which to infer the format.
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", facecolor=LIGHT["ground"])


def _finish(axes: Axes, changes: Iterable[int], resumes: Iterable[int]) -> None:
    """Applies the common style and marks phases and resumes; hides axes without curves."""
    if not axes.lines:
        axes.set_axis_off()
        return
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep="") if axes.get_xlim()[1] >= 1e5 else "{x:,.0f}")
    for step in changes:
        axes.axvline(step, color=LIGHT["muted"], **_PHASE_LINE)
    for step in resumes:
        axes.axvline(step, ymax=0.04, color=LIGHT["ink"], linewidth=0.8)


def _legend(figure: Figure, axes: Axes, changes: Sequence[int], resumes: Sequence[int]) -> None:
    handles, _ = axes.get_legend_handles_labels()
    if changes:
        handles.append(Line2D([], [], color=LIGHT["muted"], label="next phase", **_PHASE_LINE))
    if resumes:
        mark: dict[str, Any] = {"marker": "|", "markersize": 7, "linestyle": "none"}
        handles.append(Line2D([], [], color=LIGHT["ink"], label="resumed", **mark))
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)


def _training_and_validation(axes: Axes, points: Sequence[Json], evaluations: Sequence[Json], name: str) -> None:
    _curve(axes, points, name, "training")
    values = [(row["step"], row[name]) for row in evaluations if name in row]
    if values:
        style: dict[str, Any] = {"marker": "o", "markersize": 3, "linestyle": (0, (4, 2)), "linewidth": 1.2}
        axes.plot(*zip(*values, strict=True), color=_VALIDATION, label="validation", **style)


def _curve(axes: Axes, points: Sequence[Json], name: str, label: str) -> None:
    """Draws one curve per phase; only the first is labelled in the legend."""
    curve = [row for row in points if name in row]
    legend: str | None = label
    for _, rows in itertools.groupby(curve, key=lambda row: row["phase"]):
        steps, values = np.array([(row["step"], row[name]) for row in rows]).T
        if len(curve) >= _MANY:
            axes.plot(steps, values, color=_TRAINING, linewidth=0.6, alpha=0.3)
            values = _running_mean(values, len(curve) // _MANY + 1)
        axes.plot(steps, values, ".-"[len(values) > 1], color=_TRAINING, linewidth=1.4, label=legend)
        legend = None


def _running_mean(values: Array, half: int) -> list[float]:
    """Centred means, over fewer values at the ends so that the curve is not shifted."""
    count = len(values)
    reach = [min(half, index, count - 1 - index) for index in range(count)]
    return [float(np.mean(values[index - before : index + before + 1])) for index, before in enumerate(reach)]


def _learning_rate(axes: Axes, points: Sequence[Json]) -> None:
    steps_and_rates = [(row["step"], row["learning_rate"]) for row in points]
    if steps_and_rates:
        axes.plot(*zip(*steps_and_rates, strict=True), color=_TRAINING, linewidth=1.4)
    axes.set_title("Learning rate")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(scientific)


def _speed(axes: Axes, points: Sequence[Json]) -> None:
    """Tokens per second, or sequences if tokens are not counted, with the median MFU in the title."""
    unit = "tokens" if any("tokens_per_second" in row for row in points) else "sequences"
    _curve(axes, points, f"{unit}_per_second", "training")
    shares = [row["mfu"] for row in points if "mfu" in row]
    share = f" (MFU {np.median(shares):.0%})" if shares else ""
    axes.set_title(f"{_capital(unit)} per second{share}")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
