"""For tools that ask for it; all metadata is in pyproject.toml."""

from setuptools import setup

setup()
