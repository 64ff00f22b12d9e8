"""Conversions between formats: lossless round trips, complete reports, and no partial output."""

import dataclasses
import importlib.util
import json
import resource
import sys
import textwrap

import numpy as np
import pytest

from bert_tf.checkpoints import conversion, directory
from bert_tf.checkpoints.formats import huggingface, open_checkpoint
from bert_tf.errors import ConfigError, DataError
from bert_tf.report.terminal import conversion_text
from tests.checkpoints.small import TASKS, assert_same, small_checkpoint
from tests.errors import raises
from tests.model.small import PIECES
from tests.programs import peak_memory


@pytest.fixture
def saved(tmp_path):
    """Writes a small checkpoint in this project's format; returns the Checkpoint and its directory."""

    def make(head=None, **config):
        checkpoint = small_checkpoint(head, **config)
        directory.write(checkpoint, str(tmp_path / "ours"))
        return checkpoint, str(tmp_path / "ours")

    return make


# For what each format cannot represent, see the formats' own tests.
@pytest.mark.parametrize("head", TASKS)
@pytest.mark.parametrize("way", [["google"], ["huggingface"], ["google", "huggingface"], ["huggingface", "google"]])
def test_a_round_trip_is_bit_for_bit(saved, tmp_path, head, way):
    # Hugging Face's classes for these heads have no pooler, the others have one.
    pooler = head not in ("masked_lm", "tagging", "question_answering")
    checkpoint, path = saved(head, pooler=pooler)
    for number, format in enumerate([*way, "bert_tf"]):
        target = str(tmp_path / f"{number}")
        report = conversion.convert(path, format, target)
        path = target
        assert {row["name"] for row in report["tensors"]} == set(checkpoint.tensors)
        # Google's graph always has a pooler: it is added for Google and dropped again.
        assert (
            set(report["unused_tensors"])
            <= {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"} - checkpoint.tensors.keys()
        )
    assert_same(checkpoint, open_checkpoint(path))
    again = open_checkpoint(path)
    assert again.task == checkpoint.task


@pytest.mark.parametrize("format", ["bert_tf", "google", pytest.param("huggingface", marks=pytest.mark.slow)])
def test_a_cosine_model_is_written_as_its_encoder_and_keeps_its_head_in_our_format(saved, tmp_path, format):
    checkpoint, path = saved("cosine")
    report = conversion.convert(path, format, str(tmp_path / "theirs"), verify=True)
    after = open_checkpoint(str(tmp_path / "theirs"))
    kept = format == "bert_tf"
    assert (after.head, report["model"]["task"]) == (("cosine", "cosine") if kept else (None, "encoder"))
    assert ("logits" in report["verification"]["differences"]) == kept
    assert kept or any("only the encoder is written: the head, a cosine" in note for note in report["warnings"])
    assert after.tensors.keys() == checkpoint.tensors.keys()


def test_the_report_names_every_tensor_on_both_sides(saved, tmp_path):
    checkpoint, path = saved("classification")
    report = conversion.convert(path, "huggingface", str(tmp_path / "theirs"))
    with open(tmp_path / "theirs" / "conversion.json") as file:
        assert json.load(file) == json.loads(json.dumps(report))
    written = huggingface.read(str(tmp_path / "theirs"))
    for row in report["tensors"]:
        assert row["shape"] == list(checkpoint.tensors[row["name"]].shape)
        assert row["dtype"] == "float32"
        assert row["from"] == row["name"]
        assert row["to"] == written.tensors[row["name"]].source


def test_the_table_has_one_line_for_the_same_variable_of_all_layers(saved, tmp_path):
    _, path = saved()
    report = conversion.convert(path, "huggingface", str(tmp_path / "theirs"))
    lines = conversion_text(report).splitlines()
    (line,) = [line for line in lines if line.startswith("layer_*/attention/qkv/kernel")]
    assert "(2x)" in line and "32x96" in line and "float32" in line
    assert "encoder.layer.*.attention.self.{query,key,value}.weight" in line
    assert not any("layer_0" in line or "(1x)" in line for line in lines)
    assert lines[0].startswith(f"{path}: encoder, 2 layers, hidden 32, 4 heads, vocabulary {len(PIECES)}")


def test_unused_tensors_are_listed_with_their_reason(saved, tmp_path):
    checkpoint, path = saved("tagging")  # with a pooler, which Hugging Face's tagger lacks
    report = conversion.convert(path, "huggingface", str(tmp_path / "theirs"))
    assert set(report["unused_tensors"]) == {"pooler/kernel", "pooler/bias"}
    text = conversion_text(report)
    assert "Not used:" in text and "pooler/bias, pooler/kernel: " in text
    assert checkpoint.tensors.keys() - open_checkpoint(str(tmp_path / "theirs")).tensors.keys() == set(
        report["unused_tensors"]
    )


def test_half_precision_wordpieces_and_positions_can_be_requested_together(saved, tmp_path):
    checkpoint, path = saved("pretraining")
    report = conversion.convert(
        path, "bert_tf", str(tmp_path / "new"), dtype="bfloat16", add_pieces=["neu"], max_position_embeddings=30,
        verify=True,
    )  # fmt: skip
    again = open_checkpoint(str(tmp_path / "new"))
    assert {tensor.dtype for tensor in again.tensors.values()} == {"bfloat16"}
    assert again.tokenizer.vocab == [*PIECES, "neu"]
    assert (again.config.vocab_size, again.config.max_position_embeddings) == (len(PIECES) + 1, 30)
    assert len(report["warnings"]) >= 2
    assert {"layer_0", "layer_1", "pooled_output", "mlm_logits", "nsp_logits"} <= set(
        report["verification"]["differences"]
    )
    old = checkpoint.tensors["pooler/kernel"].read()
    np.testing.assert_allclose(again.tensors["pooler/kernel"].read().astype(np.float32), old, rtol=2**-8)


# One that reads positions, one of several rows, and none; the formats' tests have each head.
@pytest.mark.parametrize(
    "head",
    [
        pytest.param(head, marks=[pytest.mark.slow] * (head not in (None, "masked_lm", "multiple_choice")))
        for head in TASKS
    ],
)
def test_verification_finds_no_difference_between_equal_models(saved, tmp_path, head):
    _, path = saved(head, pooler=head not in ("masked_lm", "tagging", "question_answering"))
    report = conversion.convert(path, "google", str(tmp_path / "theirs"), verify=True)
    differences = report["verification"]["differences"]
    assert all(it["largest"] <= 1e-5 and it["of"] > 0 for it in differences.values())
    logits = [name for name in differences if "logits" in name]
    assert bool(logits) == bool(head)
    text = conversion_text(report)
    assert "Not verified against google-research/bert: it needs TensorFlow 1\n" in text
    assert "largest differences" not in text  # a table of zeros would look like a comparison with that library


def test_a_missing_library_is_named_with_how_to_install_it(saved, tmp_path, monkeypatch):
    _, path = saved()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    report = conversion.convert(path, "huggingface", str(tmp_path / "theirs"), verify=True)
    assert "Not verified against Transformers: it is not installed; pip install transformers" in conversion_text(report)


@pytest.mark.parametrize("name", ["layer_1/attention/qkv/kernel", "classifier/bias"])
def test_a_conversion_that_changes_a_weight_is_refused_and_leaves_no_files(saved, tmp_path, monkeypatch, name):
    _, path = saved("classification")

    def wrong(checkpoint, target):
        tensor = checkpoint.tensors[name]
        bent = dataclasses.replace(tensor, read=lambda: tensor.read() + np.float32(0.01))
        return directory.write(dataclasses.replace(checkpoint, tensors=checkpoint.tensors | {name: bent}), target)

    monkeypatch.setitem(conversion.WRITERS, "bert_tf", type("Wrong", (), {"write": staticmethod(wrong)}))
    with raises(DataError, "logits"):
        conversion.convert(path, "bert_tf", str(tmp_path / "new"), verify=True)
    assert [file.name for file in tmp_path.iterdir()] == ["ours"]


def test_a_conversion_that_fails_halfway_leaves_no_files(saved, tmp_path, monkeypatch):
    _, path = saved()
    opened = open_checkpoint(path)
    weights = tmp_path / "ours" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])  # between opening and reading
    monkeypatch.setattr(conversion, "open_checkpoint", lambda *_, **__: opened)
    for format in conversion.WRITERS:
        with raises(DataError, "model.safetensors"):
            conversion.convert(path, format, str(tmp_path / "new"))
    assert [file.name for file in tmp_path.iterdir()] == ["ours"]


@pytest.mark.parametrize("format", conversion.WRITERS)
def test_a_file_that_cannot_grow_is_named_and_no_files_are_left(saved, tmp_path, format):
    _, path = saved()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # of 100 kB
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            conversion.convert(path, format, str(tmp_path / "new"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    weights = "bert_model.ckpt" if format == "google" else "model.safetensors"
    assert caught.value.filename == str(tmp_path / "new" / weights)
    assert [file.name for file in tmp_path.iterdir()] == ["ours"]


def test_an_existing_output_is_not_changed(saved, tmp_path):
    _, path = saved()
    with raises(ConfigError, "already exists"):
        conversion.convert(path, "google", path)
    open_checkpoint(path)


def test_the_program_prints_the_report(programs, saved, tmp_path):
    _, path = saved("question_answering")
    (tmp_path / "new.txt").write_text("\ufeffcovid\r\n##19\r\n", encoding="utf-8")
    done = programs.succeed(
        "convert", f"--input={path}", "--format=google", f"--output={tmp_path}/theirs", "--verify",
        f"--add_tokens={tmp_path}/new.txt", "--max_position_embeddings=48", "--dtype=float16",
    )  # fmt: skip
    assert "cls/squad/output_weights" in done.output
    assert "2 added" in done.output and "from 24 to 48" in done.output
    assert "Not verified against google-research/bert" in done.output
    assert done.output.splitlines()[-1].startswith(f"{tmp_path}/theirs: google, ")


@pytest.mark.parametrize(
    "flags, status, culprit",
    [
        ({"input": "nowhere"}, 1, "nowhere"),
        ({"format": "onnx"}, 2, "format"),
        ({"dtype": "int8"}, 2, "dtype"),
        ({"add_tokens": "nowhere.txt"}, 1, "nowhere.txt"),
        ({"max_position_embeddings": "24"}, 2, "max_position_embeddings 24"),
        ({"output": "ours"}, 2, "already exists"),
    ],
)
def test_a_wrong_flag_is_a_one_line_error(programs, saved, tmp_path, flags, status, culprit):
    _, path = saved()
    wanted = {"input": path, "format": "google", "output": f"{tmp_path}/new"}
    wanted |= {name: f"{tmp_path}/{value}" if name in ("input", "output", "add_tokens") else value
               for name, value in flags.items()}  # fmt: skip
    done = programs("convert", *(f"--{name}={value}" for name, value in wanted.items()))
    assert done.status == status
    assert culprit in done.error_line
    assert not (tmp_path / "new").exists()


LARGE = """
    import sys
    import numpy as np
    from bert_tf.checkpoints import directory
    from bert_tf.checkpoints.stored_model import Checkpoint
    from bert_tf.checkpoints.tensor import Tensor
    from bert_tf.config import BertConfig
    from bert_tf.model.variables import encoder_shapes
    from bert_tf.text import Tokenizer
    from bert_tf.text.codepoints import SPECIAL_PIECES

    config = BertConfig.from_name("large")
    def tensor(path, shape):
        make = lambda: np.random.default_rng(len(path)).standard_normal(shape, np.float32)
        return Tensor(shape, "float32", make, path)
    pieces = [*SPECIAL_PIECES, *(f"piece{number}" for number in range(config.vocab_size - 5))]
    tensors = {path: tensor(path, shape) for path, shape in encoder_shapes(config).items()}
    directory.write(Checkpoint(config, tensors, tokenizer=Tokenizer(pieces)), sys.argv[1])
"""
CONVERT = """
import sys
from bert_tf.checkpoints.conversion import convert
convert(sys.argv[1], sys.argv[2], sys.argv[3])
"""


@pytest.mark.slow
def test_bert_large_is_converted_in_less_than_1_3_times_its_size(tmp_path):
    peak_memory(sys.executable, "-c", textwrap.dedent(LARGE), tmp_path / "bert_tf")
    size = (tmp_path / "bert_tf" / "model.safetensors").stat().st_size
    assert size > 1.3e9
    source = tmp_path / "bert_tf"
    for number, format in enumerate(("huggingface", "google", "bert_tf")):
        target = tmp_path / f"{number}_{format}"
        peak = peak_memory(sys.executable, "-c", CONVERT, source, format, target)  # including TensorFlow itself
        print(f"{source.name} to {format}: peak {peak / size:.2f} times {size / 1e9:.2f} GB")
        assert peak < 1.3 * size
        source = target


def test_no_length_and_the_same_are_refused(saved, tmp_path):
    _, path = saved()
    for length in (0, -1, 24):
        with raises(ConfigError, "max_position_embeddings", length, "24"):
            conversion.convert(path, "bert_tf", str(tmp_path / "out"), max_position_embeddings=length)
