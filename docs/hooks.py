"""What `make docs` adds to the pages in docs/: the notebooks, and a link to the repository.

See "Hooks" in MkDocs' documentation.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_EXAMPLES = Path(__file__).parents[1] / "examples"


def on_config(config: MkDocsConfig) -> None:
    """Links the repository that this checkout was cloned from, if it is one on the web.

    A link in the navigation, because Material's `repo_url` makes browsers load figures from the repository's host.
    """
    origin = subprocess.run(["git", "remote", "get-url", "origin"], capture_output=True, text=True).stdout.strip()
    if found := re.fullmatch(r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", origin):
        config.nav = [*config.nav, {"Repository": f"https://{found[1]}/{found[2]}"}]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds each notebook, as a page and to be downloaded."""
    for path in sorted(_EXAMPLES.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = "\n\n".join(map(_markdown, notebook["cells"]))
        page = re.sub("\n", f"\n\n[Download this notebook]({path.name})\n", cells, count=1)  # below its title
        files.append(File.generated(config, f"examples/{path.stem}.md", content=page))
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> None:
    """Leaves the decisions, which are for developers, out of the search."""
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"exclude": True}


def _markdown(cell: dict[str, Any]) -> str:
    """A cell of a notebook, with its outputs."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_output, cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:  # a table of pandas
        return re.sub(r'<style.*?</style>| (?:border|class|style)="[^"]*"', "", "".join(data["text/html"]), flags=re.S)
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.rstrip()}\n```"
