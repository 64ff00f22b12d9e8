"""Fixtures for the tests of readers."""

import json

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes bytes, text or a JSON value to a file of this name; returns the path."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode()
        path.write_bytes(content)
        return str(path)

    return write
