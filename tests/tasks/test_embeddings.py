"""Training of sentence encoders through the Python API, and the examples that it reads."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import bert_tf
from bert_tf.config import DenseConfig, EmbeddingConfig, EmbeddingsConfig, ExampleData
from bert_tf.errors import ConfigError, DataError
from bert_tf.inputs.datasets.examples import ReadReport, TextGroup
from bert_tf.inputs.datasets.sources import Source
from bert_tf.model.sentence_vectors import SentenceVectors
from tests.errors import raises
from tests.training.embeddings import task_of
from tests.training.small import Stop
from tests.zoo import pretrained

PAIRS = [("a b", "c d"), ("the good", "a b c"), ("c", "d a"), ("b", "good good"), ("a the", "c c")]
TRIPLETS = [(*pair, "the the d") for pair in PAIRS]
TEXTS = [first for first, _ in PAIRS]
SETTINGS = {"epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "dtype": "float32", "verbose": False, "seed": 1}


@pytest.fixture(scope="module")
def encoder():
    return bert_tf.SentenceEncoder.from_pretrained(pretrained())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An encoder trained on pairs, its history, and the directory of the run."""
    folder = tmp_path_factory.mktemp("run") / "pairs"
    model = bert_tf.SentenceEncoder.from_pretrained(pretrained(), max_length=16)
    history = model.fit(PAIRS, validation_data=PAIRS, directory=folder, save_every=1, **SETTINGS)
    return model, history, folder


def test_training_brings_texts_together_that_belong_together(encoder):
    model = bert_tf.SentenceEncoder.from_pretrained(pretrained())
    history = model.fit(PAIRS, schedule="constant", **SETTINGS | {"epochs": 60, "batch_size": 5})
    assert history.history["loss"][-1] < history.history["loss"][0]
    before, after = (one.evaluate(PAIRS) for one in (encoder, model))
    assert after["mrr@10"] > before["mrr@10"] + 0.2
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS), atol=1e-3)


def test_a_trained_encoder_is_saved_loaded_and_exported_like_a_published_one(trained, tmp_path):
    model, _, folder = trained
    expected = model.encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, rtol=1e-5)  # new ones have length 1
    model.save(tmp_path / "saved")
    for path in (folder, tmp_path / "saved"):
        np.testing.assert_array_equal(bert_tf.SentenceEncoder.from_pretrained(path).encode(TEXTS), expected)
    path = model.export(tmp_path / "served", check=False).path
    served = tf.saved_model.load(path).signatures["serving_default"](tf.constant(TEXTS))["vector"]
    np.testing.assert_allclose(served, expected, atol=1e-5)
    results = json.loads((folder / "results.json").read_text())
    assert results["task"] == "embeddings" and results["measure"] == ["mrr@10", "max"]


def test_vectors_are_cut_and_rounded_at_export(encoder, tmp_path):
    expected = encoder.encode(TEXTS)[:, :16]
    for values, dtype, closeness in (("float16", tf.float16, 1e-5), ("int8", tf.int8, 1e-3)):
        path = encoder.export(tmp_path / values, size=16, values=values, check=values == "int8").path
        vectors = tf.saved_model.load(path).signatures["serving_default"](tf.constant(TEXTS))["vector"]
        assert vectors.dtype == dtype and vectors.shape == (5, 16)
        found = vectors.numpy().astype(float)
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
        np.testing.assert_allclose(np.sum(found * expected, 1) / lengths, 1, atol=closeness)
    with raises(ConfigError, "size", "99", "32"):
        encoder.export(tmp_path / "x", size=99)
    with raises(ConfigError, "values", "SavedModel"):
        encoder.export(tmp_path / "x", format="onnx", values="int8")


def test_metrics_of_fit_are_those_of_evaluate_and_of_the_vectors(trained):
    model, history, _ = trained
    metrics = model.evaluate(PAIRS)
    assert {name: values[-1] for name, values in history.history.items() if name.startswith("val_")} == {
        f"val_{name}": pytest.approx(value, rel=1e-5) for name, value in metrics.items()
    }
    vectors = [model.encode([pair[place] for pair in PAIRS]) for place in (0, 1)]
    ranks = [1 + np.sum(scores > scores[row]) for row, scores in enumerate(vectors[0] @ vectors[1].T)]  # no equal ones
    assert metrics["mrr@10"] == pytest.approx(np.mean(1 / np.array(ranks)))
    assert metrics["recall@1"] == pytest.approx(np.mean(np.array(ranks) == 1))


def test_scored_pairs_are_evaluated_by_correlations_of_their_cosines(encoder):
    numbers = [0.1, 0.9, 0.4, 0.5, 0.2]
    vectors = [encoder.encode([pair[place] for pair in PAIRS]) for place in (0, 1)]
    first, second = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in vectors)
    cosines = np.sum(first * second, 1)
    metrics = encoder.evaluate(PAIRS, numbers)
    assert metrics["spearman"] == pytest.approx(stats.spearmanr(cosines, numbers)[0])
    assert metrics["pearson"] == pytest.approx(stats.pearsonr(cosines, numbers)[0], abs=1e-5)


def test_classes_are_evaluated_by_the_nearest_other_text(encoder):
    classes = ["u", "v", "u", "v", "u"]
    vectors = encoder.encode(TEXTS)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    products = vectors @ vectors.T - 9 * np.eye(5)
    expected = np.mean([classes[int(row.argmax())] == own for row, own in zip(products, classes, strict=True)])
    assert encoder.evaluate(TEXTS, classes)["accuracy"] == pytest.approx(expected)


def test_a_student_learns_the_vectors_of_its_teacher(trained):
    teacher, _, folder = trained
    student = bert_tf.SentenceEncoder.from_pretrained(pretrained())
    history = student.fit(PAIRS, teacher=folder, **SETTINGS | {"epochs": 20})
    assert history.history["loss"][-1] < history.history["loss"][0]
    # The second texts learn the vectors of the first ones, as translations do.
    expected = teacher.encode(TEXTS)
    for place in (0, 1):
        before, after = (
            np.mean((one.encode([pair[place] for pair in PAIRS]) - expected) ** 2)
            for one in (bert_tf.SentenceEncoder.from_pretrained(pretrained()), student)
        )
        assert after < before


@pytest.mark.slow
@pytest.mark.parametrize(
    "x, y, settings",
    [
        (TRIPLETS, None, {"objective": "triplet"}),
        (TRIPLETS, None, {"matryoshka": (32, 8), "both_directions": True}),
        (PAIRS, [1, 5, 2, 3, 4], {"objective": "cosine"}),
        (TRIPLETS, [[1.0, 0.5]] * 5, {"objective": "kl", "temperature": 2.0}),
        (TRIPLETS, [[1.0, 0.5]] * 5, {}),
        (TEXTS, ["u", "v", "u", "v", "u"], {}),
        (PAIRS, None, {"query_prompt": "a ", "passage_prompt": "b "}),
    ],
)
def test_each_kind_of_examples_trains(x, y, settings, tmp_path):
    shutil.copytree(pretrained(), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"] |= {"dropout": 0.0, "attention_dropout": 0.0}  # whose noise is larger than what is learned
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = bert_tf.SentenceEncoder.from_pretrained(tmp_path)
    train = SETTINGS | {"epochs": 15, "batch_size": 5}
    history = model.fit(x, y, validation_data=(x, y), **settings, **train)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert np.isfinite(model.encode(TEXTS)).all()
    if "query_prompt" in settings:
        assert model.prompts == {"query": "a ", "passage": "b "}


def test_a_stopped_run_resumes_bit_for_bit(trained, tmp_path, monkeypatch):
    model, _, _ = trained

    def stop(self, epoch, logs=None):
        raise Stop

    callback = type("Callback", (bert_tf.api.sentence_encoder.keras.callbacks.Callback,), {"on_epoch_end": stop})()
    again = bert_tf.SentenceEncoder.from_pretrained(pretrained(), max_length=16)
    with pytest.raises(Stop):
        again.fit(PAIRS, validation_data=PAIRS, directory=tmp_path, save_every=1, callbacks=[callback], **SETTINGS)
    again.fit(PAIRS, validation_data=PAIRS, directory=tmp_path, save_every=1, **SETTINGS)
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))


BAD = {
    "a class of pairs": ({"x": PAIRS, "y": ["u"] * 5}, DataError, ("x[0]", "'u'", "number")),
    "all the same": ({"x": [("a", "b")] * 3}, DataError, ("x[0]", "same second text")),
    "nothing to learn": ({"x": TEXTS}, DataError, ("x[0]", "pair", "teacher")),
    "one number": ({"x": PAIRS, "y": [1] * 5}, DataError, ("x[0]", "1", "different")),
    "one class": ({"x": TEXTS, "y": ["u"] * 5}, DataError, ("x[0]", "'u'", "several")),
    "too few labels": ({"x": PAIRS, "y": [1, 2]}, DataError, ("5 inputs", "2 labels")),
    "negative is positive": ({"x": [("a", "b", "b"), ("c", "d", "b")]}, DataError, ("x[0]", "negative")),
    "scores": ({"x": TRIPLETS, "y": [[1.0]] * 5}, DataError, ("x[0]", "1 scores", "2 texts")),
    "mixed": ({"x": [*PAIRS, "a"]}, DataError, ("x[5]", "single text")),
    "no text": ({"x": [("a", 1)]}, DataError, ("x[0]", "text")),
    "size": ({"x": PAIRS, "matryoshka": (64,)}, ConfigError, ("matryoshka", "64", "32")),
    "objective": ({"x": PAIRS, "objective": "triplet"}, ConfigError, ("triplet", "pairs", "in_batch")),
    "argument": ({"x": PAIRS, "margn": 1}, ConfigError, ("margn",)),
    "numbers": ({"x": PAIRS, "validation_data": (PAIRS, [1, 2, 3, 4, 5])}, DataError, ("scored pairs", "pairs")),
    "no class": (
        {"x": TEXTS, "y": [*"uvuvu"], "validation_data": PAIRS},
        DataError,
        ("validation x[0]", "pairs", "classes"),
    ),
    "label twice": ({"x": [{"query": "a", "positive": "b", "score": 1}], "y": [1]}, DataError, ("x[0]", "score", "y")),
    "classes": ({"x": PAIRS, "validation_data": (TEXTS, ["u", "v", "u", "v", "u"])}, DataError, ("classes", "pairs")),
    "alone": ({"x": PAIRS, "batch_size": 1}, ConfigError, ("train.batch_size is 1", "2")),
    "fraction": ({"x": TEXTS, "y": [1, 2, 2.5, 1, 2]}, DataError, ("x[2]", "2.5")),
    "two kinds": ({"x": TEXTS, "y": [1, "1", 2, 2, 1]}, DataError, ("x[0]", "x[1]", "text")),
    "no class twice": ({"x": TEXTS, "y": [*"uvwxy"]}, DataError, ("x[0]", "several texts")),
    "labels and a teacher": ({"x": PAIRS, "y": [1, 2, 3, 4, 5], "teacher": "no"}, ConfigError, ("y", "teacher")),
    "recipe": ({"x": PAIRS, "recipe": "google"}, ConfigError, ("train.normalization", "'global'")),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_arguments_of_fit_are_one_line(encoder, case):
    given, kind, named = BAD[case]
    with raises(kind, *named):
        encoder.fit(**given, epochs=1, verbose=False)


def test_a_teacher_of_another_size_needs_a_dense_layer(encoder):
    small = bert_tf.SentenceEncoder.from_pretrained(pretrained())
    small.fit(PAIRS, vectors=EmbeddingConfig(pool="mean", dense=(DenseConfig(units=8),)), **SETTINGS)
    assert small.encode(["a"]).shape == (1, 8)
    with raises(ConfigError, "8", "32", "dense layer"):
        encoder.fit(PAIRS, teacher=small, epochs=1, verbose=False)


# Files.


def read(path, format="groups", part="train", **data):
    report = ReadReport()
    source = Source(ExampleData(format=format, **data), str(path), TextGroup)
    return list(source.examples(report, part)), report


FILES = {
    "pairs.jsonl": '{"query": "a", "positive": "b"}\n{"anchor": "c", "positive": "d", "negative": "e"}\n',
    "lists.jsonl": '{"query": "a", "positive": "b", "negatives": []}\n{"texts": ["c", "d", "e"]}\n',
    "table.tsv": "anchor\tpositive\tnegative_1\na\tb\t\nc\td\te\n",
    "table.csv": 'query,positive,negative\na,b,\n"c",d,e\n',
}


@pytest.mark.parametrize("name", FILES)
def test_groups_are_read_from_json_lines_and_tables(tmp_path, name):
    (tmp_path / name).write_text(FILES[name])
    examples, _ = read(tmp_path / name)
    assert [example.texts for example in examples] == [("a", "b"), ("c", "d", "e")]
    assert [example.label for example in examples] == [None, None]


def test_labels_are_numbers_classes_or_scores(tmp_path):
    lines = [{"sentence1": "a", "sentence2": "b", "score": 4}, {"text": "a", "label": "x"},
             {"query": "a", "positive": "b", "negatives": ["c", "d"], "scores": [3, 1.5, 0]}]  # fmt: skip
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [example.label for example in read(tmp_path / "x.jsonl")[0]] == [4, "x", (3, 1.5, 0)]


def test_files_of_other_tasks_are_read_as_groups(tmp_path):
    (tmp_path / "dev.tsv").write_text("genre\tscore\tsentence1\tsentence2\nx\t4.5\ta\tb\n")
    examples, _ = read(tmp_path, "glue/stsb", "validation")
    assert examples[0].texts == ("a", "b") and float(examples[0].label) == 4.5
    paragraph = {
        "context": "b c",
        "qas": [{"id": "1", "question": "a?", "answers": [{"text": "b", "answer_start": 0}]}],
    }
    (tmp_path / "x.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}], "version": "1"}))
    assert [example.texts for example in read(tmp_path / "x.json", "squad")[0]] == [("a?", "b c")]


@pytest.fixture
def beir(tmp_path):
    lines = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "title": "", "text": "two"}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "which?"}\n{"_id": "q2", "text": "none?"}\n')
    (tmp_path / "qrels").mkdir()
    table = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td9\t1\n"
    (tmp_path / "qrels" / "train.tsv").write_text(table)
    return tmp_path


def test_judgements_of_beir_are_pairs_and_unknown_ids_are_counted(beir):
    examples, report = read(beir, "beir")
    assert [example.texts for example in examples] == [("which?", "T one")]
    assert report.counts == {"skipped: judgement of an unknown id": 1}


def test_wrong_lines_are_named(tmp_path):
    for line, named in {
        '{"positive": "b"}': ("1", "'query'"),
        '{"query": "a", "negatives": ["c"]}': ("1", "negatives", "'positive'"),
        '{"query": "a", "positive": "b", "scores": [1, 2]}': ("1", "2 scores", "1 texts"),
        '{"texts": []}': ("1", "texts"),
        "[1]": ("1", "list"),
    }.items():
        (tmp_path / "x.jsonl").write_text(line + "\n")
        with raises(DataError, *named):
            read(tmp_path / "x.jsonl")
    (tmp_path / "x.tsv").write_text("one\ttwo\na\tb\n")
    with raises(DataError, "one, two", "query"):
        read(tmp_path / "x.tsv")


# The task.


def test_the_maximum_over_no_tokens_is_0():
    layer = SentenceVectors(EmbeddingConfig(pool="max"))
    states, mask = tf.constant([[[-1.0, 2.0], [3.0, -4.0]], [[5.0, 6.0], [7.0, 8.0]]]), tf.constant([[1, 1], [0, 0]])
    assert layer(states, mask).numpy().tolist() == [[3.0, 2.0], [0.0, 0.0]]


def test_texts_of_a_batch_are_padded_to_the_longest_first_text_and_the_longest_other():
    task = task_of()
    columns = task.codec.to_tensors(
        [TextGroup("0", ("a", "a b c d", "a b"), None, ""), TextGroup("1", ("a b", "b"), None, "")], labelled=True
    )
    (batch,) = task.codec.training_rows.batches(columns, 2)
    assert batch["first/input_mask"].numpy().sum(-1).tolist() == [3, 4]
    assert batch["others/input_mask"].numpy().sum(-1).tolist() == [[6, 4], [3, 0]]
    assert [batch[f"{part}/input_word_ids"].shape[-1] for part in ("first", "others")] == [4, 8]
    ids = batch["text_ids"].numpy()
    assert ids[1, 2] == -1 and ids[0, 2] == ids[1, 0] and len(set(ids.ravel())) == 5


def test_the_settings_of_a_checkpoint_are_kept_unless_others_are_given():
    published = EmbeddingConfig(pool="cls", max_length=64, normalize=True, prompts={"query": "q: ", "document": "d: "})
    own = EmbeddingsConfig().published(published, 512)
    assert (own.max_length, own.query_prompt, own.passage_prompt, own.vectors.pool) == (64, "q: ", "d: ", "cls")
    own = EmbeddingsConfig(max_length=32, query_prompt="", passage_prompt="p: ").published(published, 512)
    assert (own.max_length, own.query_prompt, own.passage_prompt) == (32, "", "p: ")
    assert own.vectors.max_length == 32 and own.vectors.prompts["passage"] == "p: "
    new = EmbeddingsConfig().published(None, 100)
    assert (new.max_length, new.vectors.pool, new.vectors.normalize) == (100, "mean", True)


def test_pairs_can_be_the_validation_of_what_learns_from_scores(encoder):
    examples = task_of([TextGroup("0", ("a", "b", "c"), (1.0, 0.5), "")], objective="margin_mse").codec
    assert examples.targets([TextGroup("1", ("a", "b"), None, "")]).numpy().tolist() == [[0.0, 0.0]]
    with raises(DataError, "single text"):
        encoder.evaluate(TEXTS[:1], ["u"])


def test_inputs_may_be_objects_as_in_files(encoder):
    pairs = [{"query": first, "positive": second} for first, second in PAIRS]
    assert encoder.evaluate(pairs) == encoder.evaluate(PAIRS)
    with raises(DataError, "x[0]", "single text"):
        encoder.evaluate([{"query": "a", "postive": "b"}])


def test_no_texts_have_no_vectors(encoder):
    assert encoder.encode([]).shape == (0, 32)
