"""Added special pieces in texts of every kind of tokenizer, compared with Hugging Face's `tokenizers`."""

import json
import pickle

import pytest
import tensorflow as tf
import tokenizers

from bert_tf.errors import ConfigError, DataError
from bert_tf.inference.check import SERVED_OPS
from bert_tf.inputs.identity import tokenizer_identity
from bert_tf.text import Tokenizer, operations, saved_tokenizer
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer, with_ids
from tests.errors import raises
from tests.learned import KINDS, learned

ADDED = {
    "[E1]": ["special"],
    "[E1]x": ["special"],
    "<left>": ["special", "lstrip"],
    "<right>": ["special", "rstrip"],
    "<both>": ["special", "lstrip", "rstrip"],
    "Wß": ["special", "single_word"],
    "word": ["special", "single_word", "lstrip"],
    "코로나19": [],
}
TEXTS = [
    "[E1] 서울 [/E1] a[E1]b  the",
    "[E1]xy [E1]x[E1][E1]",
    "the  <left>  film <right>  a<both>b  <both> \t <both>c",
    "Wß Wß Wß, aWß Wßa Wß.Wß Wß1 Wß_ (Wß)",
    "a  word word. wordword <left>word",
    "<mask> [MASK] a <mask>[E1] [SEP]",
    "",
    "   ",
    "[E1]",
]


def made(kind, added=ADDED):
    """A tokenizer with added pieces."""
    tokenizer = learned(kind).tokenizer
    pieces = [*tokenizer.vocab, *added]
    if kind == "wordpiece":
        return Tokenizer(pieces, **tokenizer.get_config(), added_pieces=added)
    if kind == "byte_bpe":
        return BytePairTokenizer(pieces, tokenizer.merges, added_pieces=added)
    return SentencePieceTokenizer(with_ids(tokenizer.model, pieces), added_pieces=added)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return made(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library_and_names_of_special_tokens_are_text_without_a_request(kind):
    ours, theirs = made(kind), tokenizers.Tokenizer.from_str(learned(kind).reference.to_str())
    for piece, flags in ADDED.items():
        if flags:
            stripped = {flag: flag in flags for flag in ("lstrip", "rstrip", "single_word")}
            theirs.add_special_tokens([tokenizers.AddedToken(piece, normalized=False, **stripped)])
    names = {number: piece for piece, number in theirs.get_vocab().items()}
    expected = [[names[number] for number in theirs.encode(text, add_special_tokens=False).ids] for text in TEXTS]
    found = [[ours.vocab[number] for number in row] for row in ours.tokenize(TEXTS, special_tokens=True).to_list()]
    assert found == expected
    named = [any(name in text for name in ours.special_names) for text in TEXTS]
    for is_named, text, request, row in zip(named, TEXTS, expected, ours.tokenize(TEXTS).to_list(), strict=True):
        found = [ours.vocab[number] for number in row]
        assert found == request or (is_named and not {*ours.special_names[2:]} & {*found}), text
    assert any(named) and not all(named)


def test_offsets_cover_the_names_in_the_text_of_the_caller(tokenizer):
    texts = [text.encode() for text in TEXTS] + [b"\xff\xfe a[E1]\xffb <both>  \xed\xa0\x80Wx"]
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts, special_tokens=True)
    assert ids.to_list() == tokenizer.tokenize(texts, special_tokens=True).to_list()
    special = {piece.encode() for piece, flags in ADDED.items() if flags}
    for text, *row in zip(texts, ids.to_list(), starts.to_list(), ends.to_list(), strict=True):
        previous = 0
        for number, start, end in zip(*row, strict=True):
            piece = tokenizer.vocab[number].encode()
            assert piece not in special or text[start:end] == piece
            assert previous <= end and start < end <= len(text)
            previous = start


def _in_graph(tokenizer):
    return operations.TF_TEXT or isinstance(tokenizer, Tokenizer)


def test_the_graph_is_one_that_servers_run_and_is_saved_with_its_pieces(tokenizer, tmp_path):
    function = tf.function(lambda text: tokenizer.tokenize(text, special_tokens=True))
    concrete = function.get_concrete_function(tf.TensorSpec([None], tf.string))
    expected = tokenizer.tokenize(TEXTS, special_tokens=True).to_list()
    assert concrete(tf.constant(TEXTS)).to_list() == expected
    graph = concrete.graph.as_graph_def()
    ops = {node.op for node in (*graph.node, *(node for part in graph.library.function for node in part.node_def))}
    assert "StringSplitV2" in ops and (ops <= SERVED_OPS) == _in_graph(tokenizer)
    tokenizer.save(tmp_path)
    description = json.loads(json.dumps(tokenizer.description))
    for again in (
        saved_tokenizer(str(tmp_path), description, tokenizer.checksums, "config.json"),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert again.added_pieces == tokenizer.added_pieces
        assert again.tokenize(TEXTS, special_tokens=True).to_list() == expected
        assert tokenizer_identity(again) == tokenizer_identity(tokenizer)


def test_a_part_of_the_vocabulary_keeps_the_added_pieces(tokenizer):
    ids = sorted(tokenizer.needed_pieces(tokenizer.pieces_of(["the film"]), characters=False))
    part = tokenizer.subset(ids)
    assert part.vocab_size < tokenizer.vocab_size and part.added_pieces == tokenizer.added_pieces
    assert [part.vocab[number] for number in part.tokenize(["[E1]x"], special_tokens=True).to_list()[0]] == ["[E1]x"]
    assert not tokenizer.subset(ids[: -len(ADDED)]).added_pieces


def test_words_beside_added_pieces_stay_when_a_vocabulary_is_trimmed(tokenizer):
    texts = ["aWß film[E1]the<left>  word"]
    part = tokenizer.subset(sorted(tokenizer.needed_pieces(tokenizer.pieces_of(texts), characters=False)))
    ours, theirs = ([one.vocab[number] for number in one.tokenize(texts).to_list()[0]] for one in (part, tokenizer))
    assert ours == theirs and "[E1]" in ours


def test_added_pieces_that_are_none_are_refused():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    with raises(DataError, "'b' is not in the vocabulary"):
        Tokenizer(pieces, added_pieces={"b": []})
    with raises(DataError, "'a' is 'bold'", "single_word"):
        Tokenizer(pieces, added_pieces={"a": ["bold"]})
    with raises(ConfigError, "added_pieces"):
        Tokenizer(pieces, added_pieces={"a": 5})
