"""A plan is made: no model is asked, and no Python of the query runs but what can have no effect (`foreseen.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import ceil, inf
from typing import Any

from lmql_lite.cache.texts import END
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.language import ANYTHING, Language
from lmql_lite.constraints.pushdown import pushed
from lmql_lite.constraints.terms import Length, Term, conjunction
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, InputError, Span
from lmql_lite.lang.nodes import Expression
from lmql_lite.models.base import Completer, Endpoint, JsonSchema, Model, Wish
from lmql_lite.models.chat import chat_of
from lmql_lite.program.conditions import All, Condition
from lmql_lite.program.decoding import BEAMS
from lmql_lite.program.endings import endings, fits_all, longest_text, parts_of
from lmql_lite.program.ops import Hole, HoleDecoder, Interpolated, Op, Option, Program, Text, Turn
from lmql_lite.program.options import texts_of
from lmql_lite.program.schemas import JsonType
from lmql_lite.program.types import TextType
from lmql_lite.runtime import nested
from lmql_lite.runtime.outlook import outlook_of
from lmql_lite.runtime.plan import Plan, PlannedHole, Way
from lmql_lite.runtime.planning.amounts import Amounts, Asked, Kind, times, whole
from lmql_lite.runtime.planning.flow import Flow
from lmql_lite.runtime.planning.foreseen import Foreseen, NotForeseen
from lmql_lite.runtime.session import Session
from lmql_lite.runtime.settings import BEAM_WIDTH, Settings, checked
from lmql_lite.runtime.texts.fill import BANNED
from lmql_lite.runtime.texts.frontier import LEAST_STRIDE, MOST_STRIDE, TURN_TOKENS
from lmql_lite.runtime.texts.healing import forms, tail
from lmql_lite.runtime.texts.pushing import Pushing, seen

ENDLESS = 2**31
"""More tokens than a hole ever has."""


async def planned(
    program: Program,
    inputs: Mapping[str, Any],
    settings: Settings,
    session: Session,
    model: str | Model | None = None,
) -> Plan:
    """Asks a server what it is, and no more. Raises InputError for a wrong option, and ModelError as `meet` does."""
    foreseen = Foreseen(program, inputs)
    header: dict[str, Any] = {"decoder": program.decoder}
    unknown = []
    for option in program.options:
        try:
            header[option.name] = foreseen.value(option.value)
        except NotForeseen:
            unknown.append(option.name)
    said = {each.name for each in fields(settings) if getattr(settings, each.name) is not None}
    unknown = [name for name in unknown if name not in said]
    wishes = settings.over(checked(header, {option.name: option.span for option in program.options}))
    budget = wishes.budget
    if model is None and program.model is not None:
        model = _named(program.model, foreseen)
    model = session.model(model)
    endpoint = await model.meet() if isinstance(model, Completer) else None
    planner = _Planner(program, inputs, foreseen, wishes, endpoint, limited="max_tokens" not in unknown)
    if not isinstance(model, Completer) and chat_of(model.tokenizer) is None:
        planner.refuse_turns()
    holes = tuple(planner.holes())
    ways = inf if "n" in unknown else _ways(wishes.has_beams, wishes.results)
    amounts = Amounts(planner.flow, endpoint, planner.asked, planner.text, ways)
    return Plan(
        model=model.name,
        decoder=wishes.decoder_name,
        max_tokens=whole(planner.limit),
        holes=holes,
        loops=tuple(amounts.loops()),
        usual=amounts.total("usual"),
        most=amounts.total("most"),
        budget=budget,
        missing=tuple(wanted.name for wanted in program.inputs if wanted.name not in inputs),
        unknown=tuple(unknown),
        problems=tuple(planner.problems),
        met=endpoint.spent if endpoint else None,
        on_server=endpoint is not None,
    )


def _named(model: Option, foreseen: Foreseen) -> str | Model:
    try:
        named: str | Model = foreseen.value(model.value)
    except NotForeseen:
        raise InputError(
            "which model is asked only a run finds out", span=model.span, hint="name one: model="
        ) from None
    return named


@dataclass(frozen=True, slots=True)
class _Course:
    """How a segment is filled: so many `holes` of it by one request, the answer to which may serve more where the run
    `goes_on`. `parts` is what is pushed, if anything is."""

    way: Way
    holes: int = 1
    goes_on: bool = False
    parts: tuple[Term | bytes, ...] = ()


class _Planner:
    """Reads the holes in the order of the program; `asked` and `text` then say what each op may come to."""

    def __init__(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        foreseen: Foreseen,
        wishes: Settings,
        endpoint: Endpoint | None,
        *,
        limited: bool,
    ) -> None:
        self.problems: list[str] = []
        self.limit: float = wishes.limit if limited else inf
        self.asked: dict[int, Mapping[Kind, Asked]] = {}
        self.flow = Flow(program, foreseen)
        self._ops = program.ops
        self._queries = {name for name, value in inputs.items() if isinstance(value, nested.Callable)}
        self._has_queries = bool(program.queries)
        self._foreseen = foreseen
        self._endpoint = endpoint
        self._isolated = wishes.is_isolated
        self._speculates = wishes.speculate is not False
        self._backtracks = wishes.backtracks
        self._engine = Engine(Vocabulary((*(bytes([byte]) for byte in range(END)), None), frozenset({END})))
        self._pushing = Pushing(self._engine, endpoint or Endpoint(""))
        self._known = {at: self._condition(op) for at, op in enumerate(self._ops) if isinstance(op, Hole)}
        self.text = [self._text_of(op) for op in self._ops]
        """Tokens that each op adds to the prompt, at most."""

    def refuse_turns(self) -> None:
        tags = (op for op in self._ops if isinstance(op, Turn))
        self.problems += [f"{_place(tag.span)}: this model is not asked in turns" for tag in tags]

    def holes(self) -> Iterator[PlannedHole]:
        segment, left = 0, 0
        """So many holes of the segment are held to the same request."""
        for at, (term, later) in self._known.items():
            op = self._ops[at]
            assert isinstance(op, Hole)
            if not op.continues_segment or left == 0 or self._isolated:
                segment += not op.continues_segment or not segment
                course = self._course(op, at)
                left = course.holes
            begins = left == course.holes
            left -= 1
            most = self._most_tokens(op, term)
            self.asked[at] = self._bounds(op, at, course, most, begins=begins)
            self.text[at] = self._size_of(op, term, most)
            clauses = [part.span.source for part in _conditions(op)]
            clauses += [clause.span.source for clause in _unread(op)]
            yield PlannedHole(
                name=op.name,
                span=op.span,
                conditions=tuple(dict.fromkeys(clauses)),
                judged=tuple(predicate.span.source for predicate in op.predicates),
                later=later,
                ends=tuple(self._ends(op, term, later)),
                most_tokens=whole(most),
                times=whole(self.flow.times(at)),
                always=self.flow.is_certain(at),
                segment=segment,
                way=course.way,
                with_holes=course.holes,
            )

    def _condition(self, op: Hole) -> tuple[Term, tuple[str, ...]]:
        """What is known of a hole's condition, and what of it is not."""
        terms: list[Term] = []
        later = []
        for part in _conditions(op):
            try:
                terms.append(part.bind(self._foreseen.value))
            except (NotForeseen, re.error, TypeError, ValueError):
                later.append(part.span.source)
            except ConstraintError as error:
                self.problems.append(str(error))
        if op.type is not None and op.type.spec is None:
            later += [op.type.span.source, *(clause.span.source for clause in _unread(op))]
        elif op.type is not None and isinstance(op.type.spec, TextType):
            terms.insert(0, op.type.spec.term)
        if op.distribution is not None:
            try:
                self._foreseen.value(op.distribution.options)
            except NotForeseen:
                later.append(op.distribution.span.source)
        term = conjunction(tuple(terms))
        try:
            self._engine.matcher(term, op.following, ENDLESS, op.name, op.span)
        except ConstraintError as error:
            self.problems.append(str(error))
        return term, tuple(later)

    def _course(self, op: Hole, at: int) -> _Course:
        """Of the segment that begins here: as a run decides it, which knows the values by then."""
        endpoint = self._endpoint
        if endpoint is None:
            return _Course("masks")
        if op.distribution is not None:
            if not endpoint.scores:
                self.problems.append(
                    f"{_place(op.span)}: [{op.name}] has a distribution, and the server scores no texts"
                )
            return _Course("scores")
        outlook = outlook_of(self._ops, at, lambda place: self._known[place][0], "{}" if _is_json(op) else None)
        outlook = seen(outlook, isolated=self._isolated, speculates=self._speculates)
        many = sum(not isinstance(part, bytes) for part in outlook.parts)
        holes = [later for place, (_, later) in self._known.items() if place >= at][:many]
        if any(holes) and outlook.schema is None:
            may_push = endpoint.takes_languages or (endpoint.stops and not op.may_reject and not outlook.goes_on)
            return _Course("later" if may_push else "freely", many, outlook.goes_on or many > 1)
        held = self._pushing.held(op, outlook)
        return _Course(held.way, held.holes, held.goes_on, held.outlook.parts)

    def _is_open(self, op: Hole) -> bool:
        """Whether another query may fill it, or the model may call tools meanwhile: what that comes to is not known."""
        if op.decoder is not None and any(option.name == "tools" for option in op.decoder.options):
            return True
        return any(
            callee.form == "hole" or self._has_queries or self._queries.intersection(callee.function.co_names)
            for callee in op.callees
        )

    def _most_tokens(self, op: Hole, term: Term) -> float:
        """A token has at least a byte."""
        if self._is_open(op):
            return inf
        if op.distribution is not None:
            return max((float(len(text.encode())) for text in self._options(op)), default=inf)
        if _is_json(op):
            return self.limit
        counted = [part.at_most for part in parts_of(term) if isinstance(part, Length) and part.unit == "tokens"]
        return min([self.limit, self._longest((term,)), *(float(most) for most in counted if most is not None)])

    def _size_of(self, op: Hole, term: Term, most: float) -> float:
        """Tokens of a value where it stands in a prompt: what is forced does not count for `max_tokens`."""
        if self._is_open(op):
            return inf
        longest = most if op.distribution or _is_json(op) else self._longest((term,))
        return self.limit if longest == inf else longest

    def _options(self, op: Hole) -> tuple[str, ...]:
        assert op.distribution is not None
        try:
            return texts_of(self._foreseen.value(op.distribution.options))
        except Exception:  # not known yet, or a mistake that the run reports
            return ()

    def _longest(self, parts: tuple[Term | bytes, ...]) -> float:
        """Bytes of the longest text of a segment; inf where there is none, or it is too much to say."""
        try:
            found = pushed([part if isinstance(part, bytes) else self._engine.automaton(part) for part in parts])
        except ConstraintError:
            return inf
        return longest_text(found.language) if found and found.exact else inf

    def _bounds(self, op: Hole, at: int, course: _Course, most: float, *, begins: bool) -> Mapping[Kind, Asked]:
        if self._is_open(op):
            unbounded = Asked(inf if self._endpoint else 0, inf)
            return {"usual": unbounded, "most": unbounded}
        tries: float = 1 + self._backtracks if op.may_reject else 1
        if op.decoder is not None and op.decoder.name in BEAMS:
            tries *= self._beams_of(op.decoder)
        if self._endpoint is None:
            return {"usual": Asked(0, most), "most": Asked(0, most * tries)}
        if course.way == "scores":
            options = len(self._options(op)) or inf
            weighing = Asked(1 + options if self._endpoint.chat_only else 1, 1 + options, texts=1 + options)
            return {"usual": weighing, "most": weighing}
        speaks_on = course.way in ("freely", "later") and course.goes_on
        answer = max(self.limit, LEAST_STRIDE) if speaks_on else self.limit
        if course.way == "grammar" and begins:
            answer = min(answer, self._longest(course.parts))
        elif course.way == "stops":
            answer = min(answer, most)
        usual = float(begins)
        more, tried = self._said_again(at, course)
        answer += more
        term, later = self._known[at]
        if course.way in ("freely", "stops") and not later and not op.may_reject and fits_all(term):
            requests = times(ceil(most / LEAST_STRIDE), 1) if most < inf else inf
        else:  # each token may not fit, and be asked for otherwise
            requests = most * tries * (2 + (BANNED if self._endpoint.takes_bans else 0))
        longest = (max(self.limit, MOST_STRIDE) if speaks_on else self.limit) + more
        return {"usual": Asked(usual, answer), "most": Asked(max(requests, usual) + tried, longest)}

    def _said_again(self, at: int, course: _Course) -> tuple[int, int]:
        """How many tokens more an answer may have, since it begins with the end of the prompt (S10), and how many
        answers may be asked for in vain, since they do not."""
        assert self._endpoint is not None, "a model in this process says nothing again"
        before = self._ops[at - 1] if at else None
        if before is None or isinstance(before, Hole):
            return 0, 0
        last = before.parts[-1] if isinstance(before, Text) and before.parts else None
        again = tail(last) if isinstance(last, str) else " "
        held_to: dict[Way, Language | JsonSchema] = {"grammar": ANYTHING, "schema": JsonSchema("{}")}
        wish = Wish(1, pushed=held_to.get(course.way))
        ways = [wished.begin for text, wished in forms(again, wish, self._endpoint) if text]
        return bool(ways), ways[:1] == [""]

    def _beams_of(self, decoder: HoleDecoder) -> float:
        for option in decoder.options:
            if option.name == "n":
                try:
                    return _ways(True, self._foreseen.value(option.value))
                except (NotForeseen, TypeError):
                    return inf
        return _ways(True, BEAM_WIDTH)

    def _text_of(self, op: Op) -> float:
        if isinstance(op, Turn):
            return TURN_TOKENS
        if not isinstance(op, Text):
            return 0
        return sum(len(part.encode()) if isinstance(part, str) else self._size(part) for part in op.parts)

    def _size(self, part: Interpolated) -> float:
        try:
            value = self._foreseen.value(part.code)
            converted = {"s": str(value), "r": repr(value), "a": ascii(value)}.get(part.conversion, value)
            return len(format(converted, part.format).encode())
        except (NotForeseen, ValueError, TypeError):
            return inf

    def _ends(self, op: Hole, term: Term, later: tuple[str, ...]) -> Iterator[str]:
        if op.distribution is not None:
            yield "it is one of its options"
            return
        if _is_json(op):
            yield "where its JSON is complete"
            return
        yield from endings(term)
        if later:
            yield "as its conditions say, once what they depend on is known"
        yield "where the model ends the text, if its conditions hold"


def _conditions(op: Hole) -> tuple[Condition, ...]:
    return op.condition.conditions if isinstance(op.condition, All) else (op.condition,)


def _unread(op: Hole) -> tuple[Expression, ...]:
    """Clauses that mean something only when the type is known."""
    clauses = op.type.clauses if op.type is not None and op.type.spec is None else ()
    return tuple(clause.expression for clause in clauses)


def _ways(has_beams: bool, results: int) -> float:
    """So many texts are written side by side: of beams one more, which takes the best of each token (S24)."""
    return float(results + has_beams)


def _is_json(op: Hole) -> bool:
    return op.type is not None and isinstance(op.type.spec, JsonType)


def _place(span: Span) -> str:
    return f"{span.name}:{span.line}:{span.column}"
