"""Progress lines: a bar on a terminal, a line every few seconds in a log."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TextIO, TypeVar

import tqdm

_Item = TypeVar("_Item")
# Shares of unknown tokens from here on are shown: 0.1% are usual, and rare scripts and emoji make up to 1 or 2%.
MOST_UNKNOWN = 0.03
# For training: without tqdm's estimate of the time left, which assumes that the steps of all phases take equally long.
TRAINING = "{desc} |{bar}| {n_fmt}/{total_fmt}{postfix}"


def bar(
    title: str,
    total: int | None,
    unit: str,
    *,
    done: int = 0,
    leave: bool = True,
    layout: str | None = None,
    shown: bool = True,
) -> "tqdm.tqdm[Any]":
    """A progress bar on standard error; use it in a `with` statement.

    Args:
        title: shown before the bar.
        total: number of units; None if unknown.
        unit: name of the units; "B" for bytes.
        done: units that are done already.
        leave: keep the bar on the screen when it is full.
        layout: tqdm's bar_format; None for its default.
        shown: whether to draw it at all.
    """
    terminal = sys.stderr.isatty()
    return tqdm.tqdm(
        total=total,
        desc=title,
        unit=unit if total else f" {unit}",  # tqdm writes it behind the number without a space
        unit_scale=unit == "B",
        initial=done,
        leave=leave,
        # A log cannot erase a bar, so one that should not stay is not drawn at all.
        disable=not shown or (not terminal and not leave),
        ascii=not terminal,
        dynamic_ncols=terminal,
        mininterval=0.2 if terminal else 10.0,
        bar_format=layout if terminal or not layout else layout.replace("|{bar}| ", ""),
        file=sys.stderr if terminal else _Lines(sys.stderr),
    )


class Counted(Generic[_Item]):
    """An iterable that counts the items taken from it."""

    def __init__(self, items: Iterable[_Item]) -> None:
        self._items, self.count = items, 0

    def __iter__(self) -> Iterator[_Item]:
        for item in self._items:
            self.count += 1
            yield item


def log(message: str) -> None:
    """Prints a line on standard error, above the progress bar if one is shown."""
    tqdm.tqdm.write(f"bert_tf: {message}", file=sys.stderr)


class _Lines:
    """A stream for logs, which cannot redraw: prints each state of a bar as a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._last = stream, ""

    def write(self, text: str) -> None:
        line = text.strip("\r\n ")
        if line and line != self._last:  # tqdm draws a finished bar once more
            self._stream.write(line + "\n")
            self._last = line

    def flush(self) -> None:
        self._stream.flush()


def training_line(
    metrics: Mapping[str, float], rates: Mapping[str, float], learning_rate: float, seconds_left: float | None
) -> str:
    """The part of training's progress line after the step, short enough for 120 columns.

    Args:
        metrics: each NAME_loss is shown with its NAME_accuracy, if any, but not those of single languages,
            "ko/NAME_loss", for which there is no room. NaN where all updates were skipped.
        rates: as returned by `training.speed.Speed.rates`.
        learning_rate: of the next update.
        seconds_left: None if not known yet.
    """
    shown = []
    losses = [name for name in metrics if name.endswith("_loss") and "/" not in name] or ["loss"]
    for name in losses:
        accuracy = metrics.get(name.replace("loss", "accuracy"))
        shown.append(f"{name.removesuffix('_loss')} {_short(metrics[name])}")
        if accuracy is not None and math.isfinite(accuracy):
            shown[-1] += f" {accuracy:.1%}"
    shown.append(f"lr {learning_rate:.1e}".replace("e-0", "e-") if learning_rate else "lr 0")
    units = {"sequences_per_second": "seq", "tokens_per_second": "tok"}
    speeds = [f"{_short(rates[name])} {unit}" for name, unit in units.items() if name in rates]
    if speeds:
        shown.append(" ".join(speeds) + "/s")
    if math.isfinite(metrics.get("padding_share", math.nan)):
        shown.append(f"pad {metrics['padding_share']:.0%}")
    if metrics.get("unknown_share", 0.0) >= MOST_UNKNOWN:
        shown.append(f"unknown {metrics['unknown_share']:.0%}")
    if "mfu" in rates:
        shown.append(f"{rates['mfu']:.0%} peak")
    if seconds_left is not None:
        shown.append(f"{duration(seconds_left)} left")
    return ", ".join(shown)


def duration(seconds: float) -> str:
    """Formats seconds as 0:07, 12:34, 5h 12m or 3d 4h."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def _short(number: float) -> str:
    """Formats a number with three digits: 0.693, 4.56, 812, 68.2k, 1.20M."""
    return tqdm.tqdm.format_sizeof(number) if abs(number) >= 0.9995 else f"{number:.3f}"
