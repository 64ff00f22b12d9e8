"""Reads a file in a named format."""

from bert_tf.config import ExampleData
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.formats import FORMATS, File


def read(name, path, part="train", read_report=None):
    """The examples of a file, read by `Source`."""
    return list(FORMATS[name].examples(File(str(path), part, ExampleData(format=name), read_report or ReadReport())))
