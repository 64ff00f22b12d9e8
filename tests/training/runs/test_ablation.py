"""Ablation, with a few steps per training run."""

import gzip
import itertools
import json
import os

import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from bert_tf.bundled import config
from bert_tf.checkpoints import directory
from bert_tf.config.model import _MODELS
from bert_tf.errors import ConfigError
from bert_tf.files import bundled
from bert_tf.report.file_reporter import FileReporter
from bert_tf.text import write_vocabulary
from bert_tf.training.runs import ablation
from bert_tf.training.runs.ablation import VARIANTS, Recipe, ablate
from bert_tf.training.state.run_manifest import RunManifest
from tests.errors import raises
from tests.zoo import VOCABULARY


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The bundled recipe on the first hundreds of lines of its texts, with a vocabulary of letters."""
    folder = tmp_path_factory.mktemp("recipe")
    pretraining, finetuning = config("pretrain/tiny.py"), config("finetune/reviews.py")
    for name in ("input", "validation"):
        with gzip.open(getattr(pretraining, name), "rt", encoding="utf-8") as file:
            lines = itertools.islice(file, 200)
            # Documents are long addresses: blank lines make several of the first one.
            (folder / f"{name}.txt").write_text("".join(line + "\n" * (n % 10 == 9) for n, line in enumerate(lines)))
        setattr(pretraining, name, str(folder / f"{name}.txt"))
    for name in (finetuning.data.train, finetuning.data.validation):
        with open(bundled(f"data/reviews/{name}"), encoding="utf-8") as file:
            (folder / name).write_text("".join(itertools.islice(file, 65)))
    return Recipe(pretraining, finetuning, str(folder), lambda path: write_vocabulary(path, VOCABULARY))


@pytest.mark.slow
def test_variants_are_trained_with_their_settings_and_only_once(recipe, tmp_path, monkeypatch):
    variants = ("BERT", "LTR & No NSP", "LTR & No NSP + BiLSTM", "ELECTRA")
    monkeypatch.setattr(ablation, "VARIANTS", {name: VARIANTS[name] for name in variants})
    for size in ("tiny", "mini"):
        monkeypatch.setitem(_MODELS, size, _MODELS[size] | {"num_layers": 1})
    settings = {"sizes": ["tiny", "mini"], "seeds": 1, "smoke": True, "reporter": FileReporter()}
    arguments = recipe, str(tmp_path), tf.distribute.OneDeviceStrategy("/cpu:0")
    rows = ablate(*arguments, **settings)
    assert [(row["name"], row["size"]) for row in rows] == [*((name, "tiny") for name in variants), ("BERT", "mini")]
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == rows
    assert (tmp_path / "ablation.md").read_text().count("\n| ") == len(rows) + 1  # and the rule under the header
    assert (tmp_path / "ablation.png").stat().st_size > 10_000

    def trained(folder):
        task, model = directory.load_task(str(tmp_path / folder))
        return task, model.encoder.config if hasattr(model, "encoder") else model.get_layer("encoder").config

    assert trained("bert-tiny/seed_0/pretrained")[0].name == "pretraining"
    assert trained("left_to_right-tiny/seed_0/pretrained")[1].attention == "causal"
    task, config = trained("left_to_right-tiny/seed_0/reviews-bilstm")
    assert (task.config.head, config.attention) == ("bilstm", "causal")
    assert trained("left_to_right-tiny/seed_0/reviews")[0].config.head == "pooled"
    assert trained("bert-mini/seed_0/reviews")[1].hidden_size == 256
    assert trained("electra-tiny/seed_0/pretrained")[0].name == "replaced_token_detection"
    assert trained("electra-tiny/seed_0/pretrained/generator")[0].name == "masked_lm"

    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert len(written) == 2 * len(rows)  # two variants share their pre-training; ELECTRA has a generator, too
    assert ablate(*arguments, **settings) == rows
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")} == written


@pytest.mark.parametrize("sizes, message", [([], "no size of model"), (["tiny", "mni"], "model 'mni' is unknown")])
def test_sizes_are_checked_before_training(recipe, tmp_path, sizes, message):
    with pytest.raises(ConfigError, match=message):
        ablate(recipe, str(tmp_path), None, sizes=sizes, seeds=1)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def configs():
    """The config of each training of `fake_ablation`, by its folder."""
    return {}


@pytest.fixture
def fake_ablation(recipe, tmp_path, monkeypatch, configs):
    """A function that runs an ablation whose trainings only claim their directory and build a graph with a gradient."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n")

    def train(program, config, model_dir):
        configs[os.path.relpath(model_dir, tmp_path)] = config
        RunManifest(model_dir, {"program": program}).write(0)
        square = tf.custom_gradient(lambda x: (x * x, lambda upstream: 2 * x * upstream))
        tf.function(square).get_concrete_function(tf.TensorSpec([], tf.float32))
        return {"final": {"loss": 1.0, "accuracy": 0.5}, "parameters": 1}

    monkeypatch.setattr(
        ablation, "pretrain", lambda config, model_dir, strategy, reporter: train("pretrain", config, model_dir)
    )
    monkeypatch.setattr(
        ablation, "finetune", lambda config, data, init, model_dir, *_, reporter: train("finetune", config, model_dir)
    )
    return lambda: ablate(recipe, str(tmp_path), None, sizes=["tiny"], seeds=2)


def test_every_variant_has_its_settings_and_graphs_of_earlier_trainings_are_freed(fake_ablation, configs):
    registered = set(ops.gradient_registry.list())
    assert len(fake_ablation()) == len(VARIANTS)
    assert set(ops.gradient_registry.list()) == registered

    pretrained, finetuned = (
        {folder.split("-")[0]: config for folder, config in configs.items() if folder.endswith(f"seed_1/{name}")}
        for name in ("pretrained", "reviews")
    )
    assert {name: (one.data.objective, one.data.pairs, one.data.masking) for name, one in pretrained.items()} == {
        "bert": ("mlm", "nsp", "token"),
        "no_nsp": ("mlm", "none", "token"),
        "left_to_right": ("mlm", "none", "causal_lm"),
        "albert": ("mlm", "sop", "ngram"),
        "spanbert": ("span_boundary", "none", "span"),
        "electra": ("electra", "none", "token"),
    }
    assert [name for name, one in pretrained.items() if one.model.attention == "causal"] == ["left_to_right"]
    assert [name for name, one in pretrained.items() if one.model.shared_layers] == ["albert"]
    assert [name for name, one in pretrained.items() if one.model.activation == "erf_gelu"] == ["electra"]
    assert finetuned.keys() == pretrained.keys()
    assert {config.task.head for config in finetuned.values()} == {"pooled"}
    assert configs["left_to_right-tiny/seed_1/reviews-bilstm"].task.head == "bilstm"
    assert {folder.split("seed_")[1][0]: config.train.seed for folder, config in configs.items()} == {"0": 0, "1": 1}


def test_the_error_for_other_settings_names_an_existing_flag(fake_ablation, tmp_path):
    folder = tmp_path / "bert-tiny" / "seed_1" / "reviews"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "run.json").write_text('{"program": "finetune", "config": {"steps": 4}}')
    with raises(ConfigError, "seed_1/reviews", "4", "--output_dir"):
        fake_ablation()
