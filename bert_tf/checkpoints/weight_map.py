"""Weight maps between our variables and the tensors of other formats: variable path -> TensorMapping.

`read_mapped` and `write_mapped` use the same map, so reading and writing cannot drift apart.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bert_tf.checkpoints.tensor import FLOATS, Tensor, finite
from bert_tf.errors import DataError
from bert_tf.types import Shapes


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """The tensors of a foreign checkpoint that one of our variables corresponds to.

    Attributes:
        names: tensor names; several are concatenated along the last axis of our variable.
        transposed: whether each is stored transposed: a dense kernel as [outputs, inputs].
    """

    names: tuple[str, ...]
    transposed: bool = False


WeightMap: TypeAlias = dict[str, TensorMapping]

# How a library names the variables of a layer: variable -> end of its name. Names that end in "weight" or "weights" are
# stored as [outputs, inputs].
TENSORFLOW = {name: f"/{name}" for name in ("kernel", "bias", "gamma", "beta")}
PYTORCH = {"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"}


def expand(names: Mapping[str, str], library: Mapping[str, str], layers: int = 0) -> WeightMap:
    """The weight map of a table of names.

    Args:
        names: our name of a layer, or of a variable outside of layers (an embedding, a bias), to the foreign name. "*"
            stands for the number of a transformer layer; "{a,b}" for several names, which are concatenated.
        library: TENSORFLOW, PYTORCH or the like.
        layers: number of transformer layers.
    """
    table: WeightMap = {}
    for ours, theirs in names.items():
        foreign = listed_names(theirs)
        variables = ("gamma", "beta") if ours.endswith("norm") else ("kernel", "bias")
        for number in map(str, range(layers)) if "*" in ours else [""]:
            path, numbered = ours.replace("*", number), [name.replace("*", number) for name in foreign]
            if ours.endswith(("_embeddings", "/bias")):
                table[path] = TensorMapping(tuple(numbered))
                continue
            for variable in variables:
                end_of_name = library[variable]
                transposed = variable == "kernel" and "weight" in end_of_name
                table[f"{path}/{variable}"] = TensorMapping(tuple(name + end_of_name for name in numbered), transposed)
    return table


def listed_names(name: str) -> list[str]:
    """The names that "{a,b}" in a name stands for; the name itself without."""
    start, _, rest = name.partition("{")
    choices, _, end = rest.partition("}")
    return [f"{start}{choice}{end}" for choice in choices.split(",")]


def read_mapped(table: WeightMap, shapes: Shapes, store: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    """Finds our variables in a foreign checkpoint; a tensor with a value that is not finite is refused when it is read.

    Args:
        shapes: of our variables; paths that are only in `table` are ignored.
        store: the tensors of the checkpoint.
        file: path for error messages, which list the missing, misshapen and mistyped tensors.
    """
    problems: dict[str, list[str]] = {"missing": [], "misshapen": [], "mistyped": []}
    for path, shape in shapes.items():
        mapping = table[path]
        part = (*shape[:-1], shape[-1] // len(mapping.names))  # the shape of each tensor in our layout
        expected = part[::-1] if mapping.transposed else part
        for name in mapping.names:
            if name not in store:
                problems["missing"].append(name)
                continue
            if store[name].shape != expected:
                problems["misshapen"].append(f"{name} is {list(store[name].shape)}, not {list(expected)}")
            if store[name].dtype not in FLOATS:
                problems["mistyped"].append(f"{name} is {store[name].dtype}, not {' or '.join(FLOATS)}")
    parts = [f"{what} {first_names(names)}" for what, names in problems.items() if names]
    if parts:
        raise DataError(f"{file} does not hold the model that its config describes: {'; '.join(parts)}")
    return {path: _joined([finite(store[name], file) for name in table[path].names], table[path]) for path in shapes}


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
            width = tensor.shape[-1] // len(mapping.names)
            part = _columns(tensor, index * width, width)
            result[name] = _transposed(part) if mapping.transposed else part
    return result


def names_of(table: WeightMap, paths: Iterable[str]) -> set[str]:
    """The foreign names of the variables with these paths."""
    return {name for path in paths for name in table[path].names}


def _joined(parts: Sequence[Tensor], mapping: TensorMapping) -> Tensor:
    parts = [_transposed(part) for part in parts] if mapping.transposed else parts
    if len(parts) == 1:
        return parts[0]
    return Tensor(
        (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts)),
        np.result_type(*(np.dtype(part.dtype) for part in parts)).name,
        lambda: np.concatenate([part.read() for part in parts], -1),
        " + ".join(dict.fromkeys(part.source for part in parts)),
        all(part.lasting for part in parts),
    )


def _columns(tensor: Tensor, start: int, width: int) -> Tensor:
    return tensor.mapped(lambda values: values[..., start : start + width], shape=(*tensor.shape[:-1], width))


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.mapped(np.transpose, shape=tensor.shape[::-1])
