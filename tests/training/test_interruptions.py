"""Real processes, stopped in the ways in which machines stop them: the results equal those without interruption."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.files import numbers_of
from tests.training.processes import cluster
from tests.training.small import curve

pytestmark = pytest.mark.slow

CONFIG = """
from bert_tf.config import BertConfig, PretrainConfig, PretrainingData, TokenizerConfig, TrainConfig
from bert_tf.files import bundled

def get_config():
    return PretrainConfig(
        input=bundled("data/sotu/train.txt.gz"),
        tokenizer=TokenizerConfig(vocab="{folder}/vocab.txt"),
        model=BertConfig(vocab_size=0, num_layers=1, hidden_size=32, num_heads=2, intermediate_size=64,
                         max_position_embeddings=32, dropout=0.1, attention_dropout=0.1),
        data=PretrainingData(max_length=32, max_predictions=5, group_size=50, **{data}),
        train=TrainConfig(batch_size=8, steps={steps}, learning_rate=1e-3, dtype="float32", log_every=1,
                          steps_per_call=2, save_every=5),
    )
"""
# By objective: settings of the data.
OBJECTIVES = {
    "masked_lm": {},
    "electra": {"objective": "electra", "pairs": "none"},
    "span_boundary": {"objective": "span_boundary", "pairs": "none", "masking": "span"},
}
PATIENCE = 900  # seconds, for a machine that has much else to do
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'-$()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A vocabulary of letters, a config of each objective, and one of a run without end."""
    folder = tmp_path_factory.mktemp("interruptions")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    for name, steps in [*((objective, 300) for objective in OBJECTIVES), ("endless", 100_000)]:
        (folder / f"{name}.py").write_text(CONFIG.format(folder=folder, steps=steps, data=OBJECTIVES.get(name, {})))
    return folder


def start(folder, model, *flags, config, **environment):
    """Starts `python -m bert_tf.pretrain`, with its output in a file next to the model directory."""
    log = open(f"{model}.{environment.get('worker', 0)}.log", "a")  # noqa: SIM115
    return subprocess.Popen(
        [sys.executable, "-m", "bert_tf.pretrain", f"--config={folder}/{config}.py", f"--model_dir={model}", *flags],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"} | environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def log_of(model, worker=0):
    with open(f"{model}.{worker}.log", encoding="utf-8") as file:
        return file.read()


def rows_of(model):
    try:
        lines = (model / "history.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


def newest_step(model):
    """Step of the checkpoint from which a run would resume; those without an index do not count."""
    return max(numbers_of(model / "checkpoints", "step-", ".index"), default=0)


def wait_for(condition, *processes, seconds=PATIENCE):
    """Polls often, because the condition may last for milliseconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert all(process.poll() is None for process in processes), "ended too early"
        assert time.monotonic() < end
        time.sleep(0.001)


def half_written(model):
    try:
        return any(entry.name.startswith(".step-") for entry in os.scandir(model / "checkpoints"))
    except FileNotFoundError:
        return False


def tensors_of(model):
    """dict name -> array of the newest checkpoint: weights, slots, position in the data, sums."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model / "checkpoints")))
    names = [name for name in reader.get_variable_to_shape_map() if name.endswith("/.ATTRIBUTES/VARIABLE_VALUE")]
    return {name: reader.get_tensor(name) for name in names if not name.startswith("save_counter")}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_run_killed_at_any_moment_ends_bit_for_bit_as_without_interruption(folder, objective):
    peace, model = folder / f"{objective}, in peace", folder / f"{objective}, killed"
    reference = start(folder, peace, config=objective)
    moments = random.Random(0)
    resumed_from, caught_writing, attempts = [], False, 0
    while attempts < 3 or (attempts < 7 and not caught_writing):
        before = newest_step(model)
        process = start(folder, model, config=objective)
        wait_for(lambda: newest_step(model) > before, process)  # noqa: B023
        if attempts % 2:  # while a checkpoint is being written
            wait_for(lambda: half_written(model), process)
        else:
            time.sleep(moments.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run was over before it was killed; make it longer"
        caught_writing |= half_written(model)
        resumed_from.append(newest_step(model))
        attempts += 1
    assert caught_writing
    assert start(folder, model, config=objective).wait(PATIENCE) == 0, log_of(model)
    assert reference.wait(PATIENCE) == 0, log_of(peace)

    log = log_of(model)
    assert 0 < resumed_from[0] < resumed_from[-1]
    assert f"resuming from step {resumed_from[-1]} of 300" in log  # a killed process had no time to print it
    assert "reading epoch" not in log and "cannot be read" not in log
    mine, theirs = tensors_of(model), tensors_of(peace)
    assert mine.keys() == theirs.keys() and len(theirs) > 40
    for name in theirs:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    # Every step's loss occurs once, so every batch was the same and was used once.
    ours, expected = ([row for row in rows_of(path) if row["kind"] == "training"] for path in (model, peace))
    assert curve(ours) == curve(expected)
    assert [row["step"] for row in ours] == list(range(1, 301))
    saved = ["model.safetensors"] + ["generator/model.safetensors"] * (objective == "electra")
    for name in saved:
        assert (model / name).read_bytes() == (peace / name).read_bytes()
    left = {path.name.split(".")[0] for path in (model / "checkpoints").iterdir() if path.name.startswith("step-")}
    assert left == {"step-295", "step-300"}


def test_a_signal_to_one_worker_stops_all_at_the_same_step_and_all_resume(folder):
    model = folder / "workers"
    flags = "--strategy=multi_worker", "--config.train.save_every=100000"

    def workers():
        return [
            start(folder, model, *flags, config="endless", worker=str(index), **environment)
            for index, environment in enumerate(cluster(2))
        ]

    stopped = []
    for number in (signal.SIGTERM, signal.SIGINT):
        processes = workers()
        try:
            last = len(rows_of(model))
            wait_for(lambda: len(rows_of(model)) > last + 10, *processes)  # noqa: B023
            processes[1].send_signal(number)  # not the worker that writes
            statuses = [process.wait(120) for process in processes]
        finally:
            for process in processes:
                process.kill()
        logs = [log_of(model, index) for index in (0, 1)]
        assert statuses == [0 if number == signal.SIGTERM else 130] * 2, logs
        steps = [re.findall(r"stopped at step (\d+); run the same command again to resume", log)[-1] for log in logs]
        assert steps[0] == steps[1]
        assert newest_step(model) == int(steps[0])
        stopped.append(int(steps[0]))
    assert f"resuming from step {stopped[0]} of" in log_of(model, 0) and stopped[1] > stopped[0]
