"""How fast a run is: sequences and tokens a second, and what share of the device's arithmetic that is."""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable

import tensorflow as tf

# Of square matrices, the smallest first: a slow machine reaches its best with those, and gets no further in the time.
_SIZES = (512, 1024, 2048, 4096, 8192)
_TRIES = 15  # short and many: other processes take the cores away from most of them
_PATIENCE, _CHAIN = 2.0, 0.02  # seconds: no further size after it; what a chain of products is to take
# What a run's seconds go to. "start": making the input, compiling, and the call that does both for the first time.
SECONDS = ("training", "evaluation", "saving", "start")


@dataclasses.dataclass(frozen=True)
class Work:
    """What a phase of training costs.

    Attributes:
        steps: updates.
        batch_size: rows an update.
        length: positions of a row, at most.
        row_flops: function from the positions of a row to `row_flops`' answer; None where nobody knows.
    """

    steps: int
    batch_size: int
    length: int = 1
    row_flops: Callable[[float], float] | None = None

    def flops(self, length=None):
        """Floating-point operations of an update whose rows have `length` positions (None: all they can have)."""
        return self.batch_size * (self.row_flops or float)(length or self.length)


def row_flops(length, config, *, predictions=0, pooled=0):
    """Floating-point operations that training on one row takes: three times those of the forward matrix products.

    A product of [m, k] and [k, n] is 2mkn. Backward there are two of the same size for each, for the gradients of
    either factor. Not counted: everything but products (below 1% in BERT-base), what remat computes a second time, and
    the look-up of embeddings. Padding is counted, because it goes through every product. So is the whole length x
    length of attention, also in rows of several sequences, where what lies outside of the blocks is thrown away.

    Args:
        length: positions of the row; the mean where rows differ.
        config: BertConfig.
        predictions: positions whose token is predicted, also the unused ones.
        pooled: how many pooled outputs the row has.

    Returns:
        float.
    """
    hidden = config.hidden_size
    # Query, key, value and output are four of [hidden, hidden]; the feed-forward network is two.
    dense = 2 * hidden * (4 * hidden + 2 * config.intermediate_size)
    attention = 2 * 2 * length * hidden  # scores, and their sum of values: of one position with all
    predicted = 2 * hidden * (hidden + config.vocab_size)
    labelled = 2 * hidden * (hidden + 2)
    forward = config.num_layers * length * (dense + attention) + predictions * predicted + pooled * labelled
    return 3.0 * forward


def peak_flops(strategy, dtype):
    """The most floating-point operations a second that matrix products reach here, measured in some seconds.

    Args:
        strategy: tf.distribute.Strategy; its replicas multiply at the same time, so replicas that share a processor's
            cores share its speed as well.
        dtype: what the layers compute in, "bfloat16", or the name of the Keras policy, "mixed_bfloat16".

    Returns:
        float, of all replicas together, those of other workers included.
    """
    dtype = tf.as_dtype(dtype.removeprefix("mixed_"))
    best, until = 0.0, time.perf_counter() + _PATIENCE
    for size in _SIZES:
        best = max(best, _reached(strategy, dtype, size))
        if time.perf_counter() > until:
            break
    return best * strategy.num_replicas_in_sync


def _reached(strategy, dtype, size):
    """The floating-point operations a second of each replica in a chain of products; the best of many."""

    def make():
        # Columns of norm 1 keep the product's numbers as large as they are.
        factor = tf.random.stateless_normal([size, size], [0, 0]) * size**-0.5
        return tf.cast(factor, dtype), tf.cast(tf.random.stateless_normal([size, size], [0, 1]), dtype)

    def multiply(products, factor, product):
        for _ in tf.range(products):
            product = tf.matmul(product, factor)
        return tf.reduce_sum(tf.cast(product, tf.float32))

    operands = tf.function(lambda: strategy.run(make))()
    run = tf.function(
        lambda products: strategy.experimental_local_results(strategy.run(multiply, (products, *operands)))
    )

    def timed(products):
        start = time.perf_counter()
        for result in run(tf.constant(products)):
            result.numpy()
        return time.perf_counter() - start

    timed(1)  # traces
    # As long as starting the chain costs next to nothing.
    products = int(min(1000, max(1, _CHAIN / timed(1))))
    return products * 2 * size**3 / min(timed(products) for _ in range(_TRIES))


class Speed:
    """A stopwatch that knows what was done in the time.

    Args:
        work: list of Work, the phases in their order.
        peak_flops: FLOP/s, or None if not known.
    """

    def __init__(self, work, peak_flops=None):
        self._work, self._peak_flops = work, peak_flops
        self._since = None  # when the last call ended, if what comes next is to be timed
        self._warm = set()  # phases whose step is compiled
        self._timed = collections.deque()  # of `update`: (seconds, steps, phase, positions, padding) since the point
        self._spent = dict.fromkeys(SECONDS, 0.0)  # since the last point
        # Of all timed calls: operations if all rows were as long as they can be, and seconds with all that goes along.
        self._cleared = self._wall = 0.0

    def start(self):
        """What comes now is a call of the compiled step."""
        self._since = time.perf_counter()

    def update(self, phase, steps, metrics):
        """Notes that a call of the compiled step has ended.

        Args:
            phase: index of the phase whose step it was.
            steps: updates that it did.
            metrics: dict name -> (sum, weight); of it counts padding_share, where there is one.
        """
        seconds = time.perf_counter() - self._since
        self._since = None
        if phase not in self._warm:
            # The first call also compiles: its time says nothing about the next one's.
            self._warm.add(phase)
            self._spent["start"] += seconds
            return
        padding, positions = metrics.get("padding_share", (0.0, 0.0))
        self._timed.append((seconds, steps, phase, float(positions), float(padding)))
        self._spent["training"] += seconds
        self._wall += seconds
        self._cleared += steps * self._work[phase].flops()

    @contextlib.contextmanager
    def spending(self, what):
        """Everything inside the `with` is time of "evaluation", "saving" or "start"."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self._spent[what] += seconds
            # Evaluations and checkpoints come again in the time that is left.
            self._wall += seconds if what != "start" else 0.0

    def rates(self):
        """The rates since the last point: dict name -> float, without what is not known.

        Names: steps_per_second, sequences_per_second (rows, in packed runs), tokens_per_second (padding not counted)
        and mfu, the share of the peak_flops that the model's operations (`row_flops`) are.
        """
        seconds = sum(timed[0] for timed in self._timed)
        if not seconds:
            return {}
        rows = flops = 0
        for _, steps, phase, positions, _ in self._timed:
            work = self._work[phase]
            rows += steps * work.batch_size
            flops += steps * work.flops(positions / (steps * work.batch_size))
        positions, padding = (sum(timed[index] for timed in self._timed) for index in (3, 4))
        rates = {"steps_per_second": sum(timed[1] for timed in self._timed), "sequences_per_second": rows}
        if positions:
            rates["tokens_per_second"] = positions - padding
        rates = {name: count / seconds for name, count in rates.items()}
        if self._peak_flops and positions and all(self._work[timed[2]].row_flops for timed in self._timed):
            rates["mfu"] = flops / seconds / self._peak_flops
        return rates

    def point(self):
        """`rates`, and what the seconds since the last point went to; both begin anew."""
        spent = {f"{name}_seconds": seconds for name, seconds in self._spent.items() if seconds}
        found = self.rates() | spent
        self._timed.clear()
        self._spent = dict.fromkeys(SECONDS, 0.0)
        return found

    def seconds_left(self, step):
        """How long the updates after `step` will take, in seconds; None before the first that was timed.

        An update of another phase is taken to cost as much more time as it has more operations. Evaluations and
        checkpoints are counted at the share of the time that they have had so far.
        """
        if not self._cleared:
            return None
        left = 0.0
        for work in self._work:
            left += max(0, work.steps - max(0, step)) * work.flops()
            step -= work.steps
        return left * self._wall / self._cleared
