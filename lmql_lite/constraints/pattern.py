"""A regular expression as a program of single characters (Thompson 1968), read by Python's own parser.

Its language is exactly that of `re.fullmatch`. Forms that no finite automaton can follow exactly are refused.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property, lru_cache
from heapq import heappop, heappush
from re import _constants as sre
from re import _parser
from typing import Any, Literal, NamedTuple

from lmql_lite.constraints.terms import Way

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint ranges of code points, both ends included, without surrogates."""

SURROGATES = (0xD800, 0xDFFF)


def contains(ranges: Ranges, character: str) -> bool:
    at = bisect_right(ranges, (ord(character), 0x10FFFF)) - 1
    return at >= 0 and ord(character) <= ranges[at][1]


@cache
def every_character() -> str:
    return "".join(map(chr, [*range(SURROGATES[0]), *range(SURROGATES[1] + 1, 0x110000)]))


@lru_cache(maxsize=1024)
def matched(pattern: str, flags: int) -> Ranges:
    """Characters that a pattern of one character matches. Python tests every character, in one scan."""
    runs = [found.span() for found in re.compile(f"(?:{pattern})+", flags).finditer(every_character())]
    return _code_points(runs)


@cache
def accepted(test: Callable[[str], bool]) -> Ranges:
    """Characters that pass a test, such as `str.isalpha`."""
    return joined((ord(character), ord(character)) for character in every_character() if test(character))


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Union of the ranges: sorted, merged, and without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    first, last = SURROGATES
    pieces = (
        (low, min(high, first - 1)) if half else (max(low, last + 1), high) for low, high in merged for half in (1, 0)
    )
    return tuple((low, high) for low, high in pieces if low <= high)


def others(ranges: Ranges) -> Ranges:
    """Complement of the set, without surrogates."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), 0x10FFFF]
    return joined((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)


def _code_points(runs: list[tuple[int, int]]) -> Ranges:
    """Ranges of code points from half-open ranges of positions in `every_character()`."""
    first, last = SURROGATES
    gap = last - first + 1
    found: list[tuple[int, int]] = []
    for start, end in runs:
        if start < first:
            found.append((start, min(end, first) - 1))
        if end > first:
            found.append((max(start, first) + gap, end - 1 + gap))
    return tuple(found)


def class_text(ranges: Ranges) -> str:
    """The set as a character class of a regular expression."""
    return "[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges) + "]"


def literally(text: str) -> str:
    """Pattern that matches this text alone, with any flags except IGNORECASE."""
    return "".join(f"\\U{ord(character):08x}" for character in text)


SIZE_BUDGET = 20_000
"""Most instructions of a program, in which counted repetitions are written out."""
LINE_FEED: Ranges = ((10, 10),)
NEVER = 2**30
MATCH = 0
"""Instruction at which the text is complete."""
CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
REFUSED = {
    sre.ASSERT: "looking ahead or behind",
    sre.ASSERT_NOT: "looking ahead or behind",
    sre.FAILURE: "looking ahead or behind",
    sre.GROUPREF: "a reference to an earlier group",
    sre.GROUPREF_EXISTS: "a group that depends on another one",
    sre.ATOMIC_GROUP: "an atomic group",
    sre.POSSESSIVE_REPEAT: "a possessive repetition",
}
ProgramWay = Way | Literal["stop"]
BEGINNINGS = ((sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_BEGINNING_STRING))
ENDINGS = ((sre.AT, sre.AT_END), (sre.AT, sre.AT_END_STRING))
SEARCHED = (
    "in a pattern that is searched for, ^ and $ stand at its two ends only",
    "write the alternatives as conditions of their own, joined by `or`",
)
MISPLACED: Mapping[ProgramWay, tuple[str, str]] = {
    "fullmatch": (
        r"^ and \A can only begin a regular expression here, $ and \Z only end it",
        "they can be left out: the whole text has to match",
    ),
    "match": SEARCHED,
    "search": SEARCHED,
    "stop": (
        "^ and $ cannot stand in a stop, which is looked for everywhere in the text",
        r"say \n for the end of a line",
    ),
}
"""Sentences and hints about anchors that are not redundant."""
NO_PATTERN = r"put a backslash before special characters: \( or \?"
HINT = "join two conditions by `and` or `not`, or write the alternatives out with `|`"

Node = tuple[Any, Any]
"""Pair from Python's parser: an opcode and its argument, whose type depends on the opcode."""


class UnsupportedPattern(ValueError):
    """A pattern that cannot be followed. The caller adds its place in the source."""

    def __init__(self, sentence: str, hint: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint


class PatternStep(NamedTuple):
    """Reads one character of the set, then continues at instruction `then`."""

    characters: Ranges
    then: int


class PatternProgram:
    """Program of a pattern, immutable once made. An instruction is a step, or a fork to any number of instructions."""

    def __init__(self, pattern: str, flags: int, way: ProgramWay) -> None:
        self._code: list[PatternStep | tuple[int, ...]] = [()]
        self._way = way
        self.anchored = way == "fullmatch"
        """True if the texts have nothing but the match and perhaps a final line feed."""
        tree, flags = _parse(pattern, flags)
        try:
            if way in ("fullmatch", "stop"):
                start = self._sequence(tree, flags, MATCH, first=self.anchored, last=self.anchored)
            else:
                start = self._found(tree, flags)
        except RecursionError:
            raise UnsupportedPattern("this regular expression is nested too deep") from None
        self.shortest = self._distances()
        """For each instruction, fewest characters to MATCH (or NEVER), and bytes of the shortest such text."""
        ends = [each for each in self.shortest if each[0] < NEVER]
        self.farthest = max((each[0] for each in ends), default=0), max((each[1] for each in ends), default=0)
        """Most characters, and most bytes, that an instruction is from MATCH."""
        self._entered: dict[int, frozenset[int]] = {}
        self._reading: dict[str, frozenset[int]] = {}
        self._of_class: dict[tuple[bool, ...], frozenset[int]] = {}
        """Steps that read a character, by the sets that have it: most characters are alike."""
        self.start = self._enter(start)

    def reading(self, character: str) -> frozenset[int]:
        """Steps that read this character."""
        known = self._reading.get(character)
        if known is None:
            flags = tuple(contains(each, character) for each in self.sets)
            if flags not in self._of_class:
                sets = {each for each, reads in zip(self.sets, flags, strict=True) if reads}
                steps = [(place, code) for place, code in enumerate(self._code) if isinstance(code, PatternStep)]
                self._of_class[flags] = frozenset(place for place, code in steps if code.characters in sets)
            known = self._reading[character] = self._of_class[flags]
        return known

    def after(self, step: int) -> frozenset[int]:
        """Steps, and MATCH, that may follow a step, without those that reach no end."""
        code = self._code[step]
        assert isinstance(code, PatternStep)
        return self._enter(code.then)

    def _enter(self, instruction: int) -> frozenset[int]:
        known = self._entered.get(instruction)
        if known is None:
            seen, queue = {instruction}, [instruction]
            for place in queue:
                code = self._code[place]
                new = () if isinstance(code, PatternStep) else set(code) - seen
                queue += new
                seen.update(new)
            known = frozenset(
                place
                for place in seen
                if self.shortest[place][0] < NEVER and (place == MATCH or isinstance(self._code[place], PatternStep))
            )
            self._entered[instruction] = known
        return known

    @cached_property
    def sets(self) -> list[Ranges]:
        """Sets of characters that the steps read."""
        return list(dict.fromkeys(code.characters for code in self._code if isinstance(code, PatternStep)))

    def matches(self, text: str) -> bool:
        """Same result as `re.fullmatch`, in time linear in the text for every pattern."""
        places = self.start
        for character in text:
            places = frozenset[int]().union(*map(self.after, self.reading(character) & places))
        return MATCH in places

    # Compilation, from the back: every part gets the instruction to continue at --------------------------------------

    def _add(self, instruction: PatternStep | tuple[int, ...]) -> int:
        if len(self._code) >= SIZE_BUDGET:
            raise UnsupportedPattern(
                f"this regular expression needs more than {SIZE_BUDGET:,} steps once its repetitions are written out",
                "smaller numbers in {..} make it smaller; a length is better said with len()",
            )
        self._code.append(instruction)
        return len(self._code) - 1

    def _sequence(self, nodes: Iterable[Node], flags: int, then: int, *, first: bool, last: bool) -> int:
        """Entry of a sequence. `first`: no text can precede it. `last`: no text can follow it."""
        parts = list(nodes)
        begins = next((index for index, part in enumerate(parts) if part[0] is not sre.AT), len(parts))
        ends = next((index for index in range(len(parts), 0, -1) if parts[index - 1][0] is not sre.AT), 0)
        for index in reversed(range(len(parts))):
            at_start, at_end = first and index <= begins, last and index >= ends - 1
            then = self._node(parts[index], flags, then, first=at_start, last=at_end)
        return then

    def _found(self, nodes: list[Node], flags: int) -> int:
        """Entry of the texts in which a sequence is found: any text may stand around it, except at its anchors."""
        begin = nodes.pop(0)[1] if nodes and nodes[0] in BEGINNINGS else None
        end = nodes.pop()[1] if nodes and nodes[-1] in ENDINGS else None
        lines = bool(flags & re.MULTILINE)
        after = MATCH if end is not None and not lines else self._anything(MATCH)
        if end is sre.AT_END:
            after = self._add((MATCH, self._add(PatternStep(LINE_FEED, after))))
        elif end is sre.AT_END_STRING:
            after = MATCH
        start = self._sequence(nodes, flags, after, first=False, last=False)
        at_start = self._way == "match" or begin is sre.AT_BEGINNING_STRING or (begin is not None and not lines)
        self.anchored = at_start and (end is sre.AT_END_STRING or (end is not None and not lines))
        if at_start:
            return start
        if begin is None:
            return self._anything(start)
        return self._add((start, self._anything(self._add(PatternStep(LINE_FEED, start)))))

    def _anything(self, then: int) -> int:
        loop = self._add(())
        self._code[loop] = (self._add(PatternStep(others(()), loop)), then)
        return loop

    def _node(self, node: Node, flags: int, then: int, *, first: bool, last: bool) -> int:
        code, given = node
        if code is sre.AT:
            return self._anchor(given, then, first=first, last=last)
        if code is sre.BRANCH:
            _, branches = given
            return self._add(tuple(self._sequence(each, flags, then, first=first, last=last) for each in branches))
        if code is sre.SUBPATTERN:
            _, added, removed, inner = given
            return self._sequence(inner, _within(flags, added, removed), then, first=first, last=last)
        if code is sre.MAX_REPEAT or code is sre.MIN_REPEAT:  # greedy and lazy repetition have the same language
            least, most, body = given
            return self._repeat(least, most, body, flags, then, first=first, last=last)
        if code in REFUSED:
            raise UnsupportedPattern(f"{REFUSED[code]} cannot be enforced in a regular expression", HINT)
        return self._add(PatternStep(characters_of(node, flags), then))

    def _anchor(self, where: object, then: int, *, first: bool, last: bool) -> int:
        """Entry of an anchor, allowed only where it is redundant: the whole text has to match anyway."""
        if where in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING) and first:
            return then
        if where in (sre.AT_END, sre.AT_END_STRING) and last:
            return then
        if where in (sre.AT_BOUNDARY, sre.AT_NON_BOUNDARY):
            raise UnsupportedPattern(r"the word borders \b and \B cannot be enforced in a regular expression", HINT)
        raise UnsupportedPattern(*MISPLACED[self._way])

    def _repeat(
        self, least: int, most: int, body: Iterable[Node], flags: int, then: int, *, first: bool, last: bool
    ) -> int:
        nodes = list(body)
        once = most == 1
        if not nodes:
            return then
        if most == sre.MAXREPEAT:
            then = self._loop(nodes, flags, then)
        else:
            after = then
            for _ in range(most - least):
                entry = self._sequence(nodes, flags, then, first=first and once, last=last and once)
                then = self._add((entry, after))
        for _ in range(least):
            then, before = self._sequence(nodes, flags, then, first=first and once, last=last and once), then
            if then == before:
                break  # the part is empty, however often
        return then

    def _loop(self, nodes: list[Node], flags: int, then: int) -> int:
        loop = self._add(())
        self._code[loop] = (self._sequence(nodes, flags, loop, first=False, last=False), then)
        return loop

    def _distances(self) -> list[tuple[int, int]]:
        """Distances of all instructions: Dijkstra, backwards from MATCH."""
        before: list[list[int]] = [[] for _ in self._code]
        costs = [(0, 0)] * len(self._code)
        for place, code in enumerate(self._code):
            if isinstance(code, PatternStep):
                lowest = code.characters[0][0] if code.characters else None
                costs[place] = (NEVER, NEVER) if lowest is None else (1, len(chr(lowest).encode()))
            for after in (code.then,) if isinstance(code, PatternStep) else code:
                before[after].append(place)
        found = [(NEVER, NEVER)] * len(self._code)
        found[MATCH] = (0, 0)
        queue = [((0, 0), MATCH)]
        while queue:
            far, here = heappop(queue)
            if far == found[here]:
                for place in before[here]:
                    longer = far[0] + costs[place][0], far[1] + costs[place][1]
                    if longer < found[place]:
                        found[place] = longer
                        heappush(queue, (longer, place))
        return found


@lru_cache(maxsize=256)
def program(pattern: str, flags: int, way: ProgramWay = "fullmatch") -> PatternProgram:
    """Program of the texts in which Python's `re` finds a pattern in some way, or of the matches of a stop; cached.

    Raises UnsupportedPattern.
    """
    return PatternProgram(pattern, flags, way)


class Counted(NamedTuple):
    """A pattern that only bounds the number of characters of one set; `most` is None without an upper bound."""

    characters: Ranges
    least: int
    most: int | None


@lru_cache(maxsize=256)
def counted(pattern: str, flags: int) -> Counted | None:
    """A whole `[a-z]{2,60}`, else None. A set and a length need far fewer states than steps that are written out."""
    nodes, flags = _parse(pattern, flags)
    while len(nodes) == 1 and nodes[0][0] is sre.SUBPATTERN:
        _, added, removed, inner = nodes[0][1]
        nodes, flags = list(inner), _within(flags, added, removed)
    if len(nodes) != 1 or nodes[0][0] not in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        return None
    least, most, body = nodes[0][1]
    parts = list(body)
    if len(parts) != 1 or parts[0][0] not in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY):
        return None
    if least < 2 and most in (1, sre.MAXREPEAT):
        return None  # `?`, `*` and `+` count nothing
    return Counted(characters_of(parts[0], flags), int(least), None if most == sre.MAXREPEAT else int(most))


def _parse(pattern: str, flags: int) -> tuple[list[Node], int]:
    tree = _parsed(pattern, flags)
    return list(tree), tree.state.flags


def _parsed(pattern: str, flags: int) -> Any:
    """The only use of Python's parser, which is not public. Its tree has been stable since 3.11."""
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of `[[`
            return _parser.parse(pattern, flags)
    except (re.error, OverflowError) as error:
        raise UnsupportedPattern(f"this is not a regular expression: {error}", NO_PATTERN) from None
    except RecursionError:
        raise UnsupportedPattern("this regular expression is nested too deep") from None


def check_stop(pattern: str, flags: int, longest: int | None) -> None:
    """Raises UnsupportedPattern for a stop that cannot be followed, or whose matches may have more characters."""
    program(pattern, flags, "stop")
    least, most = _parsed(pattern, flags).getwidth()
    if least == 0:
        raise UnsupportedPattern(
            "this pattern matches the empty text, so that the hole would stop before anything is said",
            "write + instead of *, or take away a ?",
        )
    if longest is not None and most > longest:
        size = f"{most} characters" if most < 10**6 else "any number of characters"
        raise UnsupportedPattern(
            f"what the value stops before can have {size}, more than the {longest} that can be held back",
            "write a bound, such as {1,20} instead of +",
        )


def _within(flags: int, added: int, removed: int) -> int:
    """Flags inside a group. `a` and `u` replace each other."""
    kept = flags & ~re.ASCII if added & (re.ASCII | re.UNICODE) else flags
    return (kept | added) & ~removed


def characters_of(node: Node, flags: int) -> Ranges:
    """Set of a node that is one character. Python's own re decides where case or Unicode's categories matter."""
    code, given = node
    if code is sre.ANY:
        return others(() if flags & re.DOTALL else LINE_FEED)
    flags &= re.IGNORECASE | re.ASCII
    items: list[Node] = list(given) if code is sre.IN else [(sre.LITERAL, given)]
    negated = code is sre.NOT_LITERAL or items[0][0] is sre.NEGATE
    items = [item for item in items if item[0] is not sre.NEGATE]
    if flags & re.IGNORECASE or any(item[0] is sre.CATEGORY for item in items):
        return matched(f"[{'^' if negated else ''}{''.join(map(_class_item, items))}]", flags)
    ranges = joined(given if item is sre.RANGE else (given, given) for item, given in items)
    return others(ranges) if negated else ranges


def _class_item(item: Node) -> str:
    code, given = item
    if code is sre.CATEGORY:
        return CATEGORIES[given]
    low, high = given if code is sre.RANGE else (given, given)
    return f"\\U{low:08x}-\\U{high:08x}"
