"""Building blocks of a self-contained HTML page: functions from plain values to escaped markup.

Everything that is not `Html` is text and gets escaped. Only the report modules create `Html`, so that text from a data
set or a model cannot break a page.
"""

import html
import math
from collections.abc import Container, Iterable, Sequence

from bert_tf.report.style import STYLE


class Html(str):
    """Markup that is ready to be written, unlike a plain `str`, which still has to be escaped."""


def escape(value: object) -> Html:
    """Converts `value` to `Html`: text and numbers are escaped, markup is unchanged."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def join(parts: Iterable[object]) -> Html:
    """Concatenates parts, each on its own line."""
    return Html("\n".join(escape(part) for part in parts))


def page(title: str, sections: Iterable[Html], *, subtitle: str = "", summary: str = "") -> Html:
    """Builds a complete document that loads no other resources.

    Args:
        title: page title and first heading.
        sections: from `section`; empty ones are omitted.
        subtitle: one line under the title.
        summary: `Html` above the first section, such as `key_figures(...)`.

    Returns:
        The document, to be written as UTF-8.
    """
    subtitle_line = f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
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
{subtitle_line}
</header>
{escape(summary)}
{join(part for part in sections if part)}
</main>
</body>
</html>
"""
    )


def section(heading: str, *blocks: str) -> Html:
    """A part of the page with a heading; empty, so that `page` omits it, if all blocks are empty."""
    content = [block for block in blocks if block]
    return Html(f"<section>\n<h2>{escape(heading)}</h2>\n{join(content)}\n</section>") if content else Html("")


def heading(text: str) -> Html:
    """A heading inside a section."""
    return Html(f"<h3>{escape(text)}</h3>")


def paragraph(text: str) -> Html:
    """A paragraph of text."""
    return Html(f"<p>{escape(text)}</p>")


def key_figures(items: Iterable[tuple[object, object]]) -> Html:
    """A strip of key figures from (value, label) pairs."""
    parts = [f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for value, label in items]
    return Html(f'<dl class="figures">\n{"".join(parts)}\n</dl>') if parts else Html("")


def table(rows: Iterable[Iterable[object]], header: Sequence[str], *, numbers: Container[int] = ()) -> Html:
    """A table that scrolls horizontally on narrow screens.

    Args:
        rows: cells, each text, a number or `Html`.
        header: column titles, with units.
        numbers: indices of right-aligned columns.
    """
    kinds = [' class="number"' if column in numbers else "" for column in range(len(header))]

    def line(tag: str, cells: Iterable[object]) -> str:
        return "<tr>" + "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        ) + "</tr>"  # fmt: skip

    body = "\n".join(line("td", row) for row in rows)
    return Html(
        f'<div class="scroll"><table>\n<thead>{line("th", header)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
    )


def code(text: str) -> Html:
    """A block of commands or code."""
    return Html(f"<pre><code>{escape(text)}</code></pre>")


def command(purpose: str, text: str) -> Html:
    """A command with its purpose in a line above."""
    return Html(f'<div class="command">{paragraph(purpose)}{code(text)}</div>')


def plots(*drawings: str) -> Html:
    """Plots side by side, or stacked where there is not enough room; empty ones are omitted."""
    parts = [f"<figure>{escape(drawing)}</figure>" for drawing in drawings if drawing]
    return Html(f'<div class="plots">\n{"".join(parts)}\n</div>') if parts else Html("")


def meter(text: str, share: float, interval: tuple[float, float] | None = None) -> Html:
    """A number with a bar next to it, on narrow screens below it.

    Args:
        text: the formatted number.
        share: filled part of the bar, 0 to 1.
        interval: (low, high) in the same unit, shown as a paler end of the bar.
    """
    spans = f'<span style="left:0;width:{_clip(share):.2%}"></span>'
    if interval:
        low, high = map(_clip, interval)
        spans += f'<span class="band" style="left:{low:.2%};width:{high - low:.2%}"></span>'
    return Html(
        f'<div class="metric"><span>{escape(text)}</span><span class="meter" aria-hidden="true">{spans}</span></div>'
    )


def _clip(share: float) -> float:
    return min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
