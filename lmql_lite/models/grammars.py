r"""Server grammars in GBNF, which llama.cpp, xgrammar (vLLM, SGLang) and llguidance read alike.

Constructs that these parsers read differently are avoided. Characters are written as they are. A character that may
have a meaning gets a backslash if every parser accepts that, else a position in which it means nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from lmql_lite.constraints.language import Edges, Language
from lmql_lite.constraints.pattern import SURROGATES, Ranges

MAX_DEPTH = 8
"""Maximum nesting of groups; anything deeper becomes a rule of its own."""
IN_STRINGS = frozenset('"\\')
IN_CLASSES = frozenset("[\\]")
"""Characters that need a backslash in strings and in classes."""
NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_NUMBERS = re.compile(r"(\\x[0-9A-F]{2})([0-9A-Fa-f]+)")


def gbnf(language: Language) -> str:
    """Grammar of a language. Raises ValueError for an empty language."""
    if language.is_empty:
        raise ValueError("no text is in this language, so there is nothing to ask a server for")
    return _Grammar(language).text()


class _Grammar:
    """Writer of a grammar: one rule for each rule of the language that several others lead to.

    All other rules are written in line. Single characters in sequence become a string; a fork of such sequences
    becomes a group.
    """

    def __init__(self, language: Language) -> None:
        self._accepts = [rule.accepts for rule in language.rules]
        self._again: list[Ranges] = []
        """Characters by which each rule leads to itself."""
        self._ways: list[dict[int, Ranges]] = []
        for number, rule in enumerate(language.rules):
            ways = _by_target(rule.edges)
            self._again.append(ways.pop(number, ()))
            self._ways.append(ways)
        self._led_to = Counter(after for ways in self._ways for after in ways)
        self._names = {0: "root"}
        self._waiting = [0]

    def text(self) -> str:
        lines = []
        for number in self._waiting:  # writing a rule appends the rules that it names
            options = self._options(number, 0)
            if self._again[number]:
                row = [*self._begun(number), *self._forked(number, options)]
            else:
                row = [_either_of([*options, ['""']] if self._accepts[number] else options)]
            lines.append(f"{self._names[number]} ::= {' '.join(row)}\n")
        # after a number, characters that could be part of it are escaped too: xgrammar reads as many as it finds
        return _NUMBERS.sub(_in_numbers, "".join(lines))

    def _begun(self, number: int) -> list[str]:
        return [_characters(self._again[number]) + "*"] if self._again[number] else []

    def _forked(self, number: int, options: list[list[str]]) -> list[str]:
        """Options that may follow; more than one row becomes a group."""
        optional = "?" * self._accepts[number]
        match options:
            case []:
                return []
            case [[only]]:
                return [only + optional]
            case [row] if not optional:
                return row
        return [f"({_either_of(options)}){optional}"]

    def _options(self, number: int, depth: int) -> list[list[str]]:
        return [self._row(ranges, after, depth) for after, ranges in self._ways[number].items()]

    def _row(self, ranges: Ranges, after: int, depth: int) -> list[str]:
        """A character and everything after it, up to a named rule."""
        row = [_characters(ranges)]
        while self._ways[after] or self._again[after]:
            ways = self._ways[after]
            in_line = len(ways) == 1 and not self._accepts[after]
            short = in_line or not ways or (depth < MAX_DEPTH and all(map(_is_single, ways.values())))
            if not short or not after or self._led_to[after] > 1:
                return [*row, self._name(after)]
            row += self._begun(after)
            if not in_line:
                return row + self._forked(after, self._options(after, depth + 1))
            [(after, ranges)] = ways.items()
            written = _characters(ranges)
            if written[0] == row[-1][0] == row[-1][-1] == '"':  # extend the string
                row[-1] = row[-1][:-1] + written[1:]
            else:
                row.append(written)
        return row

    def _name(self, number: int) -> str:
        if number not in self._names:
            self._names[number] = f"then-{len(self._waiting)}"
            self._waiting.append(number)
        return self._names[number]


def _either_of(rows: list[list[str]]) -> str:
    return " | ".join(map(" ".join, rows))


def _in_numbers(found: re.Match[str]) -> str:
    return found[1] + "".join(f"\\x{ord(digit):02X}" for digit in found[2])


def _by_target(edges: Edges) -> dict[int, Ranges]:
    """Characters by which a rule leads to each other rule."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for low, high, after in edges:
        found[after].append((low, high))
    return {after: united(ranges) for after, ranges in found.items()}


def united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, with neighbours merged. Surrogates never occur, so ranges on both sides of them merge too."""
    united: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if united and (united[-1][1] + 1 >= low or (united[-1][1] + 1, low - 1) == SURROGATES):
            united[-1] = (united[-1][0], max(united[-1][1], high))
        else:
            united.append((low, high))
    return tuple(united)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _characters(ranges: Ranges) -> str:
    return f'"{_character(ranges[0][0], IN_STRINGS)}"' if _is_single(ranges) else _class(ranges)


def _character(code: int, special: frozenset[str]) -> str:
    character = chr(code)
    if character in special:
        return f"\\{character}"
    if code >= 0x80 or character.isprintable():
        return character
    return NAMED.get(character, f"\\x{code:02X}")


def _class(ranges: Ranges) -> str:
    """Class of characters: those in the ranges.

    None is ever excluded by name. Else llama.cpp takes bytes that are not a character, such as F5 91 8A 91, and refuses
    every token that ends inside an excluded character. `^` and `-` are placed where they mean nothing else and need no
    backslash, which some parsers refuse there. No digit follows a number, because xgrammar reads as many digits as it
    finds.
    """
    marks = ""
    for mark in "^-":
        if any(ord(mark) in ends for ends in ranges):
            marks += mark
            ranges = _without(ranges, ord(mark))
    ends = [(_character(low, IN_CLASSES), _character(high, IN_CLASSES)) for low, high in ranges]
    ends.sort(key=lambda each: (each[1].startswith(r"\x"), each[0].startswith("\\")))
    inside = "".join(low if low == high else f"{low}-{high}" for low, high in ends)
    return f"[{inside}{marks}]" if inside else "[-^]"


def _without(ranges: Ranges, code: int) -> Ranges:
    halves = [half for low, high in ranges for half in ((low, min(high, code - 1)), (max(low, code + 1), high))]
    return tuple((low, high) for low, high in halves if low <= high)
