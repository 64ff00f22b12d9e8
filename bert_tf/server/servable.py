"""One loaded version of a model: any SavedModel, loaded and run as TF Serving does it."""

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import input_pb2, prediction_log_pb2

from bert_tf.processor_flags import changed, describe_variant, unsuitable, variants_of
from bert_tf.server import loading
from bert_tf.server.monitoring import RUNTIME_LATENCY, WARMUP_LATENCY, Metrics
from bert_tf.server.request_batching import BatchingOptions, Queue
from bert_tf.server.status import Code, ServingError, invalid, one_line
from bert_tf.server.tensors import objects
from bert_tf.types import Array, Json

# Registers the ops of exports; there are exports without them, Pythons without it, and it may be of another TensorFlow.
with contextlib.suppress(Exception):
    import tensorflow_text  # noqa: F401

_log = logging.getLogger("bert_tf.server")

DEFAULT_SIGNATURE = "serving_default"
EXTRA = "assets.extra"
_MOST_WARM_UP_REQUESTS = 1000  # as in TF Serving
_TOKENS = "tokens"  # the signature of exports that takes ids
_MOST_SIZE, _MOST_PROGRAMS = 8192, 64  # of rows or tokens; that are compiled


class RunOptions(NamedTuple):
    """How models are run.

    Attributes:
        tags: of the graph in the SavedModel.
        intra_op_threads, inter_op_threads: of TensorFlow; 0 for one per core.
        batching: None runs each request alone.
        batch_all: whether to batch requests to all models; else to those that bert_tf exported.
        direct_threads: maximum number of requests to a version that run at the same time without being batched.
    """

    tags: tuple[str, ...] = ("serve",)
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    batching: BatchingOptions | None = BatchingOptions()
    batch_all: bool = False
    direct_threads: int = 8


class Runtime:
    """What all loaded models share: options, metrics and threads."""

    def __init__(self, options: RunOptions, metrics: Metrics) -> None:
        self.options, self.metrics = options, metrics
        threads = options.batching.threads if options.batching else 1
        self.batch_executor = concurrent.futures.ThreadPoolExecutor(threads, "batch")
        tf.compat.v1.logging.set_verbosity("ERROR")  # the loader's deprecation in Python does not concern operators

    def close(self) -> None:
        """Ends the threads; batches that wait for one fail."""
        self.batch_executor.shutdown(wait=False, cancel_futures=True)


class Servable:
    """A loaded version.

    Args:
        name, version: of the model.
        path: folder of the version.
        runtime: shared with other models.

    Raises:
        ServingError: the version cannot be loaded, or a warm-up request fails.

    Attributes:
        signatures: SignatureDefs by name.
        card: the model card of bert_tf's exports; None in other models.
    """

    def __init__(self, name: str, version: int, path: str, runtime: Runtime) -> None:
        self.name, self.version, self.path = name, version, path
        self._runtime = runtime
        options = runtime.options
        threads = {
            "use_per_session_threads": True,  # else slow requests to one model hold up the others
            "intra_op_parallelism_threads": options.intra_op_threads,
            "inter_op_parallelism_threads": options.inter_op_threads,
        }
        # A session, because tf.saved_model.load hides variables that TF Serving would miss.
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(**threads))
        self._threads = concurrent.futures.ThreadPoolExecutor(options.direct_threads, name)
        try:
            _check_files(path)
            self.card = _card(path)
            variants = variants_of(self.card)
            if problem := unsuitable(variants) or changed(self.card, loading.graph_of(path)):
                raise invalid(problem)
            if taken := describe_variant(variants):
                _log.info("%s: version %d %s", name, version, taken)
            self._graph = self._load(path, options.tags)
            self.signatures = self._graph.signatures
            self._compile()
            self._warm_up()
        except BaseException:
            self.close()
            raise
        self._queues = {key: queue for key in self.signatures if (queue := self._queue(key))}

    def _load(self, path: str, tags: Sequence[str]) -> loading.Loaded:
        try:
            return loading.load(self._session, tags, path)
        except tf.errors.OpError as error:
            if lacking := re.match("Op type not registered '([^']+)'", error.message):
                expected = f"install the tensorflow-text of TensorFlow {tf.__version__}, or a TensorFlow that has one"
                raise invalid(f"needs the operation {lacking[1]}; {expected}") from error
            raise ServingError.of(error) from error
        except (DecodeError, OSError, KeyError, RuntimeError, ValueError) as error:
            raise invalid(f"not a SavedModel, or not copied completely: {one_line(error)}") from error

    def _compile(self) -> None:
        """On a GPU, has XLA compile the programs that the model card names, by one request to each."""
        programs = _programs(self.card)
        if not programs:
            return
        if not tf.config.list_physical_devices("GPU") or _TOKENS not in self.signatures:
            reason = "there is no GPU" if _TOKENS in self.signatures else f"it has no signature {_TOKENS!r}"
            _log.warning("%s: version %d is compiled when requests come: %s", self.name, self.version, reason)
            return
        start = time.perf_counter()
        for rows, length in programs:
            filled = np.ones([rows, length], np.int32)
            inputs = {name: filled * (name == "input_mask") for name in self.signatures[_TOKENS].inputs}
            try:
                self.run(_TOKENS, inputs, apis=())
            except ServingError as error:  # no compiler, or too little memory for so many rows
                message = f"the others are compiled when requests come: {rows} x {length} tokens: {error}"
                _log.warning("%s: version %d: %s", self.name, self.version, message)
                return
        took, (rows, length) = time.perf_counter() - start, programs[-1]
        sizes = f"{len(programs)} programs, up to {rows} x {length} tokens, in {took:.1f} s"
        _log.info("%s: version %d: XLA compiled %s", self.name, self.version, sizes)

    def _warm_up(self) -> None:
        """Runs the requests in assets.extra, each of which must succeed."""
        start = time.perf_counter()
        try:
            for signature, inputs, api in itertools.islice(_warm_up_requests(self.path), _MOST_WARM_UP_REQUESTS):
                _check_names(inputs, self.signature(signature))
                self.run(signature, inputs, apis=(api,))
        except ServingError as error:
            raise ServingError(error.code, f"{self.path}: a warm-up request failed: {error.message}") from None
        self._runtime.metrics.observe(WARMUP_LATENCY, time.perf_counter() - start, model_path=self.path, status="OK")

    def _queue(self, signature: str) -> Queue | None:
        """A queue for a signature whose rows may share a batch with other requests' rows."""
        options = self._runtime.options
        if options.batching is None or not (options.batch_all or self.card):
            return None
        card = self.card or {"signatures": {}}
        counted = card["signatures"].get(signature, {}).get("counted")
        if not _is_batchable(self.signatures[signature], counted):
            return None
        run, runtime = functools.partial(self.run, signature), self._runtime
        skips_padding = bool(card.get("skips_padding"))
        executor, metrics = runtime.batch_executor, runtime.metrics
        return Queue(run, options.batching, executor, counted or {}, metrics, self.name, skips_padding)

    def signature(self, name: str) -> meta_graph_pb2.SignatureDef:
        """The SignatureDef of a name; "" is `serving_default`."""
        found = self.signatures.get(name or DEFAULT_SIGNATURE)
        if found is None:
            raise ServingError(Code.FAILED_PRECONDITION, f"the model has no signature {name!r}")
        return found

    async def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        timeout: float | None = None,
        api: str = "Predict",
    ) -> dict[str, Array]:
        """Answers a request, possibly in a batch with others.

        Args:
            signature_name: "" is `serving_default`.
            inputs: arrays by name; strings are bytes in arrays of objects.
            outputs: names; all if empty.
            timeout: in seconds.
            api: of the request, for the metrics.

        Returns:
            Arrays by name.

        Raises:
            ServingError: the request does not fit the signature, the model failed, or too many requests wait.
        """
        signature_name = signature_name or DEFAULT_SIGNATURE
        signature = self.signature(signature_name)
        _check_names(inputs, signature)
        unknown = [name for name in outputs if name not in signature.outputs]
        if unknown:
            raise invalid(f"the signature has no output {unknown[0]!r}; it has {', '.join(sorted(signature.outputs))}")
        chosen = tuple(sorted(outputs or signature.outputs))
        deadline = time.monotonic() + timeout if timeout else None
        queue = self._queues.get(signature_name)
        try:
            async with asyncio.timeout(timeout):
                if queue is not None and _have_rows(inputs, signature):
                    return await queue.submit(dict(inputs), chosen, deadline, api)

                def run() -> dict[str, Array]:
                    return self.run(signature_name, inputs, chosen, deadline and deadline - time.monotonic(), (api,))

                return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except TimeoutError:
            raise ServingError(Code.DEADLINE_EXCEEDED, "Deadline exceeded while waiting for the model") from None

    def run(
        self,
        signature_name: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        timeout: float | None = None,
        apis: Sequence[str] = ("Predict",),
    ) -> dict[str, Array]:
        """Runs a signature in this thread, for requests of these APIs; see `predict`."""
        if timeout is not None and timeout <= 0:
            raise ServingError(Code.DEADLINE_EXCEEDED, "Deadline exceeded while waiting for the model")
        signature = self.signature(signature_name)
        options = tf.compat.v1.RunOptions(timeout_in_ms=max(1, round(timeout * 1000))) if timeout else None
        feed = {self._tensor(name, signature.inputs[name]): value for name, value in inputs.items()}
        fetches = {name: self._tensor(name, signature.outputs[name]) for name in outputs or signature.outputs}
        session = self._session
        if session is None:  # unloaded, after the last client that waited for an answer
            raise ServingError(Code.UNAVAILABLE, f"Version {self.version} of {self.name} is unloaded")
        start = time.perf_counter()
        try:
            answers = session.run(fetches, feed, options)
        except tf.errors.OpError as error:
            raise ServingError.of(error) from error
        except (TypeError, ValueError) as error:  # a value of another type than its placeholder
            raise invalid(one_line(error)) from error
        except RuntimeError as error:  # the session is closed
            raise ServingError(Code.UNAVAILABLE, one_line(error)) from error
        took = time.perf_counter() - start
        for api in apis:
            self._runtime.metrics.observe(RUNTIME_LATENCY, took, model_name=self.name, API=api, runtime="TF1")
        return {name: np.asarray(value) for name, value in answers.items()}

    def _tensor(self, name: str, info: meta_graph_pb2.TensorInfo) -> str:
        """The name in the session of an input or output."""
        if not info.name:  # it has several tensors
            raise ServingError(Code.UNIMPLEMENTED, f"{name} is ragged or sparse; only dense tensors can be served")
        return self._graph.tensor(info.name)

    def close(self) -> None:
        """Frees the model's memory; requests that wait for a thread fail."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.close()
        self._session = None


def _check_names(inputs: Mapping[str, Array], signature: meta_graph_pb2.SignatureDef) -> None:
    """Compares the names of a request's inputs with those of its signature."""
    if inputs.keys() != signature.inputs.keys():
        found, expected = (", ".join(sorted(names)) or "none" for names in (inputs, signature.inputs))
        raise invalid(f"the inputs are {found}; expected {expected}")


def _have_rows(inputs: Mapping[str, Array], signature: meta_graph_pb2.SignatureDef) -> bool:
    """Whether the inputs are arrays of the right rank with the same number of rows: only these can be batched."""
    ranks = all(value.ndim == len(signature.inputs[name].tensor_shape.dim) for name, value in inputs.items())
    return ranks and len({len(value) for value in inputs.values()}) == 1


def _is_batchable(signature: meta_graph_pb2.SignatureDef, counted: Mapping[str, Sequence[str]] | None) -> bool:
    """Whether rows of several requests can share a run, so that each answer is as wide as if it was asked alone.

    Args:
        signature: of the model.
        counted: as in the model card; None if there is none.
    """
    infos = [*signature.inputs.values(), *signature.outputs.values()]
    if any(not info.name or info.tensor_shape.unknown_rank or not info.tensor_shape.dim for info in infos):
        return False
    if any(info.tensor_shape.dim[0].size != -1 for info in infos):
        return False
    # Outputs of our exports that are not counted are as wide as the inputs, which are alike within a batch.
    if counted is not None and any(len(info.tensor_shape.dim) > 1 for info in signature.inputs.values()):
        return True
    members = {name for names in (counted or {}).values() for name in names}
    return all(
        name in members or all(dim.size >= 0 for dim in info.tensor_shape.dim[1:])
        for name, info in signature.outputs.items()
    )


def _check_files(path: str) -> None:
    """Raises ServingError for a file that is none, such as a named pipe: to read it could last for ever."""
    for folder, name in loading.files_of(path):
        file = os.path.join(folder, name)
        with contextlib.suppress(FileNotFoundError):  # it is not of this machine's, or removed since
            if not stat.S_ISREG(os.stat(file).st_mode):
                raise invalid(f"{file} is a pipe, socket or device; expected a regular file")


def _card(path: str) -> Json | None:
    try:
        with tf.io.gfile.GFile(os.path.join(path, EXTRA, "model_card.json")) as file:
            card = json.loads(file.read())
    except (tf.errors.OpError, ValueError):
        return None
    ours = isinstance(card, dict) and card.get("format") == "bert_tf" and isinstance(card.get("signatures"), dict)
    return card if ours else None


def _programs(card: Json | None) -> list[tuple[int, int]]:
    """Rows and lengths of the programs of XLA that a model card names; none if it names no sensible ones."""
    found = (card or {}).get("programs")
    if not isinstance(found, dict):
        return []
    rows, lengths = found.get("rows"), found.get("lengths")
    if not isinstance(rows, list) or not isinstance(lengths, list):
        return []
    sensible = all(type(size) is int and 0 < size <= _MOST_SIZE for size in rows + lengths)
    return list(itertools.product(rows, lengths))[:_MOST_PROGRAMS] if sensible else []


def _warm_up_requests(path: str) -> Iterator[tuple[str, dict[str, Array], str]]:
    """(Signature, inputs, API) of each record that TF Serving would run before the version is available."""
    file = os.path.join(path, EXTRA, "tf_serving_warmup_requests")
    if not tf.io.gfile.exists(file):
        return
    try:
        records = list(tf.data.TFRecordDataset(file).as_numpy_iterator())
        logs = [prediction_log_pb2.PredictionLog.FromString(record) for record in records]
    except (tf.errors.OpError, DecodeError) as error:
        raise invalid(f"{file}: damaged: {one_line(error)}") from error
    for log in logs:
        kind = log.WhichOneof("log_type")
        if kind == "predict_log":
            request = log.predict_log.request
            inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
            yield request.model_spec.signature_name, inputs, "Predict"
        elif kind in ("classify_log", "regress_log"):
            request = getattr(log, kind).request
            api = kind.removesuffix("_log").capitalize()
            yield request.model_spec.signature_name, {"inputs": serialized(request.input)}, api


def serialized(message: input_pb2.Input) -> Array:
    """The examples of a request to Classify or Regress, each with the features of its context, as serialized Examples.

    Raises:
        ServingError: there are none.
    """
    kind = message.WhichOneof("kind")
    examples = list(getattr(message, kind).examples) if kind else []
    if not examples:
        raise invalid("the request has no examples")
    made = []
    for example in examples:
        whole = tf.train.Example()
        if kind == "example_list_with_context":
            whole.CopyFrom(message.example_list_with_context.context)
        for name, feature in example.features.feature.items():
            whole.features.feature[name].CopyFrom(feature)
        made.append(whole.SerializeToString())
    return objects(made)
