"""Text normalization in the TensorFlow graph: cleans, lower-cases and decomposes text before it is split into words."""

from collections.abc import Sequence

import tensorflow as tf

from bert_tf.config.values import half_pairs, shown
from bert_tf.errors import DataError
from bert_tf.text.codepoints import ASCII_PUNCTUATION, FILLER, IDEOGRAPHS
from bert_tf.text.normalization_table import albert_table, final_sigma_pattern, normalizer_table, stand_ins
from bert_tf.text.operations import Replacer
from bert_tf.types import Strings

# Valid UTF-8. (RE2's "." would also accept encoded surrogates and overlong forms; explicit ranges are exact.)
_VALID = r"[\x00-\x{D7FF}\x{E000}-\x{10FFFF}]*"
# The same without capital sigma: text with nothing to repair. At 200 MB/s the check costs almost nothing.
_ORDINARY = r"[\x00-\x{3A2}\x{3A4}-\x{D7FF}\x{E000}-\x{10FFFF}]*"
_EXPECTED = "expected a list of texts, or a string tensor"


def string_tensor(strings: Strings) -> tf.Tensor:
    """The strings as a tensor [batch]; raises DataError for anything that is not text."""
    # Lists in 255 others would end the process.
    if isinstance(strings, list | tuple) and any(isinstance(one, list | tuple) for one in strings):
        raise DataError(f"the texts are {shown(strings)}; {_EXPECTED}")
    try:
        text = tf.convert_to_tensor(strings, tf.string)
    except (TypeError, ValueError, RecursionError):
        found = f"the texts are {shown(strings)}; {_EXPECTED}"
        texts = [one if isinstance(one, str) else "" for one in (strings if isinstance(strings, list) else [strings])]
        raise DataError(next(half_pairs(texts, "texts"), found)) from None
    if text.shape.rank == 0:
        return text[tf.newaxis]
    if text.shape.rank not in (1, None):
        raise DataError(f"the texts have {text.shape.rank} dimensions; expected a list of texts")
    # Of a tensor whose rank is not known while tracing, a wrong one would end the process.
    return text if text.shape.rank else tf.ensure_shape(text, [None])


def is_valid(text: tf.Tensor) -> tf.Tensor:
    """bool []: whether all strings [batch] are UTF-8."""
    return tf.reduce_all(tf.strings.regex_full_match(text, _VALID))


def replace_invalid(text: tf.Tensor, mark: bytes = b"") -> tf.Tensor:
    """Replaces every byte that is not UTF-8 by `mark`, one byte or none."""
    # \C stands for an invalid byte but matches any: without one at the end it would replace a valid byte there.
    replaced = tf.strings.regex_replace(text + b"\xff", rf"({_VALID})\C", rb"\1" + mark)
    # substr takes off what the added byte became.
    return tf.strings.substr(replaced, tf.zeros_like(tf.strings.length(text)), tf.strings.length(text))


def strips_accents(lower_case: bool, strip_accents: bool | None) -> bool:
    """The value of a setting `strip_accents`; None stands for that of `lower_case`."""
    return bool(lower_case if strip_accents is None else strip_accents)


class Normalizer(tf.Module):
    """The first half of BERT's tokenizer (BasicTokenizer of google-research/bert, tokenization.py)."""

    def __init__(self, lower_case: bool = True, strip_accents: bool | None = None, split_cjk: bool = True) -> None:
        """See `Tokenizer` for the arguments."""
        super().__init__(name="normalizer")
        self.lower_case = bool(lower_case)
        self.strip_accents = strips_accents(lower_case, strip_accents)
        self.split_cjk = bool(split_cjk)
        self._table = Replacer(normalizer_table(self.lower_case, self.strip_accents, self.split_cjk))

    def normalize(
        self, strings: Strings, with_offsets: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes text.

        Args:
            strings: string [batch], a list, or one string (a batch of one).
            with_offsets: also return the origin of each byte.

        Returns:
            text: string [batch], the strings with every invalid byte replaced by a filler; all other bytes keep their
                offsets.
            normalized: string [batch].
            offsets: int64 [total], for each byte of `normalized` its byte in `text` if the character is unchanged,
                otherwise the first byte of the character; and one more for the end of each string. Empty without
                `with_offsets`.
            row_splits: int64 [batch + 1], where each string begins in `offsets`.
        """
        text = string_tensor(strings)
        text = self._repair(text)
        return text, *self._table.replace(text, with_offsets=with_offsets)

    def words(self, strings: "Strings | Sequence[str | bytes]") -> list[list[str]]:
        """The words of each string as the tokenizer splits them, for learning a vocabulary; eager only."""
        boundaries = ASCII_PUNCTUATION + (IDEOGRAPHS if self.split_cjk else "")
        _, normalized, _, _ = self.normalize(strings)
        spaced = tf.strings.regex_replace(normalized, f"([{boundaries}])", r" \1 ")
        back = {stand_in: code for code, stand_in in stand_ins(self.split_cjk).items()}
        texts = (text.decode() for text in spaced.numpy().tolist())
        return [(text if self.split_cjk else text.translate(back)).split() for text in texts]

    def _repair(self, text: tf.Tensor) -> tf.Tensor:
        """Replaces every invalid byte by a filler and lower-cases final capital sigmas; keeps all offsets."""

        def repaired() -> tf.Tensor:
            valid = replace_invalid(text, FILLER.encode())
            if not self.lower_case:
                return valid
            return tf.strings.regex_replace(valid, final_sigma_pattern(), r"\1ς\2")

        ordinary = tf.reduce_all(tf.strings.regex_full_match(text, _ORDINARY if self.lower_case else _VALID))
        return tf.cond(ordinary, lambda: text, repaired)


class AlbertNormalizer(tf.Module):
    """What ALBERT does to texts before SentencePiece (preprocess_text in Transformers' AlbertTokenizer)."""

    def __init__(self, lower_case: bool, strip_accents: bool, double_quotes: bool) -> None:
        """See `SentencePieceTokenizer` for the arguments."""
        super().__init__(name="normalizer")
        self._table = Replacer(albert_table(lower_case, strip_accents, double_quotes))

    def normalize(self, texts: tf.Tensor, with_offsets: bool = False) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes string [batch], valid UTF-8; returns what `Normalizer.normalize` does, but for `text`."""
        return self._table.replace(texts, with_offsets=with_offsets)
