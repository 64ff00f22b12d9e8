import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest
import sklearn.metrics

from bert_tf.errors import ConfigError, DataError
from bert_tf.metrics.entities import (
    KLUE_LABELS,
    SCHEMES,
    encode,
    entities,
    entity_scores,
    entity_shares,
    klue_counts,
    klue_scores,
    repair,
    span_counts,
    tag_counts,
)
from tests.errors import raises
from tests.packages import seqeval, shared


@pytest.fixture
def conlleval():
    """Function from labels and predictions to the output of conlleval.pl."""
    script = seqeval() / "tests/conlleval.pl"
    if not shutil.which("perl"):
        pytest.skip("conlleval.pl needs perl")

    def run(labels, predictions):
        pairs = zip(labels, predictions, strict=True)
        text = "\n".join("".join(f"word {true} {found}\n" for true, found in zip(*pair, strict=True)) for pair in pairs)
        done = subprocess.run(["perl", script], input=text, capture_output=True, text=True, check=True)
        return done.stdout

    return run


def random_tags(rng, prefixes, count=12, types=("LOC", "PER", "B-C")):
    """Sentences of 1 to 9 tags, most of them invalid."""
    tags = np.array(["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in types)])
    return [list(rng.choice(tags, rng.integers(1, 10))) for _ in range(count)]


def perturbed(rng, sentences, rate=0.4):
    """Tags, some of them replaced by others of the same sentences."""
    pool = [tag for tags in sentences for tag in tags]
    return [[str(rng.choice(pool)) if rng.random() < rate else tag for tag in tags] for tags in sentences]


def parsed(printed):
    """The output of conlleval.pl as fractions, by the names of `entity_scores`."""
    counts, *lines = printed.splitlines()
    _, true, found, _ = map(int, re.findall(r"\d+", counts))
    read = {"entities": true, "predicted_entities": found}
    for line in lines:
        kind = "" if line.startswith("accuracy") else f"{line.partition(':')[0].strip()}/"
        shares = re.findall(r"(accuracy|precision|recall|FB1): +([\d.]+)", line)
        read |= {kind + name.replace("FB1", "f1"): float(value) / 100 for name, value in shares}
        if kind:
            read[f"{kind}predicted_entities"] = int(line.split()[-1])
    return read


def scored(labels, predictions):
    """The metrics printed by conlleval.pl, which counts the entities of all types together."""
    scores = entity_scores(labels, predictions)
    return {name: value for name, value in scores.items() if not name.endswith("/entities")}


def without_accuracy(scores):
    return {name: value for name, value in scores.items() if name != "accuracy"}


@pytest.mark.parametrize("seed", range(25))
def test_metrics_of_random_and_invalid_tags_equal_those_of_conlleval(conlleval, seed):
    rng = np.random.default_rng(seed)
    labels = random_tags(rng, "BI")
    predictions = perturbed(rng, labels)
    assert scored(labels, predictions) == pytest.approx(parsed(conlleval(labels, predictions)), abs=5.1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_scores_as_conlleval_scores_bio(conlleval, scheme):
    rng = np.random.default_rng(0)
    labels = [repair(tags) for tags in random_tags(rng, "BI", 60)]
    predictions = [repair(tags) for tags in perturbed(rng, labels)]
    ours = [[encode(entities(tags), len(tags), scheme) for tags in sentences] for sentences in (labels, predictions)]
    expected = without_accuracy(parsed(conlleval(labels, predictions)))  # accuracy is that of tags
    assert without_accuracy(scored(*ours)) == pytest.approx(expected, abs=5.1e-5)


def test_invalid_bioes_scores_like_its_bio_form_in_conlleval(conlleval):
    rng = np.random.default_rng(1)
    labels = random_tags(rng, "BIES", 300)
    predictions = perturbed(rng, labels)

    def rewritten(tags):
        """Tag by tag: what follows E or S begins an entity, S begins one, E continues one."""
        before = ["O", *tags]
        kinds = [tag.partition("-")[2] for tag in tags]
        begins = [tag[0] in "BS" or last[0] in "ES" for last, tag in itertools.pairwise(before)]
        prefixes = ["B" if begin else "I" for begin in begins]
        return [f"{prefix}-{kind}" if kind else "O" for prefix, kind in zip(prefixes, kinds, strict=True)]

    expected = conlleval(*([rewritten(tags) for tags in sentences] for sentences in (labels, predictions)))
    expected = without_accuracy(parsed(expected))
    assert without_accuracy(scored(labels, predictions)) == pytest.approx(expected, abs=5.1e-5)


def test_the_example_file_of_conlleval_has_f1_74_35():
    text = (seqeval() / "tests/data/ground_truth.txt").read_text()
    rows = [[line.split() for line in block.splitlines()] for block in text.strip().split("\n\n")]
    labels, predictions = ([[row[column] for row in rows_] for rows_ in rows] for column in (-2, -1))
    assert round(100 * entity_scores(labels, predictions)["f1"], 2) == 74.35


def test_f1_is_computed_from_the_summed_counts_of_all_sentences():
    labels = [["B-PER", "I-PER", "O"], ["B-LOC"], ["O", "O"]]
    predictions = [["B-PER", "I-PER", "B-LOC"], ["B-PER"], ["O", "O"]]
    types, counts = span_counts(labels, predictions)
    assert types == ["LOC", "PER"]
    assert counts.tolist() == [[[0, 1], [1, 1], [0, 1]], [[0, 0], [0, 1], [1, 0]], np.zeros((3, 2)).tolist()]
    f1 = 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)
    assert entity_shares(counts.sum((0, 2))) == pytest.approx({"precision": 1 / 3, "recall": 1 / 2, "f1": f1})
    assert entity_scores(labels, predictions)["f1"] == pytest.approx(f1)
    assert tag_counts(labels, predictions).tolist() == [[2, 3], [0, 1], [2, 2]]


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "IO"])
def test_encoding_keeps_the_entities_and_needs_no_repair(scheme):
    rng = np.random.default_rng(3)
    for tags in random_tags(rng, "BIES", 200):
        encoded = encode(entities(tags), len(tags), scheme)
        assert entities(encoded) == entities(tags)
        assert repair(encoded, scheme) == encoded


def test_repair_gives_the_tags_of_the_scheme():
    assert repair(["I-PER", "I-PER", "O", "B-LOC", "I-PER"]) == ["B-PER", "I-PER", "O", "B-LOC", "B-PER"]
    assert repair(["I-PER", "I-PER", "B-PER"], "IOB1") == ["I-PER", "I-PER", "B-PER"]
    assert repair(["I-PER", "B-PER", "O", "B-LOC", "B-PER"], "IO") == ["I-PER", "I-PER", "O", "I-LOC", "I-PER"]
    assert repair(["B-PER", "I-PER", "O", "B-LOC"], "BIOES") == ["B-PER", "E-PER", "O", "S-LOC"]


@pytest.mark.parametrize("seed", range(3))
def test_klue_metrics_equal_seqevals_and_scikit_learns(monkeypatch, seed):
    monkeypatch.syspath_prepend(seqeval())
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2

    rng = np.random.default_rng(seed)
    labels = [repair(tags) for tags in random_tags(rng, "BI", 60, ("PS", "LC", "DT"))]
    predictions = perturbed(rng, labels, 0.3)
    found = klue_scores(*klue_counts(labels, predictions))

    # As the authors do: one sequence of all sentences, including [CLS] and [SEP]; 1 for labels that do not occur.
    true, guessed = ([tag for tags in part for tag in ("O", *tags, "O")] for part in (labels, predictions))
    expected = f1_score([true], [guessed], average="macro", mode="strict", scheme=IOB2)
    assert found["entity_macro_f1"] == pytest.approx(expected)
    expected = sklearn.metrics.f1_score(true, guessed, labels=KLUE_LABELS, average="macro", zero_division=1)
    assert found["character_macro_f1"] == pytest.approx(expected)


def test_klue_ignores_an_entity_without_its_first_character():
    labels, predictions = [["B-PS", "I-PS", "O"]], [["I-PS", "I-PS", "O"]]
    assert klue_scores(*klue_counts(labels, predictions))["entity_macro_f1"] == 0
    assert entity_scores(labels, predictions)["f1"] == 1


def test_klue_counts_labels_that_only_the_evaluation_file_has_as_wrong():
    labels, predictions = [["B-PS", "I-PS", "O", "B-XX"]], [["B-PS", "I-PS", "O", "B-LC"]]
    scores = klue_scores(*klue_counts(labels, predictions))
    assert scores["entity_macro_f1"] == pytest.approx((1 + 0 + 0) / 3)  # of PS, XX and LC
    assert scores["character_macro_f1"] == pytest.approx(12 / 13)  # all but B-LC, predicted once and wrong


def test_the_labels_of_klue_are_those_of_its_file():
    lines = shared("korean/klue/klue-ner-v1.1_dev.tsv").read_text(encoding="utf-8").splitlines()
    blocks = "\n".join(line for line in lines if not line.startswith("##")).split("\n\n")
    rows = [[line.rsplit("\t", 1) for line in block.splitlines() if "\t" in line] for block in blocks]
    labels = [[tag for character, tag in row if character != " "] for row in rows if row]
    assert len(labels) == 5000
    assert {tag for tags in labels for tag in tags} == set(KLUE_LABELS)
    assert klue_scores(*klue_counts(labels[:500], labels[:500])) == {"entity_macro_f1": 1, "character_macro_f1": 1}


@pytest.mark.parametrize(
    ("labels", "predictions", "message"),
    [
        ([], [], ("no labels and no predictions",)),
        ([[]], [[]], ("no sentence has a tag",)),
        ([["O"]], [["O"], ["O"]], ("1 labels", "2 predictions")),
        ([["O"], ["O"]], [["O"], ["O", "O"]], ("2", "2 predictions", "1 tags")),
        ([["PER"]], [["O"]], ("'PER'",)),
        ([["B-"]], [["O"]], ("'B-'",)),
        ([["L-PER"]], [["O"]], ("'L-PER'",)),
    ],
)
def test_invalid_inputs_are_refused(labels, predictions, message):
    with raises(DataError, *message):
        entity_scores(labels, predictions)


def test_unknown_schemes_labels_and_impossible_entities_are_refused():
    with raises(ConfigError, "'IOBES'"):
        repair(["O"], "IOBES")
    with raises(DataError, "2", "'B-LOC'"):
        klue_counts([["O", "O"]], [["O", "B-LOC"]])
    for spans in ([(0, 2, "PER"), (1, 3, "PER")], [(2, 4, "PER")], [(1, 1, "PER")]):
        with raises(DataError, "PER"):
            encode(spans, 3)
