"""ALBERT's tokenizer against its rules in Python (google-research/albert and Transformers 4) and `sentencepiece`."""

import itertools
import random
import unicodedata

import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bert_tf.config.data import TokenizerSettings
from bert_tf.text import open_tokenizer
from bert_tf.text.sentence_piece import albert_tokenizer
from tests.learned import albert_model, lines
from tests.packages import shared

CHARACTERS = [
    *" \t\n\r\x0b\x1c\x85\xa0\u3000",
    *"``''\"",
    *"aeinoTH.,019",
    *"éÅﬁ½ⅨİĲ…٣",
    *"가각는을ㅎㅏ日😀",
    "\u0301",
    "\0",
]
SETTINGS = [(True, True), (True, False), (False, True), (False, False)]


def preprocessed(text, lower_case=True, strip_accents=True):
    """`preprocess_text`, but for the final sigma of `str.lower`, which Transformers' fast tokenizer does not know."""
    text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
    if strip_accents:
        text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return "".join(map(str.lower, text)) if lower_case else text


def split(processor, text):
    """`_tokenize`: the ids of a text, with numbers before a comma segmented again."""
    pieces = []
    for piece in processor.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            number = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and number[0][0] == "▁":
                number = number[1:] if len(number[0]) == 1 else [number[0][1:], *number[1:]]
            pieces += [*number, ","]
        else:
            pieces.append(piece)
    return processor.piece_to_id(pieces)


@pytest.fixture(scope="module")
def processor():
    return sentencepiece.SentencePieceProcessor(model_proto=albert_model())


@pytest.fixture(scope="module")
def tokenizer():
    return albert_tokenizer(albert_model())


@pytest.fixture(scope="module")
def texts():
    choice = random.Random(0)
    made = ["".join(choice.choices(CHARACTERS, k=choice.randrange(20))) for _ in range(10_000)]
    return [*made, *lines("data/korean/gnome_heldout.txt.gz"), *lines("data/sotu/heldout.txt.gz")]


def assert_equal(tokenizer, processor, texts, *settings):
    """The ids are the reference's, but for segmentations of equal score."""
    ties = 0
    for begin in range(0, len(texts), 4096):
        batch = texts[begin : begin + 4096]
        for text, found in zip(batch, tokenizer.tokenize(tf.constant(batch)).to_list(), strict=True):
            right = processor.encode(preprocessed(text, *settings))
            if found != right:
                ties += 1
                assert sum(map(processor.get_score, found)) == pytest.approx(
                    sum(map(processor.get_score, right)), abs=1e-4
                ), text
    assert ties <= 0.01 * len(texts)


@pytest.mark.parametrize("settings", SETTINGS)
def test_ids_are_those_of_the_reference(processor, texts, settings):
    assert_equal(albert_tokenizer(albert_model(), *settings), processor, texts, *settings)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 20])
def test_ids_of_characters_are_those_of_the_reference(tokenizer, processor, step):
    codes = [code for code in range(0, 0x110000, step) if not 0xD800 <= code < 0xE000]
    assert_equal(tokenizer, processor, [f"a{chr(code)}b {chr(code)}{chr(code)}" for code in codes])


@pytest.mark.slow
@pytest.mark.parametrize(("path", "column"), [("english/sst2/train.tsv", 0), ("korean/nsmc/ratings_train.tsv", 1)])
def test_ids_of_published_texts_are_those_of_the_reference(tokenizer, processor, path, column):
    with open(shared(path), encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    assert_equal(tokenizer, processor, [row[column] for row in rows if len(row) > column])


def test_numbers_are_split_from_commas(processor, tokenizer):
    proto = ModelProto.FromString(albert_model())
    for piece in ("▁10,", "▁1,", "0,", "000,"):
        proto.pieces.add(piece=piece, score=-1.0)
    model = proto.SerializeToString()
    again = sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = ["10, and 10, 1,2", "a 10,", "1,1,", "x0,"]
    assert [again.encode(text) for text in texts] != [split(again, text) for text in texts]
    found = albert_tokenizer(model).tokenize(texts).to_list()
    assert found == [split(again, text) for text in texts] == tokenizer.tokenize(texts).to_list()


def test_offsets_cover_what_a_piece_was_made_from(tokenizer, processor, texts):
    texts = texts[-2000:] + texts[:4000]
    ids, starts, ends = (values.to_list() for values in tokenizer.tokenize_with_offsets(texts))
    compared = 0
    for text, row, first, last in zip(texts, ids, starts, ends, strict=True):
        data = text.encode()
        spans = list(zip(first, last, strict=True))
        assert all(a < b and data[a:b].decode() for a, b in spans)
        shared_characters = {a for (a, b), (c, _) in itertools.pairwise(spans) if c < b for a in (a, c)}
        for number, (a, b) in zip(row, spans, strict=True):
            piece = processor.id_to_piece(number).removeprefix("▁")
            if piece and number != tokenizer.unk_id and a not in shared_characters:
                compared += 1
                assert processor.normalize(preprocessed(data[a:b].decode())).removeprefix("▁") == piece, text
    assert compared > 20_000


def test_quotes_and_accents_are_inside_the_spans(tokenizer):
    text = "``Cafe\u0301'' x"
    ids, starts, ends = (values.to_list()[0] for values in tokenizer.tokenize_with_offsets([text]))
    pieces = [tokenizer.vocab[number].removeprefix("▁") for number in ids]
    spans = [text.encode()[a:b].decode() for a, b in zip(starts, ends, strict=True)]
    found = [(piece, span) for piece, span in zip(pieces, spans, strict=True) if piece]
    assert found[0] == ('"', "``") and found[-2:] == [('"', "''"), ("x", "x")]
    assert "".join(span for _, span in found[1:-2]) == "Cafe\u0301"


def test_special_tokens_have_alberts_ids_and_berts_types(tokenizer):
    assert [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id] == [
        0,
        1,
        2,
        3,
        4,
    ]
    features = {name: value.numpy()[0].tolist() for name, value in tokenizer.encode(["a"], ["the"]).items()}
    a, the = (tokenizer.tokenize([text]).to_list()[0] for text in ("a", "the"))
    assert features["input_word_ids"] == [2, *a, 3, *the, 3]
    assert features["input_type_ids"] == [0] * (2 + len(a)) + [1] * (1 + len(the))
    assert tokenizer.tokenize(["a [MASK]"], special_tokens=True).to_list() == [[*a, 4]]
    assert 4 not in tokenizer.tokenize(["a [MASK]"]).to_list()[0]


def test_a_model_file_with_alberts_special_tokens_is_opened_as_alberts(tmp_path):
    path = tmp_path / "spiece.model"
    path.write_bytes(albert_model())
    for settings in (TokenizerSettings(), TokenizerSettings(lower_case=False), TokenizerSettings(strip_accents=False)):
        # The vocabulary, which has accents and no capitals, decides what is not given.
        expected = albert_tokenizer(albert_model(), settings.lower_case is not False, strip_accents=False)
        assert open_tokenizer(path, settings).tokenize(["``É"]).to_list() == expected.tokenize(["``É"]).to_list()
