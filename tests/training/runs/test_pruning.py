"""Pruning: importance against finite differences, and the choice of parts against the losses of all choices."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

from bert_tf import BertEncoder
from bert_tf.checkpoints import directory
from bert_tf.config import ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.model.encoder import encoder_of
from bert_tf.model.pruning import all_parts, layer_weights
from bert_tf.report.terminal import pruning_text
from bert_tf.tasks.classification import Classification, ClassificationConfig
from bert_tf.text import Tokenizer
from bert_tf.training.runs.pruning import importances, prune
from tests.errors import raises
from tests.model.small import PIECES, PRUNED, randomize, small_config
from tests.tasks.harness import ROWS, examples_of, fitted
from tests.training.small import eagerly

LABELS = ("no", "ja", "vielleicht")
STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")


def made(scale=0.3, **config):
    """A task, its model and the columns of examples."""
    task = Classification(Tokenizer(PIECES), ClassificationConfig(max_length=24), ExampleData(), labels=LABELS)
    model = randomize(task.build(BertEncoder(small_config(**config))), scale=scale)
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(PIECES[5:], size)) for size in rng.integers(1, 20, 21)]
    examples = [TextExample(str(row), (text,), LABELS[row % 3], f"row {row}") for row, text in enumerate(texts)]
    return task, model, task.codec.to_tensors(examples, labelled=True)


def losses(task, model, columns):
    """Cross-entropy of each example in float64, from the logits."""
    (features,) = task.codec.rows.batches(columns, 32)
    return losses_of(model, features)


def losses_of(model, features):
    logits = model({name: features[name] for name in model.input}, training=False)["logits"].numpy()
    return -log_softmax(logits.astype("float64"), -1)[np.arange(len(logits)), features["labels"].numpy()]


@pytest.mark.parametrize("config", [pytest.param({}, marks=pytest.mark.slow), {"norm": "pre", **PRUNED}])
def test_importance_is_the_mean_size_of_the_derivative_by_a_mask(config):
    task, model, columns = made(**config)
    found = importances(task.objective, model, task.codec.rows.batches(columns, 8))
    (features,) = task.codec.rows.batches(columns, 32)
    step = 0.02
    for block, (heads, inner) in zip(encoder_of(model).blocks(), found, strict=True):
        assert (len(heads), len(inner)) == (block.attention.output_projection.kernel.shape[0] // 8,
                                            block.output_projection.kernel.shape[0])  # fmt: skip
        for layer, size, values in ((block.attention.output_projection, 8, heads), (block.output_projection, 1, inner)):
            kernel = layer.kernel.numpy()
            for part in range(0, len(values), 1 if size == 8 else 7):
                # A mask of the inputs is a factor of the rows of the kernel.
                factors = np.zeros([len(kernel), 1])
                factors[part * size : (part + 1) * size] = step
                layer.kernel.assign(kernel * (1 + factors))
                more = losses_of(model, features)
                layer.kernel.assign(kernel * (1 - factors))
                less = losses_of(model, features)
                layer.kernel.assign(kernel)
                assert values[part] == pytest.approx(np.abs(more - less).mean() / (2 * step), rel=0.02, abs=1e-4)


@pytest.fixture(scope="module")
def three_layers():
    """What `made` returns, and the same without 0.4 of the weights."""
    task, model, columns = made(num_layers=3)
    with eagerly():
        return task, model, columns, prune(task, model, columns, 0.4, STRATEGY)


@pytest.mark.parametrize("share", [0.4, pytest.param(0.9, marks=pytest.mark.slow)])
def test_the_share_is_reached_with_little_more(share, three_layers, eager):
    task, model, columns, pruned = three_layers
    if share != 0.4:
        pruned = prune(task, model, columns, share, STRATEGY)
    config = encoder_of(pruned.model).config
    before, after = layer_weights(encoder_of(model).config), layer_weights(config)
    part = 8 * (4 * 32 + 3) + 16 * (2 * 32 + 1)  # a head and a group of columns
    assert share <= pruned.report["removed"] == 1 - after / before
    assert after + part >= (1 - share) * before or pruned.report["removed"] == pytest.approx(1 - len(pruned.kept) / 3)
    loss = losses(task, pruned.model, columns).mean()
    assert pruned.report["metrics"][1]["loss"] == pytest.approx(loss, rel=1e-5)
    assert loss == pytest.approx(min(row["loss"] for row in pruned.report["tried"]), rel=1e-5)
    assert pruned.report["metrics"][0]["loss"] == pytest.approx(losses(task, model, columns).mean(), rel=1e-5)
    assert all(one.heads and one.columns for one in pruned.kept)
    assert f"{after:,}" in pruning_text(pruned.report)


def test_the_first_layer_to_go_is_the_one_without_which_the_loss_is_lowest(three_layers):
    task, model, columns, pruned = three_layers
    (kept,) = {tuple(row["layers"]) for row in pruned.report["tried"] if len(row["layers"]) == 2}
    without = {}
    for pair in itertools.combinations(range(3), 2):
        smaller = task.build(BertEncoder(small_config(num_layers=2)))
        for variable in smaller.weights:
            path = variable.path
            if path.startswith("layer_"):
                path = f"layer_{pair[int(path[6])]}{path[7:]}"
            variable.assign(next(one for one in model.weights if one.path == path))
        without[tuple(layer + 1 for layer in pair)] = losses(task, smaller, columns).mean()
    assert kept == min(without, key=without.get)


def test_what_the_output_ignores_goes_first(eager):
    task, model, columns = made(num_layers=1)
    (block,) = encoder_of(model).blocks()
    for layer, ignored in ((block.attention.output_projection, slice(8, 16)), (block.output_projection, slice(16, 48))):
        kernel = layer.kernel.numpy()
        kernel[ignored] = 0
        layer.kernel.assign(kernel)
    pruned = prune(task, model, columns, 0.3, STRATEGY)
    # The ignored head and columns are more than this share, so the loss need not rise.
    before, after = (metrics["loss"] for metrics in pruned.report["metrics"])
    assert after <= before + 1e-6
    only_ignored = (0, 2, 3), (*range(16), *range(48, 64))
    assert after < before - 1e-6 or [one[1:] for one in pruned.kept] == [only_ignored]


def test_a_pruned_model_is_saved_loaded_and_pruned_again(tmp_path, eager):
    task, model, columns = made(num_layers=1)
    first = prune(task, model, columns, 0.3, STRATEGY)
    directory.save(str(tmp_path), first.model, encoder_of(first.model), task)
    again_task, again = directory.load_fine_tuned(str(tmp_path))
    np.testing.assert_allclose(losses(again_task, again, columns), losses(task, first.model, columns), rtol=1e-6)
    second = prune(task, again, columns, 0.3, STRATEGY)
    assert layer_weights(encoder_of(second.model).config) <= 0.7 * layer_weights(encoder_of(again).config)
    first.model.save(tmp_path / "model.keras")


def test_a_share_that_cannot_be_reached_is_refused_with_the_largest_one(eager):
    task, model, columns = made()
    for share in (0, 1, -0.5, 1.5, math.nan):
        with raises(ConfigError, f"share is {share}"):
            prune(task, model, columns, share, STRATEGY)
    config = encoder_of(model).config
    smallest = dataclasses.replace(config, num_layers=1, heads_per_layer=(1,), intermediate_size=16)
    largest = math.floor(1000 * (1 - layer_weights(smallest) / layer_weights(config))) / 1000
    with raises(ConfigError, "share is 0.99", largest):
        prune(task, model, columns, 0.99, STRATEGY)
    pruned = prune(task, model, columns, largest, STRATEGY)
    assert layer_weights(encoder_of(pruned.model).config) == layer_weights(smallest)
    assert len(all_parts(encoder_of(pruned.model).config)) == 1


def test_layers_that_share_weights_and_a_model_that_has_diverged_are_refused(eager):
    task, model, columns = made(shared_layers=True)
    with raises(ConfigError, "shared_layers"):
        prune(task, model, columns, 0.5, STRATEGY)
    task, model, columns = made()
    model.weights[-1].assign([math.nan] * 3)
    with raises(DataError, "nan"):
        prune(task, model, columns, 0.5, STRATEGY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_model_of_any_task_is_pruned_saved_and_predicts(tmp_path, name):
    row, found = ROWS[name], fitted(name)
    task, model = directory.load_fine_tuned(str(found.folder))
    columns = task.codec.to_tensors(examples_of(found.model, row.x, row.y), labelled=True)
    if encoder_of(model).config.shared_layers:
        with raises(ConfigError, "shared_layers"):
            prune(task, model, columns, 0.4, STRATEGY)
        return
    pruned = prune(task, model, columns, 0.4, STRATEGY)
    assert pruned.report["removed"] >= 0.4 and math.isfinite(pruned.report["metrics"][1]["loss"])
    directory.save(str(tmp_path / "small"), pruned.model, encoder_of(pruned.model), task)
    again = row.api.from_pretrained(tmp_path / "small")
    assert len(again.predict(row.x)) == len(row.x)
    again.export(tmp_path / "export")  # compared with the model in a session
