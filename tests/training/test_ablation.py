"""The ablation, some steps of each training."""

import json

import pytest
import tensorflow as tf

from bert_tf.checkpoints import directory
from bert_tf.training.ablation import VARIANTS, ablate


@pytest.mark.slow
def test_every_variant_is_trained_as_it_says_and_ended_ones_are_not_trained_again(tmp_path):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    rows = ablate(str(tmp_path), strategy, sizes=["tiny", "mini"], seeds=1, smoke=True)
    assert [(row["name"], row["size"]) for row in rows] == [*((name, "tiny") for name in VARIANTS), ("BERT", "mini")]
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == rows
    assert (tmp_path / "ablation.md").read_text().count("\n| ") == len(rows)
    assert (tmp_path / "ablation.png").stat().st_size > 10_000

    def trained(folder):
        task, model = directory.load_task(str(tmp_path / folder))
        return task, model.encoder.config if hasattr(model, "encoder") else model.get_layer("encoder").config

    assert trained("bert-tiny/seed_0/pretrained")[0].name == "pretraining"
    assert trained("no_nsp-tiny/seed_0/pretrained")[0].name == "masked_lm"
    assert trained("left_to_right-tiny/seed_0/pretrained")[1].attention == "left"
    task, config = trained("left_to_right-tiny/seed_0/reviews-bilstm")
    assert (task.config.head, config.attention) == ("bilstm", "left")
    assert trained("left_to_right-tiny/seed_0/reviews")[0].config.head == "pooled"
    assert trained("bert-mini/seed_0/reviews")[1].hidden_size == 256

    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert len(written) == 9  # two variants share their pre-training
    assert ablate(str(tmp_path), strategy, sizes=["tiny", "mini"], seeds=1, smoke=True) == rows
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")} == written
