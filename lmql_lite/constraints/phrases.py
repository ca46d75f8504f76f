"""Machines that find phrases in a text and remember none: what was found is a count or a flag beside the state."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lmql_lite.constraints.atoms import Endings, Moves


def overlap(text: bytes, phrase: bytes) -> int:
    """Length of the longest proper beginning of a phrase with which a text ends."""
    for size in range(min(len(text), len(phrase) - 1), 0, -1):
        if text.endswith(phrase[:size]):
            return size
    return 0


class Finder:
    """Finds any of several phrases (Aho, Corasick 1975) and raises their flags.

    A state is the longest proper beginning of a phrase with which the text ends; `texts` are those beginnings.
    """

    def __init__(self, phrases: Sequence[tuple[bytes, int]]) -> None:
        """Each phrase with its flags, a set of bits. Equal phrases may have several."""
        children: list[dict[int, int]] = [{}]
        texts = [b""]
        flags = [0]
        for phrase, bits in phrases:
            node = 0
            for end, byte in enumerate(phrase, start=1):
                child = children[node].setdefault(byte, len(children))
                if child == len(children):
                    children.append({})
                    texts.append(phrase[:end])
                    flags.append(0)
                node = child
            flags[node] |= bits
        shorter = [0] * len(children)
        """For every node the longest proper end of its text that is a node."""
        moves: list[dict[int, int]] = [{}] * len(children)
        queue = deque([0])
        order = []
        while queue:  # breadth first: shorter texts before longer ones
            node = queue.popleft()
            order.append(node)
            fallback = moves[shorter[node]] if node else {}
            moves[node] = {**fallback, **children[node]}
            for byte, child in children[node].items():
                shorter[child] = fallback.get(byte, 0)
                flags[child] |= flags[shorter[child]]
                queue.append(child)
        kept = [0] * len(children)
        """For every node the one that stays for it: a phrase that begins no longer one needs no node."""
        for node in order:
            kept[node] = node if children[node] or not node else kept[shorter[node]]
        numbers = {node: at for at, node in enumerate(node for node in order if kept[node] == node)}
        self.texts = [texts[node] for node in numbers]
        said = set(b"".join(phrase for phrase, _ in phrases))
        self.is_plain = max(said) < 0x80 and any(byte not in said for byte in range(0x20, 0x7F))
        """Whether all phrases are ASCII, and leave a character of it unused."""
        self._moves: list[Moves] = []
        self.found: list[dict[int, int]] = []
        """For every state the flags that a byte raises, where it raises any."""
        for node in numbers:
            special = {byte: numbers[kept[after]] for byte, after in moves[node].items()}
            self._moves.append(Moves({byte: after for byte, after in special.items() if after}, 0))
            self.found.append({byte: flags[after] for byte, after in moves[node].items() if flags[after]})

    def moves(self, state: int) -> Moves:
        return self._moves[state]


class Repeats:
    """Finds a phrase again and again, without overlaps: the state is how much of the next one has been said.

    In the last state one was found just now.
    """

    def __init__(self, phrase: bytes) -> None:
        self.phrase = phrase
        self.size = len(phrase)
        found = Endings([phrase], by_character=False)
        self._moves = [found.moves(state) for state in range(self.size)]
        self._moves.append(self._moves[0])

    def moves(self, state: int) -> Moves:
        return self._moves[state]

    def begun(self, state: int) -> int:
        """Bytes of the next occurrence that have been said."""
        return state % self.size
