"""Complete runs of tagging: from files to a model, its metrics and its prediction files."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from bert_tf import BertEncoder
from bert_tf.checkpoints import directory
from bert_tf.config import ExampleData, FeatureConfig, FinetuneConfig, TrainConfig
from bert_tf.inputs.datasets.examples import ReadReport
from bert_tf.inputs.datasets.sources import Source
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.tasks.tagging import TaggingConfig
from bert_tf.text import Tokenizer
from bert_tf.training.evaluation import predictor
from bert_tf.training.runs.finetuning import finetune
from tests.model.small import PIECES, small_config

pytestmark = pytest.mark.slow  # mostly tracing and compiling

KINDS = {"a": "PER", "b": "LOC"}


def write_sentences(path, count, seed):
    """CoNLL-2003's format in IOB1: names follow "the", its other words follow at once; four sentences per document."""
    rng, lines = np.random.default_rng(seed), []
    for number in range(count):
        if number % 4 == 0:
            lines += ["-DOCSTART- -X- O", ""]
        for _ in range(rng.integers(1, 5)):
            first = rng.choice(["a", "b"])
            name = [first, *["s"] * rng.integers(0, 3)]
            lines += [f"{rng.choice(list('cdef'))} X O", "the X O", *(f"{word} X I-{KINDS[first]}" for word in name)]
        lines += ["", ""]
    path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder of a run with a frozen encoder; contains data, init and model."""
    folder = tmp_path_factory.mktemp("tagging")
    for seed, (name, count) in enumerate({"train.txt": 300, "valid.txt": 40, "test.txt": 40}.items()):
        write_sentences(folder / name, count, seed)
    keras.utils.set_random_seed(1)
    encoder = BertEncoder(small_config(num_layers=1, initializer_range=0.2))
    task = Pretraining(Tokenizer(PIECES), 24)
    directory.save(str(folder / "init"), task.build(encoder), encoder, task)
    config = FinetuneConfig(
        task=TaggingConfig(
            max_length=24,
            context="document",
            scheme="BIO",
            head="bilstm",
            frozen=True,
            features=FeatureConfig((0, 1), "concat"),
        ),
        data=ExampleData(format="conll"),
        train=TrainConfig(batch_size=16, epochs=5, learning_rate=1e-2, dtype="float32", evaluate_every=1000),
    )
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    results = finetune(config, str(folder), str(folder / "init"), str(folder / "model"), strategy)
    return folder, results["final"], strategy


def test_a_head_on_a_frozen_encoder_learns_while_the_encoder_is_unchanged(run):
    folder, final, _ = run
    assert final["f1"] > 0.9
    assert {"precision", "recall", "PER/f1", "LOC/f1"} <= final.keys()
    before, after = (load_file(folder / name / "model.safetensors") for name in ("init", "model"))
    kept = [name for name in after if name.startswith(("embeddings/", "layer_", "pooler/"))]
    assert len(kept) > 10
    for name in kept:
        np.testing.assert_array_equal(after[name], before[name])


def test_the_model_predicts_files_with_and_without_tags(run, tmp_path):
    folder, _, strategy = run
    task, model = directory.load_fine_tuned(str(folder / "model"))
    assert set(task.state.labels) == {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}
    examples = list(Source(task.data, str(folder), task.example).examples(ReadReport(), "test"))
    predicted = list(predictor(task, model, strategy)(examples, 16))
    task.writers()[".conll"](tmp_path / "a.conll", predicted)
    lines = [line.split(" ") for line in (tmp_path / "a.conll").read_text().splitlines() if line]
    assert len(lines) == sum(len(example.words) for example in examples)
    assert np.mean([gold == found for _, gold, found in lines]) > 0.95
    (tmp_path / "a.jsonl").write_text('{"text": "c the a s. d the b"}\n')
    source = Source(task.data, str(tmp_path / "a.jsonl"), task.example)
    ((_, prediction),) = predictor(task, model, strategy)(source.examples(ReadReport(), "test", labelled=False), 16)
    spans = [(span["text"], span["label"], span["start"], span["end"]) for span in prediction["spans"]]
    assert spans == [("a s", "PER", 6, 9), ("b", "LOC", 17, 18)]
    assert json.loads(json.dumps(prediction)) == prediction
