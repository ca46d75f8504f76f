"""What is promised beside of servers that tell what they did: ids and log-probabilities of tokens, and their usage."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.base import CompletionRequest, Prompt, PromptTurn, ScoreRequest, StreamPiece
from lmql_lite.models.demo import DemoModel
from lmql_lite.models.openai.model import OpenAIModel
from tests.models.api import pieces_of, text
from tests.servers.processes import once, settled
from tests.servers.promises import CONDITIONS, Asked, Promises

MOON = "Q: When did the first moon landing take place?\nA:"
SPECIAL = "Ada said <|eos|> and <|bos|>, then:"
"""What a user may have written, in the demo model's spellings of special tokens."""
CROWD = 150


class Figures(NamedTuple):
    """What a server has counted by itself since it began."""

    prompt_tokens: int
    completion_tokens: int
    running: int
    """Requests that are under way."""


class Counts(Protocol):
    def __call__(self) -> Figures: ...


def pieces(model: OpenAIModel, prompt: str | Prompt, request: CompletionRequest) -> list[StreamPiece]:
    prompt = (PromptTurn(None, prompt),) if isinstance(prompt, str) else prompt
    return asyncio.run(pieces_of(model, prompt, request))


class TellingPromises(Promises):
    """A file has the fixtures `base_url` and `counts` too."""

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
        query = lq.compile('sample(seed=1)\n    "x y z:[X]"\nwhere len(X) > 900')

        async def left() -> bool:
            begun = asyncio.Event()

            async def running() -> None:
                async for event in query.stream(model=asked.model, session=lq.Session()):
                    if isinstance(event, events.TokenMoved) and event.token.hole:
                        begun.set()

            run = asyncio.create_task(running())
            await begun.wait()
            while counts().running != 1 and not run.done():  # the server counts now and then
                await asyncio.sleep(0.01)
            is_left = not run.done()
            run.cancel()
            with suppress(asyncio.CancelledError):
                await run
            return is_left

        assert once(lambda: asyncio.run(left()))
        deadline = time.monotonic() + 20
        while counts().running:
            assert time.monotonic() < deadline
            time.sleep(0.01)

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
            command = [
                sys.executable,
                "-m",
                "lmql_lite",
                "run",
                "q.lq",
                "--model",
                "openai/demo",
                "--base-url",
                base_url,
            ]
            ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
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
