"""Several fine-tuning runs, most of them stubs that only report their result."""

import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints import directory
from bert_tf.config import (
    BertConfig,
    ClassificationConfig,
    ExampleData,
    FinetuneConfig,
    GridConfig,
    PhaseConfig,
    TrainConfig,
)
from bert_tf.errors import ConfigError
from bert_tf.files import write_json
from bert_tf.inputs.datasets.sources import Source
from bert_tf.model.encoder import BertEncoder
from bert_tf.report.file_reporter import FileReporter
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import Evaluation, Split
from bert_tf.training.runs import finetuning, sweep
from tests.errors import raises
from tests.training.small import Stop

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "and"]
CONFIG = FinetuneConfig(task=ClassificationConfig(max_length=8), train=TrainConfig(batch_size=4, dtype="float32"))


def changed(search=False, grid=None, **train):
    """CONFIG with other settings."""
    grid = grid or GridConfig()
    return dataclasses.replace(CONFIG, search=search, grid=grid, train=dataclasses.replace(CONFIG.train, **train))


def test_the_papers_grid_has_eighteen_runs_with_each_seed():
    found = sweep.trials_of(changed(search=True), 768)
    assert {(t.config.train.batch_size, t.config.train.learning_rate, t.config.train.epochs) for t in found} == {
        (batch, rate, epochs) for batch in (16, 32) for rate in (5e-5, 3e-5, 2e-5) for epochs in (2, 3, 4)
    }
    both = sweep.trials_of(changed(search=True, seeds=3, seed=7), 768)
    assert len(found) == 18 and len(both) == 54 == len({trial.name for trial in both})
    assert [trial.config.train.seed for trial in both[:4]] == [7, 8, 9, 7]
    assert not any(trial.config.search or trial.config.train.seeds > 1 for trial in both)  # each is a single run


def test_an_empty_part_of_the_grid_is_not_searched():
    grid = GridConfig(batch_size=(), epochs=())
    found = sweep.trials_of(changed(search=True, grid=grid, steps=50), 384)
    assert [trial.config.train.learning_rate for trial in found] == [1e-4, 6e-5, 4e-5]  # of a model half as wide
    assert {trial.config.train.batch_size for trial in found} == {4}


WRONG = {
    "epochs that steps override": (changed(search=True, steps=5), r"train\.steps is 5 .*grid\.epochs=\(\)"),
    "no list": (changed(search=True, grid=GridConfig(batch_size=16)), r"grid\.batch_size is 16; expected"),
    "twice the same": (changed(search=True, grid=GridConfig(epochs=(2, 2))), r"grid\.epochs is \(2, 2\)"),
    "a batch of nothing": (
        changed(search=True, grid=GridConfig(batch_size=(0,))),
        r"grid\.batch_size\[0\] is 0; expected a whole number",
    ),
    "no run": (changed(seeds=0), r"train\.seeds is 0"),
    "phases": (changed(seeds=2, phases=(PhaseConfig(),)), r"train\.phases is set"),
    "a grid that is not asked for": (changed(grid=GridConfig(epochs=(1.0,))), r"grid is set, but search is off"),
    "nothing to try": (changed(search=True, grid=GridConfig((), (), ())), r"nothing to try.*grid\.epochs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_invalid_search_is_refused(tmp_path, tables, case):
    config, message = WRONG[case]
    with pytest.raises(ConfigError, match=message):
        sweep.finetune_best(config, str(tables), "init", str(tmp_path / "model"), STRATEGY)


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in (("train", 24), ("dev", 9)):
        lines = (f"{'good and' * (row % 2)} {'bad' * (1 - row % 2)}\t{row % 2}" for row in range(rows))
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return folder


@pytest.fixture
def search(tmp_path, tables, monkeypatch):
    """A function that makes runs with the given accuracies, by seed; it returns the results and the seeds that ran."""

    def start(accuracies, config=None, **arguments):
        ran, inputs = [], {"train": "content"}

        def results_of(models, config, data_dir, place, like):
            accuracy = accuracies[config.train.seed]
            ran.append(config.train.seed)
            folder = tmp_path / place.model_dir
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            (folder / "run.json").write_text("{}")
            if isinstance(accuracy, Exception):
                raise accuracy
            for name in ("model.safetensors", "config.json", "vocab.txt"):
                (folder / name).write_text(f"{name} of {config.train.seed}")
            assert like is None or like["inputs"] == inputs
            final = {"kind": "evaluation", "step": 5, "loss": 1 - accuracy, "accuracy": accuracy}
            results = {"inputs": inputs, "final": final, "baseline": {"accuracy": 0.5}, "steps": 5, "seconds": 1.5}
            results |= {"task": "classification", "measure": ["accuracy", "max"]}
            write_json(folder / "results.json", results)
            return results

        # The checkpoint does not exist.
        stubs = {"results": results_of, "width": lambda *_: 768, "identities": lambda *_: {}}
        stubs["opened"] = classmethod(lambda cls, *paths: cls(None, None))
        for name, stub in stubs.items():
            monkeypatch.setattr(sweep._Models, name, stub)
        model = str(tmp_path / "model")
        arguments |= {"reporter": FileReporter()}
        return sweep.finetune_best(config or changed(seeds=4), str(tables), "init", model, STRATEGY, **arguments), ran

    return start


def test_mean_and_deviation_are_over_all_seeds_and_the_model_is_the_best(search, tmp_path, capsys):
    accuracies = [0.7, 0.9, 0.5, math.nan]
    results, _ = search(accuracies[:3], changed(seeds=3))
    (group,) = results["groups"]
    assert group["mean"]["accuracy"] == pytest.approx(np.mean(accuracies[:3]))
    assert group["deviation"]["accuracy"] == pytest.approx(np.std(accuracies[:3], ddof=1))
    assert group["best"] == results["best"] == "seed_1" and results["final"]["accuracy"] == 0.9
    model = tmp_path / "model"
    assert all(
        (model / name).read_text() == f"{name} of 1" for name in ("model.safetensors", "config.json", "vocab.txt")
    )
    assert json.loads((model / "results.json").read_text()) == json.loads(json.dumps(results))
    assert not list(model.glob("*/checkpoints"))
    table = (model / "trials.md").read_text()
    assert table in capsys.readouterr().out
    (row,) = (line for line in table.splitlines() if "seed_1" in line)
    assert row.split()[:4] == ["|", "seed_1", "|", "0.9000"] and " best " in row
    assert "0.7000 ± 0.2000" in table


def test_runs_not_above_the_baseline_are_marked(search, tmp_path):
    results, _ = search([0.5, 0.9, 0.51, math.nan])
    assert results["groups"][0]["failed"] == ["seed_0", "seed_3"] and results["best"] == "seed_1"
    lines = {line.split()[1]: line for line in (tmp_path / "model/trials.md").read_text().splitlines() if line}
    assert {name for name, line in lines.items() if "did not learn" in line} == {"seed_0", "seed_3"}
    assert "2 of 4" in lines["all"]
    again, ran = search([])  # nan is read back from the files of the runs
    assert not ran and repr(again) == repr(results)


def test_the_same_command_resumes_without_repeating_finished_runs(search):
    with pytest.raises(Stop):
        search([0.7, 0.9, Stop(), 0.8])
    results, ran = search([None, None, 0.6, 0.8])
    assert ran == [2, 3]
    assert [row["final"]["accuracy"] for row in results["trials"]] == [0.7, 0.9, 0.6, 0.8]
    again, ran = search([])
    assert not ran and again == results


def test_the_same_command_resumes_if_the_first_run_was_stopped(search):
    with pytest.raises(Stop):
        search([Stop()])
    _, ran = search([0.6, 0.7, 0.6, 0.8])
    assert ran == [0, 1, 2, 3]


@pytest.mark.parametrize("search_on", [False, True])
def test_runs_whose_config_has_the_rates_of_bert_base_resume_without_them(search, tmp_path, search_on):
    config = changed(search=True, grid=GridConfig(batch_size=(), epochs=())) if search_on else changed(seeds=2)
    results, _ = search([0.7, 0.9], config)
    assert results["config"]["train"]["learning_rate"] == 5e-5
    path = tmp_path / "model/run.json"
    manifest = json.loads(path.read_text())
    manifest["config"]["train"]["learning_rate"] = 5e-5  # the defaults, before they depended on the width
    manifest["config"]["grid"]["learning_rate"] = [5e-5, 3e-5, 2e-5]
    path.write_text(json.dumps(manifest))
    again, ran = search([], config)
    assert not ran and again == results


def test_runs_may_have_different_metrics(search):
    config = changed(seeds=2)
    results = {
        trial.name: {"final": {"f1": 0.5, f"{kind}/f1": 0.3}, "baseline": {"f1": 0.0}, "steps": 1, "seconds": 1.0}
        | {"task": "tagging", "measure": ["f1", "max"]}
        for trial, kind in zip(sweep.trials_of(config, 768), ("MISC", "LOC"), strict=True)
    }
    (group,) = sweep.summarize(sweep.trials_of(config, 768), results)["groups"]
    assert group["mean"] == {"f1": 0.5}


def test_a_directory_of_another_command_is_refused(search, tables):
    with pytest.raises(Stop):
        search([0.7, Stop()])
    with raises(ConfigError, "config.train.learning_rate", "5e-05 there", "0.1 now"):
        search([], changed(seeds=4, learning_rate=0.1))
    with open(tables / "train.tsv", "a") as file:
        file.write("and\t0\n")
    with raises(ConfigError, "inputs.train"):
        search([])


def test_seeds_can_be_added_on_request(search):
    search([0.7, 0.9], changed(seeds=2))
    with raises(ConfigError, "config.train.seeds", "2", "3", "--accept_config_change"):
        search([], changed(seeds=3))
    results, ran = search([None, None, 0.8], changed(seeds=3), accept_config_change=True)
    assert ran == [2] and len(results["trials"]) == 3
    assert results["changes"] == [{"step": 2, "changes": {"config.train.seeds": [2, 3]}}]


def test_a_metric_to_minimize_is_best_where_it_is_smallest():
    config = changed(search=True, grid=GridConfig(batch_size=(8, 16), learning_rate=(), epochs=()), seeds=2)
    found = sweep.trials_of(config, 768)
    losses = dict(zip((trial.name for trial in found), (0.3, math.nan, 0.2, 0.4), strict=True))
    results = {
        name: {"final": {"step": 1, "loss": loss}, "baseline": {"loss": 0.35}, "steps": 1, "seconds": 1.0}
        | {"task": "made up", "measure": ["loss", "min"]}
        for name, loss in losses.items()
    }
    summary = sweep.summarize(found, results)
    assert summary["best"] == "batch_16-seed_0"
    assert [group["settings"] for group in summary["groups"]] == [{"batch_size": 8}, {"batch_size": 16}]
    assert [group["failed"] for group in summary["groups"]] == [["batch_8-seed_1"], ["batch_16-seed_1"]]


@pytest.fixture
def pretrained(tmp_path):
    tokenizer = Tokenizer(WORDS)
    shape = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 16, "max_position_embeddings": 8}
    encoder = BertEncoder(BertConfig(vocab_size=len(WORDS), **shape), dtype="float32")
    task = Pretraining(tokenizer, 8)
    directory.save(str(tmp_path / "pretrained"), task.build(encoder), encoder, task)
    return str(tmp_path / "pretrained")


@pytest.mark.slow
def test_predict_and_export_use_the_best_run_of_a_real_search(tmp_path, tables, pretrained):
    grid = GridConfig(batch_size=(), learning_rate=(1e-2, 1e-9), epochs=())
    config = changed(search=True, grid=grid, steps=6)
    results = sweep.finetune_best(config, str(tables), pretrained, str(tmp_path / "model"), STRATEGY)
    assert results["final"]["accuracy"] == max(row["final"]["accuracy"] for row in results["trials"])

    single = changed(steps=6, learning_rate=1e-2)
    alone = finetuning.finetune(single, str(tables), pretrained, str(tmp_path / "alone"), STRATEGY)
    assert alone["final"]["loss"] == results["trials"][0]["final"]["loss"]  # every run starts from the same weights

    task, model = directory.load_fine_tuned(str(tmp_path / "model"))
    split = Split(Source(ExampleData(), str(tables), task.example), "validation")
    split.prepare(task)
    measured = Evaluation(task, model, split, 4, STRATEGY)()
    assert measured["loss"] == pytest.approx(results["final"]["loss"], rel=1e-5)


@pytest.mark.slow
def test_runs_with_other_initial_weights_are_refused(tmp_path, tables, pretrained):
    config = changed(steps=2, seeds=2)
    arguments = str(tables), pretrained, str(tmp_path / "model"), STRATEGY
    sweep.finetune_best(config, *arguments)
    (tmp_path / "model/seed_1/results.json").unlink()
    model = directory.load_task(pretrained)[1]
    model.weights[0].assign(model.weights[0] + 1)
    task = Pretraining(Tokenizer(WORDS), 8)
    directory.save(pretrained, model, model.encoder, task)
    changed_weights = r"inputs have changed since the first of these runs \(init\.weights"
    with pytest.raises(ConfigError, match=changed_weights):
        sweep.finetune_best(config, *arguments)
    (tmp_path / "model/seed_1/results.json").write_text((tmp_path / "model/seed_0/results.json").read_text())
    before = (tmp_path / "model/run.json").read_text()
    moved = shutil.copytree(pretrained, tmp_path / "moved")
    with pytest.raises(ConfigError, match=changed_weights):  # also if all are finished
        sweep.finetune_best(config, str(tables), str(moved), str(tmp_path / "model"), STRATEGY)
    assert (tmp_path / "model/run.json").read_text() == before


@pytest.mark.slow
def test_a_sweep_from_a_checkpoint_without_pooler_can_be_resumed(tmp_path, tables):
    shape = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 16, "max_position_embeddings": 8}
    encoder = BertEncoder(BertConfig(vocab_size=len(WORDS), pooler=False, **shape), dtype="float32")
    task = MaskedLM(Tokenizer(WORDS), 8)
    directory.save(str(tmp_path / "bare"), task.build(encoder), encoder, task)
    arguments = changed(steps=2, seeds=2), str(tables), str(tmp_path / "bare"), str(tmp_path / "model"), STRATEGY
    results = sweep.finetune_best(*arguments)
    assert len(results["trials"]) == 2
    assert sweep.finetune_best(*arguments)["trials"] == json.loads(json.dumps(results["trials"]))
