"""Words and characters from the offsets of pieces."""

import itertools

import pytest
import tensorflow as tf

from bert_tf.files import bundled
from bert_tf.inputs.tables import read_table
from bert_tf.text import Tokenizer
from bert_tf.text.codepoints import CJK_RANGES, is_punctuation
from bert_tf.text.words import character_groups, characters, extents, place_of, word_numbers
from tests.model.small import PIECES

VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz"), "北", "京", "(", "-"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(VOCABULARY)


def words_of(tokenizer, texts):
    """list of lists of str, by the graph's offsets in characters."""
    text = tf.constant(texts)
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    starts, ends = (
        value.with_values(characters(text, value.value_rowids(), value.values)).to_list()
        for value in extents(word_numbers(tokenizer, text, ids, starts, ends), starts, ends)
    )
    rows = zip(texts, starts, ends, strict=True)
    return [[text[first:last] for first, last in zip(*places, strict=True)] for text, *places in rows]


def by_rule(text):
    """The same in plain Python: what opens or closes a chunk between white space, and ideographs, stand alone."""
    words = []
    for chunk in text.split():
        marks = [is_punctuation(char) for char in chunk]
        opening = len(list(itertools.takewhile(bool, marks)))
        closing = (
            len(chunk) - len(list(itertools.takewhile(bool, reversed(marks)))) if opening < len(chunk) else opening
        )
        words += chunk[:opening]
        for alone, part in itertools.groupby(chunk[opening:closing], _is_ideograph):
            part = "".join(part)
            words += part if alone else [part]
        words += chunk[closing:]
    return words


def _is_ideograph(char):
    return any(first <= ord(char) <= last for first, last in CJK_RANGES)


def test_words_by_hand(tokenizer):
    found = words_of(tokenizer, ['he said: "U.S., don\'t (ever) go-there!" ...', "", "to 北京ab now\u200b."])
    assert " ".join(found[0]) == """he said : " U.S . , don't ( ever ) go-there ! " . . ."""
    assert found[1:] == [[], ["to", "北", "京", "ab", "now", "."]]


def test_words_of_real_sentences_are_those_of_the_rule(tokenizer):
    texts = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:500]
    texts += ["$5, (a)b [c] -- d.e", "北(京)a", "é, ñ!", "가나다. 라", "¿qué? “x”", "a\tb\u00a0c"]
    assert words_of(tokenizer, texts) == [by_rule(text) for text in texts]


def test_pieces_that_share_a_character_are_one_group():
    # A syllable decomposed into two pieces, as an uncased vocabulary does it: bytes 0 to 3 are in both.
    starts, ends = tf.ragged.constant([[0, 0, 6], [], [0]]), tf.ragged.constant([[3, 6, 9], [], [2]])
    groups = character_groups(starts, ends)
    assert groups.to_list() == [[0, 0, 1], [], [0]]
    assert [value.to_list() for value in extents(groups, starts, ends)] == [[[0, 6], [], [0]], [[6, 9], [], [2]]]


def test_a_piece_is_in_the_last_word_that_does_not_begin_after_it():
    text = tf.constant(["ab cd", "", "x y"])
    starts, words = tf.ragged.constant([[0, 1, 4], [], [2]]), tf.ragged.constant([[0, 3], [], [0, 2]])
    assert place_of(starts, words, text).numpy().tolist() == [0, 0, 1, 3]


def test_bytes_are_counted_as_characters():
    texts = ["a가😀b", "", "é"]
    offsets = [[len(text[:place].encode()) for place in range(len(text) + 1)] for text in texts]
    rows = [row for row, some in enumerate(offsets) for _ in some]
    found = characters(
        tf.constant(texts), tf.constant(rows, tf.int64), tf.constant([*itertools.chain(*offsets)], tf.int32)
    )
    assert found.numpy().tolist() == [0, 1, 2, 3, 4, 0, 0, 1]
