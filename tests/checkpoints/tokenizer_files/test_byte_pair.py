"""RoBERTa's files against Transformers' own tokenizer of the same directory."""

import json

import pytest

from bert_tf.checkpoints.tokenizer_files.files import real_pieces
from bert_tf.errors import DataError
from bert_tf.text.byte_pair import BytePairTokenizer
from bert_tf.text.kinds import saved_tokenizer
from tests.checkpoints.tokenizer_files.directories import (
    TEXTS,
    UNSEEN,
    assert_same_ids,
    edit,
    kinds,
    read,
    rewritten,
    write,
)
from tests.errors import raises
from tests.learned import SIZE, TOKENIZERS

transformers = pytest.importorskip("transformers", reason="needs pip install 'bert_tf[peers]'")

byte_pair = TOKENIZERS["byte_bpe"]


@pytest.fixture
def files(tmp_path):
    """A directory with vocab.json and merges.txt."""
    return _saved(tmp_path / "files")


@pytest.fixture
def library(tmp_path):
    """A directory with tokenizer.json alone, as Transformers 5 writes it."""
    source = _saved(tmp_path / "source")
    transformers.RobertaTokenizer.from_pretrained(source).save_pretrained(tmp_path / "library")
    return tmp_path / "library"


def _saved(path):
    path.mkdir()
    byte_pair().save(path)
    return path


def test_files_are_read_as_by_transformers_and_written_back(files, tmp_path):
    tokenizer, warnings = read(files, SIZE, "RobertaTokenizer")
    assert not warnings
    assert_same_ids(tokenizer, transformers.RobertaTokenizer.from_pretrained(files))
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "again", "roberta"))
    assert (tmp_path / "again" / "merges.txt").read_bytes() == (files / "merges.txt").read_bytes()
    assert read(tmp_path / "again", SIZE)[0].vocab == tokenizer.vocab
    assert type(read(files, SIZE)[0]) is BytePairTokenizer  # if no class is named


@pytest.mark.parametrize("name", ["RobertaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"])
@pytest.mark.parametrize("spelling", [str, list])
def test_tokenizer_json_is_read_as_by_transformers(library, name, spelling):
    edit(library, "tokenizer_config.json", "tokenizer_class", value=name)
    merges = [merge if spelling is str else merge.split(" ") for merge in byte_pair().merges]
    edit(library, "tokenizer.json", "model", "merges", value=merges)
    tokenizer, warnings = read(library, SIZE)
    assert not warnings
    write(library, "config.json", {"model_type": "roberta"})
    assert_same_ids(tokenizer, transformers.AutoTokenizer.from_pretrained(library))


def test_berts_special_tokens_are_written_to_tokenizer_json(tmp_path):
    names = dict(
        zip(("<s>", "<pad>", "</s>", "<unk>", "<mask>"), ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), strict=True)
    )
    tokenizer = BytePairTokenizer([names.get(piece, piece) for piece in byte_pair().vocab], byte_pair().merges)
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "theirs"))
    again, warnings = read(tmp_path / "theirs", SIZE)
    assert (again.vocab, again.merges, warnings) == (tokenizer.vocab, tokenizer.merges, [])


@pytest.mark.parametrize("where", ["added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_beside_the_vocabulary_complete_it(files, where):
    pieces = [piece for piece in byte_pair().vocab if piece != "<mask>"]
    write(files, "vocab.json", {piece: number for number, piece in enumerate(pieces)})
    number = len(pieces)
    contents = {
        "added_tokens.json": {"<mask>": number},
        "tokenizer_config.json": {"added_tokens_decoder": {str(number): {"content": "<mask>", "lstrip": True}}},
        "special_tokens_map.json": {"mask_token": {"content": "<mask>", "lstrip": True}, "cls_token": "<s>"},
    }
    write(files, where, contents[where])
    tokenizer, warnings = read(files, SIZE, "RobertaTokenizer")
    assert (tokenizer.mask_id, tokenizer.vocab_size, warnings) == (number, SIZE, [])
    assert transformers.RobertaTokenizer.from_pretrained(files).mask_token_id == number


@pytest.mark.parametrize("number", [300, SIZE])
def test_added_tokens_are_found_in_texts_as_by_transformers_or_named_if_a_merge_makes_them(library, number):
    content = json.loads((library / "tokenizer.json").read_text(encoding="utf-8"))
    token = dict(content["added_tokens"][0], id=number, special=False)
    token["content"] = byte_pair().vocab[number] if number < SIZE else "<x>"
    edit(library, "tokenizer.json", "added_tokens", value=[*content["added_tokens"], token])
    write(library, "config.json", {"model_type": "roberta"})
    text = f"a{token['content']}b"
    expected = transformers.AutoTokenizer.from_pretrained(library)(text, add_special_tokens=False)["input_ids"]
    assert number in expected
    tokenizer, warnings = read(library, max(SIZE, number + 1))
    if number == SIZE:
        assert not warnings and tokenizer.tokenize([text]).to_list() == [expected]
    else:
        assert f"added tokens ({token['content']}) are ordinary pieces here" in warnings[0]


def test_word_embeddings_without_a_piece_are_in_no_text_and_not_written_back(files, tmp_path):
    tokenizer, [warning] = read(files, SIZE + 35)
    assert f"35 of the {SIZE + 35:,} word embeddings" in warning
    assert tokenizer.vocab_size == SIZE + 35 and real_pieces(tokenizer.vocab) == byte_pair().vocab
    texts = [*TEXTS, tokenizer.vocab[-1], f"a{tokenizer.vocab[-1]}b"]
    assert tokenizer.tokenize(texts).to_list() == byte_pair().tokenize(texts).to_list()
    rewritten(tokenizer, tmp_path / "again", "roberta")
    assert len(json.loads((tmp_path / "again" / "vocab.json").read_text(encoding="utf-8"))) == SIZE


def test_if_both_are_there_tokenizer_json_is_used_as_in_transformers(library):
    byte_pair().save(library)
    assert read(library, SIZE)[1] == []
    BytePairTokenizer(byte_pair().vocab, byte_pair().merges[:-1]).save(library)
    tokenizer, [warning] = read(library, SIZE)
    assert "vocab.json and merges.txt and tokenizer.json hold different pieces" in warning
    assert tokenizer.merges == byte_pair().merges


def test_another_template_around_texts_has_a_warning(library):
    edit(library, "tokenizer.json", "post_processor", value=None)
    assert read(library, SIZE)[1] == []
    edit(library, "tokenizer.json", "post_processor", value={"type": "ByteLevel"})
    [warning] = read(library, SIZE)[1]
    assert "post_processor" in warning and "<s> text </s>" in warning


SPLIT = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("keys", "value", "names"),
    [
        (["pre_tokenizer"], None, ["splits text by nothing"]),
        (["model", "dropout"], 0.1, ["dropout 0.1"]),
        (["model", "ignore_merges"], True, ["ignore_merges True"]),
        (["model", "continuing_subword_prefix"], "##", ["continuing_subword_prefix '##'"]),
        (["model", "end_of_word_suffix"], "</w>", ["end_of_word_suffix '</w>'"]),
        (["model", "type"], "WordLevel", ["'WordLevel'"]),
        (["version"], "2.0", ["version '2.0'"]),
    ],
)
def test_what_splits_text_in_other_ways_is_read_without_a_tokenizer(library, keys, value, names):
    edit(library, "tokenizer.json", *keys, value=value)
    tokenizer, [warning] = read(library, SIZE)
    assert tokenizer is None and warning.startswith(UNSEEN) and all(name in warning for name in names)


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (["pre_tokenizer"], {"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL]}, {"numbers"}),
        (["normalizer"], {"type": "NFC"}, {"decomposed Hangul"}),
        (["normalizer"], {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}, {"capital letters"}),
    ],
)
def test_forms_that_change_some_texts_are_read_and_these_are_named(library, keys, value, named):
    edit(library, "tokenizer.json", *keys, value=value)
    tokenizer, [warning] = read(library, SIZE)
    assert tokenizer.tokenize(TEXTS).to_list() == byte_pair().tokenize(TEXTS).to_list()
    assert named <= kinds([warning])
    assert not kinds([warning]) & {"words in Latin", "emoji"}


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "DebertaTokenizerFast"])
def test_classes_that_are_not_known_are_named_and_their_tokenizer_json_is_read(library, name):
    edit(library, "tokenizer_config.json", "tokenizer_class", value=name)
    tokenizer, [warning] = read(library, SIZE)
    assert tokenizer.vocab == byte_pair().vocab and name.removesuffix("Fast") in warning


def test_a_class_of_another_kind_than_tokenizer_json_is_refused(library):
    edit(library, "tokenizer_config.json", "tokenizer_class", value="XLNetTokenizer")
    tokenizer, [warning] = read(library, SIZE)
    assert tokenizer is None and warning.startswith(UNSEEN) and "'BPE', not Unigram" in warning


@pytest.mark.parametrize("name", ["RobertaTokenizer", "PreTrainedTokenizerFast"])
def test_a_space_before_texts_is_put_there_as_by_transformers(files, library, tmp_path, name):
    config = {"tokenizer_class": name, "add_prefix_space": True}
    path = files if name == "RobertaTokenizer" else library
    write(path, "tokenizer_config.json", config)
    if path == library:
        edit(library, "tokenizer.json", "pre_tokenizer", "add_prefix_space", value=True)
    theirs = getattr(transformers, name).from_pretrained(path, add_prefix_space=True)
    tokenizer, warnings = read(path, SIZE)
    assert not warnings and tokenizer.add_prefix_space
    texts = [*TEXTS, "the", "\nthe", "\u3000the", "😀"]
    assert_same_ids(tokenizer, theirs, texts)
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "again", "roberta"), texts)
    masked = ["a<mask>b", "<mask>the the", "the<mask>"]
    expected = theirs(masked, add_special_tokens=False)["input_ids"]
    assert tokenizer.tokenize(masked, special_tokens=True).to_list() == expected
    with_space = [" ".join(("", *text.split())) for text in texts]
    plain = BytePairTokenizer(tokenizer.vocab, tokenizer.merges)
    assert tokenizer.tokenize(with_space).to_list() == plain.tokenize(with_space).to_list()

    (tmp_path / "own").mkdir()
    tokenizer.save(tmp_path / "own")
    again = saved_tokenizer(str(tmp_path / "own"), tokenizer.description, tokenizer.checksums, "config.json")
    assert again.tokenize(texts).to_list() == tokenizer.tokenize(texts).to_list()
    assert tokenizer.detokenize(tokenizer.tokenize(["the film"])).numpy().tolist() == [b"the film"]


def test_offsets_do_not_count_the_space_that_is_put_before_texts():
    tokenizer = BytePairTokenizer(byte_pair().vocab, byte_pair().merges, add_prefix_space=True)
    texts = [text for text in TEXTS if text.isascii() and text.strip()] + ["zqzq", "한국어"]
    ids, starts, ends = (values.to_list() for values in tokenizer.tokenize_with_offsets(texts))
    for row, text in enumerate(texts):
        covered = {at for start, end in zip(starts[row], ends[row], strict=True) for at in range(start, end)}
        encoded = text.encode()
        assert covered >= {at for at in range(len(encoded)) if not encoded[at : at + 1].isspace()}
        if text.isascii():
            for number, start, end in zip(ids[row], starts[row], ends[row], strict=True):
                # The space alone, if no piece begins with it, is part of the first character.
                assert encoded[start:end].strip() == tokenizer.texts[number].strip() or (start, end) == (0, 1)


def test_a_damaged_vocabulary_is_one_line(files):
    pieces, merges = byte_pair().vocab, byte_pair().merges
    write(files, "merges.txt", "\n".join(["#version: 0.2", *merges, "Z q", ""]))
    with raises(DataError, "merges.txt", f"merge {len(merges) + 1}", "'Z q'", "'Zq'"):
        read(files, SIZE)
    with raises(DataError, "merges.txt", f"merge {len(merges) + 1}"):
        read(files, SIZE + 3)
    write(files, "merges.txt", "\n".join(merges))
    write(files, "vocab.json", {piece if piece != "Ġ" else "none": number for number, piece in enumerate(pieces)})
    with raises(DataError, "vocab.json", "0x20"):
        read(files, SIZE)
    write(files, "vocab.json", json.dumps({"<s>": 0})[:-1] + ', "<s>": 1}')
    with raises(DataError, "vocab.json", "'<s>'", "twice"):
        read(files, SIZE)
    others = [piece for piece in pieces if piece != "<mask>"]
    write(files, "vocab.json", {piece: number for number, piece in enumerate(others)})
    with raises(DataError, "vocab.json", "<mask>"):
        read(files, SIZE - 1)
    (files / "vocab.json").unlink()
    with raises(DataError, "merges.txt without vocab.json"):
        read(files, SIZE, "RobertaTokenizer")
    (files / "merges.txt").unlink()
    with raises(DataError, "neither vocab.json nor merges.txt nor tokenizer.json"):
        read(files, SIZE, "RobertaTokenizer")


def test_more_pieces_than_word_embeddings_are_refused(files, library):
    for path in (files, library):
        with raises(DataError, SIZE, SIZE - 1):
            read(path, SIZE - 1)


def test_a_model_may_have_the_rows_of_a_default(files, library):
    for path in (files, library):
        tokenizer, [warning] = read(path, 50_265)
        assert tokenizer.vocab_size == 50_265 and f"{50_265 - SIZE:,} of the 50,265 word embeddings" in warning


def test_old_files_of_added_tokens_are_not_read_where_newer_ones_say_all(library):
    write(library, "added_tokens.json", {f"old{number}": SIZE + number for number in range(16)})
    decoder = {"0": {"content": "<s>", "special": True}}
    edit(library, "tokenizer_config.json", "added_tokens_decoder", value=decoder)
    assert len(transformers.AutoTokenizer.from_pretrained(library)) == SIZE
    assert read(library, SIZE)[0].vocab == byte_pair().vocab


def test_a_damaged_tokenizer_json_is_one_line(library):
    merges = byte_pair().merges
    for value, culprits in (
        ([*merges, "Z q"], [f"merge {len(merges) + 1}", "'Zq'"]),
        ([["a"]], ["merge 1", "'a'"]),
        ({"a": 1}, ["merges"]),
        ([1], ["merges"]),
    ):
        edit(library, "tokenizer.json", "model", "merges", value=value)
        with raises(DataError, "tokenizer.json", *culprits):
            read(library, SIZE)
