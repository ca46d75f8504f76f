"""Drafts from the tree: tokens that followed the same last tokens elsewhere. A draft only saves time, since it is
checked against the model's own scores.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import ReferenceType, ref

from lmql_lite.cache.tokens.nodes import ROOT_TOKEN, Node

LENGTH = 3
"""Number of last tokens that must be equal."""
SKIPPED = 4
"""Maximum number of later tokens that may differ before the text continues as elsewhere."""

MAX_DRAFT_LENGTH = 16
"""Maximum number of tokens in a draft."""
MAX_PAUSE = 64
"""Maximum number of picks without a draft after failed ones."""
PLACES = 256
"""Number of places whose drafts are remembered."""

MAX_SUFFIXES = 1 << 16
"""Maximum number of suffixes in the index; the oldest is dropped for a new one."""
SUFFIX_BYTES = 220
"""Memory of a suffix."""

Suffix = tuple[int, int, int]


class Suffixes:
    """Index from the last `LENGTH` tokens of a path to the first node with them.

    The first node is used, not the newest, so that a draft is text of a run and not a rejected draft. Nodes with
    entries are entered, and the paths of runs that ask for drafts. Only one thread at a time may use this.
    """

    def __init__(self) -> None:
        self._nodes: dict[Suffix, ReferenceType[Node]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def enter(self, node: Node) -> None:
        """Enters a node, and those above it that were not entered."""
        place: Node | None = node
        way = []
        while place is not None and not place.entered:
            way.append(place)
            place.entered = True
            place = place.parent
        for each in reversed(way):
            suffix = _suffix(each)
            known = self._nodes.get(suffix)
            if known is None or known() is None:
                self._nodes.pop(suffix, None)
                self._nodes[suffix] = ref(each)
        while len(self._nodes) > MAX_SUFFIXES:
            del self._nodes[next(iter(self._nodes))]

    def clean(self) -> None:
        """Drops suffixes of freed nodes."""
        self._nodes = {suffix: known for suffix, known in self._nodes.items() if known() is not None}

    def draft(self, node: Node, most: int, skip: bool) -> tuple[int, ...]:
        """At most `most` tokens that may follow `node`; () if its last tokens occurred nowhere else.

        With `skip`, earlier tokens that occurred elsewhere count too, for text that differs in one place and then
        continues alike.
        """
        self.enter(node)
        above: Node | None = node
        for skipped in range(1 + skip * SKIPPED):
            if above is None or above.parent is None:
                break
            known = self._nodes.get(_suffix(above))
            twin = None if known is None else known()
            if twin is not None and twin is not above:
                guessed = _after(twin, skipped + most)[skipped:]
                if guessed:
                    return guessed
            above = above.parent
        return ()


def _suffix(node: Node) -> Suffix:
    """The last three tokens of a path, newest first; -1 above the root."""
    tokens: list[int] = []
    place: Node | None = node
    while len(tokens) < LENGTH:
        tokens.append(ROOT_TOKEN if place is None else place.token)
        place = None if place is None else place.parent
    newest, middle, oldest = tokens
    return newest, middle, oldest


def _after(node: Node, most: int) -> tuple[int, ...]:
    """Tokens of the path down along the youngest children."""
    tokens: list[int] = []
    while len(tokens) < most and node.below:
        living = (child for known in reversed(tuple(node.below.values())) if (child := known()) is not None)
        child = next(living, None)
        if child is None:
            break
        tokens.append(child.token)
        node = child
    return tuple(tokens)


@dataclass(slots=True)
class DraftLength:
    """Length of the next draft at one place: about as many tokens as came true recently. After failures drafts almost
    stop.

    The length affects only which questions are batched, never their answers.
    """

    right: float = 4.0
    """Recent average of the number of draft tokens that came true."""
    _pause: int = 1
    _wait: int = 0

    def next(self) -> int:
        """Number of tokens of the next draft; 0 for a while after failed drafts."""
        if self._wait:
            self._wait -= 1
            return 0
        return min(round(2 * self.right) + 1, MAX_DRAFT_LENGTH)

    @property
    def are_lucky(self) -> bool:
        return self.right >= 1

    def learn(self, guessed: int, right: int) -> None:
        """Learns from the last draft, of which `right` tokens came true. A fully correct draft might have been
        longer."""
        self.right = (self.right + (2 * right if right == guessed else right)) / 2
        if right:
            self._pause = 1
        elif self.right < 1:
            self._wait = self._pause = min(2 * self._pause, MAX_PAUSE)


class DraftLengths:
    """Lengths of drafts for each hole of a program, learned from all runs on a tree.

    A new hole begins as the others did lately.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[Hashable, DraftLength] = OrderedDict()
        self._any = DraftLength()

    def of(self, place: Hashable) -> DraftLength:
        found = self._places.get(place)
        if found is None:
            found = self._places[place] = DraftLength(max(self._any.right, 1.0))
            if len(self._places) > PLACES:
                self._places.popitem(last=False)
        return found

    def learn(self, place: Hashable, guessed: int, right: int) -> None:
        for length in (self.of(place), self._any):
            length.learn(guessed, right)
