"""Training speed: sequences and tokens per second, and model FLOPs utilization (MFU)."""

import collections
import contextlib
import dataclasses
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.config import BertConfig, EncoderDistillation, PretrainingData
from bert_tf.model import long_rows
from bert_tf.model.replaced_tokens import generator_config
from bert_tf.model.span_boundary import POSITION_SIZE
from bert_tf.training.strategy import devices_of, parallel_parts

_SIZES = (512, 1024, 2048, 4096, 8192)  # of square matrices; the faster the machine, the larger those it needs
_TRIES = 15  # many short ones: other processes take the cores away during most of them
_CHAIN = 0.02  # seconds: target time of a chain of products
# Seconds of one product from which no larger ones are tried. Two cores reach their peak with 512 to 1024 rows, and an
# accelerator multiplies the largest ones in less.
_LONG = 0.01
# Categories of a run's time. "start": making the input, compiling, and the call that does both for the first time.
SECONDS = ("training", "evaluation", "saving", "start")


@dataclasses.dataclass(frozen=True)
class Work:
    """The cost of a phase of training.

    Attributes:
        steps: updates.
        batch_size: rows per update.
        length: maximum positions per row.
        row_flops: function from the positions of a row to the floating-point operations of training on it (the function
            `row_flops`); None if unknown.
    """

    steps: int
    batch_size: int
    length: int = 1
    row_flops: Callable[[float], float] | None = None

    def flops(self, length: float | None = None) -> float:
        """Floating-point operations of an update whose rows have `length` positions (None: the maximum)."""
        return self.batch_size * (self.row_flops or float)(length or self.length)


def row_flops(length: float, config: BertConfig, *, predictions: int = 0, pooled: int = 0) -> float:
    """Floating-point operations of training on one row: three times those of the forward matrix products.

    A product of [m, k] and [k, n] takes 2mkn. The backward pass has two products of the same size for each, one per
    factor. Not counted: all other operations (below 1% in BERT-base), the second forward pass of remat, and the
    embedding lookup. Padding is counted, because it goes through every product. So is the full length x length of
    attention, also in rows of several sequences, where everything outside of the blocks is discarded; and in local
    layers all of a band.

    Args:
        length: positions of the row; the mean where rows differ.
        predictions: positions whose token is predicted, unused ones included.
        pooled: number of pooled outputs per row.
    """
    hidden, width = config.hidden_size, config.embedding_width
    attended = sum(config.layer_heads) * config.head_size  # columns of all layers
    # Query, key, value and output are four of [hidden, attended]; the feed-forward network is two, or three.
    dense = 2 * hidden * (4 * attended + config.feed_forward_matrices * sum(config.layer_intermediates))
    keys = (long_rows.num_keys(length, config, layer) for layer in range(config.num_layers))
    # Attention scores and weighted sum of the values, of one position with all that it may attend to.
    attention = 2 * 2 * config.head_size * sum(map(operator.mul, keys, config.layer_heads))
    projected = 2 * config.embedding_size * hidden
    predicted = 2 * width * (hidden + config.vocab_size)
    labelled = 2 * hidden * (hidden + 2)
    encoded = length * (dense + attention + projected)
    return 3.0 * (encoded + predictions * predicted + pooled * labelled)


def pretraining_flops(length: float, config: BertConfig, data: PretrainingData, *, pooled: int = 0) -> float:
    """As `row_flops`, for the whole model of `data.objective`.

    Args:
        length, pooled: as for `row_flops`.
        config: of the encoder that is pre-trained.
        data: objective, generator_size and max_predictions are used.
    """
    hidden, predictions = config.hidden_size, data.max_predictions
    if data.objective == "electra":
        generator = row_flops(length, generator_config(config, data.generator_size), predictions=predictions)
        return generator + row_flops(length, config) + 3 * length * 2 * hidden * (hidden + 1)
    if data.objective == "span_boundary":  # a layer on the bounds, and once more what the masked language model has
        bounds = 2 * (2 * hidden + POSITION_SIZE) * hidden
        return row_flops(length, config, predictions=2 * predictions) + 3 * predictions * bounds
    return row_flops(length, config, predictions=predictions, pooled=pooled)


def distillation_flops(
    length: float, student: BertConfig, teacher: BertConfig, data: PretrainingData, settings: EncoderDistillation
) -> float:
    """As `row_flops`, for a student and the forward pass of its teacher, both up to what is compared.

    Args:
        length: as for `row_flops`.
        student, teacher: the encoders.
        data: objective and max_predictions are used.
        settings: of the distillation.
    """
    if data.objective == "minilm":

        def compared(config: BertConfig, layers: int) -> float:
            # The layers before, then queries, keys and values, and their products.
            sizes = {name: getattr(config, name)[: layers - 1] for name in ("heads_per_layer", "intermediate_sizes")}
            before = row_flops(length, dataclasses.replace(config, num_layers=layers - 1, **sizes))
            attended = config.layer_heads[layers - 1] * config.head_size
            own = 3 * config.hidden_size + len(settings.relations) * length
            return before + 3.0 * 2 * length * attended * own

        return compared(student, student.num_layers) + compared(teacher, settings.layer_of(teacher)) / 3
    predictions = data.max_predictions if data.objective == "distilbert" else 0
    projections = (student.num_layers + 1) * teacher.hidden_size if data.objective == "tinybert" else 0
    projected = 3.0 * 2 * length * student.hidden_size * projections
    taught = row_flops(length, teacher, predictions=predictions) / 3
    return row_flops(length, student, predictions=predictions) + projected + taught


_measured: dict[tuple[str, ...], float] = {}  # by dtype and devices; the same for all runs of a process


def peak_flops(strategy: tf.distribute.Strategy, dtype: str) -> float:
    """The highest rate of floating-point operations that matrix products reach here, measured once per process.

    Args:
        strategy: its replicas multiply at the same time, so replicas that share a processor's cores also share its
            speed.
        dtype: in which the layers compute, "bfloat16", or the name of the Keras policy, "mixed_bfloat16".

    Returns:
        Operations per second of all replicas together, including those of other workers.
    """
    compute_dtype = tf.as_dtype(dtype.removeprefix("mixed_"))
    key = (compute_dtype.name, *devices_of(strategy))
    if key not in _measured:
        best = 0.0
        for size in _SIZES:
            flops = _matmul_flops(strategy, compute_dtype, size)
            best = max(best, flops)
            if 2 * size**3 / flops > _LONG:
                break
        _measured[key] = best * strategy.num_replicas_in_sync
    return _measured[key]


def _matmul_flops(strategy: tf.distribute.Strategy, dtype: tf.DType, size: int) -> float:
    """Floating-point operations per second of each replica in chains of products; the best of many."""
    chains = parallel_parts(strategy)  # which are multiplied at the same time, as in training

    def make() -> tuple[tf.Tensor, tf.Tensor]:
        # Columns of norm 1 keep the magnitude of the product's entries.
        factor = tf.random.stateless_normal([size, size], [0, 0]) * size**-0.5
        return tf.cast(factor, dtype), tf.cast(tf.random.stateless_normal([chains, size, size], [0, 1]), dtype)

    def multiply(products: tf.Tensor, factor: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
        def chain(start: tf.Tensor) -> tf.Tensor:
            _, product = tf.while_loop(
                lambda done, _: done < products,
                lambda done, product: (done + 1, tf.matmul(product, factor)),
                (0, start),
            )
            return tf.reduce_sum(tf.cast(product, tf.float32))

        return tf.add_n([chain(start) for start in tf.unstack(starts)])

    operands = tf.function(lambda: strategy.run(make), autograph=False)()
    run = tf.function(
        lambda products: strategy.experimental_local_results(strategy.run(multiply, (products, *operands))),
        autograph=False,
    )

    def timed(products: int) -> float:
        start = time.perf_counter()
        for result in run(tf.constant(products)):
            result.numpy()
        return time.perf_counter() - start

    timed(1)  # traces
    # So long that the cost of starting the chain is negligible.
    products = int(min(1000, max(1, _CHAIN / timed(1))))
    return chains * products * 2 * size**3 / min(timed(products) for _ in range(_TRIES))


class Speed:
    """Stopwatch of a run: rates, time by category, and time left.

    Args:
        work: the phases, in order.
        peak_flops: FLOP/s, or None if unknown.
    """

    def __init__(self, work: Sequence[Work], peak_flops: float | None = None) -> None:
        self._work, self._peak_flops = work, peak_flops
        self._since = 0.0  # start of the call in progress
        self._warm: set[int] = set()  # phases whose step is compiled
        # Since the last point: steps, rows, positions, tokens, operations; and seconds by category.
        self._done: collections.Counter[str] = collections.Counter()
        self._spent = dict.fromkeys(SECONDS, 0.0)
        # Of all timed calls: operations if all rows had maximum length, and seconds including evaluations and saving.
        self._cleared = self._wall = 0.0

    def start(self) -> None:
        """Marks the start of a call of the compiled step."""
        self._since = time.perf_counter()

    def update(self, phase: int, steps: int, metrics: Mapping[str, Any]) -> None:
        """Records the end of a call of the compiled step.

        Args:
            phase: index of the phase.
            steps: updates done by the call.
            metrics: (sum, weight) by name; only padding_share is used, if present.
        """
        seconds = time.perf_counter() - self._since
        if phase not in self._warm:
            # The first call also compiles, so its time does not predict the next one's.
            self._warm.add(phase)
            self._spent["start"] += seconds
            return
        padding, positions = map(int, metrics.get("padding_share", (0, 0)))
        work = self._work[phase]
        rows = steps * work.batch_size
        flops = round(steps * work.flops(positions / rows))
        self._done.update(steps=steps, rows=rows, positions=positions, tokens=positions - padding, flops=flops)
        self._spent["training"] += seconds
        self._wall += seconds
        self._cleared += steps * work.flops()

    @contextlib.contextmanager
    def timing(self, category: str) -> Iterator[None]:
        """Adds the time inside the `with` to "evaluation", "saving" or "start"."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self._spent[category] += seconds
            # Evaluations and checkpoints recur in the remaining time.
            self._wall += seconds if category != "start" else 0.0

    def rates(self) -> dict[str, float]:
        """The rates since the last point by name, unknown ones left out.

        Names: steps_per_second, sequences_per_second (rows, in packed runs), tokens_per_second (without padding) and
        mfu, the model's operations (`row_flops`) per second as a share of peak_flops.
        """
        done, seconds = self._done, self._spent["training"]
        if not seconds:
            return {}
        rates = {"steps_per_second": done["steps"] / seconds, "sequences_per_second": done["rows"] / seconds}
        if done["positions"]:
            rates["tokens_per_second"] = done["tokens"] / seconds
            if self._peak_flops and all(work.row_flops for work in self._work):
                rates["mfu"] = done["flops"] / seconds / self._peak_flops
        return rates

    def point(self) -> dict[str, float]:
        """Returns `rates` and NAME_seconds, the time by category since the last point, and resets both."""
        spent = {f"{name}_seconds": seconds for name, seconds in self._spent.items() if seconds}
        point = self.rates() | spent
        self._done.clear()
        self._spent = dict.fromkeys(SECONDS, 0.0)
        return point

    def seconds_left(self, step: int) -> float | None:
        """Estimated seconds for the updates after `step`; None until a call has been timed.

        The time of an update is assumed to be proportional to its operations. Evaluations and checkpoints are included
        at their share of the time so far.
        """
        if not self._cleared:
            return None
        left = 0.0
        for work in self._work:
            left += max(0, work.steps - max(0, step)) * work.flops()
            step -= work.steps
        return left * self._wall / self._cleared
