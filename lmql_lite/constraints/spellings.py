"""Texts that methods of `str`, such as `lower()` and `strip()`, make equal to given ones. Exact, in both directions.

A method that changes case takes a text character by character: each becomes one to three others, in `title()` and
`capitalize()` depending on what stood before it. So the texts that become a given one are the ways through a graph:
its places are those in the given text, its edges the characters that become the piece between two places.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

from lmql_lite.constraints.charset import accepted, class_text, every_character
from lmql_lite.constraints.shapes import literally
from lmql_lite.constraints.terms import Choice, Constant, Matches, Term
from lmql_lite.errors import ConstraintError, Span

Case = Literal["lower", "upper", "casefold", "swapcase", "title", "capitalize"]
EVENLY: tuple[Case, ...] = ("lower", "upper", "casefold", "swapcase")
"""Those that change a character in the same way wherever it stands."""
SIGMAS = frozenset("σς")
"""What a large sigma becomes where it is made small depends on the letters around it."""
LONGEST = 3
"""Characters that one becomes at most."""
BLOCK = 256
WRITTEN = 20_000
"""Characters of a pattern: few texts have so many spellings."""
ANYTHING = "(?s:.*)"

Place = tuple[int, int]
"""How many characters of the given text were made, and the state of the method there."""


class Inexact(ConstraintError):
    """A condition on a text that no pattern says exactly."""


def spellings(options: tuple[str, ...], span: Span, *, case: Case | None, left: bool, right: bool) -> Term:
    """The texts that are one of the options once white space is stripped on the given sides, and case is changed.

    Raises Inexact where that depends on more than the characters.
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
    """A pattern of the texts that begin with this one once they are stripped and their case is changed; None where
    none do."""
    if not text:
        return ANYTHING
    begin = spelled(text, case, span, after=True)
    if begin is None or (left and text[0].isspace()):
        return None
    more = f"{ANYTHING}{_no_space()}" if right and text[-1].isspace() else ""
    return f"{_space() if left else ''}{begin}{more}{ANYTHING}"


def ending(text: str, span: Span, *, case: Case | None, left: bool, right: bool) -> str | None:
    """The same for texts that end with this one."""
    if not text:
        return ANYTHING
    end = spelled(text, case, span, before=True)
    if end is None or (right and text[-1].isspace()):
        return None
    more = f"{_no_space()}{ANYTHING}" if left and text[0].isspace() else ""
    return f"{ANYTHING}{more}{end}{_space() if right else ''}"


def containing(text: str, span: Span, case: Case) -> str | None:
    """The same for texts that have this one in them."""
    inside = spelled(text, case, span, before=True, after=True)
    return ANYTHING if not text else inside and f"{ANYTHING}{inside}{ANYTHING}"


def spelled(text: str, case: Case | None, span: Span, *, before: bool = False, after: bool = False) -> str | None:
    """A pattern of the texts that become this one; None where none do.

    With `before` and `after` a character may become more than belongs to it, at its beginning and its end.
    """
    if case is None:
        return literally(text)
    if SIGMAS & set(text) and case not in ("upper", "casefold"):
        sentence = f"{case}() of a Greek sigma depends on the letters around it, which cannot be enforced"
        raise Inexact(sentence, span=span, hint="list the spellings: X in [..]")
    pattern = _Ways(text, case, before=before, after=after).pattern()
    if pattern is not None and len(pattern) > WRITTEN:
        sentence = f"too many texts become this one of {len(text)} characters in {case}()"
        raise Inexact(sentence, span=span, hint="list the spellings: X in [..]")
    return pattern


class _Node(NamedTuple):
    pattern: str
    """What leads to the next place that all ways from here go through."""
    next: Place
    depth: int
    """How many such places there are up to the end."""


class _Ways:
    """All ways to make one text, as a pattern. Places are looked at from the end."""

    def __init__(self, text: str, case: Case, *, before: bool, after: bool) -> None:
        self._text, self._case = text, case
        self._before, self._after = before, after
        size = len(text)
        self._start, self._end = (-1, 0), (size + 1, 0)
        self._nodes = {self._end: _Node("", self._end, 0)}
        for at in range(size, -1, -1):
            for state in (0, 1):
                self._add((at, state), self._edges((at, state)))
        self._add(self._start, self._first())

    def pattern(self) -> str | None:
        return self._between(self._start, self._end) if self._start in self._nodes else None

    def _add(self, place: Place, edges: dict[Place, str]) -> None:
        """One place, its edges being known; none that leads to no end."""
        edges = {target: characters for target, characters in edges.items() if target in self._nodes}
        if not edges:
            return
        join, *others = edges
        for other in others:
            join = self._common(join, other)
        ways = [
            (f"[{literally(characters)}]" if characters else "") + self._between(target, join)
            for target, characters in edges.items()
        ]
        pattern = ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
        if len(pattern) > WRITTEN:
            pattern = pattern[: WRITTEN + 1]  # it is refused
        self._nodes[place] = _Node(pattern, join, self._nodes[join].depth + 1)

    def _common(self, one: Place, other: Place) -> Place:
        while one != other:
            if self._nodes[one].depth >= self._nodes[other].depth:
                one = self._nodes[one].next
            else:
                other = self._nodes[other].next
        return one

    def _between(self, place: Place, end: Place) -> str:
        found = ""
        while place != end and len(found) <= WRITTEN:
            found += self._nodes[place].pattern
            place = self._nodes[place].next
        return found

    def _edges(self, place: Place) -> dict[Place, str]:
        at, state = place
        rest = self._text[at:]
        if not rest:
            return {self._end: ""}
        inverse = _made(self._case, state)
        edges: dict[Place, str] = {}
        for length in range(1, min(LONGEST, len(rest)) + 1):
            piece = rest[:length]
            characters = inverse.get(piece, "")
            if length == 1 and _becomes(self._case, state, piece) == piece:
                characters += piece
            for character in characters:
                target = (at + length, _state_after(self._case, character))
                edges[target] = edges.get(target, "") + character
        if self._after:
            over = "".join(
                characters for made, characters in inverse.items() if len(made) > len(rest) and made.startswith(rest)
            )
            if over:
                edges[self._end] = over
        return edges

    def _first(self) -> dict[Place, str]:
        """From before the text: with `before` its first character may be the end of one that becomes more."""
        edges = {(0, 0): ""}
        if not self._before or not self._text:
            return edges
        for made, characters in _made(self._case, 0).items():
            for cut in range(1, len(made)):
                piece = made[cut:]
                if self._text.startswith(piece):
                    edges[len(piece), 0] = edges.get((len(piece), 0), "") + characters
                elif self._after and piece.startswith(self._text):
                    edges[self._end] = edges.get(self._end, "") + characters
        return edges


def _becomes(case: Case, state: int, character: str) -> str | None:
    """None where that depends on the letters around it."""
    method: str = case
    if case in ("title", "capitalize"):
        method = "lower" if state else "title"
    if character == "Σ" and method in ("lower", "swapcase"):
        return None
    made: str = getattr(character, method)()
    return made


def _state_after(case: Case, character: str) -> int:
    """`title()` makes what follows a letter small, `capitalize()` all but the first character."""
    if case == "title":
        return int((character + "a").title().endswith("a"))
    return int(case == "capitalize")


@cache
def _made(case: Case, state: int) -> dict[str, str]:
    """For each text those characters that become it, and are it not."""
    found: dict[str, str] = {}
    for character in _changing():
        made = _becomes(case, state, character)
        if made is not None and made != character:
            found[made] = found.get(made, "") + character
    return found


@cache
def _changing() -> str:
    """The characters that some method changes: most have no case at all."""
    text = every_character()
    blocks = (text[start : start + BLOCK] for start in range(0, len(text), BLOCK))
    return "".join(block for block in blocks if not block == block.lower() == block.upper() == block.casefold())


@cache
def _space() -> str:
    return f"{class_text(accepted(str.isspace))}*"


@cache
def _no_space() -> str:
    return f"[^{_space()[1:-1]}"
