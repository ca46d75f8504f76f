"""Random conditions for the tests: trees of all kinds of atoms, of a given depth."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Constant,
    Ends,
    Lacks,
    Length,
    Matches,
    Not,
    Occurrences,
    Or,
    Stop,
    Term,
    Unit,
    contains,
)

LETTER_PATTERNS = ("[ab]*", "a+b?", "(?:ab|ba)+", "[^a]{1,4}", "(?s:.)*b", ".{0,6}", "[ab]{2,5}", "é?[ab]+",
                   r"a(?:\s|b)*", r"\S+", r"\S+ \S+", r"(?:a|b|é)+\.", "(?s:.){3,}", r"[^.]*\.", "[ab é]{3,8}",
                   r"(?:\S+\s+){2}\S+")  # fmt: skip
NUMBER_PATTERNS = ("[0-9]+", "0|-?[1-9][0-9]*", "[0-9]{4}-[0-9]{2}", r"-?[0-9]+(?:\.[0-9]+)?", "[a-z0-9]{4}.*")
PATTERNS = (*LETTER_PATTERNS, *NUMBER_PATTERNS)
BOUNDED_STOPS = ("[.!?]", "a?b", r"\s\s", "b|ab", r"\.\s", "[ab]{2}", "é[ab]", "(?:ab|é)a?")
STOP_PATTERNS = (*BOUNDED_STOPS, "b+a", r"\s+a", "[^ab]+b")
PHRASE = Occurrences(b"")
"""Stands for occurrences of any phrase."""
UNITS: dict[Unit, int] = {"characters": 9, "words": 4, "sentences": 3, "lines": 3, "tokens": 6, PHRASE: 4}
"""Maps units to the largest number that their lengths are compared with."""


KINDS = {
    "length": 13,
    "contains": 2,
    "begins": 1,
    "ends": 2,
    "lacks": 3,
    "choice": 1,
    "no choice": 1,
    "matches": 2,
    "no match": 1,
    "constant": 0.3,
}
"""Maps kinds of atoms other than stops to their weights."""


class Trees:
    """Random terms. Their phrases and options consist of `letters`."""

    def __init__(
        self,
        dice: random.Random,
        letters: str,
        *,
        patterns: Sequence[str] = PATTERNS,
        stop_patterns: Sequence[str] = STOP_PATTERNS,
        units: Sequence[Unit] = tuple(UNITS),
    ) -> None:
        self.dice = dice
        self.letters = letters
        self.patterns = patterns
        self.stop_patterns = stop_patterns
        self.units = units

    def term(self, depth: int, plain: bool = False) -> Term:
        """A random term; an atom has depth 1. If `plain`, it has no stops, so it may stand under `not`."""
        if depth == 1:
            return self.atom(plain)
        shape = self.dice.choices(["and", "or", "not"], [6, 3, 1])[0]
        if shape == "not":
            return Not(self.term(depth - 1, plain=True))
        rest = [self.term(self.dice.randint(1, depth - 1), plain) for _ in range(self.dice.choice([1, 1, 2]))]
        parts = [self.term(depth - 1, plain), *rest]
        self.dice.shuffle(parts)
        return And(tuple(parts)) if shape == "and" else Or(tuple(parts))

    def atom(self, plain: bool) -> Term:
        dice = self.dice
        kinds = dict(KINDS)
        if not plain:
            kinds |= {"stop": 3, "stop pattern": 2 * bool(self.stop_patterns)}
        match dice.choices(list(kinds), list(kinds.values()))[0]:
            case "length":
                return self.length()
            case "contains":
                return contains(self.phrase(3))
            case "begins":
                return Begins(tuple(self.phrase(4) for _ in range(dice.randint(1, 6))))
            case "ends":
                return Ends(tuple(self.phrase(4) for _ in range(dice.randint(1, 6))))
            case "lacks":
                banned = tuple(self.phrase(2) for _ in range(dice.randint(1, 3)))
                return Lacks(banned) if dice.random() < 0.5 else Not(contains(banned[0]))
            case "choice":
                return self.choice()
            case "no choice":
                return Not(self.choice())
            case "matches":
                return Matches(dice.choice(self.patterns), delimits=dice.random() < 0.7)
            case "no match":
                return Not(Matches(dice.choice(self.patterns)))
            case "stop":
                return Stop(self.phrase(3), dice.random() < 0.6)
            case "stop pattern":
                pattern = dice.choice(self.stop_patterns)
                return Stop(pattern.encode(), pattern not in BOUNDED_STOPS or dice.random() < 0.6, 0)
        return Constant(dice.random() < 0.6)

    def length(self) -> Length:
        unit = self.dice.choice(self.units)
        largest = UNITS[unit]
        if unit == PHRASE:
            unit = Occurrences(self.phrase(2))
        match self.dice.randrange(5):
            case 0 | 4:
                exactly = self.dice.randint(1, largest)
                return Length(exactly, exactly, unit)
            case 1:
                return Length(self.dice.randint(1, largest), None, unit)
            case 2:
                return Length(0, self.dice.randint(largest // 3, largest), unit)
        least = self.dice.randint(0, largest - 1)
        return Length(least, self.dice.randint(least + 1, largest), unit)

    def choice(self) -> Choice:
        return Choice(tuple(self.phrase(7) for _ in range(self.dice.randint(1, 5))))

    def phrase(self, longest: int) -> bytes:
        return "".join(self.dice.choices(self.letters, k=self.dice.randint(1, longest))).encode()
