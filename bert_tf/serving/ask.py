"""Asks an exported model from the command line; needs TensorFlow and TF Text, nothing of bert_tf.

python ask.py EXPORT_DIR/1 "A text." "Another one." prints a JSON line a text. Run by its path, in a process of its own,
it also shows that an export stands on its own feet.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the ops that turn text into ids


def main(path, *texts):
    serve = tf.saved_model.load(path).signatures["serving_default"]
    (name,) = (spec.name for spec in serve.structured_input_signature[1].values())
    outputs = {key: value.numpy() for key, value in serve(**{name: tf.constant(texts)}).items()}
    assert "bert_tf" not in sys.modules
    for index, text in enumerate(texts):
        print(json.dumps({"text": text} | {key: _plain(value[index]) for key, value in outputs.items()}))


def _plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return [_plain(item) for item in value] if getattr(value, "ndim", 0) else value.item()


if __name__ == "__main__":
    main(*sys.argv[1:])
