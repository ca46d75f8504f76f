"""Promises of every server (S6, S7): classes of tests with the same queries, which each server inherits.

Their file has the fixtures `base_url`, `known`, the server's model, and `counts` of servers that count.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.base import CompletionRequest, Prompt, PromptTurn, ScoreRequest, StreamPiece
from lmql_lite.models.demo import DemoModel
from lmql_lite.models.openai.model import OpenAIModel
from tests.models.api import pieces_of, text
from tests.servers.processes import once, settled
from tests.tables import rows
from tests.test_examples import EXAMPLES, INPUTS, TYPED, shown

SAMPLED = "10_sampled_people"
"""A server's own draws are not those of this process (S6)."""
UNSCORED = "12_distribution"
"""Not every server scores given texts."""
SAME = [path for path in sorted(EXAMPLES.glob("*.lq")) if path.stem not in (SAMPLED, UNSCORED)]


class Asked:
    """Runs with one model, and counts what it is asked."""

    def __init__(self, model: OpenAIModel) -> None:
        self.model = model
        self._before = model.requests

    @property
    def requests(self) -> int:
        return self.model.requests - self._before

    def __call__(self, query: str | Path | lq.Query, /, **options: Any) -> lq.Result:
        compiled = query if isinstance(query, lq.Query) else lq.compile(query)
        return compiled.run_sync(options.pop("inputs", {}), **{"model": self.model, "session": lq.Session(), **options})


SEGMENT = """\
'Ada lives in London.\\nAs JSON: {{"name": "[X]", "age": [Y], "city": "[Z]"}}' where STOPS_BEFORE(X, '"') and
    Y in ["35", "36", "37"] and STOPS_BEFORE(Z, '"') and len(Z) < 9 and len(X) > 1
"""
_CONDITIONS = rows("servers/promises", "a condition, and what then holds", {"SEGMENT": SEGMENT})
CONDITIONS = {name: (source, holds) for name, source, holds in _CONDITIONS}


TOOL = """
import asyncio
async def second():
    await asyncio.sleep(0.3)
    return {answer!r}
"{beginning}\\n-[FIRST]" where STOPS_AT(FIRST, "\\n")
"-{{await second()}}-[THIRD]" where STOPS_AT(THIRD, "\\n")
"""
LIST = "A list of things not to forget when going to the sea (not travelling): \\n- Sunglasses "
UNICODE = ["日本", "日记", "😀!", "é", "e\u0301", "Ünïcödé"]


def given_up(model: OpenAIModel, condition: str, is_heard: Callable[[], bool]) -> bool:
    """Cancels a run in the middle of its answer, when `is_heard`; whether it was still under way."""

    async def left() -> bool:
        begun, query = asyncio.Event(), lq.compile(f'sample(seed=1)\n    "x y z:[X]"\nwhere {condition}')

        async def running() -> None:
            async for event in query.stream(model=model, session=lq.Session()):
                if isinstance(event, events.TokenMoved) and event.token.hole:
                    begun.set()

        run = asyncio.create_task(running())
        await begun.wait()
        while not is_heard() and not run.done():
            await asyncio.sleep(0.01)
        is_left = not run.done()
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run
        return is_left

    return asyncio.run(left())


def in_time(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


MOON = "Q: When did the first moon landing take place?\nA:"
SPECIAL = "Ada said <|eos|> and <|bos|>, then:"
"""Texts of a user, in the demo model's spellings of special tokens."""
CROWD = 150


class Figures(NamedTuple):
    """Counts that a server has made by itself since it began."""

    prompt_tokens: int
    completion_tokens: int
    running: int
    """Requests that are under way."""


Counts = Callable[[], Figures]


def pieces(model: OpenAIModel, prompt: str | Prompt, request: CompletionRequest) -> list[StreamPiece]:
    prompt = (PromptTurn(None, prompt),) if isinstance(prompt, str) else prompt
    return asyncio.run(pieces_of(model, prompt, request))


class Promises:
    hottest: ClassVar[float] = 20.0
    """A temperature that it takes."""
    scores: ClassVar[bool] = False
    """It scores given texts."""
    process: ClassVar[str]
    """Name of the fixture that runs it."""
    metrics: ClassVar[tuple[tuple[str, ...], ...]]
    """Names of its own metrics that make up each of the Figures."""

    @pytest.fixture(autouse=True)
    def environment_names_no_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
            monkeypatch.delenv(name, raising=False)

    @pytest.fixture
    def asked(self, known: OpenAIModel) -> Asked:
        return Asked(known)

    @pytest.mark.parametrize("path", SAME, ids=lambda path: path.stem)
    def test_an_example_says_on_a_server_what_it_says_in_this_process(
        self,
        path: Path,
        asked: Asked,
        session: lq.Session,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        query, expected = lq.compile(path), (EXAMPLES / "expected" / f"{path.stem}.txt").read_text("utf-8")

        def told(**options: Any) -> tuple[str, int]:
            before = asked.requests
            monkeypatch.setattr("sys.stdin", StringIO(TYPED.get(path.stem, "")))
            result = asked(query, inputs=INPUTS.get(path.stem, {}), **options)
            assert result.usage.requests == asked.requests - before
            return shown(query, result), asked.requests - before

        file = tmp_path / "x.tokens"
        ways = {
            "cold": told(session=session, cache=True),
            "warm": told(session=session, cache=True),
            "alone S7": told(cache=False),
            "without guesses": told(cache=True, speculate=False),
            "file": told(cache=file),
            "known file": told(cache=file),
            "replay": told(cache=file, cache_mode="replay"),
        }
        assert [ways[way][1] for way in ("warm", "known file", "replay")] == [0, 0, 0]
        assert 0 < ways["cold"][1] <= ways["alone S7"][1], "together the holes ask no more often than each by itself"
        assert {way: text for way, (text, _) in ways.items()} == dict.fromkeys(ways, expected)

    def test_a_list_that_a_loop_asks_for_is_one_request(self, asked: Asked) -> None:
        asked(EXAMPLES / "01_packing_list.lq")
        assert asked.requests == 1

    def test_people_who_are_drawn_meet_their_conditions_and_repeat_under_their_seed(
        self, asked: Asked, session: lq.Session
    ) -> None:
        first = asked(EXAMPLES / f"{SAMPLED}.lq", session=session)
        requests = asked.requests
        again = asked(EXAMPLES / f"{SAMPLED}.lq", session=session)
        assert (again.prompt, again.value, asked.requests) == (first.prompt, first.value, requests)
        assert len(first.value) == 3
        for name, age, city in first.value:
            assert 1 < len(name) < 12 and 18 <= age < 100 and len(city) < 20 and '"' not in name + city
        assert asked(EXAMPLES / f"{SAMPLED}.lq", session=session, seed=12).prompt != first.prompt

    @pytest.mark.parametrize("source", list(CONDITIONS))
    def test_a_condition_holds_on_a_server_law_3(self, source: str, asked: Asked, session: lq.Session) -> None:
        query, holds = CONDITIONS[source]
        names = {"re": re, "datetime": datetime}
        result = asked(query, session=session)
        assert eval(holds, names, {name: result[name] for name in result.variables}), result.prompt
        requests = asked.requests
        assert asked(query, session=session).prompt == result.prompt
        assert asked.requests == requests, "a second run asks for nothing"
        alone = asked(query, cache=False)
        assert eval(holds, names, {name: alone[name] for name in alone.variables}), alone.prompt

    def test_a_condition_that_nothing_meets_is_refused_before_anything_is_asked_S22(self, asked: Asked) -> None:
        with pytest.raises(lq.ConstraintError, match="cannot hold together"):
            asked('limit = 3\n"a[X]" where len(X) < limit and "long" in X')
        assert asked.requests == 0

    def test_a_tool_whose_answer_the_server_guessed_costs_no_request(self, asked: Asked, session: lq.Session) -> None:
        free = asked(f'"{LIST}\\n-[A]-[B]-[C]" where STOPS_AT(A, "\\n") and STOPS_AT(B, "\\n") and STOPS_AT(C, "\\n")')
        guessed, wrong = free["B"], " Parasol\n"
        assert guessed != wrong
        before = asked.requests
        right = asked(TOOL.format(answer=guessed, beginning=LIST), session=session)
        assert (right["THIRD"], asked.requests - before) == (free["C"], 1)
        asked(TOOL.format(answer=wrong, beginning=LIST), session=session)
        assert asked.requests - before == 2, "another answer is asked for from there, and what came before is known"

    @pytest.mark.parametrize("seed", [1, 2**64 - 1], ids=["one", "the largest"])
    def test_a_sample_repeats_from_the_cache_under_its_seed_S6(self, seed: int, asked: Asked, tmp_path: Path) -> None:
        query, file = 'sample(temperature=1.2)\n    "Say:[X]"\nwhere len(X) < 30', tmp_path / "x.tokens"
        first = asked(query, cache=file, seed=seed)
        again = asked(query, cache=file, seed=seed)
        assert (again.prompt, asked.requests) == (first.prompt, 1)
        others = {asked(query, cache=file, seed=seed ^ other)["X"] for other in (2, 4, 8)}
        assert others != {first["X"]}
        assert asked.requests == 4

    def test_greedy_runs_and_samples_do_not_answer_each_other_S1(self, asked: Asked, session: lq.Session) -> None:
        query = '"Say:[X]" where len(X) < 12'
        asked(query, session=session)
        asked(query, session=session, decoder="sample", seed=3)
        assert asked.requests == 2

    def test_prompts_and_options_of_every_script(self, asked: Asked, session: lq.Session) -> None:
        query = lq.compile('"Grüße, 世界 😀 {who}:[X]." where X in options\nreturn X')
        inputs = {"who": "Zoë\u200d", "options": UNICODE}
        result = asked(query, inputs=inputs, session=session)
        assert result.value in UNICODE
        assert result.prompt == f"Grüße, 世界 😀 Zoë\u200d:{result.value}."
        assert asked(query, inputs=inputs, session=session).prompt == result.prompt
        for option in UNICODE:
            assert asked(query, inputs=inputs | {"options": [option, option + "!"]}).value in (option, option + "!")

    def test_any_character_may_be_said_freely(self, asked: Asked) -> None:
        result = asked(f'sample(temperature={self.hottest}, seed=5)\n    "日本語:[X]"\nwhere len(X) == 24')
        assert len(result["X"]) == 24

    def test_a_prompt_that_is_too_long_is_one_sentence(self, asked: Asked) -> None:
        with pytest.raises(lq.ModelError) as caught:
            asked('"{text}[X]" where len(X) < 5', inputs={"text": "x " * 1200})
        assert caught.value.span is not None and caught.value.span.source == "[X]"
        assert "\n" not in caught.value.message
        assert asked('"Say:[X]" where len(X) < 5')["X"], "and the next run is served"

    def test_two_runs_at_once_each_get_their_own_text(self, asked: Asked, session: lq.Session) -> None:
        paths = [EXAMPLES / f"{name}.lq" for name in ("01_packing_list", "04_dad_joke", "06_dates")]
        queries = [lq.compile(path) for path in paths]

        async def together() -> list[lq.Result]:
            runs = [query.run(model=asked.model, session=session, cache=True) for query in queries]
            return await asyncio.gather(*runs)

        for path, query, result in zip(paths, queries, asyncio.run(together()), strict=True):
            assert shown(query, result) == (EXAMPLES / "expected" / f"{path.stem}.txt").read_text("utf-8")

    def test_equal_runs_at_once_are_one_request(self, asked: Asked, session: lq.Session) -> None:
        query = lq.compile(EXAMPLES / "01_packing_list.lq")

        async def crowd() -> list[lq.Result]:
            return await asyncio.gather(*(query.run(model=asked.model, session=session) for _ in range(4)))

        results = asyncio.run(crowd())
        assert len({result.prompt for result in results}) == 1
        assert asked.requests == sum(result.usage.requests or 0 for result in results) == 1

    def test_a_distribution_is_that_of_this_process_or_refused_in_a_sentence(self, asked: Asked) -> None:
        if not self.scores:
            with pytest.raises(lq.ModelError, match=r"score|log-prob") as caught:
                asked('"Is a penguin a bird?[A]" distribution A in [" yes", " no"]')
            assert caught.value.hint and asked.requests == 0
            return
        query, session = lq.compile(EXAMPLES / f"{UNSCORED}.lq"), lq.Session()
        expected = (EXAMPLES / "expected" / f"{UNSCORED}.txt").read_text("utf-8")
        assert shown(query, asked(query, session=session)) == expected
        requests = asked.requests
        assert shown(query, asked(query, session=session)) == expected
        assert asked.requests == requests

    @pytest.fixture
    def numbered(self, base_url: str) -> OpenAIModel:
        """The same server, with the tokenizer of its model."""
        made = lq.model("openai/demo", base_url=base_url, tokenizer=DemoModel.load().tokenizer)
        assert isinstance(made, OpenAIModel)
        return made

    def test_tokens_are_those_of_this_process_with_their_scores(self, known: OpenAIModel) -> None:
        demo = DemoModel.load()
        ids = (*demo.tokenizer.bos, *demo.tokenizer.encode(MOON.encode()))
        *said, last = pieces(known, MOON, CompletionRequest(8, alternatives=4))
        assert last.finish == "length" and len(said) == 8
        for piece in said:
            ((row,),) = asyncio.run(demo.score([ScoreRequest(ids)]))
            assert piece.token == int(row.argmax()) and piece.data == demo.tokenizer.vocabulary[piece.token]
            assert piece.logprob == pytest.approx(float(row.max()), abs=1e-3)
            scores = {data: float(row[number]) for number, data in enumerate(demo.tokenizer.vocabulary) if data}
            others = dict(piece.alternatives)
            assert len(others) >= 3 and piece.data not in others
            assert others == pytest.approx({data: scores[data] for data in others}, abs=2e-2)
            ids = (*ids, piece.token)

    @pytest.mark.parametrize("stop", ["-0", "?\n", "7-2", "\n"])
    def test_a_stop_is_told_and_is_where_the_text_ends(self, stop: str, known: OpenAIModel) -> None:
        prompt = "Q:" if "?" in stop else MOON
        *said, last = pieces(known, prompt, CompletionRequest(40, stops=("never", stop)))
        assert (last.finish, last.ended_by) == ("stop", stop)
        whole = text(said)
        assert whole.endswith(stop) and whole.count(stop) == 1

    def test_the_end_of_the_text_is_told_from_a_stop(self, known: OpenAIModel) -> None:
        *said, last = pieces(known, MOON + " 1969-07-20\n", CompletionRequest(40, stops=("never",)))
        assert (said, last.finish, last.ended_by) == ([], "stop", None)

    def test_nothing_before_the_hole(self, asked: Asked) -> None:
        assert asked('"[X]" where len(X) < 8')["X"]

    def test_what_a_run_costs_is_what_the_server_counts_law_6(self, asked: Asked, counts: Counts) -> None:
        before = settled(counts)
        usage = asked('"Q: What did it cost in tokens?[X]" where len(X) < 12').usage
        after = settled(counts)
        assert usage.requests == asked.requests == 1
        assert usage.prompt_tokens == after.prompt_tokens - before.prompt_tokens > 5
        assert usage.completion_tokens == after.completion_tokens - before.completion_tokens > 0
        assert usage.provider_cached_tokens is not None

    def test_what_a_server_knows_of_a_prompt_is_told(self, asked: Asked) -> None:
        query = f'"{"What it knows. " * 30}[X]" where len(X) < 9'
        first, second = (asked(query, cache=False).usage for _ in range(2))
        assert second.prompt_tokens == first.prompt_tokens
        assert (second.provider_cached_tokens or 0) >= 128

    def test_special_spellings_in_a_users_value_are_text_where_the_tokenizer_is_known_S12(
        self, known: OpenAIModel, numbered: OpenAIModel
    ) -> None:
        demo = DemoModel.load()
        ids = (*demo.tokenizer.bos, *demo.tokenizer.encode(SPECIAL.encode()))
        cut, sent = (pieces(model, SPECIAL, CompletionRequest(3))[-1].spent for model in (known, numbered))
        assert cut is not None and sent is not None
        assert sent.prompt_tokens == len(ids) > (cut.prompt_tokens or 0)
        ((row,),) = asyncio.run(demo.score([ScoreRequest(ids)]))
        (first, *_) = pieces(numbered, SPECIAL, CompletionRequest(1))
        assert first.data == demo.tokenizer.vocabulary[int(row.argmax())]

    def test_with_a_tokenizer_a_query_says_the_same(self, numbered: OpenAIModel, known: OpenAIModel) -> None:
        query = '"Grüße, 日 😀:[X]\\n" where len(X) < 20\n"Code:[Y]." where REGEX(Y, r" [A-F]{2}-[0-9]{3}")'
        assert Asked(numbered)(query).prompt == Asked(known)(query).prompt

    def test_half_characters_are_tokens_of_their_own_with_a_tokenizer(self, numbered: OpenAIModel) -> None:
        query = 'sample(temperature=1.5, seed=5)\n    "日本語:[X]"\nwhere REGEX(X, "[日本語é😀]{6}")'
        assert len(Asked(numbered)(query)["X"]) == 6

    def test_turns_of_a_chat(self, asked: Asked, session: lq.Session) -> None:
        query = (
            '"{:system}Be brief.{:user}What is 2+2?{:assistant}It is[A]" where A in [" four", " five"]\n'
            '"{:user}Sure?{:assistant}[B]" where len(B) < 9'
        )
        result = asked(query, session=session)
        assert result["A"] in (" four", " five") and len(result["B"]) < 9
        requests = asked.requests
        assert asked(query, session=session).prompt == result.prompt and asked.requests == requests
        assert asked(query, cache=False)["A"] in (" four", " five")

    def test_a_turn_that_has_begun_is_gone_on_with_S29(self, known: OpenAIModel) -> None:
        turns: Prompt = (PromptTurn("user", "Count: 1 2 3 4"), PromptTurn("assistant", "1 2 3"))
        *said, last = pieces(known, turns, CompletionRequest(3))
        plain = pieces(known, "user: Count: 1 2 3 4\nassistant: 1 2 3", CompletionRequest(3))
        assert last.spent is not None and plain[-1].spent is not None
        assert 0 <= (plain[-1].spent.prompt_tokens or 0) - (last.spent.prompt_tokens or 0) <= 1, "perhaps without bos"
        assert text(said)

    @pytest.mark.parametrize("hole", ["[X: int]", "[X: bool]", "[X: Literal['red', 'dark red', 'blue']]"])
    def test_types_in_a_chat(self, hole: str, asked: Asked) -> None:
        result = asked(f'"{{:user}}How many, and which?{{:assistant}}{hole}"')
        assert type(result["X"]) is int or result["X"] in (True, False, "red", "dark red", "blue")

    def test_a_run_that_is_given_up_ends_its_request_S32(self, asked: Asked, counts: Counts) -> None:
        assert once(lambda: given_up(asked.model, "len(X) > 900", lambda: counts().running == 1))
        in_time(lambda: not counts().running)

    def test_a_crowd_at_once_is_a_request_each(self, asked: Asked, session: lq.Session, counts: Counts) -> None:
        query = lq.compile('"{number} is[X]" where len(X) < 9\nreturn X')

        async def crowd() -> list[lq.Result]:
            runs = (query.run({"number": n}, model=asked.model, session=session) for n in range(CROWD))
            return await asyncio.gather(*runs)

        before = settled(counts)
        results = asyncio.run(crowd())
        after = settled(counts)
        assert all(len(result.value) < 9 for result in results)
        assert sum(result.usage.requests or 0 for result in results) == asked.requests == CROWD
        told = sum(result.usage.completion_tokens or 0 for result in results)
        assert told == after.completion_tokens - before.completion_tokens
        asyncio.run(crowd())
        assert asked.requests == CROWD, "a second time nothing is asked"

    def test_another_process_with_the_cache_asks_for_nothing(
        self, base_url: str, counts: Counts, tmp_path: Path
    ) -> None:
        (tmp_path / "q.lq").write_text('argmax(cache="q.tokens")\n    "Say:[X]"\nwhere len(X) < 12', "utf-8")

        def ran() -> str:
            command = [sys.executable, "-m", "lmql_lite", "run", "q.lq", "--model", "openai/demo"]
            ended = subprocess.run(
                [*command, "--base-url", base_url], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert not ended.returncode, ended.stderr
            return ended.stdout

        first, between = ran(), settled(counts)
        assert (ran(), settled(counts)) == (first, between) and "Say:" in first

    def test_another_model_is_known_by_what_it_is(self, known: OpenAIModel, numbered: OpenAIModel) -> None:
        first, second = (asyncio.run(model.probe()) for model in (known, numbered))
        assert first.fingerprint != second.fingerprint, "prompts as ids need not be cut as the server cuts them"
        assert first.spent is None and not first.probe_costs

    @pytest.mark.parametrize("seed", [None, 3, 11], ids=["greedy", "seed 3", "seed 11"])
    @pytest.mark.parametrize("source", list(CONDITIONS))
    def test_a_run_without_a_cache_says_the_same_law_1(
        self, source: str, seed: int | None, asked: Asked, session: lq.Session
    ) -> None:
        query = CONDITIONS[source][0]
        drawn: dict[str, Any] = {} if seed is None else {"decoder": "sample", "seed": seed}

        def said(**options: Any) -> str:
            try:
                return asked(query, **options, **drawn).prompt
            except lq.ConstraintError as error:
                return error.message

        first = said(session=session)
        ways = {"warm": said(session=session), "alone": said(cache=False), "unguessed": said(speculate=False)}
        assert ways == dict.fromkeys(ways, first)
