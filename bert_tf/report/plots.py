"""Plots: SVG that takes its colours from the page, and PNG."""

import hashlib
import io
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from bert_tf.files import replacing
from bert_tf.metrics.calibration import reliability
from bert_tf.metrics.statistics import wilson_interval
from bert_tf.metrics.units import SHARE, unit_of
from bert_tf.progress import MOST_UNKNOWN
from bert_tf.types import Array, Json

_HERE = Path(__file__).parent
_STYLE = str(_HERE / "plots.mplstyle")
# Names of the style sheet's variables and their values on a light page, in which the plots are drawn.
_COLOURS = re.findall(r"--([\w-]+): (#\w{6});", (_HERE / "templates/style.css").read_text().split("@media")[0])
_INK, _MUTED, _RULE = (dict(_COLOURS)[name] for name in ("ink", "muted", "rule"))

_MANY = 80  # curves with at least this many points are also shown as a running mean
_VALIDATION: Json = {"marker": "o", "markersize": 3.5, "linestyle": (0, (4, 2)), "linewidth": 1.3}
_DOTTED: Json = {"linewidth": 1.0, "linestyle": (0, (1, 2)), "color": _MUTED}
_TITLES = {"mlm": "Masked tokens", "nsp": "Sentence pairs"}


@rc_context(fname=_STYLE)
def curve_plot(subject: str, run: Json, name: str, title: str, label: str) -> Markup:
    """Training and validation curves of a metric as a `<figure>`; empty if there is nothing to draw.

    Args:
        subject: the run, for the description; different for each run on a page.
        run: results.json of a run; its "history" and "evaluations" may be missing.
        name: of the metric.
        title: shown above the axes.
        label: of the y axis, with unit.
    """
    figure = Figure(figsize=(4.6, 3.2))
    axes = figure.subplots()
    points, evaluations = run.get("history", ()), run.get("evaluations", ())
    _training_and_validation(axes, points, evaluations, name)
    if not axes.lines:
        return Markup("")
    axes.set(title=title, xlabel="step", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    if name == "learning_rate":
        _from_zero(axes, _rate)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        figure.legend(loc="upper right", ncols=2, fontsize=10, borderpad=0, handlelength=1.5, columnspacing=1.0)
    ends = {"training": _curve(points, name)[1][-1:], "validation": _curve(evaluations, name)[1][-1:]}
    shown = " and ".join(f"{value:.3g} in {curve}" for curve, values in ends.items() for value in values)
    return _svg(figure, f"{title} of {subject} by step: {shown} at the end")


@rc_context(fname=_STYLE)
def reliability_plot(confidences: Sequence[float] | Array, correct: Sequence[bool] | Array, bins: int = 10) -> Markup:
    """Accuracy by confidence, above a histogram of the confidences, as a `<figure>`.

    Args:
        confidences: float [examples], from 0 to 1.
        correct: bool [examples].
        bins: number of bins of equal width from 0 to 1.
    """
    diagram = reliability(confidences, correct, bins)
    filled = diagram["count"] > 0
    counts, confidence, accuracy = (diagram[name][filled] for name in ("count", "confidence", "accuracy"))
    intervals = [wilson_interval(share * count, count) for share, count in zip(accuracy, counts, strict=True)]
    errors = np.abs(np.transpose(intervals) - accuracy)
    figure = Figure(figsize=(4.6, 4.2))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], **_DOTTED)
    upper.errorbar(confidence, accuracy, yerr=errors, fmt="o-", markersize=5, elinewidth=1.0)
    upper.set(title="Accuracy by confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.04))
    lower.bar(diagram["low"], diagram["count"], 1 / bins, align="edge", edgecolor=_RULE)
    lower.set(xlabel="confidence", ylabel="predictions")
    lower.yaxis.set_major_locator(MaxNLocator(3, integer=True, prune="lower"))
    for axis in (upper.xaxis, lower.xaxis, upper.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    rows = zip(confidence, accuracy, counts, strict=True)
    shown = "; ".join(f"{accuracy:.0%} of {count:,} at {confidence:.0%}" for confidence, accuracy, count in rows)
    return _svg(figure, f"Accuracy by confidence of the predictions: {shown}")


@rc_context(fname=_STYLE)
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

    One column per loss, with its accuracy below or, if it is the only loss, the monitored metric; of several languages,
    one for the loss of each and the tokens that were read so far; and one for learning rate and speed. Dotted lines
    show where a phase starts, short marks at the bottom where the run was resumed after an interruption.

    Args:
        path: of the PNG.
        points, evaluations: as in `training.state.history.History`; at least one point or evaluation.
        resumes: steps from which the run was resumed.
        title: shown above the plots.
        monitor: name of the metric that compares evaluations.
    """
    names = [*(points or evaluations)[0]]
    losses = [name for name in names if name.endswith("_loss") and "/" not in name] or ["loss"]
    languages = [name.removesuffix("/tokens") for name in names if name.endswith("/tokens")]
    columns = len(losses) + bool(languages) + 1
    figure = Figure(figsize=(4.2 * columns, 6.4))
    unknown = [row["unknown_share"] for row in (*points, *evaluations) if row.get("unknown_share", 0) >= MOST_UNKNOWN]
    if unknown:
        title += f" (up to {max(unknown):.0%} of the tokens unknown)"
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    upper, lower = figure.subplots(2, columns, squeeze=False, sharex=True)
    for name, top, bottom in zip(losses, upper, lower, strict=False):
        key = name.removesuffix("_loss")
        subject = "" if key == "loss" else f"{_TITLES.get(key, key)}: "
        _training_and_validation(top, points, evaluations, name)
        top.set_title(f"{subject}loss".capitalize())
        metric = monitor if key == "loss" and monitor != "loss" else name.replace("loss", "accuracy")
        _training_and_validation(bottom, points, evaluations, metric)
        bottom.set_title((subject + metric.removeprefix(f"{key}_").replace("_", " ")).capitalize())
    if languages:
        _by_language(upper[-2], lower[-2], points, evaluations, languages)
    upper[-1].plot(*_curve(points, "learning_rate"))
    upper[-1].set_title("Learning rate")
    _from_zero(upper[-1], _rate)
    unit = "tokens" if any("tokens_per_second" in row for row in points) else "sequences"
    _training(lower[-1], points, f"{unit}_per_second")
    shares = [row["mfu"] for row in points if "mfu" in row]
    lower[-1].set_title(f"{unit.capitalize()} per second" + (f" ({np.median(shares):.0%} of peak)" if shares else ""))
    _from_zero(lower[-1], EngFormatter(sep=""))
    changes = [before["step"] for before, after in itertools.pairwise(points) if before["phase"] < after["phase"]]
    for axes in (*upper, *lower):
        if not axes.lines:
            axes.set_axis_off()
            continue
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter(EngFormatter(sep="") if axes.get_xlim()[1] >= 1e5 else "{x:,.0f}")
        for step in changes:
            axes.axvline(step, **_DOTTED)
        for step in resumes:
            axes.axvline(step, ymax=0.04, color=_INK, linewidth=0.8)
    for axes in lower:
        axes.set_xlabel("step")
    handles, _ = upper[0].get_legend_handles_labels()
    handles += [Line2D([], [], label="next phase", **_DOTTED)] if changes else []
    handles += [Line2D([], [], color=_INK, marker="|", linestyle="none", label="resumed")] if resumes else []
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    _write_png(path, figure)


@rc_context(fname=_STYLE)
def draw_ablation(path: str, rows: Sequence[Json]) -> None:
    """Writes a PNG, atomically: one line per model with a dot for each seed and a bar at their mean.

    Args:
        path: of the PNG.
        rows: as returned by `training.runs.ablation.ablate`.
    """
    figure = Figure(figsize=(8.5, 1.4 + 0.5 * len(rows)))
    axes = figure.subplots()
    for index, row in enumerate(rows):
        accuracies = [100 * accuracy for accuracy in row["accuracies"]]
        axes.plot(accuracies, [index] * len(accuracies), "o", color="C0", alpha=0.55)
        axes.plot([100 * row["mean"]] * 2, [index - 0.28, index + 0.28], color="C1", linewidth=2)
    axes.set_yticks(range(len(rows)), [f"{row['name']}, {row['size']}" for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("validation accuracy in %: one dot per seed, the bar is their mean")
    axes.grid(False, axis="y")
    _write_png(path, figure)


@rc_context(fname=_STYLE)
def tradeoff_plot(rows: Sequence[Json], metric: str) -> Markup:
    """A metric by size and by latency as a `<figure>`.

    Args:
        rows: of the results.json of `compress`.
        metric: name of the metric.
    """
    shown = "; ".join(f"{row['name']} {row['value']:.3f}, {row['megabytes']:.3g} MB" for row in rows)
    return _svg(_tradeoff(rows, metric), f"{metric} by size and by time for a text: {shown}")


@rc_context(fname=_STYLE)
def draw_tradeoff(path: str, rows: Sequence[Json], metric: str) -> None:
    """Writes `tradeoff_plot` as a PNG, atomically."""
    _write_png(path, _tradeoff(rows, metric))


_MARKERS = "osD^vP*XphHd"


def _tradeoff(rows: Sequence[Json], metric: str) -> Figure:
    figure = Figure(figsize=(9.2, 4.2))
    axes = figure.subplots(1, 2, sharey=True)
    for one, key, label in zip(
        axes, ("megabytes", "ms_1_thread"), ("MB on disk", "ms for a text, 1 thread"), strict=True
    ):
        for number, row in enumerate(rows):
            low, high = row["interval"] or (row["value"], row["value"])
            errors = [[max(0.0, row["value"] - low)], [max(0.0, high - row["value"])]]
            # There are two colours, so the markers tell the rows apart.
            style = {"fmt": _MARKERS[number % len(_MARKERS)], "color": f"C{number % 2}", "markersize": 8}
            one.errorbar(row[key], row["value"], yerr=errors, label=row["name"], elinewidth=1.0, **style)
        one.set(xscale="log", xlabel=label)
        # Within a decade the locator chooses evenly spaced values instead.
        one.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        one.xaxis.set_major_formatter("{x:g}")  # of 0.5 ms, EngFormatter would make 500m
        one.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel(metric)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=min(5, len(rows)), fontsize=10)
    if unit_of(metric, [metric]) is SHARE:
        axes[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _svg(figure: Figure, description: str) -> Markup:
    """The figure as inline SVG for a page with style.css; no two on a page may have the same description."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = text.getvalue()
    for name, colour in _COLOURS:  # SVG of Matplotlib has no variables, but a page has a light and a dark style
        svg = svg.replace(colour, f"var(--{name})")
    unique = hashlib.sha256(description.encode()).hexdigest()[:12]  # names such as axes_1 occur in every plot
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\1p{unique}-", svg[svg.index("<svg") :])
    return Markup('<figure role="img" aria-label="{}">{}</figure>').format(description, Markup(svg))


def _write_png(path: str, figure: Figure) -> None:
    with replacing(path) as temporary:  # which has no extension from which to infer the format
        figure.savefig(temporary, format="png")


def _training_and_validation(axes: Axes, points: Sequence[Json], evaluations: Sequence[Json], name: str) -> None:
    _training(axes, points, name)
    steps, values = _curve(evaluations, name)
    if steps:
        axes.plot(steps, values, color="C1", label="validation", **_VALIDATION)
    if unit_of(name, [*(evaluations or points or [{}])[-1]]) is SHARE:
        low, high = axes.get_ylim()
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if high - low > 0.05 else 1))


def _training(axes: Axes, points: Sequence[Json], name: str) -> None:
    """Draws one curve per phase; only the first is labelled in the legend."""
    legend: str | None = "training"
    many = len(_curve(points, name)[0]) // _MANY
    for _, rows in itertools.groupby(points, key=lambda row: row.get("phase")):
        steps, values = _curve(rows, name)
        if not steps:
            continue
        if many:
            axes.plot(steps, values, color="C0", linewidth=0.6, alpha=0.3)
            values = _running_mean(values, many + 1)
        axes.plot(steps, values, ".-"[len(values) > 1], color="C0", label=legend)
        legend = None


def _by_language(
    upper: Axes, lower: Axes, points: Sequence[Json], evaluations: Sequence[Json], languages: Sequence[str]
) -> None:
    """Draws the MLM loss of each language, in validation if there is any, and the tokens that were read so far."""
    for language in languages:
        name = f"{language}/mlm_loss"
        upper.plot(*_curve(evaluations, name) if _curve(evaluations, name)[0] else _curve(points, name), label=language)
        steps, tokens = _curve(points, f"{language}/tokens")
        lower.plot(steps, np.cumsum(tokens))
    upper.set_title("Masked tokens: loss by language")
    upper.legend(fontsize=10, ncols=1 + len(languages) // 10)
    lower.set_title("Tokens by language")
    _from_zero(lower, EngFormatter(sep=""))


def _curve(rows: Iterable[Json], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric in the rows that have it; null stands for nan in JSON."""
    found = [row for row in rows if row.get(name) is not None]
    return [row["step"] for row in found], [row[name] for row in found]


def _running_mean(values: Sequence[float], half: int) -> list[float]:
    """Centred means, over fewer values at the ends so that the curve is not shifted."""
    count = len(values)
    reach = [min(half, index, count - 1 - index) for index in range(count)]
    return [float(np.mean(values[index - before : index + before + 1])) for index, before in enumerate(reach)]


def _from_zero(axes: Axes, formatter: Any) -> None:
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(formatter)


def _rate(value: float, _: float) -> str:
    """A learning rate as "5e-5"."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"
