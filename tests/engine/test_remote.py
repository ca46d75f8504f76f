"""Runs on models that speak text: requests, what is reused of them, where a text does not fit (S6, S11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.events import TokenMoved
from lmql_lite.models.base import ServerUsage, StreamPiece
from tests.servers.scored import ScoredCompleter

LIST = "A list of things:\n- Sun\n- Hat\n- Map\n- Tent\n- Rope\nand so on\n"
LOOP = """
"A list of things:\\n"
for i in range(4):
    "-[THING]" where STOPS_AT(THING, "\\n")
"""


def served(script: Any, **able: Any) -> ScoredCompleter:
    return ScoredCompleter(lq.ScriptedModel(script), **able)


def test_equal_requests_in_flight_are_one(session: lq.Session) -> None:
    model, query = served(LIST), lq.compile(LOOP)

    async def crowd() -> list[lq.Result]:
        return await asyncio.gather(*(query.run(model=model, session=session) for _ in range(5)))

    results = asyncio.run(crowd())
    assert len({result.prompt for result in results}) == 1
    assert model.requests == 1
    assert sorted(result.usage.requests or 0 for result in results) == [0, 0, 0, 0, 1]


def test_what_is_said_ahead_of_its_readers_stays_however_little_memory_there_is_S9(session: lq.Session) -> None:
    model, query = (
        served(lambda said: LIST.encode()[len(said) - said.index(b":") + 16 :]),
        lq.compile('"{row}:[A]" where STOPS_AT(A, "d")'),
    )
    cache = lq.TokenCache(max_bytes=2000)

    async def crowd() -> list[lq.Result]:
        runs = (query.run({"row": number}, model=model, session=session, cache=cache) for number in range(20))
        return await asyncio.gather(*runs)

    results = asyncio.run(crowd())
    assert len({result["A"] for result in results}) == 1
    assert model.requests == 20


def test_a_run_that_is_cancelled_takes_nothing_from_others_S32(session: lq.Session) -> None:
    model, query = served(LIST), lq.compile(LOOP)

    async def one_leaves() -> lq.Result:
        first = asyncio.create_task(query.run(model=model, session=session))
        second = asyncio.create_task(query.run(model=model, session=session))
        for _ in range(12):
            await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(one_leaves()).prompt.endswith("- Tent\n")
    assert model.requests == 1


def test_a_request_that_was_sent_twice_and_then_left_counted_once_S32(session: lq.Session) -> None:
    class Retried(ScoredCompleter):
        async def stream(self, prompt: Any, request: Any) -> AsyncGenerator[Any, None]:
            yield StreamPiece(b"", spent=ServerUsage(requests=2))
            async with aclosing(super().stream(prompt, request)) as pieces:
                async for piece in pieces:
                    yield piece

    usage = lq.run_sync(LOOP, model=Retried(lq.ScriptedModel(LIST)), session=session).usage
    assert (usage.requests, usage.completion_tokens) == (2, None), "it was closed before its end"


@pytest.mark.parametrize("how", ["ends", "fails", "is cancelled", "is not read on"])
def test_no_request_outlives_the_run_that_it_was_for(how: str, session: lq.Session) -> None:
    """What closed behind the run was cut short where its event loop ended."""
    closed = []

    class Slow(ScoredCompleter):
        async def stream(self, prompt: Any, request: Any) -> AsyncGenerator[Any, None]:
            try:
                async for piece in super().stream(prompt, request):
                    yield piece
            finally:
                for _ in range(9):
                    await asyncio.sleep(0)
                closed.append(how)

    query = lq.compile(LOOP + ("raise LookupError" if how == "fails" else ""))

    async def over() -> None:
        options: Any = {"model": Slow(lq.ScriptedModel(LIST)), "session": session}
        if how == "is not read on":
            async with aclosing(query.stream(**options)) as events:
                async for event in events:
                    if isinstance(event, TokenMoved):
                        break
        else:
            run = asyncio.create_task(query.run(**options))
            if how == "is cancelled":
                await asyncio.sleep(0.001)
                run.cancel()
            await asyncio.wait([run])
        assert closed == [how]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(over())


def test_samples_repeat_under_their_seed_and_are_fresh_without_one_S6(session: lq.Session) -> None:
    model = ScoredCompleter(lq.ScriptedModel("", certainty=0, seed=5))
    source = 'sample()\n    "Say:[A]"\nwhere len(A) < 12'
    first = lq.run_sync(source, model=model, session=session, seed=1)
    again = lq.run_sync(source, model=model, session=session, seed=1)
    assert (again["A"], model.requests) == (first["A"], 1)
    other = lq.run_sync(source, model=model, session=session, seed=2)
    unseeded = {lq.run_sync(source, model=model, session=session)["A"] for _ in range(3)}
    assert model.requests >= 5
    assert len({first["A"], other["A"], *unseeded}) == 5


@pytest.mark.parametrize("continues", [True, False], ids=["continues", "wrapped"])
def test_a_chat_gets_the_text_as_a_turn_and_holes_as_answers_S29(continues: bool, session: lq.Session) -> None:
    script = "A good dad joke.\nQ: Why?\nA: Because.\n"
    model = ScoredCompleter(
        lq.ScriptedModel(
            lambda said: script.encode()[len(said) :] if script.encode().startswith(said) else b"\nA: So.\n"
        ),
        chat_only=True,
        continues_turns=continues,
    )
    source = '"A good dad joke.\\nQ:[J]\\nA:[P]" where STOPS_AT(J, "?") and STOPS_AT(P, "\\n")'
    result = lq.run_sync(source, model=model, session=session, cache=False)
    assert result["J"] == (" Why?" if continues else "Why?"), "the answer of a chat begins without a blank"
    roles = [[turn.role for turn in prompt] for prompt in model.prompts]
    assert roles[0] == ["user"]
    assert roles[1] == (["user", "assistant"] if continues else ["user", "assistant", "user"])
    assert model.prompts[1][1].text == f"{result['J']}\nA:"


# Servers that take grammars ------------------------------------------------------------------------------------------


def test_a_fault_in_a_completer_is_raised_and_not_asked_again(session: lq.Session) -> None:
    def script(text: bytes) -> bytes:
        raise ZeroDivisionError("a fault of its own")

    model = served(script)
    with pytest.raises(ZeroDivisionError, match="of its own"):
        lq.run_sync('"A:[X]"', model=model, session=session)
    assert model.requests == 1


# Servers that score texts --------------------------------------------------------------------------------------------


SENTIMENT = '"The film is[S]" distribution S in [" good", " bad", " dull"]'


def test_a_distribution_is_one_request_and_then_none(session: lq.Session, tmp_path: Path) -> None:
    scorer = lq.ScriptedModel("The film is good", certainty=12)
    model, file = ScoredCompleter(scorer, scores=True), str(tmp_path / "x.tokens")
    first = lq.run_sync(SENTIMENT, model=model, session=session, cache=file)
    assert first["S"] == " good"
    assert (model.requests, first.usage.requests) == (1, 1)
    here = lq.run_sync(SENTIMENT, model=scorer)
    assert [option for option, _ in first["P(S)"]] == [option for option, _ in here["P(S)"]]
    assert [share for _, share in first["P(S)"]] == pytest.approx([share for _, share in here["P(S)"]], abs=1e-5)
    again = lq.run_sync(SENTIMENT, model=model, session=lq.Session(), cache=file)
    assert (again["P(S)"], model.requests) == (first["P(S)"], 1)
    alone = lq.run_sync(SENTIMENT, model=model, session=session, cache=False)
    assert (alone["P(S)"], model.requests) == (first["P(S)"], 2)


def test_scores_of_a_server(session: lq.Session) -> None:
    model = ScoredCompleter(lq.ScriptedModel("It is a cat", certainty=4), scores=True)
    scores = lq.score_sync("It is", [" a cat", " the dog"], model=model, session=session)
    assert scores.best == " a cat"
    assert model.requests == 1


def test_a_server_that_cannot_score_says_so_before_anything_is_spent(session: lq.Session) -> None:
    model = served("The film is good")
    with pytest.raises(lq.ModelError, match="reports no log-probabilities of given texts"):
        lq.run_sync(SENTIMENT, model=model, session=session)
    assert model.requests == 0


# Turns ---------------------------------------------------------------------------------------------------------------


TALK = """
"{:system}Be brief.{:user}What is 2+2?{:assistant}[A]" where STOPS_AT(A, ".")
"{:user}And 3+3?"
"[B]" where STOPS_AT(B, ".")
"""


def test_role_tags_become_turns_S29(session: lq.Session) -> None:
    model = served(lambda said: next(text[len(tail) :] for text in (b"It is 4. Yes.",) for tail in _tails(said, text)))
    result = lq.run_sync(TALK, model=model, session=session)
    assert (result["A"], result["B"]) == ("It is 4.", "It is 4.")
    turns = [[(turn.role, turn.text) for turn in prompt] for prompt in model.prompts]
    first = [("system", "Be brief."), ("user", "What is 2+2?")]
    assert turns[0] == first
    assert turns[1] == [*first, ("assistant", "It is 4."), ("user", "And 3+3?")]
    assert model.requests == 2
    lq.run_sync(TALK, model=model, session=session)
    assert model.requests == 2, "turns are part of the path"


def _tails(said: bytes, text: bytes) -> list[bytes]:
    """The longest end of what was said with which the text begins."""
    return [next(text[:length] for length in range(len(text), -1, -1) if said.endswith(text[:length]))]


COLOURS = "Colour: red\nShade: dark\nColour: blue\n"
FREELY = '"Colour:[C]" where STOPS_AT(C, "\\n")'
NO_RED = '"Colour:[C]" where STOPS_AT(C, "\\n") and not "r" in C and len(C) < 6'


@pytest.mark.parametrize(
    "decoder", [{}, {"decoder": "sample", "seed": 3, "temperature": 0.3}], ids=["argmax", "sample"]
)
def test_another_process_with_another_condition_decides_by_what_the_server_told_the_first_S1(
    decoder: dict[str, Any], tmp_path: Path
) -> None:
    """Alternatives are facts like the text itself: law 1."""
    able = {"alternatives": 5}
    file, cold, first = str(tmp_path / "x.tokens"), served(COLOURS, **able), served(COLOURS, **able)
    alone = lq.run_sync(NO_RED, model=cold, session=lq.Session(), **decoder)
    lq.run_sync(FREELY, model=first, session=lq.Session(), cache=file, **decoder)
    model = served(COLOURS, **able)
    second = lq.run_sync(NO_RED, model=model, session=lq.Session(), cache=file, **decoder)
    assert second.prompt == alone.prompt and "r" not in second["C"]
    if not decoder:
        assert model.requests < cold.requests, "only what comes after the other token is asked for"
    asked = model.requests
    assert lq.run_sync(NO_RED, model=model, session=lq.Session(), cache=file, **decoder).prompt == alone.prompt
    assert model.requests == asked


def test_what_was_said_freely_elsewhere_changes_nothing_under_a_grammar_law_1(session: lq.Session) -> None:
    def red(**able: Any) -> ScoredCompleter:
        return ScoredCompleter(lq.ScriptedModel(COLOURS, words=(b" red",)), **able)

    source = '"Colour:[C]!" where not "d" in C and len(C) == 6'
    alone = lq.run_sync(source, model=red(takes_languages=True), session=lq.Session())
    lq.run_sync(FREELY, model=red(), session=session)
    after = lq.run_sync(source, model=red(takes_languages=True), session=session)
    assert (after.prompt, after.endings) == (alone.prompt, alone.endings)
