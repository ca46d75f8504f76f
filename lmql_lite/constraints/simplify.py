"""Normal form of terms for the automaton: same texts, same stops, fewer machines.

`not` stands only before choices, patterns, beginnings and endings. Constants are folded. A conjunction has one length
per unit and one term of forbidden phrases. A choice keeps only options that the rest of its conjunction accepts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import TypeVar

from lmql_lite.constraints.pattern import class_text, counted, program
from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Constant,
    Contains,
    Ends,
    Inside,
    Lacks,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    StopPattern,
    Term,
    measured,
    starts_character,
)

Part = TypeVar("Part")
ENDLESS = 2**31
"""More than any hole ever has of any unit."""
TRIED = 100_000
"""Most combinations of beginnings, or of endings, that are tried."""
TRUE = Constant(True)
FALSE = Constant(False)


def characters(text: bytes) -> int:
    """Number of code points of well-formed UTF-8."""
    return sum(map(starts_character, text))


def satisfies(term: Term, text: bytes, count: Callable[[str], int] | None = None) -> bool:
    """True if a whole value meets the term, as far as its text shows.

    Stops count as met, because they say where a value ends, not what it is. So do bounds on tokens, unless `count`
    returns the number of tokens of a text.
    """
    match term:
        case Constant(holds):
            return holds
        case Length(unit="tokens") if count is None:
            return True
        case Length(at_least, at_most, unit):
            length = count(text.decode()) if unit == "tokens" and count else measured(text.decode(), unit)
            return at_least <= length and (at_most is None or length <= at_most)
        case Choice(options):
            return text in options
        case Matches(pattern, flags):
            return program(pattern, flags).matches(text.decode())  # Python's own matcher can take exponential time
        case Contains(phrase):
            return phrase in text
        case Begins(phrases):
            return text.startswith(phrases)
        case Ends(phrases):
            return text.endswith(phrases)
        case Lacks(phrases):
            return not any(phrase in text for phrase in phrases)
        case Stop() | StopPattern() | Inside():  # Python judges the place inside a value
            return True
        case Not(part):
            return not satisfies(part, text, count)
        case And(terms):
            return all(satisfies(part, text, count) for part in terms)
        case Or(terms):
            return any(satisfies(part, text, count) for part in terms)


def _test(term: Term) -> Callable[[bytes], bool]:
    """`satisfies` for many texts: options are looked up in a set."""
    match term:
        case Choice(options):
            return frozenset(options).__contains__
        case Not(Choice(options)):
            excluded = frozenset(options)
            return lambda text: text not in excluded
        case And(terms):
            every = list(map(_test, terms))
            return lambda text: all(test(text) for test in every)
        case Or(terms):
            either = list(map(_test, terms))
            return lambda text: any(test(text) for test in either)
    return partial(satisfies, term)


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
    match term:
        case And(terms) | Or(terms):
            return any(has_stops(part) for part in terms)
        case Not(part):
            return has_stops(part)
    return isinstance(term, Stop | StopPattern)


def counts_tokens(term: Term) -> bool:
    match term:
        case And(terms) | Or(terms):
            return any(counts_tokens(part) for part in terms)
        case Not(part):
            return counts_tokens(part)
    return isinstance(term, Length) and term.unit == "tokens"


def without_tokens(term: Term) -> Term:
    """The term with bounds on tokens taken as true."""
    match term:
        case And(terms):
            return And(tuple(map(without_tokens, terms)), term.span)
        case Or(terms):
            return Or(tuple(map(without_tokens, terms)), term.span)
        case Not(part) if counts_tokens(part):
            return without_tokens(_negate(part))
        case Length(unit="tokens"):
            return TRUE
    return term


def with_characters(term: Term, each: int) -> Term:
    """The term with bounds on characters in place of bounds on tokens, at up to `each` characters a token."""
    match term:
        case And(terms):
            return And(tuple(with_characters(part, each) for part in terms), term.span)
        case Or(terms):
            return Or(tuple(with_characters(part, each) for part in terms), term.span)
        case Not(part):
            return Not(with_characters(part, each), term.span)
        case Length(at_least, at_most, "tokens"):
            least = (at_least - 1) * each + 1 if at_least > 0 else 0
            return Length(least, None if at_most is None else at_most * each, "characters", term.span)
    return term


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
        case Contains(b""):
            return TRUE
        case Begins(phrases) | Ends(phrases) if not phrases or b"" in phrases:
            return TRUE if phrases else FALSE
        case Choice(options):
            texts = tuple(dict.fromkeys(option for option in options if _is_text(option)))
            return Choice(texts) if texts else FALSE
        case Matches(pattern, flags, delimits):
            many = counted(pattern, flags)
            if many is None or not many.characters:
                return term
            either = Matches(f"{class_text(many.characters)}*", 0, delimits, term.span)
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
        case Stop() | StopPattern():
            return FALSE
    match plain := simplify(term):
        case Choice() | Matches() | Begins() | Ends():
            return Not(plain)
        case Contains(phrase):
            return Lacks((phrase,))
        case Lacks(phrases):
            return _any([Contains(phrase) for phrase in phrases])
    return _negate(plain)


def _all(terms: list[Term]) -> Term:
    parts: dict[Term, None] = {}
    for term in terms:
        parts.update(dict.fromkeys(term.terms if isinstance(term, And) else (term,)))
    parts.pop(TRUE, None)
    if FALSE in parts:
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
        if any(phrase in part.phrase for part in parts if isinstance(part, Contains) for phrase in forbidden):
            return FALSE
    for kind, agrees in ((Begins, bytes.startswith), (Ends, bytes.endswith)):
        edges = [part for part in parts if isinstance(part, kind)]
        if not edges or prod(len(part.phrases) for part in edges) * (1 + len(forbidden)) > TRIED:
            continue
        texts = edges[0].phrases
        for part in edges[1:]:
            pairs = (sorted(pair, key=len) for pair in product(texts, part.phrases))
            texts = tuple(dict.fromkeys(long for short, long in pairs if agrees(long, short)))
        possible = tuple(text for text in texts if not any(phrase in text for phrase in forbidden))
        if not possible:
            return FALSE
        if len(edges) > 1 or len(possible) < len(texts):
            parts = {kind(possible): None, **{part: None for part in parts if part not in edges}}
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
    """True if this is an inclusive stop with which none of the options ends."""
    return isinstance(part, Stop) and part.inclusive and not any(option.endswith(part.phrase) for option in options)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
