"""Regular expressions from languages, in the subset common to all engines, and characters as all parsers read them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise, takewhile

from lmql_lite.constraints.charset import SURROGATES, Ranges
from lmql_lite.constraints.language import LAST, Edges, Language

LONGEST = 4000
"""Maximum characters in a pattern; longer ones are better written as rules."""
DEEPEST = 40
"""Maximum nesting of groups; engines have limits of their own."""
PATIENCE = 100_000
"""Maximum number of items written while building one expression."""
IN_STRINGS = frozenset('"\\')
IN_CLASSES = frozenset("[\\]")
IN_PATTERNS = frozenset(".^$*+?()[]{}|\\")
"""Characters that need a backslash: in strings of grammars, in classes, and outside both in a pattern."""
NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def pattern(language: Language) -> str | None:
    """Pattern for the whole text: classes, groups, `|`, `*`, `+`, `?` and `{m,n}`. None if it would be too long."""
    expression = _expression(language)
    if expression is None or _depth(expression) > DEEPEST:
        return None
    written = _pattern(expression)
    return written if len(written) <= LONGEST else None


# Characters ----------------------------------------------------------------------------------------------------------


def find_ways(edges: Edges) -> dict[int, Ranges]:
    """Characters by which a rule leads to each other rule."""
    ways: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for low, high, after in edges:
        ways[after].append((low, high))
    return {after: _united(ranges) for after, ranges in ways.items()}


def _united(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, with neighbours merged. Surrogates never occur, so ranges on both sides of them merge too."""
    united: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if united and (united[-1][1] + 1 >= low or (united[-1][1] + 1, low - 1) == SURROGATES):
            united[-1] = (united[-1][0], max(united[-1][1], high))
        else:
            united.append((low, high))
    return tuple(united)


def is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def character_text(code: int, special: frozenset[str]) -> str:
    character = chr(code)
    if character in special:
        return f"\\{character}"
    if code >= 0x80 or character.isprintable():
        return character
    return NAMED.get(character, f"\\x{code:02X}")


def class_text(ranges: Ranges) -> str:
    """Class of characters: those in the ranges, or all but some of ASCII.

    Only ASCII is ever excluded by name: otherwise llama.cpp refuses every token that ends inside such a character.

    `^` and `-` are placed where they mean nothing else and need no backslash, which some parsers refuse there. No digit
    follows a number, because xgrammar reads as many digits as it finds.
    """
    negated = len(ranges) > 1 and ranges[0][0] == 0 and ranges[-1][0] <= 0x80 and ranges[-1][1] == LAST
    if negated:
        ranges = tuple((high + 1, low - 1) for (_, high), (low, _) in pairwise(ranges))
    marks = ""
    for mark in "^-":
        if any(ord(mark) in ends for ends in ranges):
            marks += mark
            ranges = _without(ranges, ord(mark))
    ends = [(character_text(low, IN_CLASSES), character_text(high, IN_CLASSES)) for low, high in ranges]
    ends.sort(key=lambda each: (each[1].startswith(r"\x"), each[0].startswith("\\")))
    inside = "".join(low if low == high else f"{low}-{high}" for low, high in ends)
    return f"[^{inside}{marks}]" if negated else f"[{inside}{marks}]" if inside else "[-^]"


def _without(ranges: Ranges, code: int) -> Ranges:
    halves = [half for low, high in ranges for half in ((low, min(high, code - 1)), (max(low, code + 1), high))]
    return tuple((low, high) for low, high in halves if low <= high)


# Expressions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Repeated:
    """An expression repeated `least` to `most` times; `most` is None for no bound."""

    part: _Expression
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Either:
    """Choice between expressions, none of them empty, no two with the same first or last item."""

    options: tuple[_Expression, ...]


_Item = Ranges | _Repeated | _Either
_Expression = tuple[_Item, ...]
"""Sequence of items."""


def _expression(language: Language) -> _Expression | None:
    """Expression for all texts of a language, by eliminating rule after rule (Brzozowski, McCluskey 1963).

    Rules with the fewest outgoing edges go first, so that the end of a text is known before its beginning. None if this
    takes too long.
    """
    end = len(language.rules)
    ways = _rows(language)
    before: list[set[int]] = [set() for _ in range(end + 1)]
    for number, leads in enumerate(ways):
        for after in leads:
            before[after].add(number)
    queue = [(len(leads), number) for number, leads in enumerate(ways) if leads and number]
    heapify(queue)
    written = 0
    while queue:
        many, gone = heappop(queue)
        if many != len(ways[gone]):
            continue  # a later entry has the current number
        leads, ways[gone] = ways[gone], {}
        again = _any_times(leads.pop(gone, ()))
        for number in sorted(before[gone]):
            if gone not in ways[number]:
                continue
            head = _joined(ways[number].pop(gone), again)
            for after, tail in leads.items():
                through = _joined(head, tail)
                known = ways[number].get(after)
                ways[number][after] = through if known is None else _either([known, through])
                before[after].add(number)
                written += _size(ways[number][after])
            if number:
                heappush(queue, (len(ways[number]), number))
        if written > PATIENCE:
            return None
    return _joined(_any_times(ways[0].pop(0, ())), ways[0][end])


def _rows(language: Language) -> list[dict[int, _Expression]]:
    """Expression by which each rule leads to each other rule; the number after the last rule is the end. Rules inside a
    linear chain are left out."""
    end = len(language.rules)
    ways = [find_ways(rule.edges) for rule in language.rules]
    led_to = Counter(after for leads in ways for after in leads)
    inside = [
        number and led_to[number] == len(ways[number]) == 1 and not rule.accepts
        for number, rule in enumerate(language.rules)
    ]
    found: list[dict[int, _Expression]] = []
    for number, rule in enumerate(language.rules):
        leads: dict[int, _Expression] = {end: ()} if rule.accepts else {}
        for after, ranges in () if inside[number] else ways[number].items():
            row = [ranges]
            while inside[after]:
                [(after, ranges)] = ways[after].items()
                row.append(ranges)
            said = _joined(tuple(row))
            leads[after] = _either([leads[after], said]) if after in leads else said
        found.append(leads)
    return found


def _joined(*expressions: _Expression) -> _Expression:
    """Concatenation, in which adjacent repetitions of the same item become one."""
    row: list[_Item] = []
    for item in chain.from_iterable(expressions):
        if row and isinstance(item, _Either) and all(_is_alike(row[-1], option[0]) for option in item.options):
            last = (row.pop(),)
            row.append(_Either(tuple(_joined(last, option) for option in item.options)))
        elif row and _is_alike(row[-1], item):
            row[-1] = _together(_times(row[-1]), _times(item))
        else:
            row.append(item)
    return tuple(row)


def _is_alike(first: _Item, second: _Item) -> bool:
    """True if both repeat the same part. Single characters, as in `ll`, stay as they are."""
    plain = isinstance(first, tuple) and isinstance(second, tuple) and is_single(first)
    return not plain and _times(first).part == _times(second).part


def _times(item: _Item) -> _Repeated:
    return item if isinstance(item, _Repeated) else _Repeated((item,), 1, 1)


def _together(first: _Repeated, second: _Repeated) -> _Repeated:
    most = None if first.most is None or second.most is None else first.most + second.most
    return _Repeated(first.part, first.least + second.least, most)


def _any_times(expression: _Expression) -> _Expression:
    match expression:
        case ():
            return ()
        case (_Repeated(part, 0 | 1, _),):
            return (_Repeated(part, 0, None),)
    return (_Repeated(expression, 0, None),)


def _either(expressions: Iterable[_Expression]) -> _Expression:
    """Choice between expressions: common beginnings and ends are written once, and classes merge into one class."""
    options: dict[_Expression, None] = {}
    for expression in expressions:
        match expression:
            case (_Either(several),):
                options.update(dict.fromkeys(several))
            case (_Repeated(part, 0, 1),):
                options.update({part: None, (): None})
            case _:
                options[expression] = None
    distinct = _shared(_shared(_counted([option for option in options if option]), 0), -1)
    classes = [option[0] for option in distinct if len(option) == 1 and isinstance(option[0], tuple)]
    if len(classes) > 1:
        rest = [option for option in distinct if len(option) > 1 or not isinstance(option[0], tuple)]
        distinct = [(_united(ends for ranges in classes for ends in ranges),), *rest]
    whole: _Expression = (_Either(tuple(distinct)),) if len(distinct) > 1 else distinct[0] if distinct else ()
    return _optional(whole) if () in options else whole


def _counted(options: list[_Expression]) -> list[_Expression]:
    """Options with a bound instead of a stop, as in `b|[^b].`, as `[^b]?b|[^b]{2}`, so that repetitions can merge."""
    match sorted(options, key=len):
        case [(tuple(stop),), (tuple(other), tuple(bound))] if stop != other and _united((*stop, *other)) == bound:
            return [((_Repeated((other,), 0, 1), stop)), (_Repeated((other,), 2, 2),)]
    return options


def _shared(options: list[_Expression], side: int) -> list[_Expression]:
    """Fewer options: those that begin (side 0) or end (side -1) with the same items merge."""
    alike: dict[_Item, list[_Expression]] = defaultdict(list)
    for option in options:
        alike[option[side]].append(option)
    found = []
    for group in alike.values():
        if len(group) == 1:
            found += group
            continue
        columns = zip(*(option if side == 0 else option[::-1] for option in group), strict=False)
        many = sum(1 for _ in takewhile(lambda items: all(item == items[0] for item in items), columns))
        if side == 0:
            found.append(_joined(group[0][:many], _either(option[many:] for option in group)))
        else:
            found.append(_joined(_either(option[:-many] for option in group), group[0][-many:]))
    return found


def _optional(expression: _Expression) -> _Expression:
    match expression:
        case () | (_Repeated(_, 0, _),):
            return expression
        case (_Repeated(part, 1, most),):
            return (_Repeated(part, 0, most),)
    return (_Repeated(expression, 0, 1),)


def _size(expression: _Expression) -> int:
    """Number of items, nested items included."""
    size = len(expression)
    for item in expression:
        if isinstance(item, _Repeated):
            size += _size(item.part)
        elif isinstance(item, _Either):
            size += sum(map(_size, item.options))
    return size


def _depth(expression: _Expression) -> int:
    """Nesting depth of the groups."""
    inside = [0]
    for item in expression:
        if isinstance(item, _Repeated):
            inside.append(1 + _depth(item.part))
        elif isinstance(item, _Either):
            inside.append(1 + max(map(_depth, item.options)))
    return max(inside)


def _pattern(expression: _Expression) -> str:
    match expression:
        case (_Either(options),):
            return "|".join(map(_pattern, options))
    return "".join(map(_said, expression))


def _said(item: _Item) -> str:
    match item:
        case _Either():
            return f"({_pattern((item,))})"
        case _Repeated(part, least, most):
            inner = _pattern(part)
            whole = inner if len(part) == 1 and isinstance(part[0], tuple) else f"({inner})"
            times = _how_often(least, most)
            return whole * least if least == most and len(whole) * (least - 1) <= len(times) else whole + times
    if is_single(item):
        return character_text(item[0][0], IN_PATTERNS)
    return class_text(item)


def _how_often(least: int, most: int | None) -> str:
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{least},}}"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"
