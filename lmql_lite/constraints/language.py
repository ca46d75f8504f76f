"""Regular languages over characters, as data for servers that enforce them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

LAST = 0x10FFFF
"""The highest code point."""
Edges = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A state. `edges` are (lowest code point, highest code point, next rule), sorted and disjoint."""

    edges: Edges
    accepts: bool
    """True if the text may end here."""


@dataclass(frozen=True, slots=True)
class Language:
    """Right-linear rules, of which the first is the start. Each server's dialect is written from them."""

    rules: tuple[Rule, ...]

    @property
    def is_empty(self) -> bool:
        """True if there is no text at all. Only for minimal rules (`smallest`)."""
        return self.rules == (Rule((), False),)

    def accepts(self, text: str) -> bool:
        """True if this text is in the language."""
        rule = self.rule_after(text)
        return rule is not None and rule.accepts

    def rule_after(self, text: str) -> Rule | None:
        """Rule to which a text leads; None if no text begins with it."""
        places = self._places(text)
        return self.rules[places[-1]] if len(places) > len(text) else None

    def _places(self, text: str) -> list[int]:
        """Numbers of the rules along a text, the first one included, as far as there are any."""
        places = [0]
        for code in map(ord, text):
            edges = self.rules[places[-1]].edges
            at = bisect_right(edges, (code, LAST + 1)) - 1
            if at < 0 or code > edges[at][1]:
                break
            places.append(edges[at][2])
        return places

    def after(self, text: str) -> Language | None:
        """Language of the continuations of a text; None if no text begins with it."""
        rule = self.rule_after(text)
        if rule is None:
            return None
        return smallest([_numbered(each, lambda after: after + 1) for each in (rule, *self.rules)])

    def without(self, text: str, *, begun: bool = False) -> Language:
        """The language without this text, or if `begun`, without all texts that begin with it. It may be empty."""
        places = self._places(text)
        size = len(places)  # the rules along the text come first
        if size <= len(text):
            return self
        kept = [_numbered(rule, lambda after: after + size) for rule in self.rules]
        way = []
        for at, (place, code) in enumerate(zip(places, map(ord, text), strict=False)):
            forked = list[tuple[int, int, int]]()
            for low, high, after in kept[place].edges:
                if low <= code <= high:
                    parts = (low, code - 1, after), (code, code, at + 1), (code + 1, high, after)
                    forked += [part for part in parts if part[0] <= part[1]]
                else:
                    forked.append((low, high, after))
            way.append(Rule(tuple(forked), kept[place].accepts))
        way.append(Rule(() if begun else kept[places[-1]].edges, accepts=False))
        return smallest([*way, *kept])

    def texts(self, most: int) -> tuple[str, ...] | None:
        """All texts, if there are at least one and at most `most`; else None."""
        found: list[str] = []
        waiting = [("", 0)] if self._backwards() is not None else []
        while waiting:
            text, number = waiting.pop()
            rule = self.rules[number]
            found += [text] if rule.accepts else []
            codes = [(code, after) for low, high, after in rule.edges for code in range(low, min(high, low + most) + 1)]
            waiting += [(text + chr(code), after) for code, after in reversed(codes)]
            if len(found) + len(waiting) > most:
                return None
        return tuple(found) or None

    def longest(self) -> int | None:
        """Number of bytes of the longest text; None if there is no longest one."""
        sizes: dict[int, int] = {}
        for number in self._backwards() or ():
            sizes[number] = max((_size(high) + sizes[after] for _, high, after in self.rules[number].edges), default=0)
        return sizes.get(0)

    def undecided(self) -> int | None:
        """Number of bytes after which, at the latest, only one text is left; None if there is no such number."""
        sizes: dict[int, int] = {}
        for number in self._backwards() or ():
            rule = self.rules[number]
            ways = rule.accepts + sum(high - low + 1 for low, high, _ in rule.edges)
            size = max((_size(high) + sizes[after] for _, high, after in rule.edges), default=0)
            sizes[number] = size if ways > 1 or any(sizes[after] for _, _, after in rule.edges) else 0
        return sizes.get(0)

    def _backwards(self) -> list[int] | None:
        """Numbers of the reachable rules, each after all its successors; None if there is a cycle."""
        found: dict[int, None] = {}
        path, on_path = [0], {0}
        while path:
            after = next((after for _, _, after in self.rules[path[-1]].edges if after not in found), None)
            if after is None:
                found[path[-1]] = None
                on_path.remove(path.pop())
            elif after in on_path:
                return None
            else:
                path.append(after)
                on_path.add(after)
        return list(found)

    def begun_by(self, text: str) -> Language:
        """The language with `text` before each of its texts."""
        size = len(text)
        begin = [Rule(((ord(character), ord(character), at + 1),), False) for at, character in enumerate(text)]
        return Language((*begin, *(_numbered(rule, lambda after: after + size) for rule in self.rules)))


def _size(code: int) -> int:
    return len(chr(code).encode("utf-8", "surrogatepass"))


def _numbered(rule: Rule, number: Callable[[int], int]) -> Rule:
    return Rule(tuple((low, high, number(after)) for low, high, after in rule.edges), rule.accepts)


ANYTHING = Language((Rule(((0, 0xD7FF, 0), (0xE000, LAST, 0)), True),))
"""Language of all texts."""


def smallest(rules: Sequence[Rule]) -> Language:
    """The same language in as few rules as possible, numbered in breadth-first order from the first."""
    rules = _alive(rules)
    blocks = _blocks(rules)
    numbers, met, found = {blocks[0]: 0}, [rules[0]], list[Rule]()
    for rule in met:  # grows during the loop
        edges = []
        for low, high, after in rule.edges:
            number = numbers.setdefault(blocks[after], len(met))
            if number == len(met):
                met.append(rules[after])
            edges.append((low, high, number))
        found.append(Rule(_joined(edges), rule.accepts))
    return Language(tuple(found))


def _alive(rules: Sequence[Rule]) -> list[Rule]:
    """The rules, without the edges after which no end can be reached."""
    before: dict[int, list[int]] = defaultdict(list)
    for number, rule in enumerate(rules):
        for after in {after for _, _, after in rule.edges}:
            before[after].append(number)
    waiting = [number for number, rule in enumerate(rules) if rule.accepts]
    alive = set(waiting)
    while waiting:
        for number in before[waiting.pop()]:
            if number not in alive:
                alive.add(number)
                waiting.append(number)
    return [Rule(tuple(edge for edge in rule.edges if edge[2] in alive), rule.accepts) for rule in rules]


def _blocks(rules: Sequence[Rule]) -> list[int]:
    """Number of each rule's block. Rules of one block have the same accepted continuations.

    Blocks are split until the rules of each lead to the same blocks. Only a rule whose target has a new number is
    looked at again: all others of its block still agree.
    """
    before: list[set[int]] = [set() for _ in rules]
    for number, rule in enumerate(rules):
        for _, _, after in rule.edges:
            before[after].add(number)
    block_of = [int(rule.accepts) for rule in rules]
    sizes = [block_of.count(0), block_of.count(1)]
    looked_at = set(range(len(rules)))
    while looked_at:
        parts: dict[int, dict[Edges, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number in looked_at:
            leads = _joined((low, high, block_of[after]) for low, high, after in rules[number].edges)
            parts[block_of[number]][leads].append(number)
        looked_at = set()
        for block, alike in parts.items():
            split_off = sorted(alike.values(), key=len)
            if sizes[block] == sum(map(len, split_off)):
                split_off.pop()  # the largest part keeps the number
            for part in split_off:
                sizes[block] -= len(part)
                for number in part:
                    block_of[number] = len(sizes)
                    looked_at |= before[number]
                sizes.append(len(part))
    return block_of


def _joined(edges: Iterable[tuple[int, int, int]]) -> Edges:
    """The edges, with neighbours that lead to the same number as one."""
    found: list[tuple[int, int, int]] = []
    for low, high, after in edges:
        if found and found[-1][1] == low - 1 and found[-1][2] == after:
            found[-1] = (found[-1][0], high, after)
        else:
            found.append((low, high, after))
    return tuple(found)
