"""The Python API: the same answers, weights and metrics as the programs, on values in memory."""

import contextlib
import math
import shutil

import numpy as np
import pandas
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.api.base import history_of
from bert_tf.api.plain_values import listed
from bert_tf.checkpoints import directory
from bert_tf.checkpoints.conversion import WRITERS
from bert_tf.checkpoints.formats import huggingface
from bert_tf.config import ClassificationConfig, ExampleData, FinetuneConfig, TaggingConfig, TrainConfig
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.inputs.datasets.conll import read_klue_ner
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.training.loop import Loop
from bert_tf.training.runs import finetuning
from tests import packages, zoo
from tests.checkpoints.small import FAMILIES, small_checkpoint
from tests.errors import raises
from tests.model import numpy_bert
from tests.model.small import multiplies_bfloat16, randomize, small_config
from tests.zoo import LENGTH, VOCABULARY

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
GOOD = ["the good.", "good, the", "the the good", "good good!", "the good?"]
BAD = ["a b c", "c b a", "b b", "c the a", "a, b."]
TEXTS, LABELS = [*GOOD, *BAD], ["good"] * len(GOOD) + ["bad"] * len(BAD)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A pre-trained model with its masked-language-model head."""
    path = str(tmp_path_factory.mktemp("pretrained"))
    encoder = zoo.encoder()
    task = MaskedLM(bert_tf.Tokenizer(VOCABULARY), LENGTH)
    directory.save(path, randomize(task.build(encoder)), encoder, task)
    return path


SETTINGS = {"epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "dtype": "float32", "seed": 3}


@pytest.fixture(scope="module")
def fitted(pretrained):
    """A classifier, and what `fit` returned."""
    classifier = bert_tf.TextClassifier.from_pretrained(pretrained, max_length=LENGTH)
    return classifier, classifier.fit(TEXTS, LABELS, validation_data=(TEXTS[3:7], LABELS[3:7]), **SETTINGS)


def test_fit_gives_the_weights_and_metrics_of_finetune_on_the_same_rows(fitted, pretrained, tmp_path):
    classifier, history = fitted
    for name, chosen in (("train", slice(None)), ("dev", slice(3, 7))):
        rows = "".join(f"{text}\t{label}\n" for text, label in zip(TEXTS[chosen], LABELS[chosen], strict=True))
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + rows)
    config = FinetuneConfig(ClassificationConfig(max_length=LENGTH), ExampleData(text="text"), TrainConfig(**SETTINGS))
    results = finetuning.finetune(config, str(tmp_path), pretrained, str(tmp_path / "run"), STRATEGY)
    classifier.save(tmp_path / "saved")
    assert (tmp_path / "saved/model.safetensors").read_bytes() == (tmp_path / "run/model.safetensors").read_bytes()
    evaluations = results["evaluations"]
    assert history.epoch == [0, 1]
    assert history.history["val_accuracy"] == [row["accuracy"] for row in evaluations]
    assert history.history["val_loss"] == [row["loss"] for row in evaluations]
    metrics = classifier.evaluate(np.array(TEXTS[3:7]), LABELS[3:7], batch_size=4)
    assert metrics == {name: results["final"][name] for name in metrics}


@pytest.mark.slow
def test_fit_reads_a_file_as_finetune_does(pretrained, tmp_path):
    """The labels of GLUE in its own order, in a folder and in files."""
    rows = "".join(f"{text}\t{len(text) % 2}\n" for text in TEXTS)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + rows)
    train, dev = bert_tf.read("glue/sst2", tmp_path), bert_tf.read("glue/sst2", tmp_path / "dev.tsv")
    settings = {**SETTINGS, "epochs": 1}
    data, train_config = ExampleData(format="glue/sst2"), TrainConfig(**settings)
    config = FinetuneConfig(ClassificationConfig(max_length=LENGTH), data, train_config)
    results = finetuning.finetune(config, str(tmp_path), pretrained, str(tmp_path / "run"), STRATEGY)
    classifier = bert_tf.TextClassifier.from_pretrained(pretrained, max_length=LENGTH)
    history = classifier.fit(train, validation_data=dev, **settings)
    assert history.history["val_score"] == [row["score"] for row in results["evaluations"]]
    classifier.save(tmp_path / "saved")
    for file in (
        "model.safetensors",
        "config.json",
    ):  # with the format, so that `evaluate` reads the same kind of files
        assert (tmp_path / "saved" / file).read_bytes() == (tmp_path / "run" / file).read_bytes()
    assert classifier.evaluate(dev, batch_size=4)["score"] == results["final"]["score"]
    assert classifier.predict(dev) == classifier.predict(dev.x)
    assert classifier.evaluate(dev.x, dev.y, batch_size=4)["score"] == results["final"]["score"]
    with raises(ConfigError, "'glue/sst2'", "TokenClassifier"):
        bert_tf.TokenClassifier.from_pretrained(pretrained).fit(train)


@pytest.mark.slow
def test_a_tagger_of_klues_characters_is_that_of_finetune(tmp_path):
    """Real named entities; the vocabulary is their characters."""
    whole = packages.shared("korean/klue/klue-ner-v1.1_dev.tsv").read_text(encoding="utf-8")
    sentences = whole.split("\n\n")
    for part, count in (("train", 64), ("dev", 16)):
        path = tmp_path / f"klue-ner-v1.1_{part}.tsv"
        path.write_text("\n\n".join(sentences[:count]) + "\n\n", encoding="utf-8")
    examples = list(read_klue_ner(str(tmp_path / "klue-ner-v1.1_train.tsv")))
    letters = sorted({letter for example in examples for letter in example.text if letter.strip()})
    tokenizer = bert_tf.Tokenizer(
        [*VOCABULARY[:5], *letters, *(f"##{letter}" for letter in letters)], lower_case=False, split_cjk=False
    )
    shape = small_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=LENGTH, num_layers=1)
    encoder = bert_tf.BertEncoder(shape)
    task = MaskedLM(tokenizer, LENGTH)
    directory.save(str(tmp_path / "init"), randomize(task.build(encoder)), encoder, task)

    train, dev = (bert_tf.read("klue/ner", tmp_path, split) for split in ("train", "validation"))
    assert [(example.text, example.tags) for example in examples] == list(
        zip(train.x, map(tuple, train.y), strict=True)
    )
    assert list(train.examples) == examples and len(dev) == 16 and any(tag != "O" for tag in dev.y[0])
    settings = {**SETTINGS, "epochs": 1, "batch_size": 16}
    config = FinetuneConfig(TaggingConfig(max_length=LENGTH), ExampleData(format="klue/ner"), TrainConfig(**settings))
    results = finetuning.finetune(config, str(tmp_path), str(tmp_path / "init"), str(tmp_path / "run"), STRATEGY)
    expected = {name: value for name, value in results["final"].items() if "macro_f1" in name or name == "accuracy"}
    assert len(expected) == 3
    tagger = bert_tf.TokenClassifier.from_pretrained(tmp_path / "init", max_length=LENGTH)
    tagger.fit(train.x, train.y, validation_data=(dev.x, dev.y), **settings)
    tagger.save(tmp_path / "saved")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "saved" / file).read_bytes() == (tmp_path / "run" / file).read_bytes()
    for metrics in (tagger.evaluate(dev), tagger.evaluate(dev.x, dev.y)):
        assert {name: metrics[name] for name in expected} == expected
    # A run of the program, asked in Python: a tag and a score for each character, none for spaces.
    (prediction,) = bert_tf.TokenClassifier.from_pretrained(tmp_path / "run").predict(dev.x[:1])
    assert prediction["words"] == list(dev.x[0]) and len(prediction["tags"]) == len(dev.x[0])
    assert [score > 0 for score in prediction["scores"]] == [letter != " " for letter in dev.x[0]]
    with raises(DataError, "x[0]"):
        tagger.predict([dev.x[0].split()])
    with raises(DataError, "x[0]", "2 characters", "1 tags"):
        tagger.fit(["가나"], [["O"]])


def opened_by(kind, pretrained, folder):
    """The folder with the pre-trained encoder in a format."""
    if kind == "ours":
        shutil.copytree(pretrained, folder)
    else:
        folder.mkdir()
        WRITERS[kind].write(directory.read(pretrained), str(folder))
    return folder


@pytest.mark.parametrize("kind", ["ours", "google"])
def test_fit_starts_from_the_weights_that_were_opened_whatever_became_of_their_place(
    pretrained, tmp_path, kind, monkeypatch
):
    folder = opened_by(kind, pretrained, tmp_path / "model")
    classifier = bert_tf.TextClassifier.from_pretrained(folder, max_length=LENGTH)
    train = Loop.run

    class Begun(Exception):
        pass

    def weights(trains=False):
        """With which `fit` begins."""
        found = []

        def run(loop):
            found.extend(weight.numpy() for weight in loop.trainer.model.weights)
            if not trains:
                raise Begun
            return train(loop)

        monkeypatch.setattr(Loop, "run", run)
        with contextlib.nullcontext() if trains else pytest.raises(Begun):
            classifier.fit(TEXTS, LABELS, **SETTINGS | {"epochs": 1})
        return found

    first = weights(trains=kind == "ours")
    if kind == "ours":  # other formats are not overwritten
        trained = [weight.numpy() for weight in classifier.model.weights]
        assert not all(map(np.array_equal, trained, first))
        classifier.save(folder)
        assert directory.read(folder).task["name"] == "classification"
    else:
        shutil.rmtree(folder)
    again = weights()
    shutil.rmtree(folder, ignore_errors=True)
    for one, *others in zip(first, again, weights(), strict=True):
        for other in others:
            np.testing.assert_array_equal(other, one)


def test_a_label_that_the_classifier_does_not_have_counts_as_an_error(fitted, capsys):
    found = [one["label"] for one in fitted[0].predict(TEXTS[3:7], batch_size=4)]
    metrics = fitted[0].evaluate(TEXTS[3:7], [*found[:3], "other"], batch_size=4)
    assert metrics["accuracy"] == 0.75
    line = "validation examples: never predicted: label 'other', not in the training data: 1 (x[3])"
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.slow
@multiplies_bfloat16
def test_predictions_in_bfloat16_are_those_of_float32_rounded_and_the_weights_stay(fitted, tmp_path):
    classifier, _ = fitted
    classifier.save(tmp_path / "model")
    rounded = bert_tf.TextClassifier.from_pretrained(tmp_path / "model", dtype="bfloat16")
    shares = [[list(one["probabilities"].values()) for one in each.predict(TEXTS)] for each in (classifier, rounded)]
    difference = np.abs(np.subtract(*shares)).max()
    assert 1e-5 < difference < 0.02
    metrics = [each.evaluate(TEXTS, LABELS)["loss"] for each in (classifier, rounded)]
    assert metrics[0] != metrics[1] and math.isclose(*metrics, rel_tol=0.05)
    # The Keras model itself, called without a graph.
    features = rounded.tokenizer.encode(TEXTS, max_length=LENGTH)
    eager = tf.nn.softmax(rounded.model(features)["logits"])
    np.testing.assert_allclose(eager, shares[1], atol=0.02)
    rounded.save(tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "model/model.safetensors").read_bytes()


def test_inputs_of_every_type_give_the_same_predictions(fitted):
    classifier, _ = fitted
    expected = classifier.predict(TEXTS)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS)
    for texts in (np.array(TEXTS), pandas.Series(TEXTS), iter(TEXTS), dataset, dataset.batch(3)):
        assert classifier.predict(texts) == expected


def test_a_directory_keeps_the_run_which_goes_on_with_the_same_examples_only(pretrained, tmp_path, monkeypatch):
    """With pairs and integer labels in a tf.data.Dataset."""
    pairs = [(first, second) for first, second in zip(TEXTS, reversed(TEXTS), strict=True)]
    labels = np.arange(len(pairs)) % 3
    dataset = tf.data.Dataset.from_tensor_slices((pairs, labels))
    dataset = dataset.map(lambda pair, label: ((pair[0], pair[1]), label))
    classifier = bert_tf.TextClassifier.from_pretrained(pretrained, max_length=LENGTH)
    settings = {**SETTINGS, "epochs": 1, "directory": tmp_path}
    history = classifier.fit(dataset, **settings)
    assert "val_loss" not in history.history and len(history.history["loss"]) == 1
    assert {"checkpoints", "model.safetensors", "results.json", "curves.png"} <= {
        one.name for one in tmp_path.iterdir()
    }
    (prediction,) = classifier.predict(pairs[:1])
    assert prediction["label"] in (0, 1, 2) and list(prediction["probabilities"]) == [0, 1, 2]
    modified = (tmp_path / "model.safetensors").stat().st_mtime_ns
    classifier.fit(dataset, **settings)  # the run is finished: no further training
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == modified
    monkeypatch.setattr("bert_tf.tasks.labels._order", lambda label: -int(label))  # the examples are read differently
    with raises(ConfigError, "inputs.examples.train"):
        classifier.fit(dataset, **settings)


@pytest.mark.parametrize("format", [directory, huggingface])
def test_masked_lm_refers_from_a_discriminator_to_its_generator(tmp_path, format):
    checkpoint = small_checkpoint("replaced_token_detection", **FAMILIES["electra"])
    format.write(checkpoint, str(tmp_path))
    with raises(DataError, tmp_path, "a discriminator", "load its generator (PATH/generator"):
        bert_tf.MaskedLM.from_pretrained(tmp_path)


def test_masked_lm_fills_each_mask_with_the_models_predictions(pretrained):
    model = bert_tf.MaskedLM.from_pretrained(pretrained)
    texts = ["the [MASK] good [MASK]", "good", "a [MASK]"]
    filled = model.predict(texts, batch_size=2)
    assert [len(masks) for masks in filled] == [2, 0, 1]
    # The Keras model by hand: the position of the only mask of the last text.
    ids = model.tokenizer.tokenize([texts[2]], special_tokens=True).to_list()[0]
    ids = [model.tokenizer.cls_id, *ids, model.tokenizer.sep_id]
    features = {"input_word_ids": [ids], "input_mask": [[1] * len(ids)], "input_type_ids": [[0] * len(ids)]}
    features |= {"masked_lm_positions": [[ids.index(model.tokenizer.mask_id)]]}
    logits = model.model({name: np.array(value, np.int32) for name, value in features.items()})["mlm_logits"][0, 0]
    best = int(np.argmax(logits))
    assert "##" * filled[2][0][0]["continues"] + filled[2][0][0]["token"] == VOCABULARY[best]
    np.testing.assert_allclose(filled[2][0][0]["probability"], float(tf.nn.softmax(logits)[best]), rtol=1e-4)


def test_sentence_vectors_are_means_of_the_reference_encoder(pretrained):
    sentences = bert_tf.SentenceEncoder.from_pretrained(pretrained)
    vectors = sentences.encode(TEXTS, batch_size=3)
    assert vectors.shape == (len(TEXTS), 32) and vectors.dtype == np.float32
    tensors = numpy_bert.tensors_of(sentences.encoder, 32)
    for text, vector in zip(TEXTS, vectors, strict=True):
        features = {name: value.numpy() for name, value in sentences.tokenizer.encode([text]).items()}
        states, _, _ = numpy_bert.encode(tensors, features, layers=1, heads=4, activation="tanh_gelu")
        np.testing.assert_allclose(vector, states[0].mean(0), atol=1e-5)
    assert sentences.encode([]).shape == (0, 32)


def test_encode_returns_the_inputs_of_the_encoder(pretrained):
    encoder, tokenizer = bert_tf.load(pretrained)
    inputs = tokenizer.encode(["the good", "a"], ["good, a", "b"], max_length=8)
    cls, sep, pad = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    the, good, comma, a, b = map(VOCABULARY.index, ["the", "good", ",", "a", "b"])
    assert inputs["input_word_ids"].numpy().tolist() == [
        [cls, the, good, sep, good, comma, a, sep],
        [cls, a, sep, b, sep, pad, pad, pad],
    ]
    assert inputs["input_type_ids"].numpy().tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert inputs["input_mask"].numpy().tolist() == [[1] * 8, [1] * 5 + [0] * 3]
    assert encoder(inputs)["sequence_output"].shape == (2, 8, 32)
    cut = tokenizer.encode(["the good"], ["good, a"], max_length=7)["input_word_ids"]
    assert cut.numpy().tolist() == [[cls, the, good, sep, good, comma, sep]]
    with raises(ConfigError, "as many pairs"):
        tokenizer.encode(["the", "a"], ["b"])


def test_history_has_a_value_per_epoch_also_of_short_and_partial_runs():
    def results(steps, evaluated):
        points = [{"kind": "training", "step": step, "loss": float(step)} for step in range(10, steps + 1, 10)]
        rows = [{"kind": "evaluation", "step": step, "accuracy": step / 1000} for step in evaluated]
        return {"steps": steps, "steps_per_epoch": 100, "history": points, "evaluations": rows}

    for steps, evaluated in ((200, [100, 200]), (250, [100, 200, 250]), (100, [100])):
        history = history_of(results(steps, evaluated))
        assert history.epoch == list(range(len(evaluated)))
        assert history.history["val_accuracy"] == [step / 1000 for step in evaluated]
    assert history_of(results(200, [])).history == {"loss": [55.0, 155.0]}


def test_values_of_other_libraries_become_plain_python():
    frame = pandas.DataFrame({"a": ["x", "y"], "b": [1, 2]})
    assert listed(frame.itertuples(index=False), "x") == [("x", 1), ("y", 2)]
    pairs = tf.data.Dataset.from_tensor_slices((np.array([["a", "b"], ["c", "d"]]), [0, 1]))
    assert listed(pairs, "x") == [(["a", "b"], 0), (["c", "d"], 1)]
    assert listed(tf.data.Dataset.from_tensor_slices({"question": ["q"]}), "x") == [{"question": "q"}]
    words = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([["a"], ["b", "c"]]))
    assert listed(words, "x", 1) == [["a"], ["b", "c"]]
    with raises(ConfigError, "endless"):
        listed(pairs.repeat(), "x")


def test_columns_of_label_matrices_are_matched_by_name(pretrained):
    model = bert_tf.MultiLabelClassifier.from_pretrained(pretrained, labels=("p", "q"))
    frame = pandas.DataFrame({"q": [1, 0], "p": [0, 0]})
    assert model._listed_labels(frame, "x") == [("q",), ()]
    assert model._listed_labels(frame[["p", "q"]].to_numpy(), "x") == [("q",), ()]
    with raises(DataError, "q, r", "p, q"):
        model._listed_labels(frame.rename(columns={"p": "r"}), "x")
    with raises(DataError, "NumPy", "0", "1"):
        model.fit(["a", "b"], [[1, 0], [0, 1]])


def test_mistakes_are_one_line_errors(fitted, pretrained, tmp_path):
    classifier, _ = fitted
    (tmp_path / "train.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    texts = bert_tf.read("glue/sst2", tmp_path)
    untrained = bert_tf.TextClassifier.from_pretrained(pretrained)
    for error, call in (
        ("call fit first", lambda: untrained.predict(["a"])),
        ("has no labels", lambda: classifier.fit(["a", "b"])),
        ("no classification head", lambda: untrained.save("never")),
        ("2 words and 1 tags", lambda: bert_tf.TokenClassifier.from_pretrained(pretrained).fit([["a", "b"]], [["O"]])),
        ("no answer", lambda: bert_tf.QuestionAnswerer.from_pretrained(pretrained).fit([("q", "c")], [None])),
        ("no such directory", lambda: bert_tf.TextClassifier.from_pretrained("missing")),
        (
            "'glue/sst2', which is for another class than TokenClassifier; for this one: .*conll",
            lambda: bert_tf.TokenClassifier.from_pretrained(pretrained).fit(texts),
        ),
    ):
        with pytest.raises(BertTfError, match=error) as caught:
            call()
        assert "\n" not in str(caught.value)
