"""The evaluation page: contains the results, escaped, and nothing else."""

import math
import re
import types

import numpy as np
import pytest

from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.report.pages import evaluation_page
from bert_tf.report.plots import reliability_plot
from bert_tf.tasks.benchmark import Confusion, ErrorAnalysis, ErrorExample, Table
from tests.report.test_quickstart_page import HOSTILE, Checker

METRICS = {"loss": 0.42, "accuracy": 0.875, "truncated_share": 0.25, "X/f1": 0.5}
BASELINE = {"accuracy": 0.5, "X/f1": 0.0}
ERROR_ANALYSIS = ErrorAnalysis(
    intervals={"accuracy": (0.8125, 0.9375)},
    confusion=Confusion(("a", HOSTILE), [[30, 2], [3, 40]]),
    table=Table("By type", ("type", "f1", "entities"), [(HOSTILE, 0.5, 1234)]),
    confidences=[0.9, 0.6, 0.95, 0.2],
    correct=[True, False, True, False],
    errors=[ErrorExample((f"이 영화 {HOSTILE}", "x" * 1000), "부정", HOSTILE, f"/data/{HOSTILE}/ratings.txt:7", 0.75)],
    examples=[ErrorExample(("question?",), "right", "said", "f:1")],
)


def shown(monitor, metrics, baseline, error_analysis, read_report=None):
    """The page of a task and examples that have these values."""
    benchmark = types.SimpleNamespace(
        baseline=lambda examples: baseline, error_analysis=lambda examples, predictions: error_analysis
    )
    task = types.SimpleNamespace(name="t", monitor=monitor, benchmark=benchmark)
    split = types.SimpleNamespace(
        where="folder/dev.tsv", examples=[None] * 1234, read_report=read_report or ReadReport()
    )
    return evaluation_page(task, split, [], {"kind": "evaluation", "step": 7} | metrics)


def make(error_analysis=ERROR_ANALYSIS, read_report=None, metrics=METRICS, baseline=BASELINE):
    text = shown("accuracy", metrics, baseline, error_analysis, read_report)
    return text, Checker(text)


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_the_error_analysis_is_on_the_page():
    read_report = ReadReport()
    for line in range(25):
        read_report.add("skipped: empty text", f"/data/dev.tsv:{line}")
    page, checker = make(read_report=read_report)
    text = text_of(page)
    for part in (
        "1,234 examples of folder/dev.tsv",
        "87.5%",
        "81.2–93.8%",
        "50.0%",
        "0.4200",
        "이 영화",
        "ratings.txt:7",
    ):
        assert part in text, part
    assert "of the inputs were truncated 25.0%" in text and "question?" in text and "By type" in text
    assert (
        "skipped: empty text 25 dev.tsv:0, dev.tsv:1," in text and "dev.tsv:19, …" in text and "dev.tsv:20" not in text
    )
    assert "X/f1" not in text  # the task's table has its own place for it
    assert "x" * 599 + "…" in text and "x" * 600 not in text
    assert checker.tags.count("figure") == 1


def rows_of(page):
    """The rows of the metrics table: dict first cell -> the other cells."""
    table = page[page.index("<h2>Metrics") :]
    rows = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    return {text_of(name).strip(): others for name, *others in filter(None, cells)}


def test_counts_thresholds_and_correlations_are_not_percentages():
    tagging = {"f1": 0.5, "accuracy": 1.0, "entities": 12345.0, "predicted_entities": 1.0}
    analysis = ErrorAnalysis({"f1": (0.25, 0.75)})
    rows = rows_of(shown("f1", tagging, tagging | {"predicted_entities": 0.0}, analysis))
    assert [text_of(cell).strip() for cell in rows["f1"]] == ["50.0%", "25.0–75.0%", "50.0%"]
    assert rows["predicted_entities"] == ["1", "", "0"] and rows["entities"] == ["12,345", "", "12,345"]  # and no bar

    squad = {"f1": 0.5, "HasAns_exact": 0.25, "HasAns_total": 1.0, "best_f1": 0.625, "best_f1_thresh": 0.35}
    rows = rows_of(shown("f1", squad, squad, ErrorAnalysis()))
    assert {name: text_of(cells[0]).strip() for name, cells in rows.items()} == {
        "f1": "50.0%", "HasAns_exact": "25.0%", "HasAns_total": "1", "best_f1": "62.5%", "best_f1_thresh": "0.3500"
    }  # fmt: skip
    assert rows["best_f1_thresh"][2] == "0.3500"


def test_long_texts_and_answers_are_shortened_in_the_same_way():
    case = ErrorExample(("t" * 200_000,), "e" * 200_000, "a" * 200_000, "f:1")
    page = make(ErrorAnalysis(errors=[case], examples=[case]))[0]
    assert len(page) < 20_000
    for letter in "tea":
        assert page.count(f">{letter * 599}…<") == 2, letter


def test_both_ends_of_a_range_have_the_same_number_format():
    cola = {"matthews": 0.02, "score": 0.02, "accuracy": 0.75}
    analysis = ErrorAnalysis({"score": (-0.12, 0.05), "matthews": (0.01, 0.05)})
    page = shown("score", cola, {"score": 0.0, "matthews": 0.0}, analysis)
    assert [text_of(cell).strip() for cell in rows_of(page)["score"]] == ["0.020", "-0.120 to 0.050", "0.000"]
    assert rows_of(page)["matthews"][1] == "0.010–0.050"
    assert "95% interval of score -0.120 to 0.050" in text_of(page)
    analysis = ErrorAnalysis({"score": (0.5, 0.75)})
    mrpc = shown("score", {"accuracy": 0.5, "f1": 0.75, "score": 0.625}, {"score": 0.5}, analysis)
    assert [text_of(cell).strip() for cell in rows_of(mrpc)["score"]] == ["62.5%", "50.0–75.0%", "50.0%"]


def test_the_page_loads_nothing_and_escapes_all_text():
    page, checker = make()
    assert {"script", "link", "img", "iframe"}.isdisjoint(checker.tags) and "alert(" in page
    assert all(reference.startswith("#") for reference in checker.references)
    assert not re.search(r"url\((?!#)|@import", page)


def test_the_page_without_error_analysis_has_only_metrics():
    _, checker = make(ErrorAnalysis())
    assert checker.tags.count("section") == 1 and "figure" not in checker.tags


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_without_finite_confidences_the_page_says_why_it_has_no_calibration(value):
    page, checker = make(ERROR_ANALYSIS._replace(confidences=[0.9, value, 0.95, 0.2]))
    text = text_of(page)
    assert "Left out, because confidences are NaN or infinite" in text and "figure" not in checker.tags
    assert "Expected calibration error" not in text and "이 영화" in text


def test_many_classes_are_listed_by_frequency_of_confusion():
    counts = np.diag([10] * 150)
    counts[3, 7], counts[5, 6] = 4, 9
    text = text_of(make(ErrorAnalysis(confusion=Confusion([f"class{n}" for n in range(150)], counts.tolist())))[0])
    assert "Most frequent confusions" in text and "class5 class6 9 47.4% class3 class7 4 28.6%" in text
    assert "class8" not in text


def test_without_a_mistake_there_is_no_list_of_confused_classes():
    counts = np.eye(150, dtype=int).tolist()
    assert "confusions" not in make(ErrorAnalysis(confusion=Confusion([str(n) for n in range(150)], counts)))[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.5, 0.0, 1.0, 3.7e9])
def test_any_metric_can_be_shown(value):
    error_analysis = ErrorAnalysis(intervals={"accuracy": (value, value)})
    make(error_analysis, metrics={"accuracy": value, "loss": value}, baseline={"accuracy": value})


def test_the_reliability_diagram_shows_confidence_accuracy_and_counts():
    drawing = reliability_plot([0.95] * 30 + [0.55] * 10, [True] * 27 + [False] * 3 + [True] * 5 + [False] * 5)
    Checker(drawing)
    assert "var(--series-1)" in drawing and not re.findall(r"#[0-9a-f]{6}\b", drawing)
    assert "50% of 10 at 55%; 90% of 30 at 95%" in drawing
    assert drawing == reliability_plot([0.95] * 30 + [0.55] * 10, [True] * 27 + [False] * 3 + [True] * 5 + [False] * 5)
