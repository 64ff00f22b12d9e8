"""Finds the packages; all other metadata is in pyproject.toml, which cannot add to the packages that are found."""

from setuptools import find_packages, setup

# The last two lie at the top of the checkout, and inside the package once it is installed.
setup(packages=[*find_packages(include=["bert_tf", "bert_tf.*"]), "bert_tf.configs", "bert_tf.data"])
