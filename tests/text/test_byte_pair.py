"""BytePairTokenizer against Hugging Face's `tokenizers`, on a vocabulary that it learned from the bundled text."""

import gzip
import itertools
import json
import pickle
import random
import unicodedata

import pytest
import tensorflow as tf
import tokenizers

import bert_tf
from bert_tf.bundled import bundled
from bert_tf.errors import ConfigError, DataError
from bert_tf.files import write_json
from bert_tf.text.byte_pair import BytePairTokenizer
from tests.errors import raises
from tests.packages import shared
from tests.pages import ROOT, blocks

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SPACES = " \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u3000"
CHARACTERS = [
    *SPACES,
    *"'stredmvlSTREDMVL",
    *".,!?-_",
    *"0129½٣",
    *"abcABCéﬁΣ",
    *"가각중中日😀",
    "\u0301",
    "\u200b",
    "\0",
    "\x01",
]


def lines(*names):
    """The bundled text, Korean and English."""
    for name in names:
        with gzip.open(bundled(name), "rt", encoding="utf-8") as file:
            yield from itertools.islice((line.rstrip("\n") for line in file), 20_000)


@pytest.fixture(scope="module")
def learned():
    """Pieces by id, and merges."""
    learner = tokenizers.ByteLevelBPETokenizer()
    text = lines("data/korean/gnome_train.txt.gz", "data/sotu/train.txt.gz")
    learner.train_from_iterator(text, vocab_size=6000, special_tokens=SPECIALS[:4], show_progress=False)
    learner.add_special_tokens(SPECIALS)
    state = json.loads(learner.to_str())
    ids = state["model"]["vocab"] | {"<mask>": len(state["model"]["vocab"])}
    return sorted(ids, key=ids.get), [" ".join(merge) for merge in state["model"]["merges"]]


@pytest.fixture(scope="module")
def reference(learned):
    """Hugging Face's tokenizer of the same vocabulary, with RoBERTa's special tokens and post-processor."""
    pieces, merges = learned
    ids = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = tokenizers.processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), trim_offsets=True, add_prefix_space=False
    )
    made.add_special_tokens([tokenizers.AddedToken(name, lstrip=name == "<mask>") for name in SPECIALS])
    return made


@pytest.fixture(scope="module")
def tokenizer(learned):
    return BytePairTokenizer(*learned)


@pytest.fixture(scope="module")
def tokenize(tokenizer):
    return tf.function(tokenizer.tokenize, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])


@pytest.fixture(scope="module")
def texts():
    choice = random.Random(0)
    made = ["".join(choice.choices(CHARACTERS, k=choice.randrange(20))) for _ in range(20_000)]
    return [*made, *itertools.islice(lines("data/korean/gnome_heldout.txt.gz", "data/sotu/heldout.txt.gz"), 4000)]


def assert_equal(tokenize, reference, texts):
    for begin in range(0, len(texts), 4096):
        batch = texts[begin : begin + 4096]
        expected = [encoding.ids for encoding in reference.encode_batch(batch, add_special_tokens=False)]
        for text, found, right in zip(batch, tokenize(tf.constant(batch)).to_list(), expected, strict=True):
            assert found == right, (text, reference.encode(text).tokens)


def test_ids_equal_those_of_the_reference(tokenize, reference, texts):
    assert_equal(tokenize, reference, texts)


def test_ids_of_every_twentieth_character_equal_those_of_the_reference(tokenize, reference):
    codes = [code for code in range(0, 0x110000, 20) if not 0xD800 <= code < 0xE000]
    assert_equal(tokenize, reference, [f"a{chr(code)}b {chr(code)}{chr(code)}" for code in codes])
    # Newer letters are no letters for RE2, whose version of Unicode is older: it takes the apostrophe after them along.
    old = [char for char in map(chr, codes) if unicodedata.ucd_3_2_0.category(char) != "Cn"]
    assert_equal(tokenize, reference, [f"{char}'s" for char in old])


@pytest.mark.slow
@pytest.mark.parametrize("context", ["{}", "a{}b", " {} ", "1{}{}"])
def test_ids_of_every_character_equal_those_of_the_reference(tokenize, reference, context):
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert_equal(tokenize, reference, [context.replace("{}", chr(code)) for code in codes])


@pytest.mark.slow
@pytest.mark.parametrize(("path", "column"), [("english/sst2/train.tsv", 0), ("korean/nsmc/ratings_train.tsv", 1)])
def test_ids_of_published_texts_equal_those_of_the_reference(tokenize, reference, path, column):
    with open(shared(path), encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    assert_equal(tokenize, reference, [row[column] for row in rows if len(row) > column])


def test_offsets_equal_those_of_the_reference_in_bytes(tokenizer, reference, texts):
    texts = texts[-4000:] + texts[:4000]
    ids, starts, ends = (values.to_list() for values in tokenizer.tokenize_with_offsets(texts))
    for text, row, first, last in zip(texts, ids, starts, ends, strict=True):
        encoding = reference.encode(text, add_special_tokens=False)
        assert encoding.ids == row
        for (start, end), *found in zip(encoding.offsets, first, last, strict=True):
            if text[start:end].strip():  # the reference leaves nothing of white space
                assert found == [len(text[:start].encode()), len(text[:end].encode())], text
            else:
                assert found[0] < found[1], text


def test_pairs_are_packed_as_roberta_packs_them(tokenizer, reference):
    texts, others = ["One text.", "two", ""], ["Another one!", "", "x y z"]
    features = {name: value.numpy() for name, value in tokenizer.encode(texts, others).items()}
    for row, pair in enumerate(zip(texts, others, strict=True)):
        expected = reference.encode(*pair)
        assert features["input_word_ids"][row][features["input_mask"][row] == 1].tolist() == expected.ids
    assert not features["input_type_ids"].any()
    assert tokenizer.specials() == 2 and tokenizer.specials(pairs=True) == 4
    longest = reference.encode(texts[0], others[0]).ids
    assert len(tokenizer.encode(texts[:1], others[:1], max_length=7)["input_word_ids"][0]) == 7 < len(longest)


def test_special_tokens_in_the_text_are_recognised_on_request_only(tokenizer, reference):
    text = "one  <mask> two<s><mask></s> <pad>\u3000<mask>"
    ids, starts, ends = (values.to_list()[0] for values in tokenizer.tokenize_with_offsets([text], special_tokens=True))
    assert ids == reference.encode(text, add_special_tokens=False).ids
    covered = [text.encode()[start:end].decode() for start, end in zip(starts, ends, strict=True)]
    assert [piece for piece in covered if piece.startswith("<")] == [
        "<mask>",
        "<s>",
        "<mask>",
        "</s>",
        "<pad>",
        "<mask>",
    ]
    plain = tokenizer.tokenize([text]).to_list()[0]
    assert not {tokenizer.mask_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}.intersection(plain)
    assert tokenizer.detokenize(tf.constant([plain])).numpy()[0].decode() == text


def test_bytes_that_are_not_utf8_are_skipped(tokenizer):
    choice = random.Random(1)
    texts = [
        bytes(choice.choices([0x20, 0x61, 0x27, 0xC3, 0xA9, 0xED, 0x95, 0x9C, 0xFF, 0xF5, 0], k=12))
        for _ in range(2000)
    ]
    ids, starts, ends = (values.to_list() for values in tokenizer.tokenize_with_offsets(texts))
    assert ids == tokenizer.tokenize([text.decode("utf-8", "ignore") for text in texts]).to_list()
    wholes = tokenizer.detokenize(tf.ragged.constant(ids, tf.int32)).numpy()
    for text, whole, first, last in zip(texts, wholes, starts, ends, strict=True):
        pieces = [text[start:end].decode("utf-8", "ignore") for start, end in zip(first, last, strict=True)]
        assert all(piece and piece in whole.decode() for piece in pieces)


def test_detokenizing_restores_the_text(tokenizer, texts):
    assert [text.decode() for text in tokenizer.detokenize(tokenizer.tokenize(texts)).numpy()] == texts


def test_words_begin_after_white_space_and_at_marks(tokenizer):
    ids, begins = tokenizer.tokenize_with_words(["Recursively, well-known  words.", "가나다라 마바사", ""])
    rows = [
        [
            (tokenizer.detokenize(tf.constant([[piece]])).numpy()[0].decode(), begin)
            for piece, begin in zip(*row, strict=True)
        ]
        for row in zip(ids.to_list()[:1], begins.to_list()[:1], strict=True)
    ]
    words = "".join(("|" if begin else "") + piece for piece, begin in rows[0])
    assert words == "|Recursively|,| well|-|known|  words|."
    assert [row[:1] for row in begins.to_list()] == [[True], [True], []]
    assert sum(begins.to_list()[1]) == 2


def test_a_space_on_its_own_begins_the_word_after_it(learned):
    byte = BytePairTokenizer([piece for piece in learned[0] if len(piece) == 1 or piece in SPECIALS], [])
    found = byte.tokenize_with_words(["a bc", "a  b", " (b", "a ", " "])[1].to_list()
    words = ["|a| bc", "|a|  b", "| (|b", "|a| ", "| "]
    assert found == [[before == "|" for before, char in itertools.pairwise(row) if char != "|"] for row in words]


def test_a_tokenizer_can_be_pickled(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.tokenize("some text").to_list() == tokenizer.tokenize("some text").to_list()


def test_a_batch_of_unknown_rank_is_checked(tokenizer):
    traced = tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec(None, tf.string)], autograph=False)
    assert traced(tf.constant(["a b"])).to_list() == tokenizer.tokenize("a b").to_list()
    with pytest.raises(tf.errors.InvalidArgumentError):
        traced(tf.constant("a b"))


def test_an_empty_batch_and_a_long_text(tokenizer, reference):
    assert tokenizer.tokenize(tf.zeros([0], tf.string)).shape == [0, None]
    assert tokenizer.tokenize_with_offsets(["", " "])[1].to_list() == [[], [0]]
    text = "가" * 30_000 + "x" * 30_000
    assert tokenizer.tokenize([text]).to_list() == [reference.encode(text, add_special_tokens=False).ids]


def test_files_are_read_as_hugging_face_writes_them(learned, tokenizer, tmp_path):
    pieces, merges = learned
    vocab = {piece: number for number, piece in enumerate(pieces)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    read = BytePairTokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert read.vocab == tokenizer.vocab == pieces and read.merges == merges
    assert BytePairTokenizer(vocab, merges).tokenize("text").to_list() == tokenizer.tokenize("text").to_list()
    (tmp_path / "vocab.json").write_text('{"a": 0, "a": 1}')
    with raises(DataError, "vocab.json", "'a'"):
        BytePairTokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt")
    with raises(DataError, "nothing.txt"):
        BytePairTokenizer(tmp_path / "vocab.json", tmp_path / "nothing.txt")
    (tmp_path / "vocab.json").write_text('["a"]')
    with raises(DataError, "vocab.json"):
        BytePairTokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt")


def test_vocabularies_with_defects_are_refused(learned):
    pieces, merges = learned
    with raises(DataError, "0x20"):
        BytePairTokenizer([piece if piece != "Ġ" else "no space" for piece in pieces], merges)
    with raises(DataError, "<mask>"):
        BytePairTokenizer(pieces[:-1], merges)
    with raises(DataError, "'Zq'", len(merges) + 1):
        BytePairTokenizer(pieces, [*merges, "Z q"])
    with raises(DataError, repr(merges[0]), len(merges) + 1):
        BytePairTokenizer(pieces, [*merges, merges[0]])
    with raises(DataError, "'one'"):
        BytePairTokenizer(pieces, ["one"])
    with raises(DataError, repr(pieces[9])):
        BytePairTokenizer([*pieces, pieces[9]], merges)
    for vocab in (None, {"a": "0"}, {"a": None}, ["a", 7], {"\ud800": 0}):
        with raises((ConfigError, DataError)):
            BytePairTokenizer(vocab, [])
    with raises(DataError, "'b'", 9):
        BytePairTokenizer({"a": 0, "b": 9}, [])


def test_a_vocabulary_whose_merges_depend_on_more_than_the_string_is_refused(learned):
    """abc is a, bc by pairs: `b c` is the first merge, and `a bc` is none."""
    bytes_and_specials = [piece for piece in learned[0] if len(piece) == 1 or piece in SPECIALS]
    with raises(DataError, "'abc'"):
        BytePairTokenizer([*bytes_and_specials, "bc", "ab", "abc"], ["b c", "a b", "ab c"])


def test_nothing_is_printed_when_a_tokenizer_is_created(tokenizer, capfd):
    changed = BytePairTokenizer(tokenizer.vocab, tokenizer.merges[:-1])  # another model, so another resource
    changed.tokenize(["a b"])
    assert capfd.readouterr().err == ""


LOST = {
    "half": lambda lines: lines[: len(lines) // 2],
    "the last ten": lambda lines: lines[:-10],
    "one in the middle": lambda lines: lines[:700] + lines[701:],
    "all but the header": lambda lines: lines[:1],
    "all but line ends": lambda lines: [b""] * len(lines),
    "line feeds": lambda lines: [b"\r".join(lines)],
}


@pytest.mark.parametrize("lost", LOST)
def test_a_merges_file_that_lost_lines_is_refused(lost, tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    files = [tmp_path / name for name in BytePairTokenizer.FILES]
    assert BytePairTokenizer(*files).merges == tokenizer.merges
    files[1].write_bytes(b"\n".join(LOST[lost](files[1].read_bytes().split(b"\n"))))
    with raises(DataError, files[0], "merges.txt", "6,001"):
        BytePairTokenizer(*files)


def test_a_piece_of_millions_of_characters_is_refused_before_it_takes_memory(tmp_path):
    write_json(tmp_path / "vocab.json", {"a": 0, "x" * 5_000_000: 1})
    (tmp_path / "merges.txt").write_text("")
    with raises(DataError, tmp_path / "vocab.json", "5,000,000", "1,000"):
        BytePairTokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt")


def test_the_documented_lines_complete_gpt2s_files(learned, tmp_path, monkeypatch):
    pieces, merges = [piece for piece in learned[0] if piece not in SPECIALS] + ["<|endoftext|>"], learned[1]
    ids = {piece: number for number, piece in enumerate(pieces)}
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2/vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (tmp_path / "gpt2/merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    (code,) = (one.code for one in blocks(ROOT / "docs/tokenization.md") if "ids.setdefault" in one.code)
    monkeypatch.chdir(tmp_path)
    found = {"bert_tf": bert_tf}
    exec(compile(code, "docs/tokenization.md", "exec"), found)
    tokenizer = found["tokenizer"]
    # The ids of GPT-2 stay, and those of the tasks follow.
    assert tokenizer.vocab == [*pieces, *SPECIALS]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE.from_file("gpt2/vocab.json", "gpt2/merges.txt"))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [*itertools.islice(lines("data/sotu/heldout.txt.gz"), 200), "", " it's  1,000 ", "한국어 텍스트 😀"]
    expected = [one.ids for one in theirs.encode_batch(texts)]
    assert tokenizer.tokenize(texts).to_list() == expected
    first, _, last, _, mask = range(len(pieces), len(pieces) + 5)
    assert tokenizer.encode(texts[:1])["input_word_ids"][0].numpy().tolist() == [first, *expected[0], last]
    assert tokenizer.tokenize(["a <mask>"], special_tokens=True).to_list() == [[ids["a"], mask]]
