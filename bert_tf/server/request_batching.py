"""Dynamic batching: requests that arrive while the model is busy share its next run.

A request to an idle model runs at once. While as many batches run as may, requests wait. They are divided into batches
of similar length, because padding takes time (in models that compute it, each row takes as long as the longest), and
the batch with the oldest request runs next.
Requests only share a batch if their arrays have the same shape but for the number of rows, and want the same outputs.
If a batch fails, its requests are repeated one by one, so an error reaches only the client that caused it.
"""

import asyncio
import concurrent.futures
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from bert_tf.server.monitoring import QUEUING_LATENCY, Metrics
from bert_tf.server.status import Code, ServingError
from bert_tf.types import Array

_Arrays: TypeAlias = dict[str, Array]
# Runs a model: inputs, names of outputs, timeout in seconds, APIs of the requests.
_Run: TypeAlias = Callable[[_Arrays, tuple[str, ...], float | None, Sequence[str]], _Arrays]

_BYTES_PER_TOKEN = 4  # of text, about
# What a run costs beside its tokens, in tokens: on one core a run of MiniLM takes 1.4 ms and 0.1 ms per token in
# float32, 1 ms and 0.04 ms in int8.
_OVERHEAD = 20
# What a position of padding costs, in tokens, where only attention computes it: an eighth in MiniLM for texts of 28
# tokens, more for longer ones.
_ATTENTION = 0.15
_MOST_COMPARED = 256  # of the oldest requests; more would delay the event loop by more than some milliseconds


class BatchingOptions(NamedTuple):
    """Limits of batches.

    Attributes:
        rows: maximum of a batch; a request of more rows runs alone.
        tokens: maximum of a batch, estimated from the length of the texts: rows times the longest row.
        wait: seconds that requests wait for others if the last batch had several requests.
        queued_rows: maximum number of waiting rows, per signature.
        threads: batches that run at the same time, of all models.
    """

    rows: int = 128
    tokens: int = 4096
    wait: float = 0.002
    queued_rows: int = 10_000
    threads: int = 2


class _Waiting(NamedTuple):
    inputs: _Arrays
    outputs: tuple[str, ...]
    rows: int
    length: int  # of the longest row, in tokens
    kind: Hashable  # only requests of the same kind share a batch
    future: asyncio.Future[_Arrays]
    arrived: float
    deadline: float  # on the monotonic clock
    api: str


class Queue:
    """The requests that wait for one signature of one loaded version; used from the event loop.

    Args:
        run: computes the outputs of a batch, in a thread.
        options: limits.
        executor: the threads for batches.
        counted: for padded outputs, by the name of the output with the numbers of items: their names.
        metrics: for the time that requests wait.
        model: name for the metrics.
        skips_padding: whether the model computes nothing but attention for padding.
    """

    def __init__(
        self,
        run: _Run,
        options: BatchingOptions,
        executor: concurrent.futures.Executor,
        counted: Mapping[str, Sequence[str]],
        metrics: Metrics,
        model: str,
        skips_padding: bool,
    ) -> None:
        self._run, self._options, self._executor = run, options, executor
        self._counted, self._metrics, self._model = counted, metrics, model
        self._position_cost = _ATTENTION if skips_padding else 1.0  # that of the tokens is the same in all batches
        self._waiting: list[_Waiting] = []  # the oldest first; some may have been given up
        self._queued_rows = 0
        self._running = 0
        self._hold: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(
        self, inputs: _Arrays, outputs: tuple[str, ...], deadline: float | None, api: str = "Predict"
    ) -> _Arrays:
        """Waits for the answer to a request; one whose task is cancelled before its batch runs is not run.

        Args:
            inputs: arrays [rows, ...], with the same number of rows.
            outputs: names.
            deadline: of the model's run, on the monotonic clock.
            api: of the request, for the metrics.

        Raises:
            ServingError: UNAVAILABLE if too many rows wait, or the model's.
        """
        rows = len(next(iter(inputs.values())))
        if self._queued_rows + rows > self._options.queued_rows:
            self._keep([request for request in self._waiting if not request.future.done()])
        if self._queued_rows + rows > self._options.queued_rows and self._waiting:
            raise ServingError(Code.UNAVAILABLE, f"the queue is full: {self._queued_rows} rows wait; try again later")
        kind = outputs, tuple((name, value.shape[1:]) for name, value in sorted(inputs.items()))
        future = asyncio.get_running_loop().create_future()
        now = time.monotonic()
        request = _Waiting(inputs, outputs, rows, _length(inputs), kind, future, now, deadline or math.inf, api)
        self._waiting.append(request)
        self._queued_rows += rows
        self._dispatch()
        return await future

    def _dispatch(self) -> None:
        while self._waiting and not self._hold and self._running < self._options.threads:
            if batch := self._take():
                self._running += 1
                task = asyncio.get_running_loop().create_task(self._answer(batch))
                self._tasks.add(task)  # the loop itself keeps only a weak reference
                task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[_Waiting]:
        """Removes the next batch from the queue, the one with the oldest request."""
        alive = [request for request in self._waiting if not request.future.done()]
        batch = alive[:1]
        if batch:
            alike = [request for request in alive[:_MOST_COMPARED] if request.kind == batch[0].kind]
            parts = self._divided(alike)
            if len(parts) == 1 and len(alike) == len(alive):  # nothing would be left for the other threads
                size = -(-len(alike) // (self._options.threads - self._running))
                parts = [parts[0][start : start + size] for start in range(0, len(alike), size)]
            batch = next(part for part in parts if any(one is alive[0] for one in part))
        taken = set(map(id, batch))
        self._keep([request for request in alive if id(request) not in taken])
        return batch

    def _divided(self, requests: list[_Waiting]) -> list[list[_Waiting]]:
        """The batches in which the requests take the least time, by dynamic programming over their lengths."""
        requests = sorted(requests, key=lambda request: request.length)
        costs, firsts = [0.0], [0]  # of the best batches of the first n requests, and where the last of them begins
        for end, longest in enumerate((request.length for request in requests), 1):
            best, first, rows = math.inf, end - 1, 0
            for start in range(end - 1, -1, -1):
                rows += requests[start].rows
                fits = rows <= self._options.rows and rows * longest <= self._options.tokens
                if not fits and start < end - 1:
                    break
                if (cost := costs[start] + _OVERHEAD + self._position_cost * rows * longest) < best:
                    best, first = cost, start
            costs.append(best)
            firsts.append(first)
        batches, end = [], len(requests)
        while end:
            batches.append(requests[firsts[end] : end])
            end = firsts[end]
        return batches

    def _keep(self, waiting: list[_Waiting]) -> None:
        self._waiting = waiting
        self._queued_rows = sum(request.rows for request in waiting)

    async def _answer(self, batch: list[_Waiting]) -> None:
        now = time.monotonic()
        for request in batch:
            self._metrics.observe(QUEUING_LATENCY, now - request.arrived, model_name=self._model)
        try:
            await self._run_batch(batch)
        finally:
            self._running -= 1
            # Clients whose answers have just been sent ask again at once, all of them.
            if len(batch) > 1 and self._options.wait and not self._hold:
                self._hold = asyncio.get_running_loop().call_later(self._options.wait, self._release)
            self._dispatch()

    def _release(self) -> None:
        self._hold = None
        self._dispatch()

    async def _run_batch(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._executor, self._compute, batch)
        except Exception as error:
            if len(batch) == 1:
                if not batch[0].future.done():
                    batch[0].future.set_exception(error)
                return
            for request in batch:
                if not request.future.done():  # its client may have given up meanwhile
                    await self._run_batch([request])
            return
        for request, answer in zip(batch, answers, strict=True):
            if not request.future.done():
                request.future.set_result(answer)

    def _compute(self, batch: list[_Waiting]) -> list[_Arrays]:
        """The answers to the requests of a batch; runs in a thread."""
        latest = max(request.deadline for request in batch)
        timeout = None if latest == math.inf else latest - time.monotonic()
        first = batch[0]
        if len(batch) == 1:
            return [self._run(first.inputs, first.outputs, timeout, (first.api,))]
        inputs = {name: np.concatenate([request.inputs[name] for request in batch]) for name in first.inputs}
        # The counts give the width of the answers to each request.
        wanted = [*first.outputs, *(name for name in self._counted if name not in first.outputs)]
        outputs = self._run(inputs, tuple(wanted), timeout, [request.api for request in batch])
        rows = sum(request.rows for request in batch)
        if any(len(value) != rows for value in outputs.values()):
            raise ServingError(Code.INTERNAL, "the model's answer has another number of rows than its input")
        answers, start = [], 0
        for request in batch:
            part = {name: value[start : start + request.rows] for name, value in outputs.items()}
            for count, members in self._counted.items():
                width = part[count].max(initial=0)
                part |= {name: part[name][:, :width] for name in members if name in part}
            answers.append({name: part[name] for name in first.outputs})
            start += request.rows
        return answers


def _length(inputs: _Arrays) -> int:
    """Tokens of the longest row, estimated."""
    rows: Array | int = 0
    for value in inputs.values():
        if value.dtype == object:
            sizes = np.fromiter(map(len, value.flat), np.int64, value.size).reshape(value.shape)
            rows = rows + sizes.reshape(len(value), -1 if value.size else 0).sum(1) // _BYTES_PER_TOKEN + 2
        else:
            rows = np.maximum(rows, int(np.prod(value.shape[1:])))
    return int(np.max(rows, initial=1))
