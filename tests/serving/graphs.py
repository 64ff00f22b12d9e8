"""What an exported model's graph is made of."""

import pathlib

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2


def check_ops(path):
    """Fails unless all ops of the version in the folder `path` are of core TensorFlow or among those of TF Text that TF
    Serving has built in, and none must be compiled by XLA."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString(pathlib.Path(path, "saved_model.pb").read_bytes())
    (graph,) = [meta.graph_def for meta in saved.meta_graphs]
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    ops = {node.op for node in nodes} - functions
    core = {name for name in dir(tf.raw_ops) if name[0].isupper()}
    assert len(ops & core) > 20  # the walk did find the model
    assert {op.rpartition(">")[2] for op in ops - core} <= {
        "FastBertNormalize",
        "FastWordpieceTokenizeWithOffsets",
        "_Arg",
        "_Retval",
    }
    # A server's build may have no XLA.
    compiled = [holder for holder in (*nodes, *graph.library.function) if holder.attr["_XlaMustCompile"].b]
    assert not compiled
