"""SIGINT and SIGTERM: noted where training is, answered where it may stop, by all workers at the same step."""

import contextlib
import signal
import threading

import tensorflow as tf

from bert_tf.errors import BertTfError

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Interrupted(BertTfError):
    """A signal ended the run after its state was saved: exit status 0 for SIGTERM, 130 for SIGINT, as shells have it.

    Args:
        number: of the signal.
        step: of the checkpoint.
        directory: where it is.
    """

    def __init__(self, number, step, directory):
        super().__init__(f"stopped at step {step}; the same command goes on from there ({directory})")
        self.exit_status = 0 if number == signal.SIGTERM else 130


class Terminated(BertTfError):
    """SIGTERM came before or after the updates, where there is nothing that a file does not hold: exit status 0."""

    exit_status = 0


@contextlib.contextmanager
def terminable(directory):
    """Makes SIGTERM in this block a `Terminated`, but for the time of a `Signals` inside.

    Args:
        directory: of the run, for the message.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise Terminated(f"stopped outside of the updates; the same command goes on from what {directory} holds")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Signals:
    """Notes SIGINT and SIGTERM, inside a `with`, instead of dying in the middle of an update.

    A second signal ends the process at once. In a thread that is not the main one nothing is noted.

    Args:
        strategy: tf.distribute.Strategy, whose workers `agreed` asks.
    """

    def __init__(self, strategy):
        self._strategy = strategy
        self._several = strategy.extended._in_multi_worker_mode()
        self._noted = None
        self._before = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _):
        if self._noted:
            raise KeyboardInterrupt
        self._noted = number

    def agreed(self):
        """The signal that a worker has got, the same answer on all of them, or None.

        With several workers this is a sum over all of them, so each must call it as often as the others; where one got
        SIGINT and one SIGTERM it is SIGINT.
        """
        if not self._several:
            return self._noted
        noted = tf.constant([self._noted == number for number in _STOPPING], tf.float32)
        terminated, interrupted = self._sum(noted).numpy()
        return signal.SIGINT if interrupted else signal.SIGTERM if terminated else None

    def any(self, said):
        """Whether one of the workers says so, the same answer on all of them; each must ask as often as the others."""
        return bool(self._sum(tf.constant([float(said)])) > 0) if self._several else said

    @tf.function
    def _sum(self, values):
        def add():
            # The copy is on this replica's device; on none, as what comes from outside, it could not be added up.
            return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(values))

        return self._strategy.experimental_local_results(self._strategy.run(add))[0]
