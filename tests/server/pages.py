"""The page in a browser."""

import json
import pathlib

import bert_tf.server

PAGE = pathlib.Path(bert_tf.server.__file__).parent / "page"


class Page:
    """A tab of the browser with the page of a server.

    Attributes:
        tab: Playwright's Page.
        errors: what went wrong in it.
    """

    def __init__(self, context, server):
        self.tab, self._server, self.errors = context.new_page(), server, []
        self.tab.set_default_timeout(60_000)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        hosts = f"http://127.0.0.1:{server.rest}/"
        self.tab.on("request", lambda request: request.url.startswith(hosts) or self.errors.append(request.url))

    def open(self, model, mode="compare"):
        """Opens the page with a model; one of vectors compares texts, or else searches."""
        self.tab.goto("about:blank")
        self.tab.goto(f"http://127.0.0.1:{self._server.rest}/#{model}")
        self.tab.wait_for_selector("#workspace:not([hidden])")
        if self.tab.is_visible(f"#mode-{mode}"):
            self.tab.click(f"#mode-{mode}")

    def ask(self, **fields):
        """Fills fields and asks; returns the text of the answer."""
        for name, values in fields.items():
            for number, value in enumerate([values] if isinstance(values, str) else values):
                self.tab.fill(f"#field-{name}-{number}", value)
        self.tab.click("#question .primary")
        return self.answer()

    def answer(self):
        self.tab.wait_for_selector("#answer[aria-busy=false] > div, #error:not([hidden])")
        assert not self.tab.is_visible("#error"), self.tab.text_content("#error")
        return self.tab.text_content("#answer")

    def tabs(self):
        """Names of the tabs below the answer."""
        return self.tab.eval_on_selector_all("[role=tab]", "all => all.map(one => one.id.slice(4))")

    def show(self, name):
        self.tab.click(f"#tab-{name}")
        shown = {"tokens": ".pieces", "heads": ".drawing path[d*=M]", "layers": ".pictures canvas", "request": "pre"}
        self.tab.wait_for_selector(f"#panel {shown[name]}")

    def texts(self, selector):
        return self.tab.eval_on_selector_all(selector, "all => all.map(one => one.textContent)")


def files_answer(route):
    """Answers a request of the browser with a file of the page, without a server."""
    file = PAGE / (route.request.url.split("/", 3)[3].removeprefix("page/") or "index.html")
    route.fulfill(path=file) if file.is_file() else route.abort()


def predict(server, model, signature="serving_default", **inputs):
    """The outputs of the REST API."""
    status, text = server.get(f"/v1/models/{model}:predict", {"signature_name": signature, "inputs": inputs})
    assert status == 200, text
    return json.loads(text)["outputs"]
