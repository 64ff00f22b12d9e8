"""`predict --runner`: rows through Apache Beam and an exported model, written in shards."""

import functools
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import ConfigError, DataError, of_workers
from bert_tf.files import bundled
from bert_tf.inference import ask, prediction_shards
from bert_tf.inference.card import CARD, EXTRA
from bert_tf.inference.predictions import Predictor, check, find_version, task_of
from bert_tf.inputs.datasets.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample, tagged
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.tasks.tagging import Tagging, TaggingConfig
from bert_tf.text import Tokenizer
from tests.errors import raises
from tests.inference import kinds
from tests.inference.exports import (
    LENGTH,
    VOCABULARY,
    Exported,
    by_predict,
    check_same,
    examples_of,
    of_kind,
)

beam = pytest.importorskip("apache_beam", reason="needs pip install 'bert_tf[beam]'")
from apache_beam.ml.inference.base import RunInference  # noqa: E402
from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.testing.util import assert_that  # noqa: E402

from bert_tf.beam_options import pipeline_options  # noqa: E402
from bert_tf.inference import beam as on_beam  # noqa: E402


@pytest.fixture(scope="module")
def single():
    return of_kind()


_load = functools.cache(ask.Model)


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch):
    """Loading a model takes a second, longer than a pipeline here."""
    monkeypatch.setattr(ask, "Model", _load)


@pytest.fixture(scope="module")
def texts():
    """61 texts: of many lengths, some empty, some with line separators that end no line."""
    real = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"][:55]
    return [*real, "", " ", "\u200b", "a\u2028b\u0085c\ttab", "가나다 ÉÀ 😀", "the good " * 40]


def run(exported, examples, output, batch_size=8):
    """Numbers of the shards written by this run of the direct runner."""
    task = task_of(exported.path)
    return on_beam.predict(exported.path, task, examples, str(output), batch_size, PipelineOptions([]))


def written(output):
    """The contents of all shards, in the order of their names."""
    stem, ending = os.path.splitext(output.name)
    return [path.read_text() for path in sorted(output.parent.glob(f"{stem}-*-of-*{ending}"))]


@pytest.fixture
def of_17_rows(monkeypatch):
    monkeypatch.setattr(prediction_shards, "SHARD_ROWS", 17)


def test_the_concatenated_shards_equal_the_output_of_predict(single, texts, tmp_path, of_17_rows):
    examples, output = examples_of(texts), tmp_path / "labels.jsonl"
    run(single, iter(examples), output)
    parts = written(output)
    assert [part.count("\n") for part in parts] == [17, 17, 17, 10]
    found = [json.loads(line) for line in "".join(parts).strip().split("\n")]
    expected = by_predict(single, examples)
    check_same(found, expected)
    assert np.ptp([one["probabilities"]["positive"] for one in expected]) > 0.1  # the answers depend on the text
    assert sorted(os.listdir(tmp_path)) == [
        *(f"labels-{n:05d}-of-00004.jsonl" for n in range(4)),
        "labels.jsonl.shards",
    ]
    assert sorted(os.listdir(f"{output}.shards")) == [f"{n:05d}.json" for n in range(4)]


def test_tables_have_their_header_in_each_shard(single, texts, tmp_path, of_17_rows):
    run(single, examples_of(texts), tmp_path / "labels.tsv")
    whole = tmp_path / "whole.tsv"
    examples = examples_of(texts)
    single.task.writers()[".tsv"](whole, zip(examples, by_predict(single, examples), strict=True))
    header, *rows = whole.read_text().splitlines()
    parts = [part.splitlines() for part in written(tmp_path / "labels.tsv")]
    assert [part[0] for part in parts] == [header] * 4
    found, expected = (
        [row.split("\t") for row in some] for some in ([row for part in parts for row in part[1:]], rows)
    )
    assert [label for label, *_ in found] == [label for label, *_ in expected]
    shares = [np.array([row[1:] for row in some], float) for some in (found, expected)]
    np.testing.assert_allclose(*shares, atol=1.1e-6)  # six decimals


def test_the_rows_of_a_shard_are_reassembled_if_predicted_separately(single, texts, tmp_path, of_17_rows, monkeypatch):
    run(single, examples_of(texts), tmp_path / "fused.jsonl")
    monkeypatch.setattr(on_beam, "_HELD", 200)  # two predictions
    run(single, examples_of(texts), tmp_path / "grouped.jsonl")
    assert written(tmp_path / "grouped.jsonl") == written(tmp_path / "fused.jsonl")


@pytest.fixture
def predicted_rows(monkeypatch):
    """The rows predicted by a model, in order."""
    rows, answer = [], Predictor.predictions

    def recording(self, examples):
        rows.extend(int(example.id) for example in examples)
        return answer(self, examples)

    monkeypatch.setattr(Predictor, "predictions", recording)
    return rows


def test_a_second_run_predicts_only_missing_rows(single, texts, tmp_path, of_17_rows, predicted_rows):
    examples, output = examples_of(texts), tmp_path / "labels.jsonl"
    run(single, examples, output)
    before = written(output)
    kept = tmp_path / "labels-00003-of-00004.jsonl"
    changed = kept.stat().st_mtime_ns
    # As after a kill or a full disk: one is missing, one is truncated, one has its name but no description.
    (tmp_path / "labels-00000-of-00004.jsonl").unlink()
    (tmp_path / "labels-00001-of-00004.jsonl").write_text(before[1][:99])
    (tmp_path / "labels.jsonl.shards/00002.json").unlink()
    (tmp_path / "labels-00000-of-00009.jsonl").write_text("of an earlier attempt")
    for leftover in (
        ".labels-00001-of-00004.jsonl.k1lled_1.partial",
        "labels.jsonl.shards/.00003.rows.k1lled_1.partial",
    ):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "half").touch()
    described = {"made_of": "other rows", "files": {"labels-00000-of-00009.jsonl": 21}}
    (tmp_path / "labels.jsonl.shards/00008.json").write_text(json.dumps(described))
    for other in ("labels-00000-of-00004.tsv", "labels-of-mine.jsonl", "labels.jsonl"):
        (tmp_path / other).write_text("no shard of this output")
    predicted_rows.clear()
    _, made = run(single, examples, output)
    assert made == [0, 1, 2] and sorted(predicted_rows) == list(range(51))
    for other in ("labels-00000-of-00004.tsv", "labels-of-mine.jsonl", "labels.jsonl"):
        (tmp_path / other).unlink()
    assert written(output) == before and kept.stat().st_mtime_ns == changed
    assert len(os.listdir(tmp_path)) == 5 and len(os.listdir(tmp_path / "labels.jsonl.shards")) == 4
    predicted_rows.clear()
    _, made = run(single, examples_of(texts, "elsewhere"), output)  # the rows have the same identity anywhere
    assert (made, predicted_rows) == ([], [])


@pytest.mark.parametrize(
    "damaged", ["", '{"made_of": "x"}', *(pytest.param(text, marks=pytest.mark.slow) for text in ("{", "[]"))]
)
def test_a_damaged_description_affects_only_its_shard(single, tmp_path, of_17_rows, predicted_rows, damaged):
    output = tmp_path / "labels.jsonl"
    run(single, examples_of(["a"] * 20), output)
    before = written(output)
    (tmp_path / "labels.jsonl.shards/00000.json").write_text(damaged)
    predicted_rows.clear()
    assert run(single, examples_of(["a"] * 20), output)[1] == [0] and len(predicted_rows) == 17
    assert written(output) == before


def test_files_not_written_by_a_run_are_not_removed(single, tmp_path):
    output = tmp_path / "labels.jsonl"
    run(single, examples_of(["a"]), output)
    (tmp_path / "labels.jsonl.shards/notes.txt").write_text("mine")
    run(single, examples_of(["b"]), output)
    for name in ("labels-00003-of-00009.jsonl", "labels-00000-of-00001.bak.jsonl"):
        mine = tmp_path / name
        mine.write_text("mine")
        with raises(ConfigError, name):
            run(single, examples_of(["b"]), output)
        assert mine.read_text() == (tmp_path / "labels.jsonl.shards/notes.txt").read_text() == "mine"
        mine.unlink()


# tests/test_programs.py has outputs that are inputs by a link.
@pytest.mark.slow
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_an_input_with_the_name_of_a_shard_is_neither_replaced_nor_removed(programs, single, tmp_path, link):
    shard = source = tmp_path / "texts-00000-of-00001.jsonl"
    if link:
        source = tmp_path / "mine.jsonl"
    source.write_text('{"sentence": "a"}\n')
    if link:
        link(source, shard)
    command = [f"--export_dir={os.path.dirname(single.path)}", "--runner=DirectRunner", "--data.text=sentence"]
    done = programs("predict", *command, f"--data_dir={source}", f"--output={tmp_path}/texts.jsonl")
    assert done.status == 2 and f"{shard} is the input {source}, which could be replaced" in done.error_line
    assert source.read_text() == '{"sentence": "a"}\n'


def test_rows_replaced_by_another_run_are_not_used(tmp_path):
    output = str(tmp_path / "x.jsonl")
    first = prediction_shards.stage(output, examples_of(["a", "b"]), TextExample, [], lambda examples: None)
    assert first.examples(0) == examples_of(["a", "b"])
    prediction_shards.stage(output, examples_of(["c", "d"]), TextExample, [], lambda examples: None)
    with raises(DataError, "00000.rows"):
        first.examples(0)


@pytest.mark.parametrize("case", ["below a file", "a file for the folder"])
def test_an_unwritable_output_is_named(single, tmp_path, case):
    (tmp_path / "file").touch()
    (tmp_path / "x.jsonl.shards").touch()
    output = {"below a file": tmp_path / "file/y.jsonl", "a file for the folder": tmp_path / "x.jsonl"}[case]
    with raises(ConfigError, f"{output}.shards"):
        run(single, examples_of(["a"]), output)


WRONG_OPTIONS = {
    "runner": (("DirectRuner", []), "--runner=DirectRuner: Unexpected pipeline runner"),
    "no runner": (("", []), "--runner is empty"),
    "unknown flag": (
        ("DirectRunner", ["--direct_num_worker=2"]),
        "'--direct_num_worker=2' is no flag of Beam's Direct",
    ),
    "stray word": (("DirectRunner", ["extra"]), "'extra' is no flag"),
    "bad value": (("DirectRunner", ["--direct_num_workers=two"]), "invalid int value: 'two'"),
    "negative": (("DirectRunner", ["--direct_num_workers=-1"]), "direct_num_workers is negative"),
    "two runners": (("DirectRunner", ["--runner=FlinkRunner"]), "leave one out"),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_a_pipeline_that_cannot_start_is_a_one_line_error(case):
    (runner, arguments), message = WRONG_OPTIONS[case]
    with pytest.raises(ConfigError) as caught:
        pipeline_options(arguments, runner)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert pipeline_options(["--direct_num_workers=2"], "DirectRunner").get_all_options()["direct_num_workers"] == 2


def test_shards_of_other_rows_or_another_model_are_written_again(single, texts, tmp_path, of_17_rows, predicted_rows):
    output, afresh = tmp_path / "labels.jsonl", tmp_path / "afresh.jsonl"
    run(single, examples_of(texts), output)
    texts = [*texts[:20], "another text", *texts[21:]]
    predicted_rows.clear()
    assert run(single, examples_of(texts), output)[1] == [1] and sorted(predicted_rows) == list(range(17, 34))
    other = kinds.case("classification")
    assert run(other, examples_of(texts), output)[1] == [0, 1, 2, 3]
    run(other, examples_of(texts), afresh)
    assert written(output) == written(afresh)


def test_invalid_input_does_not_change_existing_shards(single, texts, tmp_path, of_17_rows):
    output = tmp_path / "labels.jsonl"
    run(single, examples_of(texts), output)
    before = written(output)

    def failing():
        yield from examples_of(texts[:40])
        raise DataError("rows:41: not UTF-8")

    with raises(DataError, "rows:41", "UTF-8"):
        run(single, failing(), output)
    assert written(output) == before


def test_shards_of_long_texts_have_fewer_rows(single, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_shards, "SHARD_BYTES", 1000)
    run(single, examples_of(["a " * 300] * 2 + ["b"] * 3 + ["a " * 2000]), tmp_path / "labels.jsonl")
    assert [part.count("\n") for part in written(tmp_path / "labels.jsonl")] == [1, 4, 1]


KINDS = [
    TextExample("0", ("a\u2028b", "c\td\n"), ("x", "y"), "a\tb.tsv:1"),
    TextExample("1", ("가 😀",), 2.5, "a:2"),
    tagged("2", "가나", ["B-X", "I-X"], 3, "c:1", joiner=""),
    TaggedExample("3", "a b", None, None, None, None, "c:2"),
    QuestionExample("4", "q?", "a\r\nb", None, "d: data[3]"),
    ChoiceExample("5", "a", "", ("b", ""), 1, "e:1"),
]


@pytest.mark.parametrize("example", KINDS)
def test_copied_rows_are_restored_unchanged(tmp_path, example):
    copied = prediction_shards.stage(str(tmp_path / "x.jsonl"), [example] * 3, type(example), [], lambda examples: None)
    assert copied.examples(0) == [example] * 3 and isinstance(copied.examples(0)[0], type(example))


def test_a_failure_in_a_worker_is_a_one_line_error(single, texts, tmp_path, monkeypatch):
    def failing(self, examples):
        raise DataError("rows:7: wrong [here]")

    monkeypatch.setattr(Predictor, "predictions", failing)
    with raises(DataError, "rows:7", "[here]"):
        run(single, examples_of(texts), tmp_path / "labels.jsonl")
    # In the form used by runners that are other processes.
    text = "failed: Traceback ...\nbert_tf.errors.DataError: rows:7: wrong [while running 'Answer']\n\nmore"
    with raises(DataError, "rows:7"), of_workers():
        raise RuntimeError(text)


def test_batches_have_little_padding(single, tmp_path):
    texts = read_table(bundled("data/reviews/heldout.tsv"), ["sentence"])["sentence"]
    staged = prediction_shards.stage(
        str(tmp_path / "x.jsonl"), examples_of(texts), TextExample, [], lambda examples: None
    )
    batches = on_beam._Batches(staged, (single.path,), 32)
    batches.setup()
    filled = padded = 0
    for batch in batches.process(0):
        lengths = single.task.tokenizer.tokenize([example.texts[0] for _, example in batch]).row_lengths().numpy()
        filled, padded = filled + lengths.sum(), padded + len(lengths) * lengths.max()
    assert padded < 1.05 * filled


def test_the_model_handler_works_in_any_pipeline_of_examples(single, texts):
    examples = examples_of(texts)
    expected = dict(zip(texts, by_predict(single, examples), strict=True))

    def check(results):
        assert len(results) == len(examples)
        for example, inference, _ in results:
            check_same(inference, expected[example.texts[0]])

    with beam.Pipeline() as pipeline:
        results = pipeline | beam.Create(examples) | RunInference(on_beam.ExportHandler(single.path))
        assert_that(results, check)


def test_model_and_output_may_be_on_a_tensorflow_file_system(single, texts, tmp_path):
    for folder, _, names in os.walk(single.path):
        for name in names:
            target = f"ram://served/7/{os.path.relpath(os.path.join(folder, name), single.path)}"
            tf.io.gfile.makedirs(os.path.dirname(target))
            tf.io.gfile.copy(os.path.join(folder, name), target)
    version = find_version("ram://served")
    assert version == "ram://served/7"
    there = Exported(single.task, single.model, version)
    assert run(there, examples_of(texts), "ram://out/labels.jsonl")[1] == [0]
    assert run(there, examples_of(texts), "ram://out/labels.jsonl")[1] == []
    run(single, examples_of(texts), tmp_path / "labels.jsonl")
    assert [tf.io.gfile.GFile("ram://out/labels-00000-of-00001.jsonl").read()] == written(tmp_path / "labels.jsonl")


def test_sentences_of_documents_are_refused():
    tokenizer = Tokenizer(VOCABULARY)
    given = tagged("1", ["a", "b"], None, None, "f:2")
    documents = Tagging(tokenizer, TaggingConfig(context="document"), labels=("O", "B-X"), unit="words")
    with raises(DataError, "f:2"):
        check(documents, [given._replace(document=0)])
    check(documents, [given])


def test_a_pair_is_refused_by_a_model_of_one_text(single, tmp_path):
    rows = [*examples_of(["a"]), TextExample("1", ("a", "b"), None, "rows:2")]
    with raises(DataError, "rows:2", "2 text", "1"):
        run(single, rows, tmp_path / "labels.jsonl")


def test_a_model_without_predictions_is_refused(single, tmp_path):
    shutil.copytree(single.path, tmp_path / "1")
    card = tmp_path / "1" / EXTRA / CARD
    task = Pretraining(Tokenizer(VOCABULARY), LENGTH)
    described = json.loads(card.read_text()) | {"task": {"name": task.name, "settings": task.settings()}}
    card.write_text(json.dumps(described))
    with raises(ConfigError, "pretraining"):
        task_of(str(tmp_path / "1"))


def test_the_newest_version_or_the_named_one_is_used(tmp_path):
    for version in ("9", "10", "x"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "saved_model.pb").touch()
    assert find_version(str(tmp_path)) == str(tmp_path / "10")
    assert find_version(str(tmp_path / "9")) == str(tmp_path / "9")
    for nothing in (tmp_path / "none", bundled("data/reviews")):
        with raises(DataError, "no exported model"):
            find_version(str(nothing))


FLAGS = {
    "no model": (["--output=x.jsonl"], "--model_dir is missing"),
    "both": (
        ["--model_dir=m", "--export_dir=e", "--runner=DirectRunner", "--output=x.jsonl"],
        "instead of --model_dir",
    ),
    "no runner": (["--export_dir=e", "--output=x.jsonl"], "--export_dir needs --runner, such as"),
    "no export": (["--runner=DirectRunner", "--output=x.jsonl"], "--runner needs --export_dir"),
    "a strategy": (
        ["--runner=DirectRunner", "--export_dir=e", "--strategy=tpu", "--output=x"],
        "--strategy, --tpu and",
    ),
    "a format": (
        ["--runner=DirectRunner", "--export_dir=e", "--dtype=auto", "--output=x"],
        "--strategy, --tpu and --dtype",
    ),
    "arguments": (["--model_dir=m", "--output=x.jsonl", "more"], "unexpected argument 'more': all arguments are flags"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_inconsistent_flags_are_one_line_errors(programs, case):
    arguments, message = FLAGS[case]
    done = programs("predict", *arguments)
    assert done.status == 2 and message in done.error_line


def test_the_program_predicts_standard_input(programs, single, texts, tmp_path):
    served = os.path.dirname(single.path)
    command = [f"--export_dir={served}", "--runner=DirectRunner", "--data_dir=-", f"--output={tmp_path}/labels.jsonl"]
    command += ["--data.text=review", "--", "--direct_num_workers=1"]
    lines = [json.dumps({"review": text, "id": f"n{row}"}) for row, text in enumerate(texts)]
    done = programs.succeed("predict", *command, stdin="\n".join(lines))
    assert done.output == f"{tmp_path}/labels-00000-of-00001.jsonl: 61 rows\n"
    # TensorFlow 2.20 says on its own that one of its passes is not enabled.
    said = [line for line in done.errors.splitlines() if not line.startswith(("WARNING: All log messages", "I0000 "))]
    assert not "".join(said).strip()
    found = [json.loads(line) for line in (tmp_path / "labels-00000-of-00001.jsonl").read_text().strip().split("\n")]
    expected = by_predict(single, examples_of(texts))
    check_same(found, [one | {"id": f"n{one['id']}"} for one in expected])


def test_an_output_that_shards_cannot_have_is_refused(single, tmp_path):
    with raises(ConfigError, "x.zip: in shards a classification model writes .jsonl, .tsv"):
        run(single, examples_of(["a"]), tmp_path / "x.zip")
