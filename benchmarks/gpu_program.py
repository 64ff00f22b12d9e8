"""What XLA makes of training on an H100, without a GPU: python benchmarks/gpu_program.py --output=gpu_program.json

TensorFlow writes the program for a GPU (its HLO) on any machine. XLA's compiler for GPUs is in JAX's plugin, and
compiles for the description of a card; `make benchmarks-xla` makes an environment with both, .venv-xla. This program
counts the kernels of a transformer block, or of the forward and backward pass of pre-training, and the memory that they
read and write. It fails if that has grown beyond what `WORK` says, or if calls of cuDNN's attention differ from those
that JAX makes. Kernels are not tuned, since there is nothing to measure them on.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import side_by_side
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model import fused
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.layers import TransformerBlock
from bert_tf.model.mode import Mode, Seeds, computing
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text.wordpiece import Tokenizer

sys.path.append(str(side_by_side.WORKERS))
from gpu_stages import PREDICTIONS
from gpu_training import pieces, synthetic

BANDWIDTH = 2.8e12  # bytes per second that an H100 reaches
# XLA keeps roundings, as in the programs of bert_tf, and does not tune kernels.
FLAGS = "--xla_allow_excess_precision=false --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"


@dataclasses.dataclass(frozen=True)
class Work:
    """A program.

    Attributes:
        model: name of a size.
        rows, length: of a batch.
        flash: whether cuDNN computes the attention, without dropout of probabilities; else with 0.1.
        block: whether it is one block, else the whole model with its losses.
        most: gigabytes that it moves at most.
        kernels: of which it consists at most.
        packed: whether rows of a block contain several sequences.
    """

    model: str
    rows: int
    length: int
    flash: bool
    block: bool
    most: float
    kernels: int
    packed: bool = False

    @property
    def name(self) -> str:
        part = "block" if self.block else "step"
        rows = f"{self.rows} x {self.length}{', packed' if self.packed else ''}"
        return f"{part} of {self.model}, {rows}, {'cuDNN' if self.flash else 'plain'}"


# 2% more, of a block's kernels one, than with TensorFlow 2.21.0 and JAX 0.10.2.
WORK = (
    Work("base", 256, 128, False, True, 7.90, 73),
    Work("base", 256, 128, True, True, 6.41, 63),
    Work("base", 32, 512, False, True, 5.95, 73),
    Work("base", 32, 512, True, True, 3.27, 63),
    Work("base", 2, 8192, True, True, 3.27, 63),
    Work("modernbert_base", 2, 8192, True, True, 2.32, 37),
    Work("base", 32, 512, False, True, 6.01, 73, packed=True),
    Work("base", 32, 512, True, True, 3.37, 62, packed=True),
    Work("base", 256, 128, False, False, 100.7, 947),
    Work("base", 256, 128, True, False, 82.9, 801),
    Work("base", 32, 512, False, False, 74.6, 941),
    Work("base", 32, 512, True, False, 42.6, 796),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="gpu_program.json", help="the JSON file")
    parser.add_argument("--python", default=".venv-xla/bin/python", help="the interpreter of the environment with JAX")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    arguments = parser.parse_args()
    python = side_by_side.Python(arguments.python, ("jax", "jax_plugins.xla_cuda12"), "benchmarks-xla")
    if lacking := python.lacks():
        parser.error(f"--python: {lacking}")
    chosen = [work for work in WORK if arguments.only in work.name]
    if not chosen:
        parser.error(
            f"--only={arguments.only}: no program has such a name; there are {'; '.join(w.name for w in WORK)}"
        )
    rows, failed = [], []
    for work in chosen:
        row = compiled(program(work), python.executable)
        calls, differences = row.pop("calls"), row.pop("differences")
        row = {"program": work.name, **row, "milliseconds": row["gigabytes"] * 1e12 / BANDWIDTH}
        rows.append(row)
        print(", ".join(f"{key} {shown(value)}" for key, value in row.items()), flush=True)
        if row["gigabytes"] > work.most:
            failed.append(f"{work.name}: {row['gigabytes']:.2f} GB are moved, at most {work.most:.2f} are expected")
        if row["kernels"] > work.kernels:
            failed.append(f"{work.name}: {row['kernels']} kernels, at most {work.kernels} are expected")
        if len(calls) != 2 * work.flash:
            failed.append(f"{work.name}: the calls of cuDNN are {calls}, expected one and its gradient")
        failed += [f"{work.name}: {difference}" for difference in differences]
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump({"machine": side_by_side.machine(), "flags": FLAGS, "rows": rows}, file, indent=1)
    sys.exit("\n".join(failed) or None)


def program(work: Work) -> bytes:
    """The HLO of one program for a GPU, with weights as arguments, as XLA's protocol buffer."""
    config = BertConfig.from_name(work.model, max_position_embeddings=max(512, work.length))
    if work.flash:
        config = dataclasses.replace(config, attention_dropout=0.0)
    made = block(config, work.rows, work.length, work.packed) if work.block else step(config, work.rows, work.length)
    model, arguments, loss = made
    variables = model.trainable_variables

    def gradients(weights: list[tf.Tensor], seed: tf.Tensor, *inputs: Any) -> Any:
        mode = Mode(seeds=Seeds(seed), fusion="static", gpu_program=True, flash_attention=work.flash)
        with keras.StatelessScope(list(zip(variables, weights, strict=True))), computing(mode):
            with tf.GradientTape() as tape:
                states = [inputs[0]] if work.block else []
                tape.watch([*weights, *states])
                outputs = loss(*inputs)
            return outputs, tape.gradient(outputs, [*weights, *states], *states)

    # As on a machine with a GPU.
    with mock.patch.object(fused, "only_cpus", lambda: False):
        traced = tf.function(gradients, autograph=False, jit_compile=True)
        weights = [tf.zeros(variable.shape) for variable in variables]
        seed = tf.zeros([2], tf.int64)  # an argument: TensorFlow would compute all masks of a constant
        write = traced.experimental_get_compiler_ir(weights, seed, *arguments)
        found: bytes = write(stage="hlo_serialized", platform_name="GPU")
    return found


def block(config: BertConfig, rows: int, length: int, packed: bool) -> tuple[Any, list[Any], Any]:
    """A block, its inputs, and the function from these to its outputs; the upstream gradient is like the first."""
    layer = TransformerBlock(config, 0, name="layer_0", dtype=keras.DTypePolicy("mixed_bfloat16"))
    layer.build((rows, length, config.hidden_size))
    states = tf.zeros([rows, length, config.hidden_size], tf.bfloat16)
    bias = tf.zeros([rows, 1, length if packed else 1, length])
    return layer, [states, bias], lambda states, bias: layer(states, bias, training=True)


def step(config: BertConfig, rows: int, length: int) -> tuple[Any, list[Any], Any]:
    """BERT's pre-training, its features, and the function from these to its loss."""
    letters = pieces(["a b"], 7)
    config = dataclasses.replace(config, vocab_size=30522)
    task = Pretraining(Tokenizer(letters), length)
    model = task.build(BertEncoder(config, dtype="mixed_bfloat16"))
    features = synthetic(config.vocab_size, rows, length, PREDICTIONS[length])

    def loss(features: Any) -> tf.Tensor:
        outputs = model({tensor.name: features[tensor.name] for tensor in model.inputs}, training=True)
        metrics = task.objective.loss_and_metrics(features, outputs)
        return task.objective.total({name: metrics[name][0] / metrics[name][1] for name in task.objective.losses})

    return model, [tf.nest.map_structure(tf.constant, features)], loss


def compiled(hlo: bytes, python: str) -> dict[str, Any]:
    """What workers/gpu_program_xla.py counts in a program."""
    with tempfile.NamedTemporaryFile(suffix=".pb") as file:
        file.write(hlo)
        file.flush()
        worker = [python, str(side_by_side.WORKERS / "gpu_program_xla.py"), file.name]
        environment = os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(worker, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"the compiler failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
