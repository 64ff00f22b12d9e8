"""Python examples in Markdown: running them, and comparing what they print with the outputs that the page gives.

    python -m tests.pages PAGE NUMBER...

runs these blocks of a page, one after the other in one process, and writes their outputs, a list, to outputs.json.
"""

import io
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

_TOKEN = re.compile(r"\.\.\.|-?\d+(?:\.\d*)?(?:e-?\d+)?|\w+|\S")
# Processors compute in different number formats, and small models that have learned little differ most.
_ABSOLUTE, _RELATIVE = 0.1, 0.05


class Block(NamedTuple):
    """A block of code and the indented output that follows it, "" if there is none."""

    code: str
    output: str


def blocks(path):
    """The blocks of a page."""
    text = Path(path).read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```\n(?:\n((?: {4}[^\n]*\n|\n)+))?", text, re.MULTILINE | re.DOTALL)
    return [Block(one[1], re.sub(r"^ {4}", "", one[2] or "", flags=re.MULTILINE).strip()) for one in found]


def difference(printed, documented):
    """The first token of a documented output that was not printed, with what was; None if there is none.

    White space is ignored, floats may differ a little, and "..." stands for any number of tokens.
    """
    tokens = [*_TOKEN.findall(printed), "nothing"]
    expected = [*_TOKEN.findall(documented), "nothing"]
    for number, token in enumerate(expected):
        if token == "...":  # up to the next two tokens, such as "/" and a name
            while len(tokens) > 1 and tokens[:2] != expected[number + 1 : number + 3]:
                tokens.pop(0)
        elif tokens[0] == token or _is_near(tokens[0], token):
            tokens.pop(0)
        else:
            return f"{token!r} is documented, {tokens[0]!r} was printed"
    return None


def _is_near(found, expected):
    if not re.search(r"\d\.|\de", expected):
        return False
    try:
        return abs(float(found) - float(expected)) <= max(_ABSOLUTE, _RELATIVE * abs(float(expected)))
    except ValueError:
        return False


def main(path, *numbers):
    page, outputs = blocks(path), []
    # Only the page's own output: `fit` prints its progress.
    namespace = {"print": lambda *values, **options: print(*values, **options, file=outputs[-1])}
    for number in map(int, numbers):
        outputs.append(io.StringIO())
        exec(compile(page[number].code, f"{path}, block {number}", "exec"), namespace)
    Path("outputs.json").write_text(json.dumps([one.getvalue() for one in outputs]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
