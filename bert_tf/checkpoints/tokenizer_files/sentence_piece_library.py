"""SentencePiece models as a tokenizer.json: made of one, and written as one."""

import base64
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from bert_tf.checkpoints.tokenizer_files import byte_pair
from bert_tf.checkpoints.tokenizer_files.comparison import spaces, words
from bert_tf.checkpoints.tokenizer_files.files import LIBRARY, TokenizerFiles, UnsupportedTokenizer
from bert_tf.errors import DataError
from bert_tf.files import checked
from bert_tf.text.base import BERT, ROBERTA
from bert_tf.text.byte_pair_model import side_by_side
from bert_tf.text.sentence_piece import BYTE, SentencePieceTokenizer, charsmap, unchanging_charsmap

if TYPE_CHECKING:
    import tokenizers
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

SPACE = "\u2581"  # SentencePiece's for a space
# Before the pieces of CamemBERT's model, the first of which is left out; <mask> follows.
CAMEMBERT_FIRST = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
UNIGRAM = "Unigram"
UNKNOWN = tuple(dict.fromkeys(family.unk for family in (BERT, ROBERTA)))
_TAB_BYTE = "<0x09>"  # Gemma's files may have a tab in its place, and a model needs all bytes


def is_of_pieces(files: TokenizerFiles) -> bool:
    """Whether tokenizer.json is of the type BPE with SentencePiece's pieces, not with characters for bytes."""
    metaspace = any(one["type"] == "Metaspace" for one in files.components("pre_tokenizer"))
    replaced = any(one.get("content") == SPACE for one in files.components("normalizer"))
    return files.algorithm == byte_pair.ALGORITHM and (metaspace or replaced)


def model_of_library(files: TokenizerFiles) -> bytes:
    """The model of a tokenizer.json of the type Unigram, or of BPE with SentencePiece's pieces.

    Raises:
        UnsupportedTokenizer: text is split in other ways.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    proto, unigram = ModelProto(), files.algorithm == UNIGRAM
    if not unigram and not is_of_pieces(files):
        raise UnsupportedTokenizer(f"{LIBRARY} holds {files.algorithm!r}, not Unigram")
    kinds, fallback = proto.SentencePiece, bool(files.model.get("byte_fallback"))
    (_add_unigram if unigram else _add_byte_pairs)(proto, files)
    proto.trainer_spec.byte_fallback = fallback
    # User-defined pieces of a .model file are added tokens that are not special.
    added = {
        token["content"]: kinds.CONTROL if token.get("special", True) else kinds.USER_DEFINED
        for token in files.added_tokens
    } | dict.fromkeys(CAMEMBERT_FIRST, kinds.CONTROL)
    splits = unigram or len(words(files.opened, "a b")) > 1  # texts at spaces
    for piece in proto.pieces:
        if fallback and BYTE.fullmatch(piece.piece):
            piece.type = kinds.BYTE
        elif piece.type != kinds.UNKNOWN and piece.piece in added:
            piece.type = added[piece.piece]
        elif piece.type == kinds.NORMAL and splits and SPACE in piece.piece[1:]:
            piece.type = kinds.UNUSED if unigram else kinds.CONTROL
    for one in files.components("normalizer"):
        if one["type"] == "Precompiled":
            try:
                proto.normalizer_spec.precompiled_charsmap = base64.b64decode(one.get("precompiled_charsmap") or "")
            except (TypeError, ValueError):
                raise DataError(
                    f"{files.file(LIBRARY)}: precompiled_charsmap is not base64; get the file again"
                ) from None
    if not proto.normalizer_spec.precompiled_charsmap and (others := spaces(files.opened)):
        proto.normalizer_spec.precompiled_charsmap = charsmap(dict.fromkeys(others, " "))
    if not unigram:
        _check_merging(proto, files, splits)
    return proto.SerializeToString()


def _add_unigram(proto: "ModelProto", files: TokenizerFiles) -> None:
    """Adds the pieces of a tokenizer.json of the type Unigram with their scores."""
    splitters = [str(one.get("type")) for one in files.components("pre_tokenizer")]
    if "Metaspace" not in splitters:
        raise UnsupportedTokenizer(f"{LIBRARY} splits text by {', '.join(splitters) or 'nothing'}, not by Metaspace")
    file = files.file(LIBRARY)
    vocab = checked(files.model.get("vocab") or [], list[tuple[str, float]], file, "model.vocab")
    unknown = files.model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(vocab):
        raise DataError(f"{file}: unk_id is {unknown!r}; expected the id of one of its {len(vocab)} pieces")
    pieces = [piece for piece, _ in vocab]
    if pieces[unknown] not in UNKNOWN and (named := next((name for name in UNKNOWN if name in pieces), None)):
        files.warnings.append(
            f"tokenizer: unknown characters get {named}, and in {LIBRARY} the ordinary piece {pieces[unknown]!r}, the "
            "one of its unk_id"
        )
        unknown = pieces.index(named)
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.normalizer_spec.add_dummy_prefix = True  # what Metaspace does; spaces are SentencePiece's defaults
    for piece, score in vocab:
        proto.pieces.add(piece=piece, score=score)
    proto.pieces[unknown].type = proto.SentencePiece.UNKNOWN


def _add_byte_pairs(proto: "ModelProto", files: TokenizerFiles) -> None:
    """Adds the pieces of a tokenizer.json of the type BPE: their scores are the negated ranks of their merges."""
    kinds, settings, pieces = proto.SentencePiece, proto.normalizer_spec, files.listed()
    ranks = dict[str, int]()
    for rank, merge in enumerate(byte_pair.merges_of(files)):
        ranks.setdefault(merge.replace(" ", ""), rank)
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    settings.add_dummy_prefix = words(files.opened, "a") != ["a"]
    settings.remove_extra_whitespaces = words(files.opened, "a  a") == words(files.opened, "a a")
    following = {token["id"]: token["content"] for token in files.added_tokens}
    while len(pieces) in following:
        pieces.append(following[len(pieces)])
    bytes_lacking = files.model.get("byte_fallback") and _TAB_BYTE not in pieces
    for piece in pieces:
        kind = kinds.NORMAL if piece in ranks or len(piece) == 1 else kinds.CONTROL  # without a merge, in no text
        name = _TAB_BYTE if bytes_lacking and piece == "\t" else piece
        proto.pieces.add(piece=name, score=-float(ranks.get(piece, len(ranks))), type=kind)


def _check_merging(proto: "ModelProto", files: TokenizerFiles, splits: bool) -> None:
    """Raises UnsupportedTokenizer if merging by the joined string, as SentencePiece does, differs from pairs."""
    import sentencepiece

    plain, kinds = type(proto)(), proto.SentencePiece
    plain.CopyFrom(proto)
    for setting in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        setattr(plain.normalizer_spec, setting, False)
    plain.normalizer_spec.precompiled_charsmap = unchanging_charsmap()
    if not any(piece.type == kinds.UNKNOWN for piece in plain.pieces):  # a model needs one
        plain.pieces.add(piece="\ufffe", type=kinds.UNKNOWN)
    own = [piece.piece for piece in proto.pieces if piece.type == kinds.USER_DEFINED]
    normal = [piece.piece for piece in proto.pieces if piece.type == kinds.NORMAL]
    texts = side_by_side(normal) if normal else []
    texts = [text for text in texts if not (splits and SPACE in text[1:]) and not any(one in text for one in own)]
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=plain.SerializeToString())
    except RuntimeError as error:  # such as bytes without a piece
        message = str(error).replace("\n", " ")
        raise UnsupportedTokenizer(f"SentencePiece does not take the pieces of {LIBRARY} ({message})") from None
    for text, ids in zip(texts, processor.encode(texts), strict=True):
        if ids != [token.id for token in files.opened.model.tokenize(text)]:
            raise UnsupportedTokenizer(f"{LIBRARY} merges {text!r} by pairs into other pieces than SentencePiece does")


def is_in_transformers(proto: "ModelProto", tokenizer: SentencePieceTokenizer) -> bool:
    """Whether tokenizer.json can say how the model segments texts."""
    kinds, settings = proto.SentencePiece, proto.normalizer_spec
    own = any(piece.type == kinds.USER_DEFINED for piece in proto.pieces)
    # Transformers looks for user-defined pieces before all else, and what is between them is a text of its own.
    changes = settings.precompiled_charsmap or tokenizer.changes
    apart = not (settings.add_dummy_prefix or settings.remove_extra_whitespaces or changes)
    if not is_unigram(proto):
        return settings.escape_whitespaces and (apart or not own)
    # For a unigram model, texts are split at spaces.
    split = any(piece.type == kinds.NORMAL and SPACE in piece.piece[1:] for piece in proto.pieces)
    usual = settings.add_dummy_prefix and settings.remove_extra_whitespaces and settings.escape_whitespaces
    return usual and not own and not split


def unused(proto: "ModelProto") -> set[str]:
    """The unused pieces that words have; no class of Transformers knows this type."""
    kinds = proto.SentencePiece
    return {one.piece for one in proto.pieces if one.type == kinds.UNUSED and SPACE not in one.piece[1:]}


def _normal(proto: "ModelProto") -> dict[str, float]:
    """The scores of ordinary pieces."""
    return {one.piece: one.score for one in proto.pieces if one.type == proto.SentencePiece.NORMAL}


def hides_unused(proto: "ModelProto") -> bool:
    """Whether low scores have the effect of the type of unused pieces.

    Not in BPE, which merges them first. An unknown character has a score below all others, so it must not compete.
    """
    hidden, normal = unused(proto), _normal(proto)
    return not hidden or (is_unigram(proto) and set("".join(hidden.union(normal))) <= normal.keys())


def is_unigram(proto: "ModelProto") -> bool:
    return proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM


def library_of(proto: "ModelProto", tokenizer: SentencePieceTokenizer) -> "tokenizers.Tokenizer":
    """The tokenizer.json of a model for which `is_in_transformers`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    unigram, fallback, kinds = is_unigram(proto), proto.trainer_spec.byte_fallback, proto.SentencePiece
    settings, pieces = proto.normalizer_spec, [piece.piece for piece in proto.pieces]
    several, before = Regex(" {2,}"), list[normalizers.Normalizer]()
    if unigram:
        library = Tokenizer(models.Unigram(list(zip(pieces, _scores(proto), strict=True)), tokenizer.unk_id, fallback))
        spaces = [normalizers.Strip(left=False, right=True), normalizers.Replace(several, SPACE)]
    else:
        ids, unknown = {piece: number for number, piece in enumerate(pieces)}, tokenizer.special_names.unk
        merges = _merges(proto)
        library = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback))
        extra = settings.remove_extra_whitespaces
        spaces = [normalizers.Strip(), normalizers.Replace(several, " ")] if extra else []
        spaces.append(normalizers.Replace(" ", SPACE))
    if tokenizer.double_quotes:
        before += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if tokenizer.strip_accents:
        before += [normalizers.NFKD(), normalizers.StripAccents()]
    if tokenizer.lower_case:
        before += [normalizers.Lowercase()]
    if charsmap := settings.precompiled_charsmap:
        before += [normalizers.Precompiled(charsmap)]
    if settings.add_dummy_prefix and not settings.remove_extra_whitespaces:
        before += [normalizers.Prepend(SPACE)]  # also to a text that begins with a space
    library.normalizer = normalizers.Sequence([*before, *spaces])
    if settings.add_dummy_prefix and settings.remove_extra_whitespaces:
        library.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=unigram)
        library.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    else:
        library.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    own = [piece.piece for piece in proto.pieces if piece.type == kinds.USER_DEFINED]
    own = [piece for piece in own if piece not in tokenizer.added_pieces]
    library.add_tokens([AddedToken(piece, normalized=SPACE in piece, special=False) for piece in own])
    return library


def _scores(proto: "ModelProto") -> list[float]:
    """The scores of a unigram model; of an unused piece, one below that of its characters, with which it never wins."""
    hidden, lowest = unused(proto), min(_normal(proto).values(), default=0.0)
    return [len(one.piece) * lowest - 1 if one.piece in hidden else one.score for one in proto.pieces]


def _merges(proto: "ModelProto") -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, in the order in which SentencePiece merges them: by its score, then id.

    Before these, those that make user-defined pieces of several spaces: some files do not say that such an added piece
    is looked for in normalized text, in which spaces are replaced. The longest run is to grow first.
    """
    kinds = proto.SentencePiece
    normal = [piece.piece if piece.type == kinds.NORMAL else "" for piece in proto.pieces]
    runs = {one.piece for one in proto.pieces if one.type == kinds.USER_DEFINED and not one.piece.strip(SPACE)}
    known, ranked = set(normal), sorted(range(len(normal)), key=lambda number: -proto.pieces[number].score)

    def pairs(pieces: Iterable[str], parts: Collection[str]) -> Iterator[tuple[str, str]]:
        splits = ((piece[:at], piece[at:]) for piece in pieces for at in range(1, len(piece)))
        return (pair for pair in splits if pair[0] in parts and pair[1] in parts)

    of_runs = sorted(pairs(runs, runs | known), key=lambda pair: (-len(pair[0]), -len(pair[1])))
    return [*of_runs, *pairs(map(normal.__getitem__, ranked), known)]


def others(proto: "ModelProto") -> list[str]:
    """Pieces that no text has, and that would be ordinary ones in tokenizer.json; in BPE, no merge makes them."""
    kinds, unigram = proto.SentencePiece, is_unigram(proto)
    return [one.piece for one in proto.pieces if one.type == kinds.CONTROL and (unigram or len(one.piece) == 1)]
