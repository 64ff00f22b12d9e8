"""BERT's WordPiece in a Hugging Face directory: vocab.txt, or tokenizer.json of the type WordPiece."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict

from bert_tf.checkpoints.tokenizer_files.files import CONFIG, LIBRARY, TokenizerFiles, UnsupportedTokenizer
from bert_tf.files import checked
from bert_tf.text import Tokenizer
from bert_tf.text.normalizer import strips_accents
from bert_tf.text.vocabulary import check_vocabulary, read_vocabulary
from bert_tf.text.wordpiece import LONGEST_WORD
from bert_tf.types import Json

if TYPE_CHECKING:
    import tokenizers

# Name in tokenizer.json and, for ourselves, as Transformers' class has no such setting, in tokenizer_config.json.
_LIMIT, _MAX_WORD_CHARS = "max_input_chars_per_word", 100
_ALGORITHM = "WordPiece"
_BERT = [["BertNormalizer"], ["BertPreTokenizer"]]
VOCABULARY = Tokenizer.FILES[0]
FILES: tuple[str, ...] = (VOCABULARY,)
# Our setting -> (its name in tokenizer_config.json, its name in tokenizer.json, Transformers' default).
_SETTINGS: dict[str, tuple[str, str, bool | None]] = {
    "lower_case": ("do_lower_case", "lowercase", True),
    "strip_accents": ("strip_accents", "strip_accents", None),
    "split_cjk": ("tokenize_chinese_chars", "handle_chinese_chars", True),
}
GENERATED = {_LIMIT, *(theirs for theirs, _, _ in _SETTINGS.values())}  # by `write`, in tokenizer_config.json


class _Normalizer(TypedDict, total=False):
    lowercase: bool
    strip_accents: bool | None
    handle_chinese_chars: bool
    clean_text: bool


class _Limits(TypedDict):
    max_input_chars_per_word: Annotated[int, {"at_least": 1, "at_most": LONGEST_WORD}]


def read(files: TokenizerFiles) -> Tokenizer:
    """Reads the tokenizer.

    Raises:
        UnsupportedTokenizer: tokenizer.json splits text in other ways.
    """
    usable = files.library and (files.algorithm == _ALGORITHM or not files.has(VOCABULARY))
    listed, normalizer = _of_library(files) if usable else (None, {})
    pieces, source = None, files.file(VOCABULARY)
    if files.has(VOCABULARY):
        pieces = read_vocabulary(source)
    if listed is not None and (pieces is None or pieces[: len(listed)] != listed):
        if pieces is not None:
            files.differ(VOCABULARY)
        pieces, source = listed, files.file(LIBRARY)
    pieces = files.completed(pieces or [], source, fill=listed is not None)
    _warn_of_unread(files, normalizer)
    check_vocabulary(pieces, source)
    settings: Json = {ours: files.config.get(theirs, default) for ours, (theirs, _, default) in _SETTINGS.items()}
    if listed is not None:
        settings = _settled(settings, normalizer, files)
    # Not as the vocabulary needs it, but as Transformers does.
    settings["strip_accents"] = strips_accents(settings["lower_case"], settings["strip_accents"])
    file = LIBRARY if _LIMIT in files.model else CONFIG
    found = (files.model if file == LIBRARY else files.config).get(_LIMIT, _MAX_WORD_CHARS)
    limits = checked({_LIMIT: found}, _Limits, files.file(file))
    tokenizer = Tokenizer(pieces, **settings, **limits, added_pieces=files.added_pieces)
    if files.library and not (listed and _kinds(files) == _BERT):
        files.compare_texts(tokenizer, beside=None if listed else VOCABULARY)
    return tokenizer


def _of_library(files: TokenizerFiles) -> tuple[list[str], Json]:
    """The pieces and the BertNormalizer of tokenizer.json."""
    if files.algorithm != _ALGORITHM or files.model.get("continuing_subword_prefix", "##") != "##":
        raise UnsupportedTokenizer(f"{LIBRARY} holds {files.algorithm!r}, not WordPiece with ##")
    listed, [kinds, _] = files.listed(), _kinds(files)
    if kinds == _BERT[0]:
        [normalizer] = files.components("normalizer")
        return listed, {**checked(normalizer, _Normalizer, files.file(LIBRARY), "normalizer")}
    return listed, {
        "lowercase": "Lowercase" in kinds,
        "strip_accents": "StripAccents" in kinds,
        "handle_chinese_chars": False,
    }


def _kinds(files: TokenizerFiles) -> list[list[str]]:
    """The types of the normalizers and of the pre_tokenizers of tokenizer.json."""
    return [[str(one.get("type")) for one in files.components(part)] for part in ("normalizer", "pre_tokenizer")]


def _warn_of_unread(files: TokenizerFiles, normalizer: Json) -> None:
    """Appends warnings on settings that are not applied."""
    if files.config.get("do_basic_tokenize") is False:
        files.warnings.append(f"tokenizer: do_basic_tokenize is false in {CONFIG}, which is not applied")
    if files.config.get("never_split"):
        files.warnings.append(f"tokenizer: never_split in {CONFIG} is not applied")
    if normalizer.get("clean_text") is False:
        files.warnings.append(f"tokenizer: clean_text is false in {LIBRARY}, which is not applied")


def _settled(config: Json, normalizer: Json, files: TokenizerFiles) -> Json:
    """Resolves settings that differ between tokenizer.json's BertNormalizer and tokenizer_config.json.

    Transformers' BERT classes (tested with 4.57 and 5.23) follow tokenizer_config.json and their own defaults, where
    tokenizer.json has a BertNormalizer; its generic classes follow tokenizer.json.
    """
    library = {ours: normalizer.get(theirs, default) for ours, (_, theirs, default) in _SETTINGS.items()}
    follows = files.generic or _kinds(files) != _BERT
    used, file = (library, LIBRARY) if follows else (config, f"{CONFIG} (or its defaults)")
    for name, value in config.items():
        if follows and _SETTINGS[name][0] not in files.config:
            continue
        if _resolved(config, name) != _resolved(library, name):
            files.warnings.append(
                f"tokenizer: {name} is {value} in {CONFIG} and {library[name]} in {LIBRARY}: {file} is used, as in "
                "Transformers"
            )
    return used


def _resolved(settings: Json, name: str) -> object:
    """A setting's value; without one, accents are stripped if texts are lower-cased."""
    value = settings[name]
    return strips_accents(settings["lower_case"], value) if name == "strip_accents" else value


def write(path: str, tokenizer: Tokenizer) -> Json:
    """Writes vocab.txt; returns the settings for tokenizer_config.json."""
    tokenizer.save(path)
    settings = tokenizer.get_config()
    if settings["strip_accents"] == settings["lower_case"]:
        settings["strip_accents"] = None  # Transformers' default
    limit = tokenizer.max_input_chars_per_word
    written = {theirs: settings[ours] for ours, (theirs, _, _) in _SETTINGS.items()}
    return {"tokenizer_class": "BertTokenizer"} | written | ({_LIMIT: limit} if limit != _MAX_WORD_CHARS else {})


def library(tokenizer: Tokenizer, pieces: Sequence[str]) -> "tokenizers.Tokenizer":
    """The tokenizer.json of a tokenizer with these pieces, and without added ones."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    ids = {piece: number for number, piece in enumerate(pieces)}
    unknown, limit = tokenizer.special_names.unk, tokenizer.max_input_chars_per_word
    made = Library(models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=limit))
    made.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=tokenizer.split_cjk,
        strip_accents=tokenizer.strip_accents,
        lowercase=tokenizer.lower_case,
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    return made
