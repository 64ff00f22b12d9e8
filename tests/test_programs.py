"""The programs in sequence, on a few hundred sentences of the bundled data."""

import contextlib
import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from bert_tf.files import bundled
from bert_tf.locks import locked
from tests.programs import peak_memory, wait_for
from tests.text.reference import tokenize

PRETRAIN = """
from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig

def get_config():
    return PretrainConfig(
        input="{0}/corpus.txt",
        validation="{0}/heldout.txt",
        tokenizer=TokenizerConfig(vocab="{0}/vocab.txt"),
        model=BertConfig(vocab_size=0, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32,
                         max_position_embeddings=64),
        data=PretrainingData(max_length=32, max_predictions=5, pairs="none"),
        train=TrainConfig(batch_size=8, steps=150, learning_rate=2e-3, dtype="float32", log_every=10, steps_per_call=5),
    )
"""
FINETUNE = """
from bert_tf.config import ExampleData, FinetuneConfig, TrainConfig
from bert_tf.config import ClassificationConfig

def get_config():
    return FinetuneConfig(
        task=ClassificationConfig(max_length=32),
        data=ExampleData(train="train.tsv", validation="heldout.tsv", test="heldout.tsv"),
        train=TrainConfig(batch_size=8, epochs=2, learning_rate=1e-3, dtype="float32"),
    )
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small data and configs."""
    folder = tmp_path_factory.mktemp("programs")
    for source, target, lines in (("train", "corpus", 400), ("heldout", "heldout", 60)):
        with gzip.open(bundled(f"data/sotu/{source}.txt.gz"), "rt", encoding="utf-8") as file:
            sentences = [line for line, _ in zip(file, range(lines), strict=False)]
        # Documents are long addresses: a blank line every ten sentences makes enough documents of the first one.
        unknown = "한국어 ☃ ☃ ☃\n" * (target == "heldout")  # to the vocabulary, which is learned from the corpus
        documents = ["".join(sentences[start : start + 10]) + unknown for start in range(0, lines, 10)]
        (folder / f"{target}.txt").write_text("\n".join(documents))
    for name, lines in (("train", 101), ("heldout", 38)):
        with open(bundled(f"data/reviews/{name}.tsv"), encoding="utf-8") as file:
            (folder / f"{name}.tsv").write_text("".join(line for line, _ in zip(file, range(lines), strict=False)))
    (folder / "pretrain.py").write_text(PRETRAIN.format(folder))
    (folder / "finetune.py").write_text(FINETUNE)
    return folder


@pytest.fixture(scope="module")
def vocabulary(programs, folder):
    arguments = f"--input={folder}/corpus.txt", f"--output={folder}/vocab.txt", "--vocab_size=400"
    programs.succeed("learn_vocab", *arguments)
    return folder / "vocab.txt"


def signaled(model, number):
    """A function for `meanwhile` that sends a signal to a run once its curves have two points."""

    def send(process):
        wait_for(lambda: (model / "history.jsonl").exists() and (model / "history.jsonl").read_text().count("\n") > 1)
        os.kill(process, number)

    return send


@pytest.fixture(scope="module")
def pretrained(programs, folder, vocabulary):
    """Results of pretrain in two runs, the first interrupted with Ctrl-C."""
    model = folder / "pretrained"
    command = "pretrain", f"--config={folder}/pretrain.py", f"--model_dir={model}"
    stopped = programs(*command, meanwhile=signaled(model, signal.SIGINT))
    left = sorted(path.name for path in model.iterdir())
    return model, stopped, left, programs(*command)


@pytest.fixture(scope="module")
def finetuned(programs, folder, pretrained):
    model = folder / "finetuned"
    files = f"--config={folder}/finetune.py", f"--data_dir={folder}", f"--init={pretrained[0]}"
    programs.succeed("finetune", *files, f"--model_dir={model}")
    return model


def test_ctrl_c_exits_with_130_and_one_line_that_says_how_to_resume(pretrained):
    model, stopped, left, _ = pretrained
    assert stopped.status == 130
    assert "run the same command again to resume" in stopped.error_line and str(model) in stopped.error_line
    assert "config.json" not in left and {"checkpoints", "curves.png"} <= set(left)


def test_the_same_command_resumes_and_finishes_the_run(pretrained):
    model, stopped, _, done = pretrained
    assert done.status == 0, done.errors
    step = stopped.error_line.split("stopped at step ")[1].split(";")[0]
    assert f"resuming from step {step} of 150" in done.output
    results = json.loads((model / "results.json").read_text())
    assert results["steps"] == 150
    assert [point["step"] for point in results["history"]] == list(range(10, 151, 10))
    assert [row["step"] for row in results["evaluations"]] == [0, 150]


def test_pretraining_lowers_the_validation_loss(pretrained):
    first, last = json.loads((pretrained[0] / "results.json").read_text())["evaluations"]
    assert last["mlm_loss"] < first["mlm_loss"] - 0.3


@pytest.fixture(scope="module")
def evaluated(programs, folder, finetuned):
    """The folder that `evaluate` wrote."""
    output = folder / "measured"
    programs.succeed("evaluate", f"--model_dir={finetuned}", f"--data_dir={folder}", f"--output={output}")
    return output


def test_finetuning_writes_results_and_evaluate_gives_the_same_metrics(finetuned, evaluated):
    results = json.loads((finetuned / "results.json").read_text())
    assert all((where / "report.html").stat().st_size > 10_000 for where in (finetuned, evaluated))
    measured = json.loads((evaluated / "results.json").read_text())["final"]
    assert measured["accuracy"] == pytest.approx(results["final"]["accuracy"], abs=1e-6)
    assert measured["loss"] == pytest.approx(results["final"]["loss"], rel=1e-4)


def test_the_share_of_unknown_tokens_is_in_results(folder, finetuned, evaluated, vocabulary):
    ids = {piece: number for number, piece in enumerate(vocabulary.read_text(encoding="utf-8").split("\n"))}
    texts = [row["sentence"].encode() for row in read(folder / "heldout.tsv")]
    tokens = [token for text in texts for token, _, _ in tokenize(text, ids)]
    expected = tokens.count(ids["[UNK]"]) / len(tokens)
    assert 0 < expected < 0.5
    results = json.loads((finetuned / "results.json").read_text())
    assert results["unknown_share"]["validation"] == pytest.approx(expected)
    measured = json.loads((evaluated / "results.json").read_text())
    assert measured["unknown_share"] == pytest.approx(expected)


def test_the_share_of_unknown_tokens_is_in_the_curves(folder, pretrained, vocabulary):
    ids = {piece: number for number, piece in enumerate(vocabulary.read_text(encoding="utf-8").split("\n"))}
    text = (folder / "heldout.txt").read_text(encoding="utf-8")
    tokens = [token for line in text.splitlines() for token, _, _ in tokenize(line.encode(), ids)]
    expected = tokens.count(ids["[UNK]"]) / len(tokens)
    assert expected > 0.001
    results = json.loads((pretrained[0] / "results.json").read_text())
    # The vocabulary was learned from this text; masking replaces a few tokens by others, which may be [UNK].
    assert max(point["unknown_share"] for point in results["history"]) < 0.002
    for row in results["evaluations"]:  # long sentences are cut, and the unknown ones are short
        assert expected < row["unknown_share"] < 10 * expected


@pytest.mark.parametrize(
    "name", ["predict", *(pytest.param(name, marks=pytest.mark.slow) for name in ("evaluate", "extract"))]
)
def test_predict_extract_and_evaluate_print_a_line_on_unknown_tokens(programs, folder, finetuned, vocabulary, name):
    label = read(folder / "heldout.tsv")[0]["label"]
    (folder / "foreign.tsv").write_text("sentence\tlabel\n" + f"한국어 ☃ the\t{label}\n" * 20, encoding="utf-8")
    ids = {piece: number for number, piece in enumerate(vocabulary.read_text(encoding="utf-8").split("\n"))}
    tokens = [token for token, _, _ in tokenize("한국어 ☃ the".encode(), ids)]
    expected = f"{tokens.count(ids['[UNK]']) / len(tokens):.1%} of the tokens are [UNK], such as '한국어', '☃'"
    model, file = f"--model_dir={finetuned}", folder / "foreign.tsv"
    commands = {
        "predict": (model, f"--data_dir={file}", f"--output={folder}/foreign.jsonl"),
        "evaluate": (model, f"--data_dir={file}", f"--output={folder}/foreign"),
        "extract": (f"--init={finetuned}", f"--input={file}", "--text=sentence", f"--output={folder}/foreign.npz"),
    }
    assert programs.succeed(name, *commands[name]).errors.count(expected) == 1


def test_files_with_another_layout_are_evaluated_with_flags_for_the_differences(programs, folder, finetuned):
    text = (folder / "heldout.tsv").read_text()
    (folder / "renamed.tsv").write_text(text.replace("sentence\tlabel", "review\tstars", 1))
    files = f"--model_dir={finetuned}", f"--data_dir={folder}/renamed.tsv", f"--output={folder}/renamed"
    programs.succeed("evaluate", *files, "--data.text=review", "--data.label=stars")
    measured = json.loads((folder / "renamed/results.json").read_text())["final"]
    expected = json.loads((finetuned / "results.json").read_text())["final"]
    assert measured["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)
    done = programs("evaluate", *files, "--data.column_of_text=review")
    assert done.status == 2 and "--data.column_of_text: ExampleData has no field 'column_of_text'" in done.error_line
    done = programs("evaluate", *files, "--data=x")
    assert done.status == 2 and done.error_line.endswith("--data: expected one of its fields, such as --data.source")


@pytest.fixture(scope="module")
def pruned(programs, folder, finetuned):
    """A model, what `prune` printed, and its report."""
    small = folder / "pruned"
    arguments = f"--model_dir={finetuned}", f"--data_dir={folder}", "--share=0.3", f"--output_dir={small}"
    done = programs.succeed("prune", *arguments)
    return small, done, json.loads((small / "pruning.json").read_text())


def test_a_pruned_model_is_smaller_and_evaluated_as_its_report_says(programs, folder, finetuned, pruned):
    small, done, report = pruned
    assert "calibration loss" in done.output
    assert report["examples"] == 100 and report["removed"] >= 0.3
    assert len((small / "model.safetensors").read_bytes()) < len((finetuned / "model.safetensors").read_bytes())
    files = f"--data_dir={folder}/train.tsv", f"--output={folder}/of_pruned"
    programs.succeed("evaluate", f"--model_dir={small}", *files)
    measured = json.loads((folder / "of_pruned/results.json").read_text())["final"]
    assert measured["loss"] == pytest.approx(report["metrics"][1]["loss"], rel=1e-4)
    done = programs("convert", f"--input={small}", "--format=huggingface", f"--output={folder}/no")
    assert done.status == 2 and "--format=bert_tf" in done.error_line
    assert not (folder / "no").exists()


@pytest.mark.slow
def test_a_pruned_model_is_fine_tuned_further_and_exported(programs, folder, pruned):
    small, *_ = pruned
    files = f"--config={folder}/finetune.py", f"--data_dir={folder}", f"--init={small}"
    done = programs.succeed("finetune", *files, f"--model_dir={folder}/again", "--config.train.epochs=1")
    assert f"continuing with the head of {small}" in done.errors
    programs.succeed("export", f"--model_dir={folder}/again", f"--export_dir={folder}/exported_small")


PRUNE = {
    "everything": ("--model_dir={0}/finetuned --data_dir={0} --share=1", 2, "share is 1.0; expected a number above 0"),
    "nothing": ("--model_dir={0}/finetuned --data_dir={0} --share=0", 2, "share is 0.0"),
    "too much": ("--model_dir={0}/finetuned --data_dir={0} --share=0.99", 2, "at most 0."),
    "no number": ("--model_dir={0}/finetuned --data_dir={0} --share=nan", 2, "--share=nan"),
    "no task": ("--model_dir={0}/pretrained --data_dir={0} --share=0.5", 1, "not fine-tuned"),
    "no data": ("--model_dir={0}/finetuned --data_dir={0}/none --share=0.5", 1, "{0}/none"),
    "no split": ("--model_dir={0}/finetuned --data_dir={0} --share=0.5 --split=other", 1, "other"),
    "other labels": ("--model_dir={0}/finetuned --data_dir={0}/other.tsv --share=0.5", 1, "one of the model's"),
}


@pytest.mark.parametrize("case", PRUNE)
def test_what_cannot_be_pruned_is_one_line(programs, folder, finetuned, case):
    (folder / "other.tsv").write_text("sentence\tlabel\nA film.\tlong\n")
    arguments, status, culprit = PRUNE[case]
    done = programs("prune", *arguments.format(folder).split(), f"--output_dir={folder}/never")
    assert done.status == status, done.errors
    assert culprit.format(folder) in done.error_line
    assert not (folder / "never").exists()


def read(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_predictions_are_in_the_order_of_the_rows_and_match_the_accuracy(programs, folder, finetuned):
    output = folder / "labels.tsv"
    programs.succeed("predict", f"--model_dir={finetuned}", f"--data_dir={folder}", f"--output={output}")
    predicted, truth = read(output), read(folder / "heldout.tsv")
    assert len(predicted) == len(truth) == 37
    accuracy = np.mean([ours["label"] == theirs["label"] for ours, theirs in zip(predicted, truth, strict=True)])
    expected = json.loads((finetuned / "results.json").read_text())["final"]["accuracy"]
    assert accuracy == pytest.approx(expected, abs=1e-6)


def test_predict_reads_json_lines_from_standard_input(programs, folder, finetuned):
    lines = "".join(json.dumps({"sentence": f"{text} 한국어 ☃"}) + "\n" for text in ("good", "bad", ""))
    (folder / "lines.jsonl").write_text(lines)
    model = f"--model_dir={finetuned}"
    programs.succeed("predict", model, "--data_dir=-", f"--output={folder}/piped.jsonl", stdin=lines)
    programs.succeed("predict", model, f"--data_dir={folder}/lines.jsonl", f"--output={folder}/read.jsonl")
    assert (folder / "piped.jsonl").read_text() == (folder / "read.jsonl").read_text()
    assert len((folder / "piped.jsonl").read_text().splitlines()) == 3
    empty = programs("predict", model, "--data_dir=-", f"--output={folder}/none.jsonl")
    assert empty.status == 1 and "-: no examples" in empty.error_line
    wrong = programs("predict", model, "--data_dir=-", f"--output={folder}/none.jsonl", stdin='{"text": "good"}\n')
    assert wrong.status == 1 and wrong.error_line.startswith("bert_tf: error: -:1: no field 'sentence'")


OUTPUTS = {
    "predict": "--model_dir=none --output",
    "evaluate": "--model_dir=none --output",
    "extract": "--init=none --input=none.txt --output",
    "extract ": "--init=none --export_dir",
    "export": "--model_dir=none --export_dir",
    "prune": "--model_dir=none --share=0.5 --output_dir",
    "export ": "--model_dir=none --format=litert --export_dir",
    "convert": "--input=none --format=google --output",
    "learn_vocab": "--input=none --output",
    "prepare": "--input=none --vocab=none --output",
    "pretrain": "--config={0}/pretrain.py --model_dir",
    "finetune": "--config={0}/finetune.py --init=none --model_dir",
    "distill": "--config={0}/finetune.py --teacher=none --model_dir",
    "compress": "--model_dir=none --target_size=1MB --output_dir",
    "ablate": "--output_dir",
    "quickstart": "--output_dir",
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(programs, folder, name):
    (folder / "file").touch()
    arguments = f"{OUTPUTS[name].format(folder)}={folder}/file/x.jsonl"
    done = programs(name.strip(), *arguments.split())
    assert done.status == 2, done.errors
    assert f"{folder}/file/x.jsonl cannot be written: Not a directory" in done.error_line


@pytest.mark.parametrize(
    "name, flags, named",
    [
        ("export", "--model_dir=none --format=onnx --attention", "--attention"),
        (
            "export",
            "--model_dir=none --format=onnx --optimize=bfloat16",
            "'bfloat16'; expected 'none' or 'int8' in ONNX",
        ),
        ("extract", "--init=none --format=litert --optimize=bfloat16", "expected 'none' or 'int8' in LiteRT"),
    ],
)
def test_an_option_that_a_format_does_not_have_is_refused_before_anything_is_read(programs, folder, name, flags, named):
    done = programs(name, *flags.split(), f"--export_dir={folder}/other")
    assert done.status == 2 and named in done.error_line


def test_a_format_needs_an_export(programs, folder):
    done = programs("extract", "--init=none", "--format=onnx", "--input=none.txt", f"--output={folder}/vectors.npz")
    assert done.status == 2 and "--format=onnx is for exports; give --export_dir" in done.error_line


@pytest.mark.slow
def test_the_memory_of_predict_does_not_grow_with_the_file(folder, finetuned):
    peaks = []
    for count in (10_000, 100_000):
        with open(folder / "many.jsonl", "w") as file:
            file.writelines(
                json.dumps({"sentence": f"a good film, seen {number} times"}) + "\n" for number in range(count)
            )
        output = f"--output={folder}/many-{count}.jsonl"
        predict = sys.executable, "-m", "bert_tf.predict", f"--model_dir={finetuned}", output
        peaks.append(peak_memory(*predict, f"--data_dir={folder}/many.jsonl", "--batch_size=256"))
        with open(folder / f"many-{count}.jsonl") as file:
            assert sum(1 for _ in file) == count
    # All texts and predictions together would need some 100 MB more.
    assert peaks[1] < peaks[0] + 50e6, peaks


def test_the_export_gives_the_answers_of_predict_without_any_other_file(programs, folder, finetuned):
    texts = [row["sentence"] for row in read(folder / "heldout.tsv")][:5]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"sentence": text}) + "\n" for text in texts))
    files = f"--data_dir={folder}/texts.jsonl", f"--output={folder}/few.tsv"
    programs.succeed("predict", f"--model_dir={finetuned}", *files)
    copy = folder / "copy"
    shutil.copytree(finetuned, copy)
    # A session in a process of its own answers below; the check would start another one.
    programs.succeed("export", f"--model_dir={copy}", f"--export_dir={folder}/export", "--nocheck")
    shutil.rmtree(copy)
    (folder / "export").rename(folder / "moved")

    ask = [sys.executable, bundled("inference/ask.py"), f"{folder}/moved/1", *texts]
    answers = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()

    for answer, predicted in zip(map(json.loads, answers), read(folder / "few.tsv"), strict=True):
        assert answer["label"] == predicted["label"]
        for label, probability in zip(answer["labels"], answer["probabilities"], strict=True):
            assert probability == pytest.approx(float(predicted[label]), abs=2e-4)


FLAG_ERRORS = {
    "an unknown field": (["--config.train.bach_size=4"], "no field 'bach_size'; did you mean 'batch_size'?"),
    "a value of another type": (["--config.train.batch_size=abc"], "batch_size"),
    "a phase that is not there": (["--config.train.phases[1].batch_size=4"], "train.phases[1]: out of range"),
    "micro-batches of no size": (["--config.train.accumulation=3"], "train.batch_size 8 cannot be split"),
    "an unexpected argument": (["train.txt"], "unexpected argument 'train.txt'"),
    "an unknown flag": (["--modeldir=x"], "Unknown command line flag 'modeldir'"),
    "an unknown strategy": (["--strategy=none"], "--strategy=none is unknown"),
    "no input": (["--config.input="], "input is empty; name the text to train on"),
    "no steps": (["--config.train.steps=0"], "train.steps is 0"),
    "a rate that is no number": (
        ["--config.train.layer_decay=nan"],
        "train.layer_decay is nan; expected a number above 0",
    ),
    "endless training": (
        ["--config.train.epochs=inf"],
        "train.epochs is inf; expected a number from 0 up to 1,000,000",
    ),
    "a huge number": (["--config.train.log_every=1" + 30 * "0"], "expected a whole number from 1 up to 1,000,000,000"),
    "a huge model": (
        ["--config.model.num_layers=1000000000"],
        "num_layers is 1000000000; expected a whole number from 1",
    ),
    "no batch": (["--config.train.batch_size=0"], "train.batch_size is 0"),
    "an unknown dtype": (["--config.train.dtype=int8"], "train.dtype is 'int8'; expected one of float32"),
    "too long for the model": (["--config.data.max_length=65"], "data.max_length 65 is over"),
}


@pytest.mark.parametrize("case", FLAG_ERRORS)
def test_a_wrong_flag_or_field_is_a_one_line_error_with_status_2(programs, folder, vocabulary, case):
    arguments, expected = FLAG_ERRORS[case]
    model = folder / "none"
    done = programs("pretrain", f"--config={folder}/pretrain.py", f"--model_dir={model}", *arguments)
    assert done.status == 2, done.errors
    assert expected in done.error_line
    assert done.errors.strip() == done.error_line  # nothing else
    assert not model.exists()


def test_a_missing_config_file_and_a_missing_flag_are_one_line_errors(programs, folder):
    done = programs("pretrain", f"--config={folder}/none.py", f"--model_dir={folder}/none")
    assert done.status == 2 and "No such file" in done.error_line and "none.py" in done.error_line
    done = programs("pretrain", f"--config={folder}/pretrain.py")
    assert done.status == 2 and "model_dir" in done.error_line
    done = programs("evaluate")
    assert done.status == 2 and "model_dir" in done.error_line


INPUTS = {
    "predict": ("predict", "--model_dir={0}/finetuned --data_dir={0}/heldout.tsv --output={0}/heldout.tsv"),
    "predict, by a link": ("predict", "--model_dir={0}/finetuned --data_dir={0}/heldout.tsv --output={0}/link.tsv"),
    "predict, another split": ("predict", "--model_dir={0}/finetuned --data_dir={0} --output={0}/train.tsv"),
    "learn_vocab": ("learn_vocab", "--input={0}/h*.txt,{0}/corpus.txt --output={0}/corpus.txt"),
    "evaluate": ("evaluate", "--model_dir={0}/finetuned --data_dir={0} --output={0}/finetuned"),
    "evaluate, the data": ("evaluate", "--model_dir={0}/finetuned --data_dir={0}/heldout.tsv --output={0}"),
    "extract": ("extract", "--init={0}/finetuned --text=sentence --input={0}/lines.jsonl --output={0}/lines.jsonl"),
    "extract, the run": (
        "extract", "--init={0}/finetuned --text=sentence --input={0}/lines.jsonl --output={0}/finetuned/history.jsonl"
    ),
    "prepare": ("prepare", "--input={0}/corpus.txt --vocab={0}/vocab.txt --output={0}"),
    "export": ("export", "--model_dir={0}/finetuned --export_dir={0}/finetuned"),
    "export, to ONNX": ("export", "--model_dir={0}/finetuned --format=onnx --export_dir={0}/finetuned"),
    "convert": ("convert", "--input={0}/finetuned --format=bert_tf --output={0}/finetuned"),
    "prune": ("prune", "--model_dir={0}/finetuned --data_dir={0} --share=0.5 --output_dir={0}/finetuned"),
    "finetune": (
        "finetune", "--config={0}/finetune.py --data_dir={0} --init={0}/pretrained --model_dir={0}/pretrained"
    ),
    "pretrain": ("pretrain", "--config={0}/pretrain.py --model_dir={0}"),
    "quickstart": ("quickstart", "--output_dir={0}"),
    "compress": (
        "compress", "--model_dir={0}/finetuned --data_dir={0} --target_size=1MB --output_dir={0}/finetuned"
    ),
    "ablate": ("ablate", "--output_dir={0}"),
}  # fmt: skip


@pytest.mark.parametrize("case", INPUTS)
def test_a_program_does_not_write_over_what_it_reads_or_into_the_folders_of_others(programs, folder, finetuned, case):
    (folder / "lines.jsonl").write_text('{"sentence": "a"}\n')
    (folder / "link.tsv").unlink(missing_ok=True)
    (folder / "link.tsv").symlink_to(folder / "heldout.tsv")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    name, arguments = INPUTS[case]
    done = programs(name, *arguments.format(folder).split())
    assert done.status == 2, done.errors
    assert "choose another" in done.error_line or "expected one for versions alone" in done.error_line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_help_lists_the_common_flags_of_all_programs(programs):
    shown = programs("predict", "--help").output
    assert all(f"\n  --{name}:" in shown for name in ("output", "strategy", "tpu", "data"))


def test_a_console_command_lists_and_checks_the_flags_of_its_program(programs):
    shown = programs("bert-tf-learn-vocab", "--help").output
    assert "Learns a vocabulary" in shown and "\n  --vocab_size:" in shown
    assert shown == programs("learn_vocab", "--help").output
    done = programs("bert-tf-learn-vocab", "--vocabsize=9")
    assert done.status == 2 and "Did you mean: vocab_size" in done.error_line


def test_an_error_inside_a_config_file_is_a_one_line_error(programs, folder):
    (folder / "wrong.py").write_text(PRETRAIN.format(folder).replace("hidden_size", "hiden_size"))
    done = programs("pretrain", f"--config={folder}/wrong.py", f"--model_dir={folder}/none")
    assert done.status == 2 and "BertConfig has no field 'hiden_size'; did you mean 'hidden_size'?" in done.error_line


@pytest.mark.slow
def test_a_run_on_two_languages_learns_a_vocabulary_prepares_trains_and_resumes(programs, folder, tmp_path):
    pytest.importorskip("apache_beam", reason="needs pip install 'bert_tf[beam]'")
    document = "버튼을 누르면 창이 열립니다 .\n파일을 고르고 확인을 누릅니다 .\n{} 번째 쪽을 봅니다 .\n\n"
    (tmp_path / "ko.txt").write_text("".join(document.format(number) for number in range(20)))
    languages, vocab = f"en:{folder}/corpus.txt,ko:{tmp_path}/ko.txt", tmp_path / "vocab.txt"
    programs.succeed(
        "learn_vocab", f"--input={languages}", f"--output={vocab}", "--vocab_size=500", "--nostrip_accents"
    )
    assert {"버", "the"} <= set(vocab.read_text().split())
    prepare = f"--input={languages}", f"--vocab={vocab}", f"--output={tmp_path}/prepared", "--nostrip_accents"
    printed = programs.succeed("prepare", *prepare).output
    use = f"--config.data.languages=en:{tmp_path}/prepared/en,ko:{tmp_path}/prepared/ko"
    assert printed.splitlines()[-1].endswith(use)
    tokenizer = f"--config.tokenizer.vocab={vocab}", "--config.tokenizer.strip_accents=False"
    config = f"--config={folder}/pretrain.py", *tokenizer, f"--config.validation={languages}"
    runs = []
    for name, text in (("text", f"--config.data.languages={languages}"), ("shards", use)):
        command = "pretrain", *config, text, f"--model_dir={tmp_path}/{name}"
        if name == "shards":
            assert programs(*command, meanwhile=signaled(tmp_path / name, signal.SIGINT)).status == 130
        programs.succeed(*command)
        runs.append(json.loads((tmp_path / name / "results.json").read_text()))
    assert [row["language"] for row in runs[0]["languages"]] == ["en", "ko"]
    # The same batches from text and shards, interrupted or not.
    assert runs[0]["languages"] == runs[1]["languages"] and runs[0]["final"] == runs[1]["final"]
    # A changed exponent is another run.
    changed = programs(*command, "--config.data.language_exponent=0.5")
    assert changed.status == 2 and "data.language_exponent" in changed.error_line


def test_another_runs_directory_is_refused_by_the_program(programs, folder, pretrained):
    command = "pretrain", f"--config={folder}/pretrain.py", f"--model_dir={pretrained[0]}", "--config.train.seed=5"
    done = programs(*command)
    assert done.status == 2
    assert "belongs to another run (config.train.seed: 0 there, 5 now)" in done.error_line
    assert "--accept_config_change" in done.error_line


def test_every_program_that_reads_a_model_refuses_other_directories(programs, folder, pretrained):
    (folder / "empty").mkdir()
    reads = {
        "evaluate": (f"--data_dir={folder}", f"--output={folder}/x"),
        "predict": (f"--data_dir={folder}", f"--output={folder}/x.tsv"),
        "export": (f"--export_dir={folder}/x",),
    }
    for name, others in reads.items():
        done = programs(name, f"--model_dir={folder}/empty", *others)
        assert done.status == 1 and "empty: no config.json; expected a directory" in done.error_line
        if name != "export":  # a pre-trained model has no labels
            done = programs(name, f"--model_dir={pretrained[0]}", *others)
            assert done.status == 1 and "not fine-tuned; fine-tune it" in done.error_line


@pytest.mark.slow
def test_a_full_disk_is_a_one_line_error_and_the_run_can_be_resumed(programs, folder, vocabulary):
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        every = "--config.train.save_every=20", "--config.train.keep=100", "--config.train.steps=400"
        command = "pretrain", f"--config={folder}/pretrain.py", *every
        model = disk / "model"
        done = programs(*command, f"--model_dir={model}")
        assert done.status == 1 and "the model with 20 more checkpoints (train.keep) takes at least" in done.error_line
        assert not model.exists()
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)

        def fill(_):
            wait_for(lambda: (model / "checkpoints/step-20.index").exists())
            with contextlib.suppress(OSError):
                (disk / "other").write_bytes(b"x" * shutil.disk_usage(disk).free)

        done = programs(*command, f"--model_dir={model}", meanwhile=fill)
        assert done.status == 1
        assert "o space left on device" in done.error_line or "could not be written" in done.error_line
        assert not [path for path in model.rglob("*") if path.name.endswith(("_temp", ".partial"))]
        (disk / "other").unlink()
        done = programs(*command, f"--model_dir={model}")
        assert done.status == 0, done.errors
        assert "resuming from step" in done.output
        programs.succeed(*command, f"--model_dir={folder}/uninterrupted")
        weights = [(where / "model.safetensors").read_bytes() for where in (model, folder / "uninterrupted")]
        assert weights[0] == weights[1]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_directory_in_which_a_run_is_going_on_is_refused(programs, folder, vocabulary):
    model = folder / "busy"
    for program, flag in (("pretrain", "model_dir"), ("ablate", "output_dir"), ("quickstart", "output_dir")):
        with locked(model):
            config = [f"--config={folder}/pretrain.py"] * (program == "pretrain")
            done = programs(program, f"--{flag}={model}", *config)
        assert done.status == 2
        assert f"{model} is in use by process {os.getpid()} on {os.uname().nodename}; wait" in done.error_line
        assert not model.exists()


@pytest.mark.slow
def test_sigterm_saves_and_exits_with_0(programs, folder, vocabulary):
    model = folder / "terminated"
    done = programs(
        "pretrain", f"--config={folder}/pretrain.py", f"--model_dir={model}", "--config.train.steps=9999",
        meanwhile=signaled(model, signal.SIGTERM),
    )  # fmt: skip
    assert done.status == 0, done.errors
    assert list((model / "checkpoints").glob("*.index"))


@pytest.mark.slow
def test_python_m_itself_prints_the_line_and_nothing_else():
    done = subprocess.run([sys.executable, "-m", "bert_tf.pretrain", "--nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("bert_tf: error: ") and done.stderr.count("\n") == 1
