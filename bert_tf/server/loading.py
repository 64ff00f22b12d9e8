"""Loads a SavedModel into a session, with the steps of the loader in C++, for inputs of any shape.

TF Serving's runtime compares the type of an input with that of its tensor, but not the shape: half_plus_two declares
[?, 1] and is asked with [3]. Python's `Session.run` compares both, with the static shape of the tensor. So the shapes
of all inputs are made unknown before the graph is imported. What depends on a shape is still checked by the ops.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

_INIT_OP = "__saved_model_init_op"
_UNKNOWN = tf.TensorShape(None).as_proto()


class Loaded(NamedTuple):
    """What a session runs.

    Attributes:
        signatures: by name, as they are in the file.
        tensors: names of tensors in the file whose values go to, and come from, another tensor in the session.
    """

    signatures: dict[str, meta_graph_pb2.SignatureDef]
    tensors: dict[str, str]

    def tensor(self, name: str) -> str:
        """The name in the session of a tensor in the file."""
        return self.tensors.get(name, name)


def files_of(path: str) -> Iterator[tuple[str, str]]:
    """Folder and name of each file of a version, linked folders included."""
    known = set()  # links may form circles
    for folder, folders, names in tf.io.gfile.walk(path):
        if (real := os.path.realpath(folder)) in known:
            folders.clear()
            continue
        known.add(real)
        yield from ((folder, name) for name in names)


def load(session: tf.compat.v1.Session, tags: Collection[str], path: str) -> Loaded:
    """Imports a graph, restores its variables and initializes it.

    Args:
        session: with an empty graph.
        tags: of the graph in the SavedModel, all of them.
        path: folder of the SavedModel.

    Raises:
        OSError, ValueError, google.protobuf.message.DecodeError, tf.errors.OpError: it is incomplete or damaged, or has
            no such graph.
    """
    meta_graph = _meta_graph(_saved_model(path), tags)
    # Names with __ are internal, such as the op that initializes tables.
    signatures = {key: value for key, value in meta_graph.signature_def.items() if not key.startswith("__")}
    infos = [info for signature in signatures.values() for info in signature.inputs.values() if info.name]
    tensors = _accept_any_shape(meta_graph.graph_def, {info.name: info.dtype for info in infos})
    with session.graph.as_default():
        saver = tf.compat.v1.train.import_meta_graph(meta_graph)
        if saver is not None:  # there are variables
            folder = tf.saved_model.VARIABLES_DIRECTORY
            saver.restore(session, os.path.join(path, folder, tf.saved_model.VARIABLES_FILENAME))
    if init_op := _init_op(meta_graph):
        session.run(init_op, _assets(meta_graph, path))
    return Loaded(signatures, tensors)


def graph_of(path: str) -> bytes | None:
    """The content of the SavedModel's binary file; None if there is none."""
    binary = os.path.join(path, tf.saved_model.SAVED_MODEL_FILENAME_PB)
    if not tf.io.gfile.exists(binary):
        return None
    with tf.io.gfile.GFile(binary, "rb") as file:
        content: bytes = file.read()
        return content


def _saved_model(path: str) -> saved_model_pb2.SavedModel:
    if (content := graph_of(path)) is not None:
        return saved_model_pb2.SavedModel.FromString(content)
    text = os.path.join(path, tf.saved_model.SAVED_MODEL_FILENAME_PBTXT)
    if tf.io.gfile.exists(text):
        with tf.io.gfile.GFile(text) as file:
            return text_format.Parse(file.read(), saved_model_pb2.SavedModel())
    raise FileNotFoundError(f"no {tf.saved_model.SAVED_MODEL_FILENAME_PB} in {path}")


def _meta_graph(saved_model: saved_model_pb2.SavedModel, tags: Collection[str]) -> meta_graph_pb2.MetaGraphDef:
    for meta_graph in saved_model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == set(tags):
            return meta_graph
    found = "; ".join(", ".join(one.meta_info_def.tags) for one in saved_model.meta_graphs) or "none"
    raise ValueError(f"no graph with the tags {', '.join(tags)}; found {found}")


def _accept_any_shape(graph: graph_pb2.GraphDef, inputs: Mapping[str, int]) -> dict[str, str]:
    """Makes the static shapes of tensors unknown, so that any value can be fed.

    Args:
        graph: changed in place.
        inputs: types of the tensors, TensorFlow's, by name.

    Returns:
        By the name of a tensor that no placeholder makes, the name of the placeholder that was added after it.
    """
    nodes = {node.name: node for node in graph.node}
    tensors = {}
    for tensor in inputs:
        name, _, number = tensor.partition(":")
        if name in nodes and nodes[name].op.startswith("Placeholder"):
            nodes[name].attr["shape"].shape.CopyFrom(_UNKNOWN)
            nodes[name].attr.pop("_output_shapes", None)
        elif name in nodes:  # such as a feature of parsed examples
            added = f"{name}_{number or 0}_fed"
            while added in nodes:
                added += "_"
            tensors[tensor] = f"{added}:0"
    for node in graph.node:
        for index, source in enumerate(node.input):
            tensor = source if ":" in source else f"{source}:0"  # of control inputs, ^name:0, which no tensor has
            if tensor in tensors:
                node.input[index] = tensors[tensor]
    for tensor, added in tensors.items():
        name, _ = added.split(":")
        # Without a value that is fed, it passes on what the tensor has.
        node = node_def_pb2.NodeDef(name=name, op="PlaceholderWithDefault", input=[tensor])
        node.attr["dtype"].type = inputs[tensor]
        node.attr["shape"].shape.CopyFrom(_UNKNOWN)
        graph.node.append(node)
    return tensors


def _init_op(meta_graph: meta_graph_pb2.MetaGraphDef) -> str:
    """The name of the op that initializes tables and others; "" if there is none."""
    if _INIT_OP in meta_graph.signature_def:
        return meta_graph.signature_def[_INIT_OP].outputs[_INIT_OP].name
    constants = tf.compat.v1.saved_model.constants
    for key in (constants.MAIN_OP_KEY, constants.LEGACY_INIT_OP_KEY):
        if key in meta_graph.collection_def:
            return meta_graph.collection_def[key].node_list.value[0]
    return ""


def _assets(meta_graph: meta_graph_pb2.MetaGraphDef, path: str) -> dict[str, str]:
    """Paths of the files that the op needs, by the tensors that take them."""
    assets = [*meta_graph.asset_file_def]
    key = tf.compat.v1.saved_model.constants.ASSETS_KEY
    if not assets and key in meta_graph.collection_def:
        for packed in meta_graph.collection_def[key].any_list.value:
            assets.append(meta_graph_pb2.AssetFileDef())
            packed.Unpack(assets[-1])
    folder = os.path.join(path, tf.saved_model.ASSETS_DIRECTORY)
    return {asset.tensor_info.name: os.path.join(folder, asset.filename) for asset in assets}
