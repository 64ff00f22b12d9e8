"""Models as sentence-transformers publishes them: modules.json beside, or above, a Hugging Face directory.

It lists modules, of which each has a folder: the encoder, pooling, and what follows (sentence-transformers,
base/model.py; base/modules and sentence_transformer/modules have the classes). A CrossEncoder, which scores a pair of
texts, is a single module, and has an activation for its logits.
"""

import dataclasses
import os
from typing import Any, NotRequired, TypedDict

from bert_tf.checkpoints.stored_model import Checkpoint, Report, Written
from bert_tf.checkpoints.tensor import Tensor
from bert_tf.checkpoints.tensor_files.pytorch import check_allowed, open_pickled
from bert_tf.checkpoints.tensor_files.safetensors import open_tensors, write_tensors
from bert_tf.checkpoints.weight_map import PYTORCH, WeightMap, expand, read_mapped, write_mapped
from bert_tf.config import BertConfig, DenseConfig, EmbeddingConfig, FeatureConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_json, write_json
from bert_tf.types import Json

FILE = "modules.json"
_LIBRARY = "config_sentence_transformers.json"
# The names of the first that the library tries, in its order.
_TRANSFORMERS = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
# Our ways to pool -> the library's names since version 6, and before; in the order in which it concatenated them then.
_POOLS = {
    "cls": ("cls", "pooling_mode_cls_token"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "mean_sqrt_len": ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    "weightedmean": ("weightedmean", "pooling_mode_weightedmean_tokens"),
    "lasttoken": ("lasttoken", "pooling_mode_lasttoken"),
}
_ROOT = "sentence_transformers.models."  # of the classes, in all versions
_SCORES = "sequence-classification"  # the task of a CrossEncoder
_ALONE = "for vectors of the encoder alone, copy the model without modules.json"
# Ours -> the library's.
ACTIVATIONS = {
    "linear": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "erf_gelu": "torch.nn.modules.activation.GELU",
}
# What each module's settings may say without changing what is computed here; None stands for any value.
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_SENTENCE = (None, "sentence_embedding")
_OPTIONS: dict[str, dict[str, tuple[Any, ...] | None]] = {
    "Transformer": {
        "max_seq_length": None, "do_lower_case": None, "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings",), "modality_config": (_TEXT,), "unpad_inputs": None,
        **dict.fromkeys(("model_args", "config_args", "tokenizer_args")),
        **dict.fromkeys(("model_kwargs", "config_kwargs", "processor_kwargs")),
    },
    "Pooling": {
        "word_embedding_dimension": None, "embedding_dimension": None, "pooling_mode": None, "include_prompt": None,
        **{name: None for _, name in _POOLS.values()},
    },
    "Dense": {
        "in_features": None, "out_features": None, "bias": None, "activation_function": None, "use_residual": (False,),
        "module_input_name": _SENTENCE, "module_output_name": _SENTENCE,
    },
    "Normalize": {"module_input_name": _SENTENCE, "module_output_name": _SENTENCE},
}  # fmt: skip


class _Module(TypedDict):
    path: str
    type: str


class _Transformer(TypedDict, total=False):
    transformer_task: str
    max_seq_length: int | None
    do_lower_case: bool | None


class _Pooling(TypedDict, total=False):
    pooling_mode: str | list[str]
    include_prompt: bool


class _Dense(TypedDict):
    out_features: int
    bias: NotRequired[bool]
    activation_function: NotRequired[str]


class _Library(TypedDict, total=False):
    prompts: dict[str, str | None] | None
    default_prompt_name: str | None
    activation_fn: str | None


_SCHEMAS: dict[str, Any] = {"Transformer": _Transformer, "Pooling": _Pooling, "Dense": _Dense}


def encoder_folder(path: str) -> str:
    """The folder of the encoder: `path` itself, unless its modules.json names one below it."""
    modules = _modules(path)
    return modules[0][1] if modules and modules[0][0] == "Transformer" else path


def lower_cases(path: str) -> bool:
    """Whether texts are lower-cased before the tokenizer of the encoder sees them."""
    return _modules(path) is not None and bool(_settings(encoder_folder(path), "Transformer")[1].get("do_lower_case"))


def read(
    path: str, config: BertConfig, max_length: int, allow_pickle: bool
) -> tuple[EmbeddingConfig, dict[str, Tensor]] | None:
    """Reads how the vectors of sentences are computed.

    Args:
        path: directory.
        config: of the encoder.
        max_length: of the tokenizer.
        allow_pickle: read a dense layer's pytorch_model.bin if it has no safetensors.

    Returns:
        The config, and the tensors of its dense layers by path; None if there is no modules.json, or that of a model
        which computes no vectors (CrossEncoder).

    Raises:
        DataError: they cannot be computed here.
    """
    file, modules = os.path.join(path, FILE), _modules(path)
    if modules is None:
        return None
    kinds = [kind for kind, _ in modules]
    if kinds == ["Transformer"] and _settings(modules[0][1], "Transformer")[1].get("transformer_task") == _SCORES:
        return None
    expected = "Transformer, Pooling, then any number of Dense, then Normalize"
    rest = kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or rest != sorted(rest) or not {*rest} <= {"Dense", "Normalize"}:
        raise DataError(f"{file}: the modules are {', '.join(kinds) or 'none'}; expected {expected}: {_ALONE}")
    settings = _checked(modules[0][1], "Transformer")
    vectors = EmbeddingConfig(
        max_length=min(settings.get("max_seq_length") or max_length, config.max_position_embeddings),
        long_texts="head",
        normalize="Normalize" in kinds,
    )
    _read_pooling(vectors, _checked(modules[1][1], "Pooling"))
    _read_prompts(vectors, os.path.join(path, _LIBRARY))
    dense = [(folder, _checked(folder, kind)) for kind, folder in modules[2:]]
    dense = [(folder, layer) for folder, layer in dense if "out_features" in layer]
    vectors.dense = tuple(
        DenseConfig(layer["out_features"], _activation(layer, folder), layer.get("bias", True))
        for folder, layer in dense
    )
    try:
        vectors.check()
    except ConfigError as error:
        raise DataError(f"{file}: {error}") from None
    tensors: dict[str, Tensor] = {}
    shapes = vectors.shapes(config.hidden_size)
    for number, (folder, _) in enumerate(dense):
        table = _weight_map(number)
        weights = os.path.join(folder, "model.safetensors")
        if os.path.exists(weights):
            store = open_tensors(weights)
        else:
            weights = os.path.join(folder, "pytorch_model.bin")
            check_allowed(weights, allow_pickle)
            store = open_pickled(weights)
        found = read_mapped(table, {name: shapes[name] for name in table if name in shapes}, store, weights)
        source = os.path.basename(folder)
        tensors |= {name: dataclasses.replace(one, source=f"{source}/{one.source}") for name, one in found.items()}
    return vectors, tensors


def write(path: str, checkpoint: Checkpoint) -> Written:
    """Writes modules.json and the folders of the modules into a Hugging Face directory.

    Args:
        path: directory.
        checkpoint: its `vectors` say what to write.

    Returns:
        The names of the tensors of dense layers, and what the library computes differently.
    """
    vectors, report = checkpoint.vectors, Report()
    if not vectors or vectors.per != "sentence":
        return Written({})
    shapes = vectors.shapes(checkpoint.config.hidden_size)
    if vectors.features != FeatureConfig():
        why = "sentence-transformers pools the last layer only"
        return Written({}, Report((f"vectors: not written, as {why}",), dict.fromkeys(shapes, why)))
    if vectors.size:
        why = f"sentence-transformers keeps all values: pass truncate_dim={vectors.size}"
        report += Report((f"vectors: {why}",))
    if vectors.long_texts != "head":
        report += Report(("vectors: sentence-transformers cuts texts longer than max_length, and bert_tf splits them",))
    length = vectors.max_length or checkpoint.config.max_position_embeddings
    write_json(os.path.join(path, _TRANSFORMERS[0]), {"max_seq_length": length, "do_lower_case": False})
    prompts = {"prompts": vectors.prompts, "default_prompt_name": vectors.prompt_name or None}
    write_json(os.path.join(path, _LIBRARY), prompts)
    pooling: Json = {
        "word_embedding_dimension": checkpoint.config.hidden_size,
        "include_prompt": vectors.include_prompt,
    }
    if list(vectors.pools) == [pool for pool in _POOLS if pool in vectors.pools]:
        pooling |= {flag: pool in vectors.pools for pool, (_, flag) in _POOLS.items()}
    else:
        pooling["pooling_mode"] = [_POOLS[pool][0] for pool in vectors.pools]
    modules: list[tuple[str, Json]] = [("Transformer", {}), ("Pooling", pooling)]
    for number, layer in enumerate(vectors.dense):
        inputs, outputs = shapes[f"vectors/dense_{number}/kernel"]
        activation = ACTIVATIONS[layer.activation]
        modules.append(("Dense", {"in_features": inputs, "out_features": outputs, "bias": layer.bias,
                                  "activation_function": activation}))  # fmt: skip
    modules += [("Normalize", {})] * vectors.normalize
    names: dict[str, str] = {}
    listed = []
    for index, (kind, settings) in enumerate(modules):
        folder = f"{index}_{kind}" if index else ""
        listed.append({"idx": index, "name": str(index), "path": folder, "type": _ROOT + kind})
        if settings:
            write_json(os.path.join(path, folder, "config.json"), settings)
        elif index:
            os.makedirs(os.path.join(path, folder))
        if kind == "Dense":
            table = _weight_map(index - 2)
            stored = {name: checkpoint.tensors[name] for name in table if name in shapes}
            write_tensors(os.path.join(path, folder, "model.safetensors"), write_mapped(table, stored))
            names |= {name: f"{folder}/{table[name].names[0]}" for name in stored}
    write_json(os.path.join(path, FILE), listed)
    return Written(names, report)


def _weight_map(number: int) -> WeightMap:
    return expand({f"vectors/dense_{number}": "linear"}, PYTORCH)


def _modules(path: str) -> list[tuple[str, str]] | None:
    """The class name and the folder of each module that acts in inference; None if there is no modules.json."""
    file = os.path.join(path, FILE)
    if not os.path.exists(file):
        return None
    modules = []
    for module in read_json(file, list[_Module]):
        if os.path.isabs(module["path"]) or ".." in module["path"].split("/"):
            raise DataError(f"{file}: the path {module['path']!r} leaves the directory; expected a folder inside it")
        modules.append((module["type"].rpartition(".")[2], os.path.join(path, module["path"]).removesuffix("/")))
    return [module for module in modules if module[0] != "Dropout"]  # which acts only in training


def _settings(folder: str, kind: str) -> tuple[str, Json]:
    """The file with the settings of a module, and its content; empty if there is no file and none is needed."""
    names = _TRANSFORMERS if kind == "Transformer" else ["config.json"]
    file = next((file for name in names if os.path.exists(file := os.path.join(folder, name))), "")
    if not file and kind in ("Transformer", "Normalize"):
        return file, {}
    file = file or os.path.join(folder, names[0])
    return file, {**read_json(file, _SCHEMAS.get(kind, Json))}


def _checked(folder: str, kind: str) -> Json:
    """As `_settings`; DataError for an option that would change the result and is not supported."""
    file, settings = _settings(folder, kind)
    for name, value in settings.items():
        known = _OPTIONS[kind].get(name, ())
        if known is not None and value not in known:
            raise DataError(f"{file}: {name} {value!r} is not supported; {_ALONE}")
    return settings


def _read_pooling(vectors: EmbeddingConfig, settings: Json) -> None:
    modes = settings.get("pooling_mode", [new for new, flag in _POOLS.values() if settings.get(flag)] or "mean")
    ours = {new: pool for pool, (new, _) in _POOLS.items()}
    vectors.pool = "+".join(ours.get(mode, mode) for mode in ([modes] if isinstance(modes, str) else modes))
    vectors.include_prompt = settings.get("include_prompt", True)


def _read_prompts(vectors: EmbeddingConfig, file: str) -> None:
    if os.path.exists(file):
        settings = read_json(file, _Library)
        vectors.prompts = {name: prompt or "" for name, prompt in (settings.get("prompts") or {}).items()}
        vectors.prompt_name = settings.get("default_prompt_name") or ""


def _activation(layer: Json, folder: str) -> str:
    name = layer.get("activation_function", ACTIVATIONS["tanh"])
    activation = activation_named(name)
    if not activation:
        expected = ", ".join(ACTIVATIONS.values())
        raise DataError(f"{folder}/config.json: activation_function {name!r}; expected one of {expected}: {_ALONE}")
    return activation


def activation_named(name: object) -> str | None:
    """Our name of an activation; None if it is none of PyTorch's that are known here.

    Args:
        name: path of a class, which PyTorch has in several modules, such as "torch.nn.Tanh".
    """
    ours = {theirs.rpartition(".")[2]: ours for ours, theirs in ACTIVATIONS.items()}
    return ours.get(name.rpartition(".")[2]) if isinstance(name, str) and name.startswith("torch.") else None


def activation_of_scores(path: str) -> str | None:
    """The activation of a CrossEncoder that a directory names beside config.json, as newer releases write it."""
    file = os.path.join(path, _LIBRARY)
    return read_json(file, _Library).get("activation_fn") if os.path.exists(file) else None
