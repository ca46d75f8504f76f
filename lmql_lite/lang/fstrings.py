"""Where an f-string ends. Since Python 3.12 the code in its braces may hold the very quotes that surround it."""

from __future__ import annotations

import re
import sys

NESTED = sys.version_info >= (3, 12)

DEEPEST = 20

OPENING = re.compile(r"(?i:(br|rb|fr|rf|[rbuf]|))(\"\"\"|'''|\"|')")

PLAIN_REST = {
    '"': re.compile(r'[^"\\\r\n]*(?:\\(?:\r\n|.)[^"\\\r\n]*)*"', re.DOTALL),
    "'": re.compile(r"[^'\\\r\n]*(?:\\(?:\r\n|.)[^'\\\r\n]*)*'", re.DOTALL),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""', re.DOTALL),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''", re.DOTALL),
}


def string_end(text: str, opening: re.Match[str]) -> int | None:
    """Place after the closing quote of the string literal that begins with this match of OPENING."""
    prefix, quote = opening.groups()
    if NESTED and "f" in prefix.lower():
        return _fstring_end(text, opening.end(), quote, 0)
    rest = PLAIN_REST[quote].match(text, opening.end())
    return rest.end() if rest else None


def _fstring_end(text: str, position: int, quote: str, depth: int) -> int | None:
    at: int | None = position
    while at is not None and at < len(text) and depth < DEEPEST:
        if text.startswith(quote, at):
            return at + len(quote)
        character = text[at]
        if text.startswith("\\N{", at):
            at = text.find("}", at) + 1 or None
        elif character == "\\" and text[at + 1 : at + 2] not in ("{", "}"):
            at += 3 if text.startswith("\r\n", at + 1) else 2
        elif text.startswith("{{", at):
            at += 2
        elif character == "{":
            at = _field_end(text, at + 1, quote, depth)
        elif character in "\r\n" and len(quote) == 1:
            return None
        else:
            at += 1
    return None


def _field_end(text: str, position: int, quote: str, depth: int) -> int | None:
    """Place after the brace that closes the code, or the format behind it, at `position`."""
    brackets = 0
    at: int | None = position
    while at is not None and at < len(text):
        character = text[at]
        if opening := OPENING.match(text, at):
            if "f" in opening[1].lower():
                at = _fstring_end(text, opening.end(), opening[2], depth + 1)
            else:
                at = string_end(text, opening)
            continue
        if character == "}" and brackets == 0:
            return at + 1
        if character == ":" and brackets == 0:
            return _format_end(text, at + 1, quote, depth)
        if character == "#":
            at = text.find("\n", at) + 1 or None
            continue
        brackets += (character in "([{") - (character in ")]}")
        if brackets < 0:
            return None
        at += 1
    return None


def _format_end(text: str, position: int, quote: str, depth: int) -> int | None:
    at: int | None = position
    while at is not None and at < len(text) and depth < DEEPEST:
        if text[at] == "}":
            return at + 1
        if text[at] == "{":
            at = _field_end(text, at + 1, quote, depth + 1)
        elif text.startswith(quote, at):
            return None
        else:
            at += 1
    return None
