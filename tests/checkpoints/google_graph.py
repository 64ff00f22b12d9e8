"""Runs the graph that google-research/bert saved with a checkpoint, on weights restored by the graph itself.

A program of its own, because TensorFlow 1's behaviour and oneDNN (which has its own LayerNorm) are set per process:
python -m tests.checkpoints.google_graph GRAPH.meta INPUTS.npz PREFIX OUTPUTS.npz [PREFIX OUTPUTS.npz ...]
"""

import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np
import tensorflow.compat.v1 as tf

# Each output of the input pipeline, by the order of the features' names.
FEATURES = (
    "input_ids",
    "input_mask",
    "masked_lm_ids",
    "masked_lm_positions",
    "masked_lm_weights",
    "next_sentence_labels",
    "segment_ids",
)
_PIPELINE = "IteratorGetNext"
_RESTORE = "save/restore_all"
_FETCHED = {
    "mlm_logits": "cls/predictions/BiasAdd",
    "nsp_logits": "cls/seq_relationship/BiasAdd",
    "pooled": "bert/pooler/dense/Tanh",
    "layer_0": "bert/encoder/layer_0/output/LayerNorm/batchnorm/add_1",
    "layer_1": "bert/encoder/layer_1/output/LayerNorm/batchnorm/add_1",
}


def main(meta, inputs, *pairs):
    graph = tf.MetaGraphDef()
    with open(meta, "rb") as file:
        graph.ParseFromString(file.read())
    # The functions of the input pipeline use ops that TensorFlow 2 no longer has; its outputs are fed instead.
    graph.graph_def.CopyFrom(tf.graph_util.extract_sub_graph(graph.graph_def, [*_FETCHED.values(), _RESTORE]))
    graph.graph_def.library.Clear()
    for name in list(graph.collection_def):
        del graph.collection_def[name]
    with tf.Graph().as_default() as built, tf.Session() as session:
        saver = tf.train.import_meta_graph(graph, clear_devices=True)
        arrays = np.load(inputs)
        feed = {f"{_PIPELINE}:{index}": arrays[name] for index, name in enumerate(FEATURES) if name in arrays}
        # The graph is a training graph: keeping every value turns its dropout off.
        rates = [op.outputs[0] for op in built.get_operations() if op.name.endswith("dropout/keep_prob")]
        assert len(rates) == 7, rates
        feed |= {rate: 1.0 for rate in rates}
        for prefix, outputs in zip(pairs[::2], pairs[1::2], strict=True):
            saver.restore(session, prefix)
            np.savez(outputs, **session.run({key: f"{name}:0" for key, name in _FETCHED.items()}, feed))


if __name__ == "__main__":
    main(*sys.argv[1:])
