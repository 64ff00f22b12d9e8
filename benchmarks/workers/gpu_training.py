"""What gpu.py trains and compares with: the project's training step, random batches, BERT in NumPy."""

import collections
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import TrainConfig
from bert_tf.inputs.batching import stream
from bert_tf.model.encoder import BertEncoder
from bert_tf.tasks.masked_lm import MaskedLM
from bert_tf.tasks.mlm_and_nsp import Pretraining
from bert_tf.text import Tokenizer
from bert_tf.text.base import BERT
from bert_tf.training import optimizers, phases
from bert_tf.training.state.checkpoints import Checkpoints
from bert_tf.training.state.input_state import InputState
from bert_tf.training.step import LossScale, Step

_TOKENS = 32768  # of a micro-batch: more makes no GPU faster


class Training:
    """The training step of the project on one device, with its input and its checkpoints; weights are random.

    Args:
        policy: name of a Keras dtype policy.
        rows: of a batch.
        task: None for pre-training, with pairs of sentences if the model has segments.
        flash_attention: as for `Step`.
    """

    def __init__(
        self,
        config: Any,
        device: str,
        policy: str,
        compiled: bool,
        rows: int,
        *,
        task: Any = None,
        flash_attention: bool = False,
        **settings: Any,
    ) -> None:
        settings = {"batch_size": rows, "steps": 1000, "learning_rate": 1e-4} | settings
        train = TrainConfig(**settings).resolved()
        self.strategy = tf.distribute.OneDeviceStrategy(device)
        keras.utils.set_random_seed(0)
        pretraining = Pretraining if config.type_vocab_size else MaskedLM
        task = task or pretraining(Tokenizer(BERT), config.max_position_embeddings)
        with self.strategy.scope():
            self.model = task.build(BertEncoder(config, dtype=policy))
            self.optimizer = optimizers.create(self.model.trainable_variables, train)
        self.loss_scale = LossScale(self.model, train.loss_scale_growth)
        rate = phases.learning_rate(phases.split(train, train.steps))
        self.step = Step(
            task.objective,
            self.model,
            self.optimizer,
            rate,
            self.loss_scale,
            train,
            self.strategy,
            jit_compile=compiled,
            flash_attention=flash_attention,
        )
        self.losses = len(task.objective.losses)
        with tf.device("/cpu:0"):
            self.position = tf.Variable([0, 0, 0], dtype=tf.int64)  # updates; epoch and batches of it used
        self.rows = rows
        self.call: Callable[..., Any] | None = None

    def open(self, batches: Callable[[Any], Any], iterator: Any = None) -> Iterator[Any]:
        """Compiles the step for an input; yields its iterator, again and again."""
        iterator = iterator or iter(stream(batches))
        self.call = self.step.compiled(iterator, lambda features: features, 1)
        while True:
            yield iterator

    def read(self, batches: Sequence[dict[str, Any]], *, repeat: bool = False) -> Iterator[Any]:
        """As `open`, for one round of these batches; endless with `repeat`."""
        whole = {name: tf.constant([batch[name] for batch in batches]) for name in batches[0]}
        opened = self.open(lambda epoch: tf.data.Dataset.from_tensor_slices(whole).repeat(1000 if repeat else 1))
        for number, iterator in enumerate(opened):
            if number == len(batches) and not repeat:
                return
            yield iterator

    def _shuffled(self, features: dict[str, Any]) -> Callable[[Any], Any]:
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
        step = int(self.position[0])
        with Checkpoints(folder, self.state(), keep=1) as checkpoints:
            checkpoints.save(step)
        InputState(folder, self.strategy, keep=1).save(iterator, step)

    def restore(self, folder: str, features: dict[str, Any]) -> None:
        Checkpoints(folder, self.state(), keep=1).restore(_refuse, lambda: int(self.position[0]))
        step, epoch, used = (int(value) for value in self.position)
        batches = self._shuffled(features)
        iterator = InputState(folder, self.strategy, keep=1).open(batches, (epoch, used), step)
        next(self.open(batches, iterator))


def _refuse(line: str) -> None:
    raise RuntimeError(line)


def synthetic(vocab_size: int, rows: int, length: int, predictions: int, seed: int = 0) -> dict[str, Any]:
    """Random features of pre-training, int32 and float32 arrays [rows, ...]; rows without padding."""
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
