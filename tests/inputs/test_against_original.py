"""Pairs and masks of the bundled corpus against the original generator's: do the samples have the same distribution?

Every test has two halves: our sample must be accepted as one of the reference's, and the samples of generators with one
rule changed must be rejected. So a test that could not detect a wrong rule fails itself. All seeds are fixed; for one
seed in a thousand a test would fail although nothing is wrong.
"""

import functools
import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from bert_tf.config import PretrainingData
from bert_tf.inputs.corpus.corpus import Corpus
from bert_tf.inputs.corpus.dataset import pretraining_dataset
from bert_tf.inputs.corpus.documents import in_batches, sentence_pairs
from bert_tf.text import Tokenizer
from bert_tf.text.packing import pack
from tests.inputs.original import join, pairs_in, reference_masks, reference_pairs

SOTU = Path(__file__).parents[2] / "data/sotu"
MAX_LENGTH = 128
MAX_TOKENS = MAX_LENGTH - 3
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP, MASK = 2, 3, 4
LEVEL = 1e-3  # p-values below: different distributions
SURE = 1e-6  # p-values of a wrong rule must be below this


def p_value(ours, theirs):
    """p-value of the hypothesis that two samples have the same distribution: chi-square, rare values are pooled."""
    counts = Counter(ours), Counter(theirs)
    common = [value for value in counts[0] | counts[1] if counts[0][value] + counts[1][value] >= 20]
    table = [[count[value] for value in common] for count in counts]
    rest = [len(sample) - sum(row) for sample, row in zip((ours, theirs), table, strict=True)]
    if sum(rest) >= 10:
        table = [[*row, more] for row, more in zip(table, rest, strict=True)]
    return stats.chi2_contingency(table).pvalue if len(table[0]) > 1 else 1.0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Common words of the corpus, and letters to spell the others: realistic lengths without a learned vocabulary."""
    words = Counter(gzip.decompress((SOTU / "train.txt.gz").read_bytes()).decode().lower().split())
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters), *".,;:!?'\"-()$%&"]
    pieces += [word for word, _ in words.most_common(5000) if word.isalpha() and len(word) > 1]
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n")
    return Tokenizer(str(path))


@pytest.fixture(scope="module")
def documents(tokenizer):
    """All addresses, with consecutively numbered tokens: each token identifies its sentence and document."""
    text = gzip.decompress((SOTU / "train.txt.gz").read_bytes()).decode().split("\n\n")
    numbered, number = [], 0
    for document in text:
        lengths = tokenizer.tokenize(document.strip().split("\n")).row_lengths().numpy()
        ends = number + np.cumsum(lengths)
        numbered.append([list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True) if length])
        number = int(ends[-1])
    return numbered


def our_epochs(documents, seeds, **options):
    """Result of `sentence_pairs` for each seed: a list of pairs (first, second, label)."""
    sentences = join(documents)
    nested = [len(document) for document in documents], [len(sentence) for sentence in sentences]
    ragged = tf.RaggedTensor.from_nested_row_lengths(tf.constant(join(sentences), tf.int32), nested)
    dataset = tf.data.Dataset.from_tensors(ragged)

    def epoch(seed):
        groups = sentence_pairs(dataset, tf.stack([seed, 7]), max_tokens=MAX_TOKENS, **options)
        return in_batches(groups, 1000, functools.partial(pack, cls_id=CLS, sep_id=SEP)).map(
            lambda batch: (seed, batch)
        )

    sampled = {seed: [] for seed in seeds}
    for seed, batch in tf.data.Dataset.from_tensor_slices(list(seeds)).flat_map(epoch):
        sampled[int(seed)] += pairs_in(batch)
    return list(sampled.values())


def our_pairs(documents, seeds, **options):
    return join(our_epochs(documents, seeds, **options))


def their_pairs(documents, seeds, **rules):
    return [pair for seed in seeds for pair in reference_pairs(documents, seed, MAX_TOKENS, **rules)]


class Text:
    """Maps the tokens of a pair to the text: sentences and documents by token."""

    def __init__(self, documents):
        sentences = join(documents)
        self.starts = np.array([sentence[0] for sentence in sentences])
        self.ends = np.array([sentence[-1] for sentence in sentences])
        self.documents = np.array([document[0][0] for document in documents])
        self.limits = np.append(np.searchsorted(self.starts, self.documents), len(sentences))

    def document(self, tokens):
        return int(np.searchsorted(self.documents, tokens[0], side="right")) - 1

    def sentence(self, token):
        return int(np.searchsorted(self.starts, token, side="right")) - 1

    def front(self, tokens):
        """Number of tokens removed from the front."""
        return tokens[0] - int(self.starts[self.sentence(tokens[0])])

    def back(self, tokens):
        """Number of tokens removed from the back."""
        return int(self.ends[self.sentence(tokens[-1])]) - tokens[-1]

    def tenth(self, tokens):
        """The tenth of its document in which a part starts."""
        document = self.document(tokens)
        first, limit = self.limits[document : document + 2]
        return int(10 * (self.sentence(tokens[0]) - first) / (limit - first))


MEASURES = {
    "label": lambda text, first, second, label: label,
    "length": lambda text, first, second, label: len(first) + len(second),
    "first length and label": lambda text, first, second, label: (label, len(first) // 4),
    "second length and label": lambda text, first, second, label: (label, len(second) // 4),
    "cut off the first": lambda text, first, second, label: (min(text.front(first), 15), text.back(first) > 3),
    "cut off the second": lambda text, first, second, label: (min(text.front(second), 15), text.back(second) > 3),
    "longer part": lambda text, first, second, label: (label, np.sign(len(first) - len(second))),
    "place of the second": lambda text, first, second, label: (label, text.tenth(second)),
    "document of the second": lambda text, first, second, label: (label, text.document(second)),
}


def p_of(name, text, ours, theirs):
    return p_value(*([MEASURES[name](text, *pair) for pair in pairs] for pairs in (ours, theirs)))


# A short target applies to a whole document, so the pairs of a document are correlated; a test of pairs treats them as
# independent. So pairs are compared without short targets, and short targets per document.
FULL = {"short_sequence_rate": 0.0}


@pytest.fixture(scope="module")
def full_pairs(documents):
    """Function from swap to our pairs of two epochs."""
    return functools.cache(lambda swap: our_pairs(documents, (1, 2), swap=swap, **FULL))


@pytest.fixture(scope="module")
def original_pairs(documents):
    """The original's twin of `full_pairs`."""
    return functools.cache(lambda swap: their_pairs(documents, (1, 2), swap=swap, **FULL))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="next sentence"),
        pytest.param(True, id="sentence order", marks=pytest.mark.slow),  # test_documents.py has what differs
    ],
)
def sampled(request, documents, full_pairs):
    """swap, the text and our pairs of two epochs."""
    return request.param, Text(documents), full_pairs(request.param)


def test_pairs_have_the_originals_distribution(original_pairs, sampled):
    swap, text, ours = sampled
    found = {name: p_of(name, text, ours, original_pairs(swap)) for name in MEASURES}
    assert min(found.values()) > LEVEL, found


@pytest.mark.parametrize(
    "rule, seen_in",
    [
        ({"label_odds": 0.45}, "label"),
        ({"front_odds": 0.0}, "cut off the first"),
        ({"front_odds": 0.0}, "cut off the second"),
        ({"cut_second_on_a_tie": False}, "longer part"),
    ],
    ids=str,
)
def test_pairs_of_another_rule_are_rejected(documents, sampled, rule, seen_in):
    swap, text, ours = sampled
    assert p_of(seen_in, text, ours, their_pairs(documents, (1, 2), swap=swap, **FULL, **rule)) < SURE


def pairs_per_document(text, pairs):
    return np.bincount([text.document(first) for first, _, _ in pairs], minlength=len(text.documents))


@pytest.mark.parametrize(
    "rule, seen_in", [({"start_anywhere": False}, "place of the second"), ({"put_back": False}, None)], ids=str
)
def test_random_second_parts_of_another_rule_are_rejected(documents, full_pairs, rule, seen_in):
    text = Text(documents)
    ours, theirs = full_pairs(False), their_pairs(documents, (1, 2), **FULL, **rule)
    if seen_in:
        assert p_of(seen_in, text, ours, theirs) < SURE
    else:
        assert stats.ttest_rel(pairs_per_document(text, ours), pairs_per_document(text, theirs)).pvalue < SURE


def test_a_document_gives_as_many_pairs_as_in_the_original(original_pairs, sampled):
    swap, text, ours = sampled
    counts = [pairs_per_document(text, pairs) for pairs in (ours, original_pairs(swap))]
    if swap:  # only single sentences are displaced: nothing is random
        assert counts[0].tolist() == counts[1].tolist()
    else:
        assert stats.ttest_rel(*counts).pvalue > LEVEL


EPOCHS = range(1, 13)


def short_documents(documents, epochs):
    """For each document in each epoch: whether its pairs are short, and the length of its longest true pair in tens."""
    text = Text(documents)
    found = []
    for pairs in epochs:
        longest = [0] * len(documents)
        for first, second, label in pairs:
            if not label:
                document = text.document(first)
                longest[document] = max(longest[document], len(first) + len(second))
        found += [(length < MAX_TOKENS - 15, length // 25) for length in longest]
    return found


@pytest.mark.slow
def test_short_documents_are_as_frequent_and_as_short_as_in_the_original(documents):
    documents = [document[:60] for document in documents]
    ours = short_documents(documents, our_epochs(documents, EPOCHS))

    def p(rate):
        epochs = [their_pairs(documents, [seed], short_sequence_rate=rate) for seed in EPOCHS]
        return p_value(ours, short_documents(documents, epochs))

    assert p(0.1) > LEVEL > max(p(0.2), p(0.05))


@pytest.fixture(scope="module")
def masked(tokenizer):
    """Sequences of the whole pipeline: ids without masks, and the inputs at masked positions."""
    data = PretrainingData(max_length=MAX_LENGTH)
    dataset = pretraining_dataset(
        Corpus([str(SOTU / "train.txt.gz")], tokenizer, data), seed=1, epoch=0, batch_size=32, drop_remainder=False
    )
    sequences = []
    for batch in dataset.take(150).as_numpy_iterator():
        for row, length in enumerate(batch["input_mask"].sum(1)):
            shown = batch["input_word_ids"][row, :length].tolist()
            places = batch["masked_lm_positions"][row][batch["masked_lm_weights"][row] > 0].tolist()
            tokens = list(shown)
            for place, token in zip(places, batch["masked_lm_ids"][row], strict=False):
                tokens[place] = int(token)
            sequences.append((tokens, [(place, shown[place]) for place in places]))
    return sequences


def kinds(sequences):
    """The kind of each mask: [MASK], the token itself or another one."""
    return [
        "mask" if shown == MASK else "kept" if shown == tokens[place] else "random"
        for tokens, masks in sequences
        for place, shown in masks
    ]


MASK_MEASURES = {
    "kind": kinds,
    "place": lambda sequences: [place // 4 for _, masks in sequences for place, _ in masks],
    "token": lambda sequences: [tokens[place] for tokens, masks in sequences for place, _ in masks],
    "random token": lambda sequences: [
        shown // 100 for tokens, masks in sequences for place, shown in masks if shown not in (MASK, tokens[place])
    ],
}


@pytest.mark.parametrize("measure", MASK_MEASURES)
def test_masks_have_the_kinds_and_the_positions_of_the_original(masked, tokenizer, measure):
    def theirs(rate=0.15, vocab_size=tokenizer.vocab_size, specials=(CLS, SEP)):
        options = {"mask_id": MASK, "vocab_size": vocab_size, "rate": rate, "max_predictions": 20}
        return [(tokens, reference_masks(tokens, specials, k, **options)) for k, (tokens, _) in enumerate(masked)]

    assert [len(masks) for _, masks in masked] == [len(masks) for _, masks in theirs()]
    count = MASK_MEASURES[measure]
    assert p_value(count(masked), count(theirs())) > LEVEL
    wrong = {
        "place": {"specials": ()},
        "token": {"specials": ()},
        "random token": {"vocab_size": tokenizer.vocab_size * 3 // 4},
    }
    if measure in wrong:
        assert p_value(count(masked), count(theirs(**wrong[measure]))) < SURE


def test_the_shares_of_masks_are_eighty_ten_and_ten_percent(masked, tokenizer):
    found = Counter(kinds(masked))
    again = 0.1 / tokenizer.vocab_size  # a random token may equal the token itself
    shares = {"mask": 0.8 + again, "kept": 0.1 + again, "random": 0.1 - 2 * again}
    assert (
        stats.chisquare([found[k] for k in shares], [found.total() * share for share in shares.values()]).pvalue > LEVEL
    )
    # This many masks would distinguish 79% from 80%.
    assert stats.binomtest(round(0.79 * found.total()), found.total(), 0.8).pvalue < SURE


def padding(tokenizer, pack, pairs="nsp"):
    data = PretrainingData(max_length=MAX_LENGTH, pairs=pairs, pack=pack)
    dataset = pretraining_dataset(Corpus([str(SOTU / "train.txt.gz")], tokenizer, data), seed=1, epoch=0, batch_size=32)
    return np.mean([np.mean(batch["input_mask"] == 0) for batch in dataset.take(50).as_numpy_iterator()])


@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["nsp", "none"])
def test_packing_leaves_at_most_three_percent_padding_on_the_bundled_corpus(tokenizer, pairs):
    assert padding(tokenizer, pack=True, pairs=pairs) <= 0.03 < padding(tokenizer, pack=False, pairs=pairs)
