"""The page of the quick start and its plots: well-formed, escaped, self-contained."""

import html.parser
import math
import re

import pytest

from bert_tf.report.pages import quickstart_page
from bert_tf.report.plots import curve_plot

HOSTILE = "<script>alert(\"1\")</script> & 'co'"
RESULTS = {
    "created": "2026-11-21T00:00:00Z",
    "versions": {"tensorflow": HOSTILE},
    "machine": {"cpus": 2},
    "seconds": {"vocabulary": 4.1, "finetuning tiny": 200, "total": 340},
    "pretraining": {
        "model": HOSTILE,
        "parameters": 4400000,
        "vocab_size": 5000,
        "steps": 2,
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
    """Fails on mismatched tags; collects the page's references."""

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


@pytest.fixture(scope="module")
def page():
    return quickstart_page(RESULTS)


def test_page_is_well_formed_and_loads_nothing(page):
    found = Checker(page)
    assert found.tags.count("svg") >= 5
    assert all(reference.startswith("#") for reference in found.references)
    assert {"script", "link", "img", "iframe"}.isdisjoint(found.tags)
    assert not re.search(r"url\((?!#)|@import", page)


def test_identifiers_are_unique_and_references_resolve(page):
    found = Checker(page)
    assert len(found.ids) == len(set(found.ids))
    assert {reference[1:] for reference in found.references} <= set(found.ids)


def test_every_text_is_escaped(page):
    assert "alert(" in page and "<script" not in page


def test_the_same_results_give_the_same_page(page):
    assert quickstart_page(RESULTS) == page


def test_page_supports_light_dark_and_narrow_screens(page):
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page and 'charset="utf-8"' in page


def test_every_table_has_a_caption_and_a_cell_per_column(page):
    tables = re.findall(r"<table>.*?</table>", page, re.DOTALL)
    assert len(tables) == 4
    for table in tables:
        assert re.search(r"<caption>.+</caption>", table)
        header, *rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
        assert rows and {len(re.findall(r"<t[hd][ >]", row)) for row in rows} == {header.count("<th ")}


def test_curves_use_the_colours_of_the_page():
    run = {"history": [{"step": 1, "loss": 1.0}, {"step": 9, "loss": 2.5}], "evaluations": [{"step": 9, "loss": 2.0}]}
    drawing = curve_plot("a run", run, "loss", "T", "nats")
    assert {"--ink", "--muted", "--rule", "--series-1", "--series-2"} == set(re.findall(r"var\((.*?)\)", drawing))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawing)
    for label in ("T", "step", "nats", "training", "validation"):
        assert f">{label}</text>" in drawing
    assert 'aria-label="T of a run by step: 2.5 in training and 2 in validation at the end"' in drawing


def test_missing_values_are_not_drawn():
    assert curve_plot("a run", {"history": [{"step": 1, "loss": None}]}, "loss", "T", "nats") == ""
    assert curve_plot("a run", {}, "loss", "T", "nats") == ""


@pytest.mark.parametrize("name", ["accuracy", "loss", "learning_rate"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1e-5, 1e9, -1.0])
def test_curves_survive_a_diverged_run(value, name):
    run = {"history": [{"step": 0, name: 1.0}, {"step": 1, name: value}], "evaluations": [{"step": 0, name: value}]}
    Checker(curve_plot("a run", run, name, "T", "y"))
