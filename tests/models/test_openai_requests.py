"""What a model behind an API is asked for: chats, constraints that are pushed, bans, draws and scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lmql_lite.constraints.language import Rule, smallest
from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.base import (
    CompletionRequest,
    JsonSchema,
    Prompt,
    PromptTurn,
    ScoreRequest,
    ServerUsage,
    StreamPiece,
)
from lmql_lite.models.openai.dialects import CAN, Dialect
from lmql_lite.models.openai.model import OpenAIModel
from lmql_lite.models.scripted import ScriptedModel
from lmql_lite.options import Sampling
from tests.models.api import CHAT, DRAWN, SPOKEN, TELLING, TEXT, ask, counted, failing, model, pieces_of, run, text
from tests.servers.kinds import (
    LLAMA_CPP,
    OLLAMA,
    OPENAI_CHAT,
    OPENAI_REASONING,
    OPENAI_TEXT,
    SGLANG,
    VLLM,
    Config,
)
from tests.servers.stub import Fault, serving

pytestmark = pytest.mark.usefixtures("quick_and_alone")


# What is learned ------------------------------------------------------------------------------------------------------


def test_a_field_that_is_refused_is_left_out_from_then_on() -> None:
    config = replace(VLLM, refuses=frozenset({"stream_options", "return_token_ids", "repetition_penalty"}))
    with serving(config, "Hi") as server:
        asked = model(server)
        first, second = (run(pieces_of(asked, TEXT, CompletionRequest(9))) for _ in range(2))
        assert text(first) == text(second) == "Hi"
        assert (first[-1].spent, second[-1].spent) == (ServerUsage(requests=4), ServerUsage())
        assert server.requests == 5


def test_as_many_alternatives_as_the_server_gives() -> None:
    with serving(replace(VLLM, width=5), "Hi") as server:
        asked = model(server)
        pieces = run(pieces_of(asked, TEXT, CompletionRequest(9, alternatives=10)))
        assert text(pieces) == "Hi" and 0 < len(pieces[0].alternatives) <= 5
        assert run(asked.probe()).alternatives == 5
    with serving(replace(VLLM, refuses=frozenset({"logprobs"})), "Hi") as server:
        asked = model(server)
        assert text(run(pieces_of(asked, TEXT, CompletionRequest(9, alternatives=10)))) == "Hi"
        assert run(asked.probe()).alternatives == 0


@pytest.mark.parametrize(
    ("config", "room", "requests"),
    [(VLLM, 19, 1), (OPENAI_TEXT, 16, 4), (replace(OPENAI_TEXT, tells_usage=False), 16, 4)],
    ids=["as much as has room", "refused", "refused, and no usage"],
)
def test_an_answer_has_room_for_what_is_left_of_the_context(config: Config, room: int, requests: int) -> None:
    with serving(replace(config, context=40), "x" * 100) as server:
        pieces: list[StreamPiece] = []

        async def until_it_breaks(asked: OpenAIModel) -> None:
            async for piece in asked.stream((PromptTurn(None, "x" * 20),), CompletionRequest(64)):
                pieces.append(piece)

        with pytest.raises(BrokenOff):
            run(until_it_breaks(model(server)))
        assert (text(pieces), server.requests) == ("x" * room, requests)
        error = failing(server, CompletionRequest(64), (PromptTurn(None, "x" * 40),))
        assert "the text is longer than the context of openai/stub" in error.message and "shorten" in (error.hint or "")


@pytest.mark.parametrize("config", [VLLM, LLAMA_CPP], ids=lambda config: config.kind)
def test_a_prompt_that_has_no_room_was_sent_again_for_half_an_answer_and_half_of_that(config: Config) -> None:
    with serving(replace(config, context=40), "x") as server:
        error = failing(server, CompletionRequest(1024), (PromptTurn(None, "x" * 50),))
        assert "the text is longer than the context of openai/stub" in error.message and server.requests == 1


# Chats ----------------------------------------------------------------------------------------------------------------


BEGUN: Prompt = (PromptTurn("system", "Be "), PromptTurn("user", "brief. "), PromptTurn("assistant", "Ein "))


@pytest.mark.parametrize("config", [VLLM, SGLANG, LLAMA_CPP], ids=lambda config: config.kind)
def test_a_turn_that_has_begun_is_gone_on_with(config: Config) -> None:
    """S29."""
    with serving(config, SPOKEN) as server:
        assert text(ask(server, prompt=BEGUN)) == SPOKEN.removeprefix("Ein ")
        assert server.bodies[-1]["messages"][-1] == {"role": "assistant", "content": "Ein "}
        assert text(ask(server, prompt=(PromptTurn("user", ""), PromptTurn("assistant", "")))) == SPOKEN
        assert server.bodies[-1]["messages"] == [{"role": "user", "content": ""}]


def test_a_model_that_thinks() -> None:
    with serving(OPENAI_REASONING, SPOKEN) as server:
        pieces = ask(server)
        assert text(pieces) == SPOKEN
        assert pieces[-1].spent is not None and (pieces[-1].spent.completion_tokens or 0) > len(pieces)
        thoughtful = failing(server, CompletionRequest(3, sampling=Sampling(temperature=1.0)))
        assert "spent all 3 tokens on reasoning" in thoughtful.message and "max_tokens" in (thoughtful.hint or "")
        cold = failing(server, CompletionRequest(9))
        assert "does not support greedy decoding" in cold.message and "temperature" in (cold.hint or "")
        hot = failing(server, CompletionRequest(9, sampling=Sampling(temperature=20.0)))
        assert "best token" not in hot.message and "temperature" in hot.message


# Constraints that are pushed ------------------------------------------------------------------------------------------


YES_OR_NO = smallest(
    [
        Rule(((ord("n"), ord("n"), 1), (ord("y"), ord("y"), 2)), False),
        Rule(((ord("o"), ord("o"), 4),), False),
        Rule(((ord("e"), ord("e"), 3),), False),
        Rule(((ord("s"), ord("s"), 4),), False),
        Rule((), True),
    ]
)
SCHEMA = JsonSchema(
    '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}'
)


@pytest.mark.parametrize("prompt", [TEXT, CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("config", [VLLM, SGLANG, LLAMA_CPP], ids=lambda config: config.kind)
def test_a_language_holds_the_answer(config: Config, prompt: Prompt) -> None:
    """S17; under it a server's log-probabilities are no longer those of the model (S1)."""
    with serving(config, SPOKEN) as server:
        pieces = ask(server, CompletionRequest(9, pushed=YES_OR_NO, alternatives=3), prompt)
        assert text(pieces) in ("yes", "no")
        assert all(piece.logprob is None and not piece.alternatives for piece in pieces)


@pytest.mark.parametrize(
    ("config", "prompt"),
    [(config, prompt) for config in TELLING for prompt in (TEXT, CHAT)] + [(OPENAI_CHAT, CHAT), (OLLAMA, CHAT)],
    ids=lambda one: one.kind if isinstance(one, Config) else one[0].role or "text",
)
def test_a_schema_holds_the_answer(config: Config, prompt: Prompt) -> None:
    with serving(config, '{"a":2}') as server:
        found = json.loads(text(ask(server, CompletionRequest(60, pushed=SCHEMA, sampling=DRAWN), prompt)))
        assert found in ({"a": 1}, {"a": 2})


def test_a_grammar_that_a_server_cannot_read_is_left_out_of_that_request() -> None:
    """S17: what arrives is checked in any case."""
    with serving(VLLM, "Hi", Fault(400, message="Failed to compile the grammar")) as server:
        asked = model(server)
        assert text(run(pieces_of(asked, TEXT, CompletionRequest(9, pushed=YES_OR_NO)))) == "Hi"
        assert text(run(pieces_of(asked, TEXT, CompletionRequest(9, pushed=YES_OR_NO)))) in ("yes", "no")


# Drawing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [VLLM, LLAMA_CPP], ids=lambda config: config.kind)
def test_a_draw_is_repeatable(config: Config) -> None:
    with serving(config, ScriptedModel("", certainty=0)) as server:
        one, again, another = (
            text(ask(server, CompletionRequest(9, sampling=replace(DRAWN, index=index)))) for index in (0, 0, 1)
        )
        assert one == again != another


@pytest.mark.parametrize("config", TELLING, ids=lambda config: config.kind)
def test_a_models_own_settings_do_not_count(config: Config) -> None:
    """Servers take them from the model's folder otherwise, a penalty on repetition among them."""
    with serving(config, "Hi") as server:
        ask(server, CompletionRequest(3, sampling=Sampling(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1)))
        ask(server, CompletionRequest(3))
        drawn, best = server.bodies
    penalty = "repeat_penalty" if config.kind == "llama.cpp" else "repetition_penalty"
    assert (drawn["temperature"], drawn["top_p"], drawn["top_k"], drawn["min_p"]) == (0.5, 0.9, 7, 0.1)
    assert (best["temperature"], best["top_p"], best["min_p"]) == (0.0, 1.0, 0.0)
    assert best["top_k"] in (-1, 0) and best[penalty] == drawn[penalty] == 1.0


# Scores ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "prompt"),
    [(VLLM, TEXT), (SGLANG, TEXT), (VLLM, CHAT)],
    ids=["vllm", "sglang", "vllm chat"],
)
@pytest.mark.parametrize("begun", ["Q: ", "Pick \n"], ids=["a border between tokens", "a token over the border"])
def test_options_are_scored_as_what_comes_next(config: Config, prompt: Prompt, begun: str) -> None:
    """S25; a token that stands on the border counts for every option, so that they can be compared."""
    scorer = ScriptedModel("Q: - A", certainty=3)
    options = ["- A", "- B", "-x"]
    bare = (0, *scorer.tokenizer.encode(begun.encode()))
    whole = [(0, *scorer.tokenizer.encode((begun + option).encode())) for option in options]
    begin = min(next(at for at in range(len(ids)) if ids[: at + 1] != bare[: at + 1]) for ids in whole)
    expected = []
    for ids in whole:
        ((*rows,),) = run(scorer.score([ScoreRequest((), ids, tuple(range(begin, len(ids))))]))
        expected.append(sum(float(row[token]) for row, token in zip(rows, ids[begin:], strict=True)))
    with serving(config, scorer) as server:
        found = run(model(server).score((replace(prompt[0], text=begun),), options))
        assert found.logprobs == pytest.approx(expected)
        assert server.requests == (4 if prompt is CHAT else 1)
        assert found.spent == ServerUsage(server.prompt_tokens, None, server.completion_tokens, server.requests)


def test_with_a_tokenizer_texts_are_scored_as_ids_S12() -> None:
    tokenizer = ScriptedModel("x").tokenizer
    texts = ["Ada said </s>", "Ada said </s> then"]
    bodies = [Dialect("vllm", CAN["vllm"]).prompted("m", (PromptTurn(None, each),), tokenizer) for each in texts]
    assert [body["prompt"] for body in bodies] == [[*tokenizer.bos, *tokenizer.encode(each.encode())] for each in texts]


# What a server cannot do ----------------------------------------------------------------------------------------------


async def going_on(asked: OpenAIModel) -> object:
    return await pieces_of(asked, BEGUN, CompletionRequest(9))


async def drawing(asked: OpenAIModel, **options: Any) -> object:
    return await pieces_of(asked, TEXT, CompletionRequest(9, sampling=Sampling(temperature=1.0, **options)))


async def scoring(asked: OpenAIModel) -> object:
    return await asked.score((PromptTurn(None, "Q:"),), ["a", "b"])


SCORES_NOTHING = "does not report scores of the text of a prompt"
GOES_ON = "cannot continue a turn of the assistant that has begun"


@pytest.mark.parametrize(
    ("config", "work", "sentence"),
    [
        (OPENAI_CHAT, going_on, GOES_ON),
        (replace(LLAMA_CPP, prefills=False), going_on, GOES_ON),
        (OLLAMA, going_on, GOES_ON),
        (OPENAI_TEXT, partial(drawing, top_k=5), "does not support top_k"),
        (OPENAI_TEXT, partial(drawing, typical_p=0.9), "does not support typical_p"),
        (LLAMA_CPP, scoring, SCORES_NOTHING),
        (OPENAI_TEXT, scoring, SCORES_NOTHING),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_anything_is_spent(
    config: Config, work: Callable[[OpenAIModel], Coroutine[Any, Any, object]], sentence: str
) -> None:
    with serving(config, SPOKEN) as server:
        asked = model(server)
        run(asked.probe())
        before = counted(server)
        with pytest.raises(ModelError, match=sentence) as caught:
            run(work(asked))
        assert counted(server) == before and caught.value.hint
