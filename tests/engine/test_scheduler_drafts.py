"""What the model scores ahead of a run: drafts from the tree, text while a tool is awaited. Only speed changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.engine.scheduler import LONGEST_PAUSE, Drafts

TOOL = """
import asyncio
async def search(question):
    for _ in range(100):
        await asyncio.sleep(0)
    return {answer!r}
"Q: capital of France?\\n[QUERY]" where STOPS_AT(QUERY, "\\n")
result = await search(QUERY)
"Result: {{result}}\\nA:[ANSWER]" where STOPS_AT(ANSWER, "\\n")
"""
SCRIPT = "Q: capital of France?\nsearch capital\nResult: Paris is the capital\nA: Paris\n"

ROWS = """
"Name: {name}; likes: [A]" where STOPS_AT(A, ";")
" and is [B]" where STOPS_AT(B, "\\n")
"""


def rows_model() -> lq.ScriptedModel:
    def script(said: bytes) -> bytes:
        name = said.split(b"Name: ")[-1].split(b";")[0]
        whole = b"Name: %b; likes: walking the dog, and the cat; and is %b of the sea in winter\n" % (name, name)
        return whole[len(said) :] if whole.startswith(said) else b""

    return lq.ScriptedModel(script)


def test_a_tools_output_that_the_model_expected_costs_no_pass(session: lq.Session) -> None:
    model = lq.ScriptedModel(SCRIPT)
    ahead = lq.run_sync(TOOL.format(answer="Paris is the capital"), model=model, session=session)
    alone = lq.run_sync(TOOL.format(answer="Paris is the capital"), model=model, cache=False)
    assert ahead.prompt == alone.prompt
    assert ahead["ANSWER"] == " Paris\n"
    assert ahead.usage.draft_accepted, "the answer was written while the tool was at work"
    answer = [token for token in ahead.tokens if token.hole == "ANSWER"]
    assert answer[0].source == "draft"


def test_a_tools_output_that_the_model_did_not_expect_changes_nothing(session: lq.Session) -> None:
    model = lq.ScriptedModel(SCRIPT)
    source = TOOL.format(answer="Lyon, says the tool")
    ahead = lq.run_sync(source, model=model, session=session)
    alone = lq.run_sync(source, model=model, cache=False)
    assert ahead.prompt == alone.prompt
    assert ahead.usage.draft_rejected, "what was written ahead is told"
    assert alone.usage.draft_rejected == 0


@pytest.mark.parametrize(
    "options", [{"cache": False}, {"speculate": False}, {"cache_mode": "off"}], ids=["S7", "switch", "mode-off"]
)
def test_nothing_is_written_ahead_where_it_is_not_wanted(options: dict[str, Any], session: lq.Session) -> None:
    result = lq.run_sync(
        TOOL.format(answer="Paris is the capital"), model=lq.ScriptedModel(SCRIPT), session=session, **options
    )
    assert (result.usage.draft_accepted, result.usage.draft_rejected) == (0, 0)


def test_a_tool_that_does_not_wait_costs_nothing_more(session: lq.Session) -> None:
    source = TOOL.replace("    for _ in range(100):\n        await asyncio.sleep(0)\n", "").format(answer="Lyon")
    model = lq.ScriptedModel(SCRIPT)
    lq.run_sync(source, model=model, session=session)
    without = lq.ScriptedModel(SCRIPT)
    lq.run_sync(source, model=without, session=lq.Session(), speculate=False)
    assert model.calls <= without.calls + 1


def test_tools_that_never_say_what_was_expected_are_no_longer_guessed(session: lq.Session) -> None:
    source = (
        "import asyncio\n"
        "async def tool(number):\n"
        "    for _ in range(60):\n        await asyncio.sleep(0)\n"
        "    return f'{number}'\n"
        "for i in range(12):\n"
        '    "Go on:[STEP]" where len(STEP) < 4\n'
        '    "Seen: {await tool(i)}\\n"\n'
    )
    result = lq.run_sync(source, model=lq.ScriptedModel("", certainty=0, seed=4), session=session)
    assert result.usage.draft_rejected is not None
    assert 64 <= result.usage.draft_rejected < 3 * 64, "after the first hundred or so nothing was guessed any more"


def test_a_failing_tool_fails_as_without_guesses(session: lq.Session) -> None:
    source = TOOL.format(answer="x").replace("    return 'x'\n", "    raise KeyError('no net')\n")
    with pytest.raises(KeyError, match="no net"):
        lq.run_sync(source, model=lq.ScriptedModel(SCRIPT), session=session)


def test_a_run_that_is_cancelled_while_a_tool_waits_leaves_no_task_behind() -> None:
    async def cancelled() -> int:
        query = lq.compile(TOOL.replace("range(100)", "range(10**9)").format(answer="x"))
        running = asyncio.create_task(query.run(model=lq.ScriptedModel(SCRIPT), session=lq.Session()))
        for _ in range(200):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        for _ in range(5):
            await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(cancelled()) == 1


def test_similar_rows_take_half_the_passes_and_say_the_same() -> None:
    query = lq.compile(ROWS)
    names = ["Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances", "Alan", "Radia"]
    passes, texts = {}, {}
    for speculate in (True, False):
        session, model = lq.Session(), rows_model()
        results = [query.run_sync({"name": name}, model=model, session=session, speculate=speculate) for name in names]
        texts[speculate] = [result.prompt for result in results]
        passes[speculate] = model.calls
        assert sum(result.usage.forward_passes or 0 for result in results) == model.calls
    assert texts[True] == texts[False]
    assert 2 * passes[True] <= passes[False]


def test_a_second_process_guesses_from_the_file(tmp_path: Any) -> None:
    query, file = lq.compile(ROWS), str(tmp_path / "rows.tokens")
    known, unknown = rows_model(), rows_model()
    query.run_sync({"name": "Ada"}, model=known, session=lq.Session(), cache=file)
    known.calls = 0
    query.run_sync({"name": "Grace"}, model=known, session=lq.Session(), cache=file)
    query.run_sync({"name": "Grace"}, model=unknown, session=lq.Session())
    assert 2 * known.calls <= unknown.calls


def test_accepted_guesses_are_told_with_their_tokens(session: lq.Session) -> None:
    query, model = lq.compile(ROWS), rows_model()
    query.run_sync({"name": "Ada"}, model=model, session=session)

    async def watched() -> tuple[int, lq.Result]:
        drafts = 0
        async for event in query.stream({"name": "Edsger"}, model=model, session=session):
            if isinstance(event, events.TokenMoved) and event.token.source == "draft":
                drafts += 1
            if isinstance(event, events.Finished):
                return drafts, event.result
        raise AssertionError

    drafts, result = asyncio.run(watched())
    assert drafts == result.usage.draft_accepted
    assert drafts > 10


def test_a_draft_never_goes_beyond_what_the_model_reads(session: lq.Session) -> None:
    model = lq.ScriptedModel("a b c d e f g h i j k l m n o p\n")
    model.context_length = 30
    query = lq.compile('"{start}[A]" where STOPS_AT(A, "\\n")')
    query.run_sync({"start": "a b"}, model=model, session=session)
    again = query.run_sync({"start": "xyz a b"}, model=model, session=session, max_tokens=20)
    assert again["A"]


def test_guessing_all_but_stops_where_it_does_not_pay() -> None:
    drafts = Drafts()
    asked = guessed = 0
    for _ in range(1000):
        length = drafts.length()
        asked += length > 0
        guessed += length
        if length:
            drafts.learn(length, 0)
    assert asked < 12 + 1000 / LONGEST_PAUSE * 1.5
    assert guessed < 4 * asked
    drafts.learn(1, 1)
    for _ in range(6):
        drafts.learn(8, 8)
    while not drafts.length():
        pass
    assert drafts.length() > 8, "and begins again where it does"
