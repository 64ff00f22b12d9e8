"""Tables in Markdown that can be read as text, too."""


def table(header, rows):
    """A table whose columns are as wide as their widest cell.

    Args:
        header: the columns' titles.
        rows: sequences of str, a cell for each column.

    Returns:
        str, whole lines.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells):
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |\n"

    return line(header) + line(["-" * width for width in widths]) + "".join(map(line, rows))
