"""The tokenizer against an independent implementation of the reference's algorithm: exactly the same output."""

import functools
import gzip
import itertools
import random
from pathlib import Path

import pytest

from bert_tf.text import Tokenizer
from tests.text import reference

UNCASED, CASED, UNCASED_WITH_ACCENTS = (True, True, True), (False, False, True), (True, False, True)
ALL_OPTIONS = list(itertools.product((False, True), (False, True), (False, True)))
CONTEXTS = ("{0}", "x{0}y", "x {0} y", "{0}{0}", "({0}#{0}able", "{0}x##{0}")


def differences(tokenizer, texts):
    """The texts (bytes) whose ids or offsets differ, with both results."""
    vocab = {piece: index for index, piece in enumerate(tokenizer.vocab)}
    options = tokenizer.lower_case, tokenizer.strip_accents, tokenizer.split_cjk
    found = []
    for text, *ours in zip(texts, *(part.to_list() for part in tokenizer.tokenize_with_offsets(texts)), strict=True):
        expected = reference.tokenize(text, vocab, *options)
        if list(zip(*ours, strict=True)) != expected:
            found.append((text, expected, list(zip(*ours, strict=True))))
    return found


@functools.cache
def set_of(assigned):
    return frozenset(assigned)


def random_texts(assigned, count, seed):
    """Strings that mix scripts, marks, specials and controls, some with broken UTF-8."""
    choice = random.Random(seed)
    alphabets = [
        assigned,
        "abcXYZ",
        "ΑαΣΣΣσς'’·\u00ad\u0345ªʰa. \x01-",
        "가각힣ㄱ\u1100\u1161\u11a8 中国豈丽",
        "\u0300\u0301\u0327\u0307\u20dd eEÉİıßﬁ",
        "\0\x11\t\r\n\u200b\u200d\ufeff\ufffd\u2028\x85\xa0\u3000",
        "🙂👩‍👩‍👧🇰🇷#️⃣",
        "!#[]$^`~。“¿-",
        ["[MASK]", "[SEP]", "[UNK]", "##x", "##", "xy" * 120],
    ]
    texts = []
    for _ in range(count):
        text = "".join(choice.choice(choice.choice(alphabets)) for _ in range(choice.randint(0, 25))).encode()
        if choice.random() < 0.4:
            text = bytearray(text)
            for _ in range(choice.randint(1, 4)):
                position = choice.randint(0, len(text))
                if choice.random() < 0.5:
                    del text[position : position + 1]
                else:
                    text.insert(position, choice.choice([*range(0x80, 0x100), 0xED, 0xE0, 0xF4, 0xF0, 0xC0]))
        # Characters unknown to Python may already be punctuation in TF Text's ICU: docs/tokenization.md.
        known = set(text.decode("utf-8", "ignore")) <= set_of(assigned)
        texts.append(bytes(text) if known else b"")
    return texts


@pytest.mark.parametrize(
    "options",
    [
        UNCASED,
        pytest.param(CASED, marks=pytest.mark.slow),
        pytest.param(UNCASED_WITH_ACCENTS, marks=pytest.mark.slow),
        pytest.param((True, True, False), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_kind_of_code_point_tokenizes_as_in_the_reference(assigned, many_characters, options):
    regular = (range(0xAC00, 0xD7A4), range(0x3400, 0xA000), range(0x17000, 0x19000), range(0x20000, 0x32000))
    chars = [char for char in assigned if ord(char) % 32 == 0 or not any(ord(char) in codes for codes in regular)]
    texts = [" ".join(context.format(char) for context in CONTEXTS[:4]).encode() for char in chars]
    assert differences(Tokenizer(many_characters, *options), texts) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_every_assigned_code_point_in_every_context_tokenizes_as_in_the_reference(assigned, many_characters, options):
    tokenizer = Tokenizer(many_characters, *options)
    for context in CONTEXTS:
        assert differences(tokenizer, [context.format(char).encode() for char in assigned]) == []


# Each option with and without each other.
FEW_OPTIONS = [UNCASED, (True, False, False), (False, True, False), CASED]


@pytest.mark.parametrize(
    "options", [UNCASED, *(pytest.param(one, marks=pytest.mark.slow) for one in FEW_OPTIONS[1:-1]), CASED], ids=str
)
def test_random_and_invalid_strings_tokenize_as_in_the_reference(assigned, many_characters, options):
    texts = random_texts(assigned, 400, seed=sum(2**i * on for i, on in enumerate(options)))
    assert differences(Tokenizer(many_characters, *options), texts) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_many_random_and_invalid_strings_tokenize_as_in_the_reference(assigned, many_characters, options):
    texts = random_texts(assigned, 30000, seed=100 + sum(2**i * on for i, on in enumerate(options)))
    assert differences(Tokenizer(many_characters, *options), texts) == []


def test_random_bytes_tokenize_as_their_valid_part(many_characters):
    choice = random.Random(0)
    texts = [bytes(choice.choices(range(256), k=choice.randint(0, 40))) for _ in range(1000)]
    tokenizer = Tokenizer(many_characters, *UNCASED)
    assert differences(tokenizer, texts) == []
    valid = [text.decode("utf-8", "ignore") for text in texts]
    assert tokenizer.tokenize(texts).to_list() == tokenizer.tokenize(valid).to_list()


@pytest.mark.parametrize(
    "options", [UNCASED, CASED, pytest.param(UNCASED_WITH_ACCENTS, marks=pytest.mark.slow)], ids=str
)
def test_a_sample_of_korean_lines_tokenizes_as_in_the_reference(korean_vocabulary, korean_lines, options):
    assert differences(Tokenizer(korean_vocabulary, *options), korean_lines[::60]) == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [UNCASED, CASED, UNCASED_WITH_ACCENTS, (True, True, False)], ids=str)
def test_all_korean_lines_tokenize_as_in_the_reference(korean_vocabulary, korean_lines, options):
    assert differences(Tokenizer(korean_vocabulary, *options), korean_lines) == []


def bundled_lines():
    files = sorted((Path(__file__).parents[2] / "data").glob("*/*.gz"))
    if not files:
        pytest.skip("the bundled corpus is not there")
    return [line for path in files for line in gzip.decompress(path.read_bytes()).split(b"\n")]


def test_a_sample_of_the_bundled_corpus_tokenizes_as_in_the_reference(many_characters):
    assert differences(Tokenizer(many_characters, *UNCASED), bundled_lines()[::20]) == []


@pytest.mark.slow
def test_the_bundled_corpus_tokenizes_as_in_the_reference(many_characters):
    assert differences(Tokenizer(many_characters, *UNCASED), bundled_lines()) == []


def test_final_capital_sigma_follows_the_context_rule(many_characters):
    words = ["ΟΔΟΣ", "ΣΟΦΟΣ", "Σ", "ΑΣ.", "ΑΣΑ", "ΑΣ'Α", "ΑΣ' Α", "Α\u00adΣ\u00ad", "Α\x01Σ\x02Α", "ΑΣΣ'Σ", "中Σ"]
    assert differences(Tokenizer(many_characters, *UNCASED), [word.encode() for word in words]) == []
    tokenizer = Tokenizer(many_characters, *UNCASED)
    pieces = [tokenizer.vocab[i] for i in tokenizer.tokenize("ΑΣ").to_list()[0]]
    assert pieces == ["α", "##ς"]


def test_marks_out_of_canonical_order_are_the_one_exception(many_characters):
    # NFD would sort a Hangul tone mark (class 224) after a musical stem (216). Both are spacing marks, so neither is
    # removed; a table of single characters cannot swap them.
    tokenizer = Tokenizer([*many_characters[:500], "x\U0001d165\u302e", "x\u302e\U0001d165"], *UNCASED)
    (difference,) = differences(tokenizer, ["x\u302e\U0001d165".encode(), "x\U0001d165\u302e".encode()])
    assert difference[0] == "x\u302e\U0001d165".encode()
