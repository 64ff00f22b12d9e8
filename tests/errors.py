"""Errors are checked by their kind and by what they name, not by their sentences."""

import contextlib
import re

import pytest


@contextlib.contextmanager
def raises(kind, *named):
    """Like `pytest.raises`, for an error of one line that names each of these: a file, a line, a field, a value."""
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    assert "\n" not in message
    for part in map(str, named):
        # As words of its own: 1 is not named by 12.
        before, after = (r"\b" if part[end].isalnum() else "" for end in (0, -1))
        assert re.search(before + re.escape(part) + after, message), f"{part} is not named in: {message}"
