"""compress: the cheapest step that meets a target, measured on the exports, and nothing done twice."""

import dataclasses
import functools
import json
import math
import os
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from markupsafe import escape

import bert_tf
from bert_tf import files
from bert_tf.bundled import bundled
from bert_tf.checkpoints import directory
from bert_tf.checkpoints.run_files import read_results
from bert_tf.config import EmbeddingConfig
from bert_tf.errors import ConfigError, DataError, UnsuitedError
from bert_tf.inference import latency
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.inputs.datasets.tables import read_table
from bert_tf.inputs.identity import file_identity
from bert_tf.model.pruning import layer_weights
from bert_tf.report.file_reporter import FileReporter
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.question_answering import QuestionAnswering
from bert_tf.text import Tokenizer
from bert_tf.training.runs import compression, compression_steps
from bert_tf.training.runs.compression import Target, compress, task_of
from bert_tf.training.runs.compression_steps import STEPS, STEPS_OF_ENCODERS, Job, Step
from bert_tf.training.runs.run import DivergedError
from bert_tf.training.state.run_manifest import AnotherRunError
from tests.checkpoints.small import small_checkpoint
from tests.errors import raises
from tests.learned import gemma, learned, modern
from tests.model.small import MODERNBERT

STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
CHEAP = STEPS[:3]
SECONDS_OF = latency.seconds_of


@pytest.fixture(scope="module", autouse=True)
def asked():
    """The (requests, threads) that are timed, by no other process: request n takes n milliseconds of one thread."""
    asked = []

    def seconds_of(version, bodies, threads):
        asked.append((bodies, threads))
        return [number / 1000 / threads for number in range(1, len(bodies) + 1)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "seconds_of", seconds_of)
        patch.setattr(compression, "export_run", functools.partial(compression.export_run, check=False))
        yield asked


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Reviews: 200 to train on, 100 to measure."""
    folder = tmp_path_factory.mktemp("data")
    rows = read_table(os.path.join(bundled("data/reviews"), "train.tsv"), ["sentence", "label"])
    lines = [
        f"{text}\t{int(label == 'positive')}\n" for text, label in zip(rows["sentence"], rows["label"], strict=True)
    ]
    for name, part in {"train.tsv": lines[:200], "dev.tsv": lines[200:300]}.items():
        (folder / name).write_text("".join(part), encoding="utf-8")
    return str(folder)


def write_model(path, tokenizer, **architecture):
    """An untrained model of two layers whose vocabulary has more pieces than the reviews use."""
    sizes = {"vocab_size": tokenizer.vocab_size, "hidden_size": 64, "num_layers": 2, "num_heads": 4}
    checkpoint = small_checkpoint("classification", labels="01", **sizes | architecture)
    checkpoint.task["settings"] |= {"max_length": 24, "data": {"format": "sst"}}
    directory.write(dataclasses.replace(checkpoint, tokenizer=tokenizer), path)
    return path


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("model") / "finetuned")
    return write_model(path, learned("wordpiece").tokenizer, num_layers=1)


def run(model_dir, data, output, target, **settings):
    task, _ = directory.load_fine_tuned(model_dir)
    return compress(model_dir, data, str(output), target, STRATEGY, task=task, **settings)


@pytest.fixture(scope="module")
def done(model_dir, data, tmp_path_factory):
    """All cheap steps: the target is one byte less than the size of the model itself after the second step."""
    output = tmp_path_factory.mktemp("done") / "small"
    with pytest.raises(DataError, match="no step meets 1e-06 MB; the nearest is"):
        run(model_dir, data, output, Target(megabytes=1e-6), steps=CHEAP)
    return output, json.loads((output / "results.json").read_text())


def test_each_step_is_measured_on_its_export(done, model_dir, data):
    results = done[1]
    assert [row["name"] for row in results["rows"]] == ["original", "trimmed", "int8"]
    classifier = bert_tf.TextClassifier.from_pretrained(model_dir)
    validation = bert_tf.read("sst", data, "validation")
    expected = classifier.evaluate(validation)["accuracy"]
    original, trimmed, int8 = results["rows"]
    assert original["value"] == trimmed["value"] == pytest.approx(expected)
    assert abs(int8["value"] - expected) < 0.1
    for row in results["rows"]:
        files = [os.path.join(folder, name) for folder, _, names in os.walk(row["export"]) for name in names]
        assert row["megabytes"] == sum(map(os.path.getsize, files)) / 1e6
        low, high = row["interval"]
        assert low <= row["value"] <= high
        # 50 texts alone, then 32 in one batch, in 51 ms.
        assert (row["ms_1_thread"], row["ms_2_threads"]) == pytest.approx((25.5, 12.75))
        assert row["texts_per_second"] == pytest.approx(32 / 0.051)
    assert (results["metric"], results["examples"]) == ("accuracy", 100)


def test_a_new_process_tells_the_time_of_each_request(done):
    bodies = [{"signature_name": "serving_default", "inputs": {"text": texts}} for texts in (["good"], ["bad", "a"])]
    found = SECONDS_OF(done[1]["rows"][0]["export"], bodies, 2)
    assert len(found) == 2 and min(found) > 0


def test_the_trimmed_model_answers_the_training_texts_as_before(done, model_dir, data):
    row = done[1]["rows"][1]
    train = bert_tf.read("sst", data)
    before, after = (bert_tf.TextClassifier.from_pretrained(path) for path in (model_dir, row["model"]))
    probabilities = [[[*one["probabilities"].values()] for one in each.predict(train)] for each in (before, after)]
    np.testing.assert_allclose(*probabilities, atol=1e-5)
    assert after.tokenizer.vocab_size < before.tokenizer.vocab_size
    assert row["parameters"] < done[1]["rows"][0]["parameters"]


def test_how_many_validation_examples_get_other_tokens_is_said(done, model_dir, data):
    row = done[1]["rows"][1]
    before, after = (bert_tf.TextClassifier.from_pretrained(path).tokenizer for path in (model_dir, row["model"]))
    texts, kept = bert_tf.read("sst", data, "validation").x, set(after.vocab)
    pieces = [[before.vocab[number] for number in ids] for ids in before.tokenize(texts).to_list()]
    changed = sum(not kept.issuperset(one) for one in pieces)
    assert 0 < changed < 100
    assert row["note"] == f"{changed} of 100 validation examples ({changed}.0%) have other tokens than before"


@pytest.mark.parametrize("lost, start", [(0.001, "trimmed"), (0.01, "original")])
def test_later_steps_start_from_the_trimmed_model_only_if_it_loses_next_to_nothing(
    lost, start, done, model_dir, data, tmp_path, capsys
):
    output = tmp_path / "small"
    shutil.copytree(done[0], output)
    path = output / "trimmed/results.json"
    row = json.loads(path.read_text())
    path.write_text(json.dumps(row | {"value": done[1]["rows"][0]["value"] * (1 - lost)}))
    with raises(DataError, "no step meets"):
        run(model_dir, data, output, Target(megabytes=1e-6), steps=CHEAP, reporter=FileReporter())
    _, trimmed, int8 = json.loads((output / "results.json").read_text())["rows"]
    assert int8["model"] == {"trimmed": trimmed["model"], "original": model_dir}[start]
    is_said = "later steps start from the model itself" in trimmed["note"]
    assert is_said == (start == "original")
    assert trimmed["note"] in capsys.readouterr().out
    assert str(escape(trimmed["note"])) in (output / "report.html").read_text()


def job_of(model_dir, data, texts=""):
    task, _ = directory.load_fine_tuned(model_dir)
    source = Source(task.data, data, task.example)
    validation = list(source.examples(ReadReport(), "validation"))
    return Job(model_dir, data, task, source, validation, STRATEGY, str(texts))


def test_the_words_of_further_texts_are_kept(model_dir, data, tmp_path):
    job = job_of(model_dir, data, os.path.join(data, "dev.tsv"))
    trim = next(step.make for step in STEPS if step.name == "trimmed")
    for _ in range(2):  # also if a killed run has made it
        assert trim(job, model_dir, str(tmp_path / "model")).startswith("0 of 100 validation examples (0.0%)")


@pytest.fixture
def pretrained():
    return next(step.make for step in STEPS if step.name == "pretrained")


@pytest.fixture
def student(model_dir, data, tmp_path, monkeypatch):
    """The job of a student of one layer, with further texts, and the folder of its model."""
    texts, path = tmp_path / "more.jsonl", tmp_path / "step/model"
    texts.write_text('{"sentence": "A qqqqq film."}\n{"sentence": "Two\\nlines of qqqqq."}\n')
    small = dataclasses.replace(
        compression_steps._STUDENT, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32
    )
    for name, value in {"_STUDENT": small, "_PIECES": 200, "_LEAST_UPDATES": 3, "_PASSES": 0.1}.items():
        monkeypatch.setattr(compression_steps, name, value)
    return job_of(model_dir, data, texts), path


def test_a_student_is_pretrained_on_the_texts_before_it_is_distilled(
    pretrained, student, model_dir, monkeypatch, capsys
):
    (job, path), ran = student, []

    made = []

    class Student(compression_steps._Student):
        """Without its corpus and its training."""

        def __init__(self, config, place, teacher):
            self.tokenizer, self._teacher, self.folder = vocabulary(), teacher, place.model_dir
            made.append(config.check())

        def dry_run(self):
            ran.append((self.folder, True))
            return {"seconds": 601.0}

        def run(self):
            ran.append((self.folder, False))
            encoder = bert_tf.BertEncoder(dataclasses.replace(made[0].model, vocab_size=vocabulary().vocab_size))
            before = encoder.embeddings.word_embeddings.numpy()
            self.initialize(MaskedLM(vocabulary(), 24).build(encoder))
            assert (encoder.embeddings.word_embeddings.numpy() != before).any()
            return {"steps": 3}

    def vocabulary():
        return Tokenizer(str(path.parent / "vocab.txt"))

    def distill(config, data_dir, init, folder, strategy, *, teacher, **_):
        assert (config.check().distillation.texts, data_dir, folder, teacher) == (
            job.texts,
            job.data_dir,
            str(path),
            model_dir,
        )
        ran.append(init)

    monkeypatch.setattr(compression_steps, "_Student", Student)
    monkeypatch.setattr(compression_steps, "distill", distill)
    assert pretrained(job, model_dir, str(path)) == ""
    encoder = str(path.parent / "encoder")
    assert ran == [(encoder, True), (encoder, False), encoder]
    lines = (path.parent / "texts.txt").read_text().split("\n\n")
    assert len(lines) == 203 and lines[200:] == ["A qqqqq film.", "Two lines of qqqqq.", ""]
    config = made[0]
    assert vocabulary().vocab_size <= 200 and config.model.hidden_size == 16
    assert (config.data.max_length, config.train.batch_size, config.train.steps) == (24, 4096 // 24, 3)
    # A pass over the texts takes as long as its share of the pre-training; the teacher has several times the weights.
    with open(path.parent / "texts.txt", "rb") as file:
        passes = 3 * 24 * (4096 // 24) / len(vocabulary().tokenize(file.read().splitlines()).flat_values)
    ratio = layer_weights(directory.read(model_dir).config) / layer_weights(config.model)
    minutes = math.ceil(601 * (5 + ratio / 3) / passes / 60)
    assert f"takes about 11 minutes, and then the distillation about {minutes:,};" in capsys.readouterr().out


@pytest.mark.slow
def test_a_pretrained_student_whose_distillation_was_killed_resumes(
    pretrained, student, model_dir, monkeypatch, capsys
):
    job, path = student

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(compression_steps, "distill", killed)
        pretrained(job, model_dir, str(path))
    assert "the pre-training, on" in capsys.readouterr().out
    encoder = path.parent / "encoder"
    before = (encoder / "model.safetensors").read_bytes()
    assert pretrained(job, model_dir, str(path)) == ""
    assert "the pre-training" not in capsys.readouterr().out and (encoder / "model.safetensors").read_bytes() == before
    student, results = directory.read(str(path)), read_results(str(path))
    assert student.config.hidden_size == 16 and student.tokenizer.vocab_size <= 200
    assert results["init"] == str(encoder) and results["teacher"] == model_dir
    assert set(results["inputs"]) >= {"train", "texts"}


def test_a_student_without_texts_or_with_answers_about_tokens_is_not_pretrained(pretrained, model_dir, data, tmp_path):
    with raises(UnsuitedError, "--texts"):
        pretrained(job_of(model_dir, data), model_dir, str(tmp_path / "model"))
    job = dataclasses.replace(
        job_of(model_dir, data, "more.txt"), task=QuestionAnswering(learned("wordpiece").tokenizer)
    )
    with raises(UnsuitedError, "about tokens"):
        pretrained(job, model_dir, str(tmp_path / "model"))
    with raises(UnsuitedError, "a,b", "commas", "--output_dir"):  # which name two files in a config's `input`
        pretrained(job_of(model_dir, data, "more.txt"), model_dir, str(tmp_path / "a,b/model"))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("lower_case", [False, True])
def test_a_student_with_its_own_pieces_reads_the_cases_of_its_teacher_and_has_none_of_its_added_pieces(
    lower_case, model_dir, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(compression_steps, "_PIECES", 200)
    added = {"[E1]": ["special"]}
    theirs = Tokenizer(
        [*learned("wordpiece").tokenizer.vocab, *added],
        lower_case=lower_case,
        max_input_chars_per_word=100,
        added_pieces=added,
    )
    config, tokenizer, _ = compression_steps._pretraining(job_of(model_dir, data), theirs, str(tmp_path))
    assert config.tokenizer.lower_case == tokenizer.lower_case == lower_case
    assert any(piece.lower() != piece for piece in tokenizer.vocab[5:]) != lower_case
    assert not tokenizer.added_pieces and "[E1]" not in tokenizer.vocab


def test_the_nearest_is_named_when_no_step_meets_the_target(done):
    results = done[1]
    smallest = min(results["rows"], key=lambda row: row["megabytes"])
    assert (results["best"], results["reached"]) == (smallest["name"], False)


def in_folder(row, old, new):
    """A row of another output directory."""
    return row | {name: row[name].replace(str(old), str(new)) for name in ("model", "export")}


def test_the_first_step_that_suffices_is_the_last_and_finished_steps_are_not_repeated(
    done, model_dir, data, tmp_path, monkeypatch
):
    output = tmp_path / "small"
    shutil.copytree(done[0], output)
    rows = done[1]["rows"]

    def refuse(*_, **__):
        raise AssertionError("exported again")

    monkeypatch.setattr(compression, "export_run", refuse)
    target = Target(megabytes=rows[1]["megabytes"])
    results = run(model_dir, data, output, target, steps=CHEAP)
    reached = next(row for row in rows if row["megabytes"] <= target.limit)
    assert (results["best"], results["reached"]) == (reached["name"], True)
    assert results["rows"] == [in_folder(row, done[0], output) for row in rows[: rows.index(reached) + 1]]
    with pytest.raises(AssertionError):  # a step is made again whose results.json is not complete
        (output / "trimmed/results.json").write_text('{"megabytes": 1}')
        run(model_dir, data, output, Target(megabytes=1e-6), steps=CHEAP)


def test_another_model_has_no_place_in_the_folder(done, model_dir, data, tmp_path):
    output, other = tmp_path / "small", tmp_path / "other"
    shutil.copytree(done[0], output)
    classifier = bert_tf.TextClassifier.from_pretrained(model_dir)
    classifier.model.weights[0].assign_add(classifier.model.weights[0])
    classifier.save(other)
    with raises(ConfigError, str(output), "another run", "choose another --output_dir"):
        run(str(other), data, output, Target(megabytes=1.0), steps=CHEAP)


def test_texts_that_ship_with_the_project_are_found_in_any_directory(done, model_dir, data, tmp_path, monkeypatch):
    shutil.copytree(data, tmp_path / "package/data")
    monkeypatch.setattr(files, "bundled", lambda name: str(tmp_path / "package" / name))
    output = shutil.copytree(done[0], tmp_path / "small")
    monkeypatch.chdir(output)
    found = file_identity(os.path.join(data, "dev.tsv"))
    with raises(ConfigError, f"inputs.texts: None there, '{found}' now"):
        run(model_dir, data, output, Target(megabytes=1.0), steps=CHEAP, texts="data/dev.tsv")


def test_the_first_step_may_be_the_start_of_the_others(done, model_dir, data, tmp_path):
    output = tmp_path / "small"
    shutil.copytree(done[0], output)
    with raises(DataError, "no step meets"):
        run(model_dir, data, output, Target(megabytes=1e-6), steps=STEPS[1:3])
    trimmed, int8 = json.loads((output / "results.json").read_text())["rows"]
    assert int8["model"] == trimmed["model"]


def refusing(error):
    def make(*_):
        raise error

    return Step("refused", "a step that this model cannot have", make=make)


@pytest.mark.parametrize("error", [ConfigError("no room"), UnsuitedError("too far"), DivergedError("no number", {})])
def test_a_step_that_a_model_cannot_have_is_left_out(error, done, model_dir, data, tmp_path, capsys):
    output = tmp_path / "small"
    shutil.copytree(done[0], output)
    steps, reporter = (STEPS[0], refusing(error), *STEPS[1:3]), FileReporter()
    with raises(DataError, "no step meets"):
        run(model_dir, data, output, Target(megabytes=1e-6), steps=steps, reporter=reporter)
    results = json.loads((output / "results.json").read_text())
    assert results["left_out"] == [{"name": "refused", "reason": str(error)}]
    assert [row["name"] for row in results["rows"]] == ["original", "trimmed", "int8"]
    assert f"left out: {error}" in capsys.readouterr().out
    assert f"refused was left out: {error}" in (output / "report.html").read_text()


def write_encoder(path, **vectors):
    tokenizer = learned("wordpiece").tokenizer
    sizes = {"vocab_size": tokenizer.vocab_size, "hidden_size": 64, "num_layers": 1, "num_heads": 4}
    prompts = {"query": "which: ", "passage": "this: "}
    config = EmbeddingConfig(pool="mean", max_length=24, normalize=True, prompts=prompts, **vectors)
    directory.write(dataclasses.replace(small_checkpoint(**sizes), tokenizer=tokenizer, vectors=config), path)
    return path


def test_a_sentence_encoder_ends_as_a_table_of_vectors(data, tmp_path):
    # The first half of a review is to find the second.
    for name, part in (("train", "train"), ("dev", "validation")):
        texts = [text.split() for text in bert_tf.read("sst", data, part).x]
        lines = [{"query": " ".join(one[: len(one) // 2]), "positive": " ".join(one[len(one) // 2 :])} for one in texts]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines if line["query"]))
    pairs = [(line["query"], line["positive"]) for line in lines if line["query"]]
    model_dir, output = write_encoder(str(tmp_path / "encoder")), tmp_path / "small"
    task = task_of(model_dir, str(tmp_path), lambda data: data)
    with raises(DataError, "no step meets"):
        compress(model_dir, str(tmp_path), str(output), Target(1e-6), STRATEGY, task=task, steps=STEPS_OF_ENCODERS)
    results = json.loads((output / "results.json").read_text())
    rows = {row["name"]: row for row in results["rows"]}
    assert (list(rows), results["metric"]) == (["original", "trimmed", "int8", "static"], "mrr@10")
    encoder = bert_tf.SentenceEncoder.from_pretrained(model_dir)
    assert rows["original"]["value"] == pytest.approx(encoder.evaluate(pairs)["mrr@10"])
    static = bert_tf.SentenceEncoder.from_pretrained(rows["static"]["model"])
    assert rows["static"]["value"] == pytest.approx(static.evaluate(pairs)["mrr@10"])
    assert rows["static"]["parameters"] == static.encoder.table.shape[0] * 64
    assert rows["trimmed"]["megabytes"] < rows["original"]["megabytes"]
    # The words of prompts are kept, too, which no text of the data has.
    source = Source(task.data, str(tmp_path), task.example)
    first, second = next(Job(model_dir, str(tmp_path), task, source, [], STRATEGY).training_texts())
    assert (first[:7], second[:6]) == (b"which: ", b"this: ")
    with raises(ConfigError, "does not pool its prompts"):
        other = write_encoder(str(tmp_path / "other"), include_prompt=False, long_texts="head")
        task_of(other, str(tmp_path), lambda data: data)


@pytest.mark.slow
@pytest.mark.parametrize("made", [modern, gemma])
def test_modernbert_is_trimmed_and_its_layers_rounded_to_8_bits(made, data, tmp_path):
    model_dir = write_model(str(tmp_path / "finetuned"), made().tokenizer, **MODERNBERT)
    with raises(DataError, "no step meets"):
        run(model_dir, data, tmp_path / "small", Target(megabytes=1e-6), steps=CHEAP)
    results = json.loads((tmp_path / "small/results.json").read_text())
    assert [row["name"] for row in results["rows"]] == ["original", "trimmed", "int8"]
    original, trimmed, int8 = (row["megabytes"] for row in results["rows"])
    assert int8 < trimmed < original


@pytest.mark.parametrize("error", [DataError("the disk is full"), KeyboardInterrupt(), AnotherRunError("there", "go")])
def test_a_step_that_may_succeed_when_it_is_tried_again_is_not_left_out(error, done, model_dir, data, tmp_path):
    output = tmp_path / "small"
    shutil.copytree(done[0], output)
    with pytest.raises(type(error)):
        run(model_dir, data, output, Target(megabytes=1e-6), steps=[STEPS[0], refusing(error)])


def test_without_the_model_itself_there_is_nothing_to_compare(model_dir, data, tmp_path):
    with raises(UnsuitedError, "too far"):
        run(model_dir, data, tmp_path / "new", Target(megabytes=1.0), steps=[refusing(UnsuitedError("too far"))])


def test_large_limits_are_written_out():
    assert Target(megabytes=1500.0).text(1500.0) == "1,500 MB"
    assert Target(milliseconds=2.5).text(2.5) == "2.5 ms for a text"


def copied(export):
    """In place of an export."""
    return lambda _, folder, **__: types.SimpleNamespace(path=shutil.copytree(export, folder))


def test_a_step_that_was_killed_while_it_wrote_is_made_again(done, model_dir, data, tmp_path, monkeypatch):
    output = tmp_path / "small"
    shutil.copytree(done[0], output)
    shutil.rmtree(output / "trimmed")
    written = directory.save_checkpoint

    def killed(checkpoint, path):
        written(checkpoint, path)
        os.remove(os.path.join(path, "config.json"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(directory, "save_checkpoint", killed)
        run(model_dir, data, output, Target(megabytes=1e-6), steps=CHEAP)
    monkeypatch.setattr(compression, "export_run", copied(done[0] / "trimmed/export/1"))
    results = run(model_dir, data, output, Target(megabytes=done[1]["rows"][1]["megabytes"] + 0.01), steps=CHEAP)
    assert (results["best"], results["left_out"]) == ("trimmed", [])


def test_other_columns_are_another_run(done, model_dir, data, tmp_path):
    output = tmp_path / "small"
    shutil.copytree(done[0], output)
    manifest = json.loads((output / "run.json").read_text())
    manifest["config"]["data"]["text"] = "review"
    (output / "run.json").write_text(json.dumps(manifest))
    with raises(ConfigError, "another run", "config.data.text: 'review' there, 'sentence' now"):
        run(model_dir, data, output, Target(megabytes=1.0), steps=CHEAP)


def test_a_folder_of_an_earlier_version_is_refused(done, model_dir, data, tmp_path):
    output = tmp_path / "small"
    shutil.copytree(done[0], output)
    manifest = json.loads((output / "run.json").read_text())
    del manifest["format"]
    (output / "run.json").write_text(json.dumps(manifest))
    with raises(ConfigError, str(output), "format: None there", "choose another --output_dir"):
        run(model_dir, data, output, Target(megabytes=1.0), steps=CHEAP)


def test_the_time_of_other_texts_counts(done, asked, model_dir, data, tmp_path, monkeypatch):
    (tmp_path / "texts.tsv").write_text("a long text\t1\nshort\t0\n")
    monkeypatch.setattr(compression, "export_run", copied(done[0] / "original/export/1"))
    asked.clear()
    texts = str(tmp_path / "texts.tsv")
    results = run(model_dir, data, tmp_path / "to", Target(milliseconds=1e6), steps=CHEAP, texts=texts)
    assert (results["best"], results["target"], results["examples"]) == ("original", {"ms_1_thread": 1e6}, 100)
    alone, together = ["a long text"], ["a long text", "short"]
    found = [[body["inputs"]["text"] for body in bodies] for bodies, _ in asked]
    assert found == 2 * [[alone, together[1:], together]] and [threads for _, threads in asked] == [1, 2]


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("", ["no target", "--target_size"]),
        ("--target_size=0MB", ["--target_size=0MB", "above 0"]),
        ("--target_size=20", ["--target_size=20", "with its unit"]),
        ("--target_size=1MB --target_ms=1", ["both a size and a time"]),
        ("--target_ms=0", ["milliseconds", "0"]),
        ("--target_size=1MB --texts=nothing.txt", ["nothing.txt", "no such file"]),
        ("--target_size=1MB --data_dir=nothing", ["nothing", "no such file or directory"]),
        ("--target_size=1MB --data_dir={data}/dev.tsv", ["dev.tsv is one file", "train.tsv and dev.tsv"]),
    ],
)
def test_bad_input_is_named_in_one_line(programs, model_dir, data, tmp_path, flags, expected):
    given = [f"--model_dir={model_dir}", f"--data_dir={data}", f"--output_dir={tmp_path / 'to'}"]
    finished = programs("compress", *given, *flags.format(data=data).split())
    assert finished.status in (1, 2)
    assert all(text in finished.error_line for text in expected), finished.error_line
    assert not (tmp_path / "to").exists()


@pytest.mark.slow
def test_the_program_distils_where_nothing_cheaper_suffices(programs, data, tmp_path):
    output, model_dir = tmp_path / "to", write_model(str(tmp_path / "finetuned"), learned("wordpiece").tokenizer)
    finished = programs(
        "compress", f"--model_dir={model_dir}", f"--data_dir={data}", f"--output_dir={output}", "--target_size=1kB"
    )
    assert finished.status == 1
    assert "error: no step meets 0.001 MB; the nearest is" in finished.errors.splitlines()[-1]
    results = json.loads((output / "results.json").read_text())
    assert [row["name"] for row in results["rows"]] == ["original", "trimmed", "int8", "pruned", "half", "quarter"]
    reasons = {one["name"]: one["reason"] for one in results["left_out"]}
    assert list(reasons) == ["pretrained", "tiny"] and "--texts" in reasons["pretrained"]
    assert "choose a student that is not larger" in reasons["tiny"]
    weights = [layer_weights(directory.read(results["rows"][step]["model"]).config) for step in (0, 4, 5)]
    assert weights[1] <= 0.5 * weights[0] and weights[2] <= 0.25 * weights[0]
    teachers = [read_results(str(output / step / "model"))["teacher_results"] for step in ("half", "quarter")]
    assert [teacher["path"] for teacher in teachers] == 2 * [str(output / "trimmed/model")]
    page = (output / "report.html").read_text()
    assert all(escape(row["title"]) in page for row in results["rows"])
    lines = [
        line
        for line in finished.output.splitlines()
        if line.startswith(tuple(f"{row['name']}, " for row in results["rows"]))
    ]
    assert len(lines) == 6
