"""Pre-training steps of KerasHub: its backbone and masked-LM head, a next-sentence head, the step of `Model.fit`."""

import os
from typing import Any

from worker import Round, repeated, serve, versions, warmed_up

os.environ["KERAS_BACKEND"] = "tensorflow"


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    import keras
    import keras_hub
    import tensorflow as tf
    from pretraining_batches import SIZES, VOCABULARY, batches

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32" if settings["dtype"] == "float32" else f"mixed_{settings['dtype']}")
    layers, hidden = SIZES[settings["model"]]
    backbone = keras_hub.models.BertBackbone(VOCABULARY, layers, hidden // 64, hidden, 4 * hidden)
    positions = keras.Input((None,), dtype="int32", name="mask_positions")
    outputs = backbone(backbone.input)
    words = keras_hub.layers.MaskedLMHead(
        token_embedding=backbone.token_embedding,
        intermediate_activation=lambda x: keras.activations.gelu(x, approximate=True),
        name="words",
    )(outputs["sequence_output"], positions)
    pairs = keras.layers.Dense(2, name="pairs")(outputs["pooled_output"])
    model = keras.Model({**backbone.input, "mask_positions": positions}, {"words": words, "pairs": pairs})
    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    losses = dict.fromkeys(("words", "pairs"), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.compile(optimizer, losses, jit_compile=settings["compile"])

    def tensors(batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs = {
            "token_ids": batch["input_word_ids"],
            "segment_ids": batch["input_type_ids"],
            "padding_mask": batch["input_mask"],
            "mask_positions": batch["masked_lm_positions"],
        }
        return inputs, {"words": batch["masked_lm_ids"], "pairs": batch["next_sentence_labels"]}

    examples = [tensors(batch) for batch in batches(settings)]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *examples)
    iterator = iter(tf.data.Dataset.from_tensor_slices(stacked).repeat().prefetch(tf.data.AUTOTUNE))
    train = model.make_train_function() or model.train_function

    def step() -> float:
        logs = train(iterator)
        return float(logs["loss"])

    running = warmed_up(step)
    ready = {
        "versions": versions("keras-hub", "keras", "tensorflow"), "dtype": settings["dtype"],
        "compiled": settings["compile"], "optimizer": "AdamW, clipped to norm 1", "losses": running[:2],
        "parameters": model.count_params(),
    }  # fmt: skip
    return ready, repeated(step, settings["batch"], "sequences", settings["seconds"])


serve(setup)
