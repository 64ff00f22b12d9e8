"""Trimmed vocabularies: the corpus keeps its tokens, other texts lose little, and the report says how much."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import sentencepiece
import tokenizers

import bert_tf
from bert_tf.checkpoints import adapt, conversion, directory
from bert_tf.checkpoints.formats import open_checkpoint
from bert_tf.errors import DataError
from bert_tf.report.terminal import conversion_text
from bert_tf.text.base import BERT
from bert_tf.text.sentence_piece import parse_model
from tests.checkpoints import e5
from tests.checkpoints.small import assert_same, small_checkpoint
from tests.checkpoints.test_adapt import with_slots
from tests.errors import raises
from tests.learned import ALL_TOKENIZERS, TEXTS, lines
from tests.model.small import MODERNBERT
from tests.packages import shared

# With characters and words that no vocabulary has: their score, or the place where a match fails, must not change.
ODD = ["갂ab갂the 🙂the🙂", "zz🙂zz the", "", "   ", "7, 1,234 films", "x" * 300, "\x00 nul"]
FORMATS = list(conversion.WRITERS)


@functools.cache
def corpus():
    return [*lines(TEXTS[0], 150), *lines(TEXTS[1], 30), *ODD]


@functools.cache
def others():
    return [*lines(TEXTS[0], 900)[600:], *lines(TEXTS[1], 300)[200:], *(text[::-1] for text in corpus())]


def names(tokenizer, texts):
    vocab = tokenizer.vocab
    return [[vocab[number] for number in row] for row in tokenizer.tokenize(texts).to_list()]


@functools.cache
def checkpoint_of(kind, head="masked_lm"):
    tokenizer = ALL_TOKENIZERS[kind]()
    family = MODERNBERT | {"pooler": False} if kind in ("modern", "gemma") else {}
    return dataclasses.replace(small_checkpoint(head, vocab_size=tokenizer.vocab_size, **family), tokenizer=tokenizer)


@functools.cache
def trimmed(kind, characters=True):
    return adapt.trim_vocabulary(checkpoint_of(kind), corpus(), characters)


@pytest.mark.parametrize("characters", [True, False])
@pytest.mark.parametrize("kind", ALL_TOKENIZERS)
def test_the_corpus_keeps_its_tokens_with_fewer_pieces(kind, characters):
    before, after = checkpoint_of(kind).tokenizer, trimmed(kind, characters)[0].tokenizer
    assert names(after, corpus()) == names(before, corpus())
    assert after.vocab_size < 0.9 * before.vocab_size
    assert (type(after), after.get_config(), after.special_names) == (
        type(before), before.get_config(), before.special_names,
    )  # fmt: skip
    kept = set(after.vocab)
    assert [piece for piece in before.vocab if piece in kept] == after.vocab  # in the same order


@pytest.mark.parametrize("kind", ALL_TOKENIZERS)
def test_other_texts_get_no_more_unknown_tokens(kind):
    before, after = checkpoint_of(kind).tokenizer, trimmed(kind)[0].tokenizer
    counts = [np.sum(one.tokenize(others()).values.numpy() == one.unk_id) for one in (before, after)]
    assert counts[1] <= counts[0]
    assert names(before, others()) != names(after, others())


@pytest.mark.parametrize("kind", ["unigram", "bpe", "bytes", "gemma"])
def test_sentencepiece_itself_segments_the_corpus_as_before(kind):
    models = [one.tokenizer.model for one in (checkpoint_of(kind), trimmed(kind)[0])]
    before, after = (sentencepiece.SentencePieceProcessor(model_proto=model) for model in models)
    texts = [text for text in corpus() if "\x00" not in text]
    assert before.encode(texts, out_type=str) == after.encode(texts, out_type=str)


def test_merging_by_pairs_gives_the_same_tokens():
    before, after = (one.tokenizer for one in (checkpoint_of("byte_bpe"), trimmed("byte_bpe")[0]))
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

    def merged(tokenizer):
        ids = {piece: number for number, piece in enumerate(tokenizer.vocab)}
        model = tokenizers.models.BPE(ids, [tuple(merge.split(" ")) for merge in tokenizer.merges])
        words = (word for text in corpus() for word, _ in split.pre_tokenize_str(text))
        return [[token.value for token in model.tokenize(word)] for word in words]

    assert merged(before) == merged(after)
    assert 0 < len(after.merges) < len(before.merges)


def test_a_word_that_is_unknown_stays_unknown():
    # Without "ab", the word would be a ##bc.
    tokenizer = bert_tf.Tokenizer([*BERT, "a", "b", "c", "##a", "##b", "ab", "##bc", "abc", "d", "##dd"])
    texts = ["abcd abc ab", "bbc"]
    used = tokenizer.pieces_of(["abcd", "bbc"])
    kept = tokenizer.subset(sorted(tokenizer.needed_pieces(used, characters=False)))
    assert "ab" not in names(tokenizer, ["abcd", "bbc"])[0]
    assert names(kept, ["abcd", "bbc"]) == names(tokenizer, ["abcd", "bbc"])
    assert names(tokenizer, texts)[0] == ["[UNK]", "abc", "ab"]


@pytest.mark.parametrize("kind", ["unigram", "albert"])
def test_the_score_of_unknown_characters_stays_the_same(kind):
    lowest = []
    for one in (checkpoint_of(kind), trimmed(kind, False)[0]):
        proto = parse_model(one.tokenizer.model)
        lowest.append(min(piece.score for piece in proto.pieces if piece.type == proto.SentencePiece.NORMAL))
    assert lowest[0] == lowest[1]


def test_rows_of_the_kept_pieces_are_unchanged():
    checkpoint = with_slots(checkpoint_of("wordpiece", "pretraining"))
    changed, report = adapt.trim_vocabulary(checkpoint, corpus())
    old = checkpoint.tokenizer.vocab
    ids = [old.index(piece) for piece in changed.tokenizer.vocab]
    assert changed.config == dataclasses.replace(checkpoint.config, vocab_size=len(ids))
    for path, tensor in checkpoint.tensors.items():
        with_rows = path in ("embeddings/word_embeddings", "masked_lm/bias")
        rows = ids if with_rows else slice(None)
        np.testing.assert_array_equal(changed.tensors[path].read(), tensor.read()[rows])
        for slot in (f"{path}/m", f"{path}/v"):
            np.testing.assert_array_equal(changed.moments[slot].read(), checkpoint.moments[slot].read()[rows])
    assert changed.shapes() == {path: tensor.shape for path, tensor in changed.tensors.items()}
    assert report["pieces"] == [len(old), len(ids)]
    assert report["weights"] == [checkpoint.model().count_params(), changed.model().count_params()]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_the_report_says_what_other_texts_lose(kind):
    checkpoint, texts = checkpoint_of(kind), corpus() * 2
    held_out = texts[19::20]
    others_only = [text for number, text in enumerate(texts) if number % 20 != 19]
    _, report = adapt.trim_vocabulary(checkpoint, texts, False)
    without, _ = adapt.trim_vocabulary(checkpoint, others_only[:19], False)  # too few to hold out any of them
    assert without.config.vocab_size < checkpoint.config.vocab_size
    tokenizer = checkpoint.tokenizer
    kept = tokenizer.subset(sorted(tokenizer.needed_pieces(tokenizer.pieces_of(others_only), False)))
    found = report["held_out"]
    before, after = names(tokenizer, held_out), names(kept, held_out)
    assert (report["texts"], found["texts"]) == (len(texts), len(held_out))
    assert found["tokens"] == sum(map(len, before))
    unknown = tokenizer.special_names.unk
    assert found["unknown"] == [sum(row.count(unknown) for row in one) for one in (before, after)]
    assert (found["changed"] == 0) == (before == after)
    assert report["pieces_used"] == len(tokenizer.pieces_of(texts))


def test_few_texts_give_no_estimate():
    assert adapt.trim_vocabulary(checkpoint_of("wordpiece"), corpus()[:19])[1]["held_out"] is None


@pytest.fixture
def corpus_file(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in corpus()), encoding="utf-8")
    return str(path)


IN_FORMATS = [
    (kind, format) for kind in ALL_TOKENIZERS for format in FORMATS if format != "google" or kind == "wordpiece"
]
# The next test reads what Transformers gets.
SLOW = [(kind, "huggingface") for kind in ALL_TOKENIZERS if kind != "wordpiece"]


@pytest.mark.parametrize(
    ("kind", "format"), [pytest.param(*one, marks=[pytest.mark.slow] * (one in SLOW)) for one in IN_FORMATS]
)
def test_every_format_holds_a_trimmed_model(kind, format, tmp_path, corpus_file):
    source = str(tmp_path / "source")
    directory.write(checkpoint_of(kind), source)
    verify = kind == "wordpiece" and format != "huggingface"  # one that needs no other library
    options = {"trim_vocab": [corpus_file], "verify": verify}
    report = conversion.convert(source, format, str(tmp_path / "trimmed"), **options)
    again = open_checkpoint(str(tmp_path / "trimmed"))
    assert names(again.tokenizer, corpus()) == names(checkpoint_of(kind).tokenizer, corpus())
    assert again.config.vocab_size == again.tokenizer.vocab_size == report["vocabulary"]["pieces"][1]
    assert report["model"]["parameters"] == report["vocabulary"]["weights"][1]
    assert "pieces kept" in conversion_text(report)
    if verify:
        found = report["verification"]["differences"]
        assert {"layer_1", "mlm_logits"} <= set(found)
        assert all(one["largest"] <= 1e-5 for one in found.values())
    if format == "bert_tf":
        assert_same(again, dataclasses.replace(trimmed(kind)[0]))


@pytest.mark.parametrize("kind", ALL_TOKENIZERS)
def test_transformers_gives_the_corpus_the_same_tokens(kind, tmp_path, corpus_file):
    transformers = pytest.importorskip("transformers")
    source = str(tmp_path / "source")
    directory.write(checkpoint_of(kind, None), source)
    tokens = []
    for name, options in {"whole": {}, "trimmed": {"trim_vocab": [corpus_file]}}.items():
        conversion.convert(source, "huggingface", str(tmp_path / name), **options)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        tokens.append([theirs.tokenize(text) for text in corpus()])
    assert tokens[0] == tokens[1]
    assert len(theirs) == trimmed(kind)[0].config.vocab_size


def test_ids_in_settings_of_other_projects_become_the_new_ones(tmp_path, corpus_file):
    checkpoint = checkpoint_of("unigram", None)
    mask = checkpoint.tokenizer.mask_id
    metadata = {
        "format": "huggingface", "model_type": "bert",
        "config": {"mask_token_id": mask, "pad_token_id": checkpoint.tokenizer.pad_id, "id": 7},
        "tokenizer_config": {"added_tokens_decoder": {str(mask): {"content": "<mask>"}}, "clean_up": True},
    }  # fmt: skip
    directory.write(dataclasses.replace(checkpoint, source_metadata=metadata), str(tmp_path / "source"))
    conversion.convert(str(tmp_path / "source"), "huggingface", str(tmp_path / "to"), trim_vocab=[corpus_file])
    config = json.loads((tmp_path / "to/config.json").read_text())
    again = open_checkpoint(str(tmp_path / "to"))
    assert (config["mask_token_id"], config["pad_token_id"]) == (again.tokenizer.mask_id, again.tokenizer.pad_id)
    assert again.tokenizer.mask_id == again.config.vocab_size - 1 < mask


def test_texts_without_a_piece_of_the_vocabulary_are_refused():
    with raises(DataError, "none of the 2 texts", "its language"):
        adapt.trim_vocabulary(checkpoint_of("wordpiece"), ["", " \n"])


def test_a_checkpoint_without_a_vocabulary_is_refused(tmp_path, corpus_file):
    source = str(tmp_path / "source")
    directory.write(dataclasses.replace(checkpoint_of("wordpiece"), tokenizer=None), source)
    with raises(DataError, source, "no vocabulary"):
        conversion.convert(source, "bert_tf", str(tmp_path / "to"), trim_vocab=[corpus_file])
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["--trim_vocab={0}/nothing.txt"], ["nothing.txt", "no such file"]),
        (["--trim_vocab={0}/empty.txt"], ["empty.txt", "the file is empty"]),
        (["--trim_vocab="], ["'' is no file", "expected at least one text file"]),
        (["--nokeep_characters"], ["--keep_characters", "--trim_vocab"]),
    ],
)
def test_a_bad_corpus_is_named_in_one_line(programs, flags, expected, tmp_path):
    directory.write(checkpoint_of("wordpiece"), str(tmp_path / "source"))
    (tmp_path / "empty.txt").touch()
    found = [f"--input={tmp_path / 'source'}", "--format=bert_tf", f"--output={tmp_path / 'to'}"]
    found += [flag.format(tmp_path) for flag in flags]
    done = programs("convert", *found)
    assert done.status and not (tmp_path / "to").exists()
    assert all(text in done.error_line for text in expected), done.error_line


@pytest.mark.slow
def test_multilingual_e5_trimmed_to_korean_gives_the_same_vectors(tmp_path):
    """12 layers, 250,037 pieces; trimmed on NSMC's training reviews, compared on its test reviews."""
    (tmp_path / "e5").mkdir()
    e5.write(tmp_path / "e5")
    train, test = (
        [line.split("\t")[1] for line in shared(f"korean/nsmc/ratings_{part}.tsv").read_text("utf-8").splitlines()[1:]]
        for part in ("train", "test")
    )
    (tmp_path / "train.txt").write_text("\n".join(train), encoding="utf-8")
    options = {"trim_vocab": [str(tmp_path / "train.txt")], "keep_characters": False}
    report = conversion.convert(str(tmp_path / "e5"), "huggingface", str(tmp_path / "to"), **options)
    assert report["vocabulary"]["weights"][1] < 0.22 * report["vocabulary"]["weights"][0]
    before, after = (bert_tf.SentenceEncoder.from_pretrained(tmp_path / name) for name in ("e5", "to"))
    kinds = [open_checkpoint(str(tmp_path / name)).tokenizer for name in ("e5", "to")]
    texts = test[::40]
    same = [one == other for one, other in zip(*(names(kind, texts) for kind in kinds), strict=True)]
    assert np.mean(same) > 0.9
    texts = [text for text, kept in zip(texts, same, strict=True) if kept]
    np.testing.assert_allclose(after.encode(texts), before.encode(texts), atol=1e-5)
