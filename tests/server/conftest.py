"""Models and servers that several tests use."""

import contextlib
import shutil

import pytest
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.server.options import EndpointOptions
from tests.inference import kinds
from tests.inference.servers import Running
from tests.server.saved_models import half_plus_two


@pytest.fixture(scope="session")
def half_plus_config(tmp_path_factory):
    """A ModelServerConfig: a model `half` with the versions 123, which adds 3, and 1, which adds 2 and is `stable`."""
    folder = tmp_path_factory.mktemp("half")
    half_plus_two(folder, 1)
    half_plus_two(folder, 123, b=3.0)
    return f"""
        model_config_list {{ config {{
            name: "half" base_path: "{folder}" model_platform: "tensorflow" model_version_policy {{ all {{}} }}
            version_labels {{ key: "stable" value: 1 }}
        }} }}"""


@pytest.fixture(scope="session")
def case():
    """An export of a small BERT, with requests and the model's answers."""
    return kinds.case("classification")


@pytest.fixture(scope="module")
def start():
    """Starts servers, given a ModelServerConfig as text and fields of EndpointOptions."""
    with contextlib.ExitStack() as stack:

        def start(config, **endpoints):
            parsed = text_format.Parse(config, model_server_config_pb2.ModelServerConfig())
            running = Running(parsed, EndpointOptions(**endpoints))
            stack.callback(running.close)
            return running

        yield start


@pytest.fixture(scope="module")
def browser():
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not chromium:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
