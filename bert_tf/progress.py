"""Progress lines: a moving bar on a terminal, a line every so often in a log."""

import sys

import tqdm


def bar(title, total, unit, *, done=0):
    """A progress bar over `total` units (None if unknown), on standard error; use it in a `with`."""
    terminal = sys.stderr.isatty()
    return tqdm.tqdm(
        total=total,
        desc=title,
        unit=unit,
        unit_scale=unit == "B",
        initial=done,
        ascii=not terminal,
        dynamic_ncols=terminal,
        mininterval=0.2 if terminal else 10.0,
        file=sys.stderr,
    )
