"""Keras layers and models: embeddings, attention, encoder, heads, pre-trainer."""

import keras

from bert_tf.errors import ConfigError

if keras.backend.backend() != "tensorflow":
    raise ConfigError(f"Keras runs on {keras.backend.backend()!r}; set KERAS_BACKEND=tensorflow before Python starts")
