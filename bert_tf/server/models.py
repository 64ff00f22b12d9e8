"""The served models: finds their versions, loads and unloads them, and knows which of them answers a request.

A version is a folder whose name is a number. A new one is loaded and warmed up before it takes requests, and the old
one is unloaded only then, after its last request. A version that cannot be loaded leaves the others as they are. If
the model card or the warm-up requests come, or change, after a version was loaded, it is loaded again.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
from tensorflow_serving.apis import get_model_status_pb2
from tensorflow_serving.config import model_server_config_pb2

from bert_tf.server.loading import files_of
from bert_tf.server.model_list import check_models, version_number
from bert_tf.server.servable import EXTRA, Runtime, Servable
from bert_tf.server.status import Code, ServingError, invalid
from bert_tf.server.threads import in_own_thread

_log = logging.getLogger("bert_tf.server")
_Files: TypeAlias = list[tuple[str, str, int, int]]  # folder, name, size and time of each
START, LOADING, AVAILABLE, UNLOADING, END = "START", "LOADING", "AVAILABLE", "UNLOADING", "END"


class VersionStatus(NamedTuple):
    """The state of a version, as TF Serving reports it.

    Attributes:
        version: its number.
        state: START, LOADING, AVAILABLE, UNLOADING or END.
        code, message: why it could not be loaded; OK and "" otherwise.
    """

    version: int
    state: str
    code: Code = Code.OK
    message: str = ""


def status_response(versions: Iterable[VersionStatus]) -> get_model_status_pb2.GetModelStatusResponse:
    """The answer to a request for the states of versions."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for one in versions:
        added = response.model_version_status.add(version=one.version, state=one.state)
        added.status.error_code = one.code.value
        added.status.error_message = one.message.encode("utf-8", "backslashreplace").decode()  # paths can be any bytes
    return response


class PollingOptions(NamedTuple):
    """When to look for versions.

    Attributes:
        seconds: polling interval; 0 looks once, at the start.
        retries: maximum number of retries of a version that cannot be loaded; one whose files change is always retried.
        retry_seconds: interval between retries.
    """

    seconds: float = 1.0
    retries: int = 5
    retry_seconds: float = 60.0


class _Version:
    """A version and what is known of it."""

    def __init__(self, number: int, path: str) -> None:
        self.number, self.path = number, path
        self.status = VersionStatus(number, START)
        self.servable: Servable | None = None
        self.requests = 0
        self.seen: _Files = []  # at the last look
        self.tried: _Files = []  # at the last try to load it
        self.tries = 0
        self.tried_at = 0.0


class _Model:
    def __init__(self, config: model_server_config_pb2.ModelConfig) -> None:
        self.config = config
        self.versions: dict[int, _Version] = {}
        self.labels: dict[str, int] = {}
        self.problem = ""  # with its folder, at the last look

    def available(self) -> list[int]:
        return sorted(number for number, version in self.versions.items() if version.status.state == AVAILABLE)


class Models:
    """All models of a server. All methods are called from the event loop.

    Args:
        runtime: for their sessions.
        polling: when to look for new versions.
        early_labels: whether a label may be given to a version that is not loaded yet.

    Attributes:
        loading: whether a version is being loaded.
    """

    def __init__(self, runtime: Runtime, polling: PollingOptions, *, early_labels: bool = False) -> None:
        self._runtime, self._polling, self._early_labels = runtime, polling, early_labels
        self._models: dict[str, _Model] = {}
        self._configured = False
        self.loading = False
        self._lock = asyncio.Lock()
        self._loader = concurrent.futures.ThreadPoolExecutor(1, "load")
        self._unloading: set[asyncio.Task[None]] = set()

    # Requests

    @contextlib.contextmanager
    def acquire(self, name: str, version: int | None = None, label: str | None = None) -> Iterator[Servable]:
        """Context manager: the version for a request, which stays loaded inside.

        Args:
            name: of the model.
            version, label: of the version; the newest if neither is given.

        Raises:
            ServingError: NOT_FOUND for an unknown model or version, INVALID_ARGUMENT for an unknown label.
        """
        wanted = self._wanted(name, version, label)
        assert wanted.servable is not None
        wanted.requests += 1
        try:
            yield wanted.servable
        finally:
            wanted.requests -= 1

    def _wanted(self, name: str, version: int | None, label: str | None) -> _Version:
        if not name:
            raise invalid("the request names no model")
        model = self._models.get(name)
        if label:
            if model is None or label not in model.labels:
                raise invalid(f"model {name} has no label {label}")
            version = model.labels[label]
        available = model.available() if model else []
        if model is None or not available or (version is not None and version not in available):
            asked = f"model {name}" if version is None else f"version {version} of model {name}"
            # Clients such as TF Serving's own tests know by the first word that a server is up.
            raise ServingError(Code.NOT_FOUND, f"Servable not found: {asked}")
        return model.versions[available[-1] if version is None else version]

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def names(self) -> list[str]:
        """Names of the models."""
        return list(self._models)

    def labels(self, name: str) -> dict[str, int]:
        """The version of each label of a model."""
        return dict(self._models[name].labels)

    def status(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """The states of a model's versions, the newest first, including unloaded ones.

        Raises:
            ServingError: NOT_FOUND.
        """
        known = self.known(name)
        if not known:
            raise ServingError(Code.NOT_FOUND, f"model {name} is not known")
        found = [status for status in known if version in (None, status.version)]
        if not found:
            raise ServingError(Code.NOT_FOUND, f"version {version} of model {name} is not known")
        return found

    def known(self, name: str) -> list[VersionStatus]:
        """As `status`, but empty if there is none."""
        versions = self._models[name].versions if name in self._models else {}
        return [versions[number].status for number in sorted(versions, reverse=True)]

    def ready(self) -> bool:
        """Whether every model has an available version."""
        return self._configured and all(model.available() for model in self._models.values())

    # Configuration

    async def reload(self, config: model_server_config_pb2.ModelServerConfig) -> None:
        """Replaces the configuration, and waits until each model that is new, or in a new folder, is available.

        Raises:
            ServingError: the configuration is invalid, or empty where there was one before, and nothing has changed;
                or a model that it waited for could not be loaded, or a label is for a version that is not loaded.
        """
        if config.WhichOneof("config") is None:  # such as a file that is just being written
            if not self._models:
                _log.warning("the configuration is empty: no model is served")
                return
            raise ServingError(
                Code.FAILED_PRECONDITION,
                "the configuration is empty; expected a model_config_list, which may be empty",
            )
        check_models(config)
        configs = {one.name: one for one in config.model_config_list.config}
        async with self._lock:
            for name in self._models.keys() - configs.keys():
                self._unload_all(name, self._models.pop(name))
            failed = {}
            for name, one in configs.items():
                old = self._models.get(name)
                model = old if old and old.config.base_path == one.base_path else _Model(one)
                self._models.setdefault(name, model)
                model.config = one
                await self._poll_model(name, model, at_once=True)
                if old is model:  # it may have no version, before and after
                    continue
                if not model.available():
                    failed[name] = _why(name, model)
                elif old:  # until now the versions of the old folder served
                    self._models[name] = model
                    self._unload_all(name, old)
            self._configured = True
            refused = []
            for name in configs.keys() - failed.keys():
                try:
                    self._set_labels(name, dict(configs[name].version_labels))
                except ServingError as error:
                    refused.append(error)
            if failed:
                why = "; ".join([*failed.values(), *map(str, refused)])
                raise ServingError(Code.UNKNOWN, f"models cannot be loaded: {why}")
            if refused:
                raise refused[0]

    def _set_labels(self, name: str, labels: dict[str, int]) -> None:
        model = self._models[name]
        for label, version in labels.items():
            # A label that clients use already is moved only to a version that can answer them.
            is_early = self._early_labels and model.labels.get(label, version) == version
            if version not in model.available() and not is_early:
                way_out = "" if self._early_labels else ", or pass --allow_version_labels_for_unavailable_models"
                raise ServingError(
                    Code.FAILED_PRECONDITION,
                    f"label {label} of model {name} is for version {version}, which is not loaded; load it first"
                    f"{way_out}",
                )
        model.labels = labels

    # Versions

    async def poll_forever(self) -> None:
        """Looks for versions until it is cancelled."""
        while self._polling.seconds > 0:
            await asyncio.sleep(self._polling.seconds)
            try:
                await self.poll()
            except Exception:  # a bug must not end the server
                _log.exception("looking for new versions failed")

    async def poll(self) -> None:
        """Looks for versions once, loads new ones, and unloads those that are no longer wanted."""
        async with self._lock:
            for name, model in self._models.items():
                await self._poll_model(name, model)

    async def _poll_model(self, name: str, model: _Model, *, at_once: bool = False) -> None:
        """As `poll`; only versions whose files did not change since the last look are loaded, unless `at_once`.

        Others may still be being copied.
        """
        try:
            found = await in_own_thread(_versions, model.config.base_path)
        except tf.errors.OpError as error:
            _log_problem(name, model, f"{model.config.base_path}: {error.message}")
            return  # what is loaded stays: a network drive may be away for a moment
        _log_problem(name, model, _problem(model.config, found))
        wanted = _wanted_versions(model.config.model_version_policy, found)
        for number in sorted(wanted, reverse=True):
            version = model.versions.setdefault(number, _Version(number, found[number]))
            seen = await in_own_thread(_files, version.path)
            settled, version.seen = at_once or version.seen == seen, seen
            if not settled:
                continue
            if not version.servable:
                if self._is_due(version):
                    await self._load(name, model, version)
            elif version.status.state == AVAILABLE and _extra(seen) not in ([], _extra(version.tried)):
                # It was loaded without its card: not batched, and not refused on the wrong processor.
                fresh = _Version(number, version.path)
                fresh.seen = seen
                await self._load(name, model, fresh)
                model.versions[number] = fresh
                self._unload(name, version)
        self._unload_unwanted(name, model, wanted)

    def _is_due(self, version: _Version) -> bool:
        """Whether to try to load a version, perhaps again."""
        if version.seen != version.tried:
            version.tries = 0
            return True
        waited = time.monotonic() - version.tried_at >= self._polling.retry_seconds
        return version.status.code is Code.OK or (waited and version.tries <= self._polling.retries)

    async def _load(self, name: str, model: _Model, version: _Version) -> None:
        number = version.number
        version.tried, version.tries, version.tried_at = version.seen, version.tries + 1, time.monotonic()
        version.status = VersionStatus(number, LOADING)
        _log.info("%s: loading version %d from %s", name, number, version.path)
        self.loading = True
        try:
            version.servable = await asyncio.get_running_loop().run_in_executor(
                self._loader, Servable, name, number, version.path, self._runtime
            )
        except Exception as error:
            code = error.code if isinstance(error, ServingError) else Code.INTERNAL
            version.status = VersionStatus(number, END, code, str(error))
            serving = [other for other in model.available() if other != number]
            rest = f"; version {serving[-1]} goes on serving" if serving else ""
            _log.error("%s: version %d cannot be loaded: %s%s", name, number, error, rest)
            return
        finally:
            self.loading = False
        version.status = VersionStatus(number, AVAILABLE)
        took = time.monotonic() - version.tried_at
        _log.info("%s: version %d is available after %.1f s", name, number, took)

    def _unload_unwanted(self, name: str, model: _Model, wanted: Collection[int]) -> None:
        loaded = model.available()
        if wanted and not set(wanted) & set(loaded):
            return  # until one of the new versions is available
        for number in loaded:
            if number not in wanted:
                self._unload(name, model.versions[number])

    def _unload_all(self, name: str, model: _Model) -> None:
        for number in model.available():
            self._unload(name, model.versions[number])

    def _unload(self, name: str, version: _Version) -> None:
        """Takes no more requests, and unloads when those that run are answered."""
        version.status = VersionStatus(version.number, UNLOADING)
        task = asyncio.get_running_loop().create_task(self._unload_when_idle(name, version))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload_when_idle(self, name: str, version: _Version) -> None:
        while version.requests:
            await asyncio.sleep(0.05)
        await asyncio.get_running_loop().run_in_executor(self._loader, _close, version)
        version.status = VersionStatus(version.number, END)
        _log.info("%s: version %d is unloaded", name, version.number)

    async def close(self) -> None:
        """Unloads everything, after the requests that run."""
        for name, model in self._models.items():
            self._unload_all(name, model)
        await asyncio.gather(*self._unloading)
        self._loader.shutdown()


def _close(version: _Version) -> None:
    assert version.servable is not None
    version.servable.close()
    version.servable = None
    gc.collect()  # graphs and their sessions refer to each other


def _why(name: str, model: _Model) -> str:
    errors = [version.status.message for version in model.versions.values() if version.status.message]
    return f"{name}: " + (errors[-1] if errors else model.problem)


def _log_problem(name: str, model: _Model, problem: str) -> None:
    """Logs what is wrong with the folder of a model, once."""
    if problem and problem != model.problem:
        _log.warning("%s: %s", name, problem)
    model.problem = problem


def _problem(config: model_server_config_pb2.ModelConfig, found: Collection[int]) -> str:
    """What is wrong with the versions in the folder of a model; "" if nothing is."""
    path = config.base_path
    if not found:
        return f"no version in {path}; expected folders named by numbers, such as {path}/1"
    if missing := set(config.model_version_policy.specific.versions).difference(found):
        return f"no version {', '.join(map(str, sorted(missing)))} in {path}, as model_version_policy asks for"
    return ""


def _wanted_versions(policy: Any, found: Collection[int]) -> set[int]:
    """The versions of a folder that a policy, a FileSystemStoragePathSourceConfig.ServableVersionPolicy, serves."""
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return set(found)
    if kind == "specific":
        return set(found) & set(policy.specific.versions)
    count = policy.latest.num_versions or 1
    return set(sorted(found)[-count:])


def _versions(base_path: str) -> dict[int, str]:
    """The versions in a folder; of 007 and 7, one."""
    names = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(base_path))
    numbers = ((version_number(name), os.path.join(base_path, name)) for name in names)
    return {number: path for number, path in numbers if number is not None}


def _files(path: str) -> _Files:
    """The files of a version."""
    found = []
    with contextlib.suppress(tf.errors.OpError):  # a folder may not be read, which is said when it is loaded
        for folder, name in files_of(path):
            with contextlib.suppress(tf.errors.OpError):  # removed since
                stat = tf.io.gfile.stat(os.path.join(folder, name))
                found.append((folder, name, stat.length, stat.mtime_nsec))
    return sorted(found)


def _extra(files: _Files) -> _Files:
    """Those that say how to serve a version; it can be loaded without them."""
    return [file for file in files if os.path.basename(file[0].rstrip("/")) == EXTRA]
