"""Words and characters computed from the offsets of wordpieces."""

import itertools
import random
import unicodedata

import pytest
import tensorflow as tf

from bert_tf.files import bundled
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.text import Tokenizer
from bert_tf.text.codepoints import CJK_RANGES, is_punctuation
from bert_tf.text.words import (
    character_groups,
    characters,
    extents,
    given_words,
    quotable_pieces,
    word_numbers,
    word_of,
)
from tests.learned import KINDS, learned, lines
from tests.model.small import PIECES

VOCABULARY = [*PIECES, *(f"##{letter}" for letter in "abcdfghijklmnopqrtuvwxyz"), "北", "京", "(", "-"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(VOCABULARY)


def test_given_words_are_joined_with_spaces_and_padding_is_left_out():
    rows = [["St.", "북경", "", "é"], [], ["a b"], [""], ["x"] * 9]
    padded = tf.constant([[*row, *[""] * (12 - len(row))] for row in rows])
    found = given_words(padded)
    rows[3] = []  # at the end of a row, "" is padding
    texts = [" ".join(row).encode() for row in rows]
    assert found["text"].numpy().tolist() == texts
    places = zip(texts, found["word_starts"].to_list(), found["word_ends"].to_list(), strict=True)
    assert [[text[start:end].decode() for start, end in zip(*ends, strict=True)] for text, *ends in places] == rows
    assert given_words(tf.zeros([2, 0], tf.string))["word_starts"].to_list() == [[], []]


def words_of(tokenizer, texts):
    """list of lists of str, from the graph's character offsets."""
    text = tf.constant(texts)
    ids, starts, ends = quotable_pieces(tokenizer, text)
    starts, ends = (
        value.with_values(characters(text, value.value_rowids(), value.values)).to_list()
        for value in extents(word_numbers(tokenizer, text, ids, starts, ends), starts, ends)
    )
    rows = zip(texts, starts, ends, strict=True)
    return [[text[first:last] for first, last in zip(*places, strict=True)] for text, *places in rows]


def by_rule(text):
    """The same in plain Python: punctuation around chunks between white space, and ideographs, are separate words."""
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


def test_words_of_real_sentences_follow_the_rule(tokenizer):
    texts = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:500]
    texts += ["$5, (a)b [c] -- d.e", "北(京)a", "é, ñ!", "가나다. 라", "¿qué? “x”", "a\tb\u00a0c"]
    assert words_of(tokenizer, texts) == [by_rule(text) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_words_and_spans_of_every_tokenizer_follow_the_rule(kind):
    tokenizer, rng = learned(kind).tokenizer, random.Random(0)
    texts = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:100]
    texts += lines("data/korean/gnome_heldout.txt.gz", 100)
    texts += [
        "a  b",
        " a ",
        "\u3000가\u3000나 ",
        "“x” …",
        "a\tb\u00a0c",
        "end. ",
        "( a )",
        "\n",
        "",
        "  ",
        "½ ² ﬁ",
        "집. \n집",
    ]
    letters = [*"ab.,'\"( 집가é½😀…—", "  ", " the", "\t"]
    texts += ["".join(rng.choices(letters, k=rng.randrange(12))) for _ in range(500)]
    ids, starts, ends = (values.to_list() for values in quotable_pieces(tokenizer, tf.constant(texts)))
    plain = [values.to_list() for values in tokenizer.tokenize_with_offsets(texts)]
    empty = 0
    for text, found, pieces, *spans in zip(texts, words_of(tokenizer, texts), ids, starts, ends, *plain, strict=True):
        assert pieces == (spans[2] if text.strip() else [])
        inner = set()  # bytes within a piece
        for start, end, first, last in zip(*spans[:2], *(column[: len(pieces)] for column in spans[3:]), strict=True):
            part, whole = (text.encode()[slice(*span)].decode() for span in ((start, end), (first, last)))
            assert start <= end and part == part.strip() == whole.strip()
            empty += not part
            inner.update(range(start + 1, end))
        expected, at = [], 0
        for word in by_rule(text):
            at = text.index(word, at)
            if len(text[:at].encode()) in inner:  # a piece is not split
                expected[-1] += word
            else:
                expected.append(word)
            at += len(word)
        assert found == expected
    assert (empty > 50) == tokenizer.keeps_spaces


def test_deleted_characters_do_not_split_words(tokenizer):
    marked = ["a,*b", "a*,b c", "a/*b", "a'*b*", "a *b", "a* b", "a, * b", "a,*\u3000*b", "*a", "(*a*)", "a**,**b"]
    deleted = ["\u200b", "\u200c", "\u00ad", "\u200e", "\x00", "\x0b"]
    found = words_of(tokenizer, [text.replace("*", char) for char in deleted for text in marked])
    bare = [text.replace("*", "") for text in marked]
    without = str.maketrans("", "", "".join(deleted))
    assert [[word.translate(without) for word in words] for words in found] == [by_rule(text) for text in bare] * 6
    # Texts without any take another code path; the results are the same.
    assert words_of(tokenizer, bare) == [by_rule(text) for text in bare]


def test_words_of_decomposed_text_are_the_decomposed_words_of_composed_text(tokenizer):
    texts = ["Visit Café Zoë", "(Zoë's) pâté-à-porter, voilà!", "가나다 라", "é", "", "Ǘ ñ"]
    composed = [[unicodedata.normalize("NFD", word) for word in words] for words in words_of(tokenizer, texts)]
    assert words_of(tokenizer, [unicodedata.normalize("NFD", text) for text in texts]) == composed


@pytest.mark.parametrize("strips", [True, False])
def test_wordpieces_include_the_deleted_nonspacing_marks_that_follow_them(strips):
    tokenizer, rng = Tokenizer(VOCABULARY, strip_accents=strips), random.Random(0)
    letters = [
        *"abeé  ,가",
        *unicodedata.normalize("NFD", "각"),
        *"नमस्तेा",
        *"שָׁ",
        *"e\u0301\u0302\u200d\ufe0f\U0001e8d0",
    ]
    texts = ["".join(rng.choices(letters, k=rng.randrange(12))).encode() for _ in range(300)]
    texts += ["नमस्ते".encode(), b"", "\u0301a".encode(), b"e\xcc", b"e\xcc\x81\xcc", b"e\xe0\xa4 a"]  # some are invalid

    def moved(text, end):
        marks = itertools.takewhile(
            lambda char: unicodedata.category(char) == "Mn", text[end:].decode("utf-8", "replace")
        )
        return end + len("".join(marks).encode())

    ids, starts, ends = quotable_pieces(tokenizer, tf.constant(texts))
    plain = tokenizer.tokenize_with_offsets(tf.constant(texts))
    assert (ids.to_list(), starts.to_list()) == (plain[0].to_list(), plain[1].to_list())
    old = plain[2].to_list()
    expected = [[moved(text, end) for end in row] for text, row in zip(texts, old, strict=True)] if strips else old
    assert ends.to_list() == expected
    assert (expected != old) == strips


def test_wordpieces_that_share_a_character_form_one_group():
    # A syllable decomposed into two wordpieces, as with an uncased vocabulary: both cover bytes 0 to 3.
    starts, ends = tf.ragged.constant([[0, 0, 6], [], [0]]), tf.ragged.constant([[3, 6, 9], [], [2]])
    groups = character_groups(starts, ends)
    assert groups.to_list() == [[0, 0, 1], [], [0]]
    assert [value.to_list() for value in extents(groups, starts, ends)] == [[[0, 6], [], [0]], [[6, 9], [], [2]]]


def test_a_wordpiece_belongs_to_the_last_word_that_does_not_start_after_it():
    text = tf.constant(["ab cd", "", "x y"])
    starts, words = tf.ragged.constant([[0, 1, 4], [], [2]]), tf.ragged.constant([[0, 3], [], [0, 2]])
    assert word_of(starts, words, text).numpy().tolist() == [0, 0, 1, 3]


def test_byte_offsets_are_converted_to_characters():
    texts = ["a가😀b", "", "é"]
    offsets = [[len(text[:place].encode()) for place in range(len(text) + 1)] for text in texts]
    rows = [row for row, some in enumerate(offsets) for _ in some]
    found = characters(
        tf.constant(texts), tf.constant(rows, tf.int64), tf.constant([*itertools.chain(*offsets)], tf.int32)
    )
    assert found.numpy().tolist() == [0, 1, 2, 3, 4, 0, 0, 1]
