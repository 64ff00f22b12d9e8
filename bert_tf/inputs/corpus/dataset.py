"""Pre-training batches from text or prepared shards: new pairs and masks every epoch (BERT, 3.1 and appendix A.2)."""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.config import PretrainingData
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.inputs.batching import batch_by_length
from bert_tf.inputs.corpus.corpus import TOO_BAD, Corpus
from bert_tf.inputs.corpus.documents import (
    check_documents,
    first_documents,
    full_sentences,
    in_batches,
    sentence_pairs,
    unfit_for_pairs,
)
from bert_tf.inputs.corpus.languages import LANGUAGE, Language, mixed_sequences, smoothed
from bert_tf.inputs.corpus.packed_rows import fill_rows, join_rows, most_pairs
from bert_tf.inputs.corpus.service import OUT_OF_ORDER
from bert_tf.inputs.masking import SEED, WORD_STARTS, Masker, prediction_budgets, unmark_words
from bert_tf.text.base import BaseTokenizer
from bert_tf.text.unknown import report
from bert_tf.types import Tensors

_BATCHES_PER_POOL = 32
# Sequences that are packed together fill 99% of the rows; twice as many take twice as long per sequence.
_PACKED_POOL = 1024
# Sequences of a language at a time, to be mixed with those of others.
_LANGUAGE_BLOCK = 256
# Start of the error message if the whole corpus turns out to be too small.
_TOO_SMALL = "the corpus makes less than"


def check_corpus(corpus: Corpus) -> tuple[int | None, list[str]]:
    """Raises an error for a corpus that cannot be used; reads the first megabyte of each file and a sample.

    Checked are that files are readable, not empty and UTF-8 text or shards of this tokenizer, that compressed files are
    complete (which reads the whole of them), that there are enough documents, and that sequences have room for tokens.

    Returns:
        As `Corpus.check`, and the `corpus_warnings`.
    """
    special = corpus.tokenizer.specials(corpus.data.pairs != "none")
    if corpus.data.max_length < special + 2:
        raise ConfigError(
            f"data.max_length is {corpus.data.max_length}; expected at least {special + 2}, for {special} special "
            "tokens and two of text"
        )
    text_bytes, blocks = corpus.check(), sample(corpus)
    check_documents(blocks, corpus.data.pairs)
    return text_bytes, corpus_warnings(corpus, blocks)


def checked_corpus(
    files: Mapping[str, Sequence[str]], tokenizer: BaseTokenizer, data: PretrainingData
) -> tuple[Corpus, list[tuple[str, str]]]:
    """Checks each language and mixes them.

    Returns:
        The corpus of files by language, mixed by data.language_exponent, or of {"": files}; and the warnings on it,
        tuples (language, warning).
    """
    sizes, warnings = dict[str, int](), list[tuple[str, str]]()
    for name, own in files.items():
        with _naming(name):
            size, found = check_corpus(Corpus(own, tokenizer, data))
            if name and size is None:
                raise DataError(
                    f"{own[0]}: prepared by an earlier version, without the size of the text, by which languages are "
                    "sampled; prepare the text again"
                )
        sizes[name] = size or 0
        warnings += [(name, warning) for warning in found]
    languages = () if "" in files else smoothed(files, sizes, data.language_exponent)
    return Corpus([*itertools.chain(*files.values())], tokenizer, data, languages), warnings


@contextlib.contextmanager
def _naming(language: str) -> Iterator[None]:
    """Adds the name of a language to errors."""
    try:
        yield
    except BertTfError as error:
        raise (type(error)(f"language {language}: {error}") if language else error) from None


def sample(corpus: Corpus) -> list[tf.RaggedTensor]:
    """The `first_documents` of a corpus; ids without marks of words."""
    plain = corpus._replace(data=dataclasses.replace(corpus.data, masking="token"))
    with reading(", ".join(corpus.files)):
        return first_documents(plain.documents([0, 0], per_block=8))


def corpus_warnings(corpus: Corpus, blocks: Sequence[tf.RaggedTensor]) -> list[str]:
    """Lines for the user on a `sample`: many unknown tokens; pairs that will mostly be bad, with the ways out."""
    tokenizer = corpus.tokenizer
    unknown = sum(int(tf.math.count_nonzero(block.flat_values == tokenizer.unk_id)) for block in blocks)
    lines = [report(tokenizer, unknown, sum(int(tf.size(block.flat_values)) for block in blocks))]
    if corpus.data.pairs != "none":
        lines.append(_pair_warning(unfit_for_pairs(blocks, _most_tokens(corpus)), corpus.data))
    return [line for line in lines if line]


def _pair_warning(problem: str, data: PretrainingData) -> str:
    """What `unfit_for_pairs` says, with the ways out."""
    if not problem:
        return ""
    ways = "train without pairs (data.pairs=none)"
    if data.layout == "sentences":
        layout = "the layout documents (data.layout, or --layout of prepare), which splits it into sentences"
        ways = f"if each line is a whole document, use {layout}; otherwise {ways}"
    return f"{problem}; {ways}"


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turns known errors inside a Dataset into a DataError of the corpus `name`.

    These are: too small, too much of it unreadable, or a batch of the input service out of order.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:  # raised by assertions inside a Dataset
        known = re.search(rf"({_TOO_SMALL}|{TOO_BAD}|{OUT_OF_ORDER}) [^\n]*", error.message)
        if not known:
            raise
        raise DataError(f"{name}: {known[0].rstrip(']')}") from None


@tf.autograph.experimental.do_not_convert
def pretraining_dataset(
    corpus: Corpus,
    *,
    seed: int | tf.Tensor,
    epoch: int | tf.Tensor,
    batch_size: int,
    drop_remainder: bool = True,
    shard: tuple[int, int] | None = None,
) -> tf.data.Dataset:
    """One epoch of pre-training batches, a pure function of its arguments.

    Files are read in random order, eight in turn. The documents of a group (`data.group_size` documents) are cut into
    sequences, which are shuffled. A corpus larger than a group should consist of several files, to mix its groups.

    Languages are cut into sequences separately and then mixed by their shares (`languages.mixed_sequences`); an epoch
    is one pass over the largest of them.

    Args:
        corpus: prepared shards give the same batches as their text files, except for the documents that were dropped as
            duplicates.
        seed: int or int64 scalar tensor; with `epoch`, determines order, pairs and masks, identically on every machine.
        epoch: int or int64 scalar tensor; a fixed epoch gives the same masks every time, as evaluation needs.
        batch_size: rows per batch; a row is a sequence or, with data.pack, as many pairs as fit.
        drop_remainder: drops the last batch if it is not full.
        shard: (number of workers, index), as for `Dataset.shard`, to make only this worker's batches; None for all.

    Returns:
        Dataset of feature dicts. int32 [batch, length]: input_word_ids, input_mask, input_type_ids. int32
        [batch, max_predictions]: masked_lm_positions, masked_lm_ids. float32 [batch, max_predictions]:
        masked_lm_weights. int32 [batch], unless data.pairs is "none": next_sentence_labels (1: the second segment is
        from another document or, for "sop", the segments are swapped).
        With data.pack, a row holds several pairs and has the features of `packed_rows.join_rows`; sequences are made
        and masked by the same rules.
        With languages also language_ids, int32 [batch, length], the number of each token's language.
        With data.mask_on "device", input_word_ids are not masked, and the inputs of `inputs.masking.Masker` replace the
        masked_lm_ features.

    Raises:
        tf.errors.InvalidArgumentError: while reading, if the corpus is too small for a batch or too much of it is
            unreadable. `reading` turns it into a DataError.
    """
    epoch_seed = tf.random.fold_in(tf.convert_to_tensor([seed, 0], tf.int64), tf.cast(epoch, tf.int64))
    file_seed, pair_seed, order_seed, mask_seed = tf.unstack(tf.random.split(epoch_seed, 4))

    tokenizer, data = corpus.tokenizer, corpus.data
    pool_size = _PACKED_POOL if data.shares_rows else batch_size * (_BATCHES_PER_POOL if data.length_multiple else 1)
    batches = _sequences(corpus, file_seed, pair_seed, pool_size)
    if data.shares_rows:
        batches = _rows(batches, order_seed, data).batch(batch_size)
    elif data.length_multiple:
        batches = batch_by_length(batches, batch_size, length_key="ids", seed=order_seed)
    if drop_remainder:
        batches = batches.filter(lambda packed: packed["ids"].nrows() == batch_size)

    kind = "sequence" if data.pairs == "none" else "row" if data.pack else "pair"
    least = f"one batch of {batch_size} {kind}s" if drop_remainder else f"one {kind}"
    batches = _numbered(batches, f"{_TOO_SMALL} {least}; add text or make train.batch_size smaller")
    if shard:
        # Not earlier, because the content of a batch depends on all batches before it.
        batches = batches.shard(*shard)
    masker = Masker(data, tokenizer)

    def finish(number: tf.Tensor, packed: Tensors) -> Tensors:
        counts = packed["ids"].row_lengths()  # sequences in each packed row; each is masked by itself
        if data.shares_rows:
            packed = {name: value.values for name, value in packed.items()}
        features = _features(packed, tf.random.fold_in(mask_seed, number), data)
        if data.mask_on == "host":
            features = masker(features)
        if data.shares_rows:
            features = join_rows(
                features,
                packed["ids"].row_lengths(),
                counts,
                max_length=data.max_length,
                max_predictions=data.max_predictions,
                max_pairs=most_pairs(data.max_length, tokenizer.specials(pairs=True)),
            )
        rows = batch_size if drop_remainder else None
        return {name: tf.ensure_shape(value, [rows, *value.shape[1:]]) for name, value in features.items()}

    return batches.map(finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _sequences(corpus: Corpus, file_seed: tf.Tensor, seed: tf.Tensor, batch_size: int) -> tf.data.Dataset:
    """Dataset of batches of sequences, as `in_batches` returns it; of languages, with the number of each sequence's."""
    if corpus.languages:

        def of_language(language: Language, seed: tf.Tensor) -> tf.data.Dataset:
            file_seed, seed = tf.unstack(tf.random.split(seed, 2))
            own = corpus._replace(files=language.files, languages=())
            batches = _sequences(own, file_seed, seed, _LANGUAGE_BLOCK)
            # Otherwise a language without sequences would be read again and again.
            message = f"{_TOO_SMALL} one sequence of the language {language.name}; add text"
            return _numbered(batches, message).map(lambda number, packed: packed)

        length = corpus.data.max_length
        return mixed_sequences(corpus.languages, of_language, seed, tokens=length, batch_size=batch_size)
    documents, tokenizer, data = corpus.documents(file_seed), corpus.tokenizer, corpus.data
    if data.pairs == "none":
        groups = full_sentences(
            documents,
            seed,
            max_tokens=_most_tokens(corpus),
            sep_id=tokenizer.sep_id,
            group_size=data.group_size,
            cut=data.pack,
        )
    else:
        groups = sentence_pairs(
            documents,
            seed,
            max_tokens=_most_tokens(corpus),
            short_sequence_rate=data.short_sequence_rate,
            group_size=data.group_size,
            swap=data.pairs == "sop",
        )
    return in_batches(groups, batch_size, tokenizer.pack)


def _most_tokens(corpus: Corpus) -> int:
    """The maximum number of tokens in a sequence besides the special ones."""
    return corpus.data.max_length - corpus.tokenizer.specials(corpus.data.pairs != "none")


def _rows(pools: tf.data.Dataset, seed: tf.Tensor, data: PretrainingData) -> tf.data.Dataset:
    """Dataset of pools of sequences -> Dataset of rows; features have one more dimension, the sequences of a row."""

    def fill(number: tf.Tensor, pool: Tensors) -> Tensors:
        lengths = tf.cast(pool["ids"].row_lengths(), tf.int32)
        order, counts = fill_rows(
            lengths,
            prediction_budgets(lengths, data),
            tf.random.fold_in(seed, number),
            max_length=data.max_length,
            max_predictions=data.max_predictions,
        )
        counts = tf.cast(counts, tf.int64)
        return {
            name: tf.RaggedTensor.from_row_lengths(tf.gather(value, order), counts, validate=False)
            for name, value in pool.items()
        }

    return pools.enumerate().map(fill, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).unbatch()


def _features(packed: Tensors, seed: tf.Tensor, data: PretrainingData) -> Tensors:
    """Packed batch -> padded features for a `Masker`; each row gets a seed of its own from the batch's seed."""
    ids = packed["ids"]
    lengths = tf.cast(ids.row_lengths(), tf.int32)[:, tf.newaxis]
    width = data.max_length
    shape: Any = [None, width]  # a list keeps a known length in the static shape
    if data.length_multiple:
        width = tf.minimum(-(-tf.reduce_max(lengths) // data.length_multiple) * data.length_multiple, width)
        shape = tf.stack([-1, width])
    features = {
        "input_word_ids": ids.to_tensor(shape=shape),
        "input_mask": tf.cast(tf.range(width) < lengths, tf.int32),
        "input_type_ids": packed["types"].to_tensor(shape=shape),
    }
    rows = tf.shape(lengths)[0]
    # Drawn from all of int32. Philox is set because the default generator differs between devices.
    seeds = tf.random.stateless_uniform([rows, 2], seed, minval=None, maxval=None, dtype=tf.int32, alg="philox")
    features |= {SEED: seeds} | ({"next_sentence_labels": packed["labels"]} if "labels" in packed else {})
    if LANGUAGE in packed:
        features["language_ids"] = packed[LANGUAGE][:, tf.newaxis] + tf.zeros_like(features["input_mask"])
    if data.masks_words:
        features["input_word_ids"], features[WORD_STARTS] = unmark_words(features["input_word_ids"])
    return features


def _numbered(batches: tf.data.Dataset, message: str) -> tf.data.Dataset:
    """Numbers batches from 0. No batches are an error: an endless stream of empty epochs would hang silently."""
    empty = {name: _empty(spec) for name, spec in batches.element_spec.items()}
    ended = batches.map(lambda features: (features, False))
    ended = ended.concatenate(tf.data.Dataset.from_tensors((empty, True))).enumerate()

    def is_batch(number: tf.Tensor, element: tuple[Tensors, tf.Tensor]) -> tf.Tensor:
        _, is_end = element
        with tf.control_dependencies([tf.debugging.Assert(~is_end | (number > 0), [message])]):
            return ~is_end

    return ended.filter(is_batch).map(lambda number, element: (number, element[0]))


def _empty(spec: tf.TypeSpec) -> tf.Tensor | tf.RaggedTensor:
    if isinstance(spec, tf.RaggedTensorSpec):
        no_rows = [tf.zeros([0], spec.row_splits_dtype)] * spec.ragged_rank
        return tf.RaggedTensor.from_nested_row_lengths(tf.zeros([0], spec.dtype), no_rows)
    return tf.zeros([d or 0 for d in spec.shape], spec.dtype)
