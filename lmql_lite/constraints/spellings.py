"""Texts that `lower()` and `strip()` make equal to given ones. Exact, in both directions."""

from __future__ import annotations

from functools import cache

from lmql_lite.constraints.charset import accepted, class_text, every_character
from lmql_lite.constraints.shapes import literally
from lmql_lite.constraints.terms import Choice, Constant, Matches, Term
from lmql_lite.errors import Span

SIGMAS = frozenset("σς")
"""What a large sigma becomes depends on the letters around it."""
DOTTED = "İ"
"""The only letter that becomes two."""
BLOCK = 256


def spellings(options: tuple[str, ...], span: Span, *, lowered: bool, left: bool, right: bool) -> Term:
    """The texts that are one of the options once white space is stripped on the given sides, and case is lowered.

    With `lowered` no option has one of SIGMAS in it.
    """
    if not (lowered or left or right):
        return Choice(tuple(option.encode() for option in options), span)
    possible = [option for option in options if _is_result(option, lowered, left, right)]
    if not possible:
        return Constant(False, span)
    either = "|".join(map(_any_case if lowered else literally, possible))
    space = f"{class_text(accepted(str.isspace))}*"
    return Matches(f"{space if left else ''}(?:{either}){space if right else ''}", span=span)


def _is_result(option: str, lowered: bool, left: bool, right: bool) -> bool:
    return (
        (not lowered or option == option.lower())
        and (not left or option == option.lstrip())
        and (not right or option == option.rstrip())
    )


def _any_case(option: str) -> str:
    two = DOTTED.lower()
    return f"(?:{_letters(two)}|{literally(DOTTED)})".join(map(_letters, option.split(two)))


def _letters(text: str) -> str:
    return "".join(f"[{literally(character + _large().get(character, ''))}]" for character in text)


@cache
def _large() -> dict[str, str]:
    """For each small letter those that become it."""
    text = every_character().replace(DOTTED, "").replace("Σ", "")
    found: dict[str, str] = {}
    for block in (text[start : start + BLOCK] for start in range(0, len(text), BLOCK)):
        if block != block.lower():  # most have no case at all
            for character, small in zip(block, block.lower(), strict=True):
                if character != small:
                    found[small] = found.get(small, "") + character
    return found
