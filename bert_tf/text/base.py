"""The interface of all tokenizers."""

import abc
import os
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import tensorflow as tf

from bert_tf.config.values import checked_arguments, fitting, shown
from bert_tf.errors import ConfigError, DataError, located
from bert_tf.files import check_output, checksum, write_bytes
from bert_tf.text.codepoints import WHITE_SPACE
from bert_tf.text.packing import dense_features, pack, truncate
from bert_tf.types import Array, Json, Strings, StrPath, TokenIds


class Specials(NamedTuple):
    """The names of the special tokens in a vocabulary."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str

    @property
    def separators(self) -> int:
        """The number of separators between two texts: one, or two without types (RoBERTa, Liu et al., 2019)."""
        return 2 if self.sep == "</s>" else 1


# Pieces that were added to a vocabulary, and what is said of each: some of `FLAGS`.
Added: TypeAlias = Mapping[str, Sequence[str]]
SPECIAL = "special"
# Of an added piece that texts may have as a special token: it takes the white space before it along, or after it; it is
# one only as a word. "normalized", that Transformers looks for it in normalized text, is kept and not applied to these.
FLAGS = (SPECIAL, "lstrip", "rstrip", "single_word", "normalized")

BERT = Specials("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = Specials("<pad>", "<unk>", "<s>", "</s>", "<mask>")
GEMMA = Specials("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
ALBERT = Specials(ROBERTA.pad, ROBERTA.unk, BERT.cls, BERT.sep, BERT.mask)
_FAMILIES = (BERT, GEMMA, ROBERTA)  # in this order: Gemma's vocabulary also has <s> and </s>, of HTML
NAMES = frozenset[str]().union(*_FAMILIES)


def special_names(pieces: Sequence[str]) -> Specials:
    """Finds the special tokens of a vocabulary: BERT's, Gemma's or RoBERTa's, or some of each as in ALBERT.

    Raises:
        DataError: one is missing.
    """
    known = set(pieces)
    complete = next((family for family in _FAMILIES if known.issuperset(family)), None)
    if complete:
        return complete
    choices = [dict.fromkeys(names) for names in zip(*_FAMILIES, strict=True)]
    names = [next((name for name in some if name in known), "") for some in choices]
    missing = [" or ".join(some) for name, some in zip(names, choices, strict=True) if not name]
    if missing:
        raise DataError(
            f"no {', no '.join(missing)} among the {len(pieces):,} pieces of the vocabulary; all of them are needed"
        )
    return Specials(*names)


@checked_arguments
class BaseTokenizer(tf.Module, abc.ABC):
    """Converts text to token ids, eagerly and in graphs; an exported model contains all it needs.

    Invalid UTF-8 is skipped like in Python's `bytes.decode("utf-8", "ignore")`.

    Attributes:
        KIND: name of the class in model directories.
        FILES: names of the files that hold its vocabulary; their paths are its first arguments.
        SETTINGS: names of the keyword arguments that `get_config` may return.
        vocab_size: number of pieces.
        special_names: the names of the special tokens in the vocabulary.
        pad_id, unk_id, cls_id, sep_id, mask_id: their ids.
        continues: bool [vocab_size], True for pieces that continue a word.
        added_pieces: those that were added to the vocabulary, which stay when it is trimmed, each with its flags. With
            "special" it is a special token of texts, as those of `special_names` are; then, with "lstrip" and
            "rstrip", it takes the white space before and after it along, and with "single_word" it is one only as a
            word of its own.
        strip_accents: whether accents are deleted.
        split_cjk: whether every CJK ideograph is a separate word.
        keeps_spaces: whether white space can be a piece.
    """

    KIND: ClassVar[str]
    FILES: ClassVar[tuple[str, ...]]
    SETTINGS: ClassVar[tuple[str, ...]]
    strip_accents = split_cjk = keeps_spaces = False

    def __init__(self, pieces: Sequence[str], names: Specials, continues: Sequence[bool], added: Added) -> None:
        """Sets the attributes.

        Args:
            pieces: by id.
            names: of the special tokens, which are among the pieces.
            continues: whether each piece continues a word.
            added: the attribute `added_pieces`.

        Raises:
            DataError: an added piece is not in the vocabulary, or has another flag.
        """
        super().__init__(name="tokenizer")
        self.added_pieces: Added = _checked(added, pieces)
        self.vocab_size, self.special_names = len(pieces), names
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(pieces.index, names)
        with tf.init_scope():  # constants, even if a tokenizer is created inside a graph
            self._pieces = tf.constant(pieces)
            self.continues = tf.constant(continues)

    @property
    def vocab(self) -> list[str]:
        """The pieces by id."""
        return [piece.decode() for piece in self._pieces.numpy().tolist()]

    @property
    def texts(self) -> list[bytes]:
        """What each piece adds to a text, by id: a space if it begins a word, and maybe only a part of a character."""
        with tf.init_scope():  # a graph may need them as constants
            return self._texts_of(tf.range(self.vocab_size)).numpy().tolist()

    @property
    def readable(self) -> list[str]:
        r"""The pieces by id, to be shown: their texts without the space; bytes of an incomplete character as \xec."""
        texts = (text.decode("utf-8", "backslashreplace") for text in self.texts)
        return [text.strip(WHITE_SPACE) or text for text in texts]

    @abc.abstractmethod
    def get_config(self) -> Json:
        """Keyword arguments that, with the vocabulary, create the same tokenizer."""

    @abc.abstractmethod
    def contents(self) -> tuple[bytes, ...]:
        """The contents of `FILES`; the paths of these files are the arguments that create the same tokenizer."""

    def unreachable(self) -> str:
        """Says how many pieces no text reaches with the settings, and which settings reach them; "" for none."""
        return ""

    @property
    def checksums(self) -> dict[str, str]:
        """The checksums of `FILES`, for `kinds.saved_tokenizer`."""
        return {name: checksum(content) for name, content in zip(self.FILES, self.contents(), strict=True)}

    def save(self, folder: StrPath) -> None:
        """Writes the vocabulary into a folder, which is created if it does not exist; for `kinds.saved_tokenizer`."""
        check_output(folder, directory=True)
        os.makedirs(folder, exist_ok=True)
        for name, content in zip(self.FILES, self.contents(), strict=True):
            write_bytes(os.path.join(folder, name), content)

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens, in the order of `special_names`."""
        return self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id

    def _added_setting(self, ids: Iterable[int] | None = None) -> Json:
        """The part of `get_config` on added pieces, or on those among `ids`."""
        pieces = self.vocab
        kept = {pieces[number] for number in (range(len(pieces)) if ids is None else ids)}
        found = {piece: [*flags] for piece, flags in self.added_pieces.items() if piece in kept}
        return {"added_pieces": found} if found else {}

    def searches(self, piece: str) -> bool:
        """Whether an added piece is looked for in all texts before anything else."""
        return SPECIAL in self.added_pieces.get(piece, ())

    @property
    def added_ids(self) -> set[int]:
        """The ids of added pieces."""
        return {number for number, piece in enumerate(self.vocab) if piece in self.added_pieces}

    @property
    def description(self) -> Json:
        """What a model directory says of its tokenizer, JSON-ready: kind, and `get_config`."""
        return {"kind": self.KIND, **self.get_config()}

    def pieces_of(self, strings: Strings) -> set[int]:
        """The ids of the pieces that decide how texts are segmented, as `needed_pieces` takes them."""
        return set(np.unique(self.tokenize(strings).values.numpy()).tolist())

    def needed_pieces(self, used: Iterable[int], characters: bool = True) -> set[int]:
        """The pieces of a smaller vocabulary that segments the same texts in the same way.

        Args:
            used: ids from `pieces_of`, for all of the texts.
            characters: also keep each piece that is one character, so that a text whose characters are all pieces
                still has no unknown token.

        Returns:
            Ids, for `subset`: those in `used`, special tokens, added pieces, and what the kind of vocabulary needs
            beside them.
        """
        return self._needed_pieces(set(self._known(used, "used")), characters)

    def subset(self, ids: Sequence[int]) -> Self:
        """The tokenizer of these pieces alone, with the same settings; they get the ids 0, 1, 2, ... in this order."""
        with located("ids"):
            return self._subset(self._known(ids, "ids"))

    def _known(self, ids: Iterable[int], name: str) -> list[int]:
        """The ids as a list; ConfigError if one is not that of a piece."""
        given: Any = list(ids) if isinstance(ids, list | tuple | set | frozenset | range) else ids
        numbers: list[int] = fitting(given, list[int], name)
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise ConfigError(f"{name} has {shown(number)}; expected ids of pieces, 0 to {self.vocab_size - 1}")
        return numbers

    @abc.abstractmethod
    def _needed_pieces(self, used: set[int], characters: bool) -> set[int]: ...

    @abc.abstractmethod
    def _subset(self, ids: Sequence[int]) -> Self: ...

    @abc.abstractmethod
    def tokenize(self, strings: Strings, special_tokens: bool = False) -> tf.RaggedTensor:
        """Converts text to token ids, without the special tokens around it.

        Args:
            strings: string [batch], a list, or one string (a batch of one).
            special_tokens: treat the names of special tokens in the text as these tokens instead of ordinary text.
                Special `added_pieces` always are tokens.

        Returns:
            int32 [batch, None].
        """

    @abc.abstractmethod
    def tokenize_with_offsets(
        self, strings: Strings, special_tokens: bool = False
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Converts text to token ids and their offsets in the original text.

        A piece covers whole characters of the original text, so two pieces of one character share it.

        Args:
            strings: see `tokenize`.
            special_tokens: see `tokenize`.

        Returns:
            ids, starts, ends: int32 [batch, None]. Piece j of row i is bytes starts[i, j] to ends[i, j] (exclusive,
            always more than starts[i, j]) of strings[i].
        """

    @abc.abstractmethod
    def tokenize_with_words(self, strings: Strings) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Converts text to token ids and marks the first piece of each word; words are separated by white space.

        Punctuation marks that are pieces, and unknown words, are separate words. White space that is a piece is a part
        of the word after it, and a word of its own only at the end of a text.

        Args:
            strings: see `tokenize`.

        Returns:
            ids: int32 [batch, None].
            word_starts: bool [batch, None].
        """

    def word_starts(self, ids: TokenIds) -> tf.RaggedTensor:
        """Whether each piece begins a word, bool [batch, None] from ids [batch, None], as far as pieces tell.

        Of WordPiece, these are the pieces without ##; of the others, those that `tokenize_with_words` marks.
        """
        return self._word_starts(self._ragged(ids, "ids"))

    def _word_starts(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        return ids.with_values(~tf.gather(self.continues, ids.values))

    def _ragged(self, ids: TokenIds, name: str) -> tf.RaggedTensor:
        """Ids as int32 [batch, None]; ConfigError for anything else and, outside of graphs, for ids of no piece."""
        if not isinstance(ids, tf.Tensor | tf.RaggedTensor | tf.Variable):
            rows = [self._known(row, name) for row in fitting(ids, Sequence[Any], name)]
            values = tf.constant([number for row in rows for number in row], tf.int32)
            return tf.RaggedTensor.from_row_lengths(values, tf.constant([len(row) for row in rows], tf.int64))
        if not ids.dtype.is_integer or ids.shape.rank != 2:
            raise ConfigError(f"{name} is {ids.dtype.name} {ids.shape}; expected whole numbers [batch, length]")
        ragged = ids if isinstance(ids, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(ids)
        if tf.executing_eagerly() and tf.size(ragged.values):
            self._known([int(reduce(ragged.values)) for reduce in (tf.reduce_min, tf.reduce_max)], name)
        return tf.cast(ragged, tf.int32)

    def specials(self, pairs: bool = False) -> int:
        """The number of special tokens that `pack` adds to a text, or to a pair of texts."""
        return 2 + pairs * self.special_names.separators

    def pack(self, first: TokenIds, second: "TokenIds | None" = None) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Joins segments with the special tokens: BERT's [CLS] first [SEP] second [SEP] (paper, figure 2), or RoBERTa's
        <s> first </s></s> second </s>.

        Args:
            first: int32 [batch, None].
            second: int32 [batch, None], or None for single texts.

        Returns:
            ids, type_ids: int32 [batch, None]. BERT's types are 0 up to the first [SEP] and 1 after it; RoBERTa's
                are 0.
        """
        segments = [self._ragged(first, "first")] + ([] if second is None else [self._ragged(second, "second")])
        _check_counts(segments, "first and second")
        return pack(*segments, cls_id=self.cls_id, sep_id=self.sep_id, separators=self.special_names.separators)

    def encode(self, texts: Strings, pairs: "Strings | None" = None, *, max_length: int = 512) -> dict[str, tf.Tensor]:
        """Converts texts, or pairs of texts, to inputs of `BertEncoder`, with special tokens as `pack` adds them.

        Args:
            texts: string [batch], a list, or one string (a batch of one).
            pairs: the second text of each pair, as many as `texts`; None for single texts.
            max_length: tokens per row, special tokens included. A longer text is cut at its end; of a pair, the longer
                text loses one token at a time.

        Returns:
            input_word_ids, input_mask (1 at tokens, 0 at padding) and input_type_ids, each int32 [batch, length]; the
            length is that of the longest row.
        """
        segments = [self.tokenize(strings) for strings in ((texts,) if pairs is None else (texts, pairs))]
        added = self.specials(pairs is not None)
        fitting(max_length, int, "max_length", {"at_least": added + 1, "at_most": 1_000_000})
        _check_counts(segments, "texts and pairs")
        first, second, _ = truncate(*segments, budget=max_length - added)
        return dense_features(*self.pack(first, second))

    def detokenize(self, ids: TokenIds) -> tf.Tensor:
        """Joins pieces to text, without the special tokens for padding, beginnings and ends.

        Args:
            ids: int [batch, length]: a tensor, or rows of any lengths in a RaggedTensor or a list of lists.

        Returns:
            string [batch]. WordPiece's is normalized, with spaces around punctuation; the others' is the original text,
            apart from what their models normalize.
        """
        ragged = self._ragged(ids, "ids")
        kept = tf.reduce_all(ragged.values[:, tf.newaxis] != [self.pad_id, self.cls_id, self.sep_id], axis=1)
        values, rows = tf.boolean_mask(ragged.values, kept), tf.boolean_mask(rows_of(ragged.row_splits), kept)
        return self._trimmed(tf.strings.unsorted_segment_join(self._texts_of(values), rows, ragged.nrows()))

    @abc.abstractmethod
    def _texts_of(self, ids: tf.Tensor) -> tf.Tensor:
        """string [pieces]: what each piece [pieces] adds to a text."""

    def _trimmed(self, texts: tf.Tensor) -> tf.Tensor:
        """string [batch]: joined pieces without the space that begins the first word."""
        return tf.strings.regex_replace(texts, "^ ", "")


def _check_counts(segments: Sequence[tf.RaggedTensor], names: str) -> None:
    """Raises ConfigError, outside of graphs, unless all segments have as many rows."""
    counts = [int(segment.nrows()) for segment in segments] if tf.executing_eagerly() else []
    if len(set(counts)) > 1:
        raise ConfigError(f"{names} have {' and '.join(map(str, counts))} rows; expected as many pairs as texts")


def _checked(added: Added, pieces: Sequence[str]) -> Added:
    """Added pieces, if they are valid."""
    known = set(pieces)
    for piece, flags in added.items():
        if piece not in known or not piece:
            raise DataError(f"the added piece {piece!r} is not in the vocabulary; expected one of its pieces")
        if wrong := set(flags).difference(FLAGS):
            raise DataError(f"the added piece {piece!r} is {min(wrong)!r}; expected some of {', '.join(FLAGS)}")
    # Not a dict, of which a tf.Module makes something else.
    return types.MappingProxyType({piece: tuple(flags) for piece, flags in added.items()})


def rows_of(row_splits: tf.Tensor) -> tf.Tensor:
    """int64 [values]: the row of each value. (TensorFlow's own function needs memory for rows * values numbers.)"""
    steps = tf.math.bincount(tf.cast(row_splits[1:], tf.int32), dtype=tf.int64)  # rows that end before each value
    return tf.cumsum(steps)[: row_splits[-1]]


def is_among(codes: tf.Tensor, candidates: Array) -> tf.Tensor:
    """bool, in the shape of `codes`; `candidates` must be ascending."""
    known = tf.constant(candidates)
    nearest = tf.minimum(tf.searchsorted(known, codes), known.shape[0] - 1)
    return tf.gather(known, nearest) == codes
