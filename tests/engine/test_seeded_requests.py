"""A request to a server is a function of program, options and seed: nothing that ran before changes it, or its text."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.models.base import Capabilities, CompletionRequest, Prompt, Scored, StreamPiece
from tests.tables import cases

WORDS = [b" sun", b" sea", b" hat", b" map", b" red", b" tea", b" ice", b" oak"]


class Seeded:
    """A server that draws the k-th token of each answer with the k-th number of the request's seed."""

    name = place = "seeded"

    def __init__(self, **able: Any) -> None:
        self.lengths: list[int] = []
        self._able = {"stops": 4, "takes_seeds": True} | able

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        return Capabilities("seeded:1", **self._able)

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        raise NotImplementedError

    async def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        self.lengths.append(request.max_tokens)
        greedy = request.sampling.temperature == 0
        begun = prompt[-1].text if greedy else f"{request.sampling.seed} {request.sampling.index}"
        for place in range(request.max_tokens):
            if "SHORT" in prompt[0].text and place == 6:
                yield StreamPiece(b"\n")
                yield StreamPiece(b"", finish="stop")
                return
            key = f"{len(begun.encode()) + 4 * place}" if greedy else f"{begun} {place}"
            first, second = hashlib.blake2b(key.encode(), digest_size=2).digest()
            yield StreamPiece(WORDS[first % 8] if second > 1 or place < 90 or greedy else b"\n")
        yield StreamPiece(b"", finish="length")


def query(text: str, condition: str, decoder: str = "sample") -> str:
    lines = "".join(f"\n    {line}" for line in text.splitlines())
    return f"{decoder}{lines}\nwhere {condition}"


LONG = query('"LONG:[A]"\n"then[B]"', 'STOPS_AT(A, "\\n") and len(A) < 900 and len(B) < 20')
SHORT = query('"SHORT{i}:[A]"\n"then[B]"', 'STOPS_AT(A, "\\n") and len(B) < 20')
GREEDY = LONG.replace("sample", "argmax")
KINDS: list[dict[str, Any]] = [
    {},
    {"bills_to_the_end": True},
    {"bills_to_the_end": True, "chat_only": True, "continues_turns": False},
]


async def after(
    model: Seeded, before: Sequence[str], source: str = LONG, **options: Any
) -> tuple[lq.Result, list[int]]:
    """Result of the query after others in one session and one event loop, and the lengths of its requests."""
    session = lq.Session()
    for number, each in enumerate(before):
        await lq.run(each, {"i": number} if "{i}" in each else {}, model=model, session=session, seed=7)
    model.lengths.clear()
    return await lq.run(source, model=model, session=session, seed=7, **options), model.lengths


@pytest.mark.parametrize("able", KINDS, ids=str)
@pytest.mark.parametrize("source", [LONG, GREEDY], ids=["sample", "argmax"])
def test_short_runs_before_changed_the_requests_and_the_text_of_a_seed(able: dict[str, Any], source: str) -> None:
    fresh, lengths = asyncio.run(after(Seeded(**able), [], source))
    used, others = asyncio.run(after(Seeded(**able), [SHORT, SHORT.replace("sample", "argmax")] * 5, source))
    assert (used.prompt, others) == (fresh.prompt, lengths)
    assert asyncio.run(after(Seeded(**able), [SHORT] * 5, source, cache=False))[0]["A"] == fresh["A"]


@cases("engine/seeded_requests", "a part of a draw that is known is not continued by another draw", globals())
@pytest.mark.parametrize("able", KINDS, ids=str)
def test_a_part_of_a_draw_that_is_known_is_not_continued_by_another_draw(before: str, able: dict[str, Any]) -> None:
    fresh, _ = asyncio.run(after(Seeded(**able), []))
    used, _ = asyncio.run(after(Seeded(**able), [before]))
    assert used.prompt == fresh.prompt
    used.check_ledger()


def test_a_run_that_was_cancelled_does_not_change_the_next_one() -> None:
    async def cancelled() -> lq.Result:
        session, model = lq.Session(), Seeded()
        begun = asyncio.create_task(lq.run(LONG, model=model, session=session, seed=7))
        for _ in range(30):
            await asyncio.sleep(0)
        begun.cancel()
        await asyncio.wait([begun])
        return await lq.run(LONG, model=model, session=session, seed=7)

    assert asyncio.run(cancelled()).prompt == asyncio.run(after(Seeded(), []))[0].prompt


def test_results_of_several_seeds_do_not_depend_on_each_other() -> None:
    async def drawn(seeds: Sequence[int]) -> list[str]:
        session, model = lq.Session(), Seeded()
        return [(await lq.run(LONG, model=model, session=session, seed=seed)).prompt for seed in seeds]

    assert asyncio.run(drawn([1, 2, 3])) == [asyncio.run(drawn([seed]))[0] for seed in (1, 2, 3)]


def test_a_known_draw_is_repeated_without_a_request() -> None:
    async def twice() -> list[int]:
        session, model = lq.Session(), Seeded()
        first = await lq.run(LONG, model=model, session=session, seed=7)
        model.lengths.clear()
        assert (await lq.run(LONG, model=model, session=session, seed=7)).prompt == first.prompt
        return model.lengths

    assert asyncio.run(twice()) == []
