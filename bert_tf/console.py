"""The console commands: bert-tf-NAME runs the program bert_tf.NAME, like `python -m`."""

import functools
import runpy
from collections.abc import Callable


def __getattr__(name: str) -> Callable[[], object]:
    if name.startswith("_"):
        raise AttributeError(name)
    # As the main module: --help lists the flags of that one, and prints its docstring.
    return functools.partial(runpy.run_module, f"bert_tf.{name}", run_name="__main__", alter_sys=True)
