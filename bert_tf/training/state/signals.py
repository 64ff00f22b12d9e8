"""SIGINT and SIGTERM: recorded during updates, handled at the next safe point, at the same step on all workers."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Self

import tensorflow as tf

from bert_tf.errors import BertTfError
from bert_tf.progress import log
from bert_tf.training.tf_internals import in_multi_worker_mode

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Interrupted(BertTfError):
    """A signal ended the run after its state was saved; exit status 0 for SIGTERM, 130 for SIGINT, as in shells.

    Args:
        number: of the signal.
        step: of the checkpoint.
        directory: of the run.
    """

    def __init__(self, number: int, step: int, directory: str) -> None:
        super().__init__(f"stopped at step {step}; run the same command again to resume ({directory})")
        self.step = step
        self.exit_status = 0 if number == signal.SIGTERM else 130


class Terminated(BertTfError):
    """SIGTERM came before or after the updates, when all state is on disk; exit status 0."""

    exit_status = 0


@contextlib.contextmanager
def terminable(directory: str) -> Iterator[None]:
    """Raises `Terminated` on SIGTERM in this block, except inside a `Signals` block, and says how to resume on Ctrl-C.

    Args:
        directory: of the run, for the message.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    advice = f"stopped outside of the updates; run the same command again to resume from {directory}"

    def stop(*_: Any) -> None:
        raise Terminated(advice)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Terminated:  # which Keras may have wrapped in words of its own
        raise Terminated(advice) from None
    except KeyboardInterrupt:
        log(advice)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


class Signals:
    """Records SIGINT and SIGTERM inside a `with` block, instead of ending the process in the middle of an update.

    A second signal ends the process immediately. Outside of the main thread nothing is recorded.

    Args:
        strategy: its workers take part in `agreed`.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._multi_worker = in_multi_worker_mode(strategy)
        self._received: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, _: FrameType | None) -> None:
        if self._received:
            raise KeyboardInterrupt
        self._received = number

    def agreed(self) -> int | None:
        """The signal that any worker has received, the same result on all workers, or None.

        With several workers this is a sum over all of them, so each must call it equally often. If one received SIGINT
        and another SIGTERM, the result is SIGINT.
        """
        if not self._multi_worker:
            return self._received
        received = tf.constant([self._received == number for number in _STOPPING], tf.float32)
        terminated, interrupted = self._sum(received).numpy()
        return signal.SIGINT if interrupted else signal.SIGTERM if terminated else None

    def any(self, condition: bool) -> bool:
        """Whether the condition holds on any worker, the same result on all; each must call it equally often."""
        return bool(self._sum(tf.constant([float(condition)])) > 0) if self._multi_worker else condition

    @tf.function(autograph=False)
    def _sum(self, values: tf.Tensor) -> tf.Tensor:
        def add() -> tf.Tensor:
            # The copy is on this replica's device; a tensor from outside has no device and cannot be reduced.
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(values))

        return self._strategy.experimental_local_results(self._strategy.run(add))[0]
