"""Which conditions a server holds its model to by itself, and which are only checked as its text arrives (S17)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.language import ANYTHING, Language
from lmql_lite.constraints.pushdown import pushed
from lmql_lite.constraints.terms import And, Stop, Term
from lmql_lite.models.base import Endpoint, JsonSchema
from lmql_lite.program.ops import Hole
from lmql_lite.runtime.plan import Way
from lmql_lite.runtime.writer import Outlook

KEPT = 256
FREE_SHARE = 0.9
"""A hole in which so much of printable ASCII may come first is one that free text mostly begins as."""
PRINTABLE = range(0x20, 0x7F)


@dataclass(frozen=True, slots=True)
class Held:
    """What a server is held to from where a segment begins, and the part of the segment that this is for.

    It is told what is `pushed`, or `stops`; else it speaks freely. The `language`, if there is one, is for where what
    it says does not fit.
    """

    outlook: Outlook
    language: Language | None = None
    pushed: Language | JsonSchema | None = None
    stops: tuple[str, ...] = ()

    @property
    def way(self) -> Way:
        if self.outlook.schema is not None:
            return "schema" if self.pushed else "freely"
        return "grammar" if self.pushed else "stops" if self.stops else "freely"

    @property
    def holes(self) -> int:
        """How many of them one request is for."""
        return sum(not isinstance(part, bytes) for part in self.outlook.parts)

    @property
    def goes_on(self) -> bool:
        """Whether an answer may serve more than one hole."""
        return self.outlook.goes_on or self.holes > 1


def seen(outlook: Outlook, *, isolated: bool, speculates: bool) -> Outlook:
    """What of a segment the server is asked for at once: alone a hole has nothing after it (S7), nor has one that is of
    JSON."""
    if isolated or outlook.schema is not None:
        outlook = replace(outlook, parts=outlook.parts[:1])
    return replace(outlook, goes_on=outlook.goes_on and speculates and not isolated)


class Pushing:
    """For one server. Languages are made once for all runs of a segment."""

    def __init__(self, engine: Engine, endpoint: Endpoint) -> None:
        self._engine = engine
        self._endpoint = endpoint
        self._languages: OrderedDict[tuple[Term | bytes, ...], Language | None] = OrderedDict()

    def held(self, op: Hole, outlook: Outlook) -> Held:
        """`op` is the hole with which the segment begins. A stop string is plainer than a language and ends the text
        alike."""
        if outlook.schema is not None:
            return Held(outlook, pushed=JsonSchema(outlook.schema) if self._endpoint.takes_schemas else None)
        stops = () if op.may_reject or outlook.goes_on else self._stops(outlook)
        outlook, language = self._pushable(outlook)
        speaks_on = outlook.goes_on and language is not None and is_free(language)
        freely = stops or speaks_on or language == ANYTHING
        return Held(outlook, language, None if freely else language, stops)

    def _pushable(self, outlook: Outlook) -> tuple[Outlook, Language | None]:
        """What may be said as a language, and of how much: not every segment can be, as a hole may end before a phrase
        that is not said after it. None where that is too large, or the server takes no such thing."""
        if self._endpoint.takes_languages:
            for some in outlook.beginnings():
                language = self._language(some.parts)
                if language is not None:
                    return some, language
        return outlook, None

    def _stops(self, outlook: Outlook) -> tuple[str, ...]:
        """The texts that end the segment wherever they come, where it is one hole and the server takes so many."""
        holes = [part for part in outlook.parts if not isinstance(part, bytes)]
        if len(holes) > 1:
            return ()
        parts = holes[0].terms if isinstance(holes[0], And) else (holes[0],)
        phrases = [part.phrase for part in parts if isinstance(part, Stop)]
        return tuple(phrase.decode() for phrase in phrases) if 0 < len(phrases) <= self._endpoint.stops else ()

    def _language(self, parts: tuple[Term | bytes, ...]) -> Language | None:
        if parts not in self._languages:
            automata = [part if isinstance(part, bytes) else self._engine.automaton(part) for part in parts]
            made = pushed(automata, self._endpoint.most_rules)
            self._languages[parts] = made.language if made and not made.language.is_empty else None
            if len(self._languages) > KEPT:
                self._languages.popitem(last=False)
        self._languages.move_to_end(parts)
        return self._languages[parts]


def is_free(language: Language) -> bool:
    """Whether nearly anything may begin such a text. It is better let run on, so that one request serves what comes
    after it; not where nothing comes after: then the language ends it in the right place."""
    edges = language.rules[0].edges
    begun = sum(any(low <= code <= high for low, high, _ in edges) for code in PRINTABLE)
    return begun >= FREE_SHARE * len(PRINTABLE)
