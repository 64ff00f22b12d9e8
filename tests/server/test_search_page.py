"""Search on the page: lines ranked by a model, with the words that make their scores."""

import contextlib
import json
import re
import types

import numpy as np
import pytest

import bert_tf
from bert_tf.inference.embedder import open_embedder
from bert_tf.inference.saved_model import export
from tests import zoo
from tests.server.pages import Page, files_answer, predict
from tests.server.test_server import Program
from tests.tasks.harness import fitted

MARKUP = """<img src=x onerror="window.hacked=1"> & <b>the good</b>"""
LINES = ["the good", "a b c d", "오늘 영화는 the", MARKUP, "d"]


def cosines(one, others):
    one, others = np.array(one, float), np.array(others, float)
    return others @ one / np.linalg.norm(one) / np.linalg.norm(others, axis=1)


def ranked(page):
    """The lines that the page shows, with their scores."""
    lines = zip(page.texts(".ranking .line"), page.texts(".ranking .number"), strict=True)
    return [(line, float(score)) for line, score in lines]


def expect(page, lines, scores):
    """Checks that the page shows lines in the order of their scores."""
    order = np.argsort(-np.array(scores), kind="stable")
    found = ranked(page)
    assert [line for line, _ in found] == [lines[index] for index in order]
    assert [score for _, score in found] == pytest.approx([scores[index] for index in order], abs=6e-4)


# With a model that counts words


WORDS = re.compile(r"[\w'-]+")


def counts(text):
    """The vector of a text: how often it has each of these words, and one value more that is never 0."""
    return [1, *(WORDS.findall(text).count(word) for word in ("late", "book", "영화", "b", "fee"))]


@pytest.fixture
def counting(browser):
    """The page with a model of `counts`; `sizes` are the numbers of texts of its requests."""
    text = {"dtype": "string", "shape": [None]}
    signature = {"inputs": {"text": text}, "outputs": {"vector": {"dtype": "float32", "shape": [None, 6]}}}
    card = {"task": {"name": "vectors", "settings": {}}, "signatures": {"serving_default": signature}}
    versions = [{"version": 1, "state": "AVAILABLE"}]
    model = {"name": "counts", "versions": versions, "labels": {}, "card": card, "signatures": ["serving_default"]}
    sizes = []

    def answer(route):
        if route.request.url.endswith("models.json"):
            route.fulfill(json={"models": [model]})
        elif route.request.url.endswith(":predict"):
            texts = json.loads(route.request.post_data)["inputs"]["text"]
            sizes.append(len(texts))
            route.fulfill(json={"outputs": [counts(text) for text in texts]})
        else:
            files_answer(route)

    context = browser.new_context(locale="en-US", viewport={"width": 360, "height": 780})
    with contextlib.closing(context):
        context.route("**/*", answer)
        page = Page(context, types.SimpleNamespace(rest=8080))
        page.sizes = sizes
        page.open("counts", "search")
        yield page
        assert page.errors == [] and page.tab.evaluate("document.documentElement.scrollWidth") == 360


def test_different_lines_are_ranked_and_words_marked_by_how_far_the_score_falls_without_them(counting):
    question, best, second = "late book fee", "a late book, late", "the book"
    counting.ask(question=question, lines=f"{best}\n\n{second}\n  {best}\r\nno word of it")
    counting.tab.wait_for_selector(".ranking li:nth-child(3) .hint")
    assert counting.tab.query_selector("#answer .hint").text_content().endswith("Repeated lines, shown once: 1.")
    scores = cosines(counts(question), [counts(text) for text in (best, second, "no word of it")])
    expect(counting, [best, second, "no word of it"], scores)
    shorter = ["a book, late", "a late , late", "a late book,", "the"]
    falls = np.array([*scores[[0, 0, 0]], scores[1]]) - cosines(counts(question), [counts(text) for text in shorter])
    shares = counting.tab.eval_on_selector_all(
        ".ranking mark", "all => all.map(one => [one.textContent, Number(one.style.getPropertyValue('--share'))])"
    )
    kept = falls > 0
    words = np.array(["late", "book", "late", "book"])[kept]
    assert [word for word, _ in shares] == words.tolist()
    assert [share for _, share in shares] == pytest.approx(falls[kept] / falls.max(), abs=1e-6)
    listed = counting.texts(".ranking li:nth-child(2) .without span")
    assert listed == ["Without:", f"book −{falls[3]:.3f}"]
    assert counting.texts(".ranking li:nth-child(3) .hint") == ["Without any one word, the score does not fall."]
    counting.tab.fill("#field-lines-0", " \n \t\n")
    counting.tab.click("#question .primary")
    assert counting.tab.text_content("#error:not([hidden])") == "Write a question and at least one line."
    counting.ask(question="a", lines="one line")
    assert ranked(counting) == [("one line", 1.0)]


@pytest.mark.slow
def test_a_thousand_lines_are_asked_for_in_parts_and_a_long_one_is_cut(counting):
    long = "late " * 9_000 + "book"
    lines = [MARKUP, "영화", long, "x" * 3_000, *(f"{number} b" for number in range(1_000))]
    counting.ask(question="late 영화", lines="\n".join(lines))
    counting.tab.wait_for_selector(".ranking mark")
    asked, *parts = counting.sizes
    assert asked == 1 and max(parts) == 64 and sum(parts[:-1]) == len(lines)  # the last is about words
    assert counting.texts("#answer summary") == ["All 1004 lines"]
    found = [line for line, _ in ranked(counting)]
    assert len(found) == 1004 and {MARKUP, "영화"} < set(found)
    assert long[:5_000] + " …" in found and "too long to leave out" in counting.tab.text_content("#answer")
    assert not counting.tab.query_selector("#answer img, #answer b")
    panel = counting.tab.text_content("#panel")
    assert panel.startswith("The request for the first 64 lines") and "59 b" in panel and "60 b" not in panel
    counting.tab.click("#answer summary")
    last = ".ranking li:last-child"
    counting.tab.click(f"details {last} button")
    counting.tab.wait_for_selector(f"details {last} .hint")


# With models of every kind


def export_models(folder):
    """A reranker, a sparse encoder, and sentence encoders with prompts and other formats of values."""
    reranker = bert_tf.Reranker.from_pretrained(fitted("reranking").folder)
    reranker.export(folder / "reranker", attention=True, check=False)
    bert_tf.SparseEncoder.from_pretrained(zoo.pretrained(), max_length=16).export(folder / "sparse", check=False)
    embedder = open_embedder(zoo.pretrained(), prompts={"query": "the ", "passage": "good "})
    for name, fields in {
        "queries": {"prompt_name": "query"},
        "passages": {"prompt_name": "passage"},
        "bytes": {"values": "int8"},
        "halves": {"prompt_name": "passage", "values": "float16"},
    }.items():
        one = embedder.replaced(**fields)
        export(one.task, one.model, str(folder / name), check=False)


@pytest.fixture(scope="module")
def server(browser):  # browser: to be skipped before models are made
    program = Program(f"--export_dir={zoo.made('exports/search', export_models)}", "--noaccess_log")
    yield program
    program.end()


@pytest.fixture
def page(browser, server):
    context = browser.new_context(locale="en-US", viewport={"width": 1280, "height": 900})
    page = Page(context, server)
    yield page
    context.close()
    assert page.errors == []


@pytest.mark.slow
@pytest.mark.parametrize(("model", "other"), [("queries", "queries"), ("passages", "queries"), ("bytes", "bytes")])
def test_vectors_rank_lines_by_cosines(page, server, model, other):
    page.open(model, "search")
    page.ask(question="the b", lines="\n".join(LINES))
    (asked,) = predict(server, other, text=["the b"])
    lines = predict(server, "passages" if other == "queries" else model, text=LINES)
    expect(page, LINES, cosines(asked, lines))
    note = page.tab.text_content("#fields > .hint")
    assert "none of the model's prompts (query, passage)" in note or note.startswith(
        "queries reads the question, passages the lines"
    )
    assert len(page.texts("#panel pre")) == (4 if other == "queries" else 2)


@pytest.mark.slow
def test_a_reranker_ranks_lines_by_its_scores_and_shows_the_tokens_of_the_best(page, server):
    page.open("reranker")
    page.ask(question="the b", lines="\n".join(LINES))
    (scores,) = predict(server, "reranker", queries=["the b"], texts=[LINES])
    expect(page, LINES, scores)
    best = LINES[int(np.argmax(scores))]
    outputs = predict(server, "reranker", "attention", queries=["the b"], texts=[[best]])
    page.show("tokens")
    pieces = page.texts(".piece > span")
    assert [piece.removeprefix("-") for piece in pieces] == outputs["tokens"][0][: outputs["token_count"][0]]
    page.show("heads")
    page.tab.click(".side.left button:not(.special)")
    page.tab.click(".pointed > button")
    page.tab.wait_for_selector(".heads [aria-live] h3")


@pytest.mark.slow
def test_products_of_shared_pieces_sum_to_the_score_of_sparse_vectors(page, server):
    page.open("sparse")
    page.ask(question="the b", lines="\n".join(LINES))
    outputs = predict(server, "sparse", text=["the b", *LINES])
    asked, *lines = (
        dict(zip(pieces[:count], weights, strict=False))
        for pieces, weights, count in zip(outputs["pieces"], outputs["weights"], outputs["piece_count"], strict=True)
    )
    products = [{piece: asked[piece] * line[piece] for piece in asked.keys() & line.keys()} for line in lines]
    scores = [sum(one.values()) for one in products]
    expect(page, LINES, scores)
    best = products[int(np.argmax(scores))]
    shown = page.tab.eval_on_selector_all(
        ".ranking li:first-child .piece", "all => all.map(one => [...one.children].map(part => part.textContent))"
    )
    assert {piece: float(product) for piece, product in shown} == pytest.approx(
        {piece: best[piece] for piece, _ in shown}, abs=6e-4
    )
    assert min(best[piece] for piece, _ in shown) >= max(
        best[piece] for piece in best.keys() - {one for one, _ in shown}
    )
    count, rest = re.search(r"and (\d+) more: ([\d.]+)", page.tab.text_content(".ranking li:first-child")).groups()
    assert int(count) == len(best) - len(shown)
    assert float(rest) + sum(float(product) for _, product in shown) == pytest.approx(max(scores), abs=0.01)


@pytest.mark.slow
def test_float16_is_refused_in_one_line_and_a_lone_prompt_is_said(page):
    page.open("halves", "search")
    assert page.tab.text_content("#fields > .hint").startswith("This export puts “good ” in front of both")
    page.tab.click("#question .primary")
    page.tab.wait_for_selector("#error:not([hidden])")
    assert page.tab.text_content("#error").endswith(
        "the output vector is float16, which JSON cannot have; ask over gRPC"
    )
    assert all("400" in error for error in page.errors)  # the browser's own words for the status
    page.errors.clear()
