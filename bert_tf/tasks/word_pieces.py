"""Matching of the words, or characters, of tagged texts to wordpieces."""

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.datasets.examples import TaggedExample
from bert_tf.inputs.datasets.tagged import adjoin, with_words, word_columns
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.words import character_groups, characters, extents, pieces_with_accents, word_numbers, word_of
from bert_tf.types import Tensors


def check_unit(example: TaggedExample, unit: str) -> None:
    """Refuses a sentence that is split into other units ("words" or "characters") than the model tags."""
    if example.words is None:
        return
    if unit == "characters" and example.words != tuple(example.text):
        raise DataError(
            f"{example.location}: {len(example.words)} words of {len(example.text)} characters, but the model tags "
            'characters; give the whole text (in JSON lines: {"text": "..."}), or data that tags them '
            "(data.format=klue/ner)"
        )
    if unit == "words" and adjoin(example):
        raise DataError(
            f"{example.location}: characters, but the model tags words; give data that tags words, or the whole text "
            '(in JSON lines: {"text": "..."})'
        )


def split_texts(tokenizer: Tokenizer, unit: str, examples: list[TaggedExample]) -> list[TaggedExample]:
    """The examples, with those that have only a text split into words as the exported model splits it."""
    texts = [example.text for example in examples if example.words is None]
    if not texts:
        return examples
    offsets: Iterator[tuple[Sequence[int], Sequence[int]]]
    if unit == "characters":
        offsets = ((range(len(text)), range(1, len(text) + 1)) for text in texts)
    else:
        text = tf.constant(texts)
        ids, *of_pieces = pieces_with_accents(tokenizer, text)
        of_words = extents(word_numbers(tokenizer, text, ids, *of_pieces), *of_pieces)
        starts, ends = (
            value.with_values(characters(text, value.value_rowids(), value.values)).to_list() for value in of_words
        )
        offsets = zip(starts, ends, strict=True)
    return [example if example.words is not None else with_words(example, *next(offsets)) for example in examples]


def words_without_pieces(tokenizer: Tokenizer, examples: list[TaggedExample]) -> list[str]:
    """The location of each word without wordpieces, because the tokenizer deletes all of its characters."""
    columns = {"text": tf.constant([example.text for example in examples])}
    columns |= word_columns([[example] for example in examples])
    _, starts, _ = tokenizer.tokenize_with_offsets(columns["text"])
    missing = np.ones(int(columns["word_starts"].values.shape[0]), bool)
    missing[word_of(starts, columns["word_starts"], columns["text"]).numpy()] = False
    rows = columns["word_starts"].value_rowids().numpy()
    return [examples[row].location for row in rows[missing]]


def match_words(tokenizer: Tokenizer, unit: str, columns: Tensors) -> tuple[tf.RaggedTensor, tf.Tensor, Tensors]:
    """Tokenizes texts and assigns each wordpiece to a word, in graph code.

    Args:
        tokenizer: of the task.
        unit: "words" or "characters".
        columns: text string [texts]; maybe word_starts and word_ends, else the words are found; maybe targets.

    Returns:
        RaggedTensor int32 [texts, None], the ids; bool [pieces], whether each is the first of its word; and for each
        piece [pieces] the word's number in the text from 1, its start and end in bytes and, if given, its target.
    """
    text = columns["text"]
    ids, starts, ends = pieces_with_accents(tokenizer, text)
    if unit == "characters":
        word_starts, word_ends = extents(character_groups(starts, ends), starts, ends)
    elif "word_starts" in columns:
        word_starts, word_ends = columns["word_starts"], columns["word_ends"]
    else:
        word_starts, word_ends = extents(word_numbers(tokenizer, text, ids, starts, ends), starts, ends)
    word = word_of(starts, word_starts, text)  # [pieces]
    is_first = tf.concat([word[:1] >= 0, word[1:] != word[:-1]], 0)
    features = {
        "word": word - tf.gather(word_starts.row_starts(), starts.value_rowids()) + 1,
        "start": tf.gather(word_starts.values, word),
        "end": tf.gather(word_ends.values, word),
    }
    if "targets" in columns:
        features["target"] = tf.gather(columns["targets"].values, word_of(starts, columns["word_starts"], text))
    return ids, is_first, features
