"""What `{value}` in a prompt says: a text, or where the value is a list of `{"role": ..., "content": ...}`, so many
turns of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmql_lite.errors import InputError, Span
from lmql_lite.lang.keywords import ROLES
from lmql_lite.program.ops import Interpolated
from lmql_lite.tokens import Role

Turns = tuple[tuple[Role, str], ...]


def interpolated(value: Any, part: Interpolated) -> str | Turns:
    """What a value says at its place, formatted as an f-string does it. Raises InputError as `turns_of` and `sayable`
    do."""
    if not part.conversion and not part.format:
        turns = turns_of(value, part.span)
        if turns is not None:
            return turns
    match part.conversion:
        case "s":
            value = str(value)
        case "r":
            value = repr(value)
        case "a":
            value = ascii(value)
    return sayable(format(value, part.format), part.span)


def sayable(text: str, span: Span) -> str:
    """The text, if it can be sent to a model. Raises InputError for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"this value holds half of a character ({text[error.start]!r}), which no model can read",
            span=span,
            hint="read the text as UTF-8, or drop what is broken: text.encode(errors='ignore').decode()",
        ) from None
    return text


def turns_of(value: Any, span: Span) -> Turns | None:
    """The turns that the value says, each with its text; None where it is no conversation, and any other value.

    Raises InputError for a role that there is not, and for a content that is no text.
    """
    if not isinstance(value, list | tuple) or not value or not all(map(_is_message, value)):
        return None
    return tuple((_role(message, span), _text(message, span)) for message in value)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _role(message: Mapping[str, Any], span: Span) -> Role:
    role = message["role"]
    if not isinstance(role, str) or role not in ROLES:
        known = ", ".join(ROLES)
        raise InputError(f"a message has the role {role!r}, which there is not", span=span, hint=f"there are {known}")
    return ROLES[role]


def _text(message: Mapping[str, Any], span: Span) -> str:
    content = message["content"]
    if not isinstance(content, str):
        kind = type(content).__name__
        raise InputError(f"the content of a message is {kind}, not text", span=span, hint="give each one a string")
    return sayable(content, span)
