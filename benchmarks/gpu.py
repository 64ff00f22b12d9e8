"""Checks and measures a GPU: python benchmarks/gpu.py --output=gpu.json, ten minutes, without a network.

Each stage is a process of its own. Its rows are printed and written to the JSON file as soon as they are measured, so a
run that is cut off still tells something, and a stage that fails or takes too long does not end the others. Needs
TensorFlow, TF Text, absl-py, NumPy, safetensors and tqdm, and no installation of bert_tf. `--small` runs every stage on
the CPU with tiny sizes, to test this program.
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import json
import os
import pathlib
import platform
import queue
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Stage -> its share of the time; what a stage leaves is for the later ones.
STAGES = {
    "devices": 20,
    "products": 30,
    "encoder": 45,
    "updates": 60,
    "resume": 75,
    "base": 110,
    "large": 150,
    "finetuning": 70,
    "inference": 40,
}
# An A100 with NVIDIA's TF2 examples, sequences per second and GPU in pre-training, and this project's aim on an H200.
GOALS = {"large, 128": 485, "large, 512": 96, "utilisation": 0.45}
# Masked positions of a sequence, by length: as in the paper's two phases.
PREDICTIONS = {128: 20, 512: 77}
_TOKENS = 32768  # of a micro-batch: more makes no GPU faster
_UPDATES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="gpu.json", help="the JSON file")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all stages together")
    parser.add_argument("--stages", default=",".join(STAGES), help="the stages to run, separated by commas")
    parser.add_argument("--small", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--peak", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        work(arguments)
    else:
        unknown = set(arguments.stages.split(",")) - STAGES.keys()
        if unknown:
            parser.error(f"--stages: unknown {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
        sys.exit(run(arguments))


# The parent, which does not import TensorFlow: two processes cannot share a GPU's memory.


def run(arguments: argparse.Namespace) -> int:
    """Runs the stages one after the other; returns the exit status, 1 if one failed."""
    began, chosen = time.monotonic(), arguments.stages.split(",")
    report: dict[str, Any] = {
        "command": ["python", *sys.argv],
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "small": arguments.small,
        "goals": GOALS,
        "rows": [],
        "stages": {},
    }
    names = [name for name in STAGES if name in chosen]
    for position, name in enumerate(names):
        left = 60 * arguments.minutes - (time.monotonic() - began)
        seconds = left * STAGES[name] / sum(STAGES[other] for other in names[position:])
        started = time.monotonic()
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        error = run_stage(name, seconds, arguments, report)
        report["stages"][name] = {"seconds": round(time.monotonic() - started, 1)} | ({"error": error} if error else {})
        write(arguments.output, report)
        if error:
            print(f"  {name} ended early: {error.splitlines()[-1]}", flush=True)
            if name == "devices":  # nothing else would run on a GPU
                break
    report["seconds"] = round(time.monotonic() - began, 1)
    write(arguments.output, report)
    failed = [name for name, stage in report["stages"].items() if "error" in stage]
    print(f"{report['seconds']:.0f} s, {arguments.output}" + (f"; not complete: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def run_stage(name: str, seconds: float, arguments: argparse.Namespace, report: dict[str, Any]) -> str:
    """Runs a stage in a process and takes its rows as they come; returns the error, "" if there was none."""
    products = [row for row in report["rows"] if "product" in row and row["dtype"] == "bfloat16"]
    peaks = [1e12 * row["tflops"] for row in products if "tflops" in row]
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), f"--stage={name}", f"--seconds={seconds}"]
    command += [f"--peak={max(peaks, default=0.0)}"] + ["--small"] * arguments.small
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ | {"PYTHONPATH": search}
    if arguments.small:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    with tempfile.TemporaryFile("w+", errors="replace") as messages:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=messages, stdin=subprocess.DEVNULL, text=True, env=environment
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=functools.partial(_read, process, lines), daemon=True).start()
        deadline = time.monotonic() + seconds
        error = ""
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                process.kill()
                error = f"stopped after {seconds:.0f} s"
                break
            if line is None:
                break
            with contextlib.suppress(ValueError):  # a library may print, too
                row = {"stage": name, **json.loads(line)}
                report["rows"].append(row)
                write(arguments.output, report)
                print(f"  {shown(row)}", flush=True)
        if process.wait() and not error:
            messages.seek(0)
            error = messages.read()[-3000:].strip() or f"exit status {process.returncode}"
        return error


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def write(path: str, report: dict[str, Any]) -> None:
    """Replaces the file at once."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    os.replace(f"{path}.new", path)


def shown(row: dict[str, Any]) -> str:
    """A row of the report as a line."""

    def value(given: Any) -> str:
        return f"{given:.4g}" if isinstance(given, float) else str(given)

    return ", ".join(f"{name} {value(given)}" for name, given in row.items() if name not in ("stage", "losses"))


# A stage's process.


def work(arguments: argparse.Namespace) -> None:
    """Runs one stage; its rows go to standard output, a line of JSON each."""
    stage = Stage(arguments.small, arguments.seconds, arguments.peak)
    {
        "devices": stage.devices,
        "products": stage.products,
        "encoder": stage.encoder,
        "updates": stage.updates,
        "resume": stage.resume,
        "base": functools.partial(stage.steps, "base"),
        "large": functools.partial(stage.steps, "large"),
        "finetuning": stage.finetuning,
        "inference": stage.inference,
    }[arguments.stage]()
    if stage.failed:
        sys.exit("\n".join(stage.failed))


def emit(**row: Any) -> None:
    print(json.dumps(row), flush=True)


class Stage:
    """The stages, as methods.

    Args:
        seconds: of the stage; what is optional is left out when they run short.
        peak: FLOP/s of products in bfloat16, 0 if not measured.

    Attributes:
        failed: messages of parts that failed.
    """

    def __init__(self, small: bool, seconds: float, peak: float) -> None:
        self.began = time.monotonic()
        import tensorflow as tf

        self.small, self.seconds, self.peak = small, seconds, peak
        self.failed: list[str] = []
        gpus = tf.config.list_logical_devices("GPU")
        self.device = "/cpu:0" if small or not gpus else gpus[0].name
        self.on_gpu = self.device != "/cpu:0"
        self.memory = memory_of_gpu() if self.on_gpu else 4e9

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (time.monotonic() - self.began)

    @contextlib.contextmanager
    def part(self, **row: Any) -> Iterator[None]:
        """An error inside becomes a row, and the stage goes on."""
        try:
            yield
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            emit(**row, error=message[:1500])
            self.failed.append(f"{row}: {message[:300]}")

    def config(self, name: str, **changes: Any) -> Any:
        """A BertConfig; tiny ones for `--small`."""
        from bert_tf.config import BertConfig

        if self.small:
            changes = {"num_layers": 1, "vocab_size": 1000, "max_position_embeddings": 64} | changes
        return dataclasses.replace(BertConfig.from_name("tiny" if self.small else name), **changes)

    def devices(self) -> None:
        import keras
        import numpy as np
        import tensorflow as tf
        import tensorflow_text

        build = tf.sysconfig.get_build_info()
        emit(
            python=platform.python_version(),
            tensorflow=tf.__version__,
            tensorflow_text=tensorflow_text.__version__,
            keras=keras.__version__,
            numpy=np.__version__,
            cuda=build.get("cuda_version"),
            cudnn=build.get("cudnn_version"),
            processor=processor(),
            cores=os.cpu_count(),
        )
        for gpu in tf.config.list_physical_devices("GPU"):
            details = tf.config.experimental.get_device_details(gpu)
            emit(gpu=details.get("device_name"), capability=str(details.get("compute_capability")))
        fields = "name,driver_version,memory.total,clocks.max.sm,power.limit"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
            emit(
                nvidia_smi=subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
            )
        if not self.on_gpu and not self.small:
            self.failed.append("TensorFlow sees no GPU; see the page on installation, or use --small")

    def products(self) -> None:
        """Rates of matrix products: large ones, for the peak, and those of BERT-large."""
        import tensorflow as tf

        square = 512 if self.small else 8192
        rows, hidden = (512, 128) if self.small else (16384, 1024)
        shapes = {"square": (square, square, square), "half": (square // 2,) * 3}
        shapes |= {"feed-forward": (rows, hidden, 4 * hidden)}
        formats = [("bfloat16", True), ("float16", True), ("float32", False)] + [("float32", True)] * self.on_gpu
        for dtype, fast in formats:
            tf.config.experimental.enable_tensor_float_32_execution(fast)
            name = "TF32" if dtype == "float32" and fast else dtype
            for shape, (m, k, n) in shapes.items():
                with self.part(dtype=name, product=shape), tf.device(self.device):
                    tflops = product_rate(tf.as_dtype(dtype), m, k, n, 0.2 if self.small else 1.0) / 1e12
                    emit(dtype=name, product=f"{shape}, {m} x {k} x {n}", tflops=tflops)

    def encoder(self) -> None:
        """The encoder in each number format against a forward pass in float64 in NumPy."""
        import keras
        import numpy as np
        import tensorflow as tf

        from bert_tf.model.encoder import BertEncoder

        config = self.config("base")
        rows, length = (2, 24) if self.small else (4, 128)
        features, random = synthetic(config.vocab_size, rows, length, 4), np.random.default_rng(1)
        inputs = {name: features[name] for name in ("input_word_ids", "input_mask", "input_type_ids")}
        weights: list[Any] = []
        expected: dict[str, Any] = {}
        # (number format, whether float32 products are rounded to TF32, bound of the error over the largest value)
        formats = [("float32", False, 1e-4), ("mixed_bfloat16", True, 0.1), ("mixed_float16", True, 0.02)]
        for policy, fast, bound in [*formats[:1], *[("float32", True, 0.02)] * self.on_gpu, *formats[1:]]:
            tf.config.experimental.enable_tensor_float_32_execution(fast)
            name = "TF32" if policy == "float32" and fast else policy.removeprefix("mixed_")
            with self.part(dtype=name), tf.device(self.device):
                keras.utils.set_random_seed(0)
                model = BertEncoder(config, dtype=policy)
                if not weights:  # as initialized, but also biases and scales are random
                    weights = [
                        value + random.normal(0, 0.02, value.shape).astype("float32") for value in model.get_weights()
                    ]
                    by_path = dict(zip((weight.path for weight in model.weights), weights, strict=True))
                    expected = forward(by_path, inputs, config)
                model.set_weights(weights)
                for compiled in (False, True):
                    with self.part(dtype=name, xla=compiled):
                        outputs = tf.function(
                            functools.partial(model, training=False), autograph=False, jit_compile=compiled
                        )(tf.nest.map_structure(tf.constant, inputs))
                        errors = {
                            output: float(np.abs(outputs[output].numpy().astype("float64") - right).max())
                            / float(np.abs(right).max())
                            for output, right in expected.items()
                        }
                        emit(dtype=name, xla=compiled, **errors, right=max(errors.values()) < bound)

    def updates(self) -> None:
        """Ten updates with dropout, from the same weights on the same batches: on the CPU and on the device."""
        import numpy as np
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)
        config = self.config("small", dropout=0.1, attention_dropout=0.1)
        rows, length = (4, 24) if self.small else (8, 128)
        batches = [synthetic(config.vocab_size, rows, length, 4, seed=seed) for seed in range(_UPDATES)]

        def trained(device: str, policy: str, compiled: bool) -> tuple[list[float], Any]:
            # With BERT's epsilon, Adam makes full steps for gradients that are only rounding.
            training = Training(config, device, policy, compiled, rows, epsilon=1e-3, learning_rate=1e-2, warmup=0.0)
            before = training.model.get_weights()
            losses = [training.advance(1) for _ in training.read(batches)]
            changes = [after - first for after, first in zip(training.model.get_weights(), before, strict=True)]
            return losses, np.concatenate([change.ravel() for change in changes])

        right, changes = trained("/cpu:0", "float32", False)
        emit(device="/cpu:0", dtype="float32", xla=False, losses=right, last_loss=right[-1])
        bounds = {"float32": (1e-5, 1e-3), "mixed_bfloat16": (1e-2, 0.2), "mixed_float16": (1e-3, 0.05)}
        cases = [(policy, compiled) for policy in bounds for compiled in (False, True)]
        for policy, compiled in cases[1:2] if self.small else cases:
            name = policy.removeprefix("mixed_")
            with self.part(device=self.device, dtype=name, xla=compiled):
                losses, found = trained(self.device, policy, compiled)
                loss_error = float(np.max(np.abs(np.subtract(losses, right) / right)))
                # Of what the updates changed, all weights together.
                weight_error = float(np.linalg.norm(found - changes) / np.linalg.norm(changes))
                of_losses, of_weights = bounds[policy]
                emit(
                    device=self.device, dtype=name, xla=compiled, loss_error=loss_error, weight_error=weight_error,
                    losses=losses, right=loss_error < of_losses and weight_error < of_weights,
                )  # fmt: skip

    def resume(self) -> None:
        """Ten updates at a stretch and five, a checkpoint, and five more in a new model: the same bits."""
        import numpy as np
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
        config = self.config("small", dropout=0.1, attention_dropout=0.1)
        rows, length = (4, 24) if self.small else (8, 128)
        features = synthetic(config.vocab_size, 12 * rows, length, 4)
        cases = [("float32", False), ("mixed_bfloat16", True), ("float32", True)]
        for policy, compiled in cases[:1] if self.small else cases:
            name = policy.removeprefix("mixed_")
            with self.part(dtype=name, xla=compiled), tempfile.TemporaryDirectory() as folder:

                def new(policy: str = policy, compiled: bool = compiled) -> Training:
                    return Training(config, self.device, policy, compiled, rows)

                whole, first, second = new(), new(), new()
                losses = []
                for _ in whole.shuffled(features):
                    losses.append(whole.advance(5))
                    if len(losses) == 2:
                        break
                for iterator in first.shuffled(features):
                    first.advance(5)
                    first.save(folder, iterator)
                    break
                second.restore(folder, features)
                last = second.advance(5)
                pairs = zip(whole.state().values(), second.state().values(), strict=True)
                same = [np.array_equal(one.numpy(), other.numpy()) for one, other in pairs]
                emit(
                    dtype=name, xla=compiled, tensors=len(same), equal_tensors=sum(same), equal_loss=last == losses[1],
                    right=all(same) and last == losses[1],
                )  # fmt: skip

    def steps(self, model: str) -> None:
        """Updates of pre-training, bfloat16, with and without XLA."""
        from bert_tf.training.speed import row_flops

        cases = [(True, 128), (True, 512), (False, 128), (False, 512)]
        for compiled, length in [(model == "base", 16)] if self.small else cases:
            config = self.config(model)
            predictions = PREDICTIONS.get(length, 4)
            rows = 4 if self.small else rows_for(config, length, self.memory)
            row = {"model": model, "length": length, "xla": compiled}
            with self.part(**row):
                while True:
                    try:
                        measured = self.measure_steps(config, rows, length, predictions, compiled)
                        break
                    except Exception as error:
                        if rows == 1 or not re.search(
                            "ResourceExhausted|RESOURCE_EXHAUSTED|out of memory", repr(error)
                        ):
                            raise
                        rows //= 2
                rate = rows / measured["seconds_per_update"]
                flops = rate * row_flops(length, config, predictions=predictions, pooled=1)
                row |= {"batch": rows, "sequences_per_second": rate, "tflops": flops / 1e12} | measured
                if self.peak:
                    row["utilisation"] = flops / self.peak
                goal = GOALS.get(f"{model}, {length}")
                if goal and not self.small:
                    row["times_a100"] = rate / goal
                emit(**row)

    def measure_steps(self, config: Any, rows: int, length: int, predictions: int, compiled: bool) -> dict[str, float]:
        import tensorflow as tf

        gc.collect()  # the previous model
        training = Training(config, self.device, "mixed_bfloat16", compiled, rows)
        if self.on_gpu:
            tf.config.experimental.reset_memory_stats("GPU:0")
        for _ in training.read([synthetic(config.vocab_size, rows, length, predictions)], repeat=True):
            began = time.perf_counter()
            training.advance(1)
            first = time.perf_counter() - began
            began = time.perf_counter()
            training.advance(1)
            one = time.perf_counter() - began
            count = max(1, min(50, round((0.3 if self.small else 2.0) / one)))
            times = []
            for _ in range(3):
                began = time.perf_counter()
                training.advance(count)
                times.append((time.perf_counter() - began) / count)
            break
        return {
            "seconds_per_update": sorted(times)[1],
            "fastest": min(times),
            "slowest": max(times),
            "updates_per_call": count,
            "first_call_seconds": first,
            "peak_memory_gb": peak_memory(self.device) / 1e9,
        }

    def finetuning(self) -> None:
        """Fine-tuning on the sentences of data/reviews, steady and by the clock of this process; random weights."""
        from bert_tf.config import ClassificationConfig
        from bert_tf.inputs.datasets.examples import TextExample
        from bert_tf.tasks.classification import Classification
        from bert_tf.text.tokenizer import Tokenizer

        with open(ROOT / "data" / "reviews" / "train.tsv", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file][1:]
        rows = rows[:256] if self.small else rows
        config = self.config("base")
        tokenizer = Tokenizer(pieces([text for text, _ in rows], config.vocab_size))
        config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
        task = Classification(tokenizer, ClassificationConfig(max_length=64 if self.small else 128),
                              labels=("negative", "positive"), pair=False)  # fmt: skip
        examples = [TextExample(str(n), (text,), label, "") for n, (text, label) in enumerate(rows)]
        columns = task.to_tensors(examples, labelled=True)
        batch, prepared = 8 if self.small else 32, time.monotonic() - self.began
        for compiled in (False,) if self.small else (False, True):
            share = self.left * (0.8 if compiled else 0.35)
            with self.part(xla=compiled):
                began = time.monotonic()
                training = Training(config, self.device, "mixed_bfloat16", compiled, batch, task=task)

                def batches(epoch: Any) -> Any:
                    import tensorflow as tf

                    seed = tf.stack([tf.constant(0, tf.int64), epoch])
                    return task.batches(columns, batch, seed=seed, few_lengths=True)

                calls, updates = [], 4 if self.small else 10
                for _ in training.open(batches):
                    while time.monotonic() - began < share and len(calls) * updates * batch < 3 * len(examples):
                        start = time.monotonic()
                        training.advance(updates)
                        calls.append(time.monotonic() - start)
                    break
                total = prepared + time.monotonic() - began
                # The calls that compile programs are the slow ones: the median leaves them out.
                emit(
                    xla=compiled, batch=batch, sentences=len(calls) * updates * batch,
                    steady_sentences_per_second=updates * batch / sorted(calls)[len(calls) // 2],
                    seconds_by_the_clock=total, sentences_per_second_by_the_clock=len(calls) * updates * batch / total,
                    peak_memory_gb=peak_memory(self.device) / 1e9,
                )  # fmt: skip

    def inference(self) -> None:
        """The encoder on full rows, and what a batch costs."""
        import tensorflow as tf

        from bert_tf.model.encoder import BertEncoder
        from bert_tf.training.speed import row_flops

        config, length = self.config("base"), 32 if self.small else 128
        for policy in ("bfloat16", "float32"):
            model = BertEncoder(config, dtype=policy)
            encode = functools.partial(_encode, model)
            for compiled, rows in [(False, 4), (True, 4)] if self.small else [(False, 256), (True, 256), (True, 8)]:
                with self.part(dtype=policy, xla=compiled, batch=rows), tf.device(self.device):
                    features = synthetic(config.vocab_size, rows, length, 4)
                    inputs = {name: tf.constant(features[name]) for name in model.input}
                    run = tf.function(encode, autograph=False, jit_compile=compiled)
                    seconds = timed(functools.partial(_fetch, run, inputs), 0.3 if self.small else 2.0)
                    flops = rows / seconds * row_flops(length, config) / 3
                    row = {"dtype": policy, "xla": compiled, "batch": rows, "length": length}
                    row |= {"sequences_per_second": rows / seconds, "milliseconds": 1000 * seconds}
                    if self.peak and policy == "bfloat16":
                        row["utilisation"] = flops / self.peak
                    emit(**row)


def _encode(model: Any, inputs: dict[str, Any]) -> Any:
    return model(inputs, training=False)["sequence_output"]


def _fetch(function: Callable[..., Any], *arguments: Any) -> Any:
    """Waits for the function's first number."""
    return function(*arguments)[0, 0, 0].numpy()


class Training:
    """The training step of the project on one device, with its input and its checkpoints; weights are random.

    Args:
        policy: name of a Keras dtype policy.
        rows: of a batch.
        task: None for pre-training.
    """

    def __init__(
        self, config: Any, device: str, policy: str, compiled: bool, rows: int, *, task: Any = None, **settings: Any
    ) -> None:
        import keras
        import tensorflow as tf

        from bert_tf.config import TrainConfig
        from bert_tf.model.encoder import BertEncoder
        from bert_tf.tasks.pretraining import Pretraining
        from bert_tf.training import optimizers, phases
        from bert_tf.training.loss_scale import LossScale
        from bert_tf.training.step import Step

        settings = {"batch_size": rows, "steps": 1000, "learning_rate": 1e-4} | settings
        train = TrainConfig(**settings).resolved()
        self.strategy = tf.distribute.OneDeviceStrategy(device)
        keras.utils.set_random_seed(0)
        task = task or Pretraining(None, config.max_position_embeddings)
        with self.strategy.scope():
            self.model = task.build(BertEncoder(config, dtype=policy))
            self.optimizer = optimizers.create(self.model.trainable_variables, train)
        self.loss_scale = LossScale(self.model, train.loss_scale_growth)
        rate = phases.learning_rate(phases.split(train, train.steps))
        self.step = Step(
            task, self.model, self.optimizer, rate, self.loss_scale, train, self.strategy, jit_compile=compiled
        )
        self.losses = len(task.losses)
        with tf.device("/cpu:0"):
            self.position = tf.Variable([0, 0, 0], dtype=tf.int64)  # updates; epoch and batches of it used
        self.rows = rows
        self.call: Callable[..., Any] | None = None

    def open(self, batches: Callable[[Any], Any], iterator: Any = None) -> Iterator[Any]:
        """Compiles the step for an input; yields its iterator, again and again."""
        from bert_tf.inputs.batching import stream

        iterator = iterator or iter(stream(batches))
        self.call = self.step.compiled(iterator, lambda features: features, 1)
        while True:
            yield iterator

    def read(self, batches: Sequence[dict[str, Any]], *, repeat: bool = False) -> Iterator[Any]:
        """As `open`, for one round of these batches; endless with `repeat`."""
        import tensorflow as tf

        whole = {name: tf.constant([batch[name] for batch in batches]) for name in batches[0]}
        opened = self.open(lambda epoch: tf.data.Dataset.from_tensor_slices(whole).repeat(1000 if repeat else 1))
        for number, iterator in enumerate(opened):
            if number == len(batches) and not repeat:
                return
            yield iterator

    def _shuffled(self, features: dict[str, Any]) -> Callable[[Any], Any]:
        import tensorflow as tf

        count = len(features["input_word_ids"])

        def batches(epoch: Any) -> Any:
            order = tf.random.experimental.stateless_shuffle(
                tf.range(count), tf.stack([tf.constant(0, tf.int64), epoch])
            )
            rows = {name: tf.gather(value, order) for name, value in features.items()}
            return tf.data.Dataset.from_tensor_slices(rows).batch(self.rows, drop_remainder=True)

        return batches

    def shuffled(self, features: dict[str, Any]) -> Iterator[Any]:
        """As `open`, for rows in a new order in every epoch."""
        return self.open(self._shuffled(features))

    def advance(self, updates: int) -> float:
        """The mean loss of this number of updates, in one call."""
        import tensorflow as tf

        assert self.call is not None
        done, totals, _, position, nonfinite, _, scale = self.call(
            tf.constant(self.position[0].numpy()),
            tf.constant(updates, tf.int64),
            tf.constant(0, tf.int64),
            self.loss_scale.variable.read_value(),
        )
        self.loss_scale.variable.assign(scale)
        self.position.assign([self.position[0] + done.numpy(), *position.numpy()])
        sums = totals.numpy()[: self.losses]
        if nonfinite.numpy():
            raise ArithmeticError("a loss or gradient is not finite")
        return float((sums[:, 0] / sums[:, 1]).sum())

    def state(self) -> dict[str, Any]:
        """All variables of the training state, by name."""
        weights = {f"weights/{weight.path}": weight.value for weight in self.model.weights}
        slots = {f"slots/{name}": variable for name, variable in self.optimizer.slots.items()}
        return weights | slots | {"position": self.position, "loss_scale": self.loss_scale.variable}

    def save(self, folder: str, iterator: Any) -> None:
        from bert_tf.training.state.checkpoints import Checkpoints
        from bert_tf.training.state.input_state import InputState

        step = int(self.position[0])
        with Checkpoints(folder, self.state(), keep=1) as checkpoints:
            checkpoints.save(step)
        InputState(folder, self.strategy, keep=1).save(iterator, step)

    def restore(self, folder: str, features: dict[str, Any]) -> None:
        from bert_tf.training.state.checkpoints import Checkpoints
        from bert_tf.training.state.input_state import InputState

        Checkpoints(folder, self.state(), keep=1).restore(_refuse, lambda: int(self.position[0]))
        step, epoch, used = (int(value) for value in self.position)
        batches = self._shuffled(features)
        iterator = InputState(folder, self.strategy, keep=1).open(batches, (epoch, used), step)
        next(self.open(batches, iterator))


def _refuse(line: str) -> None:
    raise RuntimeError(line)


def synthetic(vocab_size: int, rows: int, length: int, predictions: int, seed: int = 0) -> dict[str, Any]:
    """Random features of pre-training, int32 and float32 arrays [rows, ...]; rows without padding."""
    import numpy as np

    random = np.random.default_rng(seed)
    positions = np.stack([np.sort(random.permutation(length - 2)[:predictions]) + 1 for _ in range(rows)])
    types = np.arange(length) >= length // 2
    return {
        "input_word_ids": random.integers(5, vocab_size, [rows, length]).astype("int32"),
        "input_mask": np.ones([rows, length], "int32"),
        "input_type_ids": np.broadcast_to(types, [rows, length]).astype("int32"),
        "masked_lm_positions": positions.astype("int32"),
        "masked_lm_ids": random.integers(5, vocab_size, [rows, predictions]).astype("int32"),
        "masked_lm_weights": np.ones([rows, predictions], "float32"),
        "next_sentence_labels": random.integers(0, 2, rows).astype("int32"),
    }


def forward(weights: dict[str, Any], inputs: dict[str, Any], config: Any) -> dict[str, Any]:
    """BERT's forward pass in float64, in NumPy: sequence_output and pooled_output, without padding and dropout."""
    import numpy as np

    named = {path.removeprefix("encoder/"): np.asarray(value, "float64") for path, value in weights.items()}

    def norm(x: Any, name: str) -> Any:
        x = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + config.layer_norm_epsilon)
        return x / scale * named[f"{name}/gamma"] + named[f"{name}/beta"]

    def dense(x: Any, name: str) -> Any:
        return x @ named[f"{name}/kernel"] + named[f"{name}/bias"]

    ids = inputs["input_word_ids"]
    rows, length = ids.shape
    x = named["embeddings/word_embeddings"][ids] + named["embeddings/position_embeddings"][:length]
    x = norm(x + named["embeddings/type_embeddings"][inputs["input_type_ids"]], "embeddings/norm")
    for layer in range(config.num_layers):
        name = f"layer_{layer}"
        qkv = dense(x, f"{name}/attention/qkv").reshape(rows, length, 3, config.num_heads, -1)
        query, key, value = qkv.transpose(2, 0, 3, 1, 4)
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        context = (scores / scores.sum(-1, keepdims=True)) @ value
        context = context.transpose(0, 2, 1, 3).reshape(rows, length, -1)
        x = norm(x + dense(context, f"{name}/attention/output"), f"{name}/attention_norm")
        inner = dense(x, f"{name}/intermediate")
        inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        x = norm(x + dense(inner, f"{name}/output"), f"{name}/output_norm")
    return {"sequence_output": x, "pooled_output": np.tanh(dense(x[:, 0], "pooler"))}


def pieces(texts: Sequence[str], limit: int) -> list[str]:
    """A vocabulary of the characters and the most frequent words of these texts: what learning one needs may lack."""
    import collections

    characters = sorted({character for text in texts for character in text.lower() if not character.isspace()})
    given = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *(f"##{character}" for character in characters)]
    counts = collections.Counter(word for text in texts for word in re.findall(r"[a-z]{2,}", text.lower()))
    return [*given, *(word for word, _ in counts.most_common(limit - len(given)))]


def rows_for(config: Any, length: int, memory: float) -> int:
    """The batch size, a power of two: at most `_TOKENS` tokens, and half of the memory for what backward needs."""
    kept = config.num_layers * (40 * config.hidden_size + 14 * config.num_heads * length)  # bytes per token, bfloat16
    weights = 16 * config.num_layers * 12 * config.hidden_size**2
    rows = min(_TOKENS / length, 0.5 * (memory - weights) / (kept * length))
    return 2 ** max(0, int(rows).bit_length() - 1)


def timed(function: Callable[[], Any], seconds: float) -> float:
    """Seconds of a call, the median over about `seconds`, after two that compile and warm up."""
    function()
    function()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def product_rate(dtype: Any, m: int, k: int, n: int, seconds: float) -> float:
    """FLOP/s of products of [m, k] and [k, n], and back of [m, n] and [n, k]: the best of several chains."""
    import tensorflow as tf

    def matrix(rows: int, columns: int) -> Any:
        # Columns of norm 1 keep the magnitude of the product's entries.
        return tf.cast(tf.random.stateless_normal([rows, columns], [0, rows]) * rows**-0.5, dtype)

    def chain(count: Any, rows: Any, there: Any, back: Any) -> Any:
        def body(done: Any, rows: Any) -> Any:
            return done + 1, tf.matmul(tf.matmul(rows, there), back)

        return tf.while_loop(lambda done, _: done < count, body, (0, rows))[1][0, 0]

    run, operands = tf.function(chain, autograph=False), (matrix(m, k), matrix(k, n), matrix(n, k))
    count = 1
    while True:
        times = []
        run(tf.constant(count), *operands).numpy()
        for _ in range(5):
            began = time.perf_counter()
            run(tf.constant(count), *operands).numpy()
            times.append(time.perf_counter() - began)
        if min(times) > seconds / 20 or count >= 1000:
            return 4 * m * k * n * count / min(times)
        count = min(1000, max(2 * count, round(count * seconds / 15 / min(times))))


def memory_of_gpu() -> float:
    """Bytes of the first GPU, from nvidia-smi; 16 GB if it does not answer."""
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        return float(answer.splitlines()[0]) * 2**20
    return 16e9


def peak_memory(device: str) -> float:
    """Bytes: the most that tensors took on a GPU since the last reset; on a CPU, the process since its start."""
    import tensorflow as tf

    if device == "/cpu:0":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return float(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def processor() -> str:
    """The name of the processor."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        found = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor()


if __name__ == "__main__":
    main()
