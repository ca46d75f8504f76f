"""Regular languages over characters, as data for servers that enforce them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
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
        rule = self.rules[0]
        for character in text:
            place = bisect_right(rule.edges, (ord(character), LAST + 1)) - 1
            if place < 0 or ord(character) > rule.edges[place][1]:
                return None
            rule = self.rules[rule.edges[place][2]]
        return rule

    def after(self, text: str) -> Language | None:
        """Language of the continuations of a text; None if no text begins with it."""
        place = 0
        for character in text:
            edges = self.rules[place].edges
            place = next((after for low, high, after in edges if low <= ord(character) <= high), -1)
            if place < 0:
                return None
        number = {0: place, place: 0}  # swaps the first rule and the one reached
        rules = [self.rules[number.get(at, at)] for at in range(len(self.rules))]
        return smallest([_numbered(rule, lambda after: number.get(after, after)) for rule in rules])

    def without(self, text: str, *, begun: bool = False) -> Language:
        """The language without this text, or if `begun`, without all texts that begin with it. It may be empty."""
        places = [0]
        for character in text:
            edges = self.rules[places[-1]].edges
            after = next((after for low, high, after in edges if low <= ord(character) <= high), None)
            if after is None:
                return self
            places.append(after)
        size = len(places)  # the rules along the text come first
        kept = [_numbered(rule, lambda after: after + size) for rule in self.rules]
        way = []
        for at, (place, character) in enumerate(zip(places, text, strict=False)):
            code, forked = ord(character), list[tuple[int, int, int]]()
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
    blocks = _blocks([rule.accepts for rule in rules], _steps(rules))
    numbers = {blocks[0]: 0}
    waiting = deque([rules[0]])
    found: list[Rule] = []
    while waiting:
        rule = waiting.popleft()
        edges: list[tuple[int, int, int]] = []
        for low, high, after in rule.edges:
            number = numbers.setdefault(blocks[after], len(numbers))
            if number == len(found) + len(waiting) + 1:
                waiting.append(rules[after])
            if edges and edges[-1][1] == low - 1 and edges[-1][2] == number:
                edges[-1] = (edges[-1][0], high, number)
            else:
                edges.append((low, high, number))
        found.append(Rule(tuple(edges), rule.accepts))
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


def _steps(rules: Sequence[Rule]) -> list[dict[int, int]]:
    """Maps each kind of character to the next rule, for every rule. A kind has the characters no rule tells apart."""
    shapes: dict[Edges, int] = {}
    shaped: list[tuple[Edges, list[int]]] = []
    for rule in rules:
        targets: dict[int, int] = {}
        shape = tuple((low, high, targets.setdefault(after, len(targets))) for low, high, after in rule.edges)
        shapes.setdefault(shape, len(shapes))
        shaped.append((shape, list(targets)))
    cuts = sorted({cut for shape in shapes for low, high, _ in shape for cut in (low, high + 1)})
    index = {cut: at for at, cut in enumerate(cuts)}
    kinds = [0] * len(cuts)
    for shape in shapes:
        numbers: dict[tuple[int, int], int] = {}
        leads = [-1] * len(cuts)
        for low, high, target in shape:
            leads[index[low] : index[high + 1]] = [target] * (index[high + 1] - index[low])
        kinds = [numbers.setdefault(key, len(numbers)) for key in zip(kinds, leads, strict=True)]
    leading = {
        shape: {kind: target for low, high, target in shape for kind in kinds[index[low] : index[high + 1]]}
        for shape in shapes
    }
    return [{kind: targets[target] for kind, target in leading[shape].items()} for shape, targets in shaped]


def _blocks(accepts: Sequence[bool], steps: Sequence[dict[int, int]]) -> list[int]:
    """Equivalence class of each state: states with the same accepted continuations share a number (Hopcroft 1971)."""
    before: list[list[tuple[int, int]]] = [[] for _ in steps]
    for state, leads in enumerate(steps):
        for kind, after in leads.items():
            before[after].append((kind, state))
    members = [{state for state, ends in enumerate(accepts) if ends is half} for half in (False, True)]
    block_of = [int(ends) for ends in accepts]
    waiting = {0, 1}
    while waiting:
        sources: dict[int, list[int]] = defaultdict(list)
        for state in members[waiting.pop()]:
            for kind, source in before[state]:
                sources[kind].append(source)
        for leading in sources.values():
            hit: dict[int, list[int]] = defaultdict(list)
            for source in leading:
                hit[block_of[source]].append(source)
            for block, some in hit.items():
                if len(some) == len(members[block]):
                    continue
                new = len(members)
                members.append(set(some))
                members[block].difference_update(some)
                for state in some:
                    block_of[state] = new
                # a split by either half does the work of the old block: the smaller half is enough
                waiting.add(new if block in waiting else min(block, new, key=lambda each: len(members[each])))
    return block_of
