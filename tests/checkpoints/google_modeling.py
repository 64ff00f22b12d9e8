"""Builds graphs with google-research/bert's own Python code, restores checkpoints with its Saver, and runs them.

A program of its own: python -m tests.checkpoints.google_modeling FOLDER INPUTS.npz TASK DIRECTORY [TASK DIRECTORY ...]
FOLDER is the package `bert` of bert-tensorflow; DIRECTORY contains bert_config.json and bert_model.ckpt;
outputs.npz is written to it, with the names of the graph's variables under "names".
"""

import importlib
import os
import sys
import types

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow.compat.v1 as tf

LABELS = 3
_TRAINING = {"init_lr": 1e-4, "num_train_steps": 10, "num_warmup_steps": 1, "use_tpu": False}


def dense(inputs, units, activation=None, name=None, kernel_initializer=None):
    """tf.layers.dense, which was removed with Keras 2."""
    with tf.variable_scope(name, default_name="dense"):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], units], initializer=kernel_initializer)
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        outputs = tf.tensordot(inputs, kernel, 1) + bias
        return activation(outputs) if activation else outputs


def layer_norm(inputs, begin_norm_axis, begin_params_axis, scope):
    """tf.contrib.layers.layer_norm, which was removed with TensorFlow 1."""
    assert begin_norm_axis == begin_params_axis == -1
    with tf.variable_scope(scope, default_name="LayerNorm"):
        beta = tf.get_variable("beta", inputs.shape[-1:], initializer=tf.zeros_initializer())
        gamma = tf.get_variable("gamma", inputs.shape[-1:], initializer=tf.ones_initializer())
        mean, variance = tf.nn.moments(inputs, [-1], keep_dims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)


def script(name):
    """A module of google-research/bert. Its programs define the same flags, so only one may define them."""
    for flag in list(tf.flags.FLAGS):
        delattr(tf.flags.FLAGS, flag)
    return importlib.import_module(f"bert.{name}")


def outputs_of(task, config, arrays):
    """dict name -> Tensor of the outputs of the task's script, and of its loss if its optimizer should be there."""
    ids, mask, types = (tf.constant(arrays[f"input_{name}"]) for name in ("word_ids", "mask", "type_ids"))
    if task == "classification":
        labels = tf.zeros(ids.shape[0], tf.int32)
        model = script("run_classifier").create_model(config, False, ids, mask, types, labels, LABELS, False)
        _, _, logits, _ = model
        return {"logits": logits}, None
    if task == "question_answering":
        start, end = script("run_squad").create_model(config, False, ids, mask, types, False)
        return {"start_logits": start, "end_logits": end}, None
    model = script("modeling").BertModel(config, False, ids, mask, types)
    outputs = {
        "sequence_output": model.get_sequence_output(),
        "pooled_output": model.get_pooled_output(),
        "encoder_outputs": tf.stack(model.get_all_encoder_layers()),
    }
    if task == "encoder":
        return outputs, None
    positions = tf.constant(arrays["masked_lm_positions"])
    run_pretraining = script("run_pretraining")
    masked_loss, _, masked = run_pretraining.get_masked_lm_output(
        config,
        model.get_sequence_output(),
        model.get_embedding_table(),
        positions,
        tf.zeros_like(positions),
        tf.ones_like(positions, tf.float32),
    )
    next_loss, _, following = run_pretraining.get_next_sentence_output(
        config, model.get_pooled_output(), tf.zeros(ids.shape[0], tf.int32)
    )
    return {"mlm_log_probabilities": masked, "nsp_log_probabilities": following}, masked_loss + next_loss


def main(folder, inputs, *pairs):
    tf.disable_v2_behavior()
    contrib = types.ModuleType("tensorflow.contrib")
    contrib.layers = types.SimpleNamespace(layer_norm=layer_norm)
    sys.modules["tensorflow.contrib"] = contrib
    tf.layers = types.SimpleNamespace(dense=dense)
    sys.path.insert(0, os.path.dirname(folder))
    for task, directory in zip(pairs[::2], pairs[1::2], strict=True):
        config = script("modeling").BertConfig.from_json_file(os.path.join(directory, "bert_config.json"))
        with tf.Graph().as_default(), tf.Session() as session:
            outputs, loss = outputs_of(task, config, np.load(inputs))
            if loss is not None:
                script("optimization").create_optimizer(loss, **_TRAINING)
            variables = tf.global_variables()
            tf.train.Saver(variables).restore(session, os.path.join(directory, "bert_model.ckpt"))
            names = [variable.op.name for variable in variables]
            np.savez(os.path.join(directory, "outputs.npz"), names=names, **session.run(outputs))


if __name__ == "__main__":
    main(*sys.argv[1:])
