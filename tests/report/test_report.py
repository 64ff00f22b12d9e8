"""The report page: whole, escaped, self-contained, and content with what there is."""

import html.parser
import math
import re

import pytest
from bert_tf.report.curves import Series, curve_plot, series_of
from bert_tf.report.page import Html, code, key_figures, meter, page, section, table
from bert_tf.report.quickstart import duration, quickstart_page
from bert_tf.report.statistics import mean_and_deviation, wilson_interval

from bert_tf.report import markdown

HOSTILE = "<script>alert(\"1\")</script> & 'co'"
RESULTS = {
    "created": "2026-11-21T00:00:00Z",
    "versions": {"tensorflow": HOSTILE},
    "machine": {"cpus": 2},
    "seconds": {"vocabulary": 4.1, "finetuning": 200, "total": 340},
    "pretraining": {
        "model": HOSTILE,
        "parameters": 4400000,
        "history": [{"step": s, "loss": 9.0 - s, "mlm_loss": 8.0 - s, "sequences_per_second": 300.0} for s in (1, 2)],
        "evaluations": [{"step": 0, "mlm_loss": 8.5, "mlm_accuracy": 0.1}, {"step": 2, "mlm_loss": 6.5}],
    },
    "finetuning": {HOSTILE: {"history": [{"step": 1, "loss": 0.7, "accuracy": 0.5, "learning_rate": 5e-5}]}},
    "comparison": [{"model": HOSTILE, "accuracy": 0.868, "correct": 1302, "total": 1500}],
    "predictions": [{"text": HOSTILE, "label": "positive", "probabilities": {"negative": 0.2, "positive": 0.8}}],
    "fill_mask": [{"text": f"a [MASK] {HOSTILE}", "fillings": [{"token": HOSTILE, "probability": 0.3}]}],
    "commands": [[HOSTILE, f"echo {HOSTILE}"]],
}


class Checker(html.parser.HTMLParser):
    """Fails on tags that do not match; collects what the page refers to."""

    VOID = frozenset({"meta", "br", "link", "img", "hr"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.references = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in {"src", "href", "xlink:href", "srcset", "action"}:
                self.references.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_and_loads_nothing():
    text = quickstart_page(RESULTS)
    found = Checker(text)
    assert found.tags.count("svg") >= 5
    assert all(reference.startswith("#") for reference in found.references)
    assert {"script", "link", "img", "iframe"}.isdisjoint(found.tags)
    assert not re.search(r"url\((?!#)|@import", text)


def test_identifiers_are_unique_and_found():
    found = Checker(quickstart_page(RESULTS))
    assert len(found.ids) == len(set(found.ids))
    assert {reference[1:] for reference in found.references} <= set(found.ids)


def test_every_text_is_escaped():
    text = quickstart_page(RESULTS)
    assert "alert(" in text and "<script" not in text


@pytest.mark.parametrize("part", RESULTS)
def test_page_does_without_any_part(part):
    Checker(quickstart_page({name: value for name, value in RESULTS.items() if name != part}))


@pytest.mark.parametrize("empty", [{}, {"finetuning": {"tiny": {}}, "pretraining": {}, "comparison": []}])
def test_page_without_results_has_no_empty_sections(empty):
    assert "section" not in Checker(quickstart_page(empty)).tags


def test_the_same_results_give_the_same_page():
    assert quickstart_page(RESULTS) == quickstart_page(RESULTS)


def test_page_suits_light_dark_and_narrow_screens():
    text = page("title", [section("heading", "text")])
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text and 'charset="utf-8"' in text


def test_table_escapes_text_and_keeps_markup():
    found = table([["a<b", Html("<b>c</b>"), 3]], ["x", "y", "z"], numbers=(2,))
    assert "a&lt;b" in found and "<b>c</b>" in found and '<td class="number">3</td>' in found


def test_table_refuses_rows_of_another_width():
    with pytest.raises(ValueError):
        table([["only one"]], ["x", "y"])


def test_blocks_escape_what_they_are_given():
    for block in (code(HOSTILE), key_figures([(HOSTILE, HOSTILE)]), section(HOSTILE, HOSTILE), meter(HOSTILE, 0.5)):
        assert "<script" not in block and "&lt;script" in block


@pytest.mark.parametrize("share", [-1.0, 2.0, math.nan])
def test_a_bar_stays_in_its_track(share):
    width = float(re.search(r"width:([\d.]+)%", meter("x", share))[1])
    assert 0.0 <= width <= 100.0


def test_curves_take_their_colours_from_the_page():
    drawing = curve_plot([Series("a", [(0, 1.0), (9, 2.0)]), Series("b", [(0, 2.0)], True)], "T", "step", "loss")
    assert "var(--series-1)" in drawing and "var(--series-2)" in drawing
    assert not re.findall(r"#0[1-6]f00[1-6]", drawing)
    for label in ("T", "step", "loss", "a", "b"):
        assert f">{label}</text>" in drawing


def test_curves_leave_out_what_was_not_measured():
    records = [{"step": 1, "loss": 2.0}, {"step": 2}, {"step": 3, "loss": None}, {"step": 4, "loss": 1.0}]
    assert series_of("s", records, "loss").points == [(1, 2.0), (4, 1.0)]
    assert curve_plot([Series("s", [])], "T", "step", "loss") == ""


@pytest.mark.parametrize("percent", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1e-5, 1e9, -1.0])
def test_curves_survive_a_diverged_run(value, percent):
    Checker(
        curve_plot([Series("s", [(0, 1.0), (1, value)]), Series("t", [(0, value)])], "T", "x", "y", percent=percent)
    )


def test_wilson_interval_equals_published_values():
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    for (correct, total), expected in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
    }.items():
        assert wilson_interval(correct, total) == pytest.approx(expected, abs=5e-5)


def test_a_deviation_is_that_of_the_sample():
    assert mean_and_deviation([1.0, 2.0, 6.0]) == (3.0, pytest.approx(7**0.5))
    assert mean_and_deviation([2.0]) == (2.0, None)
    assert all(map(math.isnan, mean_and_deviation([1.0, math.nan])))


def test_a_table_in_markdown_is_a_table_as_text():
    lines = ["| a   | long |", "| --- | ---- |", "| 123 |      |", "| b   | 4    |"]
    assert markdown.table(("a", "long"), [("123", ""), ("b", "4")]).splitlines() == lines


def test_durations_are_said_in_minutes_and_seconds():
    assert [duration(s) for s in (4.1, 59.99, 340, 119.7)] == ["4.1 s", "1 min 0 s", "5 min 40 s", "2 min 0 s"]
