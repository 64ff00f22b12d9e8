"""Complete runs of ELECTRA and SpanBERT: what they report and save, how they resume, and what contradicts them."""

import dataclasses
import json
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import directory
from bert_tf.config import PretrainConfig, PretrainingData, TokenizerConfig
from bert_tf.errors import ConfigError
from bert_tf.report.terminal import languages_table
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.tasks.replaced_tokens import Electra, ReplacedTokenDetection
from bert_tf.tasks.span_boundary import SpanBoundary
from bert_tf.text import Tokenizer
from bert_tf.training.loop import Loop
from bert_tf.training.runs.pretraining import pretrain, pretraining_task
from tests.errors import raises
from tests.model.small import features
from tests.training.interrupted import stopped
from tests.training.test_pretraining_runs import STRATEGY, TRAIN, WORDS, model_config, sentences

PACKED = "electra, packed, masked on the device"
CASES = {
    "electra": {"objective": "electra", "mask_on": "device"},
    PACKED: {"objective": "electra", "pack": True, "mask_on": "device"},
    "span_boundary": {"objective": "span_boundary", "masking": "span"},
}
QUICK = "electra"
STEPS, EXPONENT = 6, 0.5


@pytest.fixture(scope="module")
def corpora(tmp_path_factory, unsampled):
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    for name, documents in (("en", 60), ("ko", 30)):
        (folder / f"{name}.txt").write_text(sentences(len(name), documents))
    return folder


def run(corpora, model_dir, strategy=STRATEGY, **data):
    """Trains on two languages, or packed rows of one; the results."""
    one, validation = f"{corpora}/en.txt", f"{corpora}/ko.txt"
    if not data.get("pack"):
        data |= {"languages": f"en:{one},ko:{validation}", "language_exponent": EXPONENT}
        one, validation = "/nowhere.txt", f"ko:{validation}"  # `input` is not read
    config = PretrainConfig(
        input=one,
        validation=validation,
        tokenizer=TokenizerConfig(vocab=str(corpora / "vocab.txt")),
        model=model_config(dropout=0.0, attention_dropout=0.0),
        data=PretrainingData(pairs="none", max_length=32, max_predictions=5, **data),
        train=dataclasses.replace(TRAIN, steps=STEPS, learning_rate=1e-2, save_every=STEPS // 2),
    )
    return pretrain(config, str(model_dir), strategy)


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name != QUICK)) for name in CASES]
)
def trained(request, corpora, tmp_path_factory):
    """The data settings of a run, its directory and its results."""
    model_dir = tmp_path_factory.mktemp("run") / "model"
    return CASES[request.param], model_dir, run(corpora, model_dir, **CASES[request.param])


@pytest.mark.parametrize(
    "fields, kind, saved",
    [
        ({}, Pretraining, {"": "pretraining"}),
        ({"pairs": "none"}, MaskedLM, {"": "masked_lm"}),
        (CASES["electra"] | {"pairs": "none"}, Electra, {"": "replaced_token_detection", "generator": "masked_lm"}),
        (CASES["span_boundary"] | {"pairs": "none"}, SpanBoundary, {"": "masked_lm"}),
    ],
)
def test_each_objective_has_its_task_and_saves_the_models_that_are_used(fields, kind, saved):
    task = pretraining_task(PretrainingData(**fields).check(), Tokenizer(WORDS), 32, 5, ("en", "ko"))
    assert type(task) is kind
    assert {folder: one.name for folder, (one, _) in task.saved(model_config()).items()} == saved


def tensors_of(model_dir):
    reader = tf.train.load_checkpoint(str(model_dir / "checkpoints"))
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith("/.ATTRIBUTES/VARIABLE_VALUE")]
    return {name: reader.get_tensor(name) for name in names if not name.startswith("save_counter")}


def test_curves_and_evaluations_have_both_losses_of_the_whole_and_of_each_language(trained):
    data, _, results = trained
    second = "rtd" if data["objective"] == "electra" else "sbo"
    factor = 50 if second == "rtd" else 1
    for point in [*results["history"], *results["evaluations"]]:
        assert point["loss"] == pytest.approx(point["mlm_loss"] + factor * point[f"{second}_loss"], rel=1e-5)
        assert 0 <= point[f"{second}_accuracy"] <= 1
    final = results["final"]
    if "languages" in results:  # validation text of Korean only
        assert final[f"ko/{second}_loss"] == pytest.approx(final[f"{second}_loss"], rel=1e-5)
    # Untrained, a detector is undecided and a predictor guesses one of 45 words; then the loss falls.
    first, last = (evaluation[f"{second}_loss"] for evaluation in results["evaluations"])
    assert last < first == pytest.approx(np.log(2 if second == "rtd" else len(WORDS)), abs=0.1)
    if second == "rtd":
        # 15% are masked; of 40 words, the generator hits few.
        assert all(0.1 < point["replaced_share"] < 0.17 for point in results["history"])


@pytest.mark.parametrize("trained", [QUICK], indirect=True)
def test_a_run_on_two_languages_reports_loss_accuracy_and_tokens_of_each(trained, corpora):
    results = trained[2]
    text, ko, history, final = results["languages"], "ko/mlm_loss", results["history"], results["final"]
    assert [row["language"] for row in text] == ["en", "ko"]
    sizes = [(corpora / f"{name}.txt").stat().st_size for name in ("en", "ko")]
    assert text[1]["text_share"] == pytest.approx(sizes[1] / sum(sizes))
    assert text[1]["share"] == pytest.approx(sizes[1] ** EXPONENT / sum(size**EXPONENT for size in sizes))
    read = sum((1 - point["padding_share"]) * 4 * 32 for point in history)
    assert text[0]["tokens"] + text[1]["tokens"] == pytest.approx(read)
    assert all(row["tokens"] == sum(point[f"{row['language']}/tokens"] for point in history) for row in text)
    # Validation text of Korean only: the whole is Korean, and the metrics of English are unknown.
    assert final["mlm_loss"] == pytest.approx(final[ko]) == text[1]["mlm_loss"] and "en/mlm_loss" not in final
    assert final["ko/mlm_accuracy"] == pytest.approx(final["mlm_accuracy"])
    table = languages_table(text)
    assert "mlm_accuracy" in table and f"{text[0]['tokens']:,}" in table
    assert results["inputs"]["input"].keys() == {"en", "ko"}


def test_the_models_are_saved_as_those_that_are_used(trained):
    data, model_dir, results = trained
    task, model = directory.load_task(str(model_dir))
    inputs = features((24, 7))
    weights = tensors_of(model_dir)
    saved = {variable.path: variable.numpy() for variable in model.weights}

    def in_checkpoint(path):
        return weights[f"weights/{path}".replace("/", "..") + "/.ATTRIBUTES/VARIABLE_VALUE"]

    for path, value in saved.items():
        np.testing.assert_array_equal(value, in_checkpoint(path))
    if data["objective"] == "span_boundary":
        assert type(task) is MaskedLM and results["task"] == "masked_lm"
        assert not any(path.startswith("span_boundary") for path in saved)
        return
    assert type(task) is ReplacedTokenDetection and results["task"] == "replaced_token_detection"
    assert model(inputs)["rtd_logits"].shape == (2, 24)
    task, generator = directory.load_task(str(model_dir / "generator"))
    assert type(task) is MaskedLM and generator.encoder.config.hidden_size == 8
    for variable in generator.weights:
        shared = variable.path.startswith("embeddings/") and "projection" not in variable.path
        path = variable.path if shared else f"generator/{variable.path}"
        np.testing.assert_array_equal(variable.numpy(), in_checkpoint(path))
    answer = task.signatures(generator)["serving_default"](tf.constant(["w1 [MASK] w3"]))
    assert answer["tokens"].shape == (1, 1, 5)


@pytest.mark.slow
def test_a_resumed_run_ends_bit_for_bit_as_without_interruption(trained, corpora, tmp_path):
    data, model_dir, results = trained
    again = stopped(model_dir, tmp_path / "again")
    resumed = run(corpora, again, **data)
    assert [row["step"] for row in map(json.loads, (again / "history.jsonl").open()) if row["kind"] == "resume"] == [
        STEPS // 2
    ]
    mine, theirs = tensors_of(again), tensors_of(model_dir)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name], value, err_msg=name)
    assert resumed["final"] == results["final"]
    for folder in (".", "generator") if data["objective"] == "electra" else (".",):
        files = [path / folder / "model.safetensors" for path in (again, model_dir)]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow  # tests/tasks/test_masking_on_device.py compares the batches
def test_a_run_masked_on_the_device_equals_one_masked_on_the_host(corpora, tmp_path):
    host, device = (run(corpora, tmp_path / where, objective="electra", mask_on=where) for where in ("host", "device"))
    assert host["final"].keys() == device["final"].keys()
    assert all(device["final"][name] == pytest.approx(host["final"][name], rel=1e-5) for name in ("loss", "rtd_loss"))
    assert [point["replaced_share"] for point in host["history"]] == [
        point["replaced_share"] for point in device["history"]
    ]


@pytest.mark.parametrize("trained", [QUICK], indirect=True)
def test_files_of_others_where_the_generator_will_be_are_refused_before_the_training(trained, corpora, tmp_path):
    data, model_dir, _ = trained
    shutil.copy(model_dir / "run.json", tmp_path)
    (tmp_path / "generator").mkdir()
    (tmp_path / "generator" / "notes.txt").touch()
    with mock.patch.object(Loop, "run") as training, raises(ConfigError, "generator", "notes.txt"):
        run(corpora, tmp_path, **data)
    training.assert_not_called()


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"objective": "electra"}, ["'electra'", "pairs 'nsp'", "data.pairs=none"]),
        ({"objective": "electra", "pairs": "sop", "pack": True}, ["pairs 'sop'", "data.pairs=none"]),
        (
            {"objective": "electra", "pairs": "none", "masking": "causal_lm", "max_predictions": 127},
            ["'causal_lm'", "another masking"],
        ),
        ({"objective": "span_boundary", "masking": "span"}, ["'span_boundary'", "pairs 'nsp'", "data.pairs=none"]),
        ({"objective": "span_boundary", "pairs": "none"}, ["masking 'token'", "data.masking=span"]),
        ({"objective": "electra", "pairs": "none", "generator_size": 1.5}, ["data.generator_size is 1.5"]),
        ({"objective": "gpt"}, ["data.objective is 'gpt'", "electra"]),
    ],
)
def test_contradictions_are_refused_in_one_line(fields, named):
    with raises(ConfigError, *named):
        PretrainingData(**fields).check()
