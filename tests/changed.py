"""Which tests can see what has changed: those that import a changed module, at any distance.

    python -m tests.changed [--since=COMMIT] [PYTEST ARGUMENTS ...]

runs them; by default, COMMIT is where the branch left its upstream, or HEAD without one. An import inside of a
function counts, and so does a name in quotes that is a program's (`programs("finetune")`) or a module's.
"""

import argparse
import ast
import functools
import itertools
import pathlib
import re
import subprocess
import sys

import grimp
import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("bert_tf", "tests")
ALL = ("conftest.py", "pyproject.toml", "setup.py")  # every test depends on them


def changed_files(since: str) -> list[str]:
    """Paths, relative to the checkout, of what differs from a commit, with files that git does not know yet."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}; --since takes a commit of this checkout")
        return done.stdout.splitlines()

    here = git("rev-parse", "--symbolic-full-name", "HEAD")[0]
    upstream = next(filter(None, git("for-each-ref", "--format=%(upstream:short)", here)), "HEAD")
    base = git("merge-base", since or upstream, "HEAD")[0]
    return sorted({*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")})


@functools.cache
def _graph() -> tuple[grimp.ImportGraph, dict[str, str]]:
    """All modules, with imports and names in quotes as edges, and the sources of those of the tests."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    texts = {name: _path(name).read_text(encoding="utf-8") for name in graph.modules if name.startswith("tests")}
    for name, text in texts.items():
        for target in _named_modules(text) & graph.modules - {name}:
            graph.add_import(importer=name, imported=target)
    return graph, texts


def test_files(changed: list[str]) -> list[str]:
    """The test files that can see changed files, relative to the checkout."""
    graph, texts = _graph()
    tests = {name for name in texts if name.rpartition(".")[2].startswith("test_")}
    if any(path.endswith(ALL) for path in changed):
        return sorted(map(_relative, tests))
    found: set[str] = set()
    for path in changed:
        if module := _module(path, graph.modules):
            found |= {module, *graph.find_downstream_modules(module)}
        else:  # a page, a config, data: the modules that name it, or a folder that it is in
            parents = [str(parent) for parent in pathlib.PurePath(path).parents][:-1]
            as_path = itertools.chain.from_iterable((f"{parent}/", f'/ "{parent}"') for parent in parents)
            words = "|".join(map(re.escape, (pathlib.PurePath(path).name, *as_path)))
            named = re.compile(rf"(?<![\w-])(?:{words})")  # not the end of another name: "t/" in "document/"
            for name in (name for name, text in texts.items() if named.search(text)):
                found |= {name, *graph.find_downstream_modules(name)}
    return sorted(map(_relative, found & tests))


def _named_modules(text: str) -> set[str]:
    """Modules that a source names in quotes: a program by its name, others by their whole one."""
    constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    words = {value for value in constants if isinstance(value, str)}
    return words | {f"bert_tf.{word}" for word in words}


def _module(path: str, modules: set[str]) -> str | None:
    """The module of a file of the packages, or the package that a file which is no module lies in."""
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    while name not in modules and "." in name and not path.endswith(".py"):
        name = name.rpartition(".")[0]
    return name if name in modules else None


def _path(module: str) -> pathlib.Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _relative(module: str) -> str:
    return str(_path(module).relative_to(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--since", default="")
    parser.add_argument("--list", action="store_true", help="print the files instead of running them")
    options, others = parser.parse_known_args()
    files = test_files(changed_files(options.since))
    if options.list or not files:
        print("\n".join(files) or "no test can see what has changed")
        return 0
    print(f"{len(files)} test files can see what has changed", flush=True)
    return int(pytest.main([*others, *files]))


if __name__ == "__main__":
    sys.exit(main())
