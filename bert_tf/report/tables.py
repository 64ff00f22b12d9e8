"""Tables in plain text and in Markdown."""

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows, *, numbers: bool = False) -> list[list[str]]:
    """Pads cells to the width of the widest in their column.

    Args:
        rows: one cell per column.
        numbers: whether all columns but the first are right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [str.ljust, *[str.rjust if numbers else str.ljust] * (len(widths) - 1)]
    return [[pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)] for row in rows]


def indented(rows: Rows) -> str:
    """A table whose columns, but for the first, are numbers."""
    return "\n".join("  " + "  ".join(row) for row in aligned(rows, numbers=True))


def markdown(header: Sequence[str], rows: Rows) -> str:
    """A table that is also readable as plain text.

    Args:
        header: column titles.
        rows: one cell per column.
    """
    head, *body = aligned([header, *rows])
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["-" * len(cell) for cell in head], *body))
