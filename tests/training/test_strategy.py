"""Which process of a cluster writes."""

from types import SimpleNamespace

import pytest

from bert_tf.training.strategy import is_chief


@pytest.mark.parametrize(
    "kind, number, jobs, expected",
    [
        ("chief", 0, ("chief", "worker"), True),
        ("worker", 0, ("chief", "worker"), False),
        ("worker", 0, ("worker",), True),
        ("worker", 1, ("worker",), False),
        ("evaluator", 0, ("worker",), False),
        (None, 0, (), True),
        ("", 0, (), True),
    ],
)
def test_one_process_is_the_chief(kind, number, jobs, expected):
    cluster = SimpleNamespace(task_type=kind, task_id=number, cluster_spec=lambda: SimpleNamespace(jobs=jobs))
    assert is_chief(SimpleNamespace(cluster_resolver=cluster)) is expected


def test_a_process_alone_is_the_chief():
    assert is_chief(SimpleNamespace(cluster_resolver=None))
