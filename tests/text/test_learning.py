"""Learned vocabularies: repeatable, split like the tokenizer, with the family's ids for the special tokens."""

import gzip
import itertools
import json
import os
import random
import subprocess
import sys

import pytest
import sentencepiece
import tensorflow as tf
import tokenizers

from bert_tf.bundled import bundled
from bert_tf.errors import ConfigError, DataError
from bert_tf.text import Tokenizer, learn_byte_pairs, learn_unigram, learn_vocabulary, read_vocabulary
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.learning import learn_albert, sample_text
from bert_tf.text.sentence_piece import SentencePieceTokenizer
from tests.errors import raises

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SYLLABLES = ["la", "mo", "ti", "ne", "Ru", "É", "가", "나다", "中国", "-", "’", "."]


def corpus(lines=400):
    """Words of pseudo-random syllables: many merges have the same frequency, so ties have to be broken."""
    state, text = 1, []
    for _ in range(lines):
        words = []
        for _ in range(8):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            shifts = (8, 13, 18)[: state % 3 + 1]
            words.append("".join(SYLLABLES[(state >> shift) % len(SYLLABLES)] for shift in shifts))
        text.append(" ".join(words))
    return text


def test_special_tokens_come_first_and_the_size_is_as_requested():
    pieces = learn_vocabulary(corpus(), 120)
    assert pieces[:5] == SPECIALS and len(pieces) == len(set(pieces)) == 120


def test_the_training_text_is_tokenized_without_unknowns():
    for options in ({}, {"lower_case": False}, {"strip_accents": False}, {"split_cjk": False}):
        tokenizer = Tokenizer(learn_vocabulary(corpus(), 200, **options), **options)
        ids = tokenizer.tokenize(corpus())
        assert tokenizer.unk_id not in ids.flat_values.numpy()


def test_wordpieces_are_normalized_and_never_cross_a_split_of_the_tokenizer():
    pieces = learn_vocabulary(["É中国-x’y."] * 50, 100)
    assert {"e", "中", "国", "-", "’", "x", "y"} <= set(pieces)
    assert not any(len(piece) > 1 for piece in pieces[5:])
    assert {"É", "##y", "##中"}.isdisjoint(pieces)
    whole = learn_vocabulary(["É中国"] * 50, 100, strip_accents=False, split_cjk=False)
    assert "é中国" in whole


def test_rare_characters_are_excluded_together_with_their_words():
    rare = [f"a{chr(0x4E00 + i)}" for i in range(200)]
    pieces = learn_vocabulary(["abab ab"] * 50 + rare, 100, split_cjk=False)
    assert sum(len(piece.removeprefix("##")) == 1 for piece in pieces) <= 50 and "abab" in pieces
    assert all(set(piece.removeprefix("##")) <= set(pieces) for piece in pieces[5:])


def test_words_over_the_tokenizers_limit_are_ignored():
    pieces = learn_vocabulary(["ab" * 101, "ab" * 101, "cd cd"], 100)
    assert "##ab" not in pieces and "ab" not in pieces and "cd" in pieces


def test_lines_may_be_bytes_and_invalid_utf8():
    assert learn_vocabulary([b"the\xff cat\r\n", "the cat"], 100) == learn_vocabulary(["the cat", "the cat"], 100)


@pytest.fixture(scope="module")
def english_and_korean():
    """Bundled text to learn from, and text to try the vocabularies on."""
    parts = []
    for part in ("train", "heldout"):
        parts.append([])
        for name in (f"sotu/{part}", f"korean/gnome_{part}", f"korean/libreoffice_{part}"):
            with gzip.open(bundled(f"data/{name}.txt.gz"), "rt", encoding="utf-8") as file:
                parts[-1] += [line.rstrip("\n") for line in itertools.islice(file, 1000) if line.strip()]
    return parts


@pytest.fixture(scope="module")
def byte_pairs(english_and_korean):
    return learn_byte_pairs(english_and_korean[0], 3000)


@pytest.fixture(scope="module")
def unigram(english_and_korean):
    return learn_unigram(english_and_korean[0], 3000)


def test_byte_pairs_have_robertas_special_tokens_and_every_byte(byte_pairs):
    pieces, merges = byte_pairs
    assert len(pieces) == len(set(pieces)) == 3000 and len(merges) == 3000 - 256 - 5
    assert [*pieces[:4], pieces[-1]] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert set(pieces[4:260]) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert ["".join(merge.split(" ")) for merge in merges] == pieces[260:-1]


def test_learned_byte_pairs_are_opened_by_hugging_face_too_and_restore_every_text(
    byte_pairs, english_and_korean, tmp_path
):
    tokenizer = BytePairTokenizer(*byte_pairs)
    tokenizer.save(tmp_path)
    reference = tokenizers.ByteLevelBPETokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    texts = [*english_and_korean[1], "<s> <mask> \0\x07  é½ 日本語 😀\t", "x" * 5000]
    ids = tokenizer.tokenize(texts)
    assert ids.to_list() == [encoding.ids for encoding in reference.encode_batch(texts)]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == texts


def test_words_of_byte_pairs_are_gpt2s(byte_pairs):
    pieces = byte_pairs[0][260:-1]
    assert {"Ġthe", "Ġof", "'s", "Ġ19"} <= set(pieces)
    decoder = tokenizers.decoders.ByteLevel()
    words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole = [piece for piece in pieces if "\ufffd" not in decoder.decode([piece])]
    assert len(whole) > 2000
    assert [word for piece in whole for word, _ in words.pre_tokenize_str(decoder.decode([piece]))] == whole


def test_a_learned_unigram_model_is_opened_by_sentencepiece_too(unigram, english_and_korean, tmp_path):
    (tmp_path / "ko_en.model").write_bytes(unigram)
    tokenizer = SentencePieceTokenizer(tmp_path / "ko_en.model")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "ko_en.model"))
    assert reference.get_piece_size() == tokenizer.vocab_size == len(set(tokenizer.vocab)) == 3000
    assert [*tokenizer.vocab[:4], tokenizer.vocab[-1]] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert (reference.bos_id(), reference.pad_id(), reference.eos_id(), reference.unk_id()) == (0, 1, 2, 3)
    assert reference.is_control(2999)
    texts = english_and_korean[1]
    ids, expected = tokenizer.tokenize(texts).to_list(), reference.encode(texts)
    assert sum(row != right for row, right in zip(ids, expected, strict=True)) < 0.01 * len(texts)  # equal scores
    unknown = sum(row.count(3) for row in ids)
    assert unknown < 0.005 * sum(map(len, ids))
    restored = [text.decode() for text in tokenizer.detokenize(tf.ragged.constant(ids)).numpy()]
    pairs = zip(restored, texts, ids, strict=True)
    assert all(
        found == reference.normalize(text).replace("▁", " ").strip() for found, text, row in pairs if 3 not in row
    )


def test_alberts_vocabulary_is_learned_from_texts_as_albert_changes_them():
    lines = ["``Café'' ÉTÉ 한국어"] * 200 + corpus()
    for settings, learned, other in (((), "▁ete", "▁été"), ((True, False), "▁été", "▁ete"), ((False,), "▁ÉTÉ", "▁été")):
        model = learn_albert(lines, 200, *settings)
        pieces = SentencePieceTokenizer(model).vocab
        assert pieces[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
        assert learned in pieces and other not in pieces and not any("`" in piece for piece in pieces)
        # Stripping accents decomposes syllables, and SentencePiece's normalization joins them again.
        assert "한" in "".join(pieces)


def test_unigram_learns_from_all_lines():
    """sentencepiece by itself drops lines with U+2585, and long ones."""
    lines = ["qzx \u2585 qzx", "vwk \0 vwk", b"jxq\xff jxq\r\n", "<s> <mask> <pad> zkw"] * 20
    found = SentencePieceTokenizer(learn_unigram([*lines, "hjz " * 1250, *corpus()], 1000)).vocab
    assert {"▁qzx", "▁vwk", "▁jxq", "▁hjz", "▁zkw"} <= set(found) and len(found) == len(set(found))


def test_unigram_takes_repeated_passages(english_and_korean):
    """They would take hours if the trainer got them in this order."""
    passage = english_and_korean[0][:100]
    assert len(SentencePieceTokenizer(learn_unigram(passage * 100, 500)).vocab) == 500
    assert "▁the▁cat" not in SentencePieceTokenizer(learn_unigram(["the cat sat"] * 10_000, 500)).vocab


def test_samples_are_repeatable_uniform_and_in_order():
    texts = [f"{number:04}" for number in range(5000)]
    drawn = sample_text(texts, 4000)
    assert drawn == sample_text(iter(texts), 4000) == sorted(drawn) and len(drawn) == 1000
    assert 400 < sum(text < "2500" for text in drawn) < 600  # 6 standard deviations
    assert sample_text(texts, 20_000) == texts
    for letters in ("ab ", "ab\n", "a"):  # long lines are cut
        long = "".join(random.Random(0).choices(letters, k=2500))
        assert "".join(sample_text([long], 2500)) == long
        parts = sample_text([long], 2499)
        assert len(parts) == 2 and max(map(len, parts)) <= 1001
    assert all(part[-1].isspace() for part in sample_text(["word " * 1000], 4000))


OUTPUTS = {"wordpiece": ("vocab.txt",), "byte_bpe": ("vocab.json", "merges.txt"), "unigram": ("ko.model",)}
OUTPUTS["albert"] = OUTPUTS["unigram"]
SIZES = {"wordpiece": 150, "byte_bpe": 400, "unigram": 100, "albert": 100}


@pytest.mark.parametrize(
    "kind", ["wordpiece", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OUTPUTS if kind != "wordpiece")]
)
def test_the_program_writes_in_another_process_what_is_learnt_here(tmp_path, kind):
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write("\n".join(corpus()[200:]).encode())
    (tmp_path / "a.txt").write_text("\n".join(corpus()[:200]) + "\n", encoding="utf-8")
    output = tmp_path / "new" / OUTPUTS[kind][0]
    output.parent.mkdir()
    # Hashes, and so the order of sets, are different from those of this process.
    environment = os.environ | {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "1"}
    arguments = [
        f"--input={tmp_path}/*.txt,{tmp_path}/*.gz", f"--output={output}", f"--vocab_size={SIZES[kind]}",
        f"--kind={kind}",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "bert_tf.learn_vocab", *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"{SIZES[kind]} pieces" in done.stdout
    lines = [line for line in done.stderr.splitlines() if "TensorFlow Text cannot be imported" not in line]
    assert all("reading" in line for line in lines)  # nothing of the libraries
    assert {path.name for path in output.parent.iterdir()} == set(OUTPUTS[kind])
    if kind == "wordpiece":
        assert read_vocabulary(output) == learn_vocabulary(corpus(), 150)
    elif kind == "unigram":
        assert output.read_bytes() == learn_unigram(corpus(), 100)
    elif kind == "albert":
        assert output.read_bytes() == SentencePieceTokenizer(learn_albert(corpus(), 100)).model
    else:
        pieces, merges = learn_byte_pairs(corpus(), 400)
        assert json.loads(output.read_text()) == {piece: number for number, piece in enumerate(pieces)}
        assert output.with_name("merges.txt").read_text().splitlines() == ["#version: 0.2", *merges]


@pytest.mark.parametrize("learn", [learn_vocabulary, learn_byte_pairs, learn_unigram, learn_albert])
def test_texts_that_no_vocabulary_can_be_learnt_from_are_refused(learn, capfd):
    for lines in ([], ["", " \t"], [b"\xff"]):
        with raises(DataError, "no words"):
            learn(lines, 300)
    with raises(ConfigError, "20", "10,000,000"):
        learn(["the cat"], 20)
    with raises(DataError, "surrogate"):
        learn(["the \ud800"], 300)
    with pytest.raises(ZeroDivisionError):
        learn((1 // number and "the cat" for number in (1, 1, 0)), 300)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("learn", [learn_vocabulary, learn_byte_pairs, learn_unigram])
def test_a_small_text_gives_fewer_pieces(learn):
    found = learn(["the cat sat", "a dog by the wall", "on the mat"] * 3, 1000)
    if learn is learn_byte_pairs:
        assert BytePairTokenizer(*found).vocab == found[0] and 261 < len(found[0]) < 1000
    elif learn is learn_unigram:
        assert "▁the" in SentencePieceTokenizer(found).vocab
    else:
        assert "the" in found


def test_a_size_below_the_characters_of_the_text_is_refused():
    with raises(ConfigError, "200", "characters"):
        learn_unigram([chr(number) for number in range(0xAC00, 0xAC00 + 500)], 200)
    with raises(ConfigError, "260", "261"):
        learn_byte_pairs(["the cat"], 260)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--kind=byte_bpe --output={}/vocab.txt", "vocab.json"),
        ("--kind=byte_bpe --output={}/en.json", "vocab.json"),
        ("--kind=unigram --output={}/vocab.txt", "NAME.model"),
        ("--output={}/en.model", "vocab.txt"),
        ("--kind=byte_bpe --output={}/vocab.json --nolower_case", "--lower_case"),
        ("--kind=unigram --output={}/en.model --strip_accents", "--strip_accents"),
        ("--kind=albert --output={}/en.model --nosplit_cjk", "--split_cjk"),
        ("--kind=byte_bpe --output={}/vocab.json --input={}/merges.txt", "merges.txt"),
    ],
)
def test_outputs_and_settings_of_another_kind_are_refused(programs, tmp_path, arguments, named):
    (tmp_path / "merges.txt").write_text("the cat\n" * 10)
    done = programs("learn_vocab", f"--input={tmp_path}/merges.txt", *arguments.format(tmp_path, tmp_path).split())
    assert done.status == 2 and named in done.error_line
    assert [path.name for path in tmp_path.iterdir()] == ["merges.txt"]


@pytest.mark.parametrize("name, content, message", [
    ("cut.gz", gzip.compress(b"the cat\n" * 1000, mtime=0)[:-10], "the gzip data are cut off at byte"),
    ("a.txt", "the cat\n".encode("utf-16"), "byte 0: UTF-16 text"),
    ("ls", b"\x7fELF\2\1\1" + bytes(9) + b"the cat\n", "byte 7: 0x00, so binary data"),
], ids=["cut gzip", "UTF-16", "binary"])  # fmt: skip
def test_the_program_refuses_files_that_are_no_text(programs, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    done = programs("learn_vocab", f"--input={tmp_path / name}", f"--output={tmp_path}/vocab.txt")
    assert done.status == 1 and f"{name}: {message}" in done.error_line
    assert not (tmp_path / "vocab.txt").exists()
