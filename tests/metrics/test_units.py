import pytest

from bert_tf.metrics import answer_spans, entities, glue
from bert_tf.metrics.accuracy_and_f1 import multi_label, scope
from bert_tf.metrics.units import COEFFICIENT, COUNT, NUMBER, SHARE, metrics_line, unit_of


def test_every_metric_has_a_unit():
    names = {}
    pairs = [["B-PER", "O"]], [["B-PER", "B-LOC"]]
    names |= entities.entity_scores(*pairs) | multi_label([[1, 0]], [[1, 1]]) | scope(["a"], ["a"], "oos")
    names |= entities.klue_scores(*entities.klue_counts([["B-PS", "O"]], [["O", "O"]]))
    names |= answer_spans.squad_2_scores(answer_spans.squad_2_questions([["a"], []], ["a", ""], [-1.0, 1.0]), 0.0)
    names |= glue.glue_scores("mrpc", ["1", "0"], ["1", "1"])
    units = {name: unit_of(name, names) for name in names}
    names |= {f"slot_{name}": 0 for name in [*names] if name.endswith("entities")}  # of intent and slots
    counts = {"entities", "predicted_entities", "slot_entities", "slot_predicted_entities", "total"}
    for name, unit in units.items():
        kind = name.rpartition("/")[2].removeprefix("HasAns_").removeprefix("NoAns_")
        assert unit == (COUNT if kind in counts else NUMBER if kind.endswith("_thresh") else SHARE), name


@pytest.mark.parametrize("name", ["stsb", "cola"])
def test_the_mean_of_coefficients_is_a_coefficient(name):
    scores = glue.glue_scores(name, *([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]] if name == "stsb" else [["0", "1"]] * 2))
    assert {unit_of(score, scores) for score in scores} == {COEFFICIENT}


def test_losses_and_unknown_metrics_are_numbers():
    assert {unit_of(name, []) for name in ("loss", "mlm_loss", "accuracies", "f1_thresh")} == {NUMBER}
    assert NUMBER.text(1234.5) == "1,234.5000" and NUMBER.text(-3.4028235e38) == "-3.403e+38"


def test_a_line_has_whole_counts_and_says_what_was_truncated():
    metrics = {"loss": 0.5, "slot_entities": 1794.0, "PER/f1": 0.5, "truncated_share": 0.031, "padding_share": 0.2}
    assert metrics_line(metrics) == "loss 0.5000, slot_entities 1794, 3.1% of the inputs truncated"
    assert metrics_line(metrics | {"truncated_share": 0.0, "unknown_share": 0.002}) == "loss 0.5000, slot_entities 1794"
    assert metrics_line({"loss": 0.5, "unknown_share": 0.751}) == "loss 0.5000, 75.1% of the tokens unknown"
