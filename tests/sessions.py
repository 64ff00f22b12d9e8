"""Checks of exports without a start of TensorFlow for each."""

import json
from collections.abc import Iterable

from bert_tf.inference.session import NotServable, Session
from bert_tf.types import Json
from tests.programs import running


class ForkedSession(Session):
    """A session in a new process like its base class, forked from one that has loaded TensorFlow."""

    def __init__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, path: str, requests: Iterable[Json]) -> list[Json]:
        done = running()("inference.ask", path, stdin="".join(json.dumps(request) + "\n" for request in requests))
        if done.status:
            last = (done.errors.strip().splitlines() or ["no output"])[-1]
            raise NotServable(f"a TensorFlow session could not load the export (exit status {done.status}): {last}")
        return [json.loads(line) for line in done.output.splitlines()]
