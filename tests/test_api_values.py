"""Values in Python: what is no text, label, path or setting is one line; the rest is read as in files."""

import dataclasses
import json
import math

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import directory
from bert_tf.config import ClassificationConfig, ExampleData
from bert_tf.errors import BertTfError, ConfigError, DataError
from bert_tf.inputs.datasets.examples import QuestionExample, ReadReport, TextExample
from bert_tf.inputs.datasets.sources import InMemory, Source
from bert_tf.tasks.classification import Classification
from bert_tf.tasks.masked_lm import MaskedLM
from tests import zoo
from tests.errors import raises
from tests.hostile import BIG, HALF, HUGE, Odd, endless
from tests.model.small import randomize
from tests.zoo import LENGTH, VOCABULARY

TEXTS = ["the good.", "a b c", "good", "c b a"]
STARS = [5, 1, 5, 1]
SETTINGS = {"epochs": 1, "batch_size": 4, "dtype": "float32", "verbose": False}


@dataclasses.dataclass
class Models:
    path: str
    saved: str  # of `texts`
    file: str
    texts: bert_tf.TextClassifier
    labels: bert_tf.MultiLabelClassifier
    numbers: bert_tf.TextRegressor
    tags: bert_tf.TokenClassifier
    answers: bert_tf.QuestionAnswerer
    choices: bert_tf.MultipleChoice
    masks: bert_tf.MaskedLM
    vectors: bert_tf.SentenceEncoder

    def fit(self, x=TEXTS, y=STARS, **settings):
        return self.texts.fit(x, y, **(SETTINGS | settings))

    def load(self, **settings):
        return bert_tf.TextClassifier.from_pretrained(self.path, **({"max_length": LENGTH} | settings))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    path, saved, file = (str(folder / name) for name in ("pretrained", "stars", "file"))
    encoder = zoo.encoder()
    task = MaskedLM(bert_tf.Tokenizer(VOCABULARY), LENGTH)
    directory.save(path, randomize(task.build(encoder)), encoder, task)
    (folder / "file").write_text("x\ny\n")
    kinds = (bert_tf.TextClassifier, bert_tf.MultiLabelClassifier, bert_tf.TextRegressor, bert_tf.TokenClassifier)
    opened = [kind.from_pretrained(path, max_length=LENGTH) for kind in kinds]
    questions = {"max_length": LENGTH, "stride": 8, "max_question_length": 8}
    opened += [bert_tf.QuestionAnswerer.from_pretrained(path, **questions)]
    opened += [bert_tf.MultipleChoice.from_pretrained(path, max_length=LENGTH)]
    opened += [bert_tf.MaskedLM.from_pretrained(path), bert_tf.SentenceEncoder.from_pretrained(path)]
    # As pandas holds a column of stars from which the rows without one were dropped.
    opened[0].fit(TEXTS, pandas.Series([5.0, None, 1.0, 5.0, 1.0]).dropna(), **SETTINGS)
    opened[0].save(saved)
    return Models(path, saved, file, *opened)


def _dataset(spec):
    return tf.data.Dataset.from_generator(lambda: iter(["a"]), output_signature=spec)


# Case -> (call of the models, part of the message); tests/public_api.py tries the values of each single argument.
CASES = {}
# What is no list of texts.
NO_LISTS = {
    "array without dimensions": (np.array("good film"), "array('good film', dtype='<U9'); expected a list"),
    "tensor without dimensions": (tf.constant("good"), "expected a list"),
    "text": ("good", "'good'; expected a list"),
    "bytes": (b"good", "expected a list"),
    "nothing": (None, "None; expected a list"),
    "number": (5, "5; expected a list"),
    "dict": ({"a": "b"}, "expected a list"),
    "set": ({"a", "b"}, "a set has no order; expected a list"),
    "type": (str, "expected a list"),
    "spec": (tf.TensorSpec(None, tf.string), "expected a list"),
    "input of Keras": (keras.Input((3,)), "expected a list"),
    "dataset of unknown shape": (_dataset(tf.TensorSpec(None, tf.string)), "expected tensors of known shape"),
    "dataset without end": (tf.data.Dataset.from_tensors("a").repeat(), "endless"),
    "dataset of no file": (tf.data.TextLineDataset("/nowhere/a.txt"), "cannot be read"),
    "half a pair": ([HALF], "[0] has half of a surrogate pair"),
    "missing": (["a", math.nan], "[1] is NaN; expected text"),
    "not UTF-8": ([b"a\xff"], "[0] is bytes b'a\\xff'; expected text"),
    "lists without end": (endless(), "lists in lists without end"),
    "dates": (pandas.Series(pandas.to_datetime(["2020-01-01"])), "[0] is datetime64"),
    "odd": ([Odd()], "[0] is Odd an object of type Odd; expected text"),
    "three texts": ([("a", "b", "c")], "[0]"),
    "true": ([True], "[0]"),
    "huge number": ([HUGE], "[0]"),
}
for name, (value, message) in NO_LISTS.items():
    CASES[f"predict {name}"] = (lambda m, value=value: m.texts.predict(value), message.replace("] ", "]: text "))
# The label of the last of four texts.
LABELS = {
    "half a pair": ([*"aba", HALF], "x[3]: label has half of a surrogate pair"),
    "too large": ([5, 1, 5, BIG], "x[3]: label is 1000"),
    "thousands of digits": ([5, 1, 5, HUGE], "x[3]: label is int"),
    "missing": ([5.0, 1.0, 5.0, math.nan], "x[3]: no label, which training and evaluation need; give one, or leave"),
    "missing in pandas": (pandas.array([5, 1, 5, None], "Int64"), "x[3]: no label"),
    "missing date": (pandas.Series([5, 1, 5, pandas.NaT], dtype=object), "x[3]: no label"),
    "fraction": ([5.0, 1.0, 5.0, 4.5], "x[3]: label 4.5; expected text or a whole number"),
    "infinite": ([5.0, 1.0, 5.0, math.inf], "x[3]: label is Infinity; expected text or a number"),
    "empty": (["a", "b", "a", " "], "x[3]: the label is empty; expected a class"),
    "list": ([*"aba", ["a"]], "x[3]: a list of labels; expected one"),
    "complex": ([5, 1, 5, 1j], "x[3]: label is complex 1j; expected text or a number"),
    "of two kinds": ([1, "1", 2, "2"], "x[0]: label 1 is a whole number, and label '1' of x[1] is text"),
    "set": ({5, 1}, "a set has no order; expected a list"),
    "one": ([5, 5, 5, 5], "every label is '5'; expected at least two"),
    "too few": ([5, 1], "x has 4 inputs and 2 labels; expected one label per input"),
}
CASES |= {f"label {name}": (lambda m, y=y: m.fit(y=y), message) for name, (y, message) in LABELS.items()}
CASES |= {
    f"weight {value!r} without labels": (
        lambda m, value=value: bert_tf.distill(m.texts, 1, TEXTS, weight=value),
        f"weight is {value!r}; expected a number",
    )
    for value in (math.nan, "x", None, 1.5)
}
CASES |= {
    "unknown validation labels": (
        lambda m: m.fit(validation_data=(TEXTS, ["5.0", "1.0", "5.0", "1.0"])),
        "validation x[0]: label '5.0'; neither this label nor any other is one of the model's: '1', '5'",
    ),
    "validation pairs": (
        lambda m: m.fit(validation_data=([("a", "b")] * 4, STARS)),
        "x and validation x differ; expected single texts, or pairs of texts, in both",
    ),
    "validation texts": (
        lambda m: m.tags.fit([["a", "b"]], [["O", "B-X"]], validation_data=(["ab"], [["O", "B-X"]]), **SETTINGS),
        "x and validation x differ; expected lists of words, or texts with a tag for each character, in both",
    ),
    "labels beside read": (
        lambda m: m.texts.fit(bert_tf.read("table", m.file, text="x"), STARS),
        "x is what read returned, which has the labels; leave y out",
    ),
    "validation_data": (lambda m: m.fit(validation_data=5), "validation_data is no pair"),
    "text and pair": (lambda m: m.texts.predict(["a", ("b", "c")]), "x[1] and x[0]: one is a text, the other a pair"),
    "number": (lambda m: m.numbers.fit(TEXTS, [1.0, 2.0, 3.0, BIG], **SETTINGS), "x[3]: label is 1000"),
    "no number": (lambda m: m.numbers.fit(TEXTS, [1.0, 2.0, 3.0, "x"], **SETTINGS), "label 'x'; expected a number"),
    "missing number": (lambda m: m.numbers.fit(TEXTS, [1.0, math.nan, 3.0, 4.0], **SETTINGS), "x[1]: no label"),
    "label of several": (
        lambda m: m.labels.fit(TEXTS, [["a"], ["b"], ["a"], [HALF]], **SETTINGS),
        "x[3]: label[0] has half",
    ),
    "labels are a text": (
        lambda m: m.labels.fit(TEXTS, [["a"], ["b"], ["a"], "a"], **SETTINGS),
        "expected a list of strings",
    ),
    "missing in a matrix": (
        lambda m: m.labels.fit(TEXTS, np.array([[0, 1], [1, math.nan], [0, 1], [1, 1]]), **SETTINGS),
        "the labels of x[1] hold nan; expected 0 and 1",
    ),
    "tag": (lambda m: m.tags.fit([["a", "b"], ["c"]], [["O", "B-X"], [HALF]], **SETTINGS), "x[1]: tags[0] has half of"),
    "unknown validation tags": (
        lambda m: m.tags.fit([["a"]] * 2, [["NN"], ["VB"]], validation_data=([["a"]] * 2, [["1"], ["2"]]), **SETTINGS),
        "validation x[0]: neither this sentence nor any other has a tag of the model's: 'NN', 'VB'",
    ),
    "blank word": (
        lambda m: m.tags.fit([["a", "b"], [" "]], [["O", "B-X"], ["O"]], **SETTINGS),
        "x[1]: words: ' '; expected",
    ),
    "tags": (lambda m: m.tags.fit([["a", "b"], ["c"]], [["O", "B-X"], 5], **SETTINGS), "expected 1 tags, one per word"),
    "answer": (lambda m: m.answers.fit([("a?", "b c")], [5], **SETTINGS), "expected a text, None, or a dict"),
    "start": (
        lambda m: m.answers.fit([("a?", "b c")], [{"text": ["b"], "answer_start": [math.nan]}], **SETTINGS),
        "x[0]: answers: answer_start[0] is NaN; expected a whole number",
    ),
    "question": (lambda m: m.answers.predict([(5, "b c")]), "x[0]: question is 5; expected text"),
    "no context": (
        lambda m: m.answers.predict(["a?"]),
        "expected question, context: a tuple, or a dict with these keys",
    ),
    "choice": (
        lambda m: m.choices.fit([("a", ["b", "c"])], [2], **SETTINGS),
        "x[0]: label 2; expected the index of a choice",
    ),
    "choice of 1.5": (
        lambda m: m.choices.fit([("a", ["b", "c"])], [1.5], **SETTINGS),
        "x[0]: label is 1.5; expected a whole",
    ),
    "one choice": (lambda m: m.choices.predict([("a", ["b"])]), "x[0]: 1 choices; expected at least two"),
    "epoch": (lambda m: m.fit(epoch=3), "fit has no argument 'epoch'; did you mean 'epochs'?"),
    "lr": (lambda m: m.fit(lr=3), "fit has no argument 'lr'; did you mean 'learning_rate'?"),
    "callbacks": (lambda m: m.fit(callbacks=[1]), "callbacks[0] is 1; expected a Callback"),
    "validation_split": (lambda m: m.fit(validation_split=0.1), "validation_data=(x, y)"),
    "class_weight": (lambda m: m.fit(class_weight={0: 1}), "give balanced=True"),
    "unknown": (lambda m: m.fit(zzz=0), "fit has no argument 'zzz'; see bert_tf.config.TrainConfig"),
    "setting": (lambda m: m.load(max_len=5), "TextClassifier has no field 'max_len'; did you mean 'max_length'?"),
    "label in settings": (lambda m: m.load(labels=("a", HALF)), "task.labels[1] has half of a surrogate pair"),
    "set of labels": (lambda m: m.load(labels={"a", "b"}), "a set has no order; expected a list"),
    "labels of two kinds": (lambda m: m.load(labels=[1, "1"]), "task.labels has a label twice: '1', '1'"),
    "other labels": (
        lambda m: bert_tf.TextClassifier.from_pretrained(m.saved, labels=("1", "2", "5")).predict(["a"]),
        "the model has the labels '1', '5', not those asked for; call fit first",
    ),
    "another head": (
        lambda m: bert_tf.TextClassifier.from_pretrained(m.saved, head="bilstm").predict(["a"]),
        "the model has another head than the one asked for; call fit first",
    ),
    "texts in texts": (lambda m: m.texts.tokenizer.encode([["a"]]), "the texts are [['a']]; expected a list"),
    "half a pair in the vocabulary": (
        lambda m: bert_tf.Tokenizer([HALF, *VOCABULARY]),
        "line 1: has half of a surrogate",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_one_line(models, case):
    call, message = CASES[case]
    with pytest.raises(BertTfError) as caught:
        call(models)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    str(caught.value).encode()  # so that it can be printed


def test_integer_labels_come_back_as_integers_also_from_pandas_and_after_loading(models):
    column = pandas.Series([5.0, 1.0, 5.0, 1.0])
    found = pandas.Series([one["label"] for one in models.texts.predict(TEXTS)])
    assert found.dtype == np.int64 and set(found) <= {1, 5}
    assert (found == column).mean() == models.texts.evaluate(TEXTS, column)["accuracy"]
    assert list(models.texts.predict(["a"])[0]["probabilities"]) == [1, 5]
    for settings in ({}, {"labels": np.unique(column)}):
        again = bert_tf.TextClassifier.from_pretrained(models.saved, **settings)
        assert again.predict(TEXTS) == models.texts.predict(TEXTS)
    served = models.texts.task.signatures(models.texts.model)["serving_default"](tf.constant(TEXTS))
    assert [label.decode() for label in served["label"].numpy()] == [str(label) for label in found]


def test_the_program_reads_float_stars_of_pandas_as_python_does(models, tmp_path):
    frame = pandas.DataFrame({"text": TEXTS, "label": [5.0, None, 1.0, 5.0]})
    labels = {}
    for name, rows in (("dropped", frame.dropna()), ("all", frame)):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        rows.to_json(tmp_path / f"{name}.jsonl", orient="records", lines=True)
    tokenizer, data = models.texts.tokenizer, ExampleData(text="text")
    rows = zip(TEXTS, frame["label"].dropna(), strict=False)
    lines = [("x", {"text": text, "label": label}) for text, label in rows]
    sources = [Source(data, str(tmp_path / f"dropped.{kind}"), TextExample) for kind in ("csv", "jsonl")]
    for source in (*sources, InMemory(data, TextExample, {"train": lines})):
        examples = list(source.examples(ReadReport(), "train"))
        task = Classification.learn(tokenizer, ClassificationConfig(), data, examples, None)
        labels[source.where("train")] = (task.state.labels, task.state.has_integers)
    assert set(labels.values()) == {(("1", "5"), True)} and len(labels) == 3
    # The row without stars is named.
    with raises(DataError, "all.csv:3"):
        examples = list(Source(data, str(tmp_path / "all.csv"), TextExample).examples(ReadReport(), "train"))
        Classification.learn(tokenizer, ClassificationConfig(), data, examples, None)
    with raises(DataError, "all.jsonl:2"):
        list(Source(data, str(tmp_path / "all.jsonl"), TextExample).examples(ReadReport(), "train"))


@pytest.mark.parametrize(
    ("cells", "labels", "has_integers"),
    [
        (["1", "5"], ("1", "5"), True),
        (["1.0", "5"], ("1", "5"), True),
        (["1.0", "1.5"], ("1.0", "1.5"), False),  # versions, for example
        (["007", "8"], ("8", "007"), False),
        (["-1", "0"], ("-1", "0"), True),
    ],
)
def test_labels_of_a_table_are_integers_if_all_look_so(models, tmp_path, cells, labels, has_integers):
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"x\t{cell}\n" for cell in cells))
    data = ExampleData(text="text")
    examples = list(Source(data, str(tmp_path / "a.tsv"), TextExample).examples(ReadReport(), "train"))
    task = Classification.learn(models.texts.tokenizer, ClassificationConfig(), data, examples, None)
    assert (sorted(task.state.labels), task.state.has_integers) == (sorted(labels), has_integers)
    # As `predict` returns them, so that they can be compared.
    read = bert_tf.read("table", tmp_path / "a.tsv", text="text").y
    assert {str(label) for label in read} == set(labels)
    assert all(isinstance(label, int) == has_integers for label in read)


def test_texts_that_look_like_integers_stay_texts(models):
    data = ExampleData(text="text")
    lines = [("x[0]", {"text": "a", "label": "1"}), ("x[1]", {"text": "b", "label": "5"})]
    examples = list(InMemory(data, TextExample, {"train": lines}).examples(ReadReport(), "train"))
    task = Classification.learn(models.texts.tokenizer, ClassificationConfig(), data, examples, None)
    assert task.state.labels == ("1", "5") and not task.state.has_integers
    assert not Classification.from_settings(task.settings(), models.texts.tokenizer).state.has_integers


def test_unknown_validation_labels_stop_before_training(models, tmp_path):
    with raises(DataError, "neither this label"):
        models.fit(validation_data=(TEXTS, ["x"] * 4), directory=tmp_path / "run")
    assert not (tmp_path / "run/model.safetensors").exists() and not (tmp_path / "run/checkpoints").exists()


def test_answers_in_every_shape_are_repaired_and_counted_as_in_a_file(models, tmp_path):
    labels = [
        "a  b",
        "a b",  # one space instead of two
        {"text": ["a  b"], "answer_start": [4]},
        {"text": np.array(["a  b"]), "answer_start": np.array([3])},  # off by one
        [{"text": "a b", "answer_start": 4.0}],
        ({"text": "a  b", "start": 4},),
        {"text": ["nowhere"], "answer_start": [4]},
        "nowhere",
    ]
    lines = models.answers._labelled([("b?", "the a  b c")] * len(labels), labels, "x")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for _, line in lines))
    found = []
    for source in (
        InMemory(ExampleData(format="squad"), QuestionExample, {"train": lines}),
        Source(ExampleData(format="squad"), str(tmp_path / "a.jsonl"), QuestionExample),
    ):
        report = ReadReport()
        examples = [one._replace(location="") for one in source.examples(report, "train")]
        found.append((examples, report.counts))
    assert found[0] == found[1]
    examples, counts = found[0]
    assert [one.answers[0].start for one in examples] == [4, 4, 4, 4, 4, 4, None, None]
    assert sorted(counts.values()) == [1, 2, 2]  # moved, matched with other spaces, not found


def test_float32_is_float32_whatever_the_global_policy_of_keras(models):
    expected = models.texts.predict(TEXTS), models.vectors.encode(TEXTS)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        text = bert_tf.TextClassifier.from_pretrained(models.saved, dtype="float32")
        vectors = bert_tf.SentenceEncoder.from_pretrained(models.path, dtype="float32")
        assert text.encoder.compute_dtype == "float32"
        found = text.predict(TEXTS), vectors.encode(TEXTS)
    finally:
        keras.config.set_dtype_policy("float32")
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])


def test_too_little_memory_is_an_error_that_says_what_takes_less(models, monkeypatch):
    def allocate(*_):
        tf.zeros([10**7, 10**7])  # more than a process can address

    for place in ("loop.Trainer._arguments", "evaluation._parts"):
        monkeypatch.setattr(f"bert_tf.training.{place}", allocate)
    found = "not enough memory (OOM when allocating tensor with shape[10000000,10000000]"
    with raises(BertTfError, found, "train.accumulation (now 1)", "train.remat=True", "train.batch_size (now 4)"):
        models.fit()
    with raises(BertTfError, found, "smaller batch_size"):
        models.texts.predict(TEXTS)


def test_a_place_for_temporary_files_that_cannot_be_written_is_named(models, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "removed"))
    for call in (models.fit, lambda: models.texts.export(tmp_path / "served")):
        with raises(ConfigError, f"no temporary files can be written to {tmp_path}/removed (No such file", "TMPDIR"):
            call()


def test_the_labels_that_read_returns_are_those_that_fit_takes(models, tmp_path):
    """As `fit` takes the data itself, with the same examples."""
    (tmp_path / "table.tsv").write_text("text\tlabel\na\tx, y\nb\t\nc\ty\n")
    (tmp_path / "words.txt").write_text("a O\n\nb B-X\nc I-X\n")
    (tmp_path / "choices.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "label": 1}\n')
    (tmp_path / "answers.jsonl").write_text(
        '{"question": "a", "context": "b c", "answers": [{"text": "c", "start": 2}]}\n'
    )
    intents = {name: text for name, text in (("seq.in", "a b\nc\n"), ("seq.out", "O B-X\nO\n"), ("label", "p\nq\n"))}
    for name, text in intents.items():
        (tmp_path / name).write_text(text)
    assistant = bert_tf.IntentAndSlots.from_pretrained(models.path, max_length=LENGTH)
    read = {
        "labels": ("table", "table.tsv", models.labels),
        "tags": ("conll", "words.txt", models.tags),
        "intents": ("snips", "seq.in", assistant),
        "choices": ("choices", "choices.jsonl", models.choices),
        "answers": ("squad", "answers.jsonl", models.answers),
    }
    for form, file, model in read.values():
        data = bert_tf.read(form, tmp_path / file, **({"text": "text"} if form == "table" else {}))
        lines = model._labelled(data.x, data.y, "x")
        given = list(InMemory(model._data(lines), model._kind.example, {"x": lines}).examples(ReadReport(), "x"))
        assert [one._replace(location="") for one in given] == [one._replace(location="") for one in data.examples]
        task = model._kind.learn(model.tokenizer, model._config, data.format, given * 2, None)
        if form == "table":
            assert [task.codec.decision.given(one) for one in given] == [["x", "y"], [], ["y"]]
    with raises(DataError, "x[0]", "IntentAndSlots"):
        models.tags.fit(data.x, [("p", ["O"])])


def test_a_model_that_was_fitted_on_files_names_them_to_the_programs(models, tmp_path):
    rows = "sentence\tstars\n" + "".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, STARS, strict=True))
    for name in ("train.tsv", "kept.tsv"):
        (tmp_path / name).write_text(rows)
    columns = {"label": "stars"}
    train, kept = (bert_tf.read("table", tmp_path, split, **columns) for split in ("train", "kept.tsv"))
    model = models.load()
    model.fit(train, validation_data=kept, **SETTINGS)
    model.save(tmp_path / "saved")
    task = directory.load_fine_tuned(str(tmp_path / "saved"))[0]
    assert (task.data.label, task.data.train, task.data.validation) == ("stars", "", "kept.tsv")
    source = Source(task.data, str(tmp_path), TextExample)
    assert source.where("validation") == str(tmp_path / "kept.tsv")
    assert len(list(source.examples(ReadReport(), "validation"))) == len(TEXTS)
