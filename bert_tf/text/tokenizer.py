"""Text to token ids and back, in the TensorFlow graph: the same code in training, evaluation and a served model."""

import os

import numpy as np
import tensorflow as tf
from tensorflow_text.core.pybinds import pywrap_fast_wordpiece_tokenizer_model_builder as wordpiece_builder
from tensorflow_text.python.ops.fast_wordpiece_tokenizer import gen_fast_wordpiece_tokenizer

from bert_tf.text.codepoints import SPECIAL_BYTES, SPECIAL_PIECES, SPECIAL_STAND_INS, is_punctuation, stand_ins
from bert_tf.text.normalizer import Normalizer
from bert_tf.text.vocabulary import check_vocabulary, read_vocabulary

MAX_WORD_CHARS = 200  # longer words become [UNK], as in google-research/bert


def _character_lengths():
    """int64 [256]: how far the character reaches from a byte of it; 1 from any but its first."""
    lengths = np.ones(256, np.int64)
    lengths[0xC2:0xE0], lengths[0xE0:0xF0], lengths[0xF0:0xF5] = 2, 3, 4
    for byte, piece in zip(SPECIAL_BYTES, SPECIAL_PIECES, strict=True):
        lengths[byte[0]] = len(piece)
    return lengths


def _op_vocabulary(pieces, split_cjk):
    """The vocabulary as the WordPiece op needs it: in the characters that the normalizer writes."""
    table = stand_ins(split_cjk)
    specials = dict(zip(SPECIAL_PIECES, SPECIAL_STAND_INS, strict=True))
    # No word holds these, nor a space, but the op would match them. U+0011 its builder takes for itself.
    reserved = {"\x11", *SPECIAL_STAND_INS, *map(chr, table.values())}
    return [
        specials.get(piece) or piece.translate(table)
        if piece.split() == [piece] and reserved.isdisjoint(piece)
        else f"[{piece_id}]\x11"  # keeps the id; a piece of letters and punctuation never matches
        for piece_id, piece in enumerate(pieces)
    ]


def _wordpiece(normalized, model):
    """ids int32 [pieces], row_splits int64 [batch + 1], starts and ends int64 [pieces] in `normalized`."""
    _, ids, row_splits, starts, ends = gen_fast_wordpiece_tokenizer.fast_wordpiece_tokenize_with_offsets(
        input_values=normalized, wp_model=model
    )
    return tf.cast(ids, tf.int32), row_splits, starts, ends


def _rows(row_splits):
    """int64 [pieces]: the row of each piece. (TensorFlow's own way takes memory of rows times pieces.)"""
    steps = tf.math.bincount(tf.cast(row_splits[1:], tf.int32), dtype=tf.int64)  # rows that end before each piece
    return tf.cumsum(steps)[: row_splits[-1]]


def _replace_rows(tokens, rows, replacements):
    """Puts the texts of `replacements` in the place of `rows`; both are as `_wordpiece` gives them."""
    ragged = []
    for ids, row_splits, starts, ends in (tokens, replacements):
        values = tf.stack([tf.cast(ids, tf.int64), starts, ends], axis=1)  # [pieces, 3]
        ragged.append(tf.RaggedTensor.from_row_splits(values, row_splits, validate=False))
    batch = ragged[0].nrows()
    order = tf.tensor_scatter_nd_update(tf.range(batch), rows[:, tf.newaxis], batch + tf.range(ragged[1].nrows()))
    merged = tf.gather(tf.concat(ragged, axis=0), order)
    ids, starts, ends = tf.unstack(merged.values, axis=1)
    return tf.cast(ids, tf.int32), merged.row_splits, starts, ends


class Tokenizer(tf.Module):
    """BERT's tokenizer (BasicTokenizer and WordpieceTokenizer of google-research/bert, tokenization.py).

    It works on strings and string tensors, eagerly and in graphs; an exported model holds all it needs as constants.

    Invalid UTF-8 is read as Python's `bytes.decode("utf-8", "ignore")` reads it.

    Attributes:
        continues: bool [vocab_size], True at the pieces that begin with "##".
    """

    def __init__(self, vocab, lower_case=True, strip_accents=None, split_cjk=True):
        """Builds the tokenizer.

        Args:
            vocab: path of a vocab.txt, or the sequence of pieces by id.
            lower_case: lower-case the text.
            strip_accents: decompose the text (NFD; Hangul syllables too) and drop accents; None: as `lower_case`, which
                is BERT's habit.
            split_cjk: make every CJK ideograph a word of its own.

        Raises:
            DataError: the vocabulary cannot be read or used; see `read_vocabulary`.
        """
        super().__init__(name="tokenizer")
        if isinstance(vocab, (str, os.PathLike)):
            pieces = read_vocabulary(vocab)
        else:
            pieces = list(vocab)
            check_vocabulary(pieces)
        self._normalizer = Normalizer(lower_case, strip_accents, split_cjk)
        self.lower_case = self._normalizer.lower_case
        self.strip_accents = self._normalizer.strip_accents
        self.split_cjk = self._normalizer.split_cjk
        self.vocab_size = len(pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(pieces.index, SPECIAL_PIECES)

        written = _op_vocabulary(pieces, self.split_cjk)
        # The op caps words by bytes. At 200 it makes [UNK] of every word that the cap of 200 characters might concern,
        # which is how such words are found; only texts that have one are done again, by the second model.
        ordinary, long_words = (
            wordpiece_builder.build_fast_wordpiece_model(written, size, "##", SPECIAL_STAND_INS[1], False, False)
            for size in (MAX_WORD_CHARS, 4 * MAX_WORD_CHARS)
        )
        with tf.init_scope():  # the buffers are constants, also where a tokenizer is made inside a graph
            self._ordinary_model = tf.constant(np.frombuffer(ordinary, np.uint8))
            self._long_words_model = tf.constant(np.frombuffer(long_words, np.uint8))
            self._pieces = tf.constant(pieces)
            self.continues = tf.constant([piece.startswith("##") for piece in pieces])
            self._stands_alone = tf.constant(
                [piece == "[UNK]" or (len(piece) == 1 and is_punctuation(piece)) for piece in pieces]
            )
            self._character_lengths = tf.constant(_character_lengths())

    @property
    def vocab(self):
        """The pieces by id: list of str."""
        return [piece.decode() for piece in self._pieces.numpy().tolist()]

    def get_config(self):
        """The choices that, with the vocabulary, make this tokenizer again: keyword arguments of the constructor."""
        return {"lower_case": self.lower_case, "strip_accents": self.strip_accents, "split_cjk": self.split_cjk}

    def tokenize(self, strings, special_tokens=False):
        """Turns text into token ids; [CLS] and [SEP] are not added.

        Args:
            strings: string tensor [batch], a list of str, or a str (a batch of one).
            special_tokens: read "[MASK]", "[SEP]", "[CLS]", "[UNK]" and "[PAD]" in the text as the special pieces; else
                they are text like any other.

        Returns:
            RaggedTensor int32 [batch, None].
        """
        _, _, ids, row_splits, _, _ = self._tokenize(strings, special_tokens, with_offsets=False)
        return tf.RaggedTensor.from_row_splits(ids, row_splits, validate=False)

    def tokenize_with_offsets(self, strings, special_tokens=False):
        """Turns text into token ids and says where each piece stands in the text as it was given.

        A piece covers the whole characters that its own were made from, so two pieces of one character ("İ") share it.
        Characters that were deleted belong to a piece only inside it.

        Args:
            strings: see `tokenize`.
            special_tokens: see `tokenize`.

        Returns:
            ids, starts, ends: RaggedTensors int32 [batch, None]. Row i's piece j is bytes starts[i, j] to ends[i, j]
            (exclusive, and always more than starts[i, j]) of strings[i].
        """
        text, (offsets, offset_splits), ids, row_splits, starts, ends = self._tokenize(
            strings, special_tokens, with_offsets=True
        )
        rows = _rows(row_splits)  # [pieces]
        begins = tf.gather(offset_splits, rows)
        first_bytes = tf.gather(offsets, begins + starts)
        last_bytes = tf.gather(offsets, begins + ends - 1)
        # The normalizer gives a changed character's own start for each of its bytes, and an unchanged character's bytes
        # one by one. Either way the character ends as far on as its byte there says.
        all_bytes = tf.io.decode_raw(tf.strings.reduce_join(text), tf.uint8)
        text_begins = tf.cumsum(tf.cast(tf.strings.length(text), tf.int64), exclusive=True)
        ending = tf.gather(all_bytes, tf.gather(text_begins, rows) + last_bytes)
        past_last = last_bytes + tf.gather(self._character_lengths, tf.cast(ending, tf.int32))
        return tuple(
            tf.RaggedTensor.from_row_splits(tf.cast(values, tf.int32), row_splits, validate=False)
            for values in (ids, first_bytes, past_last)
        )

    def tokenize_with_words(self, strings):
        """Turns text into token ids and says where words begin, a word being what stands between white space.

        So a Korean word with Chinese characters in it is one word, though each of them is a token without "##".
        Punctuation and [UNK] are words of their own.

        Args:
            strings: see `tokenize`.

        Returns:
            ids int32, word_starts bool: RaggedTensors [batch, None].
        """
        _, _, ids, row_splits, starts, ends = self._tokenize(strings, special_tokens=False, with_offsets=False)
        alone, rows = tf.gather(self._stands_alone, ids), _rows(row_splits)
        # Normalized text has all of its white space left and nothing else between two pieces.
        begins = (starts[1:] != ends[:-1]) | alone[1:] | alone[:-1] | (rows[1:] != rows[:-1])
        begins = tf.concat([tf.ones_like(ids[:1], tf.bool), begins], axis=0)
        return tuple(tf.RaggedTensor.from_row_splits(v, row_splits, validate=False) for v in (ids, begins))

    def detokenize(self, ids):
        """Joins pieces to text: "##" pieces to the one before, a space before every other.

        What normalization changed stays changed, and punctuation stands alone, so this is not the text that was
        tokenized. [PAD], [CLS] and [SEP] are left out.

        Args:
            ids: RaggedTensor or tensor of int32 or int64 [batch, length].

        Returns:
            string [batch].
        """
        ids = tf.RaggedTensor.from_tensor(ids) if not isinstance(ids, tf.RaggedTensor) else ids
        left_out = tf.constant([self.pad_id, self.cls_id, self.sep_id], ids.dtype)
        kept = tf.reduce_all(ids.values[:, tf.newaxis] != left_out, axis=1)
        values = tf.boolean_mask(ids.values, kept)
        pieces = tf.gather(self._pieces, values)
        pieces = tf.where(tf.gather(self.continues, values), tf.strings.regex_replace(pieces, "^##", ""), " " + pieces)
        texts = tf.strings.unsorted_segment_join(pieces, tf.boolean_mask(_rows(ids.row_splits), kept), ids.nrows())
        return tf.strings.regex_replace(texts, "^ ", "")

    def _tokenize(self, strings, special_tokens, with_offsets):
        """Mended text, the normalizer's offsets into it, and ids, row_splits, starts, ends in normalized text."""
        text, normalized, *offsets = self._normalizer.normalize(strings, special_tokens, with_offsets)
        tokens = _, row_splits, starts, ends = _wordpiece(normalized, self._ordinary_model)
        is_long = ends - starts > MAX_WORD_CHARS

        def with_long_words():
            rows, _ = tf.unique(tf.boolean_mask(_rows(row_splits), is_long))
            return _replace_rows(tokens, rows, self._with_long_words(tf.gather(normalized, rows)))

        return text, offsets, *tf.cond(tf.reduce_any(is_long), with_long_words, lambda: tokens)

    def _with_long_words(self, normalized):
        """Makes words of more than 200 characters one [UNK]; the op has made those of more than 800 bytes."""
        ids, row_splits, starts, ends = _wordpiece(normalized, self._long_words_model)
        is_first = tf.logical_not(tf.gather(self.continues, ids))  # [pieces]
        firsts = tf.where(is_first)[:, 0]  # [words]
        lasts = tf.concat([firsts, tf.size(ids, tf.int64)[tf.newaxis]], axis=0)[1:] - 1
        word_starts, word_ends = tf.gather(starts, firsts), tf.gather(ends, lasts)
        long_words = tf.where(word_ends - word_starts > MAX_WORD_CHARS)[:, 0]
        begins = tf.gather(word_starts, long_words)
        rows = tf.searchsorted(row_splits, tf.gather(firsts, long_words), side="right", out_type=tf.int64) - 1
        words = tf.strings.substr(tf.gather(normalized, rows), begins, tf.gather(word_ends, long_words) - begins)
        too_long = tf.strings.length(words, "UTF8_CHAR") > MAX_WORD_CHARS
        capped_word = tf.scatter_nd(long_words[:, tf.newaxis], too_long, tf.shape(firsts, tf.int64))
        word_of_piece = tf.cumsum(tf.cast(is_first, tf.int64)) - 1
        capped_piece = tf.gather(capped_word, word_of_piece)
        kept = tf.logical_or(is_first, tf.logical_not(capped_piece))
        kept_before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int64))], axis=0)
        return (
            tf.boolean_mask(tf.where(capped_piece, self.unk_id, ids), kept),
            tf.gather(kept_before, row_splits),
            tf.boolean_mask(starts, kept),
            tf.boolean_mask(tf.where(capped_piece, tf.gather(word_ends, word_of_piece), ends), kept),
        )
