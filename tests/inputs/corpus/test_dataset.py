import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert_tf.config import PretrainingData
from bert_tf.errors import DataError
from bert_tf.inputs.batching import without_tuning
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import check_corpus, corpus_warnings, pretraining_dataset
from bert_tf.inputs.masking import Masker
from bert_tf.text.wordpiece import Tokenizer
from tests.errors import raises

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, CLS, SEP, MASK = 0, 2, 3, 4
WORDS = 2000  # word number k has the id len(SPECIALS) + k
SAMPLE_TEXT = Path(__file__).parents[4] / "shared/data/english/sample_text/sample_text.txt"


def tokenizer_of(folder, words):
    path = folder / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, *words]) + "\n")
    return Tokenizer(str(path), lower_case=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two files of numbered words, 20 documents each: a word identifies its position in the text. Files, tokenizer."""
    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(0)
    words = [f"w{k}" for k in range(WORDS)]
    # 40 documents of 50 words, in sentences of 1 to 9.
    files = []
    for half in range(2):
        documents = []
        for start in range(half * WORDS // 2, (half + 1) * WORDS // 2, 50):
            cuts = np.cumsum(random.integers(1, 10, 50))
            parts = np.split(np.array(words[start : start + 50]), cuts[cuts < 50])
            documents.append("\n".join(" ".join(part) for part in parts))
        files.append(folder / f"{half}.txt")
        files[-1].write_text("\n\n".join(documents))
    return tuple(str(file) for file in files), tokenizer_of(folder, words)


def data_of(**fields):
    # Many short sequences, of which several fit into a packed row.
    options = {"max_length": 32, "max_predictions": 5, "short_sequence_rate": 0.5}
    return PretrainingData(**options | fields).check()


@functools.cache
def runs_of(corpus, *runs, **fields):
    """The batches of each (seed, epoch, number of shards, shard), with the last batch; from one trace."""
    made = [[] for _ in runs]

    def batches(number, run):
        seed, epoch, shards, shard = tf.unstack(run)
        dataset = pretraining_dataset(
            Corpus(*corpus, data_of(**fields)),
            **{"seed": seed, "epoch": epoch, "shard": (shards, shard), "batch_size": 8, "drop_remainder": False},
        )
        return dataset.map(lambda features: (number, features))

    numbered = tf.data.Dataset.from_tensor_slices(tf.constant(runs, tf.int64)).enumerate().flat_map(batches)
    for number, features in numbered.with_options(without_tuning()).as_numpy_iterator():
        made[number].append(features)
    return made


FIRST, SECOND = (1, 0, 1, 0), (1, 1, 1, 0)  # epochs
SHARDS = [(1, 0, 3, shard) for shard in range(3)]


def epochs_of(corpus, **fields):
    """The batches of two epochs."""
    return runs_of(corpus, FIRST, SECOND, **fields)


def pairs_of(corpus):
    """The batches of the first epoch, the same again, the second epoch, another seed, and shards of the first epoch."""
    return runs_of(corpus, FIRST, FIRST, SECOND, (2, 0, 1, 0), *SHARDS)


def rows_of(batches, name):
    return np.concatenate([batch[name] for batch in batches])


def unmasked(batches):
    """The input ids with the labels written back to the masked positions."""
    ids = rows_of(batches, "input_word_ids").copy()
    positions, labels = rows_of(batches, "masked_lm_positions"), rows_of(batches, "masked_lm_ids")
    rows, places = np.nonzero(rows_of(batches, "masked_lm_weights"))
    ids[rows, positions[rows, places]] = labels[rows, places]
    return ids


def equal(batches, others):
    return len(batches) == len(others) and all(
        np.array_equal(batch[name], other[name]) for batch, other in zip(batches, others, strict=True) for name in batch
    )


ROWS = 100_000


@pytest.fixture(scope="module")
def too_large(corpus):
    """A dataset of batches for which the corpus is too small."""
    return pretraining_dataset(Corpus(*corpus, PretrainingData()), seed=1, epoch=0, batch_size=ROWS)


def test_features_have_the_documented_names_types_and_static_shapes(too_large):
    tokens, predictions = tf.TensorSpec([ROWS, 128], tf.int32), tf.TensorSpec([ROWS, 20], tf.int32)
    assert too_large.element_spec == {
        "input_word_ids": tokens,
        "input_mask": tokens,
        "input_type_ids": tokens,
        "masked_lm_positions": predictions,
        "masked_lm_ids": predictions,
        "masked_lm_weights": tf.TensorSpec([ROWS, 20], tf.float32),
        "next_sentence_labels": tf.TensorSpec([ROWS], tf.int32),
    }


def test_rows_are_packed_pairs_of_running_text_and_the_label_tells_whether_from_one_document(corpus):
    batches = pairs_of(corpus)[0]
    ids, types, mask = unmasked(batches), rows_of(batches, "input_type_ids"), rows_of(batches, "input_mask")
    labels = rows_of(batches, "next_sentence_labels")
    for row, row_types, row_mask, label in zip(ids, types, mask, labels, strict=True):
        length = row_mask.sum()
        middle, end = np.flatnonzero(row == SEP)
        assert row[0] == CLS and end == length - 1 and length <= 32
        assert row_types.tolist() == [0] * (middle + 1) + [1] * (end - middle) + [0] * (32 - length)
        assert row_mask.tolist() == [1] * length + [0] * (32 - length)
        assert not row[length:].any()
        first, second = row[1:middle] - len(SPECIALS), row[middle + 1 : end] - len(SPECIALS)
        assert (np.diff(first) == 1).all() and (np.diff(second) == 1).all()
        assert (first[0] // 50 == second[0] // 50) == (label == 0)
        if not label:
            assert second[0] > first[-1]
    assert 0.4 < labels.mean() < 0.7  # more than half: a single sentence always gets another document's


def test_masks_follow_the_rate_and_never_touch_specials_or_padding(corpus):
    batches = pairs_of(corpus)[0]
    ids, lengths = unmasked(batches), rows_of(batches, "input_mask").sum(1)
    positions, weights = rows_of(batches, "masked_lm_positions"), rows_of(batches, "masked_lm_weights")
    expected = [min(5, max(1, round(0.15 * int(n)))) for n in lengths]
    assert weights.sum(1).tolist() == expected
    rows, places = np.nonzero(weights)
    assert (ids[rows, positions[rows, places]] >= len(SPECIALS)).all()
    shown = rows_of(batches, "input_word_ids")
    assert stats.binomtest(int((shown == MASK).sum()), int(weights.sum()), 0.8).pvalue > 0.01


def test_every_epoch_has_new_pairs_and_masks_and_is_repeatable(corpus):
    first, again, second, other_seed, *_ = pairs_of(corpus)
    assert equal(first, again) and not equal(first, other_seed)
    pairs = {row.tobytes() for row in unmasked(first)}
    assert np.mean([row.tobytes() in pairs for row in unmasked(second)]) < 0.3
    assert rows_of(first, "masked_lm_positions")[:8].tolist() != rows_of(second, "masked_lm_positions")[:8].tolist()


def test_shards_of_an_epoch_are_its_batches_in_round_robin_order(corpus):
    first, *_, one, two, three = pairs_of(corpus)
    assert all(equal(first[index::3], shard) for index, shard in enumerate((one, two, three)))


def test_the_order_of_examples_is_random(corpus):
    starts = unmasked(pairs_of(corpus)[0])[:, 1]
    assert abs(stats.spearmanr(range(len(starts)), starts).statistic) < 0.25


def test_batches_of_similar_length_are_padded_to_a_multiple_and_contain_the_same_examples(corpus):
    (batches,) = runs_of(corpus, FIRST, length_multiple=4)
    widths = [batch["input_word_ids"].shape[1] for batch in batches]
    assert all(width % 4 == 0 and width <= 32 for width in widths) and len(set(widths)) > 1
    for batch, width in zip(batches, widths, strict=True):
        assert width - batch["input_mask"].sum(1).max() < 4
        assert batch["masked_lm_positions"].shape[1] == 5

    def texts(batches):
        return sorted(row[row != PAD].tolist() for batch in batches for row in unmasked([batch]))

    static = pairs_of(corpus)[0]
    assert texts(batches) == texts(static)

    def padding(batches):
        return 1 - sum(batch["input_mask"].sum() for batch in batches) / sum(b["input_mask"].size for b in batches)

    assert padding(batches) < padding(static) / 2


def test_both_layouts_of_the_same_text_give_the_same_documents(tmp_path):
    documents = [[f"{a} {b}." for b in ("one", "two", "three", "four")] for a in ("red", "green", "blue")]
    words = sorted({word.strip(".") for document in documents for line in document for word in line.split()})
    tokenizer = tokenizer_of(tmp_path, [".", *words])
    (tmp_path / "sentences.txt").write_text("\n\n".join("\n".join(document) for document in documents))
    (tmp_path / "documents.txt").write_text("\n".join(" ".join(document) for document in documents))
    made = [
        [block.to_list() for block in Corpus([str(tmp_path / f"{layout}.txt")], tokenizer, data).documents([0, 0])]
        for layout in ("sentences", "documents")
        for data in [PretrainingData(layout=layout)]
    ]
    assert made[0] == made[1] and [len(document) for document in made[0][0]] == [4, 4, 4]


def test_documents_of_several_files_come_in_turn(tmp_path):
    tokenizer = tokenizer_of(tmp_path, [f"w{k}" for k in range(9)])
    files = [tmp_path / f"{k}.txt" for k in range(3)]
    for k, file in enumerate(files):
        file.write_text("\n\n".join(f"w{3 * k + number}" for number in range(3)))
    blocks = list(Corpus([str(file) for file in files], tokenizer, PretrainingData()).documents([0, 0], per_block=2))
    assert max(int(block.nrows()) for block in blocks) == 2
    words = [document[0][0] - len(SPECIALS) for block in blocks for document in block.to_list()]
    assert [word % 3 for word in words] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [word // 3 for word in words] == [word // 3 for word in words[:3]] * 3


def test_a_corpus_smaller_than_one_batch_is_an_error_instead_of_an_endless_loop(too_large):
    with pytest.raises(tf.errors.InvalidArgumentError, match="less than one batch of 100000 pairs"):
        list(too_large)


def test_a_corpus_of_one_sentence_is_refused_before_training(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("Only one sentence.\n")
    with raises(DataError, "at least two documents"):
        check_corpus(Corpus([str(path)], Tokenizer(SPECIALS), PretrainingData()))


def test_a_corpus_of_one_line_documents_gets_a_line_with_both_ways_out():
    lines = [tf.ragged.constant([[[5, 6, 7]]] * 30, dtype=tf.int32)]
    (warning,) = corpus_warnings(Corpus([], Tokenizer(SPECIALS), PretrainingData(pairs="sop")), lines)
    line = "of the first 30 documents, 100% have a single sentence, so that their pairs always have label 1; "
    assert warning.startswith(line) and "data.layout" in warning and "data.pairs=none" in warning
    one_sentence = corpus_warnings(Corpus([], Tokenizer(SPECIALS), PretrainingData(layout="documents")), lines)
    assert one_sentence == [line + "train without pairs (data.pairs=none)"]


def test_a_corpus_with_many_unknown_tokens_gets_a_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n\n".join(f"w1 strange w{k}" for k in range(30)))
    data = PretrainingData(pairs="none", masking="whole_word")  # which marks words in the ids
    tokenizer = Tokenizer([*SPECIALS, "strange", "w", "##1", "##2"])
    size, found = check_corpus(Corpus([str(path)], tokenizer, data))
    assert size == path.stat().st_size
    # Each of 30 lines has 3 known tokens (w ##1 strange) and one more word. 6 of these words are known, and 16 tokens:
    # w1, w2, w11, w12, w21 and w22. So 24 of 90 + 16 + 24 are unknown. Without pairs, single sentences are no problem.
    assert found == [
        "18.5% of the tokens are [UNK]: the vocabulary lacks these words; use one that was learned from such text"
    ]


def test_an_empty_file_among_others_is_named(tmp_path, corpus):
    path = tmp_path / "empty.txt"
    path.touch()
    with raises(DataError, "empty.txt"):
        check_corpus(Corpus([*corpus[0], str(path)], corpus[1], PretrainingData()))


SENTENCES = {"pairs": "none", "max_length": 12, "max_predictions": 2}
PACKED_SENTENCES = SENTENCES | {"pack": True, "masking": "whole_word"}


def test_full_sentences_have_no_labels_and_a_separator_between_documents(corpus):
    batches, _ = epochs_of(corpus, **SENTENCES)
    assert "next_sentence_labels" not in batches[0]
    ids, mask, types = unmasked(batches), rows_of(batches, "input_mask"), rows_of(batches, "input_type_ids")
    assert not types.any()
    words, between = [], 0
    for row, length in zip(ids, mask.sum(1), strict=True):
        assert row[0] == CLS and row[length - 1] == SEP and not row[length:].any()
        inside = row[1 : length - 1]
        parts = np.split(inside, np.flatnonzero(inside == SEP))
        for part in parts:
            part = part[part != SEP] - len(SPECIALS)
            assert len(part) and (np.diff(part) == 1).all() and part[0] // 50 == part[-1] // 50
            words += part.tolist()
        between += len(parts) - 1
    assert sorted(words) == list(range(WORDS)) and between > 5


def test_full_sentences_largely_repeat_in_the_next_epoch_with_new_masks_but_packed_ones_do_not(corpus):
    shares = {}
    for options in (SENTENCES, PACKED_SENTENCES):
        first, second = epochs_of(corpus, **options)
        masks = dict(zip(map(bytes, unmasked(first)), rows_of(first, "masked_lm_positions").tolist(), strict=True))
        both = [masks.get(bytes(row)) for row in unmasked(second)]
        shares["pack" in options] = np.mean([mask is not None for mask in both])
        same = [
            mask == new for mask, new in zip(both, rows_of(second, "masked_lm_positions").tolist(), strict=True) if mask
        ]
        assert np.mean(same) < 0.25
    assert shares[False] > 0.6 > 0.2 > shares[True]


def test_packed_full_sentences_are_rows_of_one_full_sequence_each(corpus):
    batches, _ = epochs_of(corpus, **PACKED_SENTENCES)
    assert batches[0].keys() == epochs_of(corpus, **SENTENCES)[0][0].keys()
    ids, lengths = unmasked(batches), rows_of(batches, "input_mask").sum(1)
    assert sorted(lengths)[1:] == [12] * (len(lengths) - 1)
    assert rows_of(batches, "input_mask").max() == 1
    assert (ids[:, 0] == CLS).all() and (ids[np.arange(len(ids)), lengths - 1] == SEP).all()
    words = ids[ids >= len(SPECIALS)] - len(SPECIALS)
    assert sorted(words) == list(range(WORDS))
    assert (ids == SEP).sum() == len(ids) + 39  # between 40 documents
    # Every word of this corpus is one wordpiece, so that no budget is left over.
    positions, weights = rows_of(batches, "masked_lm_positions"), rows_of(batches, "masked_lm_weights")
    assert weights.sum(1).tolist() == [min(2, max(1, round(0.15 * int(n)))) for n in lengths]
    rows, places = np.nonzero(weights)
    assert (ids[rows, positions[rows, places]] >= len(SPECIALS)).all()


@pytest.mark.slow  # tests/tasks/test_masking_on_device.py compares other rows
def test_packed_full_sentences_are_masked_on_the_device_as_on_the_host(corpus):
    masker = Masker(data_of(**PACKED_SENTENCES), corpus[1])
    tf.random.set_seed(99)  # which changes nothing
    (raw,) = runs_of(corpus, FIRST, mask_on="device", **PACKED_SENTENCES)
    for batch, expected in zip(raw, epochs_of(corpus, **PACKED_SENTENCES)[0], strict=True):
        masked = masker({name: tf.constant(value) for name, value in batch.items()})
        assert all(np.array_equal(masked[name], value) for name, value in expected.items())


def sequences_of(batches):
    """Each sequence of packed or single rows: (ids without masks, types, number of masks, label)."""
    found = []
    ids = unmasked(batches)
    columns = ("input_mask", "input_type_ids", "masked_lm_positions", "masked_lm_weights", "next_sentence_labels")
    mask, types, positions, weights, labels = (rows_of(batches, name) for name in columns)
    for row in range(len(ids)):
        masked = positions[row][weights[row] > 0]
        for number in range(1, mask[row].max() + 1):
            (places,) = np.nonzero(mask[row] == number)
            label = np.atleast_1d(labels[row])[number - 1]
            count = int(np.isin(masked, places).sum())
            found.append((ids[row, places].tolist(), types[row, places].tolist(), count, int(label)))
    return sorted(found)


@pytest.mark.parametrize("pairs", ["nsp", pytest.param("sop", marks=pytest.mark.slow)])
def test_packed_rows_contain_the_sequences_of_single_rows_with_as_many_masks(corpus, pairs):
    fields = {} if pairs == "nsp" else {"pairs": pairs}
    single = pairs_of(corpus)[0] if pairs == "nsp" else runs_of(corpus, FIRST, **fields)[0]
    tf.random.set_seed(99)  # which changes nothing
    packed, _ = epochs_of(corpus, pack=True, **fields)
    assert sequences_of(packed) == sequences_of(single)
    assert sum(len(batch["input_mask"]) for batch in packed) < sum(len(batch["input_mask"]) for batch in single)


def test_packed_features_mark_the_start_of_each_sequence(corpus):
    batches, _ = epochs_of(corpus, pack=True)
    mask, ids = rows_of(batches, "input_mask"), unmasked(batches)
    firsts, weights = rows_of(batches, "first_token_positions"), rows_of(batches, "next_sentence_weights")
    assert firsts.shape == weights.shape == (len(mask), 32 // 5)
    assert weights.sum(1).tolist() == mask.max(1).tolist() and mask.max() > 1
    for row in range(len(mask)):
        places = firsts[row][weights[row] > 0]
        assert mask[row, places].tolist() == list(range(1, len(places) + 1))
        assert (ids[row, places] == CLS).all() and (ids[row] == CLS).sum() == len(places)


def test_packed_epochs_differ(corpus):
    first, second = epochs_of(corpus, pack=True)
    assert not equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["whole_word", "span"])
def test_masks_of_packed_rows_stay_within_their_sequences(corpus, masking):
    for tokens, _, count, _ in sequences_of(runs_of(corpus, FIRST, pack=True, masking=masking)[0]):
        assert 1 <= count <= max(1, round(0.15 * len(tokens)))


@pytest.mark.slow
@pytest.mark.skipif(not SAMPLE_TEXT.exists(), reason="needs ../shared/data/english/sample_text")
def test_segments_of_googles_sample_text_are_running_text_from_its_three_documents(tmp_path):
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokenizer = tokenizer_of(tmp_path, [*letters, *(f"##{letter}" for letter in letters), *".,;:!?'\"-()"])
    files = (str(SAMPLE_TEXT),)
    check_corpus(Corpus(files, tokenizer, PretrainingData()))
    (batches,) = runs_of((files, tokenizer), FIRST, max_length=64)
    # Ids as characters: a segment is running text if it is a substring.
    pieces = tokenizer.tokenize(SAMPLE_TEXT.read_text().split("\n\n")).to_list()
    documents = ["".join(map(chr, document)) for document in pieces]
    found = set()
    for row, label in zip(unmasked(batches), rows_of(batches, "next_sentence_labels"), strict=True):
        first, second = "".join(map(chr, row[1:])).split(chr(SEP))[:2]
        owners = [k for k, document in enumerate(documents) if first in document]
        others = [k for k, document in enumerate(documents) if second in document]
        assert owners and others and (label or set(owners) & set(others))
        found.update(owners)
    assert found == {0, 1, 2}
