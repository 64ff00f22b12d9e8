"""Fine-tuning for int8: what is saved, exported, resumed and refused."""

import dataclasses
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import load
from bert_tf.checkpoints import directory
from bert_tf.checkpoints.conversion import convert
from bert_tf.config import BertConfig, ClassificationConfig, FinetuneConfig, PretrainConfig, TrainConfig
from bert_tf.errors import ConfigError, DataError
from bert_tf.inference import ask
from bert_tf.inference.saved_model import export_run
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.model.encoder import BertEncoder, encoder_of
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.text import Tokenizer
from bert_tf.training import loop
from bert_tf.training.dtype import infer_in
from bert_tf.training.evaluation import Evaluation, Split
from bert_tf.training.runs import finetuning, pretraining
from bert_tf.training.runs.pruning import prune_model
from tests.errors import raises
from tests.model.precision.test_int8 import exports_int8
from tests.model.small import PIECES
from tests.training.interrupted import stopped

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
CONFIG = FinetuneConfig(
    task=ClassificationConfig(max_length=16),
    train=TrainConfig(
        batch_size=8,
        steps=20,
        learning_rate=3e-3,
        quantization="int8",
        save_every=19,
        evaluate_every=10,
        keep_best=True,
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pre-trained model, and tables of texts that are good or not."""
    folder = tmp_path_factory.mktemp("int8")
    tokenizer = Tokenizer(PIECES)
    shape = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "max_position_embeddings": 16}
    encoder = BertEncoder(BertConfig(vocab_size=len(PIECES), initializer_range=0.3, **shape), dtype="float32")
    task = MaskedLM(tokenizer, 16)
    directory.save(str(folder / "pretrained"), task.build(encoder), encoder, task)
    rng = np.random.default_rng(0)
    for name, rows in (("train", 64), ("dev", 24)):
        lines = []
        for row in range(rows):
            words = [*rng.choice(list("abcdef"), rng.integers(1, 9)), *(["good"] * (row % 2))]
            lines.append(f"{' '.join(rng.permutation(words))}\t{row % 2}\n")
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    return folder


def finetune(folder, name, init="pretrained", **train):
    config = dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, **train))
    return finetuning.finetune(config, str(folder), str(folder / init), str(folder / name), STRATEGY)


@pytest.fixture(scope="module", autouse=True)
def _few_calibrations():
    """Each takes longer than ten updates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_CALIBRATIONS", 2)
        patch.setattr(finetuning, "_CALIBRATION", 32)
        yield


@pytest.fixture(scope="module")
def results(folder):
    return finetune(folder, "model")


@pytest.mark.slow
@exports_int8
def test_the_final_evaluation_is_that_of_the_export(folder, results):
    exported = export_run(str(folder / "model"), str(folder / "served"), optimize="int8")
    assert "from its fine-tuning in int8" in exported.checked
    assert float(exported.checked.split("last layer differs by ")[1].split()[0]) < 0.02
    task, model = directory.load_fine_tuned(str(folder / "model"))
    examples = list(Source(CONFIG.data, str(folder), task.example).examples(ReadReport(), "validation"))
    answers = ask.Model(exported.path).run({"text": [example.texts[0] for example in examples]})
    gold = [task.state.labels.index(example.label) for example in examples]
    probabilities = np.array(answers["probabilities"])[range(len(gold)), gold]
    # The attention is in bfloat16 where the processor has it.
    assert -np.log(probabilities).mean() == pytest.approx(results["final"]["loss"], rel=0.01, abs=2e-3)
    assert encoder_of(model).ranges is not None


def test_the_ranges_are_those_of_the_best_weights_and_are_read_again(folder, results):
    assert results["best_step"] in (10, 20)
    ranges = load(str(folder / "model"))[0].ranges.by_path
    assert set(ranges) == {
        f"layer_0/{name}/range" for name in ("attention/qkv", "attention/output", "intermediate", "output")
    }
    assert all(np.ptp(variable.numpy()) > 0 for variable in ranges.values())  # measured: no longer all 1
    directory.write(directory.read(str(folder / "model")), str(folder / "copy"))
    copied = load(str(folder / "copy"))[0].ranges.by_path
    for path, variable in ranges.items():
        np.testing.assert_array_equal(variable.numpy(), copied[path].numpy())


def test_a_conversion_keeps_the_ranges_or_says_that_its_format_cannot(folder, results):
    for format, kept in (("bert_tf", True), ("huggingface", False)):
        report = convert(str(folder / "model"), format, str(folder / format))
        said = any("ranges of the fine-tuning for int8" in warning for warning in report["warnings"])
        assert (load(str(folder / format))[0].ranges is not None) == kept != said


def test_models_evaluate_with_the_rounding_if_asked_to(folder, results, eager):
    task, model = directory.load_fine_tuned(str(folder / "model"))
    assert infer_in("int8", model) == "int8"
    split = Split(Source(CONFIG.data, str(folder), task.example), "validation")
    split.prepare(task)
    assert Evaluation(task, model, split, 8, STRATEGY)()["loss"] == pytest.approx(results["final"]["loss"], rel=1e-4)
    with raises(ConfigError, "'int8'", "train.quantization", "float32"):
        infer_in("int8", load(str(folder / "pretrained"))[0])


def test_a_run_that_was_stopped_resumes_bit_for_bit(folder, results):
    stopped(folder / "model", folder / "stopped")
    resumed = finetune(folder, "stopped")
    assert resumed["final"] == results["final"]
    found, expected = (directory.read(str(folder / name)) for name in ("stopped", "model"))
    for name, tensor in (expected.tensors | expected.ranges).items():
        np.testing.assert_array_equal((found.tensors | found.ranges)[name].read(), tensor.read(), name)


def test_later_fine_tuning_without_it_forgets_the_ranges(folder, results, begun):
    trainer = begun(finetune, folder, "again", "model", quantization="none", keep_best=False)
    assert encoder_of(trainer.model).ranges is None


def test_a_pruned_model_has_no_ranges_and_pruning_says_so(folder, results, capsys, eager):
    def source(task):
        return Source(CONFIG.data, str(folder), task.example)

    prune_model(str(folder / "model"), str(folder / "pruned"), source, "train", 0.2, STRATEGY)
    assert "the ranges of train.quantization=int8 are left out" in capsys.readouterr().err
    assert load(str(folder / "pruned"))[0].ranges is None


def test_settings_that_make_no_sense_are_refused(folder):
    with raises(ConfigError, "train.dtype", "'bfloat16'", "train.quantization", "float32"):
        finetune(folder, "no", dtype="bfloat16")
    with raises(ConfigError, "train.quantization", "'int4'", "none", "int8"):
        finetune(folder, "no", quantization="int4")
    config = PretrainConfig(input="x", train=TrainConfig(steps=1, quantization="int8"))
    with raises(ConfigError, "train.quantization", "'int8'", "fine-tuning"):
        pretraining.pretrain(config, str(folder / "no"), STRATEGY)
    assert not os.path.exists(folder / "no")


def test_a_file_that_lacks_some_ranges_is_named(folder, results):
    checkpoint = directory.read(str(folder / "model"))
    del checkpoint.ranges["layer_0/output/range"]
    directory.write(checkpoint, str(folder / "damaged"))
    with raises(DataError, "model.safetensors", "layer_0/output/range"):
        load(str(folder / "damaged"))
