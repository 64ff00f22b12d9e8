"""The special tokens around texts: templates, and the post_processors of tokenizer.json."""

from typing import Any

from bert_tf.text.base import Specials
from bert_tf.types import Json

_Template = tuple[list[tuple[str, int]], list[tuple[str, int]]]


def template(names: Specials) -> _Template:
    """Special tokens around a text, $A, and around a pair of $A and $B, each with its type."""
    cls, sep = names.cls, names.sep
    first = [(cls, 0), ("$A", 0), (sep, 0)]
    return first, [*first, *([("$B", 1), (sep, 1)] if names.separators == 1 else [(sep, 0), ("$B", 0), (sep, 0)])]


def _templates(processor: Json) -> object:
    """What a post_processor of tokenizer.json puts around a text and a pair; None if that is not known."""
    try:
        if processor["type"] in ("BertProcessing", "RobertaProcessing"):
            return processor["type"], processor["cls"][0], processor["sep"][0]
        return tuple([_token(part) for part in processor.get(which) or []] for which in ("single", "pair"))
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def _token(part: Json) -> tuple[str, int]:
    """A part of a template: the token, or $A or $B, and its type."""
    [(kind, value)] = part.items()
    return f"${value['id']}" if kind == "Sequence" else str(value["id"]), value["type_id"]


def accepts(processors: list[Json], names: Specials, typed: bool) -> bool:
    """Whether the post_processors of tokenizer.json do what `BaseTokenizer.pack` does.

    Args:
        processors: all of them.
        names: of the special tokens.
        typed: whether the model has token types; without these, a processor may give any.
    """
    kind = "BertProcessing" if names.separators == 1 else "RobertaProcessing"
    accepted: list[object] = [template(names), (template(names)[0], []), (kind, names.cls, names.sep)]
    found = [_templates(one) for one in processors if one.get("type") != "ByteLevel"]  # which moves offsets only
    if not typed:
        accepted, found = [*map(_untyped, accepted)], [*map(_untyped, found)]
    return len(found) == 1 and found[0] in accepted


def _untyped(templates: Any) -> object:
    """Templates without the types; what is no template stays."""
    lists = isinstance(templates, tuple) and all(isinstance(one, list) for one in templates)
    return [[name for name, _ in one] for one in templates] if lists else templates
