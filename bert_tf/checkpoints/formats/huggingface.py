"""Hugging Face's format: config.json, model.safetensors, vocab.txt (transformers, models/bert and models/roberta).

The names of tensors are in `huggingface_families`, the settings in `huggingface_config`.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping

import numpy as np

from bert_tf.checkpoints import directory, tokenizer_files
from bert_tf.checkpoints.formats import huggingface_config as configs
from bert_tf.checkpoints.formats import sentence_modules
from bert_tf.checkpoints.formats.huggingface_families import other_family
from bert_tf.checkpoints.formats.huggingface_family import Family, reads_pooled
from bert_tf.checkpoints.stored_model import ELSEWHERE, Checkpoint, Report, Written
from bert_tf.checkpoints.tensor import Tensor, block_of_rows, tensor_of
from bert_tf.checkpoints.tensor_files.pytorch import check_allowed, open_pickled
from bert_tf.checkpoints.tensor_files.safetensors import open_sharded, open_tensors, write_tensors
from bert_tf.checkpoints.weight_map import first_names, names_of, read_mapped, write_mapped
from bert_tf.config import BertConfig
from bert_tf.config.embeddings import VECTORS
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import read_json, write_json
from bert_tf.model.head_table import HEADS, variable_shapes
from bert_tf.text import Tokenizer
from bert_tf.types import Json

FORMAT = "huggingface"

# Ends of names of constants that older releases saved: 0, 1, 2, ...; 0, 0, 0, ...; powers of the rotary base.
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids", "rotary_emb.inv_freq")


def recognises(path: str) -> bool:
    """Whether `path` is a directory in this format, or one whose modules.json names such a directory in it."""
    return os.path.exists(
        os.path.join(sentence_modules.encoder_folder(path), "config.json")
    ) and not directory.recognises(path)


def read(path: str, allow_pickle: bool = False) -> Checkpoint:
    """Opens a directory; the only tensors it reads are copies of others, to compare them with their originals.

    Args:
        path: directory.
        allow_pickle: read pytorch_model.bin if there are no safetensors.

    Returns:
        A Checkpoint with the head of the class that config.json names. If this project does not have that class, or
        none is named, it has the head that the tensors look like, or else no head. Tensors without a place in it are
        in `unused_tensors`.
    """
    root, path = path, sentence_modules.encoder_folder(path)
    file = os.path.join(path, "config.json")
    settings: Json = {**read_json(file, configs.Settings)}
    if activation := sentence_modules.activation_of_scores(root):
        settings |= configs.with_activation(settings, activation)
    family, config = configs.family_of(settings, file), configs.read_config(settings, file)
    tokenizer_config = tokenizer_files.read_config(path)
    tokenizer, warnings = tokenizer_files.read_tokenizer(
        path,
        tokenizer_config,
        config.vocab_size,
        default_class=settings.get("tokenizer_class") or family.tokenizer,
        # RoBERTa models without vocabulary have been written here; for BERT, the file was forgotten.
        required=not family.counts_padding and not configs.lacks_tokenizer(settings),
    )
    no_tokenizer = "" if tokenizer else "; ".join(warnings)
    padding = settings.get("pad_token_id")
    if tokenizer and padding is not None and padding != tokenizer.pad_id:
        effect = f"; positions count from {config.position_offset}, as it says" if family.counts_padding else ""
        warnings.append(
            f"tokenizer: pad_token_id in config.json is {padding}, and the tokenizer pads with {tokenizer.pad_id} "
            f"({tokenizer.special_names.pad}){effect}: correct the file that is wrong"
        )
    if sentence_modules.lower_cases(root) and tokenizer:
        if not isinstance(tokenizer, Tokenizer):
            warnings.append("tokenizer: do_lower_case beside modules.json is not applied, as it is not WordPiece")
        elif not tokenizer.lower_case:
            tokenizer = Tokenizer(tokenizer.vocab, **tokenizer.get_config() | {"lower_case": True})
            warnings.append("tokenizer: texts are lower-cased, as do_lower_case beside modules.json says, for all uses")
    warnings += configs.unread(settings)
    limit, positions = tokenizer_config.get("model_max_length"), config.max_position_embeddings
    max_length = limit if type(limit) is int and 0 < limit < positions else positions
    weights, tensors = _open(path, allow_pickle)
    if claimed := other_family(family, tensors):
        other, name = claimed
        raise DataError(
            f"{weights}: the tensors are those of {other.stem} models, such as {name}, and model_type in config.json "
            f"is {family.model_type!r}; expected the config.json that was published with these weights"
        )
    store = _plain(tensors, family, weights)

    head, foreign, guess = configs.read_head(settings, family, store, warnings)
    no_head, read_model = "", functools.partial(_read_model, settings, family, file, config, store, weights, max_length)
    try:
        model = read_model(head)
        unused = model.report.unused_tensors
        if foreign and head and HEADS[head].labels and unused:
            raise DataError(f"what its classifier reads is not known, as it also has {', '.join(unused)}")
        found = f"its tensors are those of the head {head}" if head else "only the encoder is read"
    except DataError as error:
        found, no_head = f"only the encoder is read: {error}", "" if guess else str(error)
        head, model = None, read_model(None)
    if guess or no_head:
        warnings.append(f"head: {guess}; {found}" if guess else f"head: {found}")
    try:
        vectors, layers = sentence_modules.read(root, config, max_length, allow_pickle) or (None, {})
        no_vectors = ""
    except DataError as error:
        vectors, layers, no_vectors = None, {}, str(error)
        warnings.append(f"vectors: what the model was published for is left out: {error}")
    unused = model.report.unused_tensors
    if foreign:
        why = f"{'another part of ' if head else ''}the head of {foreign}, which bert_tf does not have"
        unused = dict.fromkeys(unused, why)
    return dataclasses.replace(
        model,
        tensors=model.tensors | layers,
        vectors=vectors,
        tokenizer=tokenizer,
        report=Report((*warnings, *model.report.warnings), unused, no_head, no_tokenizer, no_vectors),
        source_metadata={
            "format": FORMAT,
            "model_type": settings["model_type"],
            "config": configs.other_settings(settings),
            "tokenizer_config": tokenizer_files.other_settings(tokenizer_config),
        },
    )


def _read_model(
    settings: Json,
    family: Family,
    file: str,
    config: BertConfig,
    tensors: Mapping[str, Tensor],
    weights: str,
    max_length: int,
    head: str | None,
) -> Checkpoint:
    """The encoder and a head, without tokenizer.

    Args:
        settings: content of config.json.
        family: of the model.
        file: path of config.json, for errors.
        config: of the encoder; whether it has a pooler is read from the tensors.
        tensors: by name, without the encoder's prefix.
        weights: path of their file, for errors.
        max_length: of the task.
        head: a key of the family's heads.
    """
    store, labels, warnings, copies = dict(tensors), None, list[str](), family.copies(head)
    for copy, original in copies.items():
        if copy in store and original not in store:
            store[original] = store.pop(copy)
    if "pooler" in family.heads[head].names:
        warnings.append("pooler: the first of the classifier's two layers, which has the same shape and position")
    table = family.weight_map(config, head)
    pooler = names_of(table, [path for path in table if path.startswith("pooler/")])
    config = dataclasses.replace(config, pooler=reads_pooled(head) or not pooler.isdisjoint(store))
    if head and HEADS[head].labels:
        bias = store.get(table["classifier/bias"].names[0])
        labels = configs.read_labels(settings, file, bias.size if bias else None, warnings)
    shapes = variable_shapes(config, head, len(labels) if labels else None)
    found = read_mapped(table, shapes, store, weights)
    unused = sorted(store.keys() - names_of(table, shapes) - copies.keys())
    unused = [name for name in unused if not name.endswith(_BUFFERS)]
    words = family.names["embeddings/word_embeddings"]
    prefix = store[words].source.removesuffix(words)  # a class may have another part called encoder
    # An unknown tensor of the encoder would change what it computes; all others belong to heads.
    unknown = [store[name].source for name in unused if name.partition(".")[0] in family.beginnings]
    unknown = [source for source in unknown if source.startswith(prefix)]
    if unknown:
        raise DataError(f"{weights} does not hold the model that config.json describes: unknown {first_names(unknown)}")
    _check_copies(copies, store, weights, warnings)
    return Checkpoint(
        config=config,
        tensors=found,
        task=configs.read_task(settings, head, labels, max_length, warnings) if head else None,
        report=Report(tuple(warnings), {store[name].source: "not part of a model of this class" for name in unused}),
    )


def write(checkpoint: Checkpoint, path: str) -> Written:
    """Writes a directory that Transformers opens, into an empty directory; config.json comes last."""
    family, config, head = configs.family_for(checkpoint), checkpoint.config, checkpoint.head
    names, report = sentence_modules.write(path, checkpoint)
    warnings, unused = list(report.warnings), dict(report.unused_tensors)
    tensors = {name: one for name, one in checkpoint.tensors.items() if not name.startswith(VECTORS)}
    table = family.weight_map(config, head, family.prefix if head else "")
    if not family.has_pooler(head):
        pooler = [name for name in tensors if name.startswith("pooler/")]
        unused |= dict.fromkeys(pooler, f"{family.class_name(head)} of Transformers has no pooler")
        tensors = {name: tensor for name, tensor in tensors.items() if name not in pooler}
    if not head and family.has_pooler(head) and config.pooler != family.adds_pooler:
        what = "a pooler" if config.pooler else "no pooler"
        warnings.append(f"{what}: open it with AutoModel.from_pretrained(..., add_pooling_layer={config.pooler})")
    if family.makes_up_types(config):
        dtype = tensors["embeddings/word_embeddings"].dtype
        zeros = np.zeros((1, config.embedding_width), dtype)
        tensors["embeddings/type_embeddings"] = tensor_of(zeros, "embeddings/type_embeddings")
        warnings.append("type embeddings: one row of zeros, as the model has none")
    unused |= dict.fromkeys(checkpoint.moments, "Transformers' models hold no optimizer state")
    if checkpoint.step is not None:
        unused["step"] = "Transformers' models hold no number of steps"

    write_tensors(os.path.join(path, "model.safetensors"), write_mapped(table, tensors))
    warnings += _write_settings(checkpoint, family, path)
    ours = [name for name in tensors if name in checkpoint.tensors]
    names = {name: " + ".join(table[name].names) for name in ours} | names
    return Written(names, Report(tuple(warnings), unused))


def describe(checkpoint: Checkpoint, path: str) -> list[str]:
    """Writes a directory as `write` does, but without the weights of the model, for programs that have its graph.

    If Transformers has no class for the model, config.json names none, but a family, sizes and labels.

    Returns:
        Warnings, such as what is missing.
    """
    named, warnings = True, list[str]()
    try:
        family = configs.family_for(checkpoint)
    except ConfigError as error:
        family, named = configs.nearest_family(checkpoint), False
        warnings.append(f"config.json names no class of a model: {str(error).removesuffix(ELSEWHERE)}")
    warnings += sentence_modules.write(path, checkpoint).report.warnings
    try:
        warnings += _write_settings(checkpoint, family, path, named=named)
    except ConfigError as error:
        assert checkpoint.tokenizer
        checkpoint.tokenizer.save(path)
        warnings.append(f"the tokenizer's files are bert_tf's own: {str(error).removesuffix(ELSEWHERE)}")
        _write_config(checkpoint, family, path, named=named)
    return warnings


def _write_settings(checkpoint: Checkpoint, family: Family, path: str, *, named: bool = True) -> list[str]:
    """Writes the files of the tokenizer and, after them, config.json; returns warnings.

    `named` is as for `configs.to_settings`.
    """
    warnings = ["no tokenizer was written, as the model has none; copy its files from the source"]
    if checkpoint.tokenizer:
        others = _settings_of_source(checkpoint, "tokenizer_config")
        warnings = tokenizer_files.write_tokenizer(path, checkpoint.tokenizer, others, checkpoint.config, family.stem)
    _write_config(checkpoint, family, path, named=named)
    return warnings


def _write_config(checkpoint: Checkpoint, family: Family, path: str, *, named: bool) -> None:
    settings = configs.to_settings(checkpoint, family, _settings_of_source(checkpoint, "config"), named=named)
    write_json(os.path.join(path, "config.json"), settings)


def _settings_of_source(checkpoint: Checkpoint, part: str) -> Json:
    """The settings to write back that a checkpoint in this format was read with; {} if it came from elsewhere."""
    source = checkpoint.source_metadata
    return source.get(part, {}) if source.get("format") == FORMAT else {}


def _open(path: str, allow_pickle: bool) -> tuple[str, dict[str, Tensor]]:
    """The file that holds or lists the tensors, and the tensors by name."""
    readers: dict[str, Callable[[str], dict[str, Tensor]]] = {
        "model.safetensors": open_tensors,
        "model.safetensors.index.json": open_sharded,
        "pytorch_model.bin": open_pickled,
        "pytorch_model.bin.index.json": functools.partial(open_sharded, open_file=open_pickled),
    }
    for name, reader in readers.items():
        file = os.path.join(path, name)
        if os.path.exists(file):
            if name.startswith("pytorch_model"):
                check_allowed(file, allow_pickle)
            return file, reader(file)
    for name, option in (("tf_model.h5", "from_tf"), ("flax_model.msgpack", "from_flax")):
        if os.path.exists(os.path.join(path, name)):
            raise DataError(
                f"{path}: the weights are in {name} only; expected model.safetensors: convert them with Transformers "
                f"before 5 (from_pretrained(..., {option}=True), then save_pretrained)"
            )
    raise DataError(
        f"{path}: no weights; expected model.safetensors: download it, or save it with Transformers (save_pretrained)"
    )


def _plain(tensors: Mapping[str, Tensor], family: Family, file: str) -> dict[str, Tensor]:
    """Renames tensors: drops the encoder's prefix, if any, and gives those of older files their present names."""
    store: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        names = family.plain_names(name)
        if not tensor.shape or tensor.shape[0] % len(names):
            names = names[:1]  # misshapen, which is found where it is read
        for index, plain in enumerate(names):
            part = block_of_rows(tensor, index, len(names))
            if plain in store and not _equal(store[plain], part):
                raise DataError(
                    f"{file}: {store[plain].source} and {name} name the same tensor and differ; expected one: "
                    "use the file that the training wrote"
                )
            store[plain] = part
    return store


def _check_copies(copies: Mapping[str, str], store: Mapping[str, Tensor], file: str, warnings: list[str]) -> None:
    """Raises DataError for a copy that differs from its original."""
    for copy_name, original_name in copies.items():
        if copy_name not in store:
            continue
        copy, original = store[copy_name], store[original_name]
        if not _equal(copy, original):
            raise DataError(
                f"{file}: {copy.source} is not equal to {original.source}; expected tied output embeddings: a model "
                "trained without them cannot be read"
            )
        warnings.append(f"{copy.source} is a copy of {original.source}")


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and np.array_equal(one.read(), other.read(), equal_nan=True)
