"""SentencePiece in a Hugging Face directory: a .model file, or tokenizer.json of the type Unigram or BPE.

The ids of a checkpoint are seldom those of its .model file. fairseq's models (XLM-R, CamemBERT) have special tokens
before and after; KoBERT's ids are the numbers of the lines in its vocab.txt.
"""

import collections
import glob
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_tf.checkpoints.tokenizer_files.files import (
    CONFIG,
    LIBRARY,
    TokenizerFiles,
    real_pieces,
    write_library,
)
from bert_tf.checkpoints.tokenizer_files.sentence_piece_library import (
    CAMEMBERT_FIRST,
    UNIGRAM,
    hides_unused,
    is_in_transformers,
    is_unigram,
    library_of,
    model_of_library,
    others,
    unused,
)
from bert_tf.errors import ConfigError, DataError, located
from bert_tf.files import write_bytes
from bert_tf.text.base import ALBERT, ROBERTA
from bert_tf.text.sentence_piece import (
    SentencePieceTokenizer,
    albert_tokenizer,
    ends_in_number,
    parse_model,
    read_model,
    with_fairseq_ids,
    with_ids,
)
from bert_tf.text.vocabulary import read_pieces, spaced_pieces
from bert_tf.types import Json

if TYPE_CHECKING:
    import tokenizers
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

# A file of XLM-R and CamemBERT, of ALBERT and T5, of Transformers' generic class; KoBERT's has a name of its own.
_FAIRSEQ, _SPIECE, _PLAIN = "sentencepiece.bpe.model", "spiece.model", "tokenizer.model"
FILES: tuple[str, ...] = (_FAIRSEQ, _SPIECE, _PLAIN)
GENERATED = {"add_prefix_space", "do_lower_case", "keep_accents"}  # by `write`, in tokenizer_config.json

_VOCABULARY = "vocab.txt"
_XLM_R, _CAMEMBERT, _ALBERT = "XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer"
_ALBERT_UNKNOWN = 1  # the id of <unk> in Transformers' class
# Setting of SentencePieceTokenizer -> the normalizers in tokenizer.json that do the same before the model's, in order.
_BEFORE: dict[str, list[Json]] = {
    "double_quotes": [{"type": "Replace", "pattern": {"String": two}, "content": '"'} for two in ("``", "''")],
    "strip_accents": [{"type": "NFKD"}, {"type": "StripAccents"}],
    "lower_case": [{"type": "Lowercase"}],
}
# Classes that change texts as ALBERT does, and whether they lower-case by default.
_LOWER_CASES = {_ALBERT: True, "XLNetTokenizer": False}


def found(files: TokenizerFiles) -> str | None:
    """The name of a .model file in the directory; None if there is none, or several of unknown names."""
    known = [name for name in FILES if files.has(name)]
    names = known or [os.path.basename(path) for path in glob.glob(os.path.join(glob.escape(files.path), "*.model"))]
    return names[0] if known or len(names) == 1 else None


def numbers_lines(files: TokenizerFiles) -> bool:
    """Whether the directory has KoBERT's layout: a .model file, and a vocab.txt whose line numbers are the ids."""
    possible = files.name in (None, "BertTokenizer", "KoBertTokenizer") and found(files) and files.has(_VOCABULARY)
    return bool(possible and spaced_pieces(read_pieces(files.file(_VOCABULARY))))


def read(files: TokenizerFiles) -> SentencePieceTokenizer:
    """Reads the tokenizer.

    Raises:
        UnsupportedTokenizer: text is split in other ways.
    """
    settings, name = _settings(files), found(files)
    stored = _stored(files, name) if name else None
    # The merges of BPE do not have the scores of a .model file, to compare them.
    made = model_of_library(files) if files.library and (files.algorithm == UNIGRAM or not name) else None
    if stored and made and not _same(stored, made):
        files.differ(str(name))
        stored = None
    model, source = (stored, files.file(str(name))) if stored else (made, files.file(LIBRARY))
    if model is None:
        raise DataError(f"{files.path}: neither {FILES[0]} nor {LIBRARY}; download the one of this model")
    with located(source):
        pieces = _pieces(parse_model(model))
    complete = files.completed(pieces, source, fill=True)
    with located(source):
        model = with_ids(model, complete) if complete != pieces else model
        if files.name in _LOWER_CASES:  # a generic class keeps the pieces that ALBERT splits
            tokenizer = albert_tokenizer(model, settings["lower_case"], settings["strip_accents"], files.added_pieces)
        else:
            tokenizer = SentencePieceTokenizer(model, **settings, added_pieces=files.added_pieces)
    if _split(files)[0] == settings:
        files.compare_texts(tokenizer, beside=name if stored else None)
    return tokenizer


def _settings(files: TokenizerFiles) -> dict[str, bool]:
    """What is done with texts before SentencePiece: arguments of `SentencePieceTokenizer`."""
    library = _split(files)[0]
    if files.name not in _LOWER_CASES:
        return library
    config = {
        "double_quotes": True,
        "strip_accents": not files.config.get("keep_accents"),
        "lower_case": files.config.get("do_lower_case", _LOWER_CASES[files.name]) is not False,
    }
    if files.library and library != config:
        files.warnings.append(
            f"tokenizer: the normalizer of {LIBRARY} is not applied, but {CONFIG}, as in Transformers"
        )
    return config


def _split(files: TokenizerFiles) -> tuple[dict[str, bool], list[Json]]:
    """The normalizers of tokenizer.json: those before the model's, as settings, and the rest."""
    settings, rest = dict.fromkeys(_BEFORE, False), files.components("normalizer")
    known = _BEFORE if files.generic or files.name in _LOWER_CASES else {}  # other classes do nothing of it
    for name, normalizers in known.items():
        settings[name] = rest[: len(normalizers)] == normalizers
        rest = rest[settings[name] * len(normalizers) :]
    return settings, rest


def _stored(files: TokenizerFiles, name: str) -> bytes:
    """A .model file, with the ids of the checkpoint."""
    source = files.file(name)
    model = read_model(source)
    with located(source):
        pieces = _pieces(parse_model(model))
    if numbers_lines(files):
        return with_ids(model, _lines(files, model, name))
    with located(source):
        if files.name == _CAMEMBERT:
            if pieces[:1] != [ROBERTA.unk]:
                raise DataError(f"the first piece of the model is {pieces[0]!r}; expected <unk>, as CamemBERT's")
            return with_ids(model, [*CAMEMBERT_FIRST, *pieces[1:], ROBERTA.mask])
        if name == _FAIRSEQ or files.name == _XLM_R:
            return with_fairseq_ids(model)
    return model


def _lines(files: TokenizerFiles, model: bytes, name: str) -> list[str]:
    """The lines of KoBERT's vocab.txt, whose numbers are the ids of the pieces in the file `name`."""
    file = files.file(_VOCABULARY)
    lines, proto = read_pieces(file), parse_model(model)
    known = set(lines)
    if len(known) < len(lines):
        twice = next(line for number, line in enumerate(lines) if line in lines[:number])
        raise DataError(f"{file}: the piece {twice!r} occurs twice; line numbers are ids")
    ordinary = (proto.SentencePiece.NORMAL, proto.SentencePiece.USER_DEFINED, proto.SentencePiece.BYTE)
    lacking = [piece.piece for piece in proto.pieces if piece.type in ordinary and piece.piece not in known]
    if lacking:
        raise DataError(f"{file}: no line for {len(lacking)} pieces of {name}, such as {lacking[0]!r}")
    files.warnings.append(
        f"tokenizer: the ids of {name} are the line numbers of {_VOCABULARY}, as in KoBERT; texts "
        "are not changed before SentencePiece"
    )
    return lines


def _pieces(proto: "ModelProto") -> list[str]:
    return [piece.piece for piece in proto.pieces]


def _same(one: bytes, other: bytes) -> bool:
    """Whether two models have the same pieces, with the same scores, at the same ids."""
    first, second = (parse_model(model).pieces for model in (one, other))

    def equal(piece: "ModelProto.SentencePiece", others: "ModelProto.SentencePiece") -> bool:
        # Transformers 4 gave pieces that ALBERT splits other scores in tokenizer.json, so that no text has them.
        scored = piece.type == others.type == piece.NORMAL and not ends_in_number(piece.piece)
        return piece.piece == others.piece and (piece.score == others.score or not scored)

    return len(first) == len(second) and all(map(equal, first, second))


def write(path: str, tokenizer: SentencePieceTokenizer) -> Json:
    """Writes a .model file or tokenizer.json; returns the settings for tokenizer_config.json."""
    pieces = real_pieces(tokenizer.vocab)
    model = with_ids(tokenizer.model, pieces)
    proto, names = _without_user_defined(parse_model(model)), tokenizer.special_names
    model = proto.SerializeToString()
    usual = is_in_transformers(proto, tokenizer)
    if usual and tokenizer.double_quotes and (names, tokenizer.unk_id) == (ALBERT, _ALBERT_UNKNOWN):
        numbers = [piece for piece in proto.pieces if ends_in_number(piece.piece)]
        # If others are unused, or not all of these, it is no `albert_tokenizer`, which reads spiece.model again.
        if is_unigram(proto) and unused(proto) == {piece.piece for piece in numbers}:
            for piece in numbers:
                piece.type = proto.SentencePiece.NORMAL  # as in ALBERT's file
            write_bytes(os.path.join(path, _SPIECE), proto.SerializeToString())
            settings = {"do_lower_case": tokenizer.lower_case, "keep_accents": not tokenizer.strip_accents}
            return {"tokenizer_class": _ALBERT, **settings}
    if not hides_unused(proto):
        raise ConfigError(
            f"Transformers would use the pieces that this SentencePiece model has as unused ({min(unused(proto))!r}); "
            "--format=bert_tf holds every model"
        )
    if not usual:
        if changes := tokenizer.changes:
            raise ConfigError(
                f"Transformers has no tokenizer that changes texts ({', '.join(changes)}) before such a SentencePiece "
                "model; --format=bert_tf holds every model"
            )
        write_bytes(os.path.join(path, _PLAIN), model)
        return {"tokenizer_class": "TokenizersBackend"}
    plain = is_unigram(proto) and not (tokenizer.changes or proto.trainer_spec.byte_fallback or unused(proto))
    # Added pieces are not in these .model files, but follow <mask>.
    own = list(pieces)
    while own[-1] in tokenizer.added_pieces:
        own.pop()
    if plain and names == ROBERTA and own[-1] == names.mask:
        original = None
        if own[:4] == [names.cls, names.pad, names.sep, names.unk]:
            name, original = _XLM_R, [names.unk, names.cls, names.sep, *own[4:-1]]
        elif own[: len(CAMEMBERT_FIRST)] == CAMEMBERT_FIRST:
            name, original = _CAMEMBERT, [names.unk, *own[len(CAMEMBERT_FIRST) : -1]]
        if original:
            write_bytes(os.path.join(path, _FAIRSEQ), with_ids(model, original))
            return {"tokenizer_class": name, "add_prefix_space": True}
    if not is_unigram(proto):
        write_bytes(os.path.join(path, _PLAIN), model)  # from which it is read again
    return write_library(path, library_of(proto, tokenizer), tokenizer, others(proto))


def library(tokenizer: SentencePieceTokenizer, pieces: Sequence[str]) -> "tokenizers.Tokenizer":
    """The tokenizer.json of a tokenizer with these pieces, and without added ones; ConfigError if there is none."""
    proto = _without_user_defined(parse_model(with_ids(tokenizer.model, pieces)))
    if not is_in_transformers(proto, tokenizer) or not hides_unused(proto):
        raise ConfigError(f"{LIBRARY} cannot say how this SentencePiece model splits texts; use another encoder")
    return library_of(proto, tokenizer)


def _without_user_defined(proto: "ModelProto") -> "ModelProto":
    """Makes ordinary pieces of the user-defined ones, if every segmentation has them anyway.

    That is so if each is a single character that no other piece contains and no normalization changes, such as the
    punctuation in google-research/albert's spiece.model. Transformers looks for user-defined pieces in texts before all
    else, and begins a word after each.
    """
    from tokenizers.normalizers import Precompiled

    own = [piece for piece in proto.pieces if piece.type == proto.SentencePiece.USER_DEFINED]
    counts = collections.Counter(character for piece in proto.pieces for character in set(piece.piece))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    normalize = Precompiled(charsmap).normalize_str if charsmap else str
    if all(counts[piece.piece] == 1 and normalize(piece.piece) == piece.piece for piece in own):
        for piece in own:
            piece.type = proto.SentencePiece.NORMAL
    return proto
