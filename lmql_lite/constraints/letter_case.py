"""Texts that methods of `str`, such as `lower()` and `strip()`, make equal to given ones. Exact in both directions.

A method that changes case turns each character into one to three others, wherever it stands. So the texts that become
a given one are the paths through a graph. Its nodes are the positions in the given text. Its edges are the characters
that become the piece between two positions.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

from lmql_lite.constraints.charset import accepted, class_text, every_character
from lmql_lite.constraints.formats import literally
from lmql_lite.constraints.terms import Choice, Constant, Matches, Term
from lmql_lite.errors import ConstraintError, Span

Case = Literal["lower", "upper", "casefold", "swapcase"]
"""Methods that change a character in the same way wherever it stands, unlike `title()` and `capitalize()`."""
SIGMAS = frozenset("σς")
"""Small sigmas: the letters around a capital one decide which of them `lower()` returns."""
LONGEST = 3
"""Most characters that one character becomes."""
BLOCK = 256
WRITTEN = 20_000
"""Most characters of a pattern. Few texts have so many spellings."""
ANYTHING = "(?s:.*)"


class Inexact(ConstraintError):
    """A condition on a text that no pattern expresses exactly."""


def spellings(options: tuple[str, ...], span: Span, *, case: Case | None, left: bool, right: bool) -> Term:
    """The texts that equal one of the options after white space is stripped on the given sides and case is changed.

    Raises Inexact if the result depends on more than the single characters.
    """
    if not (case or left or right):
        return Choice(tuple(option.encode() for option in options), span)
    possible = [
        option
        for option in options
        if (not left or option == option.lstrip()) and (not right or option == option.rstrip())
    ]
    patterns = [pattern for option in possible if (pattern := spelled(option, case, span)) is not None]
    if not patterns:
        return Constant(False, span)
    space = _space()
    return Matches(f"{space if left else ''}(?:{'|'.join(patterns)}){space if right else ''}", span=span)


def starting(text: str, span: Span, *, case: Case | None, left: bool, right: bool) -> str | None:
    """Pattern of the texts that begin with this one after stripping and change of case; None if there are none."""
    if not text:
        return ANYTHING
    begin = spelled(text, case, span, after=True)
    if begin is None or (left and text[0].isspace()):
        return None
    more = f"{ANYTHING}{_no_space()}" if right and text[-1].isspace() else ""
    return f"{_space() if left else ''}{begin}{more}{ANYTHING}"


def ending(text: str, span: Span, *, case: Case | None, left: bool, right: bool) -> str | None:
    """Pattern of the texts that end with this one after stripping and change of case; None if there are none."""
    if not text:
        return ANYTHING
    end = spelled(text, case, span, before=True)
    if end is None or (right and text[-1].isspace()):
        return None
    more = f"{_no_space()}{ANYTHING}" if left and text[0].isspace() else ""
    return f"{ANYTHING}{more}{end}{_space() if right else ''}"


def containing(text: str, span: Span, case: Case) -> str | None:
    """Pattern of the texts that contain this one after change of case; None if there are none."""
    inside = spelled(text, case, span, before=True, after=True)
    return ANYTHING if not text else inside and f"{ANYTHING}{inside}{ANYTHING}"


def spelled(text: str, case: Case | None, span: Span, *, before: bool = False, after: bool = False) -> str | None:
    """Pattern of the texts that become this one; None if there are none.

    With `before`, the first character may become a piece that begins before this text. With `after`, the last one may
    become a piece that ends after it.
    """
    if case is None:
        return literally(text)
    if SIGMAS & set(text) and case not in ("upper", "casefold"):
        sentence = f"{case}() of a Greek sigma depends on the letters around it, which cannot be enforced"
        raise Inexact(sentence, span=span, hint="list the spellings: X in [..]")
    pattern = _Paths(text, case, before=before and bool(text), after=after).pattern()
    if pattern is not None and len(pattern) > WRITTEN:
        sentence = f"too many texts become this one of {len(text)} characters in {case}()"
        raise Inexact(sentence, span=span, hint="list the spellings: X in [..]")
    return pattern


class _Node(NamedTuple):
    pattern: str
    """Pattern of the texts up to `next`, the next position that all paths from here share."""
    next: int
    depth: int
    """Number of shared positions from here to the end."""


class _Paths:
    """Pattern of all texts that become one text, built from its end.

    Position -1 precedes a character of which the text has only the end. Position `len(text) + 1` follows one of which
    it has only the beginning.
    """

    def __init__(self, text: str, case: Case, *, before: bool, after: bool) -> None:
        self._text, self._inverse, self._case = text, _made(case), case
        self._end = len(text) + 1
        self._nodes = {self._end: _Node("", self._end, 0), len(text): _Node("", self._end, 1)}
        for at in range(len(text) - 1, -1, -1):
            self._add(at, self._edges(at, after))
        self._add(-1, self._first(after) if before else {0: ""})

    def pattern(self) -> str | None:
        return self._between(-1, self._end) if -1 in self._nodes else None

    def _add(self, place: int, edges: dict[int, str]) -> None:
        """Adds a position after all later ones. It is left out if no path from it leads to the end."""
        edges = {target: characters for target, characters in edges.items() if target in self._nodes}
        if not edges:
            return
        join = next(iter(edges))
        for other in edges:
            join = self._common(join, other)
        paths = [
            (f"[{literally(characters)}]" if characters else "") + self._between(target, join)
            for target, characters in edges.items()
        ]
        pattern = paths[0] if len(paths) == 1 else f"(?:{'|'.join(paths)})"
        # `spelled` refuses a pattern that is too long
        self._nodes[place] = _Node(pattern[: WRITTEN + 1], join, self._nodes[join].depth + 1)

    def _common(self, one: int, other: int) -> int:
        while one != other:
            if self._nodes[one].depth >= self._nodes[other].depth:
                one = self._nodes[one].next
            else:
                other = self._nodes[other].next
        return one

    def _between(self, place: int, end: int) -> str:
        found = ""
        while place != end and len(found) <= WRITTEN:
            found += self._nodes[place].pattern
            place = self._nodes[place].next
        return found

    def _edges(self, at: int, after: bool) -> dict[int, str]:
        rest = self._text[at:]
        edges: dict[int, str] = {}
        for length in range(1, min(LONGEST, len(rest)) + 1):
            piece = rest[:length]
            characters = self._inverse.get(piece, "")
            if length == 1 and _becomes(self._case, piece) == piece:
                characters += piece
            if characters:
                edges[at + length] = characters
        over = [made for made in self._inverse if after and len(made) > len(rest) and made.startswith(rest)]
        if over:
            edges[self._end] = "".join(self._inverse[made] for made in over)
        return edges

    def _first(self, after: bool) -> dict[int, str]:
        """Edges from position -1: the text may begin with the end of what one character becomes."""
        edges = {0: ""}
        for made, characters in self._inverse.items():
            for piece in (made[cut:] for cut in range(1, len(made))):
                if self._text.startswith(piece):
                    edges[len(piece)] = edges.get(len(piece), "") + characters
                elif after and piece.startswith(self._text):
                    edges[self._end] = edges.get(self._end, "") + characters
        return edges


def _becomes(case: Case, character: str) -> str | None:
    """Result of the method for one character; None if it depends on the letters around it."""
    if character == "Σ" and case in ("lower", "swapcase"):
        return None
    made: str = getattr(character, case)()
    return made


@cache
def _made(case: Case) -> dict[str, str]:
    """Maps each text to the other characters that become it."""
    found: dict[str, str] = {}
    for character in _changing():
        made = _becomes(case, character)
        if made is not None and made != character:
            found[made] = found.get(made, "") + character
    return found


@cache
def _changing() -> str:
    """All blocks of characters in which some method changes one: most characters have no case at all."""
    text = every_character()
    blocks = (text[start : start + BLOCK] for start in range(0, len(text), BLOCK))
    return "".join(block for block in blocks if not block == block.lower() == block.upper() == block.casefold())


@cache
def _space() -> str:
    return f"{class_text(accepted(str.isspace))}*"


@cache
def _no_space() -> str:
    return f"[^{_space()[1:-1]}"
