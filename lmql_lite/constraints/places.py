"""What an automaton is made of: its states in parts, its edges, and its judgement of a place."""

from __future__ import annotations

from typing import NamedTuple

Atoms = tuple[int, ...]
"""The states of all machines of a term."""


class Past(NamedTuple):
    """A place that the text has left by some bytes, to which a stop may cut the value back.

    Only what the value is judged by: the machines of stops are in their first states, and `utf8` is 0 or 1. `raised`
    are the flags that the byte behind it raised.
    """

    atoms: Atoms
    utf8: int
    raised: int


class Place(NamedTuple):
    """A state in parts: the machines' states, UTF-8, and where STOPS_BEFORE is under way the places of the last
    bytes, since the value will be judged as it was before the phrase (S15). What those bytes raised is not among the
    flags of a configuration yet."""

    atoms: Atoms
    utf8: int
    before: tuple[Past, ...]


class Edge(NamedTuple):
    """All bytes that lead from one state to the same other one. `added` is what each adds to the counts, `tokens`
    left out, and `spent` is that with the one token that a byte may cost (S19)."""

    state: int
    added: int
    spent: int
    byte: int
    how_many: int


class Judgement(NamedTuple):
    """A term judged on a text: whether it holds, and whether a stop that was just reached ends the hole (S13).

    A stop counts as true in `holds`; `fires` asks that one of the reached stops stands in a conjunct that holds.
    """

    holds: bool
    fires: bool


class Reach(NamedTuple):
    """The most that one token says. No sentence begins where no word does."""

    bytes: int = 1
    words: int = 1


ONE_BYTE = Reach()
