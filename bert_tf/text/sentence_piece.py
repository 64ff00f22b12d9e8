"""SentencePiece (XLM-R, ALBERT, KoBERT) in the TensorFlow graph."""

import contextlib
import functools
import re
import struct
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import tensorflow as tf

from bert_tf.config.values import checked_arguments
from bert_tf.errors import DataError, located
from bert_tf.files import read_bytes, text_path
from bert_tf.text.base import ROBERTA, Added, special_names
from bert_tf.text.normalizer import AlbertNormalizer
from bert_tf.text.operations import SentencePiece
from bert_tf.text.subwords import SubwordTokenizer
from bert_tf.text.trie import UNUSED, build_trie
from bert_tf.text.vocabulary import check_length
from bert_tf.types import Json, StrPath

if TYPE_CHECKING:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

_SPACE = "\u2581"  # SentencePiece's for a space
BYTE = re.compile("<0x([0-9A-F]{2})>")


def read_model(path: str) -> bytes:
    """Reads a .model file."""
    return read_bytes(path, "a .model file")


def parse_model(model: bytes) -> "ModelProto":
    """Parses the bytes of a .model file; raises DataError if it is none, or of an algorithm that is not supported."""
    from google.protobuf.message import DecodeError
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # it takes a moment

    proto = ModelProto()
    try:
        proto.ParseFromString(model)
    except DecodeError:
        raise DataError("no SentencePiece model, or a part of one; expected a .model file") from None
    if not proto.pieces or not proto.HasField("trainer_spec") or not proto.HasField("normalizer_spec"):
        raise DataError("a SentencePiece model without pieces or without settings; expected a .model file")
    kind = proto.trainer_spec.ModelType.Name(proto.trainer_spec.model_type)
    if kind not in ("UNIGRAM", "BPE"):
        raise DataError(f"a SentencePiece model of the type {kind}; expected UNIGRAM or BPE")
    if proto.trainer_spec.treat_whitespace_as_suffix:
        raise DataError("a SentencePiece model with white space after words; expected it before words")
    seen = set[str]()
    for number, piece in enumerate(proto.pieces):
        if not isinstance(piece.piece, str):
            raise DataError(f"piece {number}, {piece.piece!r}, is not UTF-8; get the .model file again")
        check_length(piece.piece, number)
        if piece.piece in seen:
            raise DataError(f"piece {number}, {piece.piece!r}, occurs twice")
        seen.add(piece.piece)
    return proto


def charsmap(replaced: Mapping[str, str]) -> bytes:
    """A `precompiled_charsmap` that replaces these texts by others."""
    pool, at = b"", dict[str, int]()
    for text in dict.fromkeys(replaced.values()):
        at[text] = len(pool)
        pool += text.encode() + b"\0"
    units = build_trie({text.encode(): at[replaced[text]] for text in sorted(replaced)})
    # In whole blocks, as darts-clone makes them.
    units = np.pad(units, (0, -len(units) % 256), constant_values=UNUSED).astype("<u4")
    return struct.pack("<I", units.nbytes) + units.tobytes() + pool


@functools.cache
def unchanging_charsmap() -> bytes:
    """A `precompiled_charsmap` that changes no text.

    Without one, SentencePiece's C++ prints a line wherever the model is loaded, in TF Serving, too. Newer versions
    refuse an empty trie, so this one replaces a single character by itself.
    """
    return charsmap({_SPACE: _SPACE})


def with_ids(model: bytes, pieces: Sequence[str]) -> bytes:
    """Gives the pieces of a SentencePiece model other ids.

    Args:
        model: bytes of a .model file.
        pieces: by id. The model's others are left out; those that it lacks are in no text.
    """
    proto = parse_model(model)
    kinds, known = proto.SentencePiece, {piece.piece: piece for piece in proto.pieces}
    numbered = [known.get(name) or kinds(piece=name, type=kinds.CONTROL) for name in pieces]
    del proto.pieces[:]
    proto.pieces.extend(numbered)
    return proto.SerializeToString()


def with_fairseq_ids(model: bytes) -> bytes:
    """Gives the pieces of a SentencePiece model the ids of fairseq, which XLM-R has.

    They are <s>, <pad>, </s>, <unk> = 0 to 3, the model's from its fourth piece on, and <mask>, the last.

    Args:
        model: bytes of a .model file that begins with <unk>, <s> and </s>.
    """
    pieces = [piece.piece for piece in parse_model(model).pieces]
    first = [ROBERTA.unk, ROBERTA.cls, ROBERTA.sep]
    if pieces[:3] != first:
        raise DataError(f"the first pieces of the model are {pieces[:3]}; expected <unk>, <s> and </s>, as XLM-R's")
    return with_ids(model, [ROBERTA.cls, ROBERTA.pad, ROBERTA.sep, ROBERTA.unk, *pieces[3:], ROBERTA.mask])


@checked_arguments
class SentencePieceTokenizer(SubwordTokenizer):
    """A tokenizer of a SentencePiece model (Kudo and Richardson, 2018), unigram or BPE, with byte fallback or without.

    The segmentation is that of the `sentencepiece` library, except between segmentations of equal score. ALBERT changes
    texts before that (google-research/albert, tokenization.py): `albert_tokenizer` opens its file.

    Examples:
        >>> import io
        >>> import sentencepiece
        >>> model = io.BytesIO()
        >>> with open("data/reviews/train.tsv", encoding="utf-8") as text:
        ...     sentencepiece.SentencePieceTrainer.train(
        ...         sentence_iterator=text, model_writer=model, vocab_size=1000, pad_id=3, control_symbols=["<mask>"],
        ...         minloglevel=2)
        >>> tokenizer = bert_tf.SentencePieceTokenizer(model.getvalue())
        >>> tokenizer.detokenize(tokenizer.tokenize(["A fine film."])).numpy()
        array([b'A fine film.'], dtype=object)
    """

    KIND, FILES = "sentencepiece", ("sentencepiece.model",)
    SETTINGS = ("lower_case", "strip_accents", "double_quotes")

    def __init__(
        self,
        model: StrPath | bytes,
        lower_case: bool = False,
        strip_accents: bool = False,
        double_quotes: bool = False,
        added_pieces: Added = types.MappingProxyType({}),
    ) -> None:
        """Builds the tokenizer.

        Args:
            model: path of a .model file, or its bytes. The pieces have the model's own ids, and the special tokens are
                among them: <pad>, <unk>, <s>, </s> and <mask>, or BERT's. XLM-R's file has no <pad> and no <mask>;
                `bert_tf.text.sentence_piece.with_fairseq_ids` gives its pieces the ids of the checkpoint.
            lower_case: lower-case texts before the model segments them.
            strip_accents: before that, decompose them by compatibility (NFKD) and drop combining characters.
            double_quotes: before that, make one double quotation mark of two backticks, and of two apostrophes.
            added_pieces: of the pieces, those that were added to the vocabulary: see the attribute.

        Raises:
            DataError: no such file, no SentencePiece model, or a special token is missing.
        """
        location: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if not isinstance(model, bytes):
            path = text_path(model)
            model, location = read_model(path), located(path)
        with location:
            self.model, of_op, pieces, texts, self._own, self._adds_space = _prepared(model)
            names = special_names(pieces)
        super().__init__(pieces, names, texts, added_pieces)
        self._op = SentencePiece(of_op)
        self.lower_case, self.strip_accents, self.double_quotes = lower_case, strip_accents, double_quotes
        changes = lower_case, strip_accents, double_quotes
        self._normalizer = AlbertNormalizer(*changes) if any(changes) else None

    def get_config(self) -> Json:
        return self.changes | self._added_setting()

    @property
    def changes(self) -> Json:
        """The settings that change texts, each True."""
        return {name: True for name in self.SETTINGS if getattr(self, name)}

    def searches(self, piece: str) -> bool:
        # With a space before texts, Transformers also puts one after each piece that users defined.
        flags = self.added_pieces.get(piece, ("none",))
        own = piece in self._own and not self._adds_space and {*flags} <= {"normalized"}
        return own or super().searches(piece)

    def contents(self) -> tuple[bytes, ...]:
        return (self.model,)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.model, self.lower_case, self.strip_accents, self.double_quotes, {**self.added_pieces})

    def _needed_pieces(self, used: set[int], characters: bool) -> set[int]:
        proto = parse_model(self.model)
        kinds, pieces = proto.SentencePiece, list(enumerate(proto.pieces))
        # Bytes are kept as the library asks for all of them; control pieces have a meaning for the model's programs.
        always = {kinds.CONTROL, kinds.UNKNOWN, kinds.USER_DEFINED, kinds.BYTE}
        found = {number for number, piece in pieces if piece.type in always}
        found |= {*used, *self.special_ids, *self.added_ids}
        if characters:
            found |= {number for number, piece in pieces if piece.type == kinds.NORMAL and len(piece.piece) == 1}
        if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
            # The best segmentation stays the best one of fewer. An unknown character's score depends on the lowest
            # score of all pieces, and that of a piece of the user on the highest.
            normal = [number for number, piece in pieces if piece.type == kinds.NORMAL]
            for choose in (min, max):
                found.add(choose(normal, key=lambda number: proto.pieces[number].score))
            return found
        # Texts were merged through some of the pieces that begin or end a piece; with all of these, they still are.
        # An unused piece is merged, too, and then split again.
        found |= {number for number, piece in pieces if piece.type == kinds.UNUSED}
        numbers = {piece.piece: number for number, piece in pieces if piece.type in (kinds.NORMAL, kinds.UNUSED)}
        pending = list(found)
        while pending:
            piece = proto.pieces[pending.pop()].piece
            pairs = ((numbers.get(piece[:at]), numbers.get(piece[at:])) for at in range(1, len(piece)))
            parts = {number for pair in pairs if None not in pair for number in pair if number is not None}
            pending += parts - found
            found |= parts
        return found

    def _subset(self, ids: Sequence[int]) -> Self:
        pieces = self.vocab
        model = with_ids(self.model, [pieces[number] for number in ids])
        return type(self)(model, **self.changes, **self._added_setting(ids))

    def _pieces_of(self, texts: tf.Tensor, with_offsets: bool) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        if not with_offsets:
            nothing = tf.zeros([0], tf.int64)
            return self._op.tokenize(texts), nothing, nothing
        return self._op.tokenize_with_offsets(texts)


def ends_in_number(piece: str) -> bool:
    """Whether ALBERT splits a piece, before the comma at its end."""
    return piece.endswith(",") and piece[-2:-1].isdigit()


def albert_tokenizer(
    model: bytes,
    lower_case: bool = True,
    strip_accents: bool = True,
    added_pieces: Added = types.MappingProxyType({}),
) -> SentencePieceTokenizer:
    """The tokenizer of ALBERT (Lan et al., 2020), without the pieces that end in a digit and a comma.

    The reference splits these after the segmentation, and segments the number again; here they are in no segmentation.
    The ids are the same unless other pieces than the number's own change.

    Args:
        model: bytes of a spiece.model.
        lower_case: False for a cased model.
        strip_accents: False to keep accents.
        added_pieces: as for `SentencePieceTokenizer`.
    """
    proto = parse_model(model)
    for piece in proto.pieces:
        if ends_in_number(piece.piece):
            piece.type = proto.SentencePiece.UNUSED
    return SentencePieceTokenizer(
        proto.SerializeToString(), lower_case, strip_accents, double_quotes=True, added_pieces=added_pieces
    )


@functools.lru_cache(maxsize=4)
def _prepared(model: bytes) -> tuple[bytes, bytes, list[str], list[bytes], frozenset[str], bool]:
    """The model with special tokens that no text has, and as the op gets it; its pieces, what each stands for, those
    that users defined, and whether a text gets a space before it.
    """
    import sentencepiece

    proto = parse_model(model)
    pieces = [piece.piece for piece in proto.pieces]
    names = special_names(pieces)
    kinds = proto.SentencePiece
    for piece in proto.pieces:
        if piece.piece in names:
            piece.type = kinds.UNKNOWN if piece.piece == names.unk else kinds.CONTROL
        elif piece.type == kinds.UNKNOWN:
            raise DataError(f"the unknown piece is {piece.piece!r}; expected {names.unk!r}")
    texts = []
    for piece in proto.pieces:
        byte = BYTE.fullmatch(piece.piece) if piece.type == kinds.BYTE else None
        texts.append(bytes([int(byte[1], 16)]) if byte else piece.piece.replace(_SPACE, " ").encode())
    changed = of_op = proto.SerializeToString()
    if not proto.normalizer_spec.precompiled_charsmap:
        proto.normalizer_spec.precompiled_charsmap = unchanging_charsmap()
        of_op = proto.SerializeToString()
    try:
        sentencepiece.SentencePieceProcessor(model_proto=of_op)
    except RuntimeError as error:
        message = str(error).replace("\n", " ")
        raise DataError(f"a damaged SentencePiece model ({message}); get the .model file again") from None
    own = frozenset(piece.piece for piece in proto.pieces if piece.type == kinds.USER_DEFINED)
    return changed, of_op, pieces, texts, own, proto.normalizer_spec.add_dummy_prefix
