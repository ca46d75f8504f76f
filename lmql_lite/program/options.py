"""The options of a `distribution`, or of a scoring: what a user may give, as texts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from enum import Enum
from typing import Any

from lmql_lite.errors import InputError


def texts_of(options: Any) -> tuple[str, ...]:
    """The options as texts, in their order: numbers and dates as `str` spells them, an enum's member as its value.

    Raises InputError where there are none, where one is empty, no text or there twice, and where they have no order.
    """
    if isinstance(options, str | bytes) or not isinstance(options, Iterable):
        raise InputError(f"the options are a list of texts; this is {_shown(options)}", hint='write ["yes", "no"]')
    if isinstance(options, set | frozenset):
        raise InputError("a set of options has no order that stays", hint="write a list, or sorted(...)")
    texts: dict[str, None] = {}
    for number, option in enumerate(options, start=1):
        text = _text(option, number)
        if text in texts:
            raise InputError(
                f"the option {_shown(text)} is there twice", hint="options share one probability: each stands once"
            )
        texts[text] = None
    if not texts:
        raise InputError("there are no options", hint="a choice needs one at least")
    return tuple(texts)


def _text(option: Any, number: int) -> str:
    if isinstance(option, Enum):
        option = option.value
    if not isinstance(option, str | int | float | date):
        raise InputError(f"option {number} is no text: {_shown(option)}", hint="write it as a text, such as str(x)")
    text = str(option)
    if not text:
        raise InputError(f"option {number} is empty", hint="every option has a character at least")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"option {number} has a character that no text can have: {_shown(text)}") from None
    return text


def _shown(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}..."
