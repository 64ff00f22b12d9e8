"""Values checked against type annotations: settings, and what JSON files contain. Settings from and to dicts."""

import dataclasses
import functools
import inspect
import json
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack

import numpy as np

from bert_tf.config.paths import path_of, unknown_field
from bert_tf.errors import ConfigError
from bert_tf.types import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Config = TypeVar("_Config", bound="DataclassInstance")

_NOUNS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    bytes: "bytes",
    os.PathLike: "a pathlib.Path",
    Collection: "a list",
    Iterable: "a list",
    types.NoneType: "None",
}
_JSON_NOUNS: dict[Any, str] = {bool: "true or false", types.NoneType: "null"}
_WHOLE = "the content"  # stands for the path of a whole file
_WRAPPERS = (typing.Annotated, typing.Required, typing.NotRequired)
_LISTS = (tuple, list, Sequence)
_OBJECTS = (dict, Mapping)
_HALF_OF_A_PAIR = re.compile("[\ud800-\udfff]")
_NO_RULE: Mapping[str, Any] = types.MappingProxyType({})
_LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "at_least": (operator.ge, "from"),
    "above": (operator.gt, "above"),
    "at_most": (operator.le, "up to"),
    "below": (operator.lt, "but below"),
}


class Rule(TypedDict, total=False):
    """Limits of a number, or the values of a text, for each element of a tuple; and the end of the error message.

    `sparse` leaves a field out of files while it has its default: they stay as they were before there was such a field.
    """

    at_least: float
    above: float
    at_most: float
    below: float
    choices: tuple[str, ...]
    hint: str
    sparse: bool


def setting(default: Any, **rule: Unpack[Rule]) -> Any:
    """A field of a dataclass of settings, whose values `check_fields` restricts by `rule`."""
    return dataclasses.field(default=default, metadata=rule)


def check_fields(config: "DataclassInstance", where: str = "") -> None:
    """Raises ConfigError for the first field whose value does not have its type, or is outside its limits.

    Numbers must be finite. Those of NumPy, and its arrays, become plain ones, as settings are written to files. Nested
    dataclasses are checked by their own `check`.

    Args:
        config: the settings.
        where: their path in the whole config, such as "train"; "" for the whole.
    """
    for name in vars(config).keys() - {field.name for field in dataclasses.fields(config)}:  # assigned in a config file
        raise ConfigError(unknown_field(type(config), name, where))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        fit = fitting(value, field.type, path_of(where, field.name), field.metadata)
        if fit is not value:
            setattr(config, field.name, fit)


def fitting(value: _T, kind: Any, where: str, rule: Mapping[str, Any] = _NO_RULE) -> _T:
    """Returns an argument, without NumPy, if it fits, as `misfit` describes it, else raises ConfigError."""
    plain = without_numpy(value)
    if wrong := misfit(plain, kind, where, rule):
        raise ConfigError(wrong)
    return plain


def without_numpy(value: Any) -> Any:
    """A number or array of NumPy, or a list or tuple of these, as plain Python; anything else unchanged."""
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind not in "mM":  # dates would become numbers
        return value.tolist()
    if type(value) in (list, tuple) and any(isinstance(one, np.generic | np.ndarray) for one in value):
        return type(value)(map(without_numpy, value))
    return value


def checked_arguments(api: _T) -> _T:
    """Decorator of a public function, or of a class for its constructor and public methods: checks their arguments.

    Each one must fit its annotation, as in `fitting`, or ConfigError names it. Annotations in quotes stand for what
    functions convert, such as tensors, and check themselves; the rest of a rule is theirs, too.
    """
    if not isinstance(api, type):
        return typing.cast(_T, _with_checks(typing.cast(Any, api)))
    for name, member in list(vars(api).items()):
        function = getattr(member, "__func__", member)  # of a class method
        abstract = getattr(function, "__isabstractmethod__", False)
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")) and not abstract:
            checked = _with_checks(function)
            setattr(api, name, classmethod(checked) if isinstance(member, classmethod) else checked)
    return api


def _with_checks(function: Callable[_P, _T]) -> Callable[_P, _T]:
    signature = inspect.signature(function)
    kinds = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and not isinstance(parameter.annotation, str)
        and parameter.annotation not in (parameter.empty, Any)
    }

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        bound = signature.bind(*args, **kwargs)
        for name, kind in kinds.items():
            if name in bound.arguments:
                bound.arguments[name] = fitting(bound.arguments[name], kind, name)
        return function(*bound.args, **bound.kwargs)

    # Keras looks at the parameters of constructors; and AutoGraph, to which this name is a sign, runs it as it is.
    vars(checked).update(__signature__=signature, autograph_info__=None)
    del checked.__wrapped__  # which AutoGraph would convert instead of a method, without its object
    return checked


def misfit(
    value: Any, kind: Any, where: str = "", rule: Mapping[str, Any] = _NO_RULE, *, in_json: bool = False
) -> str | None:
    """The first part of a value that does not fit a type annotation, in words; None if all of it fits.

    Args:
        value: of a setting, or from JSON.
        kind: the annotation: None, bool, int, float (finite; whole numbers, too), str, Any; a
            union; list[X], tuple[X, ...], tuple[X, Y] and Sequence[X] (lists and tuples alike); dict[str, X] and
            Mapping[str, X]; Annotated[X, rule]; a TypedDict, which may have other keys, too; a dataclass (from JSON: an
            object with some of its fields); any other class, without a look at its elements.
        where: path of the value, such as "train.phases[0]"; "" for the whole.
        rule: limits of the value or of its elements.
        in_json: whether to speak of JSON's values or of Python's.
    """
    if in_json and not rule and _fits_at_a_look(value, kind):  # for data of millions of rows
        return None
    return next(_misfits(value, kind, where, rule, in_json), None)


def _fits_at_a_look(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is a text or a usual whole number, and `kind` or one of its union allows that."""
    kinds = kind.__args__ if type(kind) is types.UnionType else (kind,)
    if type(value) is str:
        return str in kinds and not _HALF_OF_A_PAIR.search(value)
    return type(value) is int and (int in kinds or float in kinds) and abs(value) < 1 << 53


def _misfits(value: Any, kind: Any, where: str, rule: Mapping[str, Any], in_json: bool) -> Iterator[str]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    parts: Iterable[tuple[str, Any, Any, Mapping[str, Any]]] = ()  # path, value, annotation, rule
    if isinstance(kind, TypeVar):
        yield from _misfits(value, kind.__bound__ or Any, where, rule, in_json)
    elif origin in _WRAPPERS:
        yield from _misfits(value, inner[0], where, dict(*inner[1:]) or rule, in_json)
    elif origin in (types.UnionType, typing.Union):
        found = [misfit(value, one, where, rule, in_json=in_json) for one in inner]
        if all(found):
            # If the value has the outer form of one of the types, the error is inside of it.
            outer = [_message(value, one, where, rule, in_json) for one in inner]
            inside = (one for one in found if one and one not in outer)
            yield next(inside, _message(value, kind, where, rule, in_json))
    elif in_json and isinstance(value, dict) and _is_schema(kind):
        fields = annotations(kind)
        lacking = [name for name in getattr(kind, "__required_keys__", ()) if name not in value]
        yield from (f"no {name!r}" + (f" in {where}" if where else "") for name in sorted(lacking))
        if not typing.is_typeddict(kind):
            yield from (unknown_field(kind, name, where) for name in value.keys() - fields.keys())
        parts = ((path_of(where, name), one, *fields.get(name, (Any, {}))) for name, one in value.items())
    elif isinstance(value, dict) and origin in _OBJECTS:
        yield from (
            f"{where or _WHOLE} has the key {shown(name)}; expected text" for name in value if type(name) is not str
        )
        parts = ((path_of(where, name), one, inner[1], rule) for name, one in value.items())
    elif isinstance(value, list | tuple) and origin in _LISTS:
        kinds = inner if origin is tuple and inner[1:] != (...,) else inner[:1] * len(value)
        if len(kinds) != len(value):
            yield _message(value, kind, where, rule, in_json)
        parts = ((f"{where}[{number}]", *one, rule) for number, one in enumerate(zip(value, kinds, strict=False)))
    elif not _fits(value, kind, rule):
        yield _message(value, kind, where, rule, in_json)
    elif isinstance(value, str):
        yield from half_pairs(value, where)
        if "\0" in value and not in_json:  # settings are also names of files, which cannot have it
            yield f"{where or _WHOLE} is {shown(value)}; expected text without zero bytes"
    for path, part, annotation, limits in parts:
        # Most parts fit at a look: for vocabularies of 100,000 pieces.
        fits = _fits_at_a_look(part, annotation) if in_json else type(part) is annotation is not float
        if limits or not fits:
            yield from _misfits(part, annotation, path, limits, in_json)


def half_pairs(value: Any, where: str = "") -> Iterator[str]:
    """Where a value from JSON has half of a surrogate pair, in words: JSON can write one, but UTF-8 cannot."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from half_pairs(name, where)
            yield from half_pairs(one, path_of(where, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from half_pairs(one, f"{where}[{number}]")
    elif isinstance(value, str) and _HALF_OF_A_PAIR.search(value):
        yield f"{where or _WHOLE} has half of a surrogate pair, {json.dumps(value)[:80]}; remove it"


def annotations(kind: Any) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Annotation and rule of each field of a TypedDict or a dataclass."""
    if typing.is_typeddict(kind):
        return {name: (one, {}) for name, one in _hints(kind).items()}
    return {field.name: (field.type, field.metadata) for field in dataclasses.fields(kind)}


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _is_schema(kind: Any) -> bool:
    return typing.is_typeddict(kind) or dataclasses.is_dataclass(kind)


def _fits(value: Any, kind: Any, rule: Mapping[str, Any]) -> bool:
    """Whether a value that `misfit` does not look into fits."""
    if kind in (Any, object) or value is None:
        return kind in (Any, object, types.NoneType)
    # To Python, True is a whole number.
    if isinstance(value, bool) and kind in (int, float):
        return False
    origin = typing.get_origin(kind)
    classes = (int, float) if kind is float else origin or kind
    if typing.is_typeddict(kind) or not isinstance(value, classes):
        return False
    # To Python, a text is a sequence; the elements of others than lists are not looked at.
    if isinstance(value, str | bytes) and kind not in (str, bytes):
        return False
    if origin is Sequence:
        return isinstance(value, range) and typing.get_args(kind) == (int,)
    # NaN is neither below nor above; a whole number that no float reaches could not even be written.
    if kind in (int, float) and not abs(value) <= sys.float_info.max:
        return False
    inside = all(test(value, rule[name]) for name, (test, _) in _LIMITS.items() if name in rule)
    return inside and value in rule.get("choices", (value,))


def shown(value: Any) -> str:
    """The start of a value as Python writes it, for error messages."""
    try:
        return repr(value)[:80]
    except Exception:  # such as of a number with thousands of digits, or of lists nested too deeply
        return f"an object of type {type(value).__name__}"


def _message(value: Any, kind: Any, where: str, rule: Mapping[str, Any], in_json: bool) -> str:
    found = _in_json(value) if in_json else shown(value)
    hint = f"; {rule['hint']}" if "hint" in rule and not in_json else ""  # names a flag
    return f"{where or _WHOLE} is {found}; expected {_expected(kind, rule, in_json)}{hint}"


def _in_json(value: Any) -> str:
    """As `shown`, but as JSON writes a value; with its type if it has none, like many a value in memory."""
    try:
        return json.dumps(value)[:80]
    except Exception:
        return f"{type(value).__name__} {shown(value)}"


def _expected(kind: Any, rule: Mapping[str, Any], in_json: bool) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in _WRAPPERS:
        return _expected(inner[0], dict(*inner[1:]) or rule, in_json)
    if isinstance(kind, TypeVar):
        return _expected(kind.__bound__, rule, in_json)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_expected(one, rule, in_json) for one in inner)
    if origin in _LISTS:
        kinds = dict.fromkeys(_expected(one, rule, in_json) for one in inner if one is not ...)
        return f"a {'list' if in_json or origin is not tuple else 'tuple'}, each element {' or '.join(kinds)}"
    if origin in _OBJECTS or (in_json and _is_schema(kind)):
        return "an object" if in_json or origin is not Mapping else "a dict"
    if "choices" in rule and kind is str:
        return f"one of {', '.join(filter(None, rule['choices']))}"
    limits = [
        f"{words} {rule[name]:,}" for name, (_, words) in _LIMITS.items() if name in rule and kind in (int, float)
    ]
    noun = (in_json and _JSON_NOUNS.get(kind)) or _NOUNS.get(origin or kind) or f"a {kind.__name__}"
    return " ".join([noun, *limits])


def to_dict(config: "DataclassInstance") -> Json:
    """Converts a dataclass to a dict of JSON-ready values."""
    values = dataclasses.asdict(config)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            values[field.name] = to_dict(value)
        elif field.metadata.get("sparse") and value == field.default:
            del values[field.name]
    return values


def from_dict(cls: type[_Config], values: Mapping[str, Any], where: str = "") -> _Config:
    """Builds the dataclass `cls` from a dict, and nested dataclasses from nested dicts.

    Args:
        cls: the dataclass.
        values: its fields by name.
        where: path of `values` in the whole config for error messages, such as "train"; "" for the whole.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    arguments = {}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(unknown_field(cls, name, where))
        kind = fields[name].type
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
            value = from_dict(kind, value, path_of(where, name))
        elif typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
            part: Any = typing.get_args(kind)[0]
            nested = dataclasses.is_dataclass(part)
            value = tuple(
                from_dict(part, one, f"{path_of(where, name)}[{number}]") if nested and isinstance(one, dict) else one
                for number, one in enumerate(value)
            )
        arguments[name] = value
    return cls(**arguments)


def restored(cls: type[_Config], values: Json, where: str) -> _Config:
    """Builds the dataclass `cls` from a saved dict, which may lack fields.

    Args:
        cls: the dataclass.
        values: from JSON.
        where: their path in the file.

    Raises:
        ConfigError: a field is unknown, or its value invalid.
    """
    if wrong := misfit(values, cls, where, in_json=True):
        raise ConfigError(wrong)
    return from_dict(cls, values)
