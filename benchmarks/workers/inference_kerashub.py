"""Inference of KerasHub: its BertBackbone of random weights, from ids, in a traced function, with or without XLA."""

from typing import Any

from worker import Round, repeated, serve, versions


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    import inference_inputs
    import keras
    import keras_hub
    import tensorflow as tf

    layers, hidden, heads = settings["sizes"]
    policy = {"float32": "float32", "bfloat16": "bfloat16"}[settings["dtype"]]
    keras.utils.set_random_seed(0)
    model = keras_hub.models.BertBackbone(
        vocabulary_size=30522, num_layers=layers, num_heads=heads, hidden_dim=hidden, intermediate_dim=4 * hidden,
        max_sequence_length=512, dtype=policy,
    )  # fmt: skip
    ids = tf.constant(inference_inputs.ids(settings))
    mask = tf.constant(inference_inputs.mask(settings))
    inputs = {"token_ids": ids, "padding_mask": mask, "segment_ids": tf.zeros_like(ids)}
    call = tf.function(
        lambda features: tf.cast(model(features, training=False)["sequence_output"], tf.float32),
        autograph=False, jit_compile=settings["compile"],
    )  # fmt: skip

    def step() -> Any:
        return call(inputs).numpy()

    step()
    ready = {
        "versions": versions("keras_hub", "keras", "tensorflow"), "dtype": policy, "xla": settings["compile"],
        "parameters": model.count_params(),
    }  # fmt: skip
    return ready, repeated(step, settings["batch"], "sequences", settings["seconds"])


serve(setup)
