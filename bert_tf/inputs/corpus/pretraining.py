"""Text or prepared shards -> batches for pre-training: new pairs and masks every epoch (BERT, 3.1 and appendix A.2)."""

import contextlib
import re

import tensorflow as tf

from bert_tf.errors import DataError
from bert_tf.inputs.batching import batch_by_length
from bert_tf.inputs.corpus.documents import check_documents, full_sentences, sentence_pairs
from bert_tf.inputs.corpus.readers import check_text_file
from bert_tf.inputs.corpus.service import OUT_OF_ORDER
from bert_tf.inputs.corpus.shards import Shards, are_shards
from bert_tf.inputs.corpus.tokenized import TOO_BAD, token_documents
from bert_tf.inputs.masking import SEED, WORD_STARTS, Masker, prediction_budgets, unmark_words
from bert_tf.inputs.packing import dense_features, fill_rows, join_rows, pack

_BATCHES_A_POOL = 32
# Sequences that are packed together: 99% of the rows is filled; twice as many take twice as long for each sequence.
_PACKED_POOL = 1024
# How the message of an error begins that only reading the whole corpus can find.
_TOO_SMALL = "the corpus makes less than"


def check_corpus(files, tokenizer, data):
    """Refuses files that cannot be pre-trained on; reads the first megabyte of each and two documents.

    Args:
        files: list of str, text files or shards.
        tokenizer: bert_tf.Tokenizer.
        data: bert_tf.config.PretrainingData.

    Raises:
        ConfigError: shards were made with another tokenizer.
        DataError: a file is unreadable, empty or not UTF-8, or all of them together hold too few documents.
    """
    if are_shards(files):
        Shards(files).check(tokenizer)
    else:
        for file in files:
            check_text_file(file)
    with reading(", ".join(files)):
        check_documents(token_documents(files, tokenizer, data, [0, 0]), data.pairs)


@contextlib.contextmanager
def reading(name):
    """Makes the errors that reading finds in a Dataset's data errors of the corpus called `name`.

    Raises:
        DataError: too small, too much of it bad, or not what the input service was expected to give.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:  # what an assertion inside a Dataset becomes
        known = re.search(rf"({_TOO_SMALL}|{TOO_BAD}|{OUT_OF_ORDER}) [^\n]*", error.message)
        if not known:
            raise
        raise DataError(f"{name}: {known[0].rstrip(']')}") from None


def pretraining_dataset(files, tokenizer, data, *, seed, epoch, batch_size, drop_remainder=True, shard=None):
    """One epoch of pre-training batches, a pure function of its arguments.

    Files are taken in a random order, eight in turn; the documents of a group (`data.group_size` of them) are cut into
    sequences and these shuffled. A corpus larger than a group should be several files, which mixes its groups.

    Args:
        files: list of str, UTF-8 text, compressed if the name ends in .gz; or shards that were prepared of such files,
            which give the same batches, but for documents that preparing left out as duplicates.
        tokenizer: bert_tf.Tokenizer.
        data: bert_tf.config.PretrainingData.
        seed: int; with `epoch` it decides order, pairs and masks, on every machine alike.
        epoch: int or int64 scalar tensor; evaluation keeps it fixed and so sees the same masks every time.
        batch_size: rows a batch: sequences, or with data.pack as many pairs as fit into that many rows.
        drop_remainder: leave out the last batch if it is not full.
        shard: (number of workers, index), to make only every so many-th batch; None for all.

    Returns:
        tf.data.Dataset of dicts. int32 [batch, length]: input_word_ids, input_mask, input_type_ids; int32
        [batch, max_predictions]: masked_lm_positions, masked_lm_ids; float32 [batch, max_predictions]:
        masked_lm_weights; but for data.pairs "none", int32 [batch]: next_sentence_labels (1: the second segment is from
        another document or, for "sop", the segments are swapped).
        With data.pack, several pairs are in a row, and the features those of `inputs.packing.join_rows`; which
        sequences are made and how they are masked follows the same rules.
        With data.mask_on "device", input_word_ids are not masked, and instead of the masked_lm_ features there is what
        `inputs.masking.Masker` makes them of.

    Raises:
        ConfigError: the layout is unknown.
        tf.errors.InvalidArgumentError: on reading, if the corpus makes no batch at all or too much of it is bad.
    """
    epoch_seed = tf.random.fold_in(tf.constant([seed, 0], tf.int64), tf.cast(epoch, tf.int64))
    file_seed, pair_seed, order_seed, mask_seed = tf.unstack(tf.random.split(epoch_seed, 4))

    documents = token_documents(files, tokenizer, data, file_seed)
    sequences = _sequences(documents, pair_seed, tokenizer, data)

    def pack_segments(segments):
        ids, type_ids = pack(
            segments["first"], segments.get("second"), cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id
        )
        labels = {"labels": segments["next_sentence_label"]} if "next_sentence_label" in segments else {}
        return {"ids": ids, "type_ids": type_ids} | labels

    pool_size = batch_size * _BATCHES_A_POOL if data.length_multiple else batch_size
    batches = sequences.ragged_batch(_PACKED_POOL if data.shares_rows else pool_size).map(pack_segments)
    if data.shares_rows:
        batches = _rows(batches, order_seed, data).ragged_batch(batch_size)
    elif data.length_multiple:
        batches = batch_by_length(batches, batch_size, length_key="ids", seed=order_seed)
    if drop_remainder:
        batches = batches.filter(lambda packed: packed["ids"].nrows() == batch_size)

    kind = "sequence" if data.pairs == "none" else "row" if data.pack else "pair"
    least = f"one batch of {batch_size} {kind}s" if drop_remainder else f"one {kind}"
    batches = _refuse_empty(batches, f"{_TOO_SMALL} {least}; add text or make train.batch_size smaller")
    batches = batches.enumerate()
    if shard:
        # Here, because what comes before is needed to know what the next batch is.
        batches = batches.shard(*shard)
    masker = Masker(data, tokenizer)

    def finish(number, packed):
        counts = packed["ids"].row_lengths()  # of a packed row: its sequences, which are masked each by itself
        if data.shares_rows:
            packed = {name: value.values for name, value in packed.items()}
        features = _features(packed, tf.random.fold_in(mask_seed, number), tokenizer, data)
        if data.mask_on == "host":
            features = masker(features)
        if data.shares_rows:
            limits = {"max_length": data.max_length, "max_predictions": data.max_predictions}
            features = join_rows(features, packed["ids"].row_lengths(), counts, **limits)
        rows = batch_size if drop_remainder else None
        return {name: tf.ensure_shape(value, [rows, *value.shape[1:]]) for name, value in features.items()}

    return batches.map(finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _sequences(documents, seed, tokenizer, data):
    """Tokenized documents -> Dataset of what a sequence holds, a dict of one or two segments and maybe a label."""
    if data.pairs == "none":
        return full_sentences(
            documents,
            seed,
            max_tokens=data.max_length - 2,  # [CLS] first [SEP]
            sep_id=tokenizer.sep_id,
            group_size=data.group_size,
            cut=data.pack,
        )
    return sentence_pairs(
        documents,
        seed,
        max_tokens=data.max_length - 3,  # [CLS] first [SEP] second [SEP]
        short_sequence_rate=data.short_sequence_rate,
        group_size=data.group_size,
        swap=data.pairs == "sop",
    )


def _rows(pools, seed, data):
    """Datasets of pools of sequences -> of rows, dicts with one more dimension: the sequences of a row."""

    def fill(number, pool):
        lengths = tf.cast(pool["ids"].row_lengths(), tf.int32)
        order, counts = fill_rows(
            lengths,
            prediction_budgets(lengths, data.masking_rate, data.max_predictions),
            tf.random.fold_in(seed, number),
            max_length=data.max_length,
            max_predictions=data.max_predictions,
        )
        counts = tf.cast(counts, tf.int64)
        return {name: tf.RaggedTensor.from_row_lengths(tf.gather(value, order), counts) for name, value in pool.items()}

    return pools.enumerate().map(fill, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).unbatch()


def _features(packed, seed, tokenizer, data):
    """A packed batch -> padded features that a `Masker` can mask; the seed of the batch becomes one for each row."""
    length = data.max_length if data.length_multiple is None else None
    features = dense_features(
        packed["ids"],
        packed["type_ids"],
        length=length,
        length_multiple=data.length_multiple or 1,
        max_length=data.max_length,
    )
    rows = packed["ids"].nrows()
    # All 32 bits are drawn; Philox by name, because the default generator differs between devices.
    seeds = tf.random.stateless_uniform([rows, 2], seed, minval=None, maxval=None, dtype=tf.int32, alg="philox")
    features |= {SEED: seeds} | ({"next_sentence_labels": packed["labels"]} if "labels" in packed else {})
    if data.words == "spaces":
        features["input_word_ids"], features[WORD_STARTS] = unmark_words(features["input_word_ids"])
    elif data.masking in ("whole_word", "span"):
        features[WORD_STARTS] = ~tf.gather(tokenizer.continues, features["input_word_ids"])
    return features


def _refuse_empty(batches, message):
    """Makes a Dataset without elements an error: an endless loop over such epochs would hang without a word."""
    nothing = {name: _nothing(spec) for name, spec in batches.element_spec.items()}
    ended = batches.map(lambda features: (features, False))
    ended = ended.concatenate(tf.data.Dataset.from_tensors((nothing, True)))

    def count(seen, element):
        features, is_end = element
        with tf.control_dependencies([tf.debugging.Assert(~is_end | (seen > 0), [message])]):
            return seen + 1, (features, tf.identity(is_end))

    ended = ended.scan(tf.constant(0, tf.int64), count)
    ended = ended.filter(lambda features, is_end: ~is_end)
    return ended.map(lambda features, is_end: features)


def _nothing(spec):
    if isinstance(spec, tf.RaggedTensorSpec):
        no_rows = [tf.zeros([0], spec.row_splits_dtype)] * spec.ragged_rank
        return tf.RaggedTensor.from_nested_row_lengths(tf.zeros([0], spec.dtype), no_rows)
    return tf.zeros([d or 0 for d in spec.shape], spec.dtype)
