"""Reliability diagram."""

from collections.abc import Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bert_tf.metrics.calibration import reliability
from bert_tf.report.curves import MUTED, RULE, SERIES, figure_for_page, for_page, page_style
from bert_tf.report.page import Html
from bert_tf.report.statistics import wilson_interval
from bert_tf.types import Array


def reliability_plot(confidences: Sequence[float] | Array, correct: Sequence[bool] | Array, bins: int = 10) -> Html:
    """Draws accuracy against confidence, above a histogram of the confidences.

    Args:
        confidences: float [examples], from 0 to 1.
        correct: bool [examples].
        bins: number of bins of equal width from 0 to 1.

    Returns:
        An `<svg>` element for a page with `style.py`.
    """
    diagram = reliability(confidences, correct, bins)
    filled = diagram["count"] > 0
    counts, confidence, accuracy = (diagram[name][filled] for name in ("count", "confidence", "accuracy"))
    intervals = [wilson_interval(share * count, count) for share, count in zip(accuracy, counts, strict=True)]
    errors = np.abs(np.transpose(intervals) - accuracy)
    with rc_context(page_style(counts, confidence, accuracy)):
        figure = figure_for_page(4.6, 4.2)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)))
        points = {"fmt": "o-", "color": SERIES[0], "linewidth": 1.6, "markersize": 5, "elinewidth": 1.0}
        upper.errorbar(confidence, accuracy, yerr=errors, **points)
        upper.set(title="Accuracy by confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.04))
        low = diagram["low"]
        lower.bar(low, diagram["count"], np.diff(low)[0], align="edge", color=SERIES[0], edgecolor=RULE)
        lower.set(xlabel="confidence", ylabel="predictions")
        lower.yaxis.set_major_locator(MaxNLocator(3, integer=True, prune="lower"))
        for axes in (upper, lower):
            axes.tick_params(length=0)
            axes.spines["left"].set_visible(False)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        upper.yaxis.set_major_formatter(PercentFormatter(1.0))
        return for_page(figure, "Accuracy by confidence of the predictions")
