"""SentencePieceTokenizer against the `sentencepiece` library, on models that it learned from the bundled text."""

import gzip
import io
import itertools
import pickle
import random

import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from bert_tf.bundled import bundled
from bert_tf.errors import ConfigError, DataError
from bert_tf.text.sentence_piece import SentencePieceTokenizer, with_fairseq_ids
from tests.errors import raises
from tests.learned import gemma, gemma_model, sentence_piece_model

CHARACTERS = [
    *" \t\n\x85\xa0\u3000",
    *"aeinorst",
    *"TH",
    *".,!?'-",
    *"019½٣",
    *"éﬁΣ",
    *"가각는을중日😀",
    "\u0301",
    "\u200b",
    "\x01",
]
KINDS = {"unigram": {}, "bpe": {"model_type": "bpe"}, "bytes": {"byte_fallback": True}}


def lines(*names):
    for name in names:
        with gzip.open(bundled(name), "rt", encoding="utf-8") as file:
            yield from itertools.islice((line.rstrip("\n") for line in file), 2000)


@pytest.fixture(scope="module")
def texts():
    choice = random.Random(0)
    made = ["".join(choice.choices(CHARACTERS, k=choice.randrange(20))) for _ in range(2000)]
    return [*made, *lines("data/korean/gnome_heldout.txt.gz", "data/sotu/heldout.txt.gz")]


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    """The bytes of a .model file."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines("data/korean/gnome_train.txt.gz", "data/sotu/train.txt.gz"),
        model_writer=written, vocab_size=3000, minloglevel=2, **KINDS[request.param],
    )  # fmt: skip
    return written.getvalue()


@pytest.fixture(scope="module")
def reference(model):
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.fixture(scope="module")
def tokenizer(model):
    return SentencePieceTokenizer(with_fairseq_ids(model))


def fairseq(number):
    return {0: 3, 1: 0, 2: 2}.get(number, number + 1)


def test_ids_are_those_of_the_reference_plus_one_except_for_ties(tokenizer, reference, texts):
    ties = 0
    for text, found in zip(texts, tokenizer.tokenize(texts).to_list(), strict=True):
        right = reference.encode(text)
        if found != list(map(fairseq, right)):
            ties += 1
            scores = (
                sum(reference.get_score(i - 1 if i > 3 else 0) for i in found),
                sum(map(reference.get_score, right)),
            )
            assert scores[0] == pytest.approx(scores[1], abs=1e-4), text
    assert ties < 0.01 * len(texts)


def test_offsets_are_those_of_the_reference_without_white_space(tokenizer, reference, texts):
    ids, starts, ends = (values.to_list() for values in tokenizer.tokenize_with_offsets(texts))
    compared = 0
    for text, row, first, last in zip(texts, ids, starts, ends, strict=True):
        data = text.encode()
        for start, end in zip(first, last, strict=True):
            assert 0 <= start < end <= len(data) and data[start:end].decode()
        pieces = reference.encode(text, return_type="proto").pieces
        if row == [fairseq(piece.id) for piece in pieces]:
            for piece, start, end in zip(pieces, first, last, strict=True):
                bare = data[piece.begin : piece.end].decode("utf-8", "ignore").strip()
                if bare:
                    compared += 1
                    assert data[start:end].decode() == bare, text
    assert compared > 50_000


def test_special_tokens_in_the_text_are_recognised_on_request_only(tokenizer):
    text = "the <mask> of<s>the"
    ids, starts, ends = (values.to_list()[0] for values in tokenizer.tokenize_with_offsets([text], special_tokens=True))
    assert [tokenizer.vocab[i] for i in ids if i in (tokenizer.mask_id, tokenizer.cls_id)] == ["<mask>", "<s>"]
    at = ids.index(tokenizer.mask_id)
    assert text[starts[at] : ends[at]] == "<mask>"
    assert ids[:at] == tokenizer.tokenize(["the"]).to_list()[0]
    plain = tokenizer.tokenize([text]).to_list()[0]
    assert not {tokenizer.mask_id, tokenizer.cls_id}.intersection(plain)


def test_pairs_are_packed_as_xlm_r_packs_them(tokenizer):
    first, second = (tokenizer.tokenize([text]).to_list()[0] for text in ("the house", "the state"))
    features = tokenizer.encode(["the house"], ["the state"])
    assert features["input_word_ids"].numpy()[0].tolist() == [0, *first, 2, 2, *second, 2]
    assert not features["input_type_ids"].numpy().any()


def test_bytes_that_are_not_utf8_are_skipped(tokenizer):
    choice = random.Random(1)
    texts = [
        bytes(choice.choices([0x20, 0x61, 0x74, 0xC3, 0xA9, 0xED, 0x95, 0x9C, 0xFF, 0xF5], k=12)) for _ in range(1000)
    ]
    ids, starts, ends = (values.to_list() for values in tokenizer.tokenize_with_offsets(texts))
    assert ids == tokenizer.tokenize([text.decode("utf-8", "ignore") for text in texts]).to_list()
    assert all(
        a < b <= len(text) for text, *row in zip(texts, starts, ends, strict=True) for a, b in zip(*row, strict=True)
    )


def test_words_begin_after_white_space_and_at_marks(tokenizer):
    (ids,), (begins,) = (values.to_list() for values in tokenizer.tokenize_with_words(["The constitution, however."]))
    pieces = [tokenizer.vocab[number] for number in ids]
    words = "".join(("|" if begin else "") + piece for piece, begin in zip(pieces, begins, strict=True))
    assert words == "|▁The|▁constitution|,|▁however|."
    assert tokenizer.detokenize(tf.constant([ids])).numpy()[0].decode() == "The constitution, however."


def test_the_names_of_one_family_are_taken_whole(tokenizer):
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    proto.pieces[-2].piece = "[SEP]"
    again = SentencePieceTokenizer(proto.SerializeToString())
    assert again.sep_id == tokenizer.sep_id and again.specials(pairs=True) == 4


def test_parts_of_a_character_are_detokenized_as_replacements(tokenizer):
    ids = tokenizer.tokenize(["새"]).to_list()[0]
    assert tokenizer.detokenize(tf.constant([ids[:2]])).numpy()[0].decode()
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.tokenize("a text").to_list() == tokenizer.tokenize("a text").to_list()


def test_a_model_without_normalization_is_quiet_and_keeps_texts(texts, capfd):
    settings = {"normalization_rule_name": "identity"}
    model = with_fairseq_ids(sentence_piece_model(**settings))
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    capfd.readouterr()
    tokenizer, texts = SentencePieceTokenizer(model), [*texts, "a\0▁b", "▁\0"]
    found = tokenizer.tokenize(texts)
    assert capfd.readouterr().err == ""
    assert found.to_list() == reference.encode(texts)
    assert not sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model).normalizer_spec.precompiled_charsmap


def test_a_path_is_read_and_other_models_are_refused(model, tokenizer, tmp_path):
    path = tmp_path / "spiece.model"
    path.write_bytes(tokenizer.model)
    assert SentencePieceTokenizer(path).vocab == tokenizer.vocab
    with raises(DataError, "<pad>", "<mask>"):  # XLM-R's own file
        SentencePieceTokenizer(model)
    path.write_bytes(model[: len(model) // 2])
    with raises(DataError, "spiece.model"):
        SentencePieceTokenizer(path)
    with raises(DataError, "nothing.model"):
        SentencePieceTokenizer(tmp_path / "nothing.model")
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    proto.trainer_spec.model_type = proto.trainer_spec.WORD
    with raises(DataError, "WORD"):
        SentencePieceTokenizer(proto.SerializeToString())
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    proto.normalizer_spec.precompiled_charsmap = proto.normalizer_spec.precompiled_charsmap[:5000]
    with raises(DataError, "damaged"):
        SentencePieceTokenizer(proto.SerializeToString())
    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    proto.pieces.add(piece=proto.pieces[9].piece)
    with raises(DataError, repr(proto.pieces[9].piece)):
        SentencePieceTokenizer(proto.SerializeToString())
    with raises(DataError, "<unk>", "<s>"):
        with_fairseq_ids(tokenizer.model)
    with raises(ConfigError, "lower_case", "'yes'"):
        SentencePieceTokenizer(tokenizer.model, lower_case="yes")


@pytest.fixture(scope="module")
def bytes_of_bpe():
    """A model of Gemma's kind, which mmBERT has, and the library's of it: BPE that keeps all spaces, with bytes."""
    return gemma().tokenizer, sentencepiece.SentencePieceProcessor(model_proto=gemma_model())


CODE = ["def f(x):\n    return  x\n\n", "  a", " a ", "a😀b", "\0a", "a\0▁b", "\0\0▁", "\tx\n\n\ny   =  10"]


def test_bpe_with_bytes_and_all_spaces_is_that_of_the_reference(bytes_of_bpe, texts):
    tokenizer, reference = bytes_of_bpe
    texts = [*CODE, *texts]
    ids, starts, ends = (values.to_list() for values in tokenizer.tokenize_with_offsets(texts))
    assert ids == tokenizer.tokenize(texts).to_list() == reference.encode(texts)
    for text, first, last in zip(texts, starts, ends, strict=True):
        data = text.encode()
        for piece, start, end in zip(reference.encode(text, return_type="proto").pieces, first, last, strict=True):
            bare = data[piece.begin : piece.end].decode().strip()
            assert not bare or data[start:end].decode() == bare, text


@pytest.mark.slow
@pytest.mark.parametrize("context", ["{}", "a{}b", " {} ", "1{}{}"])
def test_bpe_with_bytes_has_the_ids_of_the_reference_for_every_character(bytes_of_bpe, context):
    tokenizer, reference = bytes_of_bpe
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for begin in range(0, len(codes), 50_000):
        batch = [context.replace("{}", chr(code)) for code in codes[begin : begin + 50_000]]
        assert tokenizer.tokenize(batch).to_list() == reference.encode(batch)
