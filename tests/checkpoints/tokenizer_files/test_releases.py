"""Directories that releases of Transformers write, opened here: their ids against those of the release itself.

`python -m tests.checkpoints.tokenizer_files.test_releases` prints the table of docs/checkpoints.md.
"""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unicodedata

import pytest

from bert_tf.checkpoints import tokenizer_files
from bert_tf.checkpoints.formats import huggingface_config
from bert_tf.text import Tokenizer, learn_vocabulary
from tests.checkpoints.tokenizer_files.directories import HANGUL, TEXTS, kinds, write
from tests.learned import SIZE, learned, lines, sentence_piece_model
from tests.learned import TEXTS as CORPORA

RELEASES = ("4.30.2", "4.57.6", "5.0.0", "5.24.0")
E1, E2 = {"content": "[E1]"}, {"content": "[/E1]"}
ADDED = {"special": [E1, E2], "ordinary": [{"content": "코로나19"}]}
FLAGS = {
    "special": [E1 | {"lstrip": True, "rstrip": True}],
    "ordinary": [{"content": "covid", "single_word": True}, {"content": "Film", "normalized": False}],
}
VARIANTS = {"": {}, "added": ADDED, "flags": FLAGS, "resized": {"special": [E1, E2], "multiple": 64}}
# model_type -> the kind of its files, and variants of its own.
FAMILIES = {
    "bert": ("uncased", {"accents": {"strip_accents": False}, "cjk": {"tokenize_chinese_chars": False}}),
    "distilbert": ("uncased", {}),
    "electra": ("cased", {"cased": {"do_lower_case": False}}),
    "roberta": ("byte_bpe", {"prefix": {"add_prefix_space": True}}),
    "xlm-roberta": ("unigram", {}),
    "camembert": ("unigram", {}),
    "albert": ("albert", {"cased": {"do_lower_case": False}, "accents": {"keep_accents": True}}),
}
# What is special about texts: in the words of the warnings, or about added tokens, which are ordinary pieces here.
SPECIAL = {
    "white space at the end": ["a film ", "a film\n", "  two  spaces "],
    "white space at the beginning": [" a film", "\u3000wide"],
    "several spaces in a row": ["two  spaces", "three   spaces"],
    "tabs and line ends": ["a tab\tand", "a\nline", "wide\u3000space"],
    "spaces around special tokens": ["a <mask> b", "a [MASK] b"],
    "capital letters": ["THE Cat", "ÄÖÜ"],
    "accents": ["café", unicodedata.normalize("NFD", "café Zoë")],
    "words in Hangul": ["한국어 문장입니다", "한글", "다" * 120, "코로나19 백신"],
    "compatibility characters such as ½": ["ﬁ ½ ² …", "Ａ"],
    "control and format characters": ["soft\u00adhyphen", "zero\u200bwidth"],
    "punctuation": ["A film (to remember).", '"no" - a-b hy-vee', "£3.50–€4", "U.S. (a)", "‘single’"],
    "numbers": ["1,000,000 of 10,", "10-11", "3.14"],
    "quotation marks of two characters": ["``quoted''"],
    "contractions": ["it's they're I'LL"],
    "emoji": ["😀 👩‍👩‍👧"],
    "long words": ["a" * 100, "a" * 101, "a" * 201],
    "added tokens": ["[E1] film [/E1] is", "a[E1]b", "covid covids", "Film film"],
}
ORDINARY = [" ".join(re.findall("[A-Za-z]+", text)) for text in TEXTS[:200]]


@functools.cache
def python(release):
    """The Python of an environment with a release of Transformers; skips the test if there is none."""
    name = f"BERT_TF_TEST_TRANSFORMERS_{release.replace('.', '_')}_PYTHON"
    if name not in os.environ:
        pytest.skip(f"needs a Python with Transformers {release} and sentencepiece in {name}; make test-all has one")
    found = os.environ[name]
    if subprocess.run([found, "-c", "import transformers"], capture_output=True).returncode:
        pytest.skip(f"Transformers {release} is not installed for {found}: it needs another Python")
    return found


@functools.cache
def originals():
    """A folder with original files for every case, as save_by_release.py reads it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="originals"))
    text = [line for name in CORPORA for line in lines(name)]
    own = '(,),"""",-,.,–,£,€'  # as google-research/albert's spiece.model has them
    byte_pairs = learned("byte_bpe").tokenizer
    files = {
        "uncased": {"vocab.txt": Tokenizer(learn_vocabulary(text, SIZE)).contents()[0]},
        "cased": {"vocab.txt": learned("wordpiece").tokenizer.contents()[0]},
        "byte_bpe": dict(zip(byte_pairs.FILES, byte_pairs.contents(), strict=True)),
        "unigram": {"sentencepiece.bpe.model": sentence_piece_model()},
        "albert": {
            "spiece.model": sentence_piece_model(
                user_defined_symbols=own, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP],[MASK]"
            )
        },
    }
    write(folder, "texts.json", ORDINARY + [text for some in SPECIAL.values() for text in some])
    for family, (kind, more) in FAMILIES.items():
        variants = VARIANTS | {name: {"arguments": one} for name, one in more.items()}
        for variant, values in variants.items():
            path = folder / (f"{family}_{variant}" if variant else family)
            path.mkdir()
            for name, content in files[kind].items():
                write(path, name, content)
            case = {"class": None, "arguments": {}, "special": [], "ordinary": [], "multiple": None} | values
            write(path, "case.json", case)
            write(path, "config.json", {"model_type": family})
    return folder


@functools.cache
def saved(release):
    """The folder of the directories that a release wrote."""
    output = pathlib.Path(tempfile.mkdtemp(prefix=f"transformers-{release}-"))
    program = pathlib.Path(__file__).with_name("save_by_release.py")
    command = [python(release), "-I", str(program), str(originals()), str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return output


def opened(path):
    """The tokenizer of a directory, warnings, and what the release gave."""
    expected = json.loads((path / "expected.json").read_text(encoding="utf-8"))
    settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
    family = huggingface_config.family_of(settings, str(path / "config.json"))
    tokenizer, warnings = tokenizer_files.read_tokenizer(
        str(path),
        tokenizer_files.read_config(str(path)),
        expected["rows"],
        default_class=settings.get("tokenizer_class") or family.tokenizer,
        required=True,
    )
    return tokenizer, warnings, expected


def differing(tokenizer, expected):
    """The kinds of texts of which ids differ from the release's, and how many texts; "words" are ordinary ones."""
    texts = json.loads((originals() / "texts.json").read_text(encoding="utf-8"))
    names = ["words"] * len(ORDINARY) + [kind for kind, some in SPECIAL.items() for _ in some]
    ours = tokenizer.tokenize(texts, special_tokens=True).to_list()
    found = [name for name, ids, right in zip(names, ours, expected["ids"], strict=True) if ids != right]
    return set(found), len(found), len(texts)


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_every_directory_opens_and_warnings_name_the_texts_that_differ(release):
    paths = sorted(path.parent for path in saved(release).glob("*/expected.json"))
    assert len(paths) >= 28
    for path in paths:
        tokenizer, warnings, expected = opened(path)
        assert tokenizer is not None, (path.name, warnings)
        assert tokenizer.vocab_size == expected["rows"]
        found, _, _ = differing(tokenizer, expected)
        named = kinds(warnings)
        if any("added tokens (" in warning for warning in warnings):
            named |= {"added tokens", "words in Hangul", "spaces around special tokens", "punctuation", "numbers"}
        if "spaces around special tokens" in named:
            named.add("added tokens")  # with spaces around them
        if any("the normalizer of tokenizer.json is not applied" in warning for warning in warnings):
            continue  # 5.0 and 5.10 do not apply ALBERT's settings in tokenizer_config.json, later releases do
        if "decomposed Hangul" in named:
            named |= HANGUL
        assert found - named <= {"spaces around special tokens"}, (path.name, found - named, warnings)


def table():
    """Prints the table of docs/checkpoints.md: directories that open, and texts with other ids."""
    print("| | " + " | ".join(RELEASES) + " |")
    print("|---|" + "---|" * len(RELEASES))
    for family in FAMILIES:
        cells = []
        for release in RELEASES:
            paths = [path.parent for path in saved(release).glob(f"{family}*/expected.json")]
            paths = [path for path in paths if path.name.partition("_")[0] == family]
            if not paths:
                cells.append("writes none")
                continue
            results = {path.name: opened(path) for path in paths}
            tokenizer, _, expected = results[family]
            found, count, total = differing(tokenizer, expected)
            open_ = sum(one[0] is not None for one in results.values())
            named = f": {', '.join(sorted(found))}" if found else ""
            cells.append(f"{open_} of {len(paths)}; {count} of {total}{named}")
        print(f"| {family} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    sys.exit(table())
