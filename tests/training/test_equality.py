"""Complete runs on the bundled corpus, with split batches or different inputs: the same weights after 20 updates.

`python -m tests.training.equality FOLDER` prints the comparison of the first two tests, but with BERT's own epsilon.
"""

import os

import numpy as np
import pytest

from bert_tf.text import Tokenizer
from tests.inputs.corpus.test_service import service
from tests.training import equality

pytestmark = pytest.mark.slow

# Largest allowed difference of the runs of a case, relative to the largest value of a tensor: a number of float32's
# rounding errors of 6e-8 each, where sums are computed in another order.
BOUND, BOUNDS = 1e-5, {"bfloat16": 5e-2}
# Epsilon of Adam. Where a gradient is 0 except for rounding, with BERT's 1e-6 the first updates are full steps of any
# sign, and one such weight among 200,000 changes a small bias by 2e-5 or more: a bound would measure the processor.
# With this one, far above all rounding, most weights still move nearly as far, and differ by less than 1e-6.
EPSILON = 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All runs of the table."""
    folder = str(tmp_path_factory.mktemp("runs"))
    equality.learn(folder)
    equality.run(folder, list(dict.fromkeys([*equality.ROWS.values(), *equality.ROWS])), epsilon=EPSILON)
    return folder


def test_the_halves_of_a_batch_have_different_numbers_of_masks(folder):
    first, second = equality.masks(folder, 2).T
    assert np.mean(np.abs(first - second)) > 0.05 * np.mean(first)


@pytest.mark.parametrize("row", equality.ROWS, ids=lambda row: ", ".join(map(str, row)))
def test_a_run_is_the_same_on_any_number_of_devices(folder, row):
    differences = equality.compare(folder, row)
    bound = BOUNDS.get(row[0], BOUND)
    assert differences.pop("weights") < bound
    assert all(difference < max(bound / 2, 5e-6) for difference in differences.values()), differences


def assert_same_weights(ones, others):
    assert ones["weights"].keys() == others["weights"].keys()
    for name, value in ones["weights"].items():
        np.testing.assert_array_equal(value, others["weights"][name])
    np.testing.assert_array_equal(ones["loss"], others["loss"])


@pytest.fixture(scope="module")
def from_text(tmp_path_factory):
    """A folder with a vocabulary and the run `text` of 4 updates, and a function for another run with other inputs."""
    folder = str(tmp_path_factory.mktemp("fed"))
    equality.learn(folder)

    def train(name, **changes):
        equality.run(folder, [("modern", "1 replica", 1)], steps=4, **changes)
        path = equality.folder_of(folder, "modern", "1 replica", 1)
        os.rename(path, os.path.join(folder, name))
        return equality.outcome(os.path.join(folder, name))

    return folder, train, train("text")


def test_a_run_from_prepared_shards_equals_one_from_text_bit_for_bit(from_text):
    pytest.importorskip("apache_beam", reason="needs pip install 'bert_tf[beam]'")
    from bert_tf.inputs.corpus.preparation import plan, prepare

    folder, train, expected = from_text
    tokenizer = Tokenizer(os.path.join(folder, "vocab.txt"))
    prepare(plan([equality.CORPUS], "sentences", tokenizer), tokenizer, os.path.join(folder, "prepared"))
    assert_same_weights(expected, train("shards", corpus=os.path.join(folder, "prepared")))


def test_a_run_with_two_input_workers_equals_one_without_bit_for_bit(from_text):
    _, train, expected = from_text
    with service(workers=2, started=2) as (address, _, _):
        assert_same_weights(expected, train("service", service=address, service_workers=2))
