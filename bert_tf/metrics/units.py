"""Units of metrics, by their names: how metrics are printed and shown in reports."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from bert_tf.progress import MOST_UNKNOWN

_SHARE = re.compile(r"(?:.*_)?(?:accuracy|precision|recall|f1|exact|exact_match|share)(?:@\d+)?")
_RANKED = re.compile(r"(?:mrr|ndcg|map)@\d+")
_COUNT = re.compile(r"(?:.*_)?(?:entities|tokens|total)")
_COEFFICIENTS = ("pearson", "spearman", "matthews", "cosine")


class Unit(NamedTuple):
    """A unit and its format.

    Attributes:
        text: formats a finite float for the reader.
        is_part: whether the maximum is 1, so that a bar can show the number.
    """

    text: Callable[[float], str]
    is_part: bool


SHARE = Unit("{:.1%}".format, True)
COUNT = Unit("{:,.0f}".format, False)
COEFFICIENT = Unit("{:.3f}".format, True)
NUMBER = Unit(lambda value: f"{value:,.4f}" if abs(value) < 1e6 else f"{value:.4g}", False)


def unit_of(name: str, others: Iterable[str]) -> Unit:
    """Returns the unit of a metric; NUMBER for losses, thresholds and unknown names.

    Args:
        name: of the metric; the part of the data may precede it, as in "PER/f1".
        others: names of the metrics of the same evaluation: "score" is the mean of GLUE's metrics among them.
    """
    name = name.rpartition("/")[2]
    if name in _COEFFICIENTS or _RANKED.fullmatch(name):
        return COEFFICIENT
    if name == "score":
        return COEFFICIENT if any(other in _COEFFICIENTS for other in others) else SHARE
    if _SHARE.fullmatch(name):
        return SHARE
    return COUNT if _COUNT.fullmatch(name) else NUMBER


def metrics_line(metrics: Mapping[str, object]) -> str:
    """Formats metrics for a line on the screen: "loss 0.1234, f1 0.9000, entities 756, 3.1% of the inputs truncated".

    Leaves out metrics per class ("PER/f1"), too many for one line, and what does not measure the model: the share of
    padding, that of truncated inputs if it is 0, and that of unknown tokens if it is usual.
    """
    values = {name: value for name, value in metrics.items() if isinstance(value, float) and "/" not in name}
    truncated = values.pop("truncated_share", 0.0)
    values.pop("padding_share", None)
    unknown = values.pop("unknown_share", 0.0)
    shown = [
        f"{name} {value:.0f}" if _COUNT.fullmatch(name) else f"{name} {value:.4f}" for name, value in values.items()
    ]
    if truncated:
        shown.append(f"{truncated:.1%} of the inputs truncated")
    if unknown >= MOST_UNKNOWN:
        shown.append(f"{unknown:.1%} of the tokens unknown")
    return ", ".join(shown)
