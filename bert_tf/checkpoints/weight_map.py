"""Weight maps between our variables and the tensors of other formats: variable path -> TensorMapping.

`read_mapped` and `write_mapped` use the same map, so reading and writing cannot drift apart.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bert_tf.checkpoints.tensor import FLOATS, Tensor, finite
from bert_tf.errors import DataError
from bert_tf.types import Array, Shapes

SAME = "same"
TRANSPOSED = "transposed"  # a dense kernel stored as [outputs, inputs]


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """The tensors of a foreign checkpoint that one of our variables corresponds to.

    Attributes:
        names: tensor names; several are concatenated along the last axis of our variable.
        layout: SAME or TRANSPOSED: how each tensor is stored.
    """

    names: tuple[str, ...]
    layout: str = SAME


WeightMap: TypeAlias = dict[str, TensorMapping]


# How a library names the variables of a layer, and stores them: variable -> (end of its name, layout).
TENSORFLOW = {name: (f"/{name}", SAME) for name in ("kernel", "bias", "gamma", "beta")}
PYTORCH = {
    "kernel": (".weight", TRANSPOSED),
    "bias": (".bias", SAME),
    "gamma": (".weight", SAME),
    "beta": (".bias", SAME),
}


def expand(names: Mapping[str, str], library: Mapping[str, tuple[str, str]], layers: int = 0) -> WeightMap:
    """The weight map of a table of names.

    Args:
        names: our name of a layer, or of a variable outside of layers (an embedding, a bias), to the foreign name. "*"
            stands for the number of a transformer layer; "{a,b}" for several names, which are concatenated.
        library: TENSORFLOW or PYTORCH.
        layers: number of transformer layers.
    """
    table: WeightMap = {}
    for ours, theirs in names.items():
        start, _, rest = theirs.partition("{")
        choices, _, end = rest.partition("}")
        foreign = [f"{start}{choice}{end}" for choice in choices.split(",")]
        variables = ("gamma", "beta") if ours.endswith("norm") else ("kernel", "bias")
        for number in map(str, range(layers)) if "*" in ours else [""]:
            path, numbered = ours.replace("*", number), [name.replace("*", number) for name in foreign]
            if ours.endswith(("_embeddings", "/bias")):
                table[path] = TensorMapping(tuple(numbered))
                continue
            for variable in variables:
                suffix, layout = library[variable]
                table[f"{path}/{variable}"] = TensorMapping(tuple(f"{name}{suffix}" for name in numbered), layout)
    return table


def read_mapped(table: WeightMap, shapes: Shapes, store: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    """Finds our variables in a foreign checkpoint; a tensor with a value that is not finite is refused when it is read.

    Args:
        shapes: of our variables; paths that are only in `table` are ignored.
        store: the tensors of the checkpoint.
        file: path for error messages, which list the missing, misshapen and mistyped tensors.
    """
    missing: list[str] = []
    misshapen: list[str] = []
    mistyped: list[str] = []
    found: dict[str, Tensor] = {}
    for path, shape in shapes.items():
        mapping = table[path]
        part = (*shape[:-1], shape[-1] // len(mapping.names))  # the shape of each tensor in our layout
        absent = [name for name in mapping.names if name not in store]
        missing += absent
        if absent:
            continue
        expected = part[::-1] if mapping.layout == TRANSPOSED else part
        wrong = [name for name in mapping.names if store[name].shape != expected]
        misshapen += [f"{name} is {list(store[name].shape)}, not {list(expected)}" for name in wrong]
        others = [name for name in mapping.names if store[name].dtype not in FLOATS]
        mistyped += [f"{name} is {store[name].dtype}, not {' or '.join(FLOATS)}" for name in others]
        if not wrong and not others:
            found[path] = _joined([finite(store[name], file) for name in mapping.names], shape, mapping.layout)
    problems = {"missing": missing, "misshapen": misshapen, "mistyped": mistyped}
    parts = [f"{what} {first_names(names)}" for what, names in problems.items() if names]
    if parts:
        raise DataError(f"{file} does not hold the model that its config describes: {'; '.join(parts)}")
    return found


def first_names(names: Sequence[str], remark: str = "", shown: int = 8) -> str:
    """The first names and the number of the rest, with a remark: a wrong number of layers can make it hundreds."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more{remark}" if more > 0 else "")


def write_mapped(table: WeightMap, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `read_mapped`: our variables' tensors, split and renamed to the foreign names."""
    result = {}
    for path, tensor in tensors.items():
        mapping = table[path]
        for index, name in enumerate(mapping.names):
            result[name] = _part(tensor, index, len(mapping.names), mapping.layout, path)
    return result


def names_of(table: WeightMap, paths: Iterable[str]) -> set[str]:
    """The foreign names of the variables with these paths."""
    return {name for path in paths for name in table[path].names}


def _joined(parts: Sequence[Tensor], shape: tuple[int, ...], layout: str) -> Tensor:
    def read() -> Array:
        arrays = [part.read().T if layout == TRANSPOSED else part.read() for part in parts]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, -1)

    dtype = np.result_type(*(np.dtype(part.dtype) for part in parts)).name
    return Tensor(shape, dtype, read, " + ".join(part.source for part in parts))


def _part(tensor: Tensor, index: int, count: int, layout: str, path: str) -> Tensor:
    width = tensor.shape[-1] // count
    shape = (*tensor.shape[:-1], width)

    def read() -> Array:
        part = tensor.read()[..., index * width : (index + 1) * width]
        return part.T if layout == TRANSPOSED else part

    return Tensor(tuple(reversed(shape)) if layout == TRANSPOSED else shape, tensor.dtype, read, path)
