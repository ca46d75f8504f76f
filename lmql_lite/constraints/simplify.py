"""Normal form of terms for the automaton: same texts, same stops, fewer machines.

`not` stands only before choices, patterns, beginnings and endings. Constants are folded. A conjunction has one length
per unit and one term of forbidden phrases. A choice keeps only options that the rest of its conjunction accepts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from lmql_lite.constraints.pattern import class_text, counted, program
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
    atoms,
    conjuncts,
    contains,
    mapped,
    measured,
)

Part = TypeVar("Part")
ENDLESS = 2**31
"""More than any hole ever has of any unit."""
TRUE = Constant(True)
FALSE = Constant(False)


def satisfies(term: Term, text: bytes, count: Callable[[str], int] | None = None) -> bool:
    """True if a whole value meets the term, as far as its text shows.

    Stops count as met, because they say where a value ends, not what it is. So do bounds on tokens, unless `count`
    returns the number of tokens of a text.
    """
    return _test(term, count)(text)


def _test(term: Term, count: Callable[[str], int] | None = None) -> Callable[[bytes], bool]:
    """`satisfies` for many texts: options are looked up in a set."""
    match term:
        case Length(unit="tokens") if count is None:
            return lambda text: True
        case Length(at_least, at_most, unit):
            most = ENDLESS if at_most is None else at_most
            measure = count if unit == "tokens" and count else partial(measured, unit=unit)
            return lambda text: at_least <= measure(text.decode()) <= most
        case Choice(options):
            return frozenset(options).__contains__
        case Matches(pattern, flags, _, way):  # Python's own matcher can take exponential time
            return lambda text: program(pattern, flags, way).matches(text.decode())
        case Begins(phrases):
            return lambda text: text.startswith(phrases)
        case Ends(phrases):
            return lambda text: text.endswith(phrases)
        case Lacks(phrases):
            return lambda text: not any(phrase in text for phrase in phrases)
        case Not(part):
            fails = _test(part, count)
            return lambda text: not fails(text)
        case And(terms):
            every = [_test(part, count) for part in terms]
            return lambda text: all(test(text) for test in every)
        case Or(terms):
            either = [_test(part, count) for part in terms]
            return lambda text: any(test(text) for test in either)
    holds = not isinstance(term, Constant) or term.holds  # Python judges the place inside a value
    return lambda text: holds


def conflict(parts: Sequence[Part], is_impossible: Callable[[Sequence[Part]], bool]) -> list[Part]:
    """A minimal set of the parts that still cannot hold together.

    The shortest contradictory suffix of the list begins with a part that cannot be spared. A binary search finds it.
    """
    needed: list[Part] = []
    while not is_impossible(needed):
        rest = parts
        start = bisect_left(range(len(rest)), True, key=lambda at: not is_impossible([*needed, *rest[at + 1 :]]))
        if start == len(rest):  # too large to decide
            return [*needed, *rest]
        needed, parts = [*needed, rest[start]], rest[start + 1 :]
    return needed


def has_stops(term: Term) -> bool:
    return any(isinstance(atom, Stop) for atom in atoms(term))


def counts_tokens(term: Term) -> bool:
    return any(isinstance(atom, Length) and atom.unit == "tokens" for atom in atoms(term))


def with_characters(term: Term, each: int) -> Term:
    """The term with bounds on characters in place of bounds on tokens, at up to `each` characters a token."""

    def change(part: Term) -> Term:
        match part:
            case Not(inner):
                return Not(with_characters(inner, each), part.span)
            case Length(at_least, at_most, "tokens"):
                least = (at_least - 1) * each + 1 if at_least > 0 else 0
                return Length(least, None if at_most is None else at_most * each, "characters", part.span)
        return part

    return mapped(term, change)


def simplify(term: Term) -> Term:
    match term:
        case Length(at_least, at_most) if at_most is not None and at_least > at_most:
            return FALSE
        case Length(at_least) if at_least >= ENDLESS:
            return FALSE
        case Length(at_least, at_most, unit) if at_most is not None and at_most >= ENDLESS:
            return simplify(Length(at_least, None, unit, term.span))
        case Length(at_least, None) if at_least <= 0:
            return TRUE
        case Length(_, 0, Occurrences(phrase)):
            return Lacks((phrase,), term.span)
        case Begins(phrases) | Ends(phrases) if not phrases or b"" in phrases:
            return TRUE if phrases else FALSE
        case Choice(options):
            texts = tuple(dict.fromkeys(option for option in options if _is_text(option)))
            return Choice(texts) if texts else FALSE
        case Matches(pattern, flags, delimits, "fullmatch"):
            many = counted(pattern, flags)
            if many is None or not many.characters:
                return term
            either = Matches(f"{class_text(many.characters)}*", 0, delimits, span=term.span)
            return _all([either, simplify(Length(many.least, many.most, span=term.span))])
        case Not(part):
            return _negate(part)
        case And(terms):
            return _all([simplify(part) for part in terms])
        case Or(terms):
            return _any([simplify(part) for part in terms])
    return term


def _negate(term: Term) -> Term:
    match term:
        case Constant(holds):
            return FALSE if holds else TRUE
        case Length(at_least, at_most, unit):
            shorter: list[Term] = [Length(0, at_least - 1, unit)] if at_least > 0 else []
            longer: list[Term] = [Length(at_most + 1, None, unit)] if at_most is not None else []
            return simplify(Or((*shorter, *longer)))
        case Not(part):
            return simplify(part)
        case And(terms):
            return _any([_negate(part) for part in terms])
        case Or(terms):
            return _all([_negate(part) for part in terms])
        case Stop():
            return FALSE
    match plain := simplify(term):
        case Choice() | Matches() | Begins() | Ends():
            return Not(plain)
        case Lacks(phrases):
            return _any([contains(phrase) for phrase in phrases])
    return _negate(plain)


def _all(terms: list[Term]) -> Term:
    parts: dict[Term, None] = {}
    for term in terms:
        parts.update(dict.fromkeys(conjuncts(term)))
    parts.pop(TRUE, None)
    if FALSE in parts:
        return FALSE
    reaches = [part.reach for part in parts if isinstance(part, Matches)]
    if reaches and max(low for low, _ in reaches) > min(high for _, high in reaches):
        return FALSE
    for unit in dict.fromkeys(part.unit for part in parts if isinstance(part, Length)):
        lengths = [part for part in parts if isinstance(part, Length) and part.unit == unit]
        if len(lengths) > 1:
            bounds = [part.at_most for part in lengths if part.at_most is not None]
            whole = simplify(Length(max(part.at_least for part in lengths), min(bounds, default=None), unit))
            if whole == FALSE:
                return FALSE
            parts = {whole: None, **{part: None for part in parts if part not in lengths}}
    forbidden = [phrase for part in parts if isinstance(part, Lacks) for phrase in part.phrases]
    if forbidden:
        parts = {part: None for part in parts if not isinstance(part, Lacks)}
        parts[Lacks(tuple(dict.fromkeys(forbidden)))] = None
    choice = next((part for part in parts if isinstance(part, Choice)), None)
    if choice is None:
        return And(tuple(parts)) if len(parts) != 1 else next(iter(parts))
    tests = [_test(part) for part in parts if part is not choice]
    options = tuple(text for text in choice.options if all(test(text) for test in tests))
    # of the other parts, only stops and bounds on tokens remain to be checked
    # an inclusive stop that no option ends with never decides where the value ends
    rest = [part for part in parts if (has_stops(part) or counts_tokens(part)) and not _is_idle(part, options)]
    if not options:
        return FALSE
    return And((Choice(options), *rest)) if rest else Choice(options)


def _any(terms: list[Term]) -> Term:
    parts: dict[Term, None] = {}
    for term in terms:
        parts.update(dict.fromkeys(term.terms if isinstance(term, Or) else (term,)))
    parts.pop(FALSE, None)
    if TRUE in parts and not any(map(has_stops, parts)):
        return TRUE
    options = tuple(text for part in parts if isinstance(part, Choice) for text in part.options)
    rest: list[Term] = [part for part in parts if not isinstance(part, Choice)]
    if options:
        rest.insert(0, Choice(tuple(dict.fromkeys(options))))
    if not rest:
        return FALSE
    return Or(tuple(rest)) if len(rest) != 1 else rest[0]


def _is_idle(part: Term, options: tuple[bytes, ...]) -> bool:
    """True if this is an inclusive stop at a phrase with which none of the options ends."""
    if not isinstance(part, Stop) or not part.inclusive or part.flags is not None:
        return False
    return not any(option.endswith(part.phrase) for option in options)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
