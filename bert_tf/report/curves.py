"""Curves over training steps as inline SVG that takes its colours from the page."""

import dataclasses
import hashlib
import html
import io
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bert_tf.report.page import Html
from bert_tf.types import Json

# Matplotlib does not support CSS variables: it draws in these colours, which are then replaced, so that one drawing
# suits light and dark pages. The final colours (blue, vermilion, green: distinguishable for colour-blind readers) are
# defined in style.py.
_STAND_INS = {"#01f001": "ink", "#02f002": "muted", "#03f003": "rule"}
_SERIES_STAND_INS = {"#04f004": "series-1", "#05f005": "series-2", "#06f006": "series-3"}
INK, MUTED, RULE = _STAND_INS
SERIES = tuple(_SERIES_STAND_INS)

_Settings: TypeAlias = dict[Any, Any]  # Matplotlib declares the keys as a Literal of all its settings


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve.

    Attributes:
        name: label in the legend.
        points: (step, value) pairs; values that are not finite leave a gap.
        sparse: whether there are values at few steps only, as for evaluations: then every point is marked.
    """

    name: str
    points: list[tuple[int, float]]
    sparse: bool = False


def axes_style(ink: str, muted: str, rule: str) -> _Settings:
    """Matplotlib settings of all plots; the arguments are the colours of titles, of labels, and of grid and axes."""
    return {
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": ink,
        "axes.labelcolor": muted,
        "axes.edgecolor": rule,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": rule,
        "grid.linewidth": 0.6,
        "text.color": ink,
        "xtick.color": rule,
        "xtick.labelcolor": muted,
        "ytick.color": rule,
        "ytick.labelcolor": muted,
    }


def series_of(name: str, records: Iterable[Json], key: str, *, sparse: bool = False) -> Series:
    """Extracts a curve from records such as `{"step": 20, "loss": 7.1}`; records without `key` are skipped."""
    return Series(name, [(r["step"], r[key]) for r in records if r.get(key) is not None], sparse)


def curve_plot(series: Sequence[Series], title: str, x_label: str, y_label: str, *, percent: bool = False) -> Html:
    """Draws curves on one pair of axes.

    Args:
        series: up to three; those without points are omitted.
        title: shown above the axes.
        x_label: title of the x axis, with unit.
        y_label: title of the y axis, with unit.
        percent: whether values are fractions, shown as 0% to 100%.

    Returns:
        An `<svg>` element for a page with `style.py`; empty if there is nothing to draw.

    Raises:
        ValueError: for more than three series.
    """
    if len(series) > len(_SERIES_STAND_INS):
        raise ValueError(
            f"{len(series)} curves in {title!r}; draw at most {len(_SERIES_STAND_INS)}, which colours can distinguish"
        )
    drawn = [(colour, curve) for colour, curve in zip(_SERIES_STAND_INS, series, strict=False) if curve.points]
    if not drawn:
        return Html("")
    with matplotlib.rc_context(page_style(title, series)):
        figure = figure_for_page(4.6, 3.2)
        axes = figure.subplots()
        for colour, curve in drawn:
            axes.plot(*zip(*curve.points, strict=True), color=colour, label=curve.name, **_line_style(curve))
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        values = [value for _, curve in drawn for _, value in curve.points if math.isfinite(value)] or [1.0]
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if max(values) - min(values) > 0.05 else 1))
        elif max(values) < 0.01:  # a learning rate: starts and ends at 0, and is most readable as "5e-5"
            axes.set_ylim(bottom=0.0)
            axes.yaxis.set_major_formatter(scientific)
        if len(drawn) > 1:
            axes.legend(
                loc="lower right",
                bbox_to_anchor=(1.0, 1.0),
                ncols=len(drawn),
                frameon=False,
                borderpad=0,
                fontsize=10.5,
                handlelength=1.5,
                columnspacing=1.0,
            )
        return for_page(figure, f"{title}: {y_label} over {x_label}")


def _line_style(curve: Series) -> dict[str, Any]:
    if curve.sparse:  # dashes and markers: distinguishable without colour, too
        return {"linewidth": 1.6, "linestyle": (0, (4, 2)), "marker": "o", "markersize": 4.5}
    return {"linewidth": 1.6}


def scientific(value: float, _: float) -> str:
    """Formats a tick label as "5e-5"."""
    if value == 0.0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def page_style(*content: object) -> _Settings:
    """Matplotlib settings for a plot of this content that is passed to `for_page`."""
    # Names of clip paths must differ between the plots of a page, but not between two runs.
    salt = hashlib.sha256(repr(content).encode()).hexdigest()
    # svg.fonttype: keeps text as text, which can be searched, selected and read aloud.
    return axes_style(INK, MUTED, RULE) | {"svg.fonttype": "none", "svg.hashsalt": salt}


def figure_for_page(width: float, height: float) -> Figure:
    """Creates a Matplotlib figure; sizes are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def for_page(figure: Figure, description: str) -> Html:
    """Converts a figure to an `<svg>` element that takes its colours from the page.

    Args:
        figure: from `figure_for_page`, drawn in INK, MUTED, RULE and SERIES under `page_style`.
        description: alternative text for screen readers.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<g) id="[^"]*"', r"\1", svg)  # "axes_1" would occur once per plot
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for stand_in, name in (_STAND_INS | _SERIES_STAND_INS).items():
        svg = svg.replace(stand_in, f"var(--{name})")
    label = html.escape(description)
    return Html(svg.replace("<svg ", f'<svg class="plot" role="img" aria-label="{label}" ', 1).strip())
