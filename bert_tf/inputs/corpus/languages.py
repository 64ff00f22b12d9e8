"""Corpora of several languages: smoothed shares (multilingual BERT, XLM-R), and text and sequences mixed by them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.types import Tensors

LANGUAGE = "language"  # of each sequence in a batch
_DRAWS_PER_BLOCK = 1024


class Language(NamedTuple):
    """A language of a corpus.

    Attributes:
        name: of the language.
        number: from 0, in the order of the names.
        files: text files or prepared shards.
        text_share: of its text in that of all languages, in bytes.
        share: of its tokens in every mixture, `text_share` smoothed.
    """

    name: str
    number: int
    files: Sequence[str]
    text_share: float = 1.0
    share: float = 1.0


def smoothed(files: Mapping[str, Sequence[str]], sizes: Mapping[str, int], exponent: float) -> tuple[Language, ...]:
    """Languages with shares P^S, renormalized, where P are their shares of the text and S is the exponent.

    Multilingual BERT's are those of S = 0.7 (google-research/bert, multilingual.md), XLM-R's those of 0.3 (Conneau et
    al., 2020, section 3.1). The text is measured in bytes: the only measure that exists before there is a vocabulary,
    and vocabulary and model should see the same mixture.

    Args:
        files: of each language, by name.
        sizes: bytes of the text of each language, above 0.
        exponent: S, above 0 and up to 1.
    """
    total = sum(sizes.values())
    weights = {name: (sizes[name] / total) ** exponent for name in files}
    whole = sum(weights.values())
    return tuple(
        Language(name, number, files[name], sizes[name] / total, weights[name] / whole)
        for number, name in enumerate(files)
    )


def largest(languages: Iterable[Language]) -> Language:
    """The language with the most text, which is read once while the others are repeated."""
    return max(languages, key=lambda language: language.text_share)


def passes(language: Language, languages: Iterable[Language]) -> float:
    """How often a language is read while the largest one is read once; 1.0 of the latter."""
    most = largest(languages)
    return language.share / most.share * (most.text_share / language.text_share)


def mixed_lines(languages: Sequence[Language], read: Callable[[str], Iterable[bytes]]) -> Iterator[bytes]:
    """Lines of all languages, in proportion to their shares, to learn a vocabulary from; always the same ones.

    The text of the largest language comes once, the others are repeated. The last repetition may be a part: lines at
    equal distances, so that it comes from the whole text, too.

    Args:
        languages: from `smoothed`, of text files.
        read: function from a path to its lines.
    """
    for language in languages:
        left = passes(language, languages)
        while left > 0:
            part, due = min(left, 1.0), 0.0
            for line in (line for file in language.files for line in read(file)):
                due += part
                if due >= 1.0:
                    due -= 1.0
                    yield line
            left -= 1.0


def mixed_sequences(
    languages: Sequence[Language],
    sequences: Callable[[Language, tf.Tensor], tf.data.Dataset],
    seed: tf.Tensor,
    *,
    tokens: int,
    batch_size: int | tf.Tensor,
) -> tf.data.Dataset:
    """One epoch of a mixture: one pass over the largest language, in which the others are repeated.

    Languages are drawn at random by their shares. Each draw takes sequences of `tokens` tokens on average, so that the
    shares are those of the tokens, even if the sequences of one language are shorter than those of another.

    Args:
        languages: from `smoothed`.
        sequences: function from a language and the seed of a pass over it, integer [2], to a Dataset of batches of
            sequences, as `documents.in_batches` makes them; at least one.
        seed: integer [2], stateless: the same seed gives the same mixture.
        tokens: maximum tokens of a sequence.
        batch_size: sequences per batch; only the last batch has fewer.

    Returns:
        Dataset of batches, as `sequences` makes them, with "language" int32 [batch], the number of the language.
    """
    draw_seed, *seeds = tf.unstack(tf.random.split(seed, 1 + len(languages)))
    # Names of the features of a sequence, known when the first language is traced: numbers, and lists of tokens.
    numbers: list[str] = []
    lists: list[str] = []

    def joined(batch: Tensors, language: Language) -> tf.RaggedTensor:
        """All features as int32 [batch, None, lists]: taking apart and batching sequences costs as much for each."""
        batch = batch | {LANGUAGE: tf.fill([batch["ids"].nrows()], language.number)}
        lists[:] = [name for name in batch if isinstance(batch[name], tf.RaggedTensor)]
        numbers[:] = [name for name in batch if name not in lists]
        heads = tf.stack([batch[name] for name in numbers], 1)  # before the tokens, repeated for each list
        heads = tf.RaggedTensor.from_tensor(tf.tile(heads[:, :, tf.newaxis], [1, 1, len(lists)]), ragged_rank=1)
        return tf.concat([heads, batch["ids"].with_values(tf.stack([batch[name].values for name in lists], 1))], 1)

    def separated(rows: tf.RaggedTensor) -> Tensors:
        heads = rows[:, : len(numbers)].to_tensor(shape=[None, len(numbers), len(lists)])
        rows = rows[:, len(numbers) :]
        batch = dict(zip(numbers, tf.unstack(heads[:, :, 0], axis=1), strict=True))
        return batch | {name: rows.with_values(rows.values[:, index]) for index, name in enumerate(lists)}

    def portions(language: Language, seed: tf.Tensor) -> tf.data.Dataset:
        """Dataset of the sequences of each draw, RaggedTensors int32 [sequences, None, lists]."""

        def cut(batch: Tensors) -> tf.RaggedTensor:
            # No sequence is longer than a portion, so that one begins in each portion.
            portion = tf.cumsum(batch["ids"].row_lengths(), exclusive=True) // tokens
            return tf.RaggedTensor.from_value_rowids(joined(batch, language), portion)

        def one_pass(number: tf.Tensor) -> tf.data.Dataset:
            return sequences(language, tf.random.fold_in(seed, number)).map(cut)

        last = 1 if language is largest(languages) else tf.int64.max
        return tf.data.Dataset.range(last).flat_map(one_pass).unbatch()

    bounds = tf.cumsum([language.share for language in languages])[:-1]

    def draws(block: tf.Tensor) -> tf.Tensor:
        uniform = tf.random.stateless_uniform([_DRAWS_PER_BLOCK], tf.random.fold_in(draw_seed, block), alg="philox")
        return tf.searchsorted(bounds, uniform, side="right", out_type=tf.int64)

    datasets = [portions(language, seed) for language, seed in zip(languages, seeds, strict=True)]
    choices = tf.data.Dataset.range(tf.int64.max).map(draws).unbatch()
    mixture = tf.data.Dataset.choose_from_datasets(datasets, choices, stop_on_empty_dataset=True)
    return mixture.unbatch().ragged_batch(batch_size).map(separated)
