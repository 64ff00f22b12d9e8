"""Complete runs with invalid input: each error names its cause and location before anything is written."""

import contextlib
import dataclasses
import io
import json
import shutil
import threading
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from safetensors.numpy import load_file, save_file

from bert_tf.checkpoints import directory
from bert_tf.config import (
    BertConfig,
    ClassificationConfig,
    ExampleData,
    FinetuneConfig,
    PretrainConfig,
    PretrainingData,
    TokenizerConfig,
    TrainConfig,
)
from bert_tf.config.train import RECIPES
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.head_table import build
from bert_tf.report.file_reporter import FileReporter
from bert_tf.report.terminal import plan_text
from bert_tf.tasks.labels import LabelsCodec
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.training.reporter import SILENT
from bert_tf.training.runs import finetuning, pretraining
from tests.errors import raises
from tests.model.numpy_bert import tensors_of
from tests.model.small import randomize

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(40))]
STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
TRAIN = TrainConfig(batch_size=4, steps=2, dtype="float32", log_every=1)


def model_config(**fields):
    shape = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "vocab_size": 0}
    return BertConfig(**(shape | {"max_position_embeddings": 32} | fields))


def sentences(seed=0, documents=12):
    random = np.random.default_rng(seed)
    words = (" ".join(f"w{word}" for word in random.integers(0, 40, 6)) for _ in range(5 * documents))
    return "\n\n".join("\n".join(next(words) for _ in range(5)) for _ in range(documents)) + "\n"


def starter(tmp_path):
    """A function that pre-trains on the given bytes, with some fields of the config changed."""
    vocab, model_dir = tmp_path / "vocab.txt", tmp_path / "model"
    vocab.write_text("\n".join(WORDS) + "\n")

    def start(text, dry_run=False, accept_config_change=False, **fields):
        (tmp_path / "corpus.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
        config = PretrainConfig(
            input=str(tmp_path / "corpus.txt"),
            tokenizer=TokenizerConfig(vocab=str(vocab)),
            model=model_config(),
            data=PretrainingData(max_length=32, max_predictions=3),
            train=TRAIN,
        )
        how = {"accept_config_change": accept_config_change, "dry_run": dry_run}
        return pretraining.pretrain(dataclasses.replace(config, **fields), str(model_dir), STRATEGY, **how)

    return start


@pytest.fixture
def pretrain(tmp_path):
    return starter(tmp_path)


# Others are in tests/inputs/corpus.
CORPORA = {"one sentence": (b"only one .\n", "only one document"), "UTF-16": (sentences().encode("utf-16"), ": byte 0")}


@pytest.mark.parametrize("case", CORPORA)
def test_an_invalid_corpus_is_refused_before_anything_is_written(pretrain, tmp_path, case):
    text, named = CORPORA[case]
    with raises(DataError, named):
        pretrain(text)
    assert not (tmp_path / "model").exists()


def test_a_packed_run_reports_its_padding_and_recipe_and_saves_a_model_for_single_sequences(
    pretrain, tmp_path, unsampled_here, eager
):
    data = PretrainingData(max_length=32, max_predictions=5, pack=True, short_sequence_rate=1.0)
    results = pretrain(sentences(), data=data, train=dataclasses.replace(TRAIN, recipe="google"))
    # Sequences of 5 to 32 tokens, of which half would be padding.
    assert 0 < results["final"]["padding_share"] < 0.2
    task, model = directory.load_task(str(tmp_path / "model"))
    assert isinstance(task, Pretraining) and not model.encoder.packed
    names = {tensor.name for tensor in model.inputs}
    assert names == {"input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions"}
    # The recipe is recorded as the settings that it stands for.
    recorded = results["config"]["train"]
    assert recorded["learning_rate"] == pytest.approx(1e-4 * 768 / 16)  # BERT's, for this width
    assert {name: recorded[name] for name in RECIPES["google"]} == RECIPES["google"]


@pytest.mark.slow
@pytest.mark.parametrize("pack", [False, True])
def test_full_sentences_train_a_masked_language_model_alone(pretrain, tmp_path, pack):
    data = PretrainingData(max_length=32, max_predictions=5, pairs="none", pack=pack)
    results = pretrain(sentences(documents=1) * 12, data=data)
    assert results["task"] == "masked_lm" and "nsp_loss" not in results["final"]
    task, model = directory.load_task(str(tmp_path / "model"))
    assert type(task) is MaskedLM and not model.encoder.config.pooler


def test_another_attention_than_the_masking_needs_is_refused(pretrain):
    data = PretrainingData(max_length=32, max_predictions=31, pairs="none", masking="causal_lm")
    with raises(ConfigError, "model.attention", "'bidirectional'", "data.masking", "'causal_lm'", "'causal'"):
        pretrain(sentences(), data=data)
    with raises(ConfigError, "model.attention", "'causal'", "data.masking", "'token'"):
        pretrain(sentences(), model=model_config(attention="causal"))


@pytest.mark.slow
def test_a_causal_language_model_is_trained_and_fine_tuned_with_the_labels_of_the_examples(tmp_path):
    data = PretrainingData(max_length=32, max_predictions=31, pairs="none", masking="causal_lm")
    pretrain, model = starter(tmp_path), tmp_path / "model"
    results = pretrain(sentences(), data=data, model=model_config(attention="causal"))
    assert results["final"]["mlm_loss"] < np.log(len(WORDS)) * 1.2
    assert results["task"] == "masked_lm" and "nsp_loss" not in results["final"]
    finetune = finetuner(tmp_path / "tuned", model)
    results = finetune()
    task, model = directory.load_task(str(tmp_path / "tuned/model"))
    assert model.get_layer("encoder").config.attention == "causal" and tuple(task.state.labels) == ("a", "b")
    assert results["final"]["accuracy"] in (0.0, 1.0)  # of the single row


def test_a_missing_corpus_is_named(pretrain):
    with raises(DataError, "/nowhere/*.txt"):
        pretrain("", input="/nowhere/*.txt")


def test_a_vocabulary_without_mask_is_refused(pretrain, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(word for word in WORDS if word != "[MASK]") + "\n")
    with raises(DataError, "vocab.txt", "[MASK]"):
        pretrain(sentences())


def test_embeddings_wider_than_the_states_are_refused(pretrain):
    with raises(ConfigError, "model.embedding_size 100000", "model.hidden_size"):
        pretrain(sentences(), model=model_config(embedding_size=100_000))


def test_a_model_of_another_vocabulary_size_is_refused_with_both_sizes(pretrain):
    with raises(ConfigError, "model.vocab_size", "30522", "vocab.txt", "45 pieces"):
        pretrain(sentences(), model=model_config(vocab_size=30522))


@pytest.mark.parametrize(
    "field, value", [("steps", 0), ("batch_size", 0), ("keep", 0), ("warmup", 1.5), ("dtype", "int8")]
)
def test_a_training_field_out_of_range_is_named(pretrain, field, value):
    with raises(ConfigError, f"train.{field}"):
        pretrain(sentences(), train=dataclasses.replace(TRAIN, **{field: value}))


@pytest.mark.slow  # tests/inputs/corpus/test_dataset.py has the dataset alone
def test_a_batch_larger_than_the_corpus_is_an_error_instead_of_an_endless_loop(pretrain):
    with raises(DataError, "4096"):
        pretrain(sentences(), train=dataclasses.replace(TRAIN, batch_size=4096))


@pytest.mark.slow
def test_a_line_of_ten_megabytes_is_trained_on_like_any_other(pretrain):
    long = "w1 w2 w3 w4 " * (10 * 2**20 // 12)
    results = pretrain(sentences() + "\n" + long + "\n\n" + sentences(1))
    assert results["steps"] == 2 and np.isfinite(results["final"]["loss"])


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A model directory with fresh weights."""
    folder, task = tmp_path_factory.mktemp("template"), Pretraining(Tokenizer(WORDS), 32)
    encoder = BertEncoder(model_config(vocab_size=len(WORDS)), dtype="float32")
    directory.save(str(folder), task.build(encoder), encoder, task)
    return folder


@pytest.fixture
def pretrained(tmp_path, template):
    """A copy of it that tests may damage."""
    return shutil.copytree(template, tmp_path / "pretrained")


def finetuner(folder, model):
    """A function that fine-tunes a model on two tables given as text."""
    folder.mkdir(exist_ok=True)

    def start(
        train="sentence\tlabel\nw1 w2\ta\nw3\tb\n",
        dev="sentence\tlabel\nw5\ta\n",
        init=model,
        reporter=SILENT,
        **task,
    ):
        (folder / "train.tsv").write_text(train)
        (folder / "dev.tsv").write_text(dev)
        fields = {"max_length": 16} | task
        data = ExampleData(text=fields.pop("text", "sentence"))
        config = FinetuneConfig(task=ClassificationConfig(**fields), data=data, train=TRAIN)
        return finetuning.finetune(config, str(folder), str(init), str(folder / "model"), STRATEGY, reporter=reporter)

    return start


@pytest.fixture
def finetune(tmp_path, pretrained):
    return finetuner(tmp_path, pretrained)


HEADER = "sentence\tlabel\n"
TABLES = {
    "a row with too few columns": ({"train": f"{HEADER}w1\ta\nw2\n"}, "train.tsv:3", "1 columns"),
    "a label of no class": ({"labels": ("a", "z")}, "train.tsv:3", "'b'", "'a', 'z'"),
    "no rows": ({"dev": HEADER}, "dev.tsv"),
    "an empty file": ({"train": ""}, "train.tsv"),
    "no such column": ({"text": "review"}, "train.tsv:1", "'review'", "'sentence', 'label'"),
    "one label only": ({"train": f"{HEADER}w1\ta\nw2\ta\n"}, "train.tsv:2", "'a'"),
    "a length beyond the model's": ({"max_length": 33}, "task.max_length", "33", "32"),
    "no model": ({"init": "/nowhere"}, "/nowhere"),
}


@pytest.mark.parametrize("case", TABLES)
def test_an_invalid_table_or_model_is_refused_with_its_location_before_anything_is_written(finetune, tmp_path, case):
    arguments, *named = TABLES[case]
    with raises(BertTfError, *named):
        finetune(**arguments)
    assert not (tmp_path / "model").exists()


def test_a_file_cannot_be_used_for_training_and_validation(tmp_path):
    (tmp_path / "train.tsv").write_text(f"{HEADER}w1\ta\n")
    config = FinetuneConfig(task=ClassificationConfig(), data=ExampleData(), train=TRAIN)
    for place in ("train.tsv", "-"):
        with raises(ConfigError, "train.tsv", "dev.tsv"):
            finetuning.source_of(config.data, config.task, str(tmp_path / place) if place != "-" else place)


def test_a_folder_without_a_model_is_refused(finetune, tmp_path):
    (tmp_path / "photos").mkdir()
    with raises(DataError, "photos", "config.json"):
        finetune(init=tmp_path / "photos")


def test_a_checkpoint_whose_vocabulary_has_another_size_is_refused(finetune, pretrained):
    with open(pretrained / "vocab.txt", "a") as file:
        file.write("more\n")
    with raises(DataError, "vocab.txt was changed after the model was written"):
        finetune()
    config = json.loads((pretrained / "config.json").read_text())
    del config["crc32"]["vocab.txt"], config["crc32"]["config.json"]
    (pretrained / "config.json").write_text(json.dumps(config))
    with raises(DataError, "46"):
        finetune()


def test_weights_of_another_size_are_listed_by_name(finetune, pretrained):
    text = (pretrained / "config.json").read_text()
    (pretrained / "config.json").write_text(text.replace('"hidden_size": 16', '"hidden_size": 18'))
    with raises(DataError, "word_embeddings", "[45, 16]", "[45, 18]"):
        finetune()


def test_truncated_weights_are_refused(finetune, pretrained):
    file = pretrained / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with raises(DataError, "model.safetensors"):
        finetune()


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    """Hugging Face's BertForMaskedLM, which has no pooler; with random weights."""
    config = model_config(vocab_size=len(WORDS), pooler=False)
    model = randomize(build(BertEncoder(config), "masked_lm"), scale=0.1)
    tensors = {
        name if name.startswith("cls.") else f"bert.{name}": np.ascontiguousarray(value)
        for name, value in tensors_of(model, 16).items()
    }
    folder = tmp_path_factory.mktemp("masked_lm")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    shape |= {"vocab_size": len(WORDS), "max_position_embeddings": 32}
    kind = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_act": "gelu_new"}
    (folder / "config.json").write_text(json.dumps(kind | shape))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


TRAINING = f"{HEADER}w1 w2\ta\nw3\tb\n\tb\n \ta\n"


@pytest.fixture(scope="module")
def unreported(masked_lm, tmp_path_factory):
    """Folder of a fine-tuning of `masked_lm` whose report failed, what it wrote to stderr, and its warnings."""
    folder, tracing, errors, warnings = tmp_path_factory.mktemp("unreported"), [], io.StringIO(), []
    postprocess = LabelsCodec.postprocess

    def traced(*arguments):
        tracing.append(threading.current_thread() is threading.main_thread())
        return postprocess(*arguments)

    class WithoutRoom(FileReporter):
        def evaluation(self, *_):
            raise OSError("no room")

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(errors):
        patch.setattr(LabelsCodec, "postprocess", traced)
        patch.setattr(logging, "warning", lambda text, *values: warnings.append(text % values))
        with pytest.raises(OSError, match="no room"):
            finetuner(folder, masked_lm)(TRAINING, reporter=WithoutRoom())
    assert tracing == [False]  # once, while TensorFlow prepared the first update
    return folder, errors.getvalue(), warnings


def test_a_failed_report_loses_no_model_and_is_written_when_the_run_resumes(unreported, masked_lm, tmp_path):
    assert "learning rate is 0.0024, by the model's width of 16" in unreported[1]
    model = shutil.copytree(unreported[0] / "model", tmp_path / "model")
    saved = (model / "model.safetensors").read_bytes()
    results = finetuner(tmp_path, masked_lm)(TRAINING, reporter=FileReporter())
    assert results["skipped"] == {"train": {"skipped: empty text": 2}, "validation": {}}
    assert (model / "report.html").is_file() and results["steps"] == TRAIN.steps
    # The schedule ends with its last update, which has the rate of one update before: half of the peak after two.
    assert results["config"]["train"]["learning_rate"] == 0.0024
    assert results["history"][-1]["learning_rate"] == pytest.approx(0.0012)
    assert (model / "model.safetensors").read_bytes() == saved


def test_a_masked_lm_is_finetuned_with_a_new_pooler_drawn_from_the_seed(unreported, masked_lm, tmp_path, begun):
    assert any("the checkpoint has no pooler; a new, untrained one is added" in line for line in unreported[2])
    _, model = directory.load_task(str(unreported[0] / "model"))
    trained = {variable.path: variable.numpy() for variable in model.weights}
    assert trained["pooler/kernel"].any() and trained["classifier/kernel"].any()
    # Two updates, at the rates 0.0024 and 0.0012, hardly change the weights: the encoder is the given one.
    given = load_file(masked_lm / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    np.testing.assert_allclose(trained["embeddings/word_embeddings"], given, atol=4e-3)
    drawn = []
    for seed in (98, 99):  # earlier random draws do not matter
        keras.utils.set_random_seed(seed)
        drawn.append(begun(finetuner(tmp_path, masked_lm)).model.weights)
    for one, other in zip(*drawn, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)
        np.testing.assert_allclose(one.numpy(), trained[one.path], atol=4e-3, err_msg=one.path)


def test_a_checkpoint_without_a_vocabulary_is_refused(finetune, pretrained, tmp_path):
    config = json.loads((pretrained / "config.json").read_text())
    (pretrained / "config.json").write_text(json.dumps(config | {"tokenizer": {}}))
    with raises(DataError, "pretrained: no vocabulary to tokenize text with"):
        finetune()
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_a_run_killed_after_its_last_checkpoint_writes_model_and_results_on_resume(pretrain, tmp_path, monkeypatch):
    model = tmp_path / "model"
    finished = pretrain(sentences())
    (model / "old.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    assert pretrain(sentences()) == finished  # read from disk: nothing is trained or evaluated again

    longer = {"train": dataclasses.replace(TRAIN, steps=3), "accept_config_change": True}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(directory, "save_all", Mock(side_effect=KeyboardInterrupt))
        pretrain(sentences(), **longer)
    results = pretrain(sentences(), **longer)
    assert results["steps"] == 3 and json.loads((model / "results.json").read_text())["steps"] == 3
    new, old = (load_file(model / f"{name}.safetensors") for name in ("model", "old"))
    assert any((new[name] != old[name]).any() for name in old)
    steps = [
        json.loads(line)["step"] for line in (model / "history.jsonl").read_text().splitlines() if "resume" in line
    ]
    assert steps == [2]  # only after further training


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [{"mask_on": "device", "pairs": "sop"}, {"pack": True}],
    ids=["on device", "packed"],
)
def test_a_dry_run_prints_the_plan_and_writes_nothing(pretrain, tmp_path, fields):
    data = PretrainingData(max_length=32, max_predictions=3, **fields)
    shown = plan_text(pretrain(sentences(), data=data, dry_run=True))
    assert not (tmp_path / "model").exists()
    for part in ("Parameters", "kept for the backward pass", "(counted)", "updates  batch", ">MASK]", "[SEP]"):
        assert part in shown
    assert ("swapped" in shown) == (data.pairs == "sop")
    assert max(map(len, shown.splitlines())) <= 120
