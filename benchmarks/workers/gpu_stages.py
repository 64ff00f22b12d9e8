"""The stages of gpu.py. Called with one argument, a JSON object: stage, began, seconds, small, peak and goals.

The rows of the stage go to standard output, a line of JSON each.
"""

import contextlib
import dataclasses
import functools
import gc
import json
import pathlib
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text
from gpu_training import Training, forward, pieces, rows_for, synthetic

from bert_tf.config import BertConfig, ClassificationConfig
from bert_tf.inputs.datasets.examples import TextExample
from bert_tf.model import flash, fused
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.mode import Mode, computing, infer
from bert_tf.model.precision.optimize import to_bfloat16
from bert_tf.model.precision.xla import XlaDispatch
from bert_tf.tasks.classification import Classification
from bert_tf.text.wordpiece import Tokenizer
from bert_tf.training.speed import row_flops

_REVIEWS = pathlib.Path(__file__).resolve().parents[2] / "data" / "reviews" / "train.tsv"
# Masked positions of a sequence, by length: as in the paper's two phases.
PREDICTIONS = {128: 20, 512: 77}
_UPDATES = 10


def main() -> None:
    settings = json.loads(sys.argv[1])
    name = settings.pop("stage")
    stage = Stage(**settings)
    getattr(stage, re.sub("^change_.*", "changes", name))()
    if stage.failed:
        sys.exit("\n".join(stage.failed))


def emit(**row: Any) -> None:
    print(json.dumps(row), flush=True)


class Stage:
    """The stages, as methods.

    Args:
        began: time when the process was started, on the monotonic clock.
        seconds: of the stage; what is optional is left out when they run short.
        small: whether to use tiny sizes.
        peak: FLOP/s of products in bfloat16, 0 if not measured.
        goals: sequences per second of another machine, by model and length.
        change: an entry of `gpu.CHANGES`.
        kept: whether compiled programs are kept, as text.

    Attributes:
        failed: messages of parts that failed.
    """

    def __init__(
        self,
        began: float,
        seconds: float,
        small: bool,
        peak: float,
        goals: dict[str, float],
        change: dict[str, bool],
        kept: str,
    ) -> None:
        self.began, self.seconds, self.change, self.kept = began, seconds, change, kept
        self.small, self.peak, self.goals = small, peak, goals
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
        """A BertConfig; with `--small` its first layers, tiny."""
        config = BertConfig.from_name(name)
        if self.small:
            tiny = BertConfig.from_name("tiny")
            shape = {field: getattr(tiny, field) for field in ("hidden_size", "num_heads", "intermediate_size")}
            layers = 1 + bool(config.local_layers)
            local = tuple(layer for layer in config.local_layers if layer < layers)
            shape |= {"num_layers": layers, "local_layers": local, "vocab_size": 1000, "max_position_embeddings": 64}
            changes = shape | changes
        return dataclasses.replace(config, **changes)

    def devices(self) -> None:
        build = tf.sysconfig.get_build_info()
        emit(
            python=platform.python_version(),
            tensorflow=tf.__version__,
            tensorflow_text=tensorflow_text.__version__,
            keras=keras.__version__,
            numpy=np.__version__,
            cuda=build.get("cuda_version"),
            cudnn=build.get("cudnn_version"),
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

    def flash(self) -> None:
        """cuDNN's attention, and its gradients, against the plain way in float32 on the CPU; twice, for its order."""
        cases = [(2, 24)] if self.small else [(4, 128), (4, 512), (1, 2048), (1, 8192)]
        for dtype, bound in (("bfloat16", 0.02), ("float16", 0.004)):
            for kind in ("padded", "causal", "packed"):
                row = {"dtype": dtype, "rows": kind}
                with self.part(**row):
                    if reason := flash.fault(64, dtype, kind):
                        if self.on_gpu:
                            self.failed.append(f"{row}: {reason}")
                        emit(**row, reason=reason)
                        continue
                    for rows, length in cases:
                        found, again, expected = self._attention(dtype, kind, rows, length)
                        names, differences = ("context", "query", "key", "value"), map(_error, found, expected)
                        errors = dict(zip(names, differences, strict=True))
                        same = all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))
                        right = same and max(errors.values()) < bound
                        emit(**row, batch=rows, length=length, **errors, same_bits=same, right=right)

    def _attention(self, dtype: str, kind: str, rows: int, length: int) -> Any:
        """Context and gradients of 12 heads, float32 arrays: twice from cuDNN, and computed in float32 on the CPU."""
        random = np.random.default_rng(length)
        given = [tf.cast(random.normal(size=[rows, length, 12, 64]), dtype) for _ in range(4)]
        mask = None
        if kind == "padded":
            mask = tf.constant(random.integers(length // 2, length + 1, rows), tf.int32)
        elif kind == "packed":
            numbers = np.sort(random.integers(1, 5, [rows, length]))
            mask = flash.mask_of(tf.constant(numbers, tf.int32), causal=False)

        def both(compute: Any, *states: Any) -> Any:
            *inputs, upstream = states
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = compute(*inputs, mask)
            return [outputs, *tape.gradient(outputs, inputs, upstream)]

        with tf.device(self.device):
            run = tf.function(functools.partial(both, flash.attention), autograph=False, jit_compile=True)
            found, again = ([tf.cast(one, tf.float32).numpy() for one in run(*given)] for _ in range(2))
        with tf.device("/cpu:0"):
            exact = both(flash.plain, *(tf.cast(tf.identity(one), tf.float32) for one in given))
        return found, again, [one.numpy() for one in exact]

    def products(self) -> None:
        """Rates of matrix products: large ones, for the peak, and those of BERT-large."""
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
                        encode = functools.partial(infer, model, skip_padding=False)
                        outputs = tf.function(encode, autograph=False, jit_compile=compiled)(
                            tf.nest.map_structure(tf.constant, inputs)
                        )
                        errors = {
                            output: float(np.abs(outputs[output].numpy().astype("float64") - right).max())
                            / float(np.abs(right).max())
                            for output, right in expected.items()
                        }
                        emit(dtype=name, xla=compiled, **errors, right=max(errors.values()) < bound)

    def updates(self) -> None:
        """Ten updates with dropout, from the same weights on the same batches: on the CPU and on the device."""
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
        tf.config.experimental.enable_op_determinism()
        config = self.config("small", dropout=0.1, attention_dropout=0.1)
        rows, length = (4, 24) if self.small else (8, 128)
        features = synthetic(config.vocab_size, 12 * rows, length, 4)
        cases = [("mixed_bfloat16", True, True), ("mixed_bfloat16", True, False), ("float32", True, False)]
        cases = [("float32", False, False), *cases]
        for policy, compiled, fast in cases[:1] if self.small else cases[1:] + cases[:1]:
            name = policy.removeprefix("mixed_")
            with self.part(dtype=name, xla=compiled, flash=fast), tempfile.TemporaryDirectory() as folder:
                of_case = dataclasses.replace(config, attention_dropout=0.0) if fast else config

                def new(config: Any = of_case, way: Any = (policy, compiled, fast)) -> Training:
                    return Training(config, self.device, way[0], way[1], rows, flash_attention=way[2])

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
                    dtype=name, xla=compiled, flash=fast, tensors=len(same), equal_tensors=sum(same),
                    equal_loss=last == losses[1], right=all(same) and last == losses[1],
                )  # fmt: skip

    def base(self) -> None:
        """Updates of BERT-base."""
        self.steps("base", [(True, True, 512), (True, True, 128), (True, False, 512), (True, False, 128)])

    def large(self) -> None:
        """Updates of BERT-large."""
        self.steps("large", [(True, True, 512), (True, True, 128), (True, False, 512), (True, False, 128)])

    def long(self) -> None:
        """Updates of ModernBERT-base on long rows, with its masks and dropout."""
        cases = [(True, True, 2048), (True, True, 8192), (True, False, 2048), (True, False, 8192)]
        self.steps("modernbert_base", cases, attention_output_dropout=0.1)

    def first_update(self) -> None:
        """The first update of BERT-base, whose programs are kept; without GPU nothing is."""
        emit(kept=self.kept)
        self.steps("base", [(True, True, 512)])

    def second_start(self) -> None:
        """The same with the programs that `first_update` has kept."""
        self.first_update()

    def changes(self) -> None:
        """Updates of a third of BERT-base as a change computes them."""
        by_products = contextlib.nullcontext() if self.change["reductions"] else mock.patch.object(
            fused, "only_cpus", lambda: True
        )  # fmt: skip
        cases = [(True, self.change["flash"], 512), (True, self.change["flash"], 128)]
        with by_products:
            self.steps("base", cases, num_layers=1 if self.small else 4)

    def steps(self, model: str, cases: list[tuple[bool, bool, int]], **shape: Any) -> None:
        """Updates of pre-training, bfloat16.

        Args:
            model: name of a size.
            cases: whether XLA compiles, whether cuDNN computes the attention, and the length of the rows.
            **shape: further fields of the config.
        """
        for compiled, fast, length in [(model != "large", True, 16)] if self.small else cases:
            config = self.config(model, **shape | ({"attention_dropout": 0.0} if fast else {}))
            predictions = PREDICTIONS.get(length, 4 if self.small else length * 30 // 100)
            # By the memory that the plain way takes, so that both have the same batches.
            rows = 4 if self.small else rows_for(config, length, self.memory)
            row = {"model": model, "layers": config.num_layers, "length": length, "xla": compiled, "flash": fast}
            with self.part(**row):
                while True:
                    try:
                        measured = self.measure_steps(config, rows, length, predictions, compiled, fast)
                        break
                    except Exception as error:
                        if rows == 1 or not re.search(
                            "ResourceExhausted|RESOURCE_EXHAUSTED|out of memory", repr(error)
                        ):
                            raise
                        rows //= 2
                rate = rows / measured["seconds_per_update"]
                flops = rate * row_flops(length, config, predictions=predictions, pooled=bool(config.type_vocab_size))
                row |= {"batch": rows, "sequences_per_second": rate, "tflops": flops / 1e12} | measured
                if self.peak:
                    row["utilisation"] = flops / self.peak
                goal = self.goals.get(f"{model}, {length}")
                if goal and not self.small:
                    row["times_a100"] = rate / goal
                emit(**row)

    def measure_steps(
        self, config: Any, rows: int, length: int, predictions: int, compiled: bool, fast: bool
    ) -> dict[str, float]:
        gc.collect()  # the previous model
        training = Training(config, self.device, "mixed_bfloat16", compiled, rows, flash_attention=fast)
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
        with open(_REVIEWS, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file][1:]
        rows = rows[:256] if self.small else rows
        config = self.config("base")
        tokenizer = Tokenizer(pieces([text for text, _ in rows], config.vocab_size))
        config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
        task = Classification(tokenizer, ClassificationConfig(max_length=64 if self.small else 128),
                              labels=("negative", "positive"), pair=False)  # fmt: skip
        examples = [TextExample(str(n), (text,), label, "") for n, (text, label) in enumerate(rows)]
        columns = task.codec.to_tensors(examples, labelled=True)
        batch, prepared = 8 if self.small else 32, time.monotonic() - self.began
        for compiled in (False,) if self.small else (False, True):
            share = self.left * (0.8 if compiled else 0.35)
            with self.part(xla=compiled):
                began = time.monotonic()
                training = Training(config, self.device, "mixed_bfloat16", compiled, batch, task=task)

                def batches(epoch: Any) -> Any:
                    seed = tf.stack([tf.constant(0, tf.int64), epoch])
                    return task.codec.rows.batches(columns, batch, seed=seed, few_lengths=True)

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
        config, length = self.config("base"), 32 if self.small else 128
        for policy in ("bfloat16", "float32"):
            model = BertEncoder(config, dtype=policy)
            encode = functools.partial(_encode, model)
            cases = [(True, True, 256), (True, False, 256), (True, True, 8), (True, False, 8), (False, False, 256)]
            for compiled, fast, rows in [(False, False, 4), (True, False, 4)] if self.small else cases:
                mode = Mode(gpu_program=compiled and self.on_gpu, flash_attention=fast)
                part = self.part(dtype=policy, xla=compiled, flash=fast, batch=rows)
                with part, tf.device(self.device), computing(mode):
                    features = synthetic(config.vocab_size, rows, length, 4)
                    inputs = {name: tf.constant(features[name]) for name in model.input}
                    run = tf.function(encode, autograph=False, jit_compile=compiled)
                    seconds = timed(functools.partial(_fetch, run, inputs), 0.3 if self.small else 2.0)
                    flops = rows / seconds * row_flops(length, config) / 3
                    row = {"dtype": policy, "xla": compiled, "flash": fast, "batch": rows, "length": length}
                    row |= {"sequences_per_second": rows / seconds, "milliseconds": 1000 * seconds}
                    if self.peak and policy == "bfloat16":
                        row["utilisation"] = flops / self.peak
                    emit(**row)

    def serving(self) -> None:
        """The encoder as exports compute it, in bfloat16: by single operations, and by XLA for a few sizes."""
        config, length = self.config("base"), 16 if self.small else 100
        model = BertEncoder(config, dtype="float32")
        to_bfloat16(model)
        specs = {name: tf.TensorSpec([None, None], tf.int32) for name in model.input}
        for compiled in (True, False):
            # Not by kernels of oneDNN.
            dispatch = XlaDispatch(config.max_position_embeddings) if compiled else None
            mode = Mode(kernels=frozenset(), dispatch=dispatch)
            run = tf.function(functools.partial(_served, model, mode), input_signature=[specs], autograph=False)
            for rows in (1, 4) if self.small else (1, 8, 30):
                with self.part(xla=compiled, batch=rows), tf.device(self.device):
                    features = synthetic(config.vocab_size, rows, length, 4)
                    inputs = {name: tf.constant(features[name]) for name in model.input}
                    began = time.perf_counter()
                    _fetch(run, inputs)
                    first = time.perf_counter() - began
                    seconds = timed(functools.partial(_fetch, run, inputs), 0.3 if self.small else 1.0)
                    emit(
                        xla=compiled, batch=rows, length=length, milliseconds=1000 * seconds,
                        sequences_per_second=rows / seconds, first_call_seconds=first,
                    )  # fmt: skip


def _served(model: Any, mode: Mode, inputs: dict[str, Any]) -> Any:
    with computing(mode):
        return infer(model, inputs)["sequence_output"]


def _error(found: Any, expected: Any) -> float:
    """The largest error over the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _encode(model: Any, inputs: dict[str, Any]) -> Any:
    return infer(model, inputs, skip_padding=False)["sequence_output"]


def _fetch(function: Callable[..., Any], *arguments: Any) -> Any:
    """Waits for the function's first number."""
    return function(*arguments)[0, 0, 0].numpy()


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
    if device == "/cpu:0":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return float(tf.config.experimental.get_memory_info("GPU:0")["peak"])


if __name__ == "__main__":
    main()
