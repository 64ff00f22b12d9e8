"""Bodies of REST requests as Python values, read as TF Serving's parser does.

The words of the errors are RapidJSON's.
"""

import gc
import json
import re
from typing import Any

from bert_tf.server.status import invalid
from bert_tf.types import Json

_LONGEST_SHOWN = 200  # characters of a value in an error
_PARSE_ERRORS = {  # what Python's parser says, and RapidJSON
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting ',' delimiter": "Missing a comma or a closing bracket.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid \\escape: ": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Invalid control character at": "Invalid encoding in string.",
}
# Since Python 3.13 these errors are at the comma; before, they were what follows here, at the bracket.
_TRAILING_COMMAS = {
    "Illegal trailing comma before end of array": "Expecting value",
    "Illegal trailing comma before end of object": "Expecting property name enclosed in double quotes",
}
TOO_BIG = "JSON Parse error: Number too big to be stored in double."
_SPACE = re.compile(r"[ \t\n\r]*")
# RapidJSON's short form of Infinity; strings are matched first, to be left alone.
_INF = re.compile(r'"(?:[^"\\]|\\.)*+"?|Inf(?!inity)', re.DOTALL)


class Infinity(float):
    """The value of the words Infinity and NaN; a float that is infinite was a number with too many digits."""


def parse(body: bytes | bytearray) -> Json:
    """Parses a request.

    Args:
        body: UTF-8. What follows the first JSON value is ignored. Of members with the same name the first one counts.

    Raises:
        ServingError: INVALID_ARGUMENT, not a JSON object.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(f"JSON Parse error: Invalid encoding in string. at offset: {error.start}") from None
    start = _end(_SPACE.match(text))
    if start == len(text):
        raise invalid(f"JSON Parse error: The document is empty. at offset: {start}")
    try:
        try:
            document = _parsed(text, start)
        except json.JSONDecodeError as error:
            if not text.startswith("Inf", error.pos) and not text.startswith("-Inf", error.pos):
                raise
            text = _INF.sub(lambda match: "Infinity" if match[0] == "Inf" else match[0], text)
            document = _parsed(text, start)
    except json.JSONDecodeError as error:
        found, position = error.msg, error.pos
        if found in _TRAILING_COMMAS:
            found, position = _TRAILING_COMMAS[found], _end(_SPACE.match(text, position + 1))
        words = _PARSE_ERRORS.get(found, f"{found}.")
        offset = len(text[:position].encode("utf-8", "replace"))
        raise invalid(f"JSON Parse error: {words} at offset: {offset}") from None
    except ValueError:  # an integer of more than 4300 digits
        raise invalid(TOO_BIG) from None
    except RecursionError:
        raise invalid("JSON Parse error: Lists and objects are nested too deeply.") from None
    if type(document) is not dict:
        raise invalid(f"JSON Value: {shown(document)} Is not object")
    return document


def _end(match: re.Match[str] | None) -> int:
    return match.end() if match else 0


def _first_wins(pairs: list[tuple[str, Any]]) -> Json:
    members = dict(pairs)
    return members if len(members) == len(pairs) else dict(reversed(pairs))


_DECODER = json.JSONDecoder(object_pairs_hook=_first_wins, parse_constant=Infinity)


def _parsed(text: str, start: int) -> Any:
    # Millions of lists would make Python look for garbage among them, again and again, for ten seconds.
    enabled = gc.isenabled()
    gc.disable()
    try:
        return _DECODER.raw_decode(text, start)[0]
    finally:
        if enabled:
            gc.enable()


def shown(value: Any) -> str:
    """A value in an error, shortened."""
    text = ""
    try:
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            text += part[: _LONGEST_SHOWN + 1]
            if len(text) > _LONGEST_SHOWN:
                break
    except RecursionError:
        return "..."
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
