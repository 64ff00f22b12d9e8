"""Progress lines: a moving bar on a terminal, a line every so often in a log."""

import math
import sys

import tqdm

# Of training: without tqdm's own guess of the time left, which takes the steps of all phases to be the same.
TRAINING = "{desc} |{bar}| {n_fmt}/{total_fmt}{postfix}"


def bar(title, total, unit, *, done=0, leave=True, layout=None):
    """A progress bar on standard error; use it in a `with`.

    Args:
        title: what is going on.
        total: how many units there are, None if unknown.
        unit: their name.
        done: how many are done already.
        leave: the bar stays when it is full.
        layout: tqdm's bar_format, if not its usual one.
    """
    terminal = sys.stderr.isatty()
    return tqdm.tqdm(
        total=total,
        desc=title,
        unit=unit,
        unit_scale=unit == "B",
        initial=done,
        leave=leave,
        # Where nothing can be wiped away, a bar that is not to stay is not drawn at all.
        disable=not terminal and not leave,
        ascii=not terminal,
        dynamic_ncols=terminal,
        mininterval=0.2 if terminal else 10.0,
        bar_format=layout if terminal or not layout else layout.replace("|{bar}| ", ""),
        file=sys.stderr if terminal else _Lines(sys.stderr),
    )


def log(message):
    """A line on standard error, above the progress bar if there is one."""
    tqdm.tqdm.write(f"bert_tf: {message}", file=sys.stderr)


class _Lines:
    """A stream on which each state of a bar is a line: in a log nothing moves."""

    def __init__(self, stream):
        self._stream, self._last = stream, ""

    def write(self, text):
        line = text.strip("\r\n ")
        if line and line != self._last:  # a bar that ends is drawn once more
            self._stream.write(line + "\n")
            self._last = line

    def flush(self):
        self._stream.flush()


def training_line(metrics, rates, learning_rate, seconds_left):
    """What stands behind the step in the progress line of training, short enough for 120 columns.

    Args:
        metrics: dict name -> float; behind each NAME_loss stands its NAME_accuracy, if there is one. NaN where all
            updates were skipped.
        rates: dict name -> float, as `training.speed.Speed.rates` gives.
        learning_rate: float.
        seconds_left: float, or None if not known yet.
    """
    shown = []
    losses = [name for name in metrics if name.endswith("_loss")] or ["loss"]
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
    if "mfu" in rates:
        shown.append(f"MFU {rates['mfu']:.0%}")
    if seconds_left is not None:
        shown.append(f"{duration(seconds_left)} left")
    return ", ".join(shown)


def metrics_line(metrics):
    """Measures as text: "loss 0.1234, f1 0.9000"; of kinds, such as "PER/f1", there may be too many for a line."""
    return ", ".join(
        f"{name} {value:.4f}" for name, value in metrics.items() if isinstance(value, float) and "/" not in name
    )


def duration(seconds):
    """Seconds as 0:07, 12:34, 5h 12m or 3d 4h."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}:{seconds:02d}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def _short(number):
    """A number in three digits: 0.693, 4.56, 812, 68.2k, 1.20M."""
    if abs(number) < 0.9995 or number != number:
        return f"{number:.3f}"
    for unit in ("", "k", "M", "G"):
        if number < 999.5 or unit == "G":
            return f"{number:.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f}{unit}"
        number /= 1000
