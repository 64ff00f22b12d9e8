"""google-research/bert's format: bert_config.json, bert_model.ckpt.*, vocab.txt (its modeling.py and run_*.py)."""

import dataclasses
import os
from collections.abc import Collection, Mapping

import numpy as np

from bert_tf.checkpoints.formats import google_config as configs
from bert_tf.checkpoints.stored_model import ELSEWHERE, Checkpoint, check_writable
from bert_tf.checkpoints.tensor import Tensor, number, tensor_of
from bert_tf.checkpoints.tensor_files import bundles
from bert_tf.checkpoints.weight_map import TENSORFLOW, WeightMap, expand, names_of, read_mapped, write_mapped
from bert_tf.config import BertConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_json, write_json
from bert_tf.model.variables import ON_POOLED
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import check_size, guess_tokenizer, read_vocabulary
from bert_tf.types import Json

FORMAT = "google"

_VOCABULARY, _CHECKPOINT = "vocab.txt", "bert_model.ckpt"
_EPSILON = 1e-12  # of tf.contrib.layers.layer_norm, which modeling.py uses
_SLOTS = {"m": "adam_m", "v": "adam_v"}  # AdamWeightDecayOptimizer of optimization.py
_STEP = "global_step"
NAMES = {
    "embeddings/word_embeddings": "bert/embeddings/word_embeddings",
    "embeddings/position_embeddings": "bert/embeddings/position_embeddings",
    "embeddings/type_embeddings": "bert/embeddings/token_type_embeddings",
    "embeddings/norm": "bert/embeddings/LayerNorm",
    "pooler": "bert/pooler/dense",
    "masked_lm/transform": "cls/predictions/transform/dense",
    "masked_lm/norm": "cls/predictions/transform/LayerNorm",
    "masked_lm/bias": "cls/predictions/output_bias",
    "layer_*/attention/qkv": "bert/encoder/layer_*/attention/self/{query,key,value}",
    "layer_*/attention/output": "bert/encoder/layer_*/attention/output/dense",
    "layer_*/attention_norm": "bert/encoder/layer_*/attention/output/LayerNorm",
    "layer_*/intermediate": "bert/encoder/layer_*/intermediate/dense",
    "layer_*/output": "bert/encoder/layer_*/output/dense",
    "layer_*/output_norm": "bert/encoder/layer_*/output/LayerNorm",
}
# The scripts create the variables of these heads themselves; run_classifier.py opens no scope.
_HEADS = {"next_sentence": "cls/seq_relationship/", "span": "cls/squad/", "classifier": ""}
_HEAD_VARIABLES = {"kernel": "output_weights", "bias": "output_bias"}


def recognises(path: str) -> bool:
    """Whether `path` is a directory in this format, or the prefix of a name-based TensorFlow checkpoint."""
    if not os.path.isdir(path):
        prefix = bundles.stem(path)
        return os.path.exists(f"{prefix}.index") and not bundles.holds_objects(prefix)
    files = set(os.listdir(path))
    # With only another format's config, the directory is of that format, whatever *.index files are in it.
    if "saved_model.pb" in files or ("config.json" in files and configs.FILE not in files):
        return False
    if any(file.endswith(".index") for file in files):
        return bool(bundles.prefixes(path, objects=False))
    return configs.FILE in files and "config.json" not in files


def read(path: str, allow_pickle: bool = False) -> Checkpoint:
    """Opens a checkpoint; the names of the variables determine its head.

    Args:
        path: the prefix of a checkpoint, with bert_config.json and vocab.txt beside it; or a directory, for its
            bert_model.ckpt, else the checkpoint that its file `checkpoint` names, else its only one.
        allow_pickle: not used, as this format has no pickled files.
    """
    prefix, warnings = bundles.find_prefix(path, objects=False, preferred=_CHECKPOINT)
    folder = os.path.dirname(prefix)
    file, vocabulary = os.path.join(folder, configs.FILE), os.path.join(folder, _VOCABULARY)
    if not os.path.exists(file):
        raise DataError(
            f"{prefix}: no {configs.FILE} beside it; copy {configs.FILE} and {_VOCABULARY} there from the checkpoint "
            "that its training started from"
        )
    settings = read_json(file, Json)
    store = bundles.open_bundle(prefix)
    has_description = configs.OURS in settings
    if has_description:
        checkpoint = configs.read_description(settings, file)
    else:
        checkpoint = Checkpoint(config=configs.read_config(settings, file, f"{prefix}.meta", warnings), tensors={})
    checkpoint.warnings += warnings
    checkpoint.source_metadata = checkpoint.source_metadata or {
        "format": FORMAT,
        "settings": configs.other_settings(settings),
    }
    if not has_description:
        pieces = read_vocabulary(vocabulary)
        check_size(pieces, checkpoint.config.vocab_size, vocabulary)
        tokenizer_settings, note = guess_tokenizer(pieces)
        checkpoint.tokenizer = Tokenizer(pieces, **tokenizer_settings)
        checkpoint.warnings.append(note)
    if not checkpoint.task:
        _find_head(checkpoint, store, has_description)
    table, shapes = weight_map(checkpoint.config), checkpoint.shapes()
    slots = _slot_map(table)
    slot_shapes = {
        f"{name}/{slot}": shape
        for name, shape in shapes.items()
        for slot in _SLOTS
        if any(slot_name in store for slot_name in slots[f"{name}/{slot}"].names)
    }
    checkpoint.tensors = read_mapped(table, shapes, store, prefix)
    checkpoint.slots = read_mapped(slots, slot_shapes, store, prefix)
    checkpoint.step = number(store[_STEP], prefix) if _STEP in store else None
    taken = names_of(table, shapes) | names_of(slots, slot_shapes) | {_STEP}
    checkpoint.unused_tensors = _unused_tensors(store, taken, names_of(table, table), prefix)
    return checkpoint


def write(checkpoint: Checkpoint, path: str) -> dict[str, str]:
    """Writes bert_config.json, bert_model.ckpt.* and vocab.txt into an empty directory.

    Adds to the checkpoint's warnings where google-research/bert would compute other values.

    Returns:
        The names in the file of each variable and slot, by path, joined by " + ".

    Raises:
        OSError: the files cannot be written.
    """
    config = checkpoint.config
    check_writable(checkpoint, "google-research/bert", position_offset=0)
    if not config.type_vocab_size:
        raise ConfigError(
            f"model.type_vocab_size is 0, and google-research/bert always adds a type embedding{ELSEWHERE}"
        )
    table, tensors = weight_map(config), checkpoint.tensors | checkpoint.slots
    if checkpoint.vectors and checkpoint.vectors.dense:
        layers = checkpoint.vectors.shapes(config.hidden_size)
        checkpoint.unused_tensors |= dict.fromkeys(layers, "google-research/bert's format has no layers for vectors")
        checkpoint.warnings.append(
            "vectors: how those of sentences are computed is not written, as it has a dense layer"
        )
        checkpoint.vectors = None
        tensors = {name: tensor for name, tensor in tensors.items() if name not in layers}
    table |= _slot_map(table)
    store = write_mapped(table, tensors)
    if not config.pooler:
        for part, shape in (("kernel", (config.hidden_size,) * 2), ("bias", (config.hidden_size,))):
            store[f"bert/pooler/dense/{part}"] = tensor_of(np.zeros(shape, np.float32), "zeros")
    if checkpoint.step is not None:
        store[_STEP] = tensor_of(np.array(checkpoint.step, np.int64), _STEP)
    bundles.write_bundle(os.path.join(path, _CHECKPOINT), store)
    if checkpoint.tokenizer:
        checkpoint.tokenizer.save(path)
    # Google's other settings are written back at the top level; those of other formats stay in the description.
    google = checkpoint.source_metadata.get("format") == FORMAT
    described = dataclasses.replace(checkpoint, source_metadata={}) if google else checkpoint
    settings = configs.to_settings(described, checkpoint.source_metadata["settings"] if google else {})
    write_json(os.path.join(path, configs.FILE), settings)
    checkpoint.warnings += _deviations(checkpoint)
    return {name: " + ".join(table[name].names) for name in tensors}


def weight_map(config: BertConfig) -> WeightMap:
    """The weight map of the encoder and all heads."""
    return expand(NAMES, TENSORFLOW, config.num_layers) | expand(_HEADS, _HEAD_VARIABLES)


def _slot_map(table: WeightMap) -> WeightMap:
    """The weight map of Adam's slots, "PATH/m" and "PATH/v"."""
    return {
        f"{path}/{slot}": dataclasses.replace(mapping, names=tuple(f"{name}/{theirs}" for name in mapping.names))
        for path, mapping in table.items()
        for slot, theirs in _SLOTS.items()
    }


def _find_head(checkpoint: Checkpoint, store: Mapping[str, Tensor], has_description: bool) -> None:
    """Sets the task and the pooler by the names of the variables."""
    found, config = _head(store), checkpoint.config
    settings: Json = {"max_length": config.max_position_embeddings}
    # A model without a pooler is written with a pooler of zeros, which is used if a head has been trained on it since.
    pooler = config.pooler if has_description else any(name.startswith("bert/pooler/") for name in store)
    checkpoint.config = dataclasses.replace(config, pooler=pooler or found in ON_POOLED)
    ours = ("bert/", "cls/", "output_weights", "output_bias")
    others = [name for name, tensor in store.items() if tensor.shape and not name.startswith(ours)]
    if found == "classification" and others:
        checkpoint.warnings.append(
            f"head: only the encoder is read: what the classifier reads is not known, as there is also {others[0]}"
        )
    elif found == "classification":
        shapes = [store[output].shape for output in ("output_weights", "output_bias") if output in store]
        count = max(shape[0] if shape else 1 for shape in shapes)
        name, assumption = found, f"labels: named 0 to {count - 1}"
        if count == 1:
            name, assumption = "regression", "task regression: assumed, as there is one output"
        checkpoint.warnings.append(f"{assumption}; google-research/bert does not save labels")
        checkpoint.task = {"name": name, "settings": settings | {"labels": [str(index) for index in range(count)]}}
    elif found:
        checkpoint.task = {"name": found, "settings": settings}


def _head(names: Collection[str]) -> str | None:
    """The head that variables with these names belong to; a fine-tuned one if there are several."""
    if any(name.startswith("cls/squad/") for name in names):
        return "question_answering"
    if "output_weights" in names or "output_bias" in names:
        return "classification"
    masked_lm = any(name.startswith("cls/predictions/") for name in names)
    next_sentence = any(name.startswith("cls/seq_relationship/") for name in names)
    if masked_lm and next_sentence:
        return "pretraining"
    return "masked_lm" if masked_lm else "next_sentence" if next_sentence else None


def _unused_tensors(store: Mapping[str, Tensor], taken: set[str], known: set[str], prefix: str) -> dict[str, str]:
    """Tensors that the model does not use, each with the reason.

    Args:
        taken: names of the tensors that the model uses.
        known: names of the variables of the encoder and of all heads.
        prefix: of the checkpoint, for the error on unknown tensors in the scopes of the encoder and its own heads.
    """
    unused_tensors, unknown = {}, []
    for name in store.keys() - taken:
        base = name.rpartition("/")[0]  # the name of a slot is its variable's, a slash and one word more
        variable = base if base in store else name
        if variable in known - taken:
            pooler = variable.startswith("bert/pooler/")
            unused_tensors[name] = "the model has no pooler" if pooler else "belongs to another head"
        elif base in store:
            unused_tensors[name] = "training state other than m and v of BERT's Adam"
        elif variable.startswith(("bert/", "cls/")):
            unknown.append(name)
        else:
            number = not store[name].shape
            unused_tensors[name] = "a number of the training, not a weight" if number else "the head of another project"
    if unknown:
        shown = ", ".join(sorted(unknown))
        raise DataError(f"{prefix} does not hold the model that {configs.FILE} describes: unknown {shown}")
    return dict(sorted(unused_tensors.items()))


def _deviations(checkpoint: Checkpoint) -> list[str]:
    """Warnings on values that google-research/bert would compute differently, and on made-up variables."""
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    warnings: list[str] = []
    if not config.pooler:
        warnings.append(
            "bert/pooler/dense: made up of zeros, as google-research/bert always has a pooler; nothing here reads it"
        )
    if config.activation == "erf_gelu":
        # The largest difference between the two curves, at +-2.7.
        warnings.append(
            "this model's gelu is exact (erf), google-research/bert's is the tanh approximation: each value differs by "
            "up to 4.7e-4"
        )
    if config.layer_norm_epsilon != _EPSILON:
        epsilon = config.layer_norm_epsilon
        warnings.append(
            f"google-research/bert's LayerNorm epsilon is {_EPSILON:g}, this model's is {epsilon:g}: there, normalised "
            f"values are larger by the factor 1 + {epsilon / 2:.1g} / variance"
        )
    others = {tensor.dtype for tensor in checkpoint.tensors.values()} - {"float32"}
    if others:
        kinds = ", ".join(sorted(others))
        warnings.append(
            f"google-research/bert's graph is float32 and cannot restore {kinds}: convert with --dtype=float32 for it"
        )
    if tokenizer and not isinstance(tokenizer, Tokenizer):
        warnings.append(f"google-research/bert has no tokenizer for {tokenizer.FILES[0]}")
    elif tokenizer and (tokenizer.strip_accents != tokenizer.lower_case or not tokenizer.split_cjk):
        warnings.append(
            "google-research/bert's tokenizer strips accents if it lower-cases, and splits Chinese characters: its "
            "ids differ from those under this model's settings"
        )
    return warnings
