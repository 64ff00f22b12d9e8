"""Comparison of a tokenizer with tokenizer.json: on which kinds of texts their ids differ.

Each release of Transformers writes the steps before a vocabulary in other forms. So not the forms are compared but the
ids, with those of the library that tokenizer.json is made for.
"""

import random
import string
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bert_tf.errors import DataError
from bert_tf.text import BaseTokenizer
from bert_tf.text.codepoints import WHITE_SPACE

if TYPE_CHECKING:
    import tokenizers

_TEXTS, _WORDS = 60, 20  # of a script; a script with fewer words has none
_PUNCTUATION = [*string.punctuation, *"–—…“”‘’«»·。、£€"]
_CONTROLS = ["\x07", "\x7f", "\u00ad", "\u200b", "\u200d", "\u2028", "\ufeff", "\ufffd"]


class Differences(NamedTuple):
    """Attributes:
    ordinary: share of texts of random words whose ids differ, in the script that differs least.
    kinds: texts of which some differ.
    """

    ordinary: float
    kinds: list[str]


def opened(file: str) -> "tokenizers.Tokenizer":
    """Opens tokenizer.json with the library that it is made for; raises DataError if that fails."""
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_file(file)
    except Exception as error:  # the library raises nothing more special
        raise DataError(f"the package tokenizers {tokenizers.__version__} does not read {file}: {error}") from None
    library.no_truncation()
    library.no_padding()
    return library


def words(library: "tokenizers.Tokenizer", text: str) -> list[str]:
    """What the model of a tokenizer.json segments: the words of a normalized text, or the whole."""
    normalized = library.normalizer.normalize_str(text) if library.normalizer else text
    splitter = library.pre_tokenizer
    return [word for word, _ in splitter.pre_tokenize_str(normalized)] if splitter else [normalized]


def spaces(library: "tokenizers.Tokenizer") -> list[str]:
    """Other white space that separates words as a space does."""
    return [space for space in WHITE_SPACE if space != " " and words(library, f"a{space}b") == words(library, "a b")]


def differences(tokenizer: BaseTokenizer, library: "tokenizers.Tokenizer") -> Differences:
    """Compares the ids of texts that are made of the pieces of the vocabulary."""

    def counts(texts: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """How many texts of each kind differ."""
        flat = [text for some in texts.values() for text in some]
        ours = tokenizer.tokenize(flat, special_tokens=True).to_list()
        theirs = library.encode_batch(flat, add_special_tokens=False)
        differ = iter([ids != right.ids for ids, right in zip(ours, theirs, strict=True)])
        return {kind: sum(next(differ) for _ in some) for kind, some in texts.items()}

    words = _words_by_script(tokenizer)
    ordinary = counts(_ordinary(words))
    least = min(ordinary, key=ordinary.__getitem__, default=None)
    found = ordinary | counts(_special(tokenizer, words[least] if least else ["a"]))
    return Differences(ordinary[least] / _TEXTS if least else 0.0, [kind for kind, count in found.items() if count])


def _words_by_script(tokenizer: BaseTokenizer) -> dict[str, list[str]]:
    """Pieces of letters that a normalization usually leaves as they are, by kinds that name the script."""
    found: dict[str, list[str]] = {}
    for text in tokenizer.readable:
        if text.isalpha() and text == unicodedata.normalize("NFKC", text.lower()):
            found.setdefault(unicodedata.name(text[0], "other").split()[0].capitalize(), []).append(text)
    return {f"words in {script}": words for script, words in found.items() if len(words) >= _WORDS}


def _ordinary(words: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    draw = random.Random(0)
    return {
        kind: [
            " ".join("".join(draw.choices(some, k=draw.choice((1, 1, 2)))) for _ in range(draw.randint(2, 9)))
            for _ in range(_TEXTS)
        ]
        for kind, some in words.items()
    }


def _special(tokenizer: BaseTokenizer, words: Sequence[str]) -> dict[str, list[str]]:
    """Texts by what is special about them."""
    draw = random.Random(0)

    def word() -> str:
        return draw.choice(words)

    def around(*inner: str) -> list[str]:
        """Each between words, without and with spaces."""
        return [f"{word()}{space}{one}{space}{word()}" for one in inner for space in ("", " ")]

    names = tokenizer.special_names
    return {
        "white space at the end": [f"{word()} ", f"{word()}\n", f"{word()}   "],
        "white space at the beginning": [f" {word()}", f"\n{word()}", f"   {word()}"],
        "several spaces in a row": [f"{word()}  {word()}", f"{word()}    {word()} {word()}"],
        "tabs and line ends": [f"{word()}{one}{word()}" for one in "\t\n\r\u00a0\u2003\u3000"],
        "spaces around special tokens": around(names.mask, names.sep),
        "capital letters": ["THE Cat", f"{word().upper()} {word().title()}", "ÄÖÜ ÉÀ Ž Σ Ж"],
        "accents": ["café naïve Zoë", unicodedata.normalize("NFD", "café naïve Zoë")],
        "decomposed Hangul": [unicodedata.normalize("NFD", "한국어 문장")],
        "Chinese characters and kana": ["中文 日本語テスト", "a中b文"],
        "compatibility characters such as ½": around("ﬁ", "½", "²", "Ａ", "㎏", "①"),
        "control and format characters": around(*_CONTROLS),
        "punctuation": around(*_PUNCTUATION),
        "quotation marks of two characters": ["``a''", f"{word()} ``{word()}''"],
        "numbers": ["1,000,000 of 10,", "3.14 2026-11-27", "²³ ٣"],
        "contractions": ["it's they're I'll we'd", "IT'S"],
        "emoji": ["😀 👩‍👩‍👧", f"{word()}😀"],
    }
