"""Oracle of law 3 for whole programs: each part of each `where`, evaluated in plain Python whenever a hole is filled.

It reads a query with Python's own tokenizer and `ast`, and shares no code with the package.
"""

from __future__ import annotations

import ast
import functools
import io
import itertools
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.properties.plain_where import FUNCTIONS, STOPS, TYPES, Clause, Stop, clause_of, is_reached, operands, phrases
from tests.properties.random_programs import PRELUDE

# A query, read by Python's own means -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompt:
    """A string statement: its place in the source, its holes with their annotations, and its own clauses."""

    start: int
    end: int
    holes: Mapping[str, str]
    places: tuple[tuple[int, str], ...]
    """Place and name of each hole."""
    clauses: tuple[Clause, ...]
    line_end: int
    line: int
    """Number of its logical line."""

    def after(self, place: int) -> set[str]:
        """Holes after this place in the string."""
        return {name for at, name in self.places if at > place}


@dataclass(frozen=True)
class Filling:
    """A hole that has just got its value. `names` are the query's variables, including the hole's text, or its value if
    it has a type. `known` are the holes that have a value by now."""

    hole: str
    place: int
    names: Mapping[str, Any]
    known: Collection[str]
    text: str
    ending: str = "bound"
    value: Any = None
    tokens: Mapping[str, int] = field(default_factory=dict)


def said_by(stop: Stop, filling: Filling) -> Any:
    return eval(stop.said, {**FUNCTIONS, **filling.names})


class Unknown(Exception):
    """The number of tokens of a hole is not known here."""


GO_ON = ("elif", "else", "except", "finally")
LEAVE = ("return", "raise", "break", "continue")


class Line(NamedTuple):
    depth: int
    tokens: list[tokenize.TokenInfo]

    @property
    def word(self) -> str:
        return self.tokens[0].string


class Query:
    """Contents of a source, as far as law 3 needs them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._starts = [0, *itertools.accumulate(len(line) + 1 for line in source.split("\n"))]
        self._lines = list(_lines(source))
        self.prompts: list[Prompt] = []
        self.clauses: tuple[Clause, ...] = ()
        self.where = (0, 0)
        """Extent of the `where` at the end."""
        inside: int | None = None
        for at, line in enumerate(self._lines):
            if inside is not None and line.depth > inside:
                continue
            word = line.word
            inside = line.depth if word in ("def", "class", "async") else None
            if word == "where":
                self.clauses = self._clauses(self._clause_tokens(at, 1))
                self.where = (self._at(line.tokens[0].start), self._at(self._clause_tokens(at, 1)[-1].end))
            elif word == "distribution":
                self.clauses += self._clauses(line.tokens[1:])
            elif inside is None:
                self._read(at, line)
        self.holes = frozenset(name for prompt in self.prompts for name in prompt.holes)
        self.is_straight = not any(line.word in ("for", "while", "try") for line in self._lines)

    def _at(self, place: tuple[int, int]) -> int:
        return self._starts[place[0] - 1] + place[1]

    def _read(self, at: int, line: Line) -> None:
        """A string statement, perhaps after the colon of a compound one."""
        tokens = line.tokens
        if tokens[0].type != tokenize.STRING:
            colons = [place for place, each in enumerate(tokens[:-1]) if each.string == ":"]
            first = next((place + 1 for place in colons if tokens[place + 1].type == tokenize.STRING), None)
            if first is None or tokens[0].string not in ("if", "elif", "else", "for", "while", "try", "with"):
                return
            tokens = tokens[first:]
        strings = list(itertools.takewhile(lambda each: each.type == tokenize.STRING, tokens))
        rest = tokens[len(strings) :]
        if rest and rest[0].string not in ("where", "distribution"):
            return
        clauses: tuple[Clause, ...] = ()
        end = strings[-1]
        if rest:
            words = self._clause_tokens(at, len(line.tokens) - len(rest) + 1)
            divided = _divided(words) if rest[0].string == "where" else ([], words)
            clauses = tuple(clause for part in divided for clause in self._clauses(part))
            end = words[-1]
        found = [(self._at(each.start) + place, *hole) for each in strings for place, *hole in _holes(each.string)]
        holes, places = {name: annotation for _, name, annotation in found}, tuple((at, name) for at, name, _ in found)
        extent = self._at(strings[0].start), self._at(strings[-1].end)
        self.prompts.append(Prompt(*extent, holes, places, clauses, self._at(end.end), at))

    def _clause_tokens(self, at: int, first: int) -> list[tokenize.TokenInfo]:
        """Tokens of a clause that begins in a line. If it is empty or ends in an operator, deeper lines continue it."""
        line = self._lines[at]
        found = list(line.tokens[first:])
        for deeper in itertools.takewhile(lambda each: each.depth > line.depth, self._lines[at + 1 :]):
            if found and found[-1].string not in ("and", "or", "not"):
                break
            found += deeper.tokens
        return found

    def _clauses(self, tokens: Sequence[tokenize.TokenInfo]) -> tuple[Clause, ...]:
        if not tokens:
            return ()
        text = self.source[self._at(tokens[0].start) : self._at(tokens[-1].end)]
        return tuple(map(clause_of, operands(ast.parse(f"({text}\n)", mode="eval").body)))

    def prompt_at(self, place: int) -> Prompt:
        return next(prompt for prompt in self.prompts if prompt.start <= place < prompt.end)

    def is_about(self, place: int, at: int) -> bool:
        """True if `at` is in a `where` of the string at `place`: its own, or that of the query."""
        prompt = self.prompt_at(place)
        return prompt.start <= at < prompt.line_end or self.where[0] <= at <= self.where[1]

    # Judgement ---------------------------------------------------------------------------------------------------

    def asked(self, hole: str, place: int, known: Collection[str]) -> list[tuple[Clause, ...]]:
        """The clauses of each `where` that a value of the hole at `place` has to meet.

        They name this hole, other holes only if these have values, and this hole may be the last of them to be filled.
        Or they name no hole of their string or query.
        """
        prompt = self.prompt_at(place)

        def concerns(clause: Clause, own: Collection[str]) -> bool:
            mine, others = clause.names.intersection(own), clause.names & self.holes - {hole}
            if (mine and hole not in mine) or not others <= set(known):
                return False
            if own is self.holes:
                return not others or not self._are_filled_after(prompt, place, others)
            return mine.isdisjoint(prompt.after(place) - {hole})

        return [
            tuple(clause for clause in clauses if concerns(clause, own))
            for clauses, own in ((prompt.clauses, frozenset(prompt.holes)), (self.clauses, self.holes))
        ]

    def _are_filled_after(self, prompt: Prompt, place: int, names: Collection[str]) -> bool:
        """True if one of these holes is certain to be filled after the one at this place."""
        if prompt.after(place).intersection(names):
            return True
        around = [prompt.line]
        while (parent := self._parent(around[-1])) is not None:
            around.append(parent)
        tried = [number for number, at in enumerate(around[1:], 1) if self._lines[at].word == "try"]
        for at in around[max(tried, default=0) :]:  # a `try` block may be left in the middle
            for later in self._after(at):
                if any(self._lines[each].word in LEAVE for each in self._block(later)):
                    return False
                if self._fills(later, names):
                    return True
        return False

    def _parent(self, at: int) -> int | None:
        depth = self._lines[at].depth
        return next((before for before in range(at, -1, -1) if self._lines[before].depth < depth), None)

    def _block(self, at: int) -> range:
        """Numbers of a line and of the deeper lines after it."""
        depth, end = self._lines[at].depth, at + 1
        while end < len(self._lines) and self._lines[end].depth > depth:
            end += 1
        return range(at, end)

    def _after(self, at: int) -> Iterator[int]:
        """Numbers of the first lines of the later statements in the block of a line."""
        depth, at = self._lines[at].depth, self._block(at).stop
        while at < len(self._lines) and self._lines[at].depth == depth:
            if self._lines[at].word not in GO_ON:
                yield at
            at = self._block(at).stop

    def _fills(self, at: int, names: Collection[str]) -> bool:
        """True if a statement is certain to fill one of these holes."""
        line = self._lines[at]
        if line.word == "if":
            branches, at = [self._block(at)], self._block(at).stop
            while at < len(self._lines) and self._lines[at].depth == line.depth and self._lines[at].word in GO_ON:
                branches.append(self._block(at))
                at = branches[-1].stop
            has_else = self._lines[branches[-1].start].word == "else"
            return has_else and all(self._fills_in(branch, names) for branch in branches)
        prompts = [prompt for prompt in self.prompts if prompt.line == at]
        return line.tokens[0].type == tokenize.STRING and any(prompt.holes.keys() & set(names) for prompt in prompts)

    def _fills_in(self, block: range, names: Collection[str]) -> bool:
        depth = self._lines[block.start].depth + 1
        return any(self._fills(at, names) for at in block[1:] if self._lines[at].depth == depth)

    def broken(self, filling: Filling) -> list[str]:
        """Sentences about the clauses that do not hold: the first of each `where`, because Python stops there."""
        said = f"[{filling.hole}] == {filling.text!r}"
        found = []
        annotation = TYPES.get(self.prompt_at(filling.place).holes.get(filling.hole, ""))
        if annotation is not None and type(filling.names[filling.hole]) is not annotation:
            found.append(f"{filling.names[filling.hole]!r} is not of the type {annotation.__name__}")
        asked = self.asked(filling.hole, filling.place, filling.known)
        for clauses in asked:
            for clause in clauses:
                try:
                    if not meets(clause, filling):
                        found.append(f"{clause.text} is broken: {said}")
                        break
                except Unknown:
                    continue
                except Exception as error:
                    found.append(f"{clause.text} raises {error!r}: {said}")
                    break
        end = None if filling.ending == "forced" else self.earlier_end(asked, filling)
        if end is not None and not found:
            found.append(f"{said} does not end at its first stop: {filling.text[:end]!r}")
        return found

    def earlier_end(self, asked: Sequence[Sequence[Clause]], filling: Filling) -> int | None:
        """An end of the value at a stop before its actual end (S13); None if there is none.

        There the whole `where` holds with the stop, and its clause does not hold without the stop.
        """
        clauses = [clause for some in asked for clause in some]
        stops = [(clause, at, stop) for clause in clauses for at, stop in enumerate(clause.stops)]
        if any(clause.counts_tokens for clause in clauses):
            return None
        for clause, at, stop in stops:
            if stop.hole != filling.hole:
                continue
            said, others = said_by(stop, filling), set(range(len(clause.stops))) - {at}
            for end in range(len(filling.text)):
                here = {**filling.names, filling.hole: filling.text[:end]}
                if not is_reached(stop.word, filling.text, end, said):
                    continue
                if stop.word == "STOPS_BEFORE" and any(
                    other.word == "STOPS_AT"
                    and is_reached(other.word, filling.text, end + size, said_by(other, filling))
                    for size in {len(phrase) for phrase in phrases(said) if filling.text.startswith(phrase, end)}
                    for _, _, other in stops
                ):
                    continue  # both stops are reached by the same letter
                try:
                    if all(each.holds(here) for each in clauses) and not clause.holds(here, stopped=others):
                        return end
                except Exception:  # Python judges whole values, and this is only the beginning of one
                    continue
        return None

    # Refusals ----------------------------------------------------------------------------------------------------

    def filler(self, hole: str, place: int, names: Mapping[str, Any] | None, known: Collection[str], most: int) -> Any:
        """A text of at most `most` bytes that fills a refused hole; None if none is found.

        Without `names`, only clauses whose values are written out, or are functions of random programs, count.
        """
        asked = self.asked(hole, place, known)
        clauses = [clause for some in asked for clause in some]
        if names is None:
            names = functions_of_programs()
            clauses = [each for each in clauses if each.names <= {hole, *FUNCTIONS, *STOPS, "TOKENS", *WRITTEN, *names}]
        make, number = TYPES.get(self.prompt_at(place).holes.get(hole, ""), str), number_of(clauses, hole)
        for text in candidates([constant for clause in clauses for constant in clause.constants]):
            if len(text.encode()) > most or not _is(text, make):
                continue
            here = {**(names or {}), hole: make(text)}
            tokens = {hole: len(text.encode())}
            try:
                filling = Filling(hole, place, here, known, text, value=number and number(text), tokens=tokens)
                if all(meets(clause, filling) for clause in clauses) and self.earlier_end(asked, filling) is None:
                    return text
            except Exception:  # a text that Python cannot judge does not meet the condition
                continue
        return None


@functools.cache
def functions_of_programs() -> Mapping[str, Any]:
    """Predicates that random programs define for their conditions."""
    found: dict[str, Any] = {}
    for name in ("few", "even"):
        exec(PRELUDE[name], found)
    return {name: found[name] for name in ("few", "even")}


WRITTEN = ("len", "int", "float", "range", "set", "sum", "any", "all", "str", "sorted")
"""Built-in functions, which a clause on the hole alone may use."""


def number_of(clauses: Sequence[Clause], hole: str) -> type | None:
    """Type of the number that `INT` or `FLOAT` makes of the text as a clause of its own; None without such a clause."""
    said = {clause.text for clause in clauses}
    return next((kind for kind, word in ((int, "INT"), (float, "FLOAT")) if f"{word}({hole})" in said), None)


def meets(clause: Clause, filling: Filling) -> bool:
    """True if the clause holds for the value or, where that raises TypeError or AttributeError, for its other form.

    The other form of a value that is no text is its text. That of a text that `INT` or `FLOAT` makes a number is the
    number, and `str` always reads the number.
    """

    def tokens(hole: str) -> range:
        if hole not in filling.tokens:
            raise Unknown(hole)
        return range(filling.tokens[hole])

    def value(hole: str, named: Any) -> Any:
        return filling.value if hole == filling.hole and isinstance(filling.value, int | float) else named

    names = {**filling.names, "TOKENS": tokens, "VALUE": value}
    try:
        return clause.holds(names)
    except (TypeError, AttributeError):
        is_text = isinstance(filling.names[filling.hole], str)
        if is_text and (filling.value is None or isinstance(filling.value, str)):
            raise
        return clause.holds({**names, filling.hole: filling.value if is_text else filling.text})


def candidates(constants: Sequence[Any]) -> Iterator[str]:
    """Candidate texts: the constants, pairs of them, and short or repeated texts of their letters."""
    numbers = sorted({number for number in constants if type(number) is int and abs(number) < 10**6})
    texts = list(dict.fromkeys(text for text in constants if isinstance(text, str) and len(text) < 40))
    letters = list(dict.fromkeys([*"a1. b", *(letter for text in texts for letter in text)]))[:9]
    sizes = sorted({size for number in numbers if number < 60 for size in (number - 1, number, number + 1) if size > 0})
    near = [str(number + more) for number in numbers for more in (0, 1, -1)]
    yield ""
    yield from texts
    yield from near
    for length in (1, 2, 3):
        yield from map("".join, itertools.product(letters, repeat=length))
    for size in sizes:
        for unit in (*letters, "a ", "a. ", *texts[:4]):
            yield (unit * size).rstrip()
            yield (unit * size)[:size]
            for text in texts[:6]:
                yield text + (unit * size)[: max(size - len(text), 0)]
                yield (unit * size)[: max(size - len(text), 0)] + text
    for pair in itertools.product([*texts[:8], *near[:4]], repeat=2):
        yield "".join(pair)
        yield " ".join(pair)
    yield from ("2024-02-29", "-1", "10", "abc", "ABC")


def _is(text: str, make: type) -> bool:
    """True if the text is how Python writes a value of the type."""
    try:
        return make is str or repr(make(text)) == text
    except ValueError:
        return False


# The tokens of a source ------------------------------------------------------------------------------------------


def _lines(source: str) -> Iterator[Line]:
    """Logical lines with their depth of indentation."""
    depth, line = 0, list[tokenize.TokenInfo]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        match token.type:
            case tokenize.INDENT:
                depth += 1
            case tokenize.DEDENT:
                depth -= 1
            case tokenize.NEWLINE:
                if line:
                    yield Line(depth, line)
                line = []
            case tokenize.NL | tokenize.COMMENT | tokenize.ENDMARKER:
                pass
            case _:
                line.append(token)


def _divided(tokens: list[tokenize.TokenInfo]) -> tuple[list[tokenize.TokenInfo], list[tokenize.TokenInfo]]:
    """Tokens of a clause, and of the `distribution` after it."""
    at = next((at for at, token in enumerate(tokens) if token.string == "distribution"), len(tokens))
    return tokens[:at], tokens[at + 1 :]


def _holes(string: str) -> Iterator[tuple[int, str, str]]:
    """Holes in a string literal, as triples of place, name and annotation."""
    at = 0
    while at < len(string):
        letter = string[at]
        if letter not in "[{" or string[at : at + 2] in ("[[", "{{"):
            at += 1 + (letter in "[{")
            continue
        end, deep = at + 1, 1
        while end < len(string) and deep:
            deep += (string[end] in "[{(") - (string[end] in "]})")
            end += 1
        inside = string[at + 1 : end - 1]
        if letter == "[":
            head, _, annotation = inside.partition(":")
            named = re.search(r"([A-Za-z_]\w*)\s*$", head) or re.search(r"\(\s*([A-Za-z_]\w*)", head)
            assert named is not None, f"a hole without a name: {string}"
            yield at, named[1], annotation.strip()
        at = end
