"""The notebooks in examples/ run as they stand."""

import json
import re
from pathlib import Path

import pytest

from tests.packages import minilm

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
FAILURE = re.compile(r"Traceback|error:|ask\.py: ")  # a failed `!command` does not fail its cell


def _outputs(cell):
    """The text of the outputs of a code cell."""
    for output in cell["outputs"]:
        texts = [output["text"]] if "text" in output else output.get("data", {}).values()
        yield from ("".join(text) for text in texts)


def _shown(notebook):
    """The text of all outputs of a notebook."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return "\n".join(text for cell in cells for text in _outputs(cell))


def _accuracies(notebook):
    """All accuracies and recalls of evaluations that a notebook shows, in their order."""
    return [float(found) for found in re.findall(r"(?<!_)(?:accuracy|recall@10)'?:? ([01]\.\d+)", _shown(notebook))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_one_complete_run(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    text = "\n".join(text for cell in cells for text in _outputs(cell))
    assert not FAILURE.search(text)
    assert not re.search(r"(?<![\w.:/<*])/\w[\w.-]*/\w", text)  # an absolute path


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom_and_its_model_is_as_good_as_stored(path, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    if path.stem == "search":
        pytest.importorskip("usearch", reason="needs pip install usearch")
    minilm()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not FAILURE.search("\n".join(_outputs(cell))), cell.source
    stored_notebook = json.loads(path.read_text(encoding="utf-8"))
    stored = _accuracies(stored_notebook)
    # 100 to 1,000 sentences are evaluated.
    assert _accuracies(notebook)[-1] == pytest.approx(stored[-1], abs=0.05) and stored[-1] > 0.7
    if path.stem == "search":
        # The served vectors are the encoder's, and find what they have found.
        (difference,) = re.findall(r"largest difference (\S+)", _shown(notebook))
        assert float(difference) < 1e-5
        found, before = (re.findall(r"^  (\d{4}) .{7}(.+)$", _shown(one), re.M) for one in (notebook, stored_notebook))
        assert len(before) == 10 and len(set(found) & set(before)) >= 8
