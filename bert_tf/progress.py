"""Progress lines: a moving bar on a terminal, a line every so often in a log."""

import sys

import tqdm


def bar(title, total, unit, *, done=0, leave=True):
    """A progress bar on standard error; use it in a `with`.

    Args:
        title: what is going on.
        total: how many units there are, None if unknown.
        unit: their name.
        done: how many are done already.
        leave: the bar stays when it is full.
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
        file=sys.stderr,
    )
