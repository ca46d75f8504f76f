"""Server grammars in each dialect: GBNF, xgrammar's EBNF, Lark, and a regular expression.

Constructs that parsers read differently are avoided. Characters are written as they are. A character that may have a
meaning gets a backslash if every dialect accepts that, else a position in which it means nothing. Counting appears in
patterns only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from lmql_lite.constraints.charset import Ranges
from lmql_lite.constraints.language import Language
from lmql_lite.models.patterns import IN_STRINGS, character_text, class_text, find_ways, is_single, pattern

DEEPEST = 8
"""Maximum nesting of groups; anything deeper becomes a rule of its own."""
_NUMBERS = re.compile(r"(\\x[0-9A-F]{2})([0-9A-Fa-f]+)")


def gbnf(language: Language) -> str:
    """Grammar for llama.cpp. Raises ValueError for an empty language, as all functions here do."""
    return _Grammar(_some(language), _BNF).text()


def ebnf(language: Language) -> str:
    """Grammar for xgrammar: `structured_outputs.grammar` of vLLM, `ebnf` of SGLang. Same text as for llama.cpp."""
    return gbnf(language)


def regex(language: Language) -> str | None:
    """Regular expression for all engines, matching the whole text: classes, groups, `|`, `*`, `+`, `?` and `{m,n}`.

    None if it would be too long.
    """
    return pattern(_some(language))


def lark(language: Language) -> str:
    """Grammar for llguidance, and for the tools of OpenAI.

    One terminal wherever possible: llguidance reads rules character by character, a hundred times as slowly. It may
    refuse a language with cycles that is too large for a pattern.
    """
    written = regex(language)
    if written:
        return f"start: TEXT\nTEXT: {_slashed(written)}\n"
    if _has_circles(language):
        return _Grammar(language, _LARK).text()
    return f"start: TEXT\n{_Grammar(language, _TERMINALS).text()}"


def _some(language: Language) -> Language:
    if language.is_empty:
        raise ValueError("no text is in this language, so there is nothing to ask a server for")
    return language


@dataclass(frozen=True, slots=True)
class _Words:
    """Syntax of a dialect: name of the first rule, names of the others, definition sign, character classes."""

    start: str
    name: str
    defines: str
    characters: Callable[[str], str]


def _slashed(pattern: str) -> str:
    """Pattern as a Lark literal."""
    return "/" + pattern.replace("/", r"\/") + "/"


_BNF = _Words("root", "then-{}", " ::= ", str)
_LARK = _Words("start", "then_{}", ": ", _slashed)
_TERMINALS = _Words("TEXT", "THEN_{}", ": ", _slashed)


def _has_circles(language: Language) -> bool:
    """True if some rule leads to itself through others, which Lark's terminals may not."""
    leads = {number: {after for _, _, after in rule.edges} for number, rule in enumerate(language.rules)}
    try:
        TopologicalSorter({number: after - {number} for number, after in leads.items()}).prepare()
    except CycleError:
        return True
    return False


def _in_numbers(found: re.Match[str]) -> str:
    return found[1] + "".join(f"\\x{ord(digit):02X}" for digit in found[2])


def _either_of(rows: list[list[str]]) -> str:
    return " | ".join(map(" ".join, rows))


class _Grammar:
    """Writer of a grammar: one rule for each rule of the language that several others lead to.

    All other rules are written in line. Single characters in sequence become a string; a fork of such sequences
    becomes a group.
    """

    def __init__(self, language: Language, words: _Words) -> None:
        self._accepts = [rule.accepts for rule in language.rules]
        self._words = words
        self._again: list[Ranges] = []
        """Characters by which each rule leads to itself."""
        self._ways: list[dict[int, Ranges]] = []
        for number, rule in enumerate(language.rules):
            ways = find_ways(rule.edges)
            self._again.append(ways.pop(number, ()))
            self._ways.append(ways)
        self._led_to = Counter(after for ways in self._ways for after in ways)
        self._names = {0: words.start}
        self._waiting = [0]

    def text(self) -> str:
        lines = []
        for number in self._waiting:  # writing a rule appends the rules that it names
            options = self._options(number, 0)
            if self._again[number]:
                row = [*self._begun(number), *self._forked(number, options)]
            else:
                row = [_either_of([*options, ['""']] if self._accepts[number] else options)]
            lines.append(f"{self._names[number]}{self._words.defines}{' '.join(row)}\n")
        # after a number, characters that could be part of it are escaped too: xgrammar reads as many as it finds
        return _NUMBERS.sub(_in_numbers, "".join(lines))

    def _begun(self, number: int) -> list[str]:
        return [self._characters(self._again[number]) + "*"] if self._again[number] else []

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
        row = [self._characters(ranges)]
        while self._ways[after] or self._again[after]:
            ways = self._ways[after]
            in_line = len(ways) == 1 and not self._accepts[after]
            short = in_line or not ways or (depth < DEEPEST and all(map(is_single, ways.values())))
            if not short or not after or self._led_to[after] > 1:
                return [*row, self._name(after)]
            row += self._begun(after)
            if not in_line:
                return row + self._forked(after, self._options(after, depth + 1))
            [(after, ranges)] = ways.items()
            said = self._characters(ranges)
            if said[0] == row[-1][0] == row[-1][-1] == '"':  # extend the string
                row[-1] = row[-1][:-1] + said[1:]
            else:
                row.append(said)
        return row

    def _name(self, number: int) -> str:
        if number not in self._names:
            self._names[number] = self._words.name.format(len(self._waiting))
            self._waiting.append(number)
        return self._names[number]

    def _characters(self, ranges: Ranges) -> str:
        if is_single(ranges):
            return f'"{character_text(ranges[0][0], IN_STRINGS)}"'
        return self._words.characters(class_text(ranges))
