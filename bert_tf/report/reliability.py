"""Whether a model is right as often as it says, as a picture."""

import numpy as np
from matplotlib import rc_context
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bert_tf.metrics.calibration import reliability
from bert_tf.report.curves import MUTED, RULE, SERIES, figure_for_page, for_page, page_style
from bert_tf.report.statistics import wilson_interval


def reliability_plot(confidences, correct, bins=10):
    """Draws how often answers were right by how sure the model was of them, and how many there were.

    Args:
        confidences: float [examples], from 0 to 1.
        correct: bool [examples].
        bins: how many equal parts 0 to 1 is cut into.

    Returns:
        An `<svg>` element as `Html`, to be put into a page with `style.py`.

    Raises:
        DataError: as `metrics.calibration.reliability`.
    """
    found = reliability(confidences, correct, bins)
    filled = found["count"] > 0
    counts, said, right = (found[name][filled] for name in ("count", "confidence", "accuracy"))
    intervals = [wilson_interval(share * count, count) for share, count in zip(right, counts, strict=True)]
    reach = np.abs(np.transpose(intervals) - right)
    with rc_context(page_style(counts, said, right)):
        figure = figure_for_page(4.6, 4.2)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        upper.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)))
        upper.errorbar(said, right, yerr=reach, fmt="o-", color=SERIES[0], linewidth=1.6, markersize=5, elinewidth=1.0)
        upper.set(title="Right, by how sure", ylabel="share that was right", xlim=(0, 1.02), ylim=(0, 1.04))
        lower.bar(found["low"], found["count"], np.diff(found["low"])[0], align="edge", color=SERIES[0], edgecolor=RULE)
        lower.set(xlabel="confidence of the answer", ylabel="answers")
        lower.yaxis.set_major_locator(MaxNLocator(3, integer=True, prune="lower"))
        for axes in (upper, lower):
            axes.tick_params(length=0)
            axes.spines["left"].set_visible(False)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        upper.yaxis.set_major_formatter(PercentFormatter(1.0))
        return for_page(figure, "Share of right answers over their confidence")
