"""TF Serving's REST API: values in JSON, and a client.

Imports only Python's own modules, because `inference/ask.py` loads it by its path where the package is not installed.
"""

from __future__ import annotations

import abc
import base64
import ctypes
import http.client
import json
import math
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping
from typing import Any

DEFAULT, WORDS = "serving_default", "words"
TOKEN = "BERT_TF_TOKEN"
_URL = re.compile(
    r"(?P<server>https?://[^/?#]+(?:/[^/?#:]+)*)(?P<model>/v1/models/[^/?#:]+)(/versions/\d+|/labels/[^/?#:]+)?"
)
# Seconds without a byte. Servers give up on a request after 30 unless told otherwise.
_PATIENCE = 120
# HTTP statuses about the server rather than about a request.
_REFUSALS = (401, 403, 404, 502, 503)
_TEMPORARY = (404, 502, 503)  # a server that starts does not know its models yet
# The types that JSON has for a kind of NumPy's.
_JSON_TYPES: dict[str, Any] = {"O": (str, bytes), "i": int, "u": int, "b": bool, "f": (int, float)}
# The types of outputs that REST can send, and the kind of each.
_OUTPUTS = {
    "DT_STRING": "O",
    "DT_BOOL": "b",
    **dict.fromkeys(("DT_HALF", "DT_BFLOAT16", "DT_FLOAT", "DT_DOUBLE"), "f"),
    **{f"DT_{sign}INT{bits}": "i" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}


class ServerError(OSError):
    """The server cannot be reached, or serves no such model.

    Attributes:
        is_temporary: whether the same request may succeed a little later.
    """

    def __init__(self, message: str, is_temporary: bool = False) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary


class Answerer(abc.ABC):
    """A model that answers questions.

    Args:
        signatures: name -> input -> how deep its lists are nested, the batch included: 1 for one text per example.

    Raises:
        KeyError: there is no `serving_default`.

    Attributes:
        signatures: as given, the inputs sorted.
        ranks: the inputs of `serving_default` likewise.
        optional: names of the inputs that may be left out.
        variant: which of its variants a version computes here, for people; "" if it has only one, or on a server.
    """

    variant = ""

    def __init__(self, signatures: Mapping[str, Mapping[str, int]]) -> None:
        self.signatures = {name: dict(sorted(inputs.items())) for name, inputs in signatures.items()}
        ranks = self.signatures[DEFAULT]
        self.optional = {"question"} & ranks.keys() if "choices" in ranks else set()
        self.ranks = ranks

    def form(self, names: Collection[str]) -> tuple[str, dict[str, int]]:
        """The signature for a question with these names, and the ranks of its inputs."""
        given = WORDS if WORDS in self.signatures and WORDS in names else DEFAULT
        return given, self.ranks if given == DEFAULT else self.signatures[given]

    def run(self, inputs: dict[str, Any], signature_name: Any = DEFAULT) -> dict[str, Any]:
        """What a signature returns.

        Args:
            inputs: by name, arrays or nested lists of all rows.
            signature_name: of the signature.

        Returns:
            Arrays by name, from a server nested lists; strings are bytes.

        Raises:
            ValueError: the signature or an input is unknown or missing, a value has another type or rank, or the model
                failed.
            ServerError: there is no answer.
        """
        if not isinstance(signature_name, str) or signature_name not in self.signatures:
            raise ValueError(f"no signature {signature_name!r}; the model has {', '.join(sorted(self.signatures))}")
        names = self.signatures[signature_name].keys()
        if inputs.keys() != names:
            raise ValueError(
                f"inputs named {', '.join(sorted(map(repr, inputs))) or 'nothing'}; the signature {signature_name!r} "
                f"takes {', '.join(sorted(map(repr, names)))}"
            )
        return self._run(inputs, signature_name)

    @abc.abstractmethod
    def _run(self, inputs: dict[str, Any], signature_name: str) -> dict[str, Any]:
        """`run` with the inputs of the signature."""

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question, JSON-ready.

        Args:
            question: by input, a str, or lists of them as deep as its rank says; other keys are not used.

        Raises:
            ValueError: a name is missing, a value is something else, the model failed, or it answers NaN or
                infinity.
            ServerError: there is no answer.
        """
        signature, ranks = self.form(question)
        question = dict.fromkeys(self.optional, "") | question
        missing = [name for name in ranks if name not in question]
        if missing and {"instances", "examples"} & question.keys():
            raise ValueError("a body in row format; expected column format: {'inputs': {NAME: [...], ...}}")
        if missing:
            raise ValueError(f"no {missing[0]!r} in {shown(question)}; the model takes {', '.join(ranks)}")
        if "signature_name" in question and "signature_name" not in self.ranks:
            raise ValueError("'signature_name' is for bodies with 'inputs'; this question has none")
        for name, rank in ranks.items():
            if not _is_text(question[name], rank):
                found = f"{name!r} is {shown(question[name])}"
                raise ValueError(f"{found}; expected {'a list of texts' if rank > 1 else 'one text'} in UTF-8")
        answer = self.run({name: [question[name]] for name in ranks}, signature)
        try:
            row = {name: value[0] for name, value in answer.items()}
        except (IndexError, TypeError):
            raise ValueError("the model answers without a row for the question; expected one") from None
        return {name: plain(name, value) for name, value in row.items()}

    def predict(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to the body of a REST request: {"outputs": ...} or {"error": ...}."""
        try:
            answer = self.run(body["inputs"], body.get("signature_name", DEFAULT))
            outputs = {name: plain(name, value, exact=True) for name, value in answer.items()}
        except ValueError as error:
            return {"error": reason(error)}
        return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}


class RemoteModel(Answerer):
    """A model in a server that speaks TF Serving's REST API.

    Args:
        url: http://HOST:PORT/v1/models/NAME, also with /versions/N or /labels/LABEL.

    Raises:
        ValueError: the URL or the token is wrong, or the model takes no text.
        ServerError: the server cannot be reached, or does not serve the model.

    Attributes:
        version: the number of the version that the server runs.
        dtypes: name of a signature -> output -> "DT_FLOAT" and so on.
    """

    def __init__(self, url: str) -> None:
        self._url = urllib.parse.quote(url.rstrip("/"), safe="/:%@[]?#")
        if (shown := without_password(url)) != url:
            raise ValueError(
                f"{shown}: a URL with a user or password; expected http://HOST:PORT/v1/models/NAME, with a token in "
                f"{TOKEN}"
            )
        if not _URL.fullmatch(self._url):
            raise ValueError(
                f"{url}: not the URL of a model; expected http://HOST:PORT/v1/models/NAME, perhaps with /versions/N or "
                "/labels/LABEL"
            )
        self._headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN, "").strip():
            if not (token.isascii() and token.isprintable()):
                raise ValueError(f"the token in {TOKEN} has a character that none can have")
            self._headers["Authorization"] = f"Bearer {token}"
        try:
            metadata = self._answer("/metadata")
            version = str(metadata["model_spec"]["version"])
            if not version.isdecimal():
                raise TypeError
            self.version = int(version)
            found = metadata["metadata"]["signature_def"]["signature_def"].items()
            definitions = {name: value for name, value in found if name[:2] != "__"}
            self.dtypes = {
                name: {key: info["dtype"] for key, info in value["outputs"].items()}
                for name, value in definitions.items()
            }
            if not {one for outputs in self.dtypes.values() for one in outputs.values()} <= _OUTPUTS.keys():
                raise TypeError
            self._shapes = {name: _ranks(value["outputs"]) for name, value in definitions.items()}
            ranks = {
                name: {key: rank or 0 for key, rank in _ranks(value["inputs"]).items()}
                for name, value in definitions.items()
            }
        except (KeyError, TypeError, AttributeError):
            raise ServerError(f"{url}: no signatures as from TF Serving") from None
        except ValueError as error:
            raise ServerError(f"{url}: {reason(error)}") from None
        try:
            super().__init__(ranks)
        except KeyError:
            raise ValueError(f"{url}: not a model that takes text; it has {', '.join(sorted(definitions))}") from None

    def pin(self) -> None:
        """Sends all further requests to the present version."""
        found = _URL.fullmatch(self._url)
        assert found
        self._url = f"{found['server']}{found['model']}/versions/{self.version}"

    def _run(self, inputs: dict[str, Any], signature_name: str) -> dict[str, Any]:
        body = {
            "signature_name": signature_name,
            "inputs": {name: plain(name, inputs[name], exact=True) for name in inputs},
        }
        answer, dtypes = self._answer(":predict", json.dumps(body).encode()), self.dtypes[signature_name]
        try:
            # The only output of a signature is not named.
            outputs = answer["outputs"] if len(dtypes) > 1 else dict.fromkeys(dtypes, answer["outputs"])
            for name, rank in self._shapes[signature_name].items():
                if rank not in (None, len(_shape(outputs[name]))) and outputs[name] != []:  # JSON's [] has no rank
                    raise ValueError
            return {name: _received(outputs[name], dtype) for name, dtype in sorted(dtypes.items())}
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise ServerError(f"{self._url}: no answer as from TF Serving: {shown(answer)}") from None

    def _answer(self, path: str, body: bytes | None = None) -> Any:
        """The JSON that the server sends; ValueError for what it says against the request."""
        status, content = self._response(self._url + path, body)
        try:
            # TF Serving sends bytes that are not UTF-8 as they are.
            answer = json.loads(content.decode("utf-8", "surrogateescape"))
            error = "" if status == 200 else " ".join(answer["error"].split())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            shown = " ".join(content.decode("utf-8", "replace").split())[:100]
            message = f"{self._url}: HTTP {status}, {shown!r}; expected an answer as from TF Serving's REST API"
            raise ServerError(message, status in _TEMPORARY) from None
        if status in _REFUSALS:
            hint = self._existing() if status == 404 else f"; set {TOKEN} to the token" if status in (401, 403) else ""
            raise ServerError(f"{self._url}: {error or f'HTTP {status}'}{hint}", status in _TEMPORARY)
        if error:
            raise ValueError(error[:500])
        return answer

    def _existing(self) -> str:
        """What the server has instead, if it says so."""
        found = _URL.fullmatch(self._url)
        assert found
        try:
            status, content = self._response(f"{found['server']}{found['model']}")
            if status == 200:
                versions = json.loads(content)["model_version_status"]
                names = [f"version {one['version']} ({one['state']})" for one in versions]
            else:
                _, content = self._response(f"{found['server']}/page/models.json")  # not in TF Serving
                names = sorted(one["name"] for one in json.loads(content)["models"])
        except (ServerError, ValueError, TypeError, KeyError, RecursionError):
            names = []
        return f"; the server has {', '.join(map(str, names))}" if names else ""

    def _response(self, url: str, body: bytes | None = None) -> tuple[int, bytes]:
        """HTTP status and content."""
        try:
            request = urllib.request.Request(url, body, self._headers)
            with urllib.request.build_opener(_AsItIs).open(request, timeout=_PATIENCE) as response:
                return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(cause, TimeoutError):
                raise ServerError(f"{self._url}: no answer in {_PATIENCE} s") from None
            message = getattr(cause, "strerror", None) or str(cause)
            if isinstance(cause, http.client.HTTPException):  # whose message may be what a gRPC server sends
                message = f"no answer in HTTP ({type(cause).__name__}); REST usually has port 8501, gRPC 8500"
            raise ServerError(f"{self._url}: {message}", is_temporary=True) from None


class _AsItIs(urllib.request.HTTPErrorProcessor):
    """Makes no exceptions of HTTP statuses, and follows no redirection, which would take the token with it."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def without_password(url: str) -> str:
    """A URL as errors show it."""
    address, *model = url.partition("/v1/models/")  # whose name may have an @
    return re.sub(r"^(\w+://)?.*@", r"\1***@", address) + "".join(model)


def _ranks(infos: Mapping[str, Any]) -> dict[str, int | None]:
    """The ranks of tensors in the metadata of a server, by name; None if they are not known."""
    shapes = {name: info["tensor_shape"] for name, info in infos.items()}
    return {name: None if shape.get("unknown_rank") else len(shape.get("dim", ())) for name, shape in shapes.items()}


def _shape(value: Any) -> list[int]:
    """The shape of nested lists; ValueError if they have none."""
    if not isinstance(value, list):
        return []
    shapes = [_shape(item) for item in value]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError
    return [len(value), *(shapes[0] if shapes else [])]


def _received(value: Any, dtype: str) -> Any:
    """Nested lists of an answer with bytes for strings, and with the float32 numbers that the digits stand for.

    Raises KeyError, OverflowError, TypeError or ValueError for another type than the metadata says.
    """
    if isinstance(value, list):
        return [_received(item, dtype) for item in value]
    if dtype == "DT_STRING" and isinstance(value, dict):
        return base64.b64decode(value["b64"], validate=True)
    kind = _OUTPUTS[dtype]
    if not isinstance(value, _JSON_TYPES[kind]) or isinstance(value, bool) is not (kind == "b"):
        raise TypeError
    if dtype == "DT_STRING":
        return value.encode("utf-8", "surrogateescape")
    return ctypes.c_float(value).value if dtype == "DT_FLOAT" else value


def decoded(value: Any, kind: str) -> Any:
    """Nested lists from JSON, of bytes or numbers; ValueError or TypeError for another type than NumPy's `kind`."""
    if isinstance(value, list):
        return [decoded(item, kind) for item in value]
    if isinstance(value, dict) and value.keys() == {"b64"}:
        value = base64.b64decode(value["b64"], validate=True)
    if not isinstance(value, _JSON_TYPES[kind]) or isinstance(value, bool) is not (kind == "b"):
        raise TypeError
    return value.encode() if isinstance(value, str) else value


def _is_text(value: Any, rank: int) -> bool:
    if rank > 1:
        return isinstance(value, list) and value != [] and all(_is_text(item, rank - 1) for item in value)
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:  # an argument that is not UTF-8
        return False


def shown(value: Any) -> str:
    """A value in JSON, as errors show it."""
    return json.dumps(value, default=repr)[:200]


def reason(error: Exception) -> str:
    """The message of an error in one line; TensorFlow's without the names of the nodes that it passed."""
    message = getattr(error, "message", str(error)).split("[[{{")[0]
    return " ".join(message.replace("Graph execution error:", "").split())[:500]


def plain(name: str, value: Any, exact: bool = False) -> Any:
    """Arrays or nested lists as JSON for people, or `exact` as TF Serving has it: {"b64": "..."} if not UTF-8."""
    if isinstance(value, list) or getattr(value, "ndim", 0) > 0:
        return [plain(name, item, exact) for item in value]
    if not isinstance(value, bytes):
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"the model answers {value} in {name!r}; its weights are damaged, export others")
        return value
    try:
        if not name.endswith("_bytes"):
            return value.decode("utf-8", "strict" if exact else "replace")
    except UnicodeDecodeError:
        pass
    return {"b64": base64.b64encode(value).decode()}
