"""Makes the graph of a SavedModel small: leaves out what saves variables, and shortens the names inside functions.

TensorFlow writes a function that saves the variables, which no server calls. And each node of a function is named by
all layers around it, once for itself and once for each node that reads it: more than half of the functions' size.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

# Shapes for Python, of each node; the runtime infers its own.
_SHAPES = "_output_shapes"


def compact(path: str) -> None:
    """Rewrites the graph of a SavedModel; it computes the same, and Python and servers load it as before.

    Args:
        path: folder of the SavedModel.
    """
    file = os.path.join(path, tf.saved_model.SAVED_MODEL_FILENAME_PB)
    with open(file, "rb") as old:
        saved = saved_model_pb2.SavedModel.FromString(old.read())
    for meta_graph in saved.meta_graphs:
        _leave_out_save(meta_graph)
        kept = set(meta_graph.object_graph_def.concrete_functions)  # Python calls these by the names of their arguments
        for function in meta_graph.graph_def.library.function:
            _shorten(function, keep_arguments=function.signature.name in kept)
    with open(file, "wb") as new:
        new.write(saved.SerializeToString(deterministic=True))
    with contextlib.suppress(FileNotFoundError):  # a checksum of the graph as it was, which nothing needs
        os.remove(os.path.join(path, "fingerprint.pb"))


def _leave_out_save(meta_graph: meta_graph_pb2.MetaGraphDef) -> None:
    """Removes the operation that saves the variables, and functions that nothing calls."""
    graph = meta_graph.graph_def
    saving = meta_graph.saver_def.save_tensor_name.partition(":")[0]
    nodes = [node for node in graph.node if node.name != saving]
    del graph.node[:]
    graph.node.extend(nodes)
    functions = {function.signature.name: function for function in graph.library.function}
    waiting = [*meta_graph.object_graph_def.concrete_functions, *_called(node.attr.values() for node in nodes)]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in functions and name not in reached:
            reached.add(name)
            waiting += _called(node.attr.values() for node in functions[name].node_def)
    del graph.library.function[:]
    graph.library.function.extend(function for name, function in functions.items() if name in reached)


def _called(attributes: Iterable[Iterable[attr_value_pb2.AttrValue]]) -> Iterator[str]:
    for values in attributes:
        for value in values:
            if value.HasField("func"):
                yield value.func.name
            yield from (function.name for function in value.list.func)


def _shorten(function: function_pb2.FunctionDef, *, keep_arguments: bool) -> None:
    """Numbers the nodes of a function, and its arguments unless they are to keep their names.

    The order of the names stays: by it, TensorFlow's optimizer orders sums, which round differently in another order.
    """
    arguments = [] if keep_arguments else function.signature.input_arg
    old = sorted(item.name for item in (*function.node_def, *arguments))
    names = {name: f"n{rank:0{len(str(len(old)))}}" for rank, name in enumerate(old)}
    while keep_arguments and any(argument.name in names.values() for argument in function.signature.input_arg):
        names = {name: f"{number}_" for name, number in names.items()}
    for argument in arguments:
        argument.name = names[argument.name]
    renamed = _renamer(names)
    for node in function.node_def:
        node.name = names[node.name]
        node.input[:] = [renamed(source) for source in node.input]
        node.attr.pop(_SHAPES, None)
        if "_class" in node.attr:  # names of nodes that are to be on the same device
            places = node.attr["_class"].list.s
            places[:] = [b"loc:@" + renamed(place.decode().removeprefix("loc:@")).encode() for place in places]
    for outputs in (function.ret, function.control_ret):
        for name, source in list(outputs.items()):
            outputs[name] = renamed(source)


def _renamer(names: dict[str, str]) -> Callable[[str], str]:
    """Renames the node or argument in a source such as "name:output:0", "name" or "^name"."""

    def renamed(source: str) -> str:
        control = "^" if source.startswith("^") else ""
        name, colon, output = source.removeprefix("^").partition(":")
        return control + names.get(name, name) + colon + output

    return renamed
