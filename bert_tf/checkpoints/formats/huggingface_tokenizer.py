"""The tokenizer of a Hugging Face directory: vocab.txt or tokenizer.json, and tokenizer_config.json."""

import os
from collections.abc import Mapping
from typing import TypedDict

from bert_tf.config import BertConfig
from bert_tf.errors import DataError
from bert_tf.files import checked, read_json, write_json
from bert_tf.text import Tokenizer
from bert_tf.text.codepoints import SPECIAL_PIECES
from bert_tf.text.vocabulary import check_size, check_vocabulary, read_vocabulary
from bert_tf.types import Json

# Classes that handle text as BERT does, with or without "Fast" at the end; None is the default of a BERT model.
_BERT_CLASSES = {None, "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}
# Classes that follow tokenizer.json in everything.
_GENERIC_CLASSES = {"PreTrainedTokenizer", "TokenizersBackend"}
# Our setting -> (its name in tokenizer_config.json, its name in tokenizer.json, Transformers' default).
_SETTINGS: dict[str, tuple[str, str, bool | None]] = {
    "lower_case": ("do_lower_case", "lowercase", True),
    "strip_accents": ("strip_accents", "strip_accents", None),
    "split_cjk": ("tokenize_chinese_chars", "handle_chinese_chars", True),
}
_SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # in the order of SPECIAL_PIECES
# Of no use in another directory: old paths, and code that would be downloaded and run.
_NOT_KEPT = {"auto_map", "name_or_path", "tokenizer_file", "vocab_file"}


class _Config(TypedDict, total=False):
    do_lower_case: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    tokenizer_class: str | None
    added_tokens_decoder: dict[str, "_Token"] | None


class _Token(TypedDict):
    content: str


class _AddedToken(_Token):
    id: int


class _Model(TypedDict, total=False):
    type: str
    continuing_subword_prefix: str | None


class _Normalizer(TypedDict, total=False):
    type: str
    lowercase: bool
    strip_accents: bool | None
    handle_chinese_chars: bool


class _Library(TypedDict, total=False):
    model: _Model | None
    normalizer: _Normalizer | None
    pre_tokenizer: Json | None
    added_tokens: list[_AddedToken] | None
    post_processor: Json | None


def read_config(path: str) -> Json:
    """The content of tokenizer_config.json; empty if there is none."""
    file = os.path.join(path, "tokenizer_config.json")
    return {**read_json(file, _Config)} if os.path.exists(file) else {}


def _read_library(file: str) -> Json | None:
    """The content of tokenizer.json, with the types of its parts checked; None if there is no such file."""
    if not os.path.exists(file):
        return None
    library: Json = {**read_json(file, _Library)}
    model = library.get("model") or {}
    if model.get("type") == "WordPiece":  # other types list pieces with their scores
        checked(model.get("vocab") or {}, dict[str, int], file, "model.vocab")
    return library


def read_tokenizer(
    path: str, config: Json, vocab_size: int, *, default_class: str | None, required: bool
) -> tuple[Tokenizer | None, list[str]]:
    """Reads vocabulary and settings, as Transformers would use them.

    Args:
        path: directory.
        config: content of tokenizer_config.json.
        vocab_size: of the model.
        default_class: class of the tokenizer if `config` names none.
        required: whether it is an error if the directory has no tokenizer at all.

    Returns:
        The tokenizer (None if the ids do not come from a BERT tokenizer), and warnings.
    """
    vocab, fast = os.path.join(path, "vocab.txt"), os.path.join(path, "tokenizer.json")
    library = _read_library(fast)
    name = config.get("tokenizer_class", default_class)
    bare = name.removesuffix("Fast") if name else None
    reason = _foreign(path, library, bare, os.path.exists(vocab))
    if reason:
        return None, [f"tokenizer: none, as {reason}; the ids must come from the model's own tokenizer"]
    warnings: list[str] = []
    pieces, source = None, vocab
    if os.path.exists(vocab):
        pieces = read_vocabulary(vocab)
    if library:
        listed = _listed(library["model"].get("vocab") or {}, fast)
        differ = pieces is not None and pieces[: len(listed)] != listed
        if differ:
            warnings.append(
                "tokenizer: vocab.txt and tokenizer.json hold different pieces; tokenizer.json is used, as in "
                "Transformers"
            )
        if pieces is None or differ:
            pieces, source = listed, fast
    if pieces is None:
        if required:
            raise DataError(f"{path}: neither vocab.txt nor tokenizer.json; download the one of this model")
        return None, ["tokenizer: none, as the directory has none; the ids must come from the model's own tokenizer"]
    added = _append_added(pieces, path, config, library)
    if added:
        warnings.append(
            f"tokenizer: added tokens are appended to the vocabulary ({', '.join(added[:10])}) and matched in texts as "
            "ordinary pieces, not before everything else"
        )
    warnings += _unread(path, config, library)
    check_vocabulary(pieces, source)
    check_size(pieces, vocab_size, source)
    settings: Json = {ours: config.get(theirs, default) for ours, (theirs, _, default) in _SETTINGS.items()}
    if library:
        settings = _settled(settings, library["normalizer"], bare in _GENERIC_CLASSES, warnings)
    return Tokenizer(pieces, **settings), warnings


def _foreign(path: str, library: Json | None, name: str | None, has_vocab: bool) -> str | None:
    """The reason why the tokenizer is not BERT's, or None."""
    if name not in _BERT_CLASSES | _GENERIC_CLASSES and (library or has_vocab):
        return f"{name} is not BERT's WordPiece"
    if name in _GENERIC_CLASSES and not library:
        return f"{name} needs a tokenizer.json, which is not there"
    if library:
        model = library.get("model") or {}
        kinds = {part: (library.get(part) or {}).get("type") for part in ("normalizer", "pre_tokenizer")}
        if model.get("type") != "WordPiece" or model.get("continuing_subword_prefix", "##") != "##":
            return f"tokenizer.json holds {model.get('type')!r}, not WordPiece with ##"
        if kinds != {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}:
            return (
                f"tokenizer.json has {' and '.join(map(str, kinds.values()))}, not BertNormalizer and BertPreTokenizer"
            )
    others = ("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
    found = [file for file in others if os.path.exists(os.path.join(path, file))]
    if found and not has_vocab and not library:
        return f"{', '.join(found)} is not a WordPiece vocabulary"
    return None


def _listed(vocab: Mapping[str, int], file: str) -> list[str]:
    """The pieces of a vocabulary (piece -> id) by id."""
    pieces = {number: piece for piece, number in vocab.items()}
    if sorted(pieces) != list(range(len(vocab))):
        raise DataError(f"{file}: the ids of its pieces are not 0 to {len(vocab) - 1}; expected each number once")
    return [pieces[number] for number in range(len(vocab))]


def _append_added(pieces: list[str], path: str, config: Json, library: Json | None) -> list[str]:
    """Appends the added tokens, from all files that list them, to `pieces`; returns those that it lacked."""
    decoder = config.get("added_tokens_decoder") or {}
    if not all(map(str.isdecimal, decoder)):
        raise DataError(f"{path}: added tokens without an integer id; save the tokenizer again with Transformers")
    added = {int(number): token["content"] for number, token in decoder.items()}
    added |= {token["id"]: token["content"] for token in (library or {}).get("added_tokens") or []}
    file = os.path.join(path, "added_tokens.json")
    if os.path.exists(file):
        added |= {number: token for token, number in read_json(file, dict[str, int]).items()}
    for number, token in added.items():
        if token in SPECIAL_PIECES and number < len(pieces) and pieces[number] != token:
            raise DataError(
                f"{path}: {token} has the id {number} beside the vocabulary, and in it that of {pieces[number]!r}; "
                "expected the vocabulary of this model, with all of its lines, as their numbers are the ids"
            )
    new = {number: token for number, token in sorted(added.items()) if number >= len(pieces)}
    if list(new) != list(range(len(pieces), len(pieces) + len(new))):
        raise DataError(
            f"{path}: the added tokens have the ids {', '.join(map(str, new))}; expected them to follow the "
            f"{len(pieces)} pieces of the vocabulary without a gap"
        )
    pieces += new.values()
    return list(new.values())


def _unread(path: str, config: Json, library: Json | None) -> list[str]:
    """Warnings about what makes other tokens in Transformers, and is not applied."""
    file = os.path.join(path, "special_tokens_map.json")
    named = {"special_tokens_map.json": read_json(file, Json) if os.path.exists(file) else {}}
    named["tokenizer_config.json"] = config
    warnings = []
    for source, names in named.items():
        for name, piece in zip(_SPECIAL_NAMES, SPECIAL_PIECES, strict=True):
            token = names.get(name, piece)
            token = token.get("content", piece) if isinstance(token, dict) else token
            if token not in (piece, None):
                warnings.append(f"tokenizer: {name} is {token!r} in {source}, which is not applied: it is {piece} here")
    if config.get("do_basic_tokenize") is False:
        warnings.append("tokenizer: do_basic_tokenize is false in tokenizer_config.json, which is not applied")
    if config.get("never_split"):
        warnings.append("tokenizer: never_split in tokenizer_config.json is not applied")
    if library and (library["normalizer"].get("clean_text") is False):
        warnings.append("tokenizer: clean_text is false in tokenizer.json, which is not applied")
    template = (library or {}).get("post_processor")
    if template and not _is_template_of_bert(template):
        warnings.append("tokenizer: the post_processor of tokenizer.json is not applied; a text is [CLS] text [SEP]")
    return warnings


def _is_template_of_bert(processor: Json) -> bool:
    """Whether a post_processor of tokenizer.json makes [CLS] text [SEP]."""
    if processor.get("type") == "BertProcessing":
        return True
    names = [("SpecialToken", "[CLS]"), ("Sequence", "A"), ("SpecialToken", "[SEP]")]
    return processor.get("single") in [[{kind: {"id": name, "type_id": 0}} for kind, name in names]]


def _settled(config: Json, normalizer: Json, generic: bool, warnings: list[str]) -> Json:
    """Resolves settings that differ between tokenizer.json's BertNormalizer and tokenizer_config.json.

    Transformers' BERT classes (tested with 4.57 and 5.23) follow tokenizer_config.json and their own defaults; its
    generic classes follow tokenizer.json.
    """
    library = {ours: normalizer.get(theirs, default) for ours, (_, theirs, default) in _SETTINGS.items()}
    used, file = (library, "tokenizer.json") if generic else (config, "tokenizer_config.json (or its defaults)")
    for name, value in config.items():
        if _resolved(config, name) != _resolved(library, name):
            warnings.append(
                f"tokenizer: {name} is {value} in tokenizer_config.json and {library[name]} in tokenizer.json: {file} "
                "is used, as in Transformers"
            )
    return used


def _resolved(settings: Json, name: str) -> object:
    """A setting's value; without one, accents are stripped if texts are lower-cased."""
    value = settings[name]
    return settings["lower_case"] if value is None and name == "strip_accents" else value


def other_settings(config: Json) -> Json:
    """The settings in tokenizer_config.json to write back unchanged: all that `write_tokenizer` does not generate."""
    generated = {theirs for theirs, _, _ in _SETTINGS.values()} | {"tokenizer_class", *_SPECIAL_NAMES}
    return {name: value for name, value in config.items() if name not in generated | _NOT_KEPT}


def write_tokenizer(path: str, tokenizer: Tokenizer, config: Json, model: BertConfig) -> None:
    """Writes vocab.txt and tokenizer_config.json.

    Args:
        path: directory.
        tokenizer: to write.
        config: from `other_settings`, or {}.
        model: config of the model.
    """
    tokenizer.save(path)
    settings: Json = {**tokenizer.get_config()}
    if settings["strip_accents"] == settings["lower_case"]:
        settings["strip_accents"] = None  # Transformers' default
    result: Json = {"model_max_length": model.max_position_embeddings} | config | {"tokenizer_class": "BertTokenizer"}
    result |= {theirs: settings[ours] for ours, (theirs, _, _) in _SETTINGS.items()}
    result |= dict(zip(_SPECIAL_NAMES, SPECIAL_PIECES, strict=True))
    if model.type_vocab_size < 2:
        # Otherwise Transformers' BERT tokenizer uses types 0 and 1 for a pair, and the model has no row for 1.
        result.setdefault("model_input_names", ["input_ids", "attention_mask"])
    write_json(os.path.join(path, "tokenizer_config.json"), result)
