"""google-research/bert's layout: bert_config.json, bert_model.ckpt.*, vocab.txt (its modeling.py and run_*.py)."""

import dataclasses
import os

import numpy as np

from bert_tf.checkpoints.formats import google_config as configs
from bert_tf.checkpoints.stored_model import Checkpoint
from bert_tf.checkpoints.tensor import Tensor, tensor_of
from bert_tf.checkpoints.tensor_files.bundles import choose, holds_objects, open_bundle, prefixes, stem, write_bundle
from bert_tf.checkpoints.weight_map import (
    TRANSPOSED,
    TensorMapping,
    names_of,
    read_mapped,
    tf_dense,
    tf_norm,
    write_mapped,
)
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_json_object, write_json
from bert_tf.model.variables import ON_POOLED, OWN
from bert_tf.text.casing import guess_tokenizer
from bert_tf.text.vocabulary import check_size, read_vocabulary, write_vocabulary

FORMAT = "google"

_VOCABULARY, _CHECKPOINT = "vocab.txt", "bert_model.ckpt"
_EPSILON = 1e-12  # of tf.contrib.layers.layer_norm, which modeling.py uses
_SLOTS = {"m": "adam_m", "v": "adam_v"}  # AdamWeightDecayOptimizer of optimization.py
_STEP = "global_step"


def recognises(path):
    """Whether `path` is a directory of this layout, or the prefix of a checkpoint of named variables."""
    if not os.path.isdir(path):
        prefix = stem(path)
        return os.path.exists(f"{prefix}.index") and not holds_objects(prefix)
    files = set(os.listdir(path))
    # With the config of another format alone, a checkpoint in it, or a file called so, is not what the directory is.
    if "saved_model.pb" in files or ("config.json" in files and configs.FILE not in files):
        return False
    if any(file.endswith(".index") for file in files):
        return bool(prefixes(path, objects=False))
    return configs.FILE in files and "config.json" not in files


def read(path, allow_pickle=False):
    """Opens a checkpoint.

    Args:
        path: a directory: its bert_model.ckpt, the one that its file `checkpoint` names, or its only one; or the prefix
            of a checkpoint, with bert_config.json and vocab.txt beside it.

    Returns:
        Checkpoint. Its head is found by the names of its variables.

    Raises:
        DataError: several checkpoints, none, or one that is damaged; an activation that is not known; a vocabulary of
            another length; tensors that are missing, misshapen or unknown; all by name.
    """
    prefix, warnings = _prefix(path)
    folder = os.path.dirname(prefix)
    file, vocabulary = os.path.join(folder, configs.FILE), os.path.join(folder, _VOCABULARY)
    if not os.path.exists(file):
        raise DataError(
            f"{prefix}: no {configs.FILE} beside it; copy {configs.FILE} and {_VOCABULARY} there from the checkpoint "
            "that its training began with"
        )
    settings = read_json_object(file)
    store = open_bundle(prefix)
    described = configs.OURS in settings
    if described:
        checkpoint = Checkpoint(tensors={}, **configs.read_described(settings, file))
    else:
        checkpoint = Checkpoint(config=configs.read_config(settings, file, f"{prefix}.meta", warnings), tensors={})
    checkpoint.warnings += warnings
    checkpoint.source_metadata = checkpoint.source_metadata or {"format": FORMAT, "settings": configs.kept(settings)}
    if not described or checkpoint.tokenizer_settings:
        checkpoint.pieces = read_vocabulary(vocabulary)
        check_size(checkpoint.pieces, checkpoint.config.vocab_size, vocabulary)
    if not described:
        checkpoint.tokenizer_settings, note = guess_tokenizer(checkpoint.pieces)
        checkpoint.warnings.append(note)
    if checkpoint.task:
        _check_head(checkpoint, _head(store), file, prefix)
    else:
        _find_head(checkpoint, store, described)
    table, shapes = weight_map(checkpoint.config), checkpoint.shapes()
    slots = _slot_map(table)
    there = {
        f"{name}/{slot}": shape
        for name, shape in shapes.items()
        for slot in _SLOTS
        if any(one in store for one in slots[f"{name}/{slot}"].names)
    }
    checkpoint.tensors = read_mapped(table, shapes, store, prefix)
    checkpoint.slots = read_mapped(slots, there, store, prefix)
    checkpoint.step = _step(store, prefix)
    taken = names_of(table, shapes) | names_of(slots, there) | {_STEP}
    checkpoint.unused_tensors = _unused_tensors(store, taken, names_of(table, table), prefix)
    return checkpoint


def write(checkpoint, path):
    """Writes bert_config.json, bert_model.ckpt.* and vocab.txt.

    Adds to the checkpoint's warnings what google-research/bert would compute otherwise.

    Args:
        checkpoint: Checkpoint.
        path: of an empty directory.

    Returns:
        dict path of a variable, or of a slot -> its names in the file, joined by " + ".

    Raises:
        ConfigError: google-research/bert has no mapping for a part of the model.
        OSError: the files can not be written.
    """
    config = checkpoint.config
    _check_writable(config)
    if checkpoint.head in OWN:
        raise ConfigError(
            f"the head is {checkpoint.head}, which google-research/bert has not; write the format bert_tf instead"
        )
    table = weight_map(config)
    slots = _slot_map(table)
    store = write_mapped(table, checkpoint.tensors) | write_mapped(slots, checkpoint.slots)
    if not config.pooler:
        store |= _no_pooler(config)
    if checkpoint.step is not None:
        store[_STEP] = tensor_of(np.array(checkpoint.step, np.int64), _STEP)
    write_bundle(os.path.join(path, _CHECKPOINT), store)
    if checkpoint.pieces:
        write_vocabulary(os.path.join(path, _VOCABULARY), checkpoint.pieces)
    # Google's own other settings go back to their mapping, anybody else's stay in the description.
    google = checkpoint.source_metadata.get("format") == FORMAT
    described = dataclasses.replace(checkpoint, source_metadata={}) if google else checkpoint
    settings = configs.written(described, checkpoint.source_metadata["settings"] if google else {})
    write_json(os.path.join(path, configs.FILE), settings)
    checkpoint.warnings += _deviations(checkpoint)
    written = {name: table[name] for name in checkpoint.tensors} | {name: slots[name] for name in checkpoint.slots}
    return {name: " + ".join(mapping.names) for name, mapping in written.items()}


def _prefix(path):
    """Prefix of the checkpoint that a path stands for, and warnings."""
    if not os.path.isdir(path):
        return stem(path), []
    own, found = os.path.join(path, _CHECKPOINT), prefixes(path, objects=False)
    if not found:
        raise DataError(f"{path}: no checkpoint; expected {_CHECKPOINT}.index and {_CHECKPOINT}.data-*")
    return (own, []) if own in found else choose(path, found)


def weight_map(config):
    """dict path of a variable of the encoder or of any head -> TensorMapping."""
    table = {
        "embeddings/word_embeddings": TensorMapping(("bert/embeddings/word_embeddings",)),
        "embeddings/position_embeddings": TensorMapping(("bert/embeddings/position_embeddings",)),
        "embeddings/type_embeddings": TensorMapping(("bert/embeddings/token_type_embeddings",)),
        **tf_norm("embeddings/norm", "bert/embeddings/LayerNorm"),
        **tf_dense("pooler", "bert/pooler/dense"),
        **tf_dense("masked_lm/transform", "cls/predictions/transform/dense"),
        **tf_norm("masked_lm/norm", "cls/predictions/transform/LayerNorm"),
        "masked_lm/bias": TensorMapping(("cls/predictions/output_bias",)),
        **_output("next_sentence", "cls/seq_relationship/"),
        **_output("span", "cls/squad/"),
        **_output("classifier", ""),  # run_classifier.py opens no scope
    }
    for index in range(config.num_layers):
        ours, theirs = f"layer_{index}", f"bert/encoder/layer_{index}"
        attention = f"{theirs}/attention/self"
        table |= tf_dense(f"{ours}/attention/qkv", f"{attention}/query", f"{attention}/key", f"{attention}/value")
        table |= tf_dense(f"{ours}/attention/output", f"{theirs}/attention/output/dense")
        table |= tf_norm(f"{ours}/attention_norm", f"{theirs}/attention/output/LayerNorm")
        table |= tf_dense(f"{ours}/intermediate", f"{theirs}/intermediate/dense")
        table |= tf_dense(f"{ours}/output", f"{theirs}/output/dense")
        table |= tf_norm(f"{ours}/output_norm", f"{theirs}/output/LayerNorm")
    return table


def _output(ours, scope):
    # These heads' scripts make their own variables, [outputs, inputs], where the rest is tf.layers.dense.
    kernel = TensorMapping((f"{scope}output_weights",), TRANSPOSED)
    return {f"{ours}/kernel": kernel, f"{ours}/bias": TensorMapping((f"{scope}output_bias",))}


def _slot_map(table):
    """dict "PATH/m" and "PATH/v" -> TensorMapping of Adam's slots."""
    return {
        f"{path}/{slot}": TensorMapping(tuple(f"{name}/{theirs}" for name in mapping.names), mapping.layout)
        for path, mapping in table.items()
        for slot, theirs in _SLOTS.items()
    }


def _check_head(checkpoint, found, file, prefix):
    # The output of taggers and choosers is called as a classifier's.
    expected = "classification" if checkpoint.head in ("tagging", "multiple_choice") else checkpoint.head
    if expected and found != expected:
        raise DataError(
            f"{file}: the part {configs.OURS!r} describes the task {checkpoint.task['name']!r}, but {prefix} holds "
            f"{'variables of ' + found if found else 'no head'}; remove that part if these belong together"
        )


def _find_head(checkpoint, store, described):
    """Sets the task and whether there is a pooler by the variables that there are."""
    found, config = _head(store), checkpoint.config
    # A model without a pooler is written with one of zeros, which counts once somebody has trained a head on it.
    pooler = config.pooler if described else any(name.startswith("bert/pooler/") for name in store)
    checkpoint.config = dataclasses.replace(config, pooler=pooler or found in ON_POOLED)
    if not found:
        return
    name, settings = found, {"max_length": config.max_position_embeddings}
    if found == "classification":
        shapes = [store[one].shape for one in ("output_weights", "output_bias") if one in store]
        labels = [str(index) for index in range(max(shape[0] if shape else 1 for shape in shapes))]
        settings["labels"] = labels
        if len(labels) == 1:
            name, meaning = "regression", "the one output is taken for a regression"
        else:
            meaning = f"the {len(labels)} labels are called by their numbers"
        checkpoint.warnings.append(f"{meaning}: google-research/bert does not save what they are")
    checkpoint.task = {"name": name, "settings": settings}


def _head(names):
    """Name of the head that variables of these names make; a fine-tuned one if there are several."""
    if any(name.startswith("cls/squad/") for name in names):
        return "question_answering"
    if "output_weights" in names or "output_bias" in names:
        return "classification"
    masked_lm = any(name.startswith("cls/predictions/") for name in names)
    next_sentence = any(name.startswith("cls/seq_relationship/") for name in names)
    if masked_lm and next_sentence:
        return "pretraining"
    return "masked_lm" if masked_lm else "next_sentence" if next_sentence else None


def _step(store, prefix):
    if _STEP not in store:
        return None
    if store[_STEP].shape:
        raise DataError(f"{prefix}: {_STEP} is {list(store[_STEP].shape)}; expected one number")
    return int(store[_STEP].read())


def _unused_tensors(store, taken, known, prefix):
    """dict name -> why, of the tensors that the model has no mapping for.

    Args:
        known: names of the variables of the encoder and of all heads.

    Raises:
        DataError: naming those that are neither another head's nor a training state.
    """
    unused_tensors, unknown = {}, []
    for name in store.keys() - taken:
        base = name.rpartition("/")[0]  # a slot is called by its variable's name and one word more
        variable = base if base in store else name
        if variable in known - taken:
            pooler = variable.startswith("bert/pooler/")
            unused_tensors[name] = "the model has no pooler" if pooler else "of another head than the model's"
        elif base in store:
            unused_tensors[name] = "training state, and not the m or v of BERT's Adam"
        elif not store[name].shape and not name.startswith(("bert/", "cls/")):
            unused_tensors[name] = "a number of the training, no weight"
        else:
            unknown.append(name)
    if unknown:
        unknown = ", ".join(sorted(unknown))
        raise DataError(f"{prefix} does not hold the model that {configs.FILE} describes: unknown {unknown}")
    return dict(sorted(unused_tensors.items()))


def _check_writable(config):
    """Raises ConfigError for what google-research/bert's graph has no mapping for."""
    for field, misfit, what in (
        ("attention", config.attention != "bidirectional", "sees all of a row"),
        ("norm", config.norm != "post", "normalises after each sublayer"),
        ("position_offset", config.position_offset, "begins with row 0 of the position embedding"),
        ("type_vocab_size", not config.type_vocab_size, "always adds a type embedding"),
    ):
        if misfit:
            raise ConfigError(
                f"model.{field} is {getattr(config, field)!r}, and google-research/bert {what}; write the model in the "
                "format bert_tf instead"
            )


def _no_pooler(config):
    size = config.hidden_size

    def zeros(*shape):
        return Tensor(shape, "float32", lambda: np.zeros(shape, np.float32), "zeros")

    return {"bert/pooler/dense/kernel": zeros(size, size), "bert/pooler/dense/bias": zeros(size)}


def _deviations(checkpoint):
    """Sentences on what google-research/bert would compute otherwise, or was given to find its variables."""
    config, tokenizer, warnings = checkpoint.config, checkpoint.tokenizer_settings, []
    if not config.pooler:
        warnings.append(
            "bert/pooler/dense is zeros, made up: google-research/bert always has it, nothing here reads it"
        )
    if config.activation == "erf_gelu":
        # The largest difference of the two curves, at +-2.7.
        warnings.append("this model's gelu is erf, google-research/bert's is tanh: each value differs by up to 4.7e-4")
    if config.layer_norm_epsilon != _EPSILON:
        epsilon = config.layer_norm_epsilon
        warnings.append(
            f"google-research/bert adds {_EPSILON:g} to a variance where this model adds {epsilon:g}: its normalised "
            f"values are larger by {epsilon / 2:.1g} / variance of themselves"
        )
    others = {tensor.dtype for tensor in checkpoint.tensors.values()} - {"float32"}
    if others:
        kinds = ", ".join(sorted(others))
        warnings.append(
            f"google-research/bert's graph is float32 and does not restore {kinds}: convert the weights for it"
        )
    if tokenizer:
        lower_case, strip_accents = tokenizer.get("lower_case", True), tokenizer.get("strip_accents")
        if strip_accents not in (None, lower_case) or not tokenizer.get("split_cjk", True):
            warnings.append(
                "google-research/bert's tokenizer strips accents where it lower-cases, and splits Chinese characters: "
                "with this model's settings its ids differ"
            )
    return warnings
