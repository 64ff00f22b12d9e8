"""XLM-R's, CamemBERT's and KoBERT's files against Transformers' own tokenizers, and against sentencepiece."""

import json
import re

import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bert_tf.checkpoints import tokenizer_files
from bert_tf.checkpoints.tokenizer_files.files import real_pieces
from bert_tf.errors import ConfigError, DataError
from bert_tf.text import Tokenizer
from bert_tf.text.sentence_piece import SentencePieceTokenizer, albert_tokenizer, ends_in_number, with_fairseq_ids
from tests.checkpoints.tokenizer_files.directories import (
    HANGUL,
    TEXTS,
    UNSEEN,
    assert_same_ids,
    directory,
    edit,
    kinds,
    read,
    rewritten,
    write,
)
from tests.errors import raises
from tests.learned import SIZE, albert_model, sentence_piece, sentence_piece_model
from tests.packages import shared

transformers = pytest.importorskip("transformers", reason="needs pip install 'bert_tf[peers]'")

FILE = "sentencepiece.bpe.model"
XLM_R, CAMEMBERT = ("XLMRobertaTokenizer", SIZE + 2), ("CamembertTokenizer", SIZE + 5)
KOREAN_SPECIALS = {"pad_id": 1, "unk_id": 0, "bos_id": -1, "eos_id": -1, "unk_piece": "[UNK]", "pad_piece": "[PAD]"}


@pytest.fixture
def files(tmp_path):
    """A directory with XLM-R's file."""
    return directory(tmp_path / "files", {FILE: sentence_piece_model()})


@pytest.fixture
def library(tmp_path):
    """A directory with XLM-R's tokenizer.json alone, as Transformers 5 writes it."""
    source = directory(tmp_path / "source", {FILE: sentence_piece_model()})
    transformers.XLMRobertaTokenizer.from_pretrained(source).save_pretrained(tmp_path / "library")
    return tmp_path / "library"


@pytest.mark.parametrize(("name", "size"), [XLM_R, CAMEMBERT])
def test_files_are_read_as_by_transformers_and_written_back(files, tmp_path, name, size):
    theirs = getattr(transformers, name).from_pretrained(files)
    write(files, "tokenizer_config.json", {"tokenizer_class": f"{name}Fast"})
    tokenizer, warnings = read(files, size)
    assert not warnings and len(theirs) == size
    assert_same_ids(tokenizer, theirs)
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "again"))
    assert _pieces((tmp_path / "again" / FILE).read_bytes()) == _pieces(sentence_piece_model())
    again, _ = read(tmp_path / "again", size)
    assert again.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()

    theirs.save_pretrained(tmp_path / "library")
    assert not (tmp_path / "library" / FILE).exists()
    tokenizer, warnings = read(tmp_path / "library", size)
    assert not warnings
    assert_same_ids(tokenizer, theirs)
    assert _pieces(tokenizer.model) == _pieces(again.model)


def _pieces(model):
    return [(piece.piece, piece.score, piece.type) for piece in ModelProto.FromString(model).pieces if piece.type == 1]


@pytest.mark.parametrize("name", ["XLMRobertaTokenizer", "PreTrainedTokenizerFast"])
def test_the_normalizers_of_earlier_releases_are_known(library, name):
    """Transformers 4 wrote two other forms of the same normalization."""
    content = json.loads((library / "tokenizer.json").read_text(encoding="utf-8"))
    charsmap = content["normalizer"]
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    edit(library, "tokenizer_config.json", "tokenizer_class", value=name)
    write(library, "config.json", {"model_type": "xlm-roberta"})
    for normalizers, splitters in (
        ([charsmap, strip, spaces | {"content": "▁"}], [metaspace]),
        ([charsmap, spaces | {"content": " "}], [{"type": "WhitespaceSplit"}, metaspace]),
        ([charsmap], [{"type": "WhitespaceSplit"}, old]),
    ):
        edit(library, "tokenizer.json", "normalizer", value={"type": "Sequence", "normalizers": normalizers})
        edit(library, "tokenizer.json", "pre_tokenizer", value={"type": "Sequence", "pretokenizers": splitters})
        tokenizer, warnings = read(library, SIZE + 2)
        assert not warnings
        assert_same_ids(tokenizer, transformers.AutoTokenizer.from_pretrained(library))


@pytest.mark.parametrize("bytes_of_unknown", [False, True])
def test_a_model_with_ids_of_its_own_is_written_to_tokenizer_json(tmp_path, bytes_of_unknown):
    settings = {"pad_id": 3, "control_symbols": "<mask>", "byte_fallback": bytes_of_unknown}
    write(tmp_path, "spiece.model", sentence_piece_model(**settings))
    tokenizer, warnings = read(tmp_path, SIZE)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert not warnings
    assert tokenizer.tokenize(TEXTS).to_list() == reference.encode(TEXTS)
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "theirs"))
    again, warnings = read(tmp_path / "theirs", SIZE)
    assert not warnings and again.vocab == tokenizer.vocab
    assert again.tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()


@pytest.mark.parametrize("more", [{}, {"byte_fallback": True}, {"split_by_whitespace": False}])
def test_a_model_of_the_type_bpe_is_written_to_tokenizer_json_and_as_it_is(tmp_path, more):
    settings = {"pad_id": 3, "control_symbols": "<mask>", "model_type": "bpe"} | more
    write(tmp_path, "spiece.model", sentence_piece_model(**settings))
    tokenizer, _ = read(tmp_path, SIZE)
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "theirs"))
    again, warnings = read(tmp_path / "theirs", SIZE)
    assert not warnings and again.model == tokenizer.model


def test_a_model_that_keeps_spaces_is_written_as_it_is(tmp_path):
    settings = {"pad_id": 3, "control_symbols": "<mask>", "model_type": "bpe", "remove_extra_whitespaces": False}
    write(tmp_path, "spiece.model", sentence_piece_model(**settings))
    tokenizer, _ = read(tmp_path, SIZE)
    theirs = rewritten(tokenizer, tmp_path / "theirs")
    assert theirs(TEXTS, add_special_tokens=False)["input_ids"] == tokenizer.tokenize(TEXTS).to_list()
    assert read(tmp_path / "theirs", SIZE)[0].tokenize(TEXTS).to_list() == tokenizer.tokenize(TEXTS).to_list()


def test_xlm_rs_ids_are_those_of_fairseq(files):
    tokenizer, _ = read(files, SIZE + 2)
    assert tokenizer.vocab[:4] == ["<s>", "<pad>", "</s>", "<unk>"] and tokenizer.vocab[-1] == "<mask>"
    reference = sentencepiece.SentencePieceProcessor(model_proto=sentence_piece_model())
    known = [text for text in TEXTS if 0 not in reference.encode(text)]
    assert len(known) > 100
    assert tokenizer.tokenize(known).to_list() == [[number + 1 for number in reference.encode(text)] for text in known]


def test_word_embeddings_without_a_piece_are_in_no_text_and_not_written_back(files, tmp_path):
    """multilingual-e5-small has 250,037 word embeddings, and XLM-R 250,002 pieces."""
    write(files, "tokenizer_config.json", {"tokenizer_class": "XLMRobertaTokenizer"})
    tokenizer, [warning] = read(files, SIZE + 37)
    assert f"35 of the {SIZE + 37:,} word embeddings" in warning
    assert tokenizer.vocab_size == SIZE + 37 and real_pieces(tokenizer.vocab) == sentence_piece().vocab
    texts = [*TEXTS, tokenizer.vocab[-1]]
    assert tokenizer.tokenize(texts).to_list() == sentence_piece().tokenize(texts).to_list()
    theirs = rewritten(tokenizer, tmp_path / "again")
    assert type(theirs) is transformers.XLMRobertaTokenizer and len(theirs) == SIZE + 2


# KoBERT: a model that was learned with BERT's special tokens, and a vocab.txt in an order of its own.


@pytest.fixture
def kobert(tmp_path):
    model = sentence_piece_model(control_symbols="[CLS],[SEP],[MASK]", **KOREAN_SPECIALS)
    write(tmp_path, "tokenizer_78b3253a26.model", model)
    pieces = [piece.piece for piece in ModelProto.FromString(model).pieces]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    write(tmp_path, "vocab.txt", "".join(f"{piece}\n" for piece in [*specials, *sorted({*pieces} - {*specials})]))
    return tmp_path


@pytest.mark.parametrize("name", [None, "BertTokenizer", "KoBertTokenizer"])
def test_koberts_ids_are_the_numbers_of_lines(kobert, tmp_path, name):
    tokenizer, [warning] = read(kobert, SIZE, name)
    assert "line numbers of vocab.txt" in warning
    lines = (kobert / "vocab.txt").read_text(encoding="utf-8").split("\n")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(kobert / "tokenizer_78b3253a26.model"))
    expected = [
        [lines.index(piece) if piece in lines else 1 for piece in row] for row in reference.encode(TEXTS, out_type=str)
    ]
    assert tokenizer.tokenize(TEXTS).to_list() == expected
    assert tokenizer.specials(pairs=True) == 3
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "theirs"))
    again, warnings = read(tmp_path / "theirs", SIZE)
    assert not warnings and again.vocab == tokenizer.vocab


def test_the_unknown_piece_of_the_model_may_have_another_name(kobert):
    file = kobert / "tokenizer_78b3253a26.model"
    proto = ModelProto.FromString(file.read_bytes())
    proto.pieces[0].piece = "<unk>"
    file.write_bytes(proto.SerializeToString())
    assert read(kobert, SIZE)[0].unk_id == 1


def test_a_vocab_txt_of_another_model_is_refused(kobert):
    lines = (kobert / "vocab.txt").read_text(encoding="utf-8").split("\n")
    write(kobert, "vocab.txt", "\n".join([*lines[:-9], "none a", "none b"]))
    with raises(DataError, "vocab.txt", "no line for", "tokenizer_78b3253a26.model"):
        read(kobert, SIZE)
    write(kobert, "vocab.txt", "\n".join([*lines[:-2], lines[7]]))
    with raises(DataError, "vocab.txt", repr(lines[7]), "twice"):
        read(kobert, SIZE)
    write(kobert, "vocab.txt", "\n".join(lines))
    (kobert / "tokenizer_78b3253a26.model").unlink()
    with raises(DataError, "vocab.txt", "▁", ".model"):  # never taken for WordPiece
        read(kobert, SIZE)


def test_wordpiece_beside_a_model_stays_wordpiece(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]
    Tokenizer(pieces).save(tmp_path)
    write(tmp_path, "spiece.model", sentence_piece_model())
    assert type(read(tmp_path, 7)[0]) is Tokenizer


# ALBERT: texts are changed before SentencePiece.


@pytest.fixture
def albert(tmp_path):
    """A directory with ALBERT's file."""
    return directory(tmp_path / "albert", {"spiece.model": albert_model()})


ALBERT_TEXTS = [text for text in TEXTS if text.isascii()] + ["``Café'' ``` İĲ ½ ÅÉ", "ＦＵＬＬ\u2003x"]


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"keep_accents": True}])
def test_alberts_files_are_read_as_by_transformers_and_written_back(albert, tmp_path, settings):
    theirs = transformers.AlbertTokenizer.from_pretrained(albert, **settings)
    write(albert, "tokenizer_config.json", {"tokenizer_class": "AlbertTokenizer"} | settings)
    tokenizer, warnings = read(albert, SIZE)
    assert not warnings
    assert_same_ids(tokenizer, theirs, ALBERT_TEXTS)
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "again", "albert"), ALBERT_TEXTS)
    assert _pieces((tmp_path / "again" / "spiece.model").read_bytes()) == _pieces(albert_model())
    assert read(tmp_path / "again", SIZE)[0].description == tokenizer.description

    theirs.save_pretrained(tmp_path / "library")
    assert not (tmp_path / "library" / "spiece.model").exists()
    found, warnings = read(tmp_path / "library", SIZE)
    assert not warnings
    assert (_pieces(found.model), found.description) == (_pieces(tokenizer.model), tokenizer.description)
    write(tmp_path / "library", "spiece.model", albert_model())
    assert read(tmp_path / "library", SIZE)[1] == []


def test_alberts_settings_are_those_of_transformers_where_files_differ(albert, tmp_path):
    transformers.AlbertTokenizer.from_pretrained(albert).save_pretrained(tmp_path / "library")
    edit(tmp_path / "library", "tokenizer_config.json", "do_lower_case", value=False)
    tokenizer, [warning] = read(tmp_path / "library", SIZE)
    assert "normalizer of tokenizer.json" in warning
    assert_same_ids(tokenizer, transformers.AutoTokenizer.from_pretrained(tmp_path / "library"), ALBERT_TEXTS)
    edit(tmp_path / "library", "tokenizer_config.json", "tokenizer_class", value="PreTrainedTokenizerFast")
    write(tmp_path / "library", "config.json", {"model_type": "albert"})
    tokenizer, warnings = read(tmp_path / "library", SIZE)
    assert not warnings and tokenizer.lower_case


def test_a_model_with_other_special_tokens_keeps_alberts_normalization_in_tokenizer_json(tmp_path):
    tokenizer = SentencePieceTokenizer(sentence_piece().model, lower_case=True, strip_accents=True, double_quotes=True)
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "theirs"), ALBERT_TEXTS)
    again, warnings = read(tmp_path / "theirs", tokenizer.vocab_size)
    assert not warnings and again.description == tokenizer.description
    spaces = sentence_piece(remove_extra_whitespaces=False).model
    with raises(ConfigError, "lower_case", "bert_tf"):
        rewritten(SentencePieceTokenizer(spaces, lower_case=True), tmp_path / "spaces")


NUMBERS = ["1, 2, 3,", "1,000,000 of 10,", "x1, ``2,''"]


def _with_pieces(model, *pieces, kind=1):
    """A model with more pieces, which win against their characters."""
    proto = ModelProto.FromString(model)
    for piece in pieces:
        proto.pieces.add(piece=piece, score=-1.0, type=kind)
    return proto.SerializeToString()


def test_pieces_that_albert_splits_are_in_no_text_of_tokenizer_json(tmp_path):
    model = _with_pieces(sentence_piece_model(pad_id=3, control_symbols="<mask>"), "▁1,", "▁2,", "0,", "000,")
    tokenizer = albert_tokenizer(model)
    assert tokenizer.tokenize(NUMBERS).to_list() != (
        SentencePieceTokenizer(model, True, True, double_quotes=True).tokenize(NUMBERS).to_list()
    )
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "theirs"), [*ALBERT_TEXTS, *NUMBERS])
    again, warnings = read(tmp_path / "theirs", tokenizer.vocab_size)
    assert not warnings and again.vocab == tokenizer.vocab
    assert again.tokenize(NUMBERS).to_list() == tokenizer.tokenize(NUMBERS).to_list()


def test_a_generic_class_keeps_pieces_that_albert_splits(albert, tmp_path):
    write(albert, "spiece.model", _with_pieces(albert_model(), "▁1,", "▁2,", "0,", "000,"))
    transformers.AlbertTokenizer.from_pretrained(albert).save_pretrained(tmp_path / "library")
    split, _ = read(tmp_path / "library", SIZE + 4)
    edit(tmp_path / "library", "tokenizer_config.json", "tokenizer_class", value="PreTrainedTokenizerFast")
    tokenizer, warnings = read(tmp_path / "library", SIZE + 4)
    assert not warnings and tokenizer.double_quotes
    assert split.tokenize(NUMBERS).to_list() != tokenizer.tokenize(NUMBERS).to_list()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "library")
    assert_same_ids(tokenizer, theirs, [*ALBERT_TEXTS, *NUMBERS])
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "again"), [*ALBERT_TEXTS, *NUMBERS])
    again, _ = read(tmp_path / "again", SIZE + 4)
    assert again.tokenize(NUMBERS).to_list() == tokenizer.tokenize(NUMBERS).to_list()


def test_unused_pieces_of_xlm_rs_model_are_in_no_text_of_transformers(tmp_path):
    model = with_fairseq_ids(_with_pieces(sentence_piece_model(), "▁film", kind=5))
    tokenizer = SentencePieceTokenizer(model)
    assert any("film" in text for text in TEXTS)
    assert_same_ids(tokenizer, rewritten(tokenizer, tmp_path / "theirs"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_unused_pieces_that_scores_do_not_hide_are_refused(tmp_path, kind):
    model = sentence_piece_model(pad_id=3, control_symbols="<mask>", model_type=kind)
    tokenizer = SentencePieceTokenizer(_with_pieces(model, "▁film" if kind == "bpe" else "▁\u1234", kind=5))
    with raises(ConfigError, "unused", "▁", "bert_tf"):
        rewritten(tokenizer, tmp_path / "theirs")


OWN = '(,),"""",-,.,–,£,€'  # in google-research/albert's spiece.model, as CSV
PUNCTUATED = ["(the world).", '"no" - a-b', "£3.50–€4", "the . )( x", "U.S. (a)", "… (½)"]


@pytest.mark.parametrize("kind", ["albert", "unigram", "bpe"])
def test_user_defined_characters_are_ordinary_pieces_in_transformers(tmp_path, kind):
    settings = {"pad_id": 3, "control_symbols": "<mask>", "model_type": "bpe" if kind == "bpe" else "unigram"}
    if kind == "albert":
        settings = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]"}
    model = sentence_piece_model(user_defined_symbols=OWN, **settings)
    tokenizer = albert_tokenizer(model) if kind == "albert" else SentencePieceTokenizer(model)
    theirs = rewritten(tokenizer, tmp_path / "theirs", "albert" if kind == "albert" else "bert")
    texts = [*(ALBERT_TEXTS if kind == "albert" else TEXTS), *PUNCTUATED]
    assert_same_ids(tokenizer, theirs, texts)
    again, _ = read(tmp_path / "theirs", SIZE, "AlbertTokenizer" if kind == "albert" else None)
    assert again.tokenize(texts).to_list() == tokenizer.tokenize(texts).to_list()


def test_user_defined_pieces_of_several_characters_are_refused_where_texts_are_changed_before(tmp_path):
    model = sentence_piece_model(user_defined_symbols="<x>", pad_id=3, control_symbols="<mask>")
    with raises(ConfigError, "lower_case", "bert_tf"):
        rewritten(SentencePieceTokenizer(model, lower_case=True), tmp_path / "theirs")


@pytest.mark.slow
def test_ids_of_sst2_are_those_of_alberts_tokenizer_in_transformers(albert):
    with open(shared("english/sst2/train.tsv"), encoding="utf-8") as file:
        texts = [line.split("\t")[0] for line in file]
    assert_same_ids(
        read(albert, SIZE, "AlbertTokenizer")[0], transformers.AlbertTokenizer.from_pretrained(albert), texts
    )


def test_transformers_leaves_hangul_in_parts_where_sentencepiece_joins_it(albert, tmp_path):
    theirs = transformers.AlbertTokenizer.from_pretrained(albert)
    ours = read(albert, SIZE, "AlbertTokenizer")[0].tokenize(["한국어"]).to_list()
    assert ours == [sentencepiece.SentencePieceProcessor(model_proto=albert_model()).encode("한국어")]
    assert theirs(["한국어"], add_special_tokens=False)["input_ids"] != ours
    theirs.save_pretrained(tmp_path / "library")
    config = tokenizer_files.read_config(str(tmp_path / "library"))
    _, warnings = tokenizer_files.read_tokenizer(
        str(tmp_path / "library"), config, SIZE, default_class=None, required=True
    )
    assert kinds(warnings) == HANGUL


# What is refused


def test_if_both_are_there_tokenizer_json_is_used_as_in_transformers(library):
    write(library, FILE, sentence_piece_model())
    assert read(library, SIZE + 2)[1] == []
    proto = ModelProto.FromString(sentence_piece_model())
    proto.pieces[100].score -= 1
    write(library, FILE, proto.SerializeToString())
    tokenizer, [warning] = read(library, SIZE + 2)
    assert f"{FILE} and tokenizer.json hold different pieces" in warning
    assert _pieces(tokenizer.model) == _pieces(sentence_piece_model())


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


@pytest.mark.parametrize(
    ("keys", "value", "names"),
    [
        (["pre_tokenizer"], METASPACE | {"replacement": "_"}, ["splits 100% of ordinary texts in other ways"]),
        (["pre_tokenizer"], {"type": "BertPreTokenizer"}, ["splits text by BertPreTokenizer"]),
        (["pre_tokenizer"], None, ["splits text by nothing"]),
        (["version"], "2.0", ["version '2.0'"]),
    ],
)
def test_what_splits_text_in_other_ways_is_read_without_a_tokenizer(library, keys, value, names):
    edit(library, "tokenizer.json", *keys, value=value)
    tokenizer, [warning] = read(library, SIZE + 2)
    assert tokenizer is None and warning.startswith(UNSEEN) and all(name in warning for name in names)


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (["normalizer"], {"type": "Sequence", "normalizers": [{"type": "Nmt"}]}, {"control and format characters"}),
        (["normalizer"], {"type": "Lowercase"}, {"capital letters"}),
        (
            ["normalizer"],
            {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
            {"quotation marks of two characters"},
        ),
        (["normalizer"], None, set()),
        (["pre_tokenizer"], METASPACE, {"white space at the end"}),
        (["pre_tokenizer"], METASPACE | {"prepend_scheme": "first"}, {"spaces around special tokens"}),
    ],
)
def test_forms_that_change_some_texts_are_read_and_these_are_named(library, keys, value, named):
    edit(library, "tokenizer.json", *keys, value=value)
    tokenizer, warnings = read(library, SIZE + 2)
    assert kinds(warnings) >= named and bool(warnings) == bool(named)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(library / "tokenizer.json"))
    usual = [text for text in TEXTS if text.islower() and "`" not in text and text.isascii() and text == text.strip()]
    assert_same_ids(tokenizer, theirs, usual)


def test_the_model_is_used_where_tokenizer_json_cannot_be_had(library):
    write(library, FILE, sentence_piece_model())
    edit(library, "tokenizer.json", "pre_tokenizer", value=METASPACE | {"replacement": "_"})
    tokenizer, [warning] = read(library, SIZE + 2)
    assert tokenizer.vocab == sentence_piece().vocab
    assert f"{FILE} is used" in warning and "words in Latin" in kinds([warning])


def test_a_tokenizer_json_without_a_model_is_none(kobert):
    """KoBERT's has the special tokens alone."""
    expected = read(kobert, SIZE)[0]
    write(kobert, "tokenizer.json", {"version": "1.0", "model": None, "added_tokens": []})
    assert read(kobert, SIZE)[0].vocab == expected.vocab


@pytest.mark.parametrize("name", ["T5Tokenizer", "XLNetTokenizer"])
def test_a_class_that_wraps_a_model_is_the_model(tmp_path, name):
    model = sentence_piece_model(control_symbols="[CLS],[SEP],[MASK]", **KOREAN_SPECIALS)
    write(tmp_path, "spiece.model", model)
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": name})
    tokenizer, warnings = read(tmp_path, SIZE)
    # XLNet's class also strips accents, makes one quotation mark of two, and splits numbers before commas.
    texts = [text for text in TEXTS if text.isascii() and not re.search("``|''", text)]
    known = [text for text in texts if not any(ends_in_number(word) for word in text.split())]
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert tokenizer.tokenize(known).to_list() == reference.encode(known)
    assert all(name in warning for warning in warnings)


def test_a_damaged_model_is_one_line(files):
    write(files, FILE, sentence_piece_model()[: len(sentence_piece_model()) // 2])
    with raises(DataError, FILE):
        read(files, SIZE + 2)
    write(files, FILE, sentence_piece().model)  # which has the ids of fairseq already
    with raises(DataError, FILE, "<unk>", "<s>"):
        read(files, SIZE + 2)
    with raises(DataError, FILE, "<unk>"):
        read(files, SIZE + 2, "CamembertTokenizer")
    (files / FILE).unlink()
    with raises(DataError, "sentencepiece.bpe.model", "tokenizer.json"):
        read(files, SIZE + 2, "XLMRobertaTokenizer")
    write(files, "spiece.model", sentence_piece_model())
    with raises(DataError, "spiece.model", "<pad>", "<mask>"):
        read(files, SIZE)


def test_more_pieces_than_word_embeddings_are_refused(files, library):
    for path in (files, library):
        with raises(DataError, SIZE + 2, SIZE + 1):
            read(path, SIZE + 1)


@pytest.mark.parametrize(
    ("keys", "value", "culprit"),
    [
        (["model", "unk_id"], 5000, "unk_id is 5000"),
        (["model", "unk_id"], None, "unk_id is None"),
        (["model", "vocab"], [["<s>", "0"]], "model.vocab"),
        (["model", "vocab", 9], ["<s>", 0.0], "'<s>', occurs twice"),
        (["normalizer", "precompiled_charsmap"], "AAAA", "damaged"),
        (["normalizer", "precompiled_charsmap"], "x", "precompiled_charsmap"),
    ],
)
def test_a_damaged_tokenizer_json_is_one_line(library, keys, value, culprit):
    edit(library, "tokenizer.json", *keys, value=value)
    with raises(DataError, "tokenizer.json", culprit):
        read(library, SIZE + 2)
