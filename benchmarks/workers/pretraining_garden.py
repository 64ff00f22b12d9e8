"""Pre-training steps of TF Model Garden: its pretrainer and optimizer, and the step of its masked-LM task."""

import itertools
import os
from typing import Any

from worker import Round, repeated, serve, versions, warmed_up

os.environ["TF_USE_LEGACY_KERAS"] = "1"


def setup(settings: dict[str, Any]) -> tuple[dict[str, Any], Round]:
    import tensorflow as tf
    import tf_keras
    from official.modeling.optimization.legacy_adamw import AdamWeightDecay
    from official.nlp.modeling import layers, models, networks
    from pretraining_batches import SIZES, VOCABULARY, batches

    tf_keras.utils.set_random_seed(0)
    tf_keras.mixed_precision.set_global_policy(
        "float32" if settings["dtype"] == "float32" else f"mixed_{settings['dtype']}"
    )
    num_layers, hidden = SIZES[settings["model"]]

    def gelu(x: tf.Tensor) -> tf.Tensor:
        return tf_keras.activations.gelu(x, approximate=True)

    encoder = networks.BertEncoderV2(
        vocab_size=VOCABULARY, hidden_size=hidden, num_layers=num_layers, num_attention_heads=hidden // 64,
        inner_dim=4 * hidden, inner_activation=gelu, max_sequence_length=512, type_vocab_size=2,
    )  # fmt: skip
    pairs = layers.ClassificationHead(inner_dim=hidden, num_classes=2, dropout_rate=0.1, name="next_sentence")
    model = models.BertPretrainerV2(
        encoder_network=encoder, mlm_activation=gelu, mlm_initializer="glorot_uniform", classification_heads=[pairs]
    )
    optimizer = AdamWeightDecay(
        1e-4, epsilon=1e-6, weight_decay_rate=0.01, gradient_clip_norm=1.0,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    )  # fmt: skip
    examples = [{name: tf.constant(value) for name, value in batch.items()} for batch in batches(settings)]
    data = itertools.cycle(examples)

    @tf.function
    def update(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        # As MaskedLMTask.train_step and its build_losses.
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            cross_entropy = tf_keras.losses.sparse_categorical_crossentropy
            words = cross_entropy(inputs["masked_lm_ids"], tf.cast(outputs["mlm_logits"], tf.float32), from_logits=True)
            weights = inputs["masked_lm_weights"]
            loss = tf.math.divide_no_nan(tf.reduce_sum(words * weights), tf.reduce_sum(weights))
            following = tf.cast(outputs["next_sentence"], tf.float32)
            loss += tf.reduce_mean(cross_entropy(inputs["next_sentence_labels"], following, from_logits=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def step() -> float:
        return float(update(next(data)))

    losses = warmed_up(step)
    # The head has a pooler of its own, as in the masked-LM task, so the encoder's is not trained.
    trained = [variable for variable in model.trainable_variables if "pooler_transform" not in variable.name]
    ready = {
        "versions": versions("tf-models-official", "tf_keras", "tensorflow"), "dtype": settings["dtype"],
        "optimizer": "AdamWeightDecay, clipped to norm 1", "losses": losses[:2],
        "parameters": sum(int(tf.size(variable)) for variable in trained),
    }  # fmt: skip
    return ready, repeated(step, settings["batch"], "sequences", settings["seconds"])


serve(setup)
