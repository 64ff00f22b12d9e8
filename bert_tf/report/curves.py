"""Curves over training steps, drawn as SVG that takes its colours from the page it stands in."""

import dataclasses
import hashlib
import html
import io
import math
import re

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bert_tf.report.page import Html

# Matplotlib knows no CSS variables: it draws in these colours, which are then replaced. So one drawing suits a light
# and a dark page, and the colours (blue, vermilion, green: colour-blind readers can tell them apart) stand in style.py.
_STAND_INS = {"#01f001": "ink", "#02f002": "muted", "#03f003": "rule"}
_SERIES_STAND_INS = {"#04f004": "series-1", "#05f005": "series-2", "#06f006": "series-3"}
INK, MUTED, RULE = _STAND_INS
SERIES = tuple(_SERIES_STAND_INS)


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve.

    Attributes:
        name: what the legend calls it.
        points: (step, value) pairs; pairs whose value is not finite leave a gap.
        sparse: whether it was measured at few steps, as evaluations are: then every point is marked.
    """

    name: str
    points: list
    sparse: bool = False


def axes_style(ink, muted, rule):
    """Matplotlib's settings for the look of all drawings: colours of text, of what explains, and of lines."""
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


def series_of(name, records, key, *, sparse=False):
    """Takes a curve out of records such as `{"step": 20, "loss": 7.1}`; records without `key` are passed over."""
    return Series(name, [(r["step"], r[key]) for r in records if r.get(key) is not None], sparse)


def curve_plot(series, title, x_label, y_label, *, percent=False):
    """Draws curves on one pair of axes.

    Args:
        series: up to three `Series`; those without points are left out.
        title: text above the axes.
        x_label: the x axis' title, with unit.
        y_label: the y axis' title, with unit.
        percent: whether values are shares, shown as 0% to 100%.

    Returns:
        An `<svg>` element as `Html`, to be put into a page with `style.py`; empty if there is nothing to draw.
    """
    if len(series) > len(_SERIES_STAND_INS):
        raise ValueError(f"{len(series)} curves in {title!r}: more than {len(_SERIES_STAND_INS)} are not told apart")
    drawn = [(colour, one) for colour, one in zip(_SERIES_STAND_INS, series, strict=False) if one.points]
    if not drawn:
        return Html("")
    with matplotlib.rc_context(page_style(title, series)):
        figure = figure_for_page(4.6, 3.2)
        axes = figure.subplots()
        for colour, one in drawn:
            axes.plot(*zip(*one.points, strict=True), color=colour, label=one.name, **_line_style(one))
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        values = [value for _, one in drawn for _, value in one.points if math.isfinite(value)] or [1.0]
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if max(values) - min(values) > 0.05 else 1))
        elif max(values) < 0.01:  # a learning rate: it begins and ends at 0, and reads best as "5e-5"
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


def _line_style(one):
    if one.sparse:  # dashes and marks: told apart without colour too
        return {"linewidth": 1.6, "linestyle": (0, (4, 2)), "marker": "o", "markersize": 4.5}
    return {"linewidth": 1.6}


def scientific(value, _):
    """The label of a tick as "5e-5"."""
    if value == 0.0:
        return "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def page_style(*content):
    """Matplotlib's settings for a drawing of this content that goes through `for_page`."""
    # Names of clip paths must differ between the drawings of a page, and not between two runs.
    salt = hashlib.sha256(repr(content).encode()).hexdigest()
    # svg.fonttype: text stays text, which can be searched, selected and read aloud.
    return axes_style(INK, MUTED, RULE) | {"svg.fonttype": "none", "svg.hashsalt": salt}


def figure_for_page(width, height):
    """A new Matplotlib figure, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def for_page(figure, description):
    """A drawing as an element that lives in a page and borrows its colours: `<svg>` as `Html`.

    Args:
        figure: of `figure_for_page`, drawn in INK, MUTED, RULE and SERIES under `page_style`.
        description: what it shows, for who can not see it.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<g) id="[^"]*"', r"\1", svg)  # "axes_1" would be there once for every drawing
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for stand_in, name in (_STAND_INS | _SERIES_STAND_INS).items():
        svg = svg.replace(stand_in, f"var(--{name})")
    label = html.escape(description)
    return Html(svg.replace("<svg ", f'<svg class="plot" role="img" aria-label="{label}" ', 1).strip())
