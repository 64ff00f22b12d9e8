"""The curves of a run as a picture, for a paper's appendix or a look at a run on another machine."""

import itertools

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from bert_tf.files import replacing
from bert_tf.metrics.units import SHARE, unit_of
from bert_tf.report.curves import axes_style, scientific
from bert_tf.report.style import LIGHT

_TRAINING, _VALIDATION = LIGHT["series-1"], LIGHT["series-2"]
_MANY = 80  # points of a curve from which on it is shown as a running mean, too
_CHANGE = {"linewidth": 1.0, "linestyle": (0, (1, 2))}
_TITLES = {"mlm": "Masked tokens", "nsp": "Sentence pairs"}


def draw_curves(path, points, evaluations, resumes, *, title, monitor="loss"):
    """Writes curves.png, whole or not at all.

    A column a loss, with its accuracy below or, if the loss is the only one, the measure that counts; and one for
    learning rate and speed. Dotted lines are where a phase begins, short marks at the bottom where the run went on
    after an interruption.

    Args:
        path: of the PNG.
        points, evaluations: as in `training.state.history.History`; at least one point or evaluation.
        resumes: list of int, steps.
        title: text above.
        monitor: name of the metric by which evaluations are compared in evaluations.
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
            _both(top, points, evaluations, name)
            top.set_title(_capital(f"{subject}loss"))
            measure = monitor if key == "loss" and monitor != "loss" else name.replace("loss", "accuracy")
            _both(bottom, points, evaluations, measure)
            bottom.set_title(_capital(subject + measure.removeprefix(f"{key}_").replace("_", " ")))
            if unit_of(measure, (evaluations or points)[-1]) is SHARE:
                bottom.yaxis.set_major_formatter(PercentFormatter(1.0))
        _learning_rate(upper[-1], points)
        _speed(lower[-1], points)
        changes = [before["step"] for before, after in itertools.pairwise(points) if before["phase"] < after["phase"]]
        for axes in (*upper, *lower):
            _finish(axes, changes, resumes)
        for axes in lower:
            axes.set_xlabel("updates")
        _legend(figure, upper[0], changes, resumes)
        # Its name tells the format, where a temporary name has no ending.
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", facecolor=LIGHT["ground"])


def _finish(axes, changes, resumes):
    """What all axes share: no frame, whole steps below, marks of phases and resumes; without a curve, nothing."""
    if not axes.lines:
        axes.set_axis_off()
        return
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep="") if axes.get_xlim()[1] >= 1e5 else "{x:,.0f}")
    for step in changes:
        axes.axvline(step, color=LIGHT["muted"], **_CHANGE)
    for step in resumes:
        axes.axvline(step, ymax=0.04, color=LIGHT["ink"], linewidth=0.8)


def _legend(figure, axes, changes, resumes):
    handles, _ = axes.get_legend_handles_labels()
    if changes:
        handles.append(Line2D([], [], color=LIGHT["muted"], label="next phase", **_CHANGE))
    if resumes:
        mark = {"marker": "|", "markersize": 7, "linestyle": "none"}
        handles.append(Line2D([], [], color=LIGHT["ink"], label="resumed", **mark))
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)


def _both(axes, points, evaluations, name):
    """The training curve and what evaluations found."""
    _curve(axes, points, name, "training")
    found = [(row["step"], row[name]) for row in evaluations if name in row]
    if found:
        marks = {"marker": "o", "markersize": 3, "linestyle": (0, (4, 2)), "linewidth": 1.2}
        axes.plot(*zip(*found, strict=True), color=_VALIDATION, label="validation", **marks)


def _curve(axes, points, name, label):
    found = [row for row in points if name in row]
    for _, rows in itertools.groupby(found, key=lambda row: row["phase"]):
        steps, values = np.array([(row["step"], row[name]) for row in rows]).T
        noisy = len(found) >= _MANY
        if noisy:
            axes.plot(steps, values, color=_TRAINING, linewidth=0.6, alpha=0.3)
            values = _running_mean(values, len(found) // _MANY + 1)
        axes.plot(steps, values, ".-"[len(values) > 1], color=_TRAINING, linewidth=1.4, label=label)
        label = None


def _running_mean(values, half):
    """Means over as many values before as after, fewer at the ends: no point is drawn early or late."""
    count = len(values)
    reach = [min(half, index, count - 1 - index) for index in range(count)]
    return [np.mean(values[index - before : index + before + 1]) for index, before in enumerate(reach)]


def _learning_rate(axes, points):
    steps_and_rates = [(row["step"], row["learning_rate"]) for row in points]
    if steps_and_rates:
        axes.plot(*zip(*steps_and_rates, strict=True), color=_TRAINING, linewidth=1.4)
    axes.set_title("Learning rate")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(scientific)


def _speed(axes, points):
    """Tokens a second, or sequences where tokens are not counted, and the share of the ceiling in the title."""
    unit = "tokens" if any("tokens_per_second" in row for row in points) else "sequences"
    _curve(axes, points, f"{unit}_per_second", "training")
    shares = [row["mfu"] for row in points if "mfu" in row]
    share = f" (MFU {np.median(shares):.0%})" if shares else ""
    axes.set_title(f"{_capital(unit)} a second{share}")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _capital(text):
    return text[0].upper() + text[1:]
