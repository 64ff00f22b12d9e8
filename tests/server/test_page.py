"""The page: its files, and in Chromium against a server with a model of every kind."""

import base64
import contextlib
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.inference import kinds
from tests.server.pages import PAGE, Page, files_answer, predict
from tests.server.saved_models import half_plus_two
from tests.server.test_server import Program

# By the model's name in the server.
KINDS = {
    "plain": "classification",
    "pairs": "classification of pairs",
    "labels": "any number of labels",
    "similar": "regression by cosine",
    "tags": "tagging of characters in documents",
    "questions": "questions",
    "choices": "multiple choice",
    "masks": "pre-training on packed rows",
    "byte_questions": "questions of byte pairs",
    "unigram_tags": "tagging of unigrams",
    "mmBERT_tags": "tagging by mmBERT",
    "sentences": "vectors of sentences",
    "words": "vectors of words",
}
KINDS |= {f"{name}-{head}": f"{head} by {name}" for name in kinds.MEMBERS for head in ("classification", "masks")}
MARKUP = """<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> & <b>the good</b> '"""


# The files


def luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_of_wcag_aa(theme):
    blocks = re.findall(r":root \{(.*?)\}", (PAGE / "style.css").read_text(), re.S)
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", blocks[theme]))
    colours = {name: "#" + 2 * value[1:] if len(value) == 4 else value for name, value in colours.items()}
    texts = [(text, ground) for text in ("text", "muted", "accent") for ground in ("page", "surface")]
    for text, ground in [*texts, ("on-accent", "accent"), ("text", "soft"), ("warn", "warn-soft")]:
        bright, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_the_page_takes_nothing_from_other_hosts_and_makes_no_html_from_text():
    for file in PAGE.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), file
    assert not re.search(
        r"<style|\bstyle=|\bon\w+=|<script(?! type=\"module\" src=)", (PAGE / "index.html").read_text()
    )


def test_every_sentence_is_in_both_languages():
    blocks = re.split(r"^  (?:en|ko): \{$", (PAGE / "i18n.js").read_text(), flags=re.M)[1:]
    english, korean = (
        {key: sorted(re.findall(r"\{\w+\}", text)) for key, text in re.findall(r'\b(\w+): "(.*?)"', block)}
        for block in blocks
    )
    assert len(english) > 90 and english == korean
    used = set()
    for file in [*PAGE.glob("*.js"), PAGE / "index.html"]:
        used.update(re.findall(r'\bt\("(\w+)"|Failure\("(\w+)"|data-t="(\w+)"|say\("(\w+)"', file.read_text()))
    assert {key for found in used for key in found if key} <= english.keys()


# In a browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the served models."""
    folder = tmp_path_factory.mktemp("served")
    half_plus_two(folder / "half")
    for name, kind in KINDS.items():
        (folder / name).mkdir()
        (folder / name / "1").symlink_to(kinds.case(kind).path)
    return folder


@pytest.fixture(scope="module")
def server(browser, folder):  # browser: to be skipped before models are made
    program = Program(f"--export_dir={folder}", "--noaccess_log")
    yield program
    program.end()


@pytest.fixture
def page(browser, server):
    context = browser.new_context(locale="en-US", viewport={"width": 1280, "height": 900})
    page = Page(context, server)
    yield page
    context.close()
    assert page.errors == []


def percent(share):
    return f"{100 * share:.1f} %"


PAIR = {"text": "the good b", "second_text": "the c"}
MASKS = {"masks": "[MASK]"} | {
    f"{name}-masks": "[MASK]" if kind in ("wordpiece", "albert", "modern") else "<mask>"
    for name, (kind, _) in kinds.MEMBERS.items()
}
CASES = {
    "plain": {"text": "오늘 영화는 the good"},
    "pairs": PAIR,
    "labels": {"text": "a good"},
    "similar": PAIR,
    "tags": {"text": "🦄 오늘 the good"},
    "questions": {"question": "the good", "context": "🦄 오늘 영화는 the good b c d e f g"},
    "choices": {"context": "the good", "question": "a", "choices": ["b", "c d"]},
    **{model: {"text": f"the {mask} good"} for model, mask in MASKS.items()},
    "byte_questions": {"question": "the good", "context": "🦄 오늘 영화는 the good b c"},
    "XLM-R-masks": {"text": "파일을 <mask>합니다."},
    **{f"{name}-classification": {"text": "오늘 영화는 the good café"} for name in kinds.MEMBERS},
    "unigram_tags": {"text": "🦄 오늘 the good"},
    "mmBERT_tags": {"text": "🦄 오늘  the good <b>"},
    "sentences": {"text": ["the good", "a b", "c d"]},
    "words": {"text": ["the good", "a b c", "d"]},
}


def expected(model, fields, outputs):
    """Parts of the answer in their order, from the outputs of the REST API."""
    if KINDS[model].startswith("classification") or model == "labels":
        ranked = sorted(zip(outputs["probabilities"][0], outputs["labels"][0], strict=True), reverse=True)
        return [part for share, label in ranked for part in (label, percent(share))]
    if model == "similar":
        return [f"{outputs[0] if isinstance(outputs, list) else outputs['value'][0]:.3f}", "from 0 to 5"]
    if model in ("tags", "unigram_tags", "mmBERT_tags"):
        return outputs["entity"][0][: outputs["entity_count"][0]]
    if model in ("questions", "byte_questions"):
        count = outputs["nbest_count"][0]
        return [outputs["answer"][0], *map(percent, outputs["nbest_probabilities"][0][:count])]
    if model == "choices":
        ranked = sorted(zip(outputs["probabilities"][0], fields["choices"], strict=True), reverse=True)
        return [outputs["label"][0], *(part for share, text in ranked for part in (text, percent(share)))]
    if model in MASKS:
        columns = (outputs[name][0][0] for name in ("tokens", "continues", "probabilities"))
        fillings = zip(*columns, strict=True)
        return [part for token, joins, share in fillings for part in ("-" * joins + token, percent(share))]
    vectors = outputs if model == "sentences" else outputs["vector"]
    counts = outputs["word_count"] if model == "words" else (3, 3)
    first, second = (
        np.array(side[:count]) / np.linalg.norm(side[:count], axis=1, keepdims=True)
        for side, count in zip(vectors[:2] if model == "words" else (vectors, vectors), counts[:2], strict=True)
    )
    return [f"{value:.2f}" for value in (first @ second.T).ravel()]


@pytest.mark.slow
@pytest.mark.parametrize("model", CASES)
def test_answers_are_those_of_the_rest_api(page, server, model):
    fields = CASES[model]
    page.open(model)
    text = page.ask(**fields)
    inputs = fields if isinstance(fields.get("text"), list) else {name: [value] for name, value in fields.items()}
    position = 0
    for part in expected(model, fields, predict(server, model, **inputs)):
        assert part in text[position:], (part, text)
        position = text.index(part, position) + len(part)
    assert re.fullmatch(rf"\d+ ms round trip · {model}, version 1", page.tab.text_content("#measured"))


@pytest.mark.slow
def test_texts_can_be_added_and_removed(page, server):
    page.open("sentences")
    page.tab.click("button[aria-label='Add another']")
    assert len(page.texts("#fields textarea")) == 4
    page.tab.click("button[aria-label='Remove: Text 4']")
    page.tab.click("button[aria-label='Remove: Text 1']")
    one, other = np.array(predict(server, "sentences", text=["the good", "a b"]))
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert page.ask(text=["the good", "a b"]).startswith(f"{cosine:.3f}")


@pytest.mark.slow
def test_spans_are_marked_where_the_model_found_them(page, server):
    page.open("tags")
    page.ask(**CASES["tags"])
    outputs = predict(server, "tags", text=[CASES["tags"]["text"]])
    marked = page.tab.eval_on_selector_all(".entity", "all => all.map(one => one.firstChild.data)")
    assert marked == outputs["entity"][0][: outputs["entity_count"][0]] != []
    page.open("questions")
    page.ask(**CASES["questions"])
    answer = predict(server, "questions", **{name: [value] for name, value in CASES["questions"].items()})
    assert "".join(page.texts("mark.answer")) == answer["answer"][0]
    page.tab.click(".bars li:nth-child(2) button")
    assert "".join(page.texts("mark.answer")) == answer["nbest_answers"][0][1]


@pytest.mark.slow
@pytest.mark.parametrize("model", CASES)
def test_markup_and_script_are_shown_as_text(page, model):
    page.open(model)
    fields = {name: [MARKUP] * 2 if isinstance(value, list) else MARKUP for name, value in CASES[model].items()}
    if model in MASKS:
        fields["text"] += f" {MASKS[model]}"
    page.ask(**fields)
    if "context" in fields and "choices" not in fields:
        assert page.texts("#answer .context") == [MARKUP]
    for name in page.tabs():
        page.tab.click(f"#tab-{name}")
        page.tab.wait_for_timeout(100)
        assert not page.tab.query_selector("main img, main script, main b")
    assert not page.tab.evaluate("window.hacked")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["pairs", "tags", "questions"])
def test_a_text_of_ten_thousand_characters_is_answered_and_what_is_not_read_is_said(page, model):
    page.open(model)
    field = {"pairs": "second_text", "tags": "text", "questions": "context"}[model]
    page.ask(**{field: ("the good 영화 " * 2000)[:10_000]})
    page.show("tokens")
    assert re.search(r"end at character \d+ of 10000", page.tab.text_content("#panel"))
    for name in ("heads", "layers", "request"):
        page.show(name)


@pytest.mark.slow
def test_of_many_tokens_the_first_are_drawn_and_that_is_said(page):
    page.open("pairs")
    counts = page.tab.evaluate("""async () => {
        const { headView, newView } = await import("/page/attention.js");
        const tokens = Array.from({ length: 600 }, (_, id) => ({ piece: "a", id, type: 0 }));
        const names = { cls: "[CLS]", sep: "[SEP]", mask: "[MASK]" };
        const sequence = { tokens, layers: 1, heads: 1, b64: btoa("\\x01".repeat(600 * 600)) };
        const view = headView([sequence], names, newView(), () => {}, null);
        return [view.querySelectorAll(".side.left button").length, view.textContent];
    }""")
    assert counts[0] == 96 and "The first 96 of 600 tokens" in counts[1]


def attention(server, model, fields):
    """Tokens and uint8 [layers, heads, tokens, tokens] of the REST API."""
    outputs = predict(server, model, "attention", **{name: [value] for name, value in fields.items()})
    data = base64.b64decode(outputs["attention_bytes"][0]["b64"])
    return outputs, np.frombuffer(data, np.uint8).reshape(outputs["attention_shape"][0])


@pytest.mark.slow
def test_a_head_shows_the_attention_of_the_rest_api(page, server):
    outputs, levels = attention(server, "pairs", PAIR)
    page.open("pairs")
    page.ask(**PAIR)
    page.show("layers")
    assert len(page.texts(".pictures button")) == levels.shape[0] * levels.shape[1]
    page.tab.click(".pictures button[aria-label='Layer 1, head 3']")
    tokens = outputs["tokens"][0][: outputs["token_count"][0]]
    assert page.texts(".side.left button") == page.texts(".side.right button") == tokens
    assert "It does not explain the answer" in page.tab.text_content("#panel")
    for side, row in (("left", levels[0, 2, 2]), ("right", levels[0, 2, :, 2])):
        page.tab.hover(f".side.{side} button:nth-child(3)")
        best = np.sort(row)[::-1][:5] / 255
        assert page.texts(".pointed .number") == [percent(value) for value in best]
    # First text to second, without special tokens.
    page.tab.select_option("label:has-text('Show') select", "01")
    page.tab.check("input[type=checkbox]")
    cut = tokens.index("[SEP]")
    assert page.texts(".side.left button") == tokens[1:cut]
    assert page.texts(".side.right button") == tokens[cut + 1 : -1]


@pytest.mark.slow
def test_masking_a_token_shows_the_answers_to_its_ids_with_and_without_it(page, server):
    outputs, _ = attention(server, "pairs", PAIR)
    count = outputs["token_count"][0]
    ids, types = outputs["ids"][0][:count], outputs["types"][0][:count]
    masked = [*ids[:2], kinds.VOCABULARY.index("[MASK]"), *ids[3:]]
    inputs = {"input_word_ids": [ids, masked], "input_mask": [[1] * count] * 2, "input_type_ids": [types] * 2}
    answer = predict(server, "pairs", "tokens", **inputs)
    page.open("pairs")
    page.ask(**PAIR)
    page.show("heads")
    page.tab.click(".side.left button:nth-child(3)")
    page.tab.click(".pointed > button")
    page.tab.wait_for_selector(".changes")
    rows = sorted(zip(answer["labels"][0], *answer["probabilities"], strict=True), key=lambda row: -row[1])
    assert page.texts(".changes tr:not(:first-child)") == [f"{name}{percent(a)}{percent(b)}" for name, a, b in rows]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["similar", "tags", "questions", "choices", "masks", "RoBERTa-masks", "mmBERT_tags"])
def test_every_task_with_attention_shows_what_masking_changes(page, model):
    page.open(model)
    page.ask(**CASES[model])
    page.show("heads")
    page.tab.click(".side.left button:not(.special)")
    page.tab.click(".pointed > button")
    page.tab.wait_for_selector(".heads [aria-live] h3")
    assert page.texts(".changes tr") or "No answer changes" in page.tab.text_content(".heads")


@pytest.mark.slow
@pytest.mark.parametrize("model", MASKS)
def test_a_filling_is_taken_by_a_click(page, model):
    mask = MASKS[model]
    page.open(model)
    assert page.tab.text_content("#about") == f"Filling in {mask}" and mask in page.tab.text_content("#examples")
    page.ask(text=f"the {mask} good {mask}")
    token = page.texts("#answer .bars:last-child .name")[0]
    page.tab.click("#answer .bars:last-child button")
    page.answer()
    joined = token[1:] if token.startswith("-") else f" {token}"
    assert page.tab.input_value("#field-text-0") == f"the {mask} good{joined}"
    token = page.texts("#answer .name")[0]
    page.tab.click("#answer .bars button")
    assert mask not in page.tab.input_value("#field-text-0")


@pytest.mark.slow
def test_tokens_are_shown_with_ids_and_character_offsets(page, server):
    text = "🦄 오늘 the good"
    page.open("tags")
    page.ask(text=text)
    page.show("tokens")
    page.tab.click("#panel summary")
    rows = page.tab.eval_on_selector_all(
        "#panel tbody tr", "all => all.map(row => [...row.children].map(one => one.textContent))"
    )
    ids = [kinds.VOCABULARY.index(piece.replace("-", "##")) for _, piece, *_ in rows]
    assert [int(row[2]) for row in rows] == ids
    for _, piece, _, kind, offsets, covered in rows:
        assert kind == "0"
        if offsets:
            start, end = map(int, offsets.split("–"))
            assert text[start:end] == covered and (piece == "[UNK]" or covered == piece.removeprefix("-"))
    assert "the model reads [UNK]: 🦄" in page.tab.text_content("#panel")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["RoBERTa-masks", "XLM-R-masks"])
def test_tokens_of_every_kind_are_readable_and_joined_to_words(page, model):
    page.open(model)
    page.ask(text="The committee, however, saved 파일을  저장합니다 <mask>.")
    page.show("tokens")
    words = page.tab.eval_on_selector_all(
        ".pieces .word",
        "all => all.map(word => [...word.querySelectorAll('.piece > span')].map(one => one.textContent))",
    )
    # A space that is a token is shown, and so are the bytes of a part of a character.
    words = [word[word[0] == "␣" :] for word in words]
    assert any(len(word) > 1 for word in words) and all(piece[0] == "-" for word in words for piece in word[1:])
    joined = ["".join([word[0].lstrip("-"), *(piece[1:] for piece in word[1:])]) for word in words]
    joined = [
        re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), one.encode()).decode() for one in joined
    ]
    expected = ["The", "committee", ",", "however", ",", "saved", "파일을", "저장합니다", "<mask>", "."]
    assert joined == ["<s>", *expected, "</s>"]
    panel = page.tab.text_content("#panel")
    assert "10 words and punctuation marks are" in panel and "with <s> and </s>." in panel
    assert "Read in another form" not in panel
    for tab in ("heads", "layers"):
        page.show(tab)
        assert "Hide <s> and </s>" in page.tab.text_content("#panel")


@pytest.mark.slow
def test_segments_of_models_without_types_are_told_apart(page):
    page.open("byte_questions")
    page.ask(question="the good", context="committee")
    page.show("heads")
    page.tab.select_option("label:has-text('Show') select", "01")
    page.tab.check("input[type=checkbox]")
    for side, text in (("left", "thegood"), ("right", "committee")):
        assert "".join(one.removeprefix("-") for one in page.texts(f".side.{side} button")) == text


@pytest.mark.slow
def test_a_model_without_attention_says_how_to_export_it(page):
    page.open("plain")
    page.ask()
    page.tab.click("#tab-heads")
    assert "python -m bert_tf.export --attention" in page.tab.text_content("#panel")


@pytest.mark.slow
def test_a_saved_model_without_card_is_asked_in_json(page):
    page.open("half")
    body = json.loads(page.tab.input_value("textarea"))
    assert body == {"signature_name": "serving_default", "inputs": {"x": [0]}}
    body["inputs"]["x"] = [1, 5]
    page.tab.fill("textarea", json.dumps(body))
    assert json.loads(page.ask()) == [2.5, 4.5]
    page.tab.fill("textarea", "{")
    page.tab.click("#question .primary")
    assert page.tab.text_content("#error").startswith("This is not JSON: ")


@pytest.mark.slow
def test_a_task_that_the_page_does_not_know_gets_its_fields_and_its_outputs(page):
    page.open("plain")
    found = page.tab.evaluate("""async () => {
        const { answerOf, bodyOf, inputsOf, isList, kindOf } = await import("/page/tasks.js");
        const { examplesOf } = await import("/page/examples.js");
        const text = (rank) => ({ dtype: "string", shape: Array(rank).fill(-1) });
        const signature = { inputs: { query: text(1), texts: text(2) }, outputs: { scores: {} } };
        const model = { card: { signatures: { serving_default: signature }, task: { name: "search_results" } } };
        const values = { query: "a", texts: ["b", "c"] };
        const [node] = answerOf(model, { scores: [[0.5, 0.25]] }, values, () => {});
        const lists = inputsOf(model).map((name) => [name, isList(model, name)]);
        const example = Object.values(examplesOf(model)[0]).map((value) => Array.isArray(value));
        return [lists, kindOf(model), bodyOf(model, values), node.textContent, example];
    }""")
    assert found[:2] == [[["query", False], ["texts", True]], "search results"]
    assert found[2] == {"inputs": {"query": ["a"], "texts": [["b", "c"]]}}
    assert json.loads(found[3]) == {"scores": [[0.5, 0.25]]} and found[4] == [False, True]


@pytest.mark.slow
def test_the_copied_commands_give_the_answer(page, server):
    text = """It's "good"\\ $HOME `date` \n오늘 🦄 <true> false"""
    page.open("plain")
    page.ask(text=text)
    page.show("request")
    curl, python = page.texts("#panel pre")
    run = {"stdout": subprocess.PIPE, "check": True, "timeout": 60}
    outputs = predict(server, "plain", text=[text])
    printed = subprocess.run([sys.executable, "-c", python], **run).stdout
    assert eval(printed)["outputs"] == outputs
    if shutil.which("curl"):
        assert json.loads(subprocess.run(["bash", "-c", curl], **run).stdout)["outputs"] == outputs


@pytest.mark.slow
def test_the_keyboard_is_enough(page):
    page.open("pairs")
    page.tab.focus("#field-text-0")
    page.tab.keyboard.press("Control+Enter")
    page.answer()
    page.tab.focus("#tab-tokens")
    page.tab.keyboard.press("ArrowRight")
    page.tab.wait_for_selector(".drawing path[d*=M]")
    page.tab.focus(".side.left button")
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("ArrowRight")
    assert page.texts(".chip[aria-pressed=true]")[-1] == "2"
    page.tab.keyboard.press("Enter")
    assert page.tab.query_selector(".side.left button.this")
    page.tab.focus("#tab-heads")
    page.tab.keyboard.press("ArrowRight")
    page.tab.wait_for_selector(".pictures canvas")
    page.tab.focus(".pictures button[tabindex='0']")
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector(".drawing path[d*=M]")
    assert page.texts(".chip[aria-pressed=true]")[-1] == "3"
    unnamed = page.tab.eval_on_selector_all(
        "select, input, textarea, button",
        "all => all.filter(one => !(one.labels?.length || one.ariaLabel || one.textContent.trim())).length",
    )
    assert unnamed == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["pairs", "tags", "questions", "words"])
def test_a_narrow_dark_korean_page_needs_no_scrolling_to_the_side(browser, server, model):
    context = browser.new_context(
        locale="ko-KR", color_scheme="dark", viewport={"width": 390, "height": 800}, has_touch=True
    )
    with contextlib.closing(context):
        page = Page(context, server)
        page.open(model)
        page.ask()
        assert page.tab.text_content("#question .primary") == "물어보기"
        assert page.tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(15, 18, 22)"
        for name in page.tabs():
            page.show(name)
            assert page.tab.evaluate("document.documentElement.scrollWidth") == 390
        page.tab.click("#language")
        assert page.tab.text_content("#question .primary") == "Ask"
        assert page.errors == []


# Text nodes of numbers that are on several lines.
BROKEN = r"""() => {
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    const broken = [];
    while (walker.nextNode()) {
        const node = walker.currentNode, range = document.createRange();
        range.selectNodeContents(node);
        const lines = new Set([...range.getClientRects()].map(({ top }) => Math.round(top)));
        if (/^\s*[-\d.–]+( %)?\s*$/.test(node.data) && lines.size > 1) broken.push(node.data);
    }
    return broken;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["en-US", "ko-KR"])
@pytest.mark.parametrize("model", ["sentences", "words", "pairs", "tags"])
def test_a_phone_shows_numbers_in_one_line_all_tabs_and_no_keys(browser, server, model, locale):
    context = browser.new_context(locale=locale, viewport={"width": 360, "height": 780}, has_touch=True)
    with contextlib.closing(context):
        page = Page(context, server)
        page.open(model)
        is_korean = re.search("[가-힣]", page.tab.input_value("#field-text-0")) is not None
        assert is_korean == (locale == "ko-KR")  # the first example is in the reader's language
        page.ask()
        for name in page.tabs():
            page.show(name)
            if name == "tokens":
                page.tab.click("#panel summary")
            assert page.tab.evaluate(BROKEN) == []
            words = page.tab.inner_text("body")
            assert not re.search(r"Ctrl|Enter|Tab\b|arrow|화살표", words)
            boxes = [one.bounding_box() for one in page.tab.query_selector_all("[role=tab]")]
            assert all(box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)
        assert page.tab.evaluate("document.documentElement.scrollWidth") == 360 and page.errors == []


# Labels as the page shows them: each element's text, and the number of lines of each of its text nodes.
LABELS = """async (names) => {
    const { bars, breakable, element, table } = await import("/page/dom.js");
    const strong = (name) => element("strong", {}, breakable(name));
    const verdict = names.map((name) => element("p", { className: "verdict" }, strong(name)));
    const rows = names.map((name) => ["a word", name, "98.2 %", "0–12"]);
    const listed = table(["text", "label", "probability", "characters"], rows);
    const answer = element("div", {}, verdict, bars(names.map((name) => [name, 0.5])), listed);
    document.querySelector("#answer").replaceChildren(answer);
    document.querySelector("#workspace").hidden = false;
    const lines = (part) => {
        const range = document.createRange();
        range.selectNodeContents(part);
        return new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size;
    };
    const all = [...document.querySelectorAll("#answer strong, #answer .name, #answer td")];
    return all.map((one) => [one.textContent, [...one.childNodes].filter((part) => part.data).map(lines)]);
}"""


def test_a_phone_breaks_names_between_their_parts(browser):
    names = ["SearchCreativeWork", "object_location_type", "atis_flight#atis_airfare", "RateHTMLPages", "two words"]
    context = browser.new_context(viewport={"width": 360, "height": 780})

    with contextlib.closing(context):
        context.route("**/*", files_answer)
        tab = context.new_page()
        tab.goto("http://127.0.0.1/")
        shown = tab.evaluate(LABELS, names)
        assert tab.evaluate("document.documentElement.scrollWidth") == 360
    cells = [cell for name in names for cell in ("a word", name, "98.2 %", "0–12")]
    assert [text for text, _ in shown] == [*names, *names, *cells]
    assert all(lines == 1 for text, parts in shown if " " not in text for lines in parts), shown
    assert [len(parts) for _, parts in shown[: len(names)]] == [3, 3, 4, 3, 1]


@pytest.mark.slow
def test_a_model_that_is_still_loading_is_waited_for_and_others_can_be_chosen(browser, tmp_path):
    half_plus_two(tmp_path / "half")
    half_plus_two(tmp_path / "late")
    (tmp_path / "late" / "1").rename(tmp_path / "1")
    file = tmp_path / "models.config"
    models = " ".join(
        f'config {{ name: "{name}" base_path: "{tmp_path / name}" model_platform: "tensorflow" }}'
        for name in ("half", "late")
    )
    file.write_text(f"model_config_list {{ {models} }}")
    server = Program(f"--model_config_file={file}", "--file_system_poll_wait_seconds=0.1", "--noaccess_log")
    context = browser.new_context(locale="en-US")
    with contextlib.closing(context):
        try:
            tabs = [Page(context, server).tab for _ in range(3)]
            for tab, name in zip(tabs, ("late", "late", "none"), strict=True):
                tab.goto(f"http://127.0.0.1:{server.rest}/#{name}")
                tab.wait_for_selector("#error:not([hidden])")
            waiting, impatient, wrong = tabs
            assert waiting.text_content("#error").startswith("late is still loading.")
            assert not waiting.is_visible("#workspace")
            impatient.select_option("#model", "half")
            impatient.wait_for_selector("#workspace:not([hidden])")
            assert impatient.text_content("#name") == "half" and not impatient.is_visible("#error")
            assert wrong.text_content("#error").startswith("The server no longer has this model or version: none.")
            (tmp_path / "1").rename(tmp_path / "late" / "1")
            waiting.wait_for_selector("#workspace:not([hidden])")
            assert waiting.text_content("#name") == "late" and not waiting.is_visible("#error")
        finally:
            server.end()


@pytest.mark.slow
def test_the_page_asks_for_a_token_and_says_when_the_server_is_gone(browser, tmp_path):
    half_plus_two(tmp_path / "models/half")
    (tmp_path / "token").write_text("one-secret-token")
    server = Program(f"--export_dir={tmp_path / 'models'}", f"--token_file={tmp_path / 'token'}", "--noaccess_log")
    context = browser.new_context(locale="en-US")
    with contextlib.closing(context):
        try:
            tab = Page(context, server).tab
            tab.goto(f"http://127.0.0.1:{server.rest}/")
            for token, visible in (("another-token", True), ("one-secret-token", False)):
                tab.wait_for_selector("#token:visible")
                assert "access token" in tab.text_content("#error")
                tab.fill("#token", token)
                with tab.expect_response("**/models.json"):
                    tab.keyboard.press("Enter")
                tab.wait_for_selector("#workspace", state="hidden" if visible else "visible")
            tab.click("#question .primary")
            tab.wait_for_selector("#answer pre")
            tab.click("#tab-request")
            assert "$TOKEN" in tab.text_content("#panel") and "secret" not in tab.text_content("#panel")
        finally:
            server.end()
        tab.click("#question .primary")
        tab.wait_for_selector("#error:not([hidden])")
        assert tab.text_content("#error").startswith("The server does not answer.")
        assert not tab.is_visible("#answer pre")
