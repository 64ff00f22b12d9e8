"""Writes SavedModels in TF Serving's layout: a folder a model, in it a folder a version."""

import os

import tensorflow as tf

from bert_tf.files import replacing_directory


def export(task, model, directory):
    """Writes a model as the next version below `directory`.

    Vocabulary and tables are inside; nothing outside the folder is needed to load it but the ops of TF Text, which TF
    Serving has built in and Python gets from `import tensorflow_text`.

    Args:
        task: Task.
        model: its trained keras.Model.
        directory: of the exported model, as TF Serving's --model_base_path.

    Returns:
        path of the new version's folder; it appears under that name only when it is whole.
    """
    return save(task.serving(model), directory)


def save(module, directory):
    """The same of a tf.Module whose `serve` is a tf.function, signature given."""
    numbers = [int(name) for name in os.listdir(directory) if name.isdigit()] if os.path.isdir(directory) else []
    path = os.path.join(directory, str(max(numbers, default=0) + 1))
    # Gradients would bring functions that must be compiled by XLA, which a server may lack and never needs.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with replacing_directory(path) as temporary:
        tf.saved_model.save(module, temporary, signatures={"serving_default": module.serve}, options=options)
    return path
