"""A tokenizer of ModernBERT's kind, and the one with its real vocabulary, against Hugging Face's `tokenizers`."""

import gzip
import json
import random
import unicodedata
from itertools import islice, pairwise

import pytest
import tensorflow as tf
import tokenizers

from bert_tf.bundled import bundled
from bert_tf.text.byte_pair import BytePairTokenizer
from tests.learned import learned, modern
from tests.pages import ROOT
from tests.text.modern import SIZE, real

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
MARKS = dict.fromkeys(char for char in CHARACTERS if unicodedata.combining(char))
PARTS = [*" " * 8, *"\t\n\u3000\xa0", *"'stred.fim|[]<>19Ee½é가日😀\0", *"\u0301\u0323\u0316\u212b", "e\u0301"]
PARTS += ["\u1100\u1161\u11a8", "[unused0]", "|||IP_ADDRESS|||", "<|padding|>", "  ", "[MASK]", "[SEP]"]
CODE = [
    "def f(x):\n    if x:\n        return  x  # two\n\n\n    return None\n",
    "\tfor (;;) {\n\t\t  i++;   }",
    " " * 60 + "deep",
    "  ",
    "a" + " " * 25,
    "",
]


def random_texts(count):
    choice = random.Random(0)
    return ["".join(choice.choices(PARTS, k=choice.randrange(20))) for _ in range(count)]


@pytest.fixture(scope="module")
def learned_one():
    return modern()


@pytest.fixture(scope="module")
def real_one():
    """As `learned_one`, with ModernBERT's pieces."""
    content = json.loads(real().to_str())
    ids = content["model"]["vocab"] | {token["content"]: token["id"] for token in content["added_tokens"]}
    flags = {token["content"]: [flag for flag in token if token[flag] is True] for token in content["added_tokens"]}
    merges = [" ".join(merge) for merge in content["model"]["merges"]]
    return BytePairTokenizer(ids, merges, added_pieces=flags, nfc=True), real()


SIGNATURE = [tf.TensorSpec([None], tf.string)]


def assert_equal(ours, reference, texts):
    """Ids are equal and, in bytes, offsets, except that the library leaves out what was composed with the character
    before it. Of several marks in a row, whose order may change, only ids are compared.
    """
    run = tf.function(
        lambda batch: ours.tokenize_with_offsets(batch, special_tokens=True), autograph=False, input_signature=SIGNATURE
    )
    for begin in range(0, len(texts), 20_000):
        batch = texts[begin : begin + 20_000]
        expected = reference.encode_batch(batch, add_special_tokens=False)
        for text, right, *found in zip(batch, expected, *(one.to_list() for one in run(batch)), strict=True):
            assert found[0] == right.ids, (text, right.tokens)
            if any(pair[1] in MARKS and unicodedata.normalize("NFD", pair[0])[-1] in MARKS for pair in pairwise(text)):
                continue
            for (start, end), *span in zip(right.offsets, *found[1:], strict=True):
                if text[start:end].strip():  # the library leaves nothing of white space
                    last = end
                    while last < len(text) and (text[last] in MARKS or "\u1160" <= text[last] <= "\u11ff"):
                        last += 1
                    assert span[0] == len(text[:start].encode()), ascii(text)
                    assert len(text[:end].encode()) <= span[1] <= len(text[:last].encode()), ascii(text)


def assert_same_ids(ours, reference, texts):
    run = tf.function(ours.tokenize, autograph=False, input_signature=SIGNATURE)
    for begin in range(0, len(texts), 50_000):
        batch = texts[begin : begin + 50_000]
        expected = reference.encode_batch(batch, add_special_tokens=False)
        for text, right, found in zip(batch, expected, run(batch).to_list(), strict=True):
            assert found == right.ids, (ascii(text), right.tokens)


def test_ids_and_offsets_equal_those_of_the_reference(learned_one):
    assert_equal(*learned_one, [*CODE, *random_texts(3000)])


def test_pairs_are_packed_as_the_template_says(learned_one):
    ours, reference = learned_one
    ids = ours.encode(["one text"], ["e\u0301 other"])["input_word_ids"].numpy().tolist()
    assert ids == [reference.encode("one text", "e\u0301 other").ids]


def test_pieces_that_a_merge_makes_and_those_with_other_flags_are_ordinary():
    plain = learned("byte_bpe").tokenizer
    (made,) = (merge.replace(" ", "") for merge in plain.merges[300:301])
    flags = {made: [], "one two": [], "three": ["single_word"]}
    ours = BytePairTokenizer([*plain.vocab, "one two", "three"], plain.merges, added_pieces=flags)
    assert [ours.searches(piece) for piece in flags] == [False, True, False]
    texts = [f"a{made}b {made}", "three"]
    assert ours.tokenize(texts).to_list() == plain.tokenize(texts).to_list()
    [[first, found, last]] = ours.tokenize(["xone twox"]).to_list()
    assert first == last and found == plain.vocab_size


def test_a_space_is_put_before_what_follows_an_added_piece_as_by_the_reference(learned_one):
    ours, reference = learned_one
    with_space = BytePairTokenizer(ours.vocab, ours.merges, True, ours.added_pieces, True)
    content = reference.to_str().replace('"add_prefix_space":false', '"add_prefix_space":true')
    reference = tokenizers.Tokenizer.from_str(content)
    texts = ["a|||IP_ADDRESS|||b c  d", "[unused0]", *CODE, *random_texts(300)]
    ids, starts, _ = (one.to_list() for one in with_space.tokenize_with_offsets(texts, special_tokens=True))
    assert ids == [one.ids for one in reference.encode_batch(texts, add_special_tokens=False)]
    for text, row in zip(texts, starts, strict=True):  # the library's begin one character late after an added piece
        assert all(text.encode()[start : start + 1].strip() for start in row[:1] if text[:1].strip()), text


def test_bytes_that_utf8_never_contains_need_no_piece(learned_one):
    ours, _ = learned_one
    lacking = {chr(byte) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}
    pieces = [piece for piece in ours.vocab if piece not in lacking]
    fewer = BytePairTokenizer(pieces, ours.merges, False, ours.added_pieces, True)
    texts = ["plain text", "한국어 e\u0301 😀", b"\xff\xc0a"]
    assert [[pieces[one] for one in row] for row in fewer.tokenize(texts).to_list()] == [
        [ours.vocab[one] for one in row] for row in ours.tokenize(texts).to_list()
    ]
    used = fewer.needed_pieces(fewer.pieces_of(texts))
    smaller = fewer.subset(sorted(used))
    assert smaller.get_config() == fewer.get_config() and smaller.vocab_size < fewer.vocab_size
    assert [smaller.texts[one] for one in smaller.tokenize(texts).values.numpy()] == [
        fewer.texts[one] for one in fewer.tokenize(texts).values.numpy()
    ]


@pytest.mark.slow
def test_modernberts_ids_and_offsets_equal_those_of_the_reference(real_one):
    assert real_one[0].vocab_size == SIZE
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "bert_tf").rglob("*.py")]
    texts += [line for text in texts for line in text.split("\n")]
    for name in ("data/sotu/heldout.txt.gz", "data/korean/gnome_heldout.txt.gz"):
        with gzip.open(bundled(name), "rt", encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in islice(file, 4000)]
        texts += [*lines, *(unicodedata.normalize("NFD", line) for line in lines)]
    assert_equal(*real_one, [*CODE, *random_texts(20_000), *texts])


@pytest.mark.slow
@pytest.mark.parametrize("context", ["{}", "a{}b", " {} ", "1{}{}"])
def test_modernberts_ids_of_every_character_equal_those_of_the_reference(real_one, context):
    assert_same_ids(*real_one, [context.replace("{}", char) for char in CHARACTERS])


@pytest.mark.slow
def test_modernberts_ids_of_pairs_of_marks_equal_those_of_the_reference(real_one):
    assert_same_ids(*real_one, [f"a{first}{second}" for first in MARKS for second in MARKS])
