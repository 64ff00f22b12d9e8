"""Canonical composition against Hugging Face's `tokenizers` and, where these know all characters, Python's own."""

import functools
import itertools
import random
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
import tokenizers

from bert_tf.text.composition import Composition

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
MARKS = [char for char in CHARACTERS if unicodedata.combining(char)]
compose = tokenizers.normalizers.NFC().normalize_str
CONTEXTS = ["{}", "a{}b", "{}\u0301", "e\u0323{}\u0301"]


@functools.cache
def traced(with_offsets):
    composition = Composition()
    signature = [tf.TensorSpec([None], tf.string)]
    return tf.function(
        lambda texts: composition.normalize(texts, with_offsets), autograph=False, input_signature=signature
    )


def assert_composed(texts):
    for begin in range(0, len(texts), 50_000):
        batch = texts[begin : begin + 50_000]
        for text, found in zip(batch, traced(False)(batch)[0].numpy().tolist(), strict=True):
            assert found == compose(text).encode(), ascii(text)


@pytest.fixture(scope="module")
def changing():
    """Characters that have, or are a part of, a decomposition."""
    parts = (unicodedata.normalize("NFD", char) for char in CHARACTERS)
    whole = [(char, part) for char, part in zip(CHARACTERS, parts, strict=True) if char != part]
    return sorted({*MARKS, *(char for char, _ in whole), *itertools.chain(*(part for _, part in whole))})


def test_characters_compose_as_by_the_reference(changing):
    for context in CONTEXTS:
        assert_composed([context.replace("{}", char) for char in changing[::5]])
    assert_composed([unicodedata.normalize("NFD", char) for char in changing])


def test_marks_in_any_order_compose_as_by_the_reference(changing):
    choice = random.Random(0)
    few = [*"aeoAαω\u0dd9\u09c7\u1100\u1161\u11a8가 ", *"\u0301\u0323\u0302\u0345\u0313\u0316\u0307\u09be\u0dca\u0dcf"]
    for characters in (few, [*few, *choice.sample(changing, 500)]):
        assert_composed(["".join(choice.choices(characters, k=choice.randrange(10))) for _ in range(5000)])


def test_no_character_is_both_joined_with_one_and_joins_another():
    """What `_join` relies on: it joins all pairs of a text at once."""
    decompose = tokenizers.normalizers.NFD().normalize_str  # Python's Unicode has characters that are both, since 16
    made = [char for char in CHARACTERS if compose(char) == char]
    pairs = [text for text in (decompose(char) for char in made) if len(text) > 1]
    starters = {text[-1] for text in pairs if not unicodedata.combining(text[-1])}
    assert starters and not starters & {compose(text[:-1]) for text in pairs}


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_every_character_composes_as_by_the_reference(context):
    assert_composed([context.replace("{}", char) for char in CHARACTERS])


@pytest.mark.slow
def test_every_pair_of_marks_composes_as_by_the_reference():
    assert_composed([f"a{first}{second}" for first in MARKS for second in MARKS])


def test_offsets_lead_from_composed_characters_to_those_that_they_are_made_of():
    texts = ["xe\u0301y", "\u1100\u1161\u11a8", "e\u0316\u0301", "\u212b!", "", "plain", "s\u0307\u0323"]
    composed, offsets, splits = (values.numpy().tolist() for values in traced(True)(texts))
    rows = [offsets[begin:end] for begin, end in itertools.pairwise(splits)]
    assert composed == [unicodedata.normalize("NFC", text).encode() for text in texts]
    assert rows == [[0, 1, 1, 4, 5], [0, 0, 0, 9], [0, 0, 1, 1, 5], [0, 0, 3, 4], [0], [*range(6)], [0, 0, 0, 5]]


def test_offsets_ascend_and_end_with_the_text(changing):
    choice = random.Random(1)
    texts = ["".join(choice.choices([*changing, *"abc"], k=choice.randrange(8))) for _ in range(3000)]
    composed, offsets, splits = (values.numpy() for values in traced(True)(texts))
    for text, found, begin, end in zip(texts, composed, splits[:-1], splits[1:], strict=True):
        row = offsets[begin:end]
        assert len(row) == len(found) + 1 and row[-1] == len(text.encode()) and (np.diff(row) >= 0).all(), ascii(text)


def test_a_long_run_of_marks_takes_no_more_than_its_length():
    count = 100_000  # Python's own takes minutes for these
    found = traced(False)(["e" + "\u0301\u0323" * count])[0].numpy()[0].decode()
    assert found == "\u1eb9" + "\u0323" * (count - 1) + "\u0301" * count
