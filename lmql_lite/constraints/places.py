"""What an automaton is made of: its states in parts, its edges, and its judgement of a place."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A state in parts: the atoms' states, UTF-8, and where STOPS_BEFORE is under way the atoms' states of the last
    bytes, since the value will be judged as it was before the phrase (S15)."""

    atoms: tuple[int, ...]
    utf8: int
    before: tuple[tuple[int, ...], ...]


class Edge(NamedTuple):
    """All bytes that lead from one state to the same other one."""

    state: int
    characters: int
    byte: int
    how_many: int


class Judgement(NamedTuple):
    """A term judged on a text: whether it holds, and whether a stop that was just reached ends the hole (S13).

    A stop counts as true in `holds`; `fires` asks that one of the reached stops stands in a conjunct that holds.
    """

    holds: bool
    fires: bool
