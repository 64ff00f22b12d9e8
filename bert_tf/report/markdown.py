"""Markdown tables that are also readable as plain text."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table with columns as wide as their widest cell.

    Args:
        header: column titles.
        rows: one cell per column.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |\n"

    return line(header) + line(["-" * width for width in widths]) + "".join(map(line, rows))
