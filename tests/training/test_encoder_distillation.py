"""Complete runs that distil encoders: what they report and save, how they resume, and what they refuse."""

import dataclasses
import hashlib
import json
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import directory, load_model
from bert_tf.config import EncoderDistillation, PretrainConfig, PretrainingData, TokenizerConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.model.encoder import BertEncoder
from bert_tf.report.terminal import plan_text
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.text import Tokenizer
from bert_tf.training.runs import dry_run
from bert_tf.training.runs.encoder_distillation import EncoderDistillationRun, distill_encoder
from bert_tf.training.runs.finetuning import Start
from bert_tf.training.runs.pretraining import pretrain
from bert_tf.training.runs.run import Place
from bert_tf.training.trainer import Trainer
from tests.errors import raises
from tests.model.small import MODERNBERT
from tests.training.interrupted import stopped
from tests.training.processes import finish, start
from tests.training.test_pretraining_runs import STRATEGY, TRAIN, WORDS, model_config, sentences

STEPS = 6
LOSSES = {
    "minilm": (["qk_loss", "vv_loss"], (1, 1)),
    "distilbert": (["soft_loss", "mlm_loss", "cosine_loss"], (5, 2, 1)),
    "tinybert": (["embedding_loss", "hidden_loss", "attention_loss"], (1, 1, 1)),
}
SETTINGS = {
    "minilm": EncoderDistillation(relations=("qk", "vv"), relation_heads=4),
    "distilbert": EncoderDistillation(copy_layers=True),
    "tinybert": EncoderDistillation(),
}
STUDENTS = {
    "minilm": {"hidden_size": 8},
    "distilbert": {},
    "tinybert": {"hidden_size": 12},
}
# What the others save, and their losses, are tests of tests/tasks/test_encoder_distillation.py, too.
TRAINED = [name if name == "minilm" else pytest.param(name, marks=pytest.mark.slow) for name in LOSSES]
MASKING = {"minilm": "none", "distilbert": "token", "tinybert": "none"}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory, unsampled):
    """A folder with texts in two languages, a vocabulary, and a teacher."""
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    for name, documents in (("en", 60), ("ko", 30)):
        (folder / f"{name}.txt").write_text(sentences(len(name), documents))
    write_teacher(folder / "teacher", seed=0)
    return folder


def write_teacher(folder, seed, **config):
    keras.utils.set_random_seed(seed)
    task = MaskedLM(Tokenizer(WORDS), 32)
    shape = {"vocab_size": len(WORDS), "num_layers": 3, "initializer_range": 0.3, "pooler": False}
    encoder = BertEncoder(model_config(**shape | config), dtype="float32")
    directory.save(str(folder), task.build(encoder), encoder, task)


def languages_of(corpora):
    return f"en:{corpora}/en.txt,ko:{corpora}/ko.txt"


def config_of(corpora, objective, *, train=None, model=None, settings=None, **data):
    """The config of a small run; with TinyBERT on two languages."""
    languages = languages_of(corpora) if objective == "tinybert" else ""
    data = {"objective": objective, "masking": MASKING.get(objective, "token"), "languages": languages} | data
    return PretrainConfig(
        validation="ko:" * bool(data["languages"]) + f"{corpora}/ko.txt",
        input=f"{corpora}/en.txt",
        model=model_config(
            **({"dropout": 0.0, "attention_dropout": 0.0} | STUDENTS.get(objective, {}) | (model or {}))
        ),
        data=PretrainingData(**({"pairs": "none", "max_length": 32, "max_predictions": 5} | data)),
        distillation=settings or SETTINGS.get(objective, EncoderDistillation()),
        train=dataclasses.replace(
            # With a larger epsilon, Adam's first steps are not those of the signs of rounding errors.
            TRAIN,
            **({"steps": STEPS, "learning_rate": 1e-2, "save_every": STEPS // 2, "epsilon": 1e-3} | (train or {})),
        ),
    )


def distil(corpora, model_dir, objective, teacher="teacher", strategy=STRATEGY, *, plan=False, **changes):
    config = config_of(corpora, objective, **changes)
    return distill_encoder(config, str(model_dir), strategy, teacher=str(corpora / teacher), dry_run=plan)


@pytest.fixture(scope="module", params=TRAINED)
def trained(request, corpora, tmp_path_factory):
    """An objective, the directory of its run, and the results."""
    model_dir = tmp_path_factory.mktemp("run") / "model"
    return request.param, model_dir, distil(corpora, model_dir, request.param)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_curves_have_every_loss_of_the_whole_and_of_each_language_and_they_fall(trained):
    objective, _, results = trained
    names, factors = LOSSES[objective]
    for point in [*results["history"], *results["evaluations"]]:
        sum_of_losses = sum(factor * point[name] for factor, name in zip(factors, names, strict=True))
        assert point["loss"] == pytest.approx(sum_of_losses, rel=1e-5)
    first, last = results["evaluations"]
    assert last["loss"] < first["loss"]
    if objective == "tinybert":  # validation text of Korean only
        for name in names:
            assert last[f"ko/{name}"] == pytest.approx(last[name], rel=1e-5)
        assert [row["language"] for row in results["languages"]] == ["en", "ko"]
    assert results["program"] == "distill"


def test_a_student_of_minilm_and_tinybert_is_an_encoder_and_of_distilbert_fills_in_masks(trained):
    objective, model_dir, _ = trained
    encoder, tokenizer = bert_tf.load(model_dir)
    assert encoder(tokenizer.encode(["w1 w2"]))["sequence_output"].shape[-1] == encoder.config.hidden_size
    assert not encoder.config.pooler
    names = [path.name for path in (model_dir / "checkpoints").iterdir()]
    variables = tf.train.list_variables(str(model_dir / "checkpoints"))
    found = {name for name, _ in variables if name.startswith(("weights", "slots"))}
    assert names and not any("teacher" in name for name in found)
    # The teacher has three layers, the student one.
    assert not any("layer_1" in name for name in found)
    if objective == "distilbert":
        task, model = directory.load_task(str(model_dir))
        assert type(task) is MaskedLM
        answer = task.signatures(model)["serving_default"](tf.constant(["w1 [MASK] w3"]))
        assert answer["tokens"].shape == (1, 1, 5)
    else:
        assert json.loads((model_dir / "config.json").read_text())["task"] is None
        assert load_model(model_dir)[0].name == "encoder"


@pytest.mark.slow
def test_a_resumed_run_ends_bit_for_bit_as_without_interruption(trained, corpora, tmp_path):
    objective, model_dir, results = trained
    again = stopped(model_dir, tmp_path / "again")
    # The same teacher elsewhere is the same.
    shutil.copytree(corpora / "teacher", tmp_path / "copy")
    resumed = distil(corpora, again, objective, teacher=tmp_path / "copy")
    assert any(json.loads(line)["kind"] == "resume" for line in (again / "history.jsonl").open())
    assert sha256(again / "model.safetensors") == sha256(model_dir / "model.safetensors")
    assert resumed["final"] == results["final"]


@pytest.mark.parametrize("trained", ["minilm"], indirect=True)
def test_a_run_with_another_teacher_is_not_resumed(trained, corpora, tmp_path):
    objective, model_dir, _ = trained
    shutil.copytree(model_dir, tmp_path / "again")
    write_teacher(tmp_path / "other", seed=1)
    config = config_of(corpora, objective)
    with raises(ConfigError, "inputs.teacher.weights", "choose another --model_dir"):
        distill_encoder(config, str(tmp_path / "again"), STRATEGY, teacher=str(tmp_path / "other"))


def weights_of(model_dir):
    return {variable.path: variable.numpy() for variable in load_model(model_dir)[0].weights}


def difference(ones, others):
    return max(np.abs(ones[path] - others[path]).max() / (np.abs(ones[path]).max() + 1e-9) for path in ones)


@pytest.mark.slow
def test_micro_batches_and_rematerialization_leave_the_result_as_it_is(trained, corpora, tmp_path):
    objective, model_dir, _ = trained
    distil(corpora, tmp_path / "split", objective, train={"accumulation": 2, "remat": True})
    assert difference(weights_of(model_dir), weights_of(tmp_path / "split")) < 1e-5


@pytest.fixture(scope="module")
def on_two_replicas(corpora, tmp_path_factory):
    """A folder with a run of each objective."""
    folder = tmp_path_factory.mktemp("two")
    finish(start("tests.training.distilled_replicas", corpora, folder))
    return folder


@pytest.mark.slow
def test_two_replicas_compute_what_one_computes(trained, on_two_replicas):
    objective, model_dir, _ = trained
    assert difference(weights_of(model_dir), weights_of(on_two_replicas / objective)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("objective", LOSSES)
def test_full_rows_in_bfloat16_compiled_by_xla(corpora, tmp_path, objective):
    train = {"dtype": "bfloat16", "jit_compile": "on", "steps": 4}
    results = distil(corpora, tmp_path / "model", objective, train=train, pack=True)
    first, last = results["evaluations"]
    assert last["loss"] < first["loss"]
    assert all(point["padding_share"] == 0 for point in results["history"])


def test_a_student_starts_with_layers_of_its_teacher(corpora, tmp_path, begun):
    trainer = begun(distil, corpora, tmp_path / "model", "distilbert", model={"num_layers": 2})
    student = {variable.path: variable.numpy() for variable in trainer.model.weights}
    teacher = weights_of(corpora / "teacher")
    assert student.keys() == {path for path in teacher if not path.startswith("layer_2")}
    for path, value in student.items():
        np.testing.assert_array_equal(value, teacher[path.replace("layer_1/", "layer_2/")], err_msg=path)


@pytest.mark.parametrize("several", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dry_run_shows_the_memory_of_the_teacher_and_writes_nothing(corpora, tmp_path, several, monkeypatch):
    # tests/training/runs/test_dry_run.py
    monkeypatch.setattr(dry_run, "kept_bytes", lambda *_, **__: 12 * 2**20)
    if not several:
        monkeypatch.setattr(dry_run, "rows_per_epoch", lambda *_: (100, "counted"))
        monkeypatch.setattr(Trainer, "benchmark", lambda *_: (0.1, 32.0))
    changes = {"languages": languages_of(corpora)} if several else {}
    plan = plan_text(distil(corpora, tmp_path / "model", "minilm", plan=True, **changes))
    assert "weights of the teacher" in plan and "GFLOP" in plan and "0 hidden" in plan
    assert re.search(r"kept for the backward pass +12 MiB\n", plan)
    assert plan.startswith("Languages\n") == several
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "objective, changes, named",
    [
        ("mlm", {}, ["'mlm'", "no teacher", "minilm, distilbert, tinybert"]),
        ("minilm", {"model": {"num_layers": 4, "hidden_size": 16}}, ["the student has", "/teacher", "not larger"]),
        ("minilm", {"model": {"hidden_size": 12, "num_heads": 3}, "settings": EncoderDistillation(relation_heads=8)}, [
            "relation_heads is 8", "12 columns", "teacher 16", "1, 2, 4"]),
        ("minilm", {"model": {"vocab_size": 40}}, ["model.vocab_size is 40", "teacher", "45 pieces"]),
        ("minilm", {"max_length": 33, "model": {"max_position_embeddings": 64, "hidden_size": 4}, "settings":
            EncoderDistillation(relation_heads=2)}, ["data.max_length is 33", "the teacher has 32 positions"]),
        ("minilm", {"pairs": "nsp"}, ["'minilm'", "pairs 'nsp'", "data.pairs=none"]),
        ("distilbert", {"masking": "none"}, ["data.masking is 'none'", "'distilbert'"]),
        ("tinybert", {"model": {"num_layers": 2}}, ["num_layers is 2", "3 layers"]),
        ("tinybert", {"model": {"positions": "rotary"}}, ["'rotary'", "'table'", "data.objective=minilm"]),
        ("distilbert", {"model": {"hidden_size": 8}}, ["hidden_size is 8, the teacher's 16"]),
        ("tinybert", {"settings": EncoderDistillation(copy_layers=True)}, ["shape (45, 12)", "(45, 16)"]),
        ("distilbert", {"model": {"num_heads": 4}}, ["num_heads is 4, the teacher's 2"]),
    ],
)  # fmt: skip
def test_what_cannot_be_distilled_is_refused_before_anything_is_written(corpora, tmp_path, objective, changes, named):
    with raises(ConfigError, *named):
        distil(corpora, tmp_path / "model", objective, **changes)
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["minilm", "distilbert"])
@pytest.mark.parametrize("modern", ["teacher", "student", "both"])
def test_bert_teaches_modernbert_and_back(corpora, tmp_path, objective, modern):
    parts = MODERNBERT | {"pooler": False}
    write_teacher(tmp_path / "teacher", 0, **(parts if modern != "student" else {}))
    found = distil(
        corpora, tmp_path / "model", objective, tmp_path / "teacher",
        model={"num_layers": 2, "hidden_size": 16} | (parts if modern != "teacher" else {}), train={"steps": 60},
        settings=dataclasses.replace(SETTINGS[objective], copy_layers=objective == "distilbert" and modern == "both"),
    )  # fmt: skip
    first, *_, last = (point["loss"] for point in found["history"])
    assert last < first
    encoder, _ = bert_tf.load(tmp_path / "model")
    assert encoder.config.positions == ("table" if modern == "teacher" else "rotary")


def test_a_teacher_is_needed_must_exist_and_must_have_the_tokenizer(corpora, tmp_path):
    config = config_of(corpora, "minilm")
    with raises(ConfigError, "'minilm'", "needs a teacher", "bert_tf.distill --teacher=DIR"):
        pretrain(config, str(tmp_path / "model"), STRATEGY)
    with raises(DataError, "nowhere"):
        distill_encoder(config, str(tmp_path / "model"), STRATEGY, teacher=str(corpora / "nowhere"))
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS[:-1], "other"]) + "\n")
    config.tokenizer = TokenizerConfig(vocab=str(tmp_path / "vocab.txt"))
    with raises(ConfigError, "another tokenizer", "teacher"):
        distill_encoder(config, str(tmp_path / "model"), STRATEGY, teacher=str(corpora / "teacher"))
    config.tokenizer = TokenizerConfig(vocab=str(corpora / "vocab.txt"))  # the same
    place, teacher = Place(str(tmp_path / "model"), STRATEGY), Start.open(corpora / "teacher")
    assert EncoderDistillationRun(config, place, teacher=teacher).tokenizer.vocab == WORDS
