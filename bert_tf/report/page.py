"""The parts of a self-contained HTML page: functions from plain values to escaped markup.

Whatever is not `Html` is text and gets escaped. Only the functions here make `Html`, so what a data set or a model says
cannot break a page.
"""

import html
import math

from bert_tf.report.style import STYLE


class Html(str):
    """Markup that is ready to be written; a plain `str` is text that is still to be escaped."""


def escape(value):
    """Returns `value` as `Html`: text and numbers escaped, markup as it is."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(parts):
    """Puts parts one after the other."""
    return Html("\n".join(escape(part) for part in parts))


def page(title, sections, *, subtitle="", summary=""):
    """A whole document that loads nothing from anywhere.

    Args:
        title: text of the page's title and first heading.
        sections: `Html` parts, as `section` makes them; empty ones are left out.
        subtitle: one line under the title.
        summary: `Html` above the first section, such as `figures(...)`.

    Returns:
        The document as `Html`, to be written as UTF-8.
    """
    subtitle = f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
    return Html(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{STYLE}</style>
</head>
<body>
<main>
<header>
<h1>{escape(title)}</h1>
{subtitle}
</header>
{escape(summary)}
{join(part for part in sections if part)}
</main>
</body>
</html>
"""
    )


def section(heading, *blocks):
    """A part of the page with a heading; empty, so that `page` leaves it out, if there are no blocks."""
    blocks = [block for block in blocks if block]
    return Html(f"<section>\n<h2>{escape(heading)}</h2>\n{join(blocks)}\n</section>") if blocks else Html("")


def heading(text):
    """A heading inside a section."""
    return Html(f"<h3>{escape(text)}</h3>")


def paragraph(text):
    """A paragraph of text."""
    return Html(f"<p>{escape(text)}</p>")


def figures(items):
    """A strip of key figures from (value, label) pairs."""
    parts = [f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for value, label in items]
    return Html(f'<dl class="figures">\n{"".join(parts)}\n</dl>') if parts else Html("")


def table(rows, header, *, numbers=()):
    """A table that scrolls sideways by itself where the screen is too narrow.

    Args:
        rows: sequences of cells, each text, a number or `Html`.
        header: the columns' titles, with units.
        numbers: indices of the columns that are set flush right.
    """
    kinds = [' class="number"' if column in numbers else "" for column in range(len(header))]

    def line(tag, cells):
        return "<tr>" + "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        ) + "</tr>"  # fmt: skip

    body = "\n".join(line("td", row) for row in rows)
    return Html(
        f'<div class="scroll"><table>\n<thead>{line("th", header)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
    )


def code(text):
    """A block of commands or code."""
    return Html(f"<pre><code>{escape(text)}</code></pre>")


def command(purpose, text):
    """A command with a line above it that says what it is for."""
    return Html(f'<div class="command">{paragraph(purpose)}{code(text)}</div>')


def plots(*drawings):
    """Drawings side by side where there is room, one under the other where there is none; empty ones are left out."""
    parts = [f"<figure>{escape(drawing)}</figure>" for drawing in drawings if drawing]
    return Html(f'<div class="plots">\n{"".join(parts)}\n</div>') if parts else Html("")


def measure(text, share, interval=None):
    """A number and a bar that shows it: beside each other, on a narrow screen one under the other.

    Args:
        text: the number as it is to be read.
        share: how much of the bar is filled, 0 to 1.
        interval: (low, high) in the same unit, shown as a paler end of the bar.
    """
    spans = f'<span style="left:0;width:{_clip(share):.2%}"></span>'
    if interval:
        low, high = map(_clip, interval)
        spans += f'<span class="band" style="left:{low:.2%};width:{high - low:.2%}"></span>'
    return Html(
        f'<div class="measure"><span>{escape(text)}</span><span class="meter" aria-hidden="true">{spans}</span></div>'
    )


def _clip(share):
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
