import random

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert_tf.errors import DataError
from bert_tf.inputs.documents import check_documents, sentence_pairs

MAX_TOKENS = 29


def join(lists):
    return [element for part in lists for element in part]


def numbered_documents(sentence_lengths):
    """Documents whose tokens are numbered through, so that every token tells where it is from.

    Args:
        sentence_lengths: for each document the lengths of its sentences.
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


def pairs_of(documents, seed=1, runs=1, max_tokens=MAX_TOKENS, **options):
    """Runs `sentence_pairs` with `runs` seeds in turn; returns a list of (first, second, label), lists of int."""
    sentences = join(documents)
    nested = [len(document) for document in documents], [len(sentence) for sentence in sentences]
    ragged = tf.RaggedTensor.from_nested_row_lengths(tf.constant(join(sentences), tf.int32), nested)
    dataset = tf.data.Dataset.from_tensor_slices(ragged)
    pairs = tf.data.Dataset.range(seed, seed + runs).flat_map(
        lambda k: sentence_pairs(dataset, tf.stack([k, 7]), max_tokens=max_tokens, **options)
    )
    made = []
    for batch in pairs.ragged_batch(1000):
        labels = batch["next_sentence_label"].numpy()
        made += zip(batch["first"].to_list(), batch["second"].to_list(), labels, strict=True)
    return made


def reference_pairs(documents, seed, max_tokens=MAX_TOKENS, short_sequence_rate=0.1):
    """The original generator (google-research/bert, create_training_data.py), told again sentence by sentence."""
    rng = random.Random(seed)
    made = []
    for document in documents:
        target = rng.randint(2, max_tokens) if rng.random() < short_sequence_rate else max_tokens
        waiting, chunk = list(document), []
        while waiting:
            chunk.append(waiting.pop(0))
            if waiting and sum(map(len, chunk)) < target:
                continue
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            first, rest = join(chunk[:cut]), chunk[cut:]
            label = int(len(chunk) == 1 or rng.random() < 0.5)
            if label:
                other = rng.choice([d for d in documents if d is not document])
                second = []
                for sentence in other[rng.randrange(len(other)) :]:
                    second = second + sentence
                    if len(second) >= target - len(first):
                        break
                waiting = rest + waiting
            else:
                second = join(rest)
            while len(first) + len(second) > max_tokens:
                longer = first if len(first) > len(second) else second
                longer.pop(0 if rng.random() < 0.5 else -1)
            made.append((first, second, label))
            chunk = []
    return made


@pytest.fixture(scope="module")
def made():
    """Four runs over a corpus of short documents: the documents, our pairs and the reference's."""
    documents = corpus(300)
    theirs = [pair for k in range(4) for pair in reference_pairs(documents, seed=k)]
    return documents, pairs_of(documents, runs=4), theirs


def same_histogram(ours, theirs):
    """p-value of the hypothesis that two samples of integers are of one distribution; rare values pooled."""
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
def test_pairs_are_distributed_as_the_original_generator_makes_them(made, measure):
    _, ours, theirs = made
    assert same_histogram([measure(*p) for p in ours], [measure(*p) for p in theirs]) > 0.01


def test_the_number_of_pairs_is_that_of_the_original_generator(made):
    documents, ours, theirs = made
    per_document = []
    for pairs in (ours, theirs):
        starts = [document[0][0] for document in documents]
        owner = np.searchsorted(starts, [first[0] for first, _, _ in pairs], side="right") - 1
        per_document.append(np.bincount(owner, minlength=len(documents)))
    assert stats.ttest_rel(*per_document).pvalue > 0.01


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
def test_the_share_and_the_targets_of_short_documents_are_the_originals(rate):
    # Sentences of one token reach every target exactly: the length of a full pair is the document's target.
    # Long ones, so that each has a full pair of running text.
    documents = numbered_documents([[1] * 250] * 200)
    ours = pairs_of(documents, short_sequence_rate=rate)
    theirs = reference_pairs(documents, 5, short_sequence_rate=rate)

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


def test_front_and_back_are_cut_as_the_original_cuts_token_by_token():
    documents = numbered_documents([[40]] * 1500 + [[9]] * 500)
    ours, theirs = pairs_of(documents, group_size=2000), reference_pairs(documents, 1)

    def cuts(pairs):
        """How many tokens went at the front of first parts of 40 tokens, and what was left."""
        return [100 * len(first) + first[0] % 40 for first, _, _ in pairs if first[0] < 1500 * 40]

    assert same_histogram(cuts(ours), cuts(theirs)) > 0.01
    assert {len(first) + len(second) for first, second, _ in ours if first[0] < 1500 * 40} == {MAX_TOKENS}


def document_numbers(documents):
    """token -> number of its document."""
    return np.repeat(np.arange(len(documents)), [sum(map(len, document)) for document in documents])


def test_segments_are_running_text_and_label_says_whether_of_one_document(made):
    documents, pairs, _ = made
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
            # Between the two lies only what was cut off, and only pairs that were too long were cut.
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


def test_groups_follow_each_other_and_lend_only_within():
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


def test_empty_sentences_and_documents_are_passed_over():
    documents = corpus(20)
    holes = [[], [[]], [[], []]]
    with_holes = []
    for number, document in enumerate(documents):
        with_holes += [[s for sentence in document for s in ([], sentence)] + [[]], holes[number % 3]]
    assert pairs_of(with_holes) == pairs_of(documents)
    assert pairs_of([[], [[]]]) == []


def test_two_documents_of_one_sentence_make_two_random_pairs():
    assert sorted(pairs_of([[[1, 2]], [[3]]])) == [([1, 2], [3], 1), ([3], [1, 2], 1)]


def test_a_sentence_of_two_million_tokens_is_cut_at_once():
    pairs = pairs_of(numbered_documents([[2_000_000], [5, 5]]))
    assert max(len(first) + len(second) for first, second, _ in pairs) == MAX_TOKENS


@pytest.mark.parametrize(
    "documents, found", [([], "no text at all"), ([["Only one."]], "one document only")], ids=["none", "one"]
)
def test_a_corpus_of_fewer_than_two_documents_is_refused_with_the_remedy(documents, found):
    spec = tf.TensorSpec([None], tf.string)
    dataset = tf.data.Dataset.from_generator(lambda: documents, output_signature=spec)
    with pytest.raises(DataError, match=found) as error:
        check_documents(dataset)
    assert "blank lines" in str(error.value) and "\n" not in str(error.value)


def test_two_documents_pass_the_check():
    check_documents(tf.data.Dataset.from_tensor_slices([["One."], ["Two."]]))
