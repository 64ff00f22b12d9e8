"""Tokenizers without TensorFlow Text: the ids and offsets of those with it, and what is refused."""

import pickle
import random
import runpy
import sys

import pytest
import tensorflow as tf

from bert_tf.errors import ConfigError
from bert_tf.inference.check import SERVED_OPS
from bert_tf.text import Tokenizer, operations, subwords, without_tf_text
from bert_tf.text.composition import Composition
from bert_tf.text.normalizer import AlbertNormalizer, Normalizer
from tests.errors import raises
from tests.learned import ALL_TOKENIZERS
from tests.text.conftest import SPECIALS
from tests.text.test_against_reference import ALL_OPTIONS, CASED, CONTEXTS, UNCASED, random_texts

compared = pytest.mark.skipif(not operations.TF_TEXT, reason="TensorFlow Text cannot be imported")
USERS = {
    "normalizer": "Replacer",
    "composition": "Replacer",
    "wordpiece": "WordPiece",
    "sentence_piece": "SentencePiece",
    "byte_pair": "SentencePiece",
    "subwords": "SentencePiece",
}
# The others are made of the same operations.
QUICK = ("wordpiece", "byte_bpe", "unigram", "albert", "modern")
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


@pytest.fixture
def alone(monkeypatch):
    """Without TensorFlow Text, for what is created afterwards."""
    for module, name in USERS.items():
        monkeypatch.setattr(f"bert_tf.text.{module}.{name}", getattr(without_tf_text, name))


@pytest.fixture
def again(request):
    """Makes a tokenizer again, without TensorFlow Text."""

    def made(tokenizer):
        request.getfixturevalue("alone")
        return pickle.loads(pickle.dumps(tokenizer))

    return made


def tokens(tokenizer, texts):
    """For each text its ids, starts, ends, and the first pieces of words."""
    parts = (*tokenizer.tokenize_with_offsets(texts), *tokenizer.tokenize_with_words(texts))
    return list(zip(*(part.to_list() for part in parts), strict=True))


def made_of(characters, count, seed=0):
    choice = random.Random(seed)
    return ["".join(choice.choices(characters, k=choice.randrange(20))) for _ in range(count)]


@compared
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in QUICK)) for kind in ALL_TOKENIZERS]
)
def test_every_kind_has_the_same_ids_offsets_and_words(again, kind):
    tokenizer = ALL_TOKENIZERS[kind]()
    characters = [*" \t\n\u3000'the.fim<>19`", "é", "가", "日", "😀", "½", "\0", "e\u0301", "\u0323", "  ", "``", "''"]
    texts = [text.encode() for text in made_of(characters, 1000)]
    texts += [bytes(random.Random(seed).choices(range(256), k=seed % 20)) for seed in range(500)]
    texts += [b"", b"a <mask> and <s>b</s>", b"x" * 5000, "한국어 텍스트 ".encode() * 200]
    right, found = tokens(tokenizer, texts), tokens(again(tokenizer), texts)
    ties = sum(one != other for one, other in zip(right, found, strict=True))
    assert ties <= (0.01 * len(texts) if kind in ("unigram", "albert") else 0)  # segmentations of equal score


@compared
@pytest.mark.parametrize(
    "options", [pytest.param(one, marks=[pytest.mark.slow] * (one != UNCASED)) for one in ALL_OPTIONS]
)
def test_wordpiece_has_the_same_ids_and_offsets_on_strings_of_all_scripts(again, assigned, many_characters, options):
    tokenizer = Tokenizer(many_characters, *options)
    texts = random_texts(assigned, 1000, seed=1)
    texts += [" ".join(context.format(char) for context in CONTEXTS).encode() for char in assigned[::50]]
    assert tokens(again(tokenizer), texts) == tokens(tokenizer, texts)


@compared
@pytest.mark.slow
@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_wordpiece_has_the_same_ids_and_offsets_on_every_code_point(again, assigned, many_characters, options):
    tokenizer = Tokenizer(many_characters, *options)
    other = again(tokenizer)
    for context in CONTEXTS:
        texts = [context.format(char) for char in assigned]
        assert tokens(other, texts) == tokens(tokenizer, texts)


@compared
def test_wordpiece_has_the_same_long_words(again):
    words = ["가" * 200, "가" * 201, "x" * 201 + " x", "xy" * 120 + "가" * 100, "##x", "[UNK]", "x" * 900]
    tokenizer = Tokenizer([*SPECIALS, "x", "##x", "##y", "##xyx", "가", "##가", "#", "##"], strip_accents=False)
    texts = [text for word in words for text in (word, f"a {word}.", "")]
    assert tokens(again(tokenizer), texts) == tokens(tokenizer, texts)


@compared
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 97])
def test_tables_have_the_same_texts_and_offsets_on_code_points(request, step):
    def normalizers():
        yield from (Normalizer(*options) for options in (UNCASED, CASED, (False, True, False), (True, False, False)))
        yield from (AlbertNormalizer(*options) for options in ((True, True, True), (False, True, False)))
        yield Composition()

    texts = [f"a{chr(code)}`` {chr(code)}{chr(code)}\u0301" for code in CODES[::step]]
    right = [normalizer.normalize(tf.constant(texts), with_offsets=True) for normalizer in normalizers()]
    request.getfixturevalue("alone")
    for normalizer, expected in zip(normalizers(), right, strict=True):
        found = normalizer.normalize(tf.constant(texts), with_offsets=True)
        assert [one.numpy().tolist() for one in found] == [one.numpy().tolist() for one in expected]


def test_a_graph_of_wordpiece_has_only_operations_of_tensorflow(alone):
    tokenizer = Tokenizer([*SPECIALS, "x", "##y", "中", "α", "##ς", ",", "able"])
    function = tf.function(tokenizer.tokenize_with_offsets).get_concrete_function(tf.TensorSpec([None], tf.string))
    texts = tf.constant(["xy 中国 ΑΣ, [MASK] able", ""])
    expected = tokenizer.tokenize_with_offsets(texts)
    assert [part.to_list() for part in function(texts)] == [part.to_list() for part in expected]
    graph = function.graph.as_graph_def()
    ops = {node.op for node in (*graph.node, *(node for part in graph.library.function for node in part.node_def))}
    assert ops <= SERVED_OPS and all(hasattr(tf.raw_ops, op) for op in ops)


def test_a_data_pipeline_that_calls_the_library_resumes_where_it_was(alone, tmp_path):
    tokenizer = ALL_TOKENIZERS["byte_bpe"]()
    texts = tf.data.Dataset.from_tensor_slices([f"the film {number}" for number in range(20)])
    dataset = texts.shuffle(10, seed=1).batch(2).map(tokenizer.tokenize, num_parallel_calls=2).prefetch(2)
    first, second = iter(dataset), iter(dataset)
    next(first)
    path = tf.train.Checkpoint(batches=first).save(str(tmp_path / "state"))
    tf.train.Checkpoint(batches=second).restore(path)
    assert [batch.to_list() for batch in first] == [batch.to_list() for batch in second]


def test_graphs_that_need_this_process_are_refused_elsewhere(alone):
    subwords.check_in_graph(ALL_TOKENIZERS["wordpiece"](), "an export")
    with raises(ConfigError, "an export with a tokenizer of the kind byte_bpe", "bert_tf[text]"):
        subwords.check_in_graph(ALL_TOKENIZERS["byte_bpe"](), "an export")


@pytest.mark.parametrize("works", [pytest.param(True, marks=compared), False])
def test_the_operations_are_chosen_when_they_are_imported(works, monkeypatch, capsys):
    if not works:
        monkeypatch.setitem(sys.modules, "bert_tf.text.tf_text", None)  # which makes its import an error
        without_tf_text._report.cache_clear()
    chosen = runpy.run_path(operations.__file__)
    assert chosen["TF_TEXT"] == works
    assert chosen["WordPiece"].__module__ == f"bert_tf.text.{'tf_text' if works else 'without_tf_text'}"
    for _ in range(2):  # one line, of the first tokenizer
        chosen["WordPiece"](["[UNK]", "[MASK]", "a"], "[UNK]", 200)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (not works)
    assert works or ("same tokens" in lines[0] and "exports with byte-level BPE" in lines[0])
