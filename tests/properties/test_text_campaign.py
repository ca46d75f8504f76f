"""Law 1 on servers whose tokenizer is not known: entries of other queries change no value and no ending.

A program runs alone, then without a cache, then on trees that its own variants filled before: evicted, merged,
compacted, refreshed, replayed, side by side. More of them: `python -m tests.properties.test_text_campaign 0 2000`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.cache.tokens.inspect import compacted, merged, write_new
from tests.servers.lettered import LetteredCompleter

PHRASES = ["a", ".", "\n", ",", "é", "日", "aa", "1", "e", ". "]
TEXTS = ["", "a", "\n", "\t", ": ", "aa", "日", "1,", "- ", "é"]
CONDITIONS = [
    "len(WORDS({H})) <= {few}",
    "STOPS_BEFORE({H}, {phrase!r})",
    "STOPS_AT({H}, {phrase!r})",
    "len({H}) < {many}",
    "len(TOKENS({H})) <= {few}",
    "len(TOKENS({H})) == {few}",
    "len({H}) > {few}",
    "{phrase!r} not in {H}",
    "INT({H})",
    '{H} in ["a", "ab", "aab", "é"]',
    'REGEX({H}, r"[a-e., ]+")',
    "len({H}) == {few}",
    "sum(str({H}).encode()) % 3 != 0",
]
FREE = [0, 1, 1, 3, 5, 5]
"""Indexes of the CONDITIONS for servers that take no grammar."""
ABLE: list[dict[str, Any]] = [
    {},
    {"stops": 4},
    {"takes_languages": True},
    {"takes_languages": True, "stops": 4},
    {"bills_to_the_end": True},
]
Prompt = tuple[list[str], list[str]]
"""Texts and holes of a line, and its clauses."""
Seen = tuple[Any, ...]


class Chance:
    """A random program, its variants and the server, all determined by one number."""

    def __init__(self, number: int) -> None:
        self.dice = random.Random(number)
        self.able = ABLE[number % len(ABLE)]
        self.seed = self.dice.randrange(50)
        self.limit = self.dice.choice([5, 10, 10, 12, 20])
        self.lines = [self._line(at) for at in range(self.dice.randint(1, 2))]

    def model(self) -> LetteredCompleter:
        return LetteredCompleter(self.seed, **self.able)

    def source(self, lines: list[Prompt] | None = None) -> str:
        return "\n".join(
            '"' + "".join(part.replace("\n", "\\n").replace("\t", "\\t") for part in parts) + '"'
            + (f" where {' and '.join(clauses)}" if clauses else "")
            for parts, clauses in lines or self.lines
        )  # fmt: skip

    def variant(self) -> str:
        """The program with other clauses or texts, or with fewer."""
        dice, lines = self.dice, [(list(parts), list(clauses)) for parts, clauses in self.lines]
        for _ in range(dice.randint(1, 3)):
            parts, clauses = dice.choice(lines)
            match dice.randrange(4):
                case 0 if clauses:
                    clauses.pop(dice.randrange(len(clauses)))
                case 1:
                    clauses.append(self._clause(dice.choice([part[1:-1] for part in parts if part.startswith("[")])))
                case 2 if len(lines) > 1:
                    lines.pop()
                case _:
                    parts[dice.choice([at for at, part in enumerate(parts) if not part.startswith("[")])] = dice.choice(
                        TEXTS
                    )
        return self.source(lines)

    def _line(self, number: int) -> Prompt:
        parts: list[str] = []
        clauses: list[str] = []
        for at in range(self.dice.randint(1, 3)):
            hole = f"H{number}{at}"
            parts += [self.dice.choice(TEXTS), f"[{hole}]"]
            clauses += [self._clause(hole) for _ in range(self.dice.choice([0, 1, 1, 2]))]
        return [*parts, self.dice.choice(TEXTS)], clauses

    def _clause(self, hole: str) -> str:
        dice = self.dice
        kind = dice.choice(CONDITIONS) if "takes_languages" in self.able else CONDITIONS[dice.choice(FREE)]
        return kind.format(H=hole, few=dice.randint(1, 5), many=dice.randint(2, 14), phrase=dice.choice(PHRASES))


async def seen(source: str, model: LetteredCompleter, limit: int, session: lq.Session, **options: Any) -> Seen:
    try:
        result = await lq.run(source, session=session, model=model, max_tokens=limit, **options)
    except (lq.ConstraintError, lq.ModelError) as error:
        return (type(error).__name__,)
    return (result.prompt, dict(result.variables), dict(result.endings))


async def compare(number: int, folder: Path) -> int:
    """Number of runs of one number's program in every way. Raises AssertionError for a difference."""
    chance, runs = Chance(number), 0
    source, limit = chance.source(), chance.limit
    variants = [(chance.variant(), chance.dice.choice([3, 6, 10, 12, 30])) for _ in range(chance.dice.randint(1, 3))]
    try:
        for each in (source, *(text for text, _ in variants)):
            lq.compile(each)
    except (lq.QueryError, lq.ConstraintError):
        return 0

    async def run(at_most: int = limit, text: str = source, session: lq.Session | None = None, **options: Any) -> Seen:
        nonlocal runs
        runs += 1
        return await seen(text, chance.model(), at_most, session or lq.Session(), **options)

    alone = await run()
    session, mine, theirs = lq.Session(), str(folder / f"{number}.tokens"), str(folder / f"{number}b.tokens")
    ways = {"without a cache": await run(cache=False)}
    for text, most in variants:
        await run(most, text, session)
    ways["after its variants"] = await run(session=session)
    for text, most in variants:
        await run(most, text, session)
    ways["between its variants"] = await run(session=session)
    little = lq.TokenCache(max_bytes=1)
    for text, most in variants:
        await run(most, text, session, cache=little)
    ways["evicted"] = await run(session=session, cache=little)
    crowd = [run(most, text, session) for text, most in variants]
    side_by_side = lq.Session()
    together = await asyncio.gather(*crowd, *(run(session=side_by_side) for _ in range(2)))
    ways |= {f"side by side, {at}": each for at, each in enumerate(together[len(crowd) :])}
    if number % 4 == 3:  # files are slow
        for text, most in variants:
            await run(most, text, cache=theirs)
        await run(cache=mine)
        both = str(folder / f"{number}c.tokens")
        write_new(both, merged([theirs, mine]).rows)
        ways["merged"] = await run(cache=both)
        compacted(both)
        ways["compacted"] = await run(cache=both)
        if len(alone) > 1:
            ways["replayed"] = await run(cache=both, cache_mode="replay")
        ways["refreshed"] = await run(cache=both, cache_mode="refresh")
    for way, found in ways.items():
        assert found == alone, f"number {number}, {way}, {chance.able}, max_tokens={limit}:\n{source}"
    return runs


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_values_and_endings_do_not_depend_on_what_other_queries_left(start: int) -> None:
    with TemporaryDirectory() as folder:
        assert sum(asyncio.run(compare(number, Path(folder))) for number in range(start, start + 20)) > 60


def test_what_a_variant_left_does_not_change_where_max_tokens_ends_a_value() -> None:
    """Program of the review: its value was one character longer alone than after variants of itself."""
    source = '"\\t[H0]?\\n" where len(WORDS(H0)) <= 2 and STOPS_BEFORE(H0, ".") and len(H0) < 12'

    async def both(seed: int) -> None:
        session, model = lq.Session(), LetteredCompleter(seed)
        alone = await seen(source, model, 2, lq.Session())
        for text in ('"\\té[A]"', '"\\t日[A]"', '"\\ta[A]" where len(A) < 3', '"\\t[A]" where len(A) < 2'):
            await seen(text, model, 2, session)
        assert await seen(source, model, 2, session) == alone

    for seed in range(40):
        asyncio.run(both(seed))


def campaign(start: int, end: int) -> None:
    runs = 0
    for number in range(start, end):
        with TemporaryDirectory() as folder:
            try:
                runs += asyncio.run(compare(number, Path(folder)))
            except AssertionError as error:
                sys.stderr.write(f"DIFFERENT {error}\n")
        if number % 100 == 99:
            sys.stderr.write(f"{number + 1} programs, {runs} runs\n")


if __name__ == "__main__":
    campaign(int(sys.argv[1]), int(sys.argv[2]))
