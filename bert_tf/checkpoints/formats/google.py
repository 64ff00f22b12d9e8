"""Checkpoints of google-research/bert, albert and electra: bert_config.json, bert_model.ckpt.*, vocab.txt.

Names are those of their modeling.py and run_*.py. Only google-research/bert's are written.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.checkpoints.formats import google_config as configs
from bert_tf.checkpoints.formats.google_families import (
    BERT,
    CONFIGS,
    GENERATOR,
    HEAD_COLUMNS,
    HEAD_VARIABLES,
    Family,
    family_of,
)
from bert_tf.checkpoints.stored_model import ELSEWHERE, Checkpoint, Report, Written, check_writable
from bert_tf.checkpoints.tensor import Tensor, number, tensor_of
from bert_tf.checkpoints.tensor_files import bundles
from bert_tf.checkpoints.weight_map import WeightMap, first_names, names_of, read_mapped, write_mapped
from bert_tf.errors import ConfigError, DataError, located
from bert_tf.files import read_json, write_json
from bert_tf.model.head_table import HEADS
from bert_tf.text import BaseTokenizer, Tokenizer
from bert_tf.text.sentence_piece import albert_tokenizer, read_model
from bert_tf.text.vocabulary import check_size, guess_tokenizer, read_vocabulary
from bert_tf.types import Json

FORMAT = "google"

_VOCABULARY, _CHECKPOINT = "vocab.txt", "bert_model.ckpt"
_EPSILON = 1e-12  # of tf.contrib.layers.layer_norm, which modeling.py uses
_MOMENTS = {"m": "adam_m", "v": "adam_v"}  # AdamWeightDecayOptimizer of optimization.py
_STEP = "global_step"
# The heads that can be written: those of the scripts, and others with the variables of run_classifier.py's.
_WRITTEN = [name for name, head in HEADS.items() if head.parts and head.parts <= BERT.parts]


def recognises(path: str) -> bool:
    """Whether `path` is a directory in this format, the prefix of a name-based checkpoint, or its generator."""
    path, _ = _split(path)
    if not os.path.isdir(path):
        prefix = bundles.stem(path)
        return os.path.exists(f"{prefix}.index") and not bundles.holds_objects(prefix)
    files = set(os.listdir(path))
    # With only another format's config, the directory is of that format, whatever *.index files are in it.
    if "saved_model.pb" in files or ("config.json" in files and files.isdisjoint(CONFIGS)):
        return False
    if any(file.endswith(".index") for file in files):
        return bool(bundles.prefixes(path, objects=False))
    return not files.isdisjoint(CONFIGS) and "config.json" not in files


def _split(path: str) -> tuple[str, bool]:
    """The path of a checkpoint, and whether its generator is meant: PATH/generator, which does not exist."""
    folder, name = os.path.split(path)
    generator = name == GENERATOR and not os.path.exists(path) and not os.path.exists(f"{path}.index")
    return (folder, True) if generator else (path, False)


def read(path: str, allow_pickle: bool = False) -> Checkpoint:
    """Opens a checkpoint; the names of the variables determine its head.

    Args:
        path: the prefix of a checkpoint, with bert_config.json and vocab.txt beside it; or a directory, for its
            bert_model.ckpt, else the checkpoint that its file `checkpoint` names, else its only one. Either may be
            followed by "/generator", for that of an ELECTRA instead of its discriminator.
        allow_pickle: not used, as this format has no pickled files.
    """
    path, generator = _split(path)
    prefix, warnings = bundles.find_prefix(path, objects=False, preferred=_CHECKPOINT)
    store = bundles.open_bundle(prefix)
    family = family_of(store, generator)
    if generator and family.scope != f"{GENERATOR}/":
        raise DataError(f"{os.path.join(path, GENERATOR)}: no generator in this checkpoint; load {path}")
    folder = os.path.dirname(prefix)
    file = os.path.join(folder, family.config) if family.config else prefix
    if not family.config:
        settings = family.sizes(store, prefix)
        warnings.append(
            f"attention: {settings['num_attention_heads']} heads, one for each {HEAD_COLUMNS} columns, as in "
            f"google-research/{family.name}, whose checkpoints do not hold the number"
        )
    elif os.path.exists(file):
        settings = read_json(file, Json)
    else:
        vocabulary = f"*.model or {_VOCABULARY}" if family.sentence_piece else _VOCABULARY
        raise DataError(
            f"{prefix}: no {family.config} beside it; copy {family.config} and {vocabulary} there from the checkpoint "
            "that its training started from"
        )
    has_description = configs.OURS in settings
    if has_description:
        checkpoint = configs.read_description(settings, file)
    else:
        checkpoint = Checkpoint(
            config=configs.read_config(settings, file, family, f"{prefix}.meta", warnings), tensors={}
        )
    others = {"format": FORMAT, "settings": configs.other_settings(settings) if family is BERT else {}}
    checkpoint = dataclasses.replace(checkpoint, source_metadata=checkpoint.source_metadata or others)
    if not has_description:
        tokenizer, note = _tokenizer(folder, family, checkpoint.config.vocab_size)
        checkpoint = dataclasses.replace(checkpoint, tokenizer=tokenizer)
        warnings.append(note)
    checkpoint = checkpoint.reported(*warnings)
    table = family.weight_map(checkpoint.config.num_layers)
    if not checkpoint.task:
        checkpoint = _with_head(checkpoint, store, table, family, has_description)
    known = names_of(table, table)
    strange = [
        name
        for name in store
        if name.startswith(family.head_scopes) and known.isdisjoint((name, name.rpartition("/")[0]))  # or a moment
    ]
    if strange and checkpoint.task:
        checkpoint = checkpoint.without_head(_describe(prefix, family, strange))
    checkpoint = checkpoint.with_tensors(table, store, prefix)
    shapes = checkpoint.shapes()
    moments = _moment_map(table)
    saved = {
        f"{name}/{moment}": shape
        for name, shape in shapes.items()
        for moment in _MOMENTS
        if any(found in store for found in moments[f"{name}/{moment}"].names)
    }
    taken = names_of(table, shapes) | names_of(moments, saved) | {_STEP}
    return dataclasses.replace(
        checkpoint,
        moments=read_mapped(moments, saved, store, prefix),
        step=number(store[_STEP], prefix) if _STEP in store else None,
    ).reported(unused_tensors=_unused_tensors(store, taken, table, family, prefix))


def write(checkpoint: Checkpoint, path: str) -> Written:
    """Writes bert_config.json, bert_model.ckpt.* and vocab.txt into an empty directory.

    Raises:
        OSError: the files cannot be written.
    """
    config = checkpoint.config
    pooler = {"pooler_activation": "tanh"} if config.pooler else {}
    check_writable(
        checkpoint, "google-research/bert", _WRITTEN, position_offset=0, embedding_size=0, shared_layers=False, **pooler
    )
    if not config.type_vocab_size:
        raise ConfigError(
            f"model.type_vocab_size is 0, and google-research/bert always adds a type embedding{ELSEWHERE}"
        )
    if config.activation == "silu":
        raise ConfigError(f"model.activation is 'silu', which google-research/bert does not have{ELSEWHERE}")
    table, tensors = BERT.weight_map(config.num_layers), checkpoint.tensors | checkpoint.moments
    report = Report()
    if checkpoint.vectors and checkpoint.vectors.dense:
        layers = checkpoint.vectors.shapes(config.hidden_size)
        report = Report(
            ("vectors: how those of sentences are computed is not written, as it has a dense layer",),
            dict.fromkeys(layers, "google-research/bert's format has no layers for vectors"),
        )
        checkpoint = dataclasses.replace(checkpoint, vectors=None)
        tensors = {name: tensor for name, tensor in tensors.items() if name not in layers}
    table |= _moment_map(table)
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
    names = {name: " + ".join(table[name].names) for name in tensors}
    return Written(names, report + Report(tuple(_deviations(checkpoint))))


def _moment_map(table: WeightMap) -> WeightMap:
    """The weight map of Adam's moments, "PATH/m" and "PATH/v"."""
    return {
        f"{path}/{moment}": dataclasses.replace(mapping, names=tuple(f"{name}/{theirs}" for name in mapping.names))
        for path, mapping in table.items()
        for moment, theirs in _MOMENTS.items()
    }


def _tokenizer(folder: str, family: Family, vocab_size: int) -> tuple[BaseTokenizer, str]:
    """The tokenizer beside a checkpoint, and what is guessed of it."""
    file = os.path.join(folder, _VOCABULARY)
    models = sorted(name for name in os.listdir(folder or ".") if name.endswith(".model"))
    if family.sentence_piece and not os.path.exists(file):
        if len(models) != 1:
            raise DataError(
                f"{folder or '.'}: {', '.join(models) or 'no .model file'}; expected one *.model, or {_VOCABULARY}"
            )
        file = os.path.join(folder, models[0])
        model = read_model(file)
        with located(file):
            tokenizer = albert_tokenizer(model)
        check_size(tokenizer.vocab, vocab_size, file)
        return tokenizer, "texts are lower-cased and lose accents, as by google-research/albert's defaults"
    pieces = read_vocabulary(file)
    check_size(pieces, vocab_size, file)
    settings, note = guess_tokenizer(pieces)
    return Tokenizer(pieces, **settings), note


def _with_head(
    checkpoint: Checkpoint, store: Mapping[str, Tensor], table: WeightMap, family: Family, has_description: bool
) -> Checkpoint:
    """With the task and the pooler that the names of the variables tell."""
    parts = {path.partition("/")[0] for path, mapping in table.items() if not store.keys().isdisjoint(mapping.names)}
    found = next((name for name, head in HEADS.items() if head.parts and head.parts <= parts), None)
    config = checkpoint.config
    settings: Json = {"max_length": config.max_position_embeddings}
    # A model without a pooler is written with a pooler of zeros, which is used if a head has been trained on it since.
    pooler = config.pooler if has_description else "pooler" in parts
    config = dataclasses.replace(config, pooler=pooler or (found is not None and HEADS[found].pooled))
    checkpoint = dataclasses.replace(checkpoint, config=config)
    ours = (family.scope, *family.head_scopes, *HEAD_VARIABLES.values())
    others = [name for name, tensor in store.items() if tensor.shape and not name.startswith(ours)]
    if found == "classification" and others:
        return checkpoint.reported(
            f"head: only the encoder is read: what the classifier reads is not known, as there is also {others[0]}"
        )
    name = found
    if found == "classification":
        shapes = [store[output].shape for output in ("output_weights", "output_bias") if output in store]
        count = max(shape[0] if shape else 1 for shape in shapes)
        assumption = f"labels: named 0 to {count - 1}"
        if count == 1:
            name, assumption = "regression", "task regression: assumed, as there is one output"
        checkpoint = checkpoint.reported(f"{assumption}; google-research/bert does not save labels")
        settings["labels"] = [str(index) for index in range(count)]
    return dataclasses.replace(checkpoint, task={"name": name, "settings": settings} if name else None)


def _unused_tensors(
    store: Mapping[str, Tensor], taken: set[str], table: WeightMap, family: Family, prefix: str
) -> dict[str, str]:
    """Tensors that the model does not use, each with the reason.

    Args:
        store: all tensors.
        taken: names of the tensors that the model uses.
        table: of the encoder and of all heads.
        family: of the model.
        prefix: of the checkpoint, for the error on unknown tensors in the scope of the encoder.
    """
    known, poolers = names_of(table, table), names_of(table, [path for path in table if path.startswith("pooler/")])
    unused_tensors, unknown = {}, []
    for name in store.keys() - taken:
        base = name.rpartition("/")[0]  # the name of a moment is its variable's, a slash and one word more
        variable = base if base in store else name
        if other := next((what for start, what in family.others.items() if name.startswith(start)), None):
            unused_tensors[name] = other
        elif variable in known - taken:
            unused_tensors[name] = "the model has no pooler" if variable in poolers else "belongs to another head"
        elif base in store:
            unused_tensors[name] = "training state other than m and v of BERT's Adam"
        elif variable.startswith(family.scope):
            unknown.append(name)
        else:
            number = not store[name].shape
            unused_tensors[name] = "a number of the training, not a weight" if number else "the head of another project"
    if unknown:
        raise DataError(_describe(prefix, family, unknown))
    return dict(sorted(unused_tensors.items()))


def _describe(prefix: str, family: Family, unknown: Sequence[str]) -> str:
    """Error text for unknown variables of a checkpoint."""
    described = f"the model that {family.config} describes" if family.config else f"an {family.name.upper()}"
    return f"{prefix} does not hold {described}: unknown {first_names(sorted(unknown))}"


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
