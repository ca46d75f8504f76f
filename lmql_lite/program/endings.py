"""Where a value is over, as far as its term says it: for people who want to know before they ask."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from lmql_lite.constraints.language import Language
from lmql_lite.constraints.terms import ANYTHING, And, Choice, Length, Matches, Or, Stop, StopPattern, Term


def endings(term: Term) -> Iterator[str]:
    """In words. What else may end it, end-of-text and `max_tokens`, may end any hole."""
    for part in dict.fromkeys(parts_of(term)):
        match part:
            case Stop(phrase, inclusive):
                yield f"{'after' if inclusive else 'before'} {phrase.decode()!r}"
            case StopPattern(pattern, _, inclusive):
                yield f"{'after' if inclusive else 'before'} what {pattern!r} matches"
            case Choice(options):
                yield f"where one of {len(options):,} texts is complete"
            case Matches(delimits=True):
                yield "where its pattern cannot go on"
            case Length(_, at_most, unit) if at_most is not None:
                yield f"at {at_most:,} {unit}"


def parts_of(term: Term) -> Iterator[Term]:
    """What a term is made of, as far as it may end a hole."""
    match term:
        case And(terms) | Or(terms):
            for part in terms:
                yield from parts_of(part)
        case _:
            yield term


def fits_all(term: Term) -> bool:
    """Whether every text fits."""
    return term == ANYTHING or all(isinstance(part, Stop | StopPattern) for part in parts_of(term))


def longest_text(language: Language) -> float:
    """In bytes; inf where a rule leads back to itself."""
    longest: dict[int, float] = {}
    order, seen, waiting = list[int](), set[int](), [(0, False)]
    while waiting:
        number, is_done = waiting.pop()
        if is_done:
            order.append(number)
        elif number not in seen:
            seen.add(number)
            waiting += [(number, True), *((after, False) for _, _, after in language.rules[number].edges)]
    place = {number: at for at, number in enumerate(order)}
    for number in order:
        edges = language.rules[number].edges
        if any(place[after] >= place[number] for _, _, after in edges):
            return inf
        longest[number] = max((_bytes_of(high) + longest[after] for _, high, after in edges), default=0.0)
    return longest[0]


def _bytes_of(character: int) -> int:
    return 1 + (character >= 0x80) + (character >= 0x800) + (character >= 0x10000)
