"""Limits on requests, tokens and money: a run ends before it passes one, and what it has paid for stays (S8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.budget import Cost
from lmql_lite.engine.forms import TOKEN_BYTES, tokens_for
from lmql_lite.models.base import Capabilities, ServerUsage
from lmql_lite.models.openai import gate
from tests.models.api import run as waited
from tests.servers.kinds import LLAMA_CPP, OPENAI_CHAT, OPENAI_TEXT, SGLANG, VLLM, Config
from tests.servers.scored import ScoredCompleter
from tests.servers.stub import Fault, Server, serving
from tests.tables import cases

LIST = "Things:\n- Sun\n- Hat\n- Map\n- Tent\n"
DIFFERENT = """
"Things:\\n"
for mark in "-+*":
    "{mark}[THING]" where STOPS_AT(THING, "\\n")
"""
"""Each mark but the first is none that the model would say: three requests."""
ANY = '"Things:\\n-[X]" where len(X) < 30'


@contextmanager
def stub(config: Config, script: str, *faults: Fault) -> Iterator[tuple[Server, Any]]:
    """A server, and its model."""
    with serving(config, script, *faults) as server:
        yield server, lq.model("openai/stub", base_url=server.base_url)


def served(**able: Any) -> ScoredCompleter:
    return ScoredCompleter(lq.ScriptedModel(lambda said: LIST.encode()[len(said) :] or b"- Sun\n"), **able)


def test_a_run_ends_before_the_request_that_is_one_too_many(session: lq.Session) -> None:
    model = served()
    assert lq.run_sync(DIFFERENT, model=served()).usage.requests == 3
    with pytest.raises(lq.BudgetError, match="the run may make at most 2 requests, and needs another one"):
        lq.run_sync(DIFFERENT, model=model, session=session, max_requests=2)
    assert model.requests == 2
    assert lq.run_sync(DIFFERENT, model=model, session=session, max_requests=1).usage.requests == 1
    assert model.requests == 3, "what was answered before the limit is known"


def test_what_was_paid_for_before_the_limit_is_in_the_file(tmp_path: Path) -> None:
    file, model = str(tmp_path / "x.tokens"), served()
    with pytest.raises(lq.BudgetError):
        lq.run_sync(DIFFERENT, model=model, session=lq.Session(), cache=file, max_requests=2)
    lq.run_sync(DIFFERENT, model=model, session=lq.Session(), cache=file)
    assert model.requests == 3


def test_a_run_that_knows_everything_needs_no_budget_S8(session: lq.Session) -> None:
    model = served()
    lq.run_sync(DIFFERENT, model=model, session=session)
    free = {"max_requests": 0, "max_total_tokens": 0, "max_cost": 0, "prices": (1, 1)}
    assert lq.run_sync(DIFFERENT, model=model, session=session, **free).usage.requests == 0  # type: ignore[arg-type]
    assert model.requests == 3


@cases("engine/budget", "each limit says what it is and how to go on", globals())
def test_each_limit_says_what_it_is_and_how_to_go_on(limits: dict[str, Any], sentence: str) -> None:
    model = served()
    with pytest.raises(lq.BudgetError) as caught:
        lq.run_sync(ANY, model=model, session=lq.Session(), **limits)
    assert caught.value.message.startswith(sentence) or sentence in caught.value.message
    assert caught.value.hint is not None and caught.value.hint.startswith("raise max_")
    assert model.requests == 0


def test_the_cost_that_is_reported_has_prompt_and_completion_each_by_its_price() -> None:
    def error(*prices: float) -> lq.BudgetError:
        with pytest.raises(lq.BudgetError) as caught:
            lq.run_sync(ANY, model=served(), session=lq.Session(), max_cost=0, prices=prices)
        return caught.value

    prompt, completion, both = error(1, 0), error(0, 1), error(1, 2)
    assert 0 < completion.spent < prompt.spent
    assert both.spent == pytest.approx(prompt.spent + 2 * completion.spent)
    assert all(f"could bring it to {each.spent:.4g}" in each.message for each in (prompt, completion, both))


def test_the_header_of_a_query_has_limits_and_the_caller_overrules_them() -> None:
    query = "argmax(max_requests=0)\n    " + ANY.replace(" where", "\nwhere")
    with pytest.raises(lq.BudgetError):
        lq.run_sync(query, model=served(), session=lq.Session())
    assert lq.run_sync(query, model=served(), session=lq.Session(), max_requests=1).usage.requests == 1


def test_models_in_this_process_cost_nothing() -> None:
    result = lq.run_sync(ANY, session=lq.Session(), max_requests=0, max_total_tokens=0, max_cost=0, prices=(9, 9))
    assert result.usage.requests == 0 and result.usage.forward_passes


class Costly(ScoredCompleter):
    """Finding out what it can do has cost one request."""

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        return Capabilities("costly", spent=ServerUsage(5, 0, 1))


def test_finding_out_what_a_server_can_do_counts() -> None:
    """R17."""
    with pytest.raises(lq.BudgetError):
        lq.run_sync(ANY, model=Costly(lq.ScriptedModel(LIST)), session=lq.Session(), max_requests=1)
    usage = lq.run_sync(ANY, model=Costly(lq.ScriptedModel(LIST)), session=lq.Session(), max_requests=2).usage
    assert usage.requests == 2


@cases("engine/budget", "a limit that is none is refused before anything is asked", globals())
def test_a_limit_that_is_none_is_refused_before_anything_is_asked(options: dict[str, Any], sentence: str) -> None:
    model = served()
    with pytest.raises(lq.InputError, match=sentence):
        lq.run_sync(ANY, model=model, session=lq.Session(), **options)
    assert model.requests == 0


@pytest.mark.parametrize("limit", [60, 100, 200])
def test_no_run_uses_more_tokens_than_it_may(limit: int) -> None:
    with stub(VLLM, "word " * 1000) as (server, model):
        with pytest.raises(lq.BudgetError):
            lq.run_sync('"Say:[A]"\n"[B]"\n"[C]"', model=model, session=lq.Session(), max_total_tokens=limit)
        assert server.prompt_tokens + server.completion_tokens <= limit


def test_a_result_tells_its_cost_and_a_bound_where_the_server_was_left_before_it_said_law_6() -> None:
    prices = (1e6, 2e6)
    with stub(VLLM, "Say: hi\n") as (server, model):
        cost = lq.run_sync('"Say:[A]"', model=model, session=lq.Session(), prices=prices).usage.cost
        assert cost == Cost(server.prompt_tokens + 2 * server.completion_tokens, is_reported=True)
        assert lq.run_sync('"Say:[A]"', model=model, session=lq.Session()).usage.cost is None
    with stub(SGLANG, "Say: hi " * 100, Fault(hang=True, after=9)) as (server, model):
        query = '"Say:[A]" where STOPS_AT(A, "i")\nif A == "no":\n    "[B]"'
        cost = lq.run_sync(query, model=model, session=lq.Session(), prices=prices, max_tokens=50).usage.cost
        assert cost == Cost(len("Say") + 1 + 2 * (1 + tokens_for(50 * TOKEN_BYTES)), is_reported=False), (
            "the colon again"
        )


@pytest.mark.parametrize("config", [VLLM, LLAMA_CPP], ids=["vllm", "llama.cpp"])
def test_nothing_is_unknown_of_an_answer_that_was_left_where_each_event_tells_the_usage_so_far(config: Config) -> None:
    """R14."""
    with stub(config, "Say: hi " * 100, Fault(hang=True, after=9)) as (server, model):
        query = '"Say:[A]" where STOPS_AT(A, "i")\nif A == "no":\n    "[B]"'
        usage = lq.run_sync(query, model=model, session=lq.Session(), prices=(1e6, 2e6)).usage
        server.wait(lambda: not server.open)
        assert usage.prompt_tokens == server.prompt_tokens
        assert usage.completion_tokens is not None and usage.completion_tokens <= server.completion_tokens
        assert usage.provider_cached_tokens is not None
        assert usage.cost is not None and usage.cost.is_reported


def test_prompt_tokens_that_the_server_had_have_a_price_of_their_own() -> None:
    with stub(VLLM, "Say: hi\n") as (_, model):
        usage = [lq.run_sync('"Say:[A]"', model=model, cache=False, prices=(1e6, 2e6, 0.5e6)).usage for _ in range(2)][
            1
        ]
        cached, cost = usage.provider_cached_tokens or 0, usage.cost
        assert cached > 0 and cost is not None
        fresh = (usage.prompt_tokens or 0) - cached
        assert cost.amount == fresh + 0.5 * cached + 2 * (usage.completion_tokens or 0)


def test_a_weighing_of_options_is_a_request_too() -> None:
    query = '"Answer:[A]" distribution A in [" a", " b", " c"]'
    with stub(VLLM, "Answer: b") as (server, model):
        with pytest.raises(lq.BudgetError):
            lq.run_sync(query, model=model, session=lq.Session(), max_requests=0)
        assert server.requests == 0
        usage = lq.run_sync(query, model=model, session=lq.Session(), max_requests=1).usage
        assert usage.requests == server.requests == 1
        assert usage.prompt_tokens in (None, server.prompt_tokens)


def test_a_server_is_asked_what_it_is_once_and_its_limit_holds_for_runs_at_once() -> None:
    with stub(VLLM, LIST) as (server, model):
        query = lq.compile(ANY)

        async def both() -> list[lq.Result | BaseException]:
            import asyncio

            session = lq.Session()
            runs = (query.run(model=model, session=session, max_requests=limit) for limit in (0, 1))
            return await asyncio.gather(*runs, return_exceptions=True)

        none, one = waited(both())
        assert isinstance(none, lq.BudgetError) and isinstance(one, lq.Result)
        assert server.requests == 1


def test_a_budget_error_has_the_run_so_far_also_before_the_first_answer() -> None:
    with pytest.raises(lq.BudgetError) as caught:
        lq.run_sync('"Things:\\n- Sun\\n" \n"*[X]"', model=lq.ScriptedModel("Hat"), step_budget=2)
    assert caught.value.partial.prompt == "Things:\n- Sun\n*"
    caught.value.partial.check_ledger()


# A limit is a limit --------------------------------------------------------------------------------------------------

ROWS = [{"mark": f"<{number}>"} for number in range(10)]
ROW = '"{mark} say:[X]" where len(X) < 30'


def test_the_rows_of_a_map_spend_from_one_budget() -> None:
    """R7. Each row had the whole of it: 10 rows sent 10 requests with max_requests=1."""
    model, query = served(), lq.compile(ROW)
    found = query.map_sync(ROWS, model=model, session=lq.Session(), on_error="keep", max_requests=3)
    assert model.requests == 3
    assert sum(isinstance(each, lq.BudgetError) for each in found) == 7


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_rows_of_a_map_use_no_more_tokens_than_all_may(concurrency: int) -> None:
    with stub(VLLM, "word " * 1000) as (server, model):
        lq.compile('"{mark} say:[X]"').map_sync(
            ROWS, model=model, session=lq.Session(), on_error="keep", concurrency=concurrency,
            max_total_tokens=150, max_tokens=10,
        )  # fmt: skip
        assert 0 < server.prompt_tokens + server.completion_tokens <= 150


def test_a_row_waits_for_what_others_have_reserved_and_then_runs() -> None:
    """Reserved is the most that an answer may have; what it did not use is there for the next row."""
    with stub(VLLM, "hi") as (_, model):
        found = lq.compile('"{mark} say:[X]"').map_sync(
            ROWS, model=model, session=lq.Session(), on_error="keep", max_total_tokens=600
        )
        assert not [each for each in found if isinstance(each, Exception)]


@pytest.mark.parametrize(
    ("config", "most"), [(OPENAI_TEXT, 0), (OPENAI_CHAT, 0), (OPENAI_CHAT, 1), (OPENAI_CHAT, 2)], ids=str
)
def test_no_probe_is_sent_beyond_max_requests(config: Config, most: int) -> None:
    """R7. The probe was sent before the limit was looked at: one request to plain text, three to a chat."""
    with stub(config, LIST) as (server, model):
        with pytest.raises(lq.BudgetError, match=f"may make at most {most} request"):
            lq.run_sync(ANY, model=model, session=lq.Session(), max_requests=most)
        assert server.requests <= most


def test_requests_that_are_sent_again_count_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7. With four errors of a server in a row five requests were sent, where one was allowed."""
    monkeypatch.setattr(gate, "FIRST_PAUSE", 0.001)
    with stub(VLLM, LIST, *[Fault(status=500)] * 4) as (server, model):
        with pytest.raises(lq.BudgetError):
            lq.run_sync(ANY, model=model, session=lq.Session(), max_requests=2)
        assert server.requests == 2
    with stub(VLLM, LIST, Fault(status=500)) as (server, model):
        usage = lq.run_sync(ANY, model=model, session=lq.Session(), max_requests=2).usage
        assert server.requests == usage.requests == 2


@pytest.mark.parametrize("config", [OPENAI_TEXT, OPENAI_CHAT, VLLM], ids=["text", "chat", "vllm"])
def test_a_plan_sends_nothing_that_costs(config: Config) -> None:
    with stub(config, LIST) as (server, model):
        session = lq.Session()
        plan = lq.compile(ANY).plan(model=model, session=session)
        assert server.requests == 0
        assert plan.is_met == (config is VLLM)
        lq.run_sync(ANY, model=model, session=session)
        asked = server.requests
        assert lq.compile(ANY).plan(model=model, session=session).is_met and server.requests == asked
