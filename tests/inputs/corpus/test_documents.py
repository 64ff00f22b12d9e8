import functools
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert_tf.errors import DataError
from bert_tf.inputs.batching import without_tuning
from bert_tf.inputs.corpus.documents import (
    check_documents,
    first_documents,
    full_sentences,
    in_batches,
    sentence_pairs,
    unfit_for_pairs,
)
from bert_tf.text.packing import pack
from tests.inputs.original import join, pairs_in, reference_pairs

MAX_TOKENS = 29
SEPARATOR = -1
PACKED = {"batch_size": 100, "pack": functools.partial(pack, cls_id=-2, sep_id=SEPARATOR)}


def numbered_documents(sentence_lengths):
    """Documents with consecutively numbered tokens, so that every token identifies its position.

    Args:
        sentence_lengths: for each document, the lengths of its sentences.
    """
    documents, number = [], 0
    for lengths in sentence_lengths:
        documents.append([])
        for length in lengths:
            documents[-1].append(list(range(number, number + length)))
            number += length
    return documents


def corpus(num_documents, seed=0, most_sentences=12, longest=15):
    lengths = np.random.default_rng(seed)
    return numbered_documents(
        [lengths.integers(1, longest, lengths.integers(1, most_sentences)) for _ in range(num_documents)]
    )


def ragged(documents):
    sentences = join(documents)
    nested = [len(document) for document in documents], [len(sentence) for sentence in sentences]
    return tf.RaggedTensor.from_nested_row_lengths(tf.constant(join(sentences), tf.int32), nested)


@functools.cache
def traced(make, names, dtypes, **options):
    """Function from documents, and a list of values for each of the arguments `names` of `make`, of these dtypes.

    Returns the batches of each run, with the values of one place in the lists. Traced once for all tests.
    """
    signature = (
        tf.RaggedTensorSpec([None, None, None], tf.int32),
        tuple(tf.TensorSpec([None], dtype) for dtype in dtypes),
    )

    @tf.function(autograph=False, input_signature=signature)
    def sequences(documents, values):
        dataset = tf.data.Dataset.from_tensors(documents)

        def run(number, values):
            arguments = dict(zip(names, values, strict=True)) | options
            batches = in_batches(make(dataset, tf.stack([arguments.pop("seed"), 7]), **arguments), **PACKED)
            return batches.map(lambda batch: (number, batch))

        runs = tf.data.Dataset.from_tensor_slices(values).enumerate().flat_map(run)
        return runs.with_options(without_tuning())

    def batches(documents, *values):
        made = [[] for _ in values[0]]
        values = tuple(tf.constant(some, dtype) for some, dtype in zip(values, dtypes, strict=True))
        for number, batch in sequences(ragged(documents), values):
            made[int(number)].append(batch)
        return made

    return batches


def pairs_of(documents, seed=1, runs=1, group_size=1000, short_sequence_rate=0.1, swap=False):
    """Runs `sentence_pairs` with `runs` consecutive seeds; returns a list of (first, second, label), lists of int."""
    names, dtypes = ("seed", "group_size", "short_sequence_rate"), (tf.int64, tf.int64, tf.float64)
    make = traced(sentence_pairs, names, dtypes, max_tokens=MAX_TOKENS, swap=swap)
    made = make(documents, range(seed, seed + runs), [group_size] * runs, [short_sequence_rate] * runs)
    return [pair for batches in made for batch in batches for pair in pairs_in(batch)]


@pytest.fixture(scope="module")
def sampled():
    """Four runs over a corpus of short documents: the documents, our pairs and the reference's."""
    documents = corpus(300)
    theirs = [pair for k in range(4) for pair in reference_pairs(documents, k, MAX_TOKENS)]
    return documents, pairs_of(documents, runs=4), theirs


def same_histogram(ours, theirs):
    """p-value of the hypothesis that two samples of integers have the same distribution; rare values are pooled."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    values, counts = np.unique(np.concatenate([ours, theirs]), return_counts=True)
    common = values[counts >= 20]
    table = np.array([[np.sum(sample == value) for value in common] for sample in (ours, theirs)])
    rest = [[np.sum(~np.isin(sample, common))] for sample in (ours, theirs)]
    table = np.concatenate([table, rest], axis=1) if np.sum(rest) >= 10 else table
    return stats.chi2_contingency(table).pvalue if table.shape[1] > 1 else 1.0


@pytest.mark.parametrize(
    "measure",
    [
        lambda first, second, label: label,
        lambda first, second, label: len(first) + len(second),
        lambda first, second, label: len(first),
        lambda first, second, label: len(second),
        lambda first, second, label: 100 * label + min(len(first), len(second)),
    ],
    ids=["labels", "total length", "first length", "second length", "shorter length by label"],
)
def test_pairs_are_distributed_as_in_the_original_generator(sampled, measure):
    _, ours, theirs = sampled
    assert same_histogram([measure(*p) for p in ours], [measure(*p) for p in theirs]) > 0.01


def test_the_number_of_pairs_is_that_of_the_original_generator(sampled):
    documents, ours, theirs = sampled
    per_document = []
    for pairs in (ours, theirs):
        starts = [document[0][0] for document in documents]
        owner = np.searchsorted(starts, [first[0] for first, _, _ in pairs], side="right") - 1
        per_document.append(np.bincount(owner, minlength=len(documents)))
    assert stats.ttest_rel(*per_document).pvalue > 0.01


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_the_share_and_the_targets_of_short_documents_are_as_in_the_original(rate):
    # With sentences of one token every target is reached exactly: the length of a full pair is the document's target.
    # Long documents, so that each has a full pair of running text.
    documents = numbered_documents([[1] * 250] * 200)
    ours = pairs_of(documents, short_sequence_rate=rate)
    theirs = reference_pairs(documents, 5, MAX_TOKENS, short_sequence_rate=rate)

    def targets(pairs):
        longest = {}
        for first, second, label in pairs:
            if not label:
                longest[first[0] // 250] = max(longest.get(first[0] // 250, 0), len(first) + len(second))
        return np.array(list(longest.values()))

    ours, theirs = targets(ours), targets(theirs)
    assert ours.max() <= MAX_TOKENS
    assert stats.ks_2samp(ours, theirs).pvalue > 0.01
    short = stats.binomtest(int(np.sum(ours < MAX_TOKENS)), len(ours), rate * (1 - 1 / (MAX_TOKENS - 1)))
    assert short.pvalue > 0.01


def test_front_and_back_are_truncated_as_by_the_original_token_by_token():
    documents = numbered_documents([[40]] * 1500 + [[9]] * 500)
    ours, theirs = pairs_of(documents, group_size=2000), reference_pairs(documents, 1, MAX_TOKENS)

    def cuts(pairs):
        """Number of tokens removed from the front of first parts of 40 tokens, and number of tokens left."""
        return [100 * len(first) + first[0] % 40 for first, _, _ in pairs if first[0] < 1500 * 40]

    assert same_histogram(cuts(ours), cuts(theirs)) > 0.01
    assert {len(first) + len(second) for first, second, _ in ours if first[0] < 1500 * 40} == {MAX_TOKENS}


def document_numbers(documents):
    """token -> number of its document."""
    return np.repeat(np.arange(len(documents)), [sum(map(len, document)) for document in documents])


def test_segments_are_running_text_and_the_label_tells_whether_from_one_document(sampled):
    documents, pairs, _ = sampled
    document = document_numbers(documents)
    for first, second, label in pairs:
        assert first and second and len(first) + len(second) <= MAX_TOKENS
        assert first == list(range(first[0], first[-1] + 1))
        assert second == list(range(second[0], second[-1] + 1))
        assert document[first[0]] == document[first[-1]] and document[second[0]] == document[second[-1]]
        if label:
            assert document[first[0]] != document[second[0]]
        else:
            assert document[first[0]] == document[second[0]]
            # Only truncated text can lie between the two, and only pairs that were too long were truncated.
            assert second[0] == first[-1] + 1 or (second[0] > first[-1] and len(first) + len(second) == MAX_TOKENS)
    assert {label for _, _, label in pairs} == {0, 1}


def test_displaced_sentences_are_put_back_so_that_all_text_is_used_once():
    documents = numbered_documents([[1] * n for n in (1, 2, 60, 100, 333)])
    own_text = []
    for first, second, label in pairs_of(documents):
        own_text += first if label else first + second
    assert sorted(own_text) == list(range(496))


def test_the_same_seed_gives_the_same_pairs_and_another_seed_new_ones():
    documents = corpus(50)
    first, both = pairs_of(documents, seed=1), pairs_of(documents, seed=1, runs=2)
    again, other = both[: len(first)], both[len(first) :]
    assert first == again
    assert first != other
    known = {(tuple(a), tuple(b)) for a, b, _ in first}
    assert np.mean([(tuple(a), tuple(b)) in known for a, b, _ in other]) < 0.3


def test_pairs_of_a_group_come_in_random_order():
    starts = [first[0] for first, _, _ in pairs_of(corpus(300))]
    assert abs(stats.spearmanr(range(len(starts)), starts).statistic) < 0.1


def test_random_second_segments_come_from_the_same_group_and_groups_keep_their_order():
    documents = corpus(30)
    document = document_numbers(documents)
    pairs = pairs_of(documents, group_size=10)
    groups = [(document[first[0]] // 10, document[second[0]] // 10) for first, second, _ in pairs]
    assert all(a == b for a, b in groups)
    assert [a for a, _ in groups] == sorted(a for a, _ in groups)
    assert {document[first[0]] for first, _, _ in pairs} == set(range(30))


def test_a_lone_document_at_the_end_keeps_its_true_pairs():
    documents = numbered_documents([[4] * 50] * 3)
    last = [label for first, _, label in pairs_of(documents, group_size=2) if first[0] >= 400]
    assert last and not any(last)


def test_empty_sentences_and_documents_are_skipped():
    documents = corpus(20)
    holes = [[], [[]], [[], []]]
    with_empty = []
    for number, document in enumerate(documents):
        with_empty += [[s for sentence in document for s in ([], sentence)] + [[]], holes[number % 3]]
    assert pairs_of(with_empty) == pairs_of(documents)
    assert pairs_of([[], [[]]]) == []


def test_two_documents_of_one_sentence_make_two_random_pairs():
    assert sorted(pairs_of([[[1, 2]], [[3]]])) == [([1, 2], [3], 1), ([3], [1, 2], 1)]


def test_a_sentence_of_two_million_tokens_is_truncated_quickly():
    pairs = pairs_of(numbered_documents([[2_000_000], [5, 5]]))
    assert max(len(first) + len(second) for first, second, _ in pairs) == MAX_TOKENS


def blocks(documents):
    """Blocks of one document, and one without documents."""
    return [ragged([]), *(ragged([document]) for document in documents)]


@pytest.mark.parametrize(
    "documents, pairs, found",
    [([], "nsp", "has no text"), ([], "none", "has no text"), ([[[1]]], "nsp", "only one document")],
)
def test_the_error_for_too_few_documents_says_what_to_do(documents, pairs, found):
    with pytest.raises(DataError, match=found) as error:
        check_documents(blocks(documents), pairs)
    assert "blank lines" in str(error.value) and "\n" not in str(error.value)


def test_two_documents_are_enough_or_one_if_no_other_is_needed():
    check_documents(blocks([[[1]], [[2]]]))
    for pairs in ("sop", "none"):
        check_documents(blocks([[[1]]]), pairs)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([[3, 4]] * 3, ""),
        ([[3, 4], [5]], ""),  # half of them
        (
            [[3, 4], [5], [0, 6]],
            "of the first 3 documents, 67% have a single sentence, so that their pairs always have",
        ),
        (
            [[12], [30]],
            "100% have a single sentence, .* and 52% of the tokens are beyond the 10 of a pair and cut off$",
        ),
        ([[11, 10]], ""),  # one of 21 tokens
        (
            [[3, 20, 3]] * 2000,
            "of the first 1,000 documents, 38% of the tokens are beyond the 10 of a pair and cut off$",
        ),
    ],
)
def test_documents_that_make_bad_pairs_are_described(lengths, expected):
    documents = tf.data.Dataset.from_tensor_slices(ragged(numbered_documents(lengths))).batch(100)
    found = unfit_for_pairs(first_documents(documents), max_tokens=10)
    assert re.search(expected, found) if expected else found == ""


def test_a_sample_of_long_documents_has_two_of_them():
    documents = tf.data.Dataset.from_tensor_slices(ragged(numbered_documents([[100_000]] * 3))).batch(1)
    assert len(first_documents(documents)) == 2


def test_pairs_of_documents_of_one_sentence_are_all_random():
    pairs = pairs_of(numbered_documents([[9]] * 50), runs=2)
    assert len(pairs) >= 100 and {label for _, _, label in pairs} == {1}


def test_swapped_pairs_are_two_adjacent_segments_in_the_wrong_order():
    documents = corpus(200, longest=8)
    document = document_numbers(documents)
    swapped = random = 0
    for first, second, label in pairs_of(documents, swap=True, short_sequence_rate=0.0):
        same = document[first[0]] == document[second[0]]
        if not same:
            # Only a chunk of one sentence, here the last of a document, has no order and gets text of another document.
            assert label == 1 and (first[-1] + 1 == len(document) or document[first[-1] + 1] != document[first[0]])
            random += 1
        elif label:
            assert second[0] < first[0]
            assert first[0] == second[-1] + 1 or len(first) + len(second) == MAX_TOKENS
            swapped += 1
        else:
            assert first[0] < second[0]
    assert swapped > 100 and random > 5


def test_swapped_pairs_use_all_text_once_also_of_a_single_document():
    documents = numbered_documents([[1] * 330])
    pairs = pairs_of(documents, swap=True)
    assert sorted(join(first + second for first, second, _ in pairs)) == list(range(330))
    assert {label for _, _, label in pairs} == {0, 1}


def rows_of(documents, *runs, cut=False):
    """The rows of each run of `full_sentences`, a dict of arguments."""
    names, dtypes = ("seed", "max_tokens", "group_size"), (tf.int64, tf.int32, tf.int64)
    make = traced(full_sentences, names, dtypes, cut=cut, sep_id=SEPARATOR)
    runs = [{"seed": 1, "max_tokens": MAX_TOKENS, "group_size": 1000} | run for run in runs or [{}]]
    made = make(documents, *([run[name] for run in runs] for name in names))
    return [[row[1:-1] for batch in batches for row in batch["ids"].to_list()] for batches in made]


def reference_rows(documents, max_tokens):
    """RoBERTa's FULL-SENTENCES as described in its paper, sentence by sentence, documents in the given order."""
    rows, row = [], []
    for document in documents:
        separator = [SEPARATOR] if row else []
        for sentence in document:
            for start in range(0, len(sentence), max_tokens):
                piece = sentence[start : start + max_tokens]
                if len(row + separator + piece) > max_tokens:
                    rows.append(row)
                    row, separator = [], []
                row = row + separator + piece
                separator = []
    return rows + [row] * bool(row)


def test_full_sentences_equal_the_reference_in_some_order_of_documents():
    # Groups of one document keep the documents in order, so that the reference knows it.
    documents, limits = corpus(40, longest=20), (1, 7, MAX_TOKENS, 500)
    ours = rows_of(documents, *({"max_tokens": most, "group_size": 1} for most in limits))
    for rows, most in zip(ours, limits, strict=True):
        assert sorted(rows) == sorted(reference_rows(documents, most))


GROUPS = [{"group_size": size} for size in (2, 7, 1000)]


def test_full_sentences_of_every_group_size_use_all_text_once_and_are_full():
    documents = corpus(60)
    for rows in rows_of(documents, *GROUPS):
        assert sorted(token for row in rows for token in row if token != SEPARATOR) == list(
            range(len(document_numbers(documents)))
        )
        assert max(map(len, rows)) <= MAX_TOKENS
        # The space left at the end of a row is shorter than the longest sentence and a separator; except in one row.
        assert sum(len(row) <= MAX_TOKENS - 15 for row in rows) <= 1
        assert all(SEPARATOR not in (row[0], row[-1]) for row in rows)
        assert sum(row.count(SEPARATOR) for row in rows) > 10


def test_cut_sentences_fill_every_sequence_but_the_last():
    # Groups of one document keep the documents in order.
    documents, limits = corpus(40), (1, 7, MAX_TOKENS, 5000)
    text = join([[SEPARATOR] * (number > 0) + join(document) for number, document in enumerate(documents)])
    ours = rows_of(documents, *({"max_tokens": most, "group_size": 1} for most in limits), cut=True)
    for rows, most in zip(ours, limits, strict=True):
        assert sorted(rows) == sorted(text[start : start + most] for start in range(0, len(text), most))


def test_cut_sentences_of_every_group_size_use_all_text_once():
    documents = corpus(60)
    for rows in rows_of(documents, *GROUPS, cut=True):
        assert sorted(token for row in rows for token in row if token != SEPARATOR) == list(
            range(len(document_numbers(documents)))
        )
        assert sum(row.count(SEPARATOR) for row in rows) == len(documents) - 1
        assert sorted(map(len, rows))[1:] == [MAX_TOKENS] * (len(rows) - 1)
        # Running text: each token is followed by the next one, unless a document ends there.
        document = document_numbers(documents)
        for row in rows:
            for here, there in itertools.pairwise(row):
                assert SEPARATOR in (here, there) or (there == here + 1 and document[here] == document[there])


def test_full_sentences_depend_on_the_seed_alone_and_differ_in_every_epoch():
    first, again, other = rows_of(corpus(60), {"seed": 1}, {"seed": 1}, {"seed": 2})
    assert first == again
    known = set(map(tuple, other))
    assert np.mean([tuple(row) in known for row in first]) < 0.5
    assert abs(stats.spearmanr(range(len(first)), [row[0] for row in first]).statistic) < 0.3


def test_documents_are_joined_in_a_new_order_every_epoch():
    documents = corpus(60)
    document = document_numbers(documents)

    def neighbours(rows):
        return {
            (document[row[k - 1]], document[row[k + 1]]) for row in rows for k in range(len(row)) if row[k] == SEPARATOR
        }

    first, second = map(neighbours, rows_of(documents, {"seed": 1}, {"seed": 2}))
    assert len(first & second) < 0.2 * len(first)


def test_empty_documents_give_no_full_sentences():
    for cut in (False, True):
        assert rows_of([[], [[]]], cut=cut) == [[]]
        assert rows_of([[[]], [[4, 5]], []], cut=cut) == [[[4, 5]]]
