"""The tokenizer's behaviour beyond the reference's ids: offsets, special tokens, limits, graphs, export."""

import itertools
import os
import random
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.text import Tokenizer, write_vocabulary
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.codepoints import is_punctuation
from tests.errors import raises

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIALS, "the", "food", "was", "not", "good", "##s", ".", "[", "]", "mask", "a", "##a", "e", "가", "##나", "中",
    "中国", "각", "\u1100", "##\u1161", "##\u11a8", "i", "##\u0307", "ﬁ", "🙂", "…", "cafe", "café",
    "Ω",
]  # fmt: skip


def of(vocab, lower_case=True, strip_accents=None, split_cjk=True):
    """A tokenizer with BERT's defaults, which this vocabulary would not decide for."""
    return Tokenizer(vocab, lower_case, lower_case if strip_accents is None else strip_accents, split_cjk)


def spans(tokenizer, text, **options):
    """(wordpiece, source text it covers) for each wordpiece of one text."""
    source = text if isinstance(text, bytes) else text.encode()
    ids, starts, ends = (part.to_list()[0] for part in tokenizer.tokenize_with_offsets([source], **options))
    return [(PIECES[i], source[a:b].decode()) for i, a, b in zip(ids, starts, ends, strict=True)]


def test_special_ids_and_config():
    tokenizer = of(PIECES, lower_case=False)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id) == (0, 1, 2)
    assert (tokenizer.sep_id, tokenizer.mask_id) == (3, 4)
    assert tokenizer.vocab == PIECES and tokenizer.vocab_size == len(PIECES)
    assert tokenizer.get_config() == {"lower_case": False, "strip_accents": False, "split_cjk": True}
    assert of(PIECES).strip_accents and not of(PIECES, strip_accents=False).strip_accents


def test_special_ids_are_those_of_the_vocabulary():
    tokenizer = Tokenizer(["a", *reversed(SPECIALS)])
    assert (tokenizer.mask_id, tokenizer.pad_id) == (1, 5)
    assert tokenizer.tokenize("a[MASK]b", special_tokens=True).to_list() == [[0, 1, 4]]


def test_a_string_a_list_and_a_tensor_give_the_same_ids():
    tokenizer = of(PIECES)
    expected = [[5, 6, 7, 8, 9, 11]]
    for strings in ("The food was not good.", ["The food was not good."], tf.constant(["The food was not good."])):
        ids = tokenizer.tokenize(strings)
        assert ids.to_list() == expected and ids.dtype == tf.int32 and ids.ragged_rank == 1


@pytest.mark.parametrize("texts", [[], [""], ["", " \t\n", "\u3000\u200b\0"], tf.zeros([0], tf.string)], ids=repr)
def test_empty_texts_give_empty_rows(texts):
    tokenizer = of(PIECES)
    for special_tokens in (False, True):
        parts = tokenizer.tokenize_with_offsets(texts, special_tokens=special_tokens)
        for part in (tokenizer.tokenize(texts, special_tokens=special_tokens), *parts):
            assert part.to_list() == [[]] * len(texts) and part.dtype == tf.int32
    assert tokenizer.detokenize(tokenizer.tokenize(texts)).numpy().tolist() == [b""] * len(texts)


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({}, "각", [("\u1100", "각"), ("##\u1161", "각"), ("##\u11a8", "각")]),
        ({"strip_accents": False}, "각 가나", [("각", "각"), ("가", "가"), ("##나", "나")]),
        ({}, "ﬁ🙂", [("[UNK]", "ﬁ🙂")]),
        ({}, "ﬁ 🙂…a", [("ﬁ", "ﬁ"), ("🙂", "🙂"), ("…", "…"), ("a", "a")]),
        ({"strip_accents": False}, "İ", [("i", "İ"), ("##\u0307", "İ")]),
        ({}, "Cafe\u0301 CAFÉ", [("cafe", "Cafe"), ("cafe", "CAFÉ")]),
        ({"lower_case": False}, "caf\u00e9 \u2126", [("café", "café"), ("[UNK]", "\u2126")]),
        ({"lower_case": False, "strip_accents": True}, "\u2126", [("Ω", "\u2126")]),
        ({}, "\u200bfo\u00ado\x00d\u200d \ufffda", [("food", "fo\u00ado\x00d"), ("a", "a")]),
        ({}, "a中国", [("a", "a"), ("中", "中"), ("[UNK]", "国")]),
        ({"split_cjk": False}, "中国 中", [("中国", "中国"), ("中", "中")]),
    ],
)
def test_offsets_cover_the_source_characters(options, text, expected):
    assert spans(of(PIECES, **options), text) == expected


def test_offsets_count_the_bytes_of_the_input_even_if_some_are_invalid():
    ids, starts, ends = of(PIECES).tokenize_with_offsets([b"\xff\xffthe\xed\xa0\x80 fo\xc3od \xe4\xb8"])
    assert [ids.to_list(), starts.to_list(), ends.to_list()] == [[[5, 6]], [[2, 9]], [[5, 14]]]


def test_special_tokens_are_plain_text_by_default():
    tokenizer = of(PIECES)
    text = "the[MASK] [SEP][mask]"
    as_text = [("the", "the"), ("[", "["), ("mask", "MASK"), ("]", "]"), ("[", "["), ("[UNK]", "SEP"), ("]", "]")]
    mask = [("[", "["), ("mask", "mask"), ("]", "]")]
    assert spans(tokenizer, text) == as_text + mask
    as_specials = [("the", "the"), ("[MASK]", "[MASK]"), ("[SEP]", "[SEP]")]
    assert spans(tokenizer, text, special_tokens=True) == as_specials + mask


def test_every_special_token_is_found_with_its_span():
    text = "a".join(SPECIALS)
    found = spans(of(PIECES), text, special_tokens=True)
    assert found == [pair for piece in SPECIALS for pair in ((piece, piece), ("a", "a"))][:-1]


def test_no_other_text_is_mistaken_for_a_special_token():
    tokenizer = of(PIECES)
    inner = [chr(code) for code in range(0xFDD0, 0xFDF0)] + [bytes([byte]) for byte in range(0xF5, 0x100)]
    ids = tokenizer.tokenize(inner, special_tokens=True).to_list()
    assert ids == [[1]] * 32 + [[]] * 11


@pytest.mark.parametrize(("letter", "piece"), [("a", "a"), ("가", "가"), ("🙂", "🙂")])
def test_words_are_limited_to_200_characters_not_bytes(letter, piece):
    pieces = [*SPECIALS, piece, f"##{piece}", "the"]
    tokenizer = Tokenizer(pieces, lower_case=False)
    word, longer, longest = letter * 200, letter * 201, letter * 900
    texts = [f"the {word} the", f"the {longer} the", "the", "", f"{longest} {word}the {longer}\u200b, {letter}"]
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    whole = [5] + [6] * 199
    assert ids.to_list() == [[7, *whole, 7], [7, 1, 7], [7], [], [1, 1, 1, 1, 5]]
    size = len(letter.encode())
    assert (starts.to_list()[1][1], ends.to_list()[1][1]) == (4, 4 + 201 * size)
    assert (starts.to_list()[0][200], ends.to_list()[0][200]) == (4 + 199 * size, 4 + 200 * size)


def words_in_python(text):
    """Text between white space, with each punctuation character separate."""
    for part in text.split():
        for punctuation, chars in itertools.groupby(part, is_punctuation):
            run = "".join(chars)
            yield from run if punctuation else [run]


def test_words_are_separated_by_spaces_and_each_punctuation_character_is_a_word():
    chars = "abc가나大韓éş.,-‘「"
    pieces = [*SPECIALS, *chars, "es", *(f"##{char}" for char in chars), "s"]
    tokenizer = Tokenizer(pieces, lower_case=True, strip_accents=False)
    choice = random.Random(0)
    texts = ["".join(choice.choices(f"{chars}   ", k=choice.randrange(40))) for _ in range(300)]
    texts += ["", " ", "大韓가 大", "가\u00ada\u200d大b", "a", " a", "-", "aa\u3000bb"]
    ids, starts = tokenizer.tokenize_with_words(texts)
    assert ids.to_list() == tokenizer.tokenize(texts).to_list()
    for text, row, row_starts in zip(texts, ids.to_list(), starts.to_list(), strict=True):
        words = list(words_in_python(text.replace("\u00ad", "").replace("\u200d", "")))
        sizes = [len(word) for word in tokenizer.tokenize(words).to_list()] if words else []
        assert tokenizer.unk_id not in row
        assert row_starts == [place == 0 for size in sizes for place in range(size)]


def test_words_may_contain_ideographs_and_an_unknown_token_is_a_word():
    tokenizer = Tokenizer([*SPECIALS, "大", "韓", "은", "a", "##b"], strip_accents=False)
    _, starts = tokenizer.tokenize_with_words(["大韓은 大ab", "大民韓", "大🙂 a"])
    assert starts.to_list() == [[True, False, False, True, False, False], [True, True, True], [True, True, True]]


def test_detokenize_joins_wordpieces_without_cls_sep_and_padding():
    tokenizer = of(PIECES)
    ids = tokenizer.tokenize(["The foods was not [MASK].", "xyz"], special_tokens=True)
    assert tokenizer.detokenize(ids).numpy().tolist() == [b"the foods was not [MASK] .", b"[UNK]"]
    dense = tf.constant([[2, 5, 6, 3, 9, 3], [2, 10, 3, 0, 0, 0]], tf.int64)
    assert tokenizer.detokenize(dense).numpy().tolist() == [b"the food good", b"s"]


def test_ids_may_be_lists_arrays_and_tensors_with_rows_of_any_length():
    tokenizer = Tokenizer(PIECES, lower_case=True)
    rows = tokenizer.tokenize(["The food", ""])
    assert tokenizer.detokenize(rows.to_list()).numpy().tolist() == [b"the food", b""]
    for ids in (rows[:1].to_tensor(), tf.cast(rows[:1], tf.int64), rows[:1].numpy(), [rows[0].numpy()]):
        assert tokenizer.detokenize(ids).numpy().tolist() == [b"the food"]
        assert tokenizer.pack(ids)[0].to_list() == tokenizer.pack(rows[:1])[0].to_list()


def test_same_results_in_a_data_pipeline_and_in_a_function():
    tokenizer = of(PIECES)
    texts = ["The food", "ΑΣ " + "a" * 201, b"\xff[MASK]", ""]
    expected = tokenizer.tokenize(texts, special_tokens=True).to_list()
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(4)
    (mapped,) = dataset.map(lambda batch: tokenizer.tokenize(batch, special_tokens=True))
    assert mapped.to_list() == expected
    for shape in ([None], [4]):
        function = tf.function(lambda x: tokenizer.tokenize(x, True), input_signature=[tf.TensorSpec(shape, tf.string)])
        assert function(tf.constant(texts)).to_list() == expected
    one_by_one = tf.data.Dataset.from_tensor_slices(texts).map(lambda text: tokenizer.tokenize(text, True)[0])
    assert [ids.numpy().tolist() for ids in one_by_one] == expected


def test_every_method_is_traced_by_autograph_without_a_warning(caplog):
    tokenizer = of(PIECES)
    tf.get_logger().addHandler(caplog.handler)
    try:
        texts, ids = tf.constant(["The food", "good"]), tf.constant([[2, 5, 3], [2, 9, 3]])
        public = {name for name in {*vars(Tokenizer), *vars(BaseTokenizer)} if not name.startswith("_")}
        in_python = {
            "KIND",
            "FILES",
            "SETTINGS",
            "vocab",
            "texts",
            "readable",
            "get_config",
            "contents",
            "description",
            "save",
        }
        in_python |= {"specials", "special_ids", "strip_accents", "split_cjk", "keeps_spaces"}
        in_python |= {
            "description",
            "needed_pieces",
            "pieces_of",
            "subset",
            "added_ids",
            "unreachable",
            "checksums",
            "searches",
        }
        methods = public - in_python - {"pack", "word_starts"}  # which take ragged ids
        assert methods == {"tokenize", "tokenize_with_offsets", "tokenize_with_words", "encode", "detokenize"}
        for name in methods:
            method, argument = getattr(tokenizer, name), ids if name == "detokenize" else texts
            next(iter(tf.data.Dataset.from_tensors(argument).map(method)))
            tf.function(lambda *values, method=method: method(*values))(argument)
        tf.function(lambda batch: tokenizer.encode(batch, batch, max_length=8))(texts)
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert not [message for message in caplog.messages if "AutoGraph" in message]


@pytest.mark.slow  # tests/inference/test_servers.py asks exports without Python
def test_an_exported_model_needs_neither_the_vocabulary_nor_this_package(tmp_path):
    texts = ["The food was [MASK].", "ΑΣ " + "a" * 201, "각", ""]
    write_vocabulary(tmp_path / "vocab.txt", PIECES)
    module = tf.Module()
    module.tokenizer = of(tmp_path / "vocab.txt")
    expected = [part.to_list() for part in module.tokenizer.tokenize_with_offsets(texts, True)]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(strings):
        parts = module.tokenizer.tokenize_with_offsets(strings, special_tokens=True)
        dense = {name: part.to_tensor(-1) for name, part in zip(("ids", "starts", "ends"), parts, strict=True)}
        return dense | {"text": module.tokenizer.detokenize(parts[0])}

    module.serve = serve
    tf.saved_model.save(module, str(tmp_path / "export"), signatures=serve)
    os.remove(tmp_path / "vocab.txt")
    os.rename(tmp_path / "export", tmp_path / "moved")
    program = f"""
        import sys
        import tensorflow as tf
        import tensorflow_text
        model = tf.saved_model.load({str(tmp_path / "moved")!r})
        answer = model.signatures["serving_default"](tf.constant({texts!r}))
        rows = [[[v for v in row if v >= 0] for row in answer[n].numpy().tolist()] for n in ("ids", "starts", "ends")]
        assert not any(name.startswith("bert_tf") for name in sys.modules)
        assert rows == {expected!r}, rows
        assert answer["text"].numpy()[0] == b"the food was [MASK] ."
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, env=environment, check=True)


def test_a_tokenizer_can_be_created_inside_a_graph():
    @tf.function
    def tokenize(text):
        return of(PIECES).tokenize(text)

    assert tokenize(tf.constant(["the food"])).to_list() == [[5, 6]]


@pytest.mark.slow
def test_a_line_of_ten_megabytes_is_tokenized():
    ids = of(PIECES).tokenize([b"the food " * 1_100_000 + b"\xff" + b"a" * 100_000])
    assert ids.shape == [1, None] and ids.row_lengths().numpy().tolist() == [2_200_001]
    assert ids[0, -1] == 1


def test_an_unusable_vocabulary_is_refused():
    with raises(DataError, "[MASK]", "4 pieces"):
        Tokenizer(SPECIALS[:4])
