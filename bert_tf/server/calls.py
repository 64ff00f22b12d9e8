"""Requests to models, whatever their protocol: time limits, threads, metrics and the log.

`rest.py` and `services.py` convert a request to arrays, and arrays to its answer. In between, `Runner` checks limits
and asks the model (`servable.py`), for which the request may wait in a queue (`request_batching.py`).
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tensorflow_serving.apis import input_pb2

from bert_tf.server import tf_examples
from bert_tf.server.models import Models
from bert_tf.server.monitoring import REQUEST_COUNT, REQUEST_LATENCY, Metrics, log_access
from bert_tf.server.options import Limits
from bert_tf.server.servable import Servable, serialized
from bert_tf.server.status import Code, ServingError
from bert_tf.server.tensors import check_limits, least_bytes
from bert_tf.types import Array

_T = TypeVar("_T")

_LARGE = 2**14  # bytes or values that are converted in a thread, so that others are answered meanwhile
_threads = concurrent.futures.ThreadPoolExecutor(2, "convert")  # more would only wait for Python's lock


@dataclasses.dataclass
class Call:
    """A request and what is known of it.

    Attributes:
        deadline: on the clock of the event loop; None if the request may take any time.
        bytes_in, bytes_out: of request and answer, as sent.
        size: of the request in bytes, decompressed.
        model, version, rows: for the log; None until they are known.
        api: "Predict", "Classify", "Regress" or "MultiInference", for the metrics.
    """

    deadline: float | None
    bytes_in: int = 0
    bytes_out: int = 0
    size: int = 0
    model: str | None = None
    version: int | None = None
    rows: int | None = None
    api: str = ""
    _start: float = dataclasses.field(default_factory=time.perf_counter)

    def seconds_left(self) -> float | None:
        """The time left.

        Raises:
            ServingError: DEADLINE_EXCEEDED, there is none.
        """
        if self.deadline is None:
            return None
        left = self.deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise ServingError(Code.DEADLINE_EXCEEDED, "Deadline exceeded")
        return left

    def log(self, client: str | None, **fields: object) -> None:
        """Adds a line to the access log."""
        log_access(
            **fields,
            milliseconds=round((time.perf_counter() - self._start) * 1000, 1),
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            model=self.model,
            version=self.version,
            rows=self.rows,
            client=client,
        )


async def in_thread(size: int, function: Callable[..., _T], *args: Any) -> _T:
    """Calls a function, in a thread if it has much to do.

    Args:
        size: of what it converts, in bytes or values.
        function, args: to call.
    """
    if size < _LARGE:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *args)


def check_answer(size: int, limits: Limits) -> None:
    """Raises a ServingError if an answer of this size, in bytes, may not be sent."""
    if size > limits.answer_bytes:
        raise ServingError(
            Code.RESOURCE_EXHAUSTED,
            f"the answer has {size} bytes or more; at most {limits.answer_bytes} are allowed (--max_answer_megabytes); "
            "ask for fewer rows at a time, or for fewer outputs",
        )


class Runner:
    """Answers requests, as arrays, by the models.

    Args:
        models: to serve.
        metrics: counts the requests.
        limits: of requests.
        protocol: "REST" or "GRPC".
    """

    def __init__(self, models: Models, metrics: Metrics, limits: Limits, protocol: str) -> None:
        self._models, self._metrics, self._limits, self._protocol = models, metrics, limits, protocol

    @contextlib.contextmanager
    def counted(self, call: Call, name: str, api: str) -> Iterator[None]:
        """Context manager: counts a request to a model and measures its time.

        Args:
            call: the request.
            name: of the model.
            api: as in `Call`.
        """
        call.api = api
        start, code, known = time.perf_counter(), Code.OK, name in self._models
        try:
            yield
        except ServingError as error:
            code = error.code
            raise
        except Exception:
            code = Code.INTERNAL
            raise
        except BaseException:
            code = Code.CANCELLED
            raise
        finally:
            # Names of models that do not exist are the client's, of any number.
            if known and code is not Code.NOT_FOUND:
                self._metrics.count(REQUEST_COUNT, model_name=name, status=code.name)
                if code is Code.OK:
                    shown = api.lower() if self._protocol == "REST" else api  # as in TF Serving: the method in the URL
                    labels = {"model_name": name, "API": shown, "entrypoint": self._protocol}
                    self._metrics.observe(REQUEST_LATENCY, time.perf_counter() - start, **labels)

    @contextlib.contextmanager
    def acquired(self, call: Call, name: str, version: int | None, label: str | None) -> Iterator[Servable]:
        """Context manager: the version for a request, as `Models.acquire`."""
        with self._models.acquire(name, version, label) as servable:
            call.model, call.version = name, servable.version
            yield servable

    async def predict(
        self, call: Call, servable: Servable, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] = ()
    ) -> dict[str, Array]:
        """The outputs of a signature, all if none are named.

        Raises:
            ServingError: a limit is exceeded, or as `Servable.predict`.
        """
        call.rows = await in_thread(call.size, check_limits, inputs, self._limits)
        found = await servable.predict(signature, inputs, outputs, call.seconds_left(), call.api)
        check_answer(least_bytes(found), self._limits)  # before it is converted, which takes several times its memory
        return found

    async def infer(
        self,
        call: Call,
        servable: Servable,
        signature: str,
        method: str,
        outputs: Sequence[str],
        asked: input_pb2.Input,
    ) -> Any:
        """The result for examples, a ClassificationResult or RegressionResult.

        Args:
            call: the request.
            servable: to ask.
            signature: its name.
            method: CLASSIFY or REGRESS.
            outputs: from `tf_examples.outputs_of`.
            asked: the examples.
        """
        inputs = {"inputs": await in_thread(call.size, serialized, asked)}
        found = await self.predict(call, servable, signature, inputs, outputs)
        convert = tf_examples.classification if method == tf_examples.CLASSIFY else tf_examples.regression
        size = sum(value.nbytes for value in found.values())
        return await in_thread(size, convert, found, len(inputs["inputs"]))
