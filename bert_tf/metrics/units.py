"""What a measured number is, by the name that the metrics here and the tasks give it."""

import re
from collections.abc import Callable
from typing import NamedTuple

_SHARE = re.compile(r"(?:.*_)?(?:accuracy|precision|recall|f1|exact|exact_match|share)")
_COUNT = re.compile(r"entities|predicted_entities|(?:.*_)?total")
_COEFFICIENTS = ("pearson", "spearman", "matthews")


class Unit(NamedTuple):
    """A kind of numbers.

    Attributes:
        text: function of a float, not nan or infinite, to what a reader sees.
        is_part: whether 1 is the most that there can be, so that a bar can show the number.
    """

    text: Callable[[float], str]
    is_part: bool


SHARE = Unit("{:.1%}".format, True)
COUNT = Unit("{:,.0f}".format, False)
COEFFICIENT = Unit("{:.3f}".format, True)
NUMBER = Unit(lambda value: f"{value:,.4f}" if abs(value) < 1e6 else f"{value:.4g}", False)


def unit_of(name, others):
    """The unit of a number.

    Args:
        name: of a score or measure; before a "/" may stand what part it is of, as in "PER/f1".
        others: names of what was measured with it: "score" is the mean of GLUE's metrics among them.

    Returns:
        Unit; NUMBER for losses, thresholds and names that are not known.
    """
    name = name.rpartition("/")[2]
    if name in _COEFFICIENTS:
        return COEFFICIENT
    if name == "score":
        return COEFFICIENT if any(other in _COEFFICIENTS for other in others) else SHARE
    if _SHARE.fullmatch(name):
        return SHARE
    return COUNT if _COUNT.fullmatch(name) else NUMBER
