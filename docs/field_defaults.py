"""Griffe extension of the API reference: a config field shows its default, not the call that also sets its limits."""

from typing import Any

import griffe


class FieldDefaults(griffe.Extension):
    """Replaces `setting(default, ...)` by the default."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Called for each attribute before signatures are made of them."""
        if isinstance(attr.value, griffe.ExprCall) and attr.value.canonical_path.endswith(".setting"):
            attr.value = attr.value.arguments[0]
