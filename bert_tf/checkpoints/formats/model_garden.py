"""BERT encoders of TF-Hub and TF Model Garden: SavedModels and checkpoints of tf.train.Checkpoint; read only.

The graph of a SavedModel is never run: the variables hold all weights, and TensorFlow saves the full name of each in
the object graph beside them. There are four generations of names. Sources: tf-models-official (official/nlp/modeling)
2.2.0 to 2.20.0, its tf1_checkpoint_converter_lib.py for earlier models, and google-research/bert for TF 1 Hub modules.
"""

import dataclasses
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2

from bert_tf.checkpoints.formats.google_families import BERT, FIELDS
from bert_tf.checkpoints.stored_model import Checkpoint, Report, foreign_config
from bert_tf.checkpoints.tensor import Tensor, number, reshaped
from bert_tf.checkpoints.tensor_files import bundles
from bert_tf.checkpoints.weight_map import TENSORFLOW, WeightMap, expand, names_of
from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.files import MOST_GRAPH, read_bytes, read_json
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import check_size, guess_tokenizer, read_vocabulary
from bert_tf.types import Json

FORMAT = "model_garden"

_NAMES = {  # since 2.3.0; TF-Hub's BERT since version 3
    "embeddings/word_embeddings": "word_embeddings/embeddings",
    "embeddings/position_embeddings": "position_embedding/embeddings",
    "embeddings/type_embeddings": "type_embeddings/embeddings",
    "embeddings/norm": "embeddings/layer_norm",
    "pooler": "pooler_transform",
    "layer_*/attention/qkv": "transformer/layer_*/self_attention/{query,key,value}",
    "layer_*/attention/output": "transformer/layer_*/self_attention/attention_output",
    "layer_*/attention_norm": "transformer/layer_*/self_attention_layer_norm",
    "layer_*/intermediate": "transformer/layer_*/intermediate",
    "layer_*/output": "transformer/layer_*/output",
    "layer_*/output_norm": "transformer/layer_*/output_layer_norm",
}
# 2.2.0; TF-Hub's version 2
_SECOND = _NAMES | {"layer_*/attention/output": "transformer/layer_*/self_attention_output"}
_FIRST = {  # before 2.2.0; TF-Hub's version 1
    **{ours: theirs.replace("transformer/", "encoder/") for ours, theirs in _SECOND.items()},
    "embeddings/position_embeddings": "embedding_postprocessor/position_embeddings",
    "embeddings/type_embeddings": "embedding_postprocessor/type_embeddings",
    "embeddings/norm": "embedding_postprocessor/layer_norm",
}
# TF 1 Hub modules: google-research/bert's in another scope
_TF1 = {ours: theirs.removeprefix("bert/") for ours, theirs in BERT.names.items() if theirs.startswith("bert/")}
_MASKED_LM = {
    "masked_lm/transform": "transform/dense",
    "masked_lm/norm": "transform/LayerNorm",
    "masked_lm/bias": "output_bias/bias",
}
_TF1_BIAS = "cls/predictions/output_bias"
# Next-sentence prediction of BertPretrainerV2, which has a pooler of its own, and of BertPretrainer.
_POOLER, _NEXT_SENTENCE = "next_sentence/pooler_dense", ("next_sentence/logits", "predictions/transform/logits")
# Outputs of BertClassifier, BertTokenClassifier and BertSpanLabeler; the last two and BertPretrainer's share a name.
_TASK_OUTPUT = re.compile(r"(^|/)(sentence_prediction|predictions/transform)/(logits|pooler_dense)/(kernel|bias)$")

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # follows the path through Python objects
_LOWER_CASE, _STEP = "do_lower_case", "global_step"
# Our field -> its key in bert_config.json, and in the encoder section of params.yaml.
_FIELDS = FIELDS | {"activation": "hidden_act"}
_YAML_FIELDS = _FIELDS | {
    "num_layers": "num_layers",
    "activation": "hidden_activation",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
}
# Model Garden's gelu is the tanh approximation (official/modeling/activations/gelu.py).
_ACTIVATIONS = {"gelu": "tanh_gelu", "relu": "relu"}
# Graph op -> activation; TensorFlow used erf for the exact gelu before, and uses erfc today.
_OPS = {"Erf": "erf_gelu", "Erfc": "erf_gelu", "Tanh": "tanh_gelu", "Relu": "relu"}
_EXPECTED = "expected a BERT encoder of TF-Hub or TF Model Garden"


def recognises(path: str) -> bool:
    """Whether `path` is a SavedModel, a directory with checkpoints of tf.train.Checkpoint, or the prefix of one."""
    if os.path.isdir(path):
        return os.path.exists(os.path.join(path, "saved_model.pb")) or bool(bundles.prefixes(path, objects=True))
    return bundles.holds_objects(bundles.stem(path))


def read(path: str, allow_pickle: bool = False) -> Checkpoint:
    """Opens a SavedModel or a checkpoint.

    The variables determine the sizes; bert_config.json or params.yaml beside a checkpoint provide the other settings.

    Args:
        path: the directory of a SavedModel; a directory of checkpoints, for the one that its file `checkpoint` names or
            its only one; or the prefix of a checkpoint.
        allow_pickle: not used, as this format has no pickled files.

    Returns:
        The Checkpoint of an encoder, with the masked-LM or pre-training head if it has the variables of one.
    """
    saved_model = os.path.exists(os.path.join(path, "saved_model.pb"))
    bundle = os.path.join(path, "variables", "variables")
    prefix, warnings = (bundle, list[str]()) if saved_model else bundles.find_prefix(path, objects=True)
    folder = path if saved_model else os.path.dirname(prefix) or "."
    values = {key.removesuffix(_VALUE): tensor for key, tensor in bundles.open_bundle(prefix).items()}
    store, twice, unused_tensors = _variables(values, prefix)
    encoder = _find(store)
    if not encoder:
        first = ", ".join(list(store)[:5]) or "none"
        raise DataError(f"{prefix}: its first variables are {first}; {_EXPECTED}")
    settings, keys = _settings(folder)
    if saved_model:
        settings |= _graph(path)
    config, assumed = _config(store, *encoder, settings, keys, prefix)
    warnings += assumed
    head = _head(store)
    checkpoint = Checkpoint(
        config=config,
        tensors={},
        task={"name": head, "settings": {"max_length": config.max_position_embeddings}} if head else None,
        step=number(values[_STEP], prefix) if _STEP in values else None,
        source_metadata={"format": FORMAT},
    )
    table, of_pooler = _weight_map(head, store, encoder[0])
    checkpoint = dataclasses.replace(checkpoint, report=Report(tuple(warnings), unused_tensors) + of_pooler)
    taken = names_of(table, checkpoint.shapes())
    if found := ", ".join(sorted(taken & twice)):
        raise DataError(f"{prefix} holds several variables with the same name: {found}; expected one encoder")
    unused = store.keys() - taken - checkpoint.report.unused_tensors.keys()
    checkpoint = checkpoint.reported(unused_tensors=_unused(unused, prefix))
    _join_heads(store, table, config)
    checkpoint = checkpoint.with_tensors(table, store, prefix)
    vocabulary = os.path.join(path, "assets") if saved_model else folder
    tokenizer, notes = _tokenizer(vocabulary, config.vocab_size, values.get(_LOWER_CASE))
    return dataclasses.replace(checkpoint, tokenizer=tokenizer).reported(*notes)


def _variables(values: Mapping[str, Tensor], prefix: str) -> tuple[dict[str, Tensor], set[str], dict[str, str]]:
    """Sorts the tensors of a checkpoint.

    Args:
        values: Tensors by path through Python objects; by full name in TF 1, which has no objects.
        prefix: of the checkpoint, for errors.

    Returns:
        Variables by full name, the full names that several variables share, and unused tensors with reasons.
    """
    full_names = _full_names(values, prefix)
    store: dict[str, Tensor] = {}
    twice: set[str] = set()
    unused_tensors: dict[str, str] = {}
    for key, tensor in values.items():
        name = full_names.get(key) or key
        if key.startswith("optimizer/") or "/.OPTIMIZER_SLOT/" in key:
            unused_tensors[key] = "optimizer state"
        elif name == "save_counter":
            unused_tensors[name] = "a number of the training, not a weight"
        elif tensor.dtype == "object" and key != bundles.OBJECT_GRAPH:
            unused_tensors[key] = "Keras' description of an object, not a weight"
        elif key not in (bundles.OBJECT_GRAPH, _LOWER_CASE, _STEP):  # these three are read elsewhere
            if name in store:
                twice.add(name)
            store[name] = dataclasses.replace(tensor, source=name)
    return store, twice, unused_tensors


def _full_names(values: Mapping[str, Tensor], prefix: str) -> dict[str, str]:
    """Full names of variables by path through Python objects."""
    if bundles.OBJECT_GRAPH not in values:
        return {}
    try:
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(values[bundles.OBJECT_GRAPH].read().item())
    except DecodeError:
        raise DataError(f"{prefix}: {bundles.OBJECT_GRAPH} cannot be read; download the files again") from None
    attributes = [attribute for node in graph.nodes for attribute in node.attributes]
    return {attribute.checkpoint_key.removesuffix(_VALUE): attribute.full_name for attribute in attributes}


def _config(
    store: Mapping[str, Tensor],
    table: WeightMap,
    layers: int,
    settings: Json,
    keys: Mapping[str, str],
    prefix: str,
) -> tuple[BertConfig, list[str]]:
    """BertConfig from the shapes of the variables and the settings, and warnings on assumed values."""

    def shape(path: str, *ranks: int) -> tuple[int, ...]:
        name = table[path].names[0]
        if name not in store:
            raise DataError(f"{prefix}: missing {name}; {_EXPECTED}")
        if len(store[name].shape) not in ranks:
            expected = " or ".join(map(str, ranks))
            raise DataError(f"{prefix}: {name} is {list(store[name].shape)}; expected {expected} axes")
        return store[name].shape

    words, query = shape("embeddings/word_embeddings", 2), shape("layer_0/attention/qkv/kernel", 2, 3)
    if words[1] != query[0]:
        raise DataError(
            f"{prefix}: word embeddings of size {words[1]} in a model of hidden size {query[0]}: factorized, as in "
            f"ALBERT and ELECTRA; {_EXPECTED}"
        )
    sizes = {
        "vocab_size": words[0],
        "num_layers": layers,
        "hidden_size": query[0],
        "intermediate_size": shape("layer_0/intermediate/kernel", 2)[1],
        "max_position_embeddings": shape("embeddings/position_embeddings", 2)[0],
        "type_vocab_size": shape("embeddings/type_embeddings", 2)[0],
    }
    if len(query) == 3:
        sizes["num_heads"] = query[1]
    for field, size in sizes.items():
        if settings.get(field, size) != size:
            raise DataError(
                f"{prefix}: {field} is {size} in its variables, but {settings[field]} in its settings; use the "
                "settings of this checkpoint"
            )
    values: dict[str, Any] = settings | sizes
    values["pooler"] = bool(_ending(store, _POOLER) or names_of(table, ("pooler/kernel", "pooler/bias")) & store.keys())
    warnings: list[str] = []
    if "num_heads" not in values:
        values["num_heads"] = max(query[0] // 64, 1)
        warnings.append(
            f"{values['num_heads']} attention heads: assumed, for a head size of 64 as in all published sizes of BERT"
        )
    if "activation" not in values:
        warnings.append(
            "activation tanh_gelu: assumed, as no file beside the variables names it; it is Model Garden's gelu"
        )
    assumed = [f"{field} 0.1" for field in ("dropout", "attention_dropout") if field not in values]
    warnings.append(f"{', '.join([*assumed, 'layer_norm_epsilon 1e-12'])}: Model Garden's values, not in the files")
    return foreign_config(values, keys, prefix), warnings


def _settings(folder: str) -> tuple[Json, dict[str, str]]:
    """Fields of BertConfig from bert_config.json or params.yaml, and their names there; empty if there is neither."""
    file = os.path.join(folder, "bert_config.json")
    if os.path.exists(file):
        found, keys = read_json(file, Json), _FIELDS
    elif os.path.exists(file := os.path.join(folder, "params.yaml")):
        found, keys = _read_yaml(file), _YAML_FIELDS
    else:
        return {}, {}
    if not isinstance(found, dict):
        raise DataError(f"{file}: a {type(found).__name__}; expected a mapping of settings")
    if found.get("norm_first"):
        _refuse_norm_first(file)
    values = {field: found[key] for field, key in keys.items() if found.get(key) is not None}
    if "activation" in values:
        activation, known = values["activation"], ", ".join(_ACTIVATIONS)
        if str(activation) not in _ACTIVATIONS:
            raise DataError(f"{file}: {keys['activation']} {activation!r}; expected one of {known}")
        values["activation"] = _ACTIVATIONS[activation]
    return values, keys


def _read_yaml(file: str) -> Any:
    """The encoder's settings in the configuration of an experiment, or of an encoder alone."""
    import yaml  # here: training does not need it

    text = read_bytes(file)
    try:
        settings = yaml.safe_load(text)
    except Exception as error:  # also whatever Python raises for 2001-99-99, !!bool x, deep nesting
        raise DataError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    for key in ("task", "model", "encoder"):
        if isinstance(settings, dict) and key in settings:
            settings = settings[key]
    if isinstance(settings, dict) and "type" in settings:
        if settings["type"] != "bert":
            raise DataError(f"{file}: an encoder of type {settings['type']!r}; expected 'bert'")
        settings = settings.get("bert")
    return settings


def _graph(path: str) -> Json:
    """Settings that the graph of a SavedModel shows: {"activation"}, or {} if its layers have no such op."""
    file = os.path.join(path, "saved_model.pb")
    content = read_bytes(file, most=MOST_GRAPH)
    try:
        graphs = [meta.graph_def for meta in saved_model_pb2.SavedModel.FromString(content).meta_graphs]
    except DecodeError:
        graphs = []
    if not graphs:
        raise DataError(f"{file}: not a SavedModel, or truncated; download it again")
    metadata = os.path.join(path, "keras_metadata.pb")
    # JSON in a protocol buffer of Keras 2's.
    if os.path.exists(metadata) and b'"norm_first": true' in read_bytes(metadata, most=MOST_GRAPH):
        _refuse_norm_first(metadata)
    functions = [function for graph in graphs for function in graph.library.function]
    nodes = [graph.node for graph in graphs] + [function.node_def for function in functions]
    ops = {node.op for part in nodes for node in part if "/layer_0/" in f"/{node.name}"}
    found = {_OPS[op] for op in ops & _OPS.keys()}
    return {"activation": found.pop()} if len(found) == 1 else {}


def _refuse_norm_first(file: str) -> NoReturn:
    raise DataError(
        f"{file}: norm_first, LayerNorm before each sublayer and none at the end; expected BERT's, after each sublayer"
    )


def _ending(store: Collection[str], *ends: str) -> list[str]:
    """Sorted names of the dense layers that end in one of `ends`."""
    dense_layers = {name.rpartition("/")[0] for name in store if name.endswith(("/kernel", "/bias"))}
    return sorted(name for name in dense_layers if f"/{name}".endswith(tuple(f"/{end}" for end in ends)))


def _head(store: Collection[str]) -> str | None:
    """Name of the head, or None."""
    if not any("/cls/predictions/" in f"/{name}" for name in store):
        return None
    return "pretraining" if _ending(store, *_NEXT_SENTENCE) else "masked_lm"


def _weight_map(head: str | None, store: Collection[str], encoder: WeightMap) -> tuple[WeightMap, Report]:
    """The weight map of the encoder and its head, and which pooler is used if there are two."""
    names, pooler, report = {}, _ending(store, _POOLER), Report()
    if pooler:
        # Model Garden's pre-training trains this pooler; the encoder's own stays as it was initialised.
        names["pooler"] = pooler[0]
        unused = sorted(names_of(encoder, ("pooler/kernel", "pooler/bias")) & set(store), reverse=True)
        report = Report(
            (f"the pooler is {pooler[0]}, which was trained with next-sentence prediction",),
            dict.fromkeys(unused, f"not trained: {pooler[0]} was used instead"),
        )
    if head:
        # Not in the encoder's scope, but in the scope of the model that contains both.
        scope = next(name.partition("cls/predictions/")[0] for name in store if "cls/predictions/" in name)
        names |= {ours: f"{scope}cls/predictions/{theirs}" for ours, theirs in _MASKED_LM.items()}
        if f"{scope}{_TF1_BIAS}" in store:
            names["masked_lm/bias"] = f"{scope}{_TF1_BIAS}"
    if head == "pretraining":
        names["next_sentence"] = _ending(store, *_NEXT_SENTENCE)[0]
    return encoder | expand(names, TENSORFLOW), report


def _join_heads(store: dict[str, Tensor], table: WeightMap, config: BertConfig) -> None:
    """Makes attention weights matrices and vectors, as they are in TF 1: without an axis of heads.

    It splits the outputs of query, key and value, and the inputs of the output, into heads and head size.
    """
    hidden, heads = config.hidden_size, config.num_heads
    size = hidden // heads
    split = {"qkv/kernel": (hidden, heads, size), "qkv/bias": (heads, size), "output/kernel": (heads, size, hidden)}
    for path, mapping in table.items():
        kind = path.partition("/attention/")[2]
        for name in mapping.names:
            if name in store and store[name].shape == split.get(kind):
                store[name] = reshaped(store[name], (hidden,) * (2 if kind.endswith("kernel") else 1))


def _unused(unused: set[str], prefix: str) -> dict[str, str]:
    """The outputs of fine-tuned heads, each with the reason why it is not used; DataError for any other variable."""
    names = sorted(unused)
    unknown = [name for name in names if not _TASK_OUTPUT.search(name)]
    if unknown:
        raise DataError(f"{prefix}: unknown {', '.join(unknown)}; {_EXPECTED}")
    return dict.fromkeys(names, "belongs to a fine-tuned head; its task and labels are not in the files")


def _tokenizer(folder: str, vocab_size: int, lower_case: Tensor | None) -> tuple[Tokenizer | None, list[str]]:
    """The tokenizer, and what is guessed of it; `lower_case` holds one bool, and is None if the checkpoint lacks it."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    files = sorted(file for file in names if "vocab" in file and file.endswith(".txt"))
    if len(files) != 1:
        found = ", ".join(files) or "none"
        return None, [f"no vocabulary: expected one file *vocab*.txt in {folder}, found {found}"]
    file = os.path.join(folder, files[0])
    pieces = read_vocabulary(file)
    check_size(pieces, vocab_size, file)
    settings, note = guess_tokenizer(pieces)
    if lower_case is None:
        return Tokenizer(pieces, **settings), [note]
    # Model Garden's tokenizer strips accents if it lower-cases.
    settings["lower_case"] = settings["strip_accents"] = bool(number(lower_case, file))
    return Tokenizer(pieces, **settings), []


def _find(store: Mapping[str, Tensor]) -> tuple[WeightMap, int] | None:
    """The weight map of the encoder in `store` and its number of layers; None if it holds no encoder.

    The generation and scope ("" or "SCOPE/") that match the most variables are used.
    """
    found: dict[int, tuple[WeightMap, int]] = {}
    for names in (_NAMES, _SECOND, _FIRST, _TF1):
        embeddings = [names[f"embeddings/{kind}_embeddings"] for kind in ("word", "position", "type")]
        for end in (*embeddings, f"{names['embeddings/norm']}/gamma"):  # any one of them may be missing
            for scope in [name.removesuffix(end) for name in store if f"/{name}".endswith(f"/{end}")]:
                scoped = {ours: f"{scope}{theirs}" for ours, theirs in names.items()}
                layers = _num_layers(store, scoped["layer_*/output"])
                if layers:
                    table = expand(scoped, TENSORFLOW, layers)
                    found.setdefault(len(names_of(table, table) & store.keys()), (table, layers))
    return found[max(found)] if found else None


def _num_layers(store: Collection[str], name: str) -> int:
    """Number of transformer layers, up to the last one that has variables; 0 if there are none."""
    pattern = re.compile(re.escape(name.partition("*")[0]) + r"(\d{1,4})/")  # a huge number would make a huge map
    return max((int(match[1]) + 1 for match in map(pattern.match, store) if match), default=0)
