"""`openai/NAME` against the strict stub: what is found out, what arrives, where it ends, and what it cost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from lmql_lite.models.base import (
    Capabilities,
    CompletionRequest,
    Prompt,
    PromptTurn,
    ScoreRequest,
    ServerUsage,
    StreamPiece,
)
from lmql_lite.models.demo import DemoModel
from lmql_lite.models.openai.assembler import Assembler
from lmql_lite.models.openai.decoder import ServerToken, read
from lmql_lite.models.scripted import ScriptedModel
from lmql_lite.options import Sampling
from tests.models.api import (
    CHAT,
    CONFIGS,
    KEY,
    NAMES,
    NO_MERGED,
    SPOKEN,
    TELLING,
    TEXT,
    ask,
    choice,
    counted,
    model,
    pieces_of,
    run,
    sse,
    text,
)
from tests.servers.kinds import LLAMA_CPP, OPENAI_CHAT, OPENAI_TEXT, SGLANG, VLLM, Config
from tests.servers.stub import Fault, Server, serving
from tests.tables import cases

pytestmark = pytest.mark.usefixtures("quick_and_alone")


# What is found out ----------------------------------------------------------------------------------------------------


OPENAI = Capabilities("", continues_turns=False, takes_seeds=True, probe_costs=True, bills_to_the_end=True)
OPEN = Capabilities("", takes_languages=True, takes_schemas=True, alternatives=20, stops=16, context_length=4096)
FOUND = {
    "openai-text": replace(OPENAI, alternatives=5),
    "openai-chat": replace(OPENAI, chat_only=True, takes_schemas=True, alternatives=20),
    "reasoning": replace(OPENAI, chat_only=True, takes_schemas=True),
    "vllm": replace(OPEN, most_rules=100, takes_seeds=True, scores=True),
    "sglang": replace(OPEN, most_rules=100, scores=True),
    "llama.cpp": replace(OPEN, takes_seeds=True),
    "ollama": Capabilities(
        "", chat_only=True, continues_turns=False, takes_schemas=True, alternatives=20, takes_seeds=True
    ),
}


@pytest.mark.parametrize(("name", "config"), list(zip(NAMES, CONFIGS, strict=True)), ids=NAMES)
def test_what_a_server_can_do_is_found_out(name: str, config: Config) -> None:
    with serving(config, SPOKEN) as server:
        asked = model(server)

        async def twice() -> tuple[Capabilities, Capabilities]:
            return await asked.probe(), await asked.probe()

        first, second = run(twice())
        assert replace(first, fingerprint="", spent=None) == FOUND[name]
        assert second == replace(first, spent=None)
        # at most one token, and only where no look tells; it is on the bill of the one who waited for it (S32)
        assert server.completion_tokens == (1 if config.kind == "openai" else 0)
        assert (first.spent is None) == (config.kind != "openai")
        if first.spent is not None:
            assert first.spent.completion_tokens == 1 and 0 < first.spent.requests <= server.requests


def test_who_meets_at_the_same_time_asks_once() -> None:
    with serving(OPENAI_TEXT, SPOKEN) as server:

        async def together() -> list[Capabilities]:
            asked = model(server)
            return await asyncio.gather(*(asked.probe() for _ in range(5)))

        met = run(together())
        assert sum(endpoint.spent is not None for endpoint in met) == 1
        assert (server.looks, server.completion_tokens) == (6, 1)


def fingerprint(server: Server, **options: Any) -> str:
    return run(model(server, **options).probe()).fingerprint


def test_the_fingerprint_holds_what_the_server_reports_and_no_key() -> None:
    """S4."""
    with serving(VLLM, "") as one, serving(replace(VLLM, version="0.12.0"), "") as other, serving(VLLM, "") as far:
        known = fingerprint(one)
        assert known == fingerprint(one, api_key="another") == fingerprint(one, base_url=f"{one.base_url}/")
        assert KEY not in known
        assert len({known, fingerprint(other), fingerprint(far)}) == 3
        assert fingerprint(one, revision="7") == fingerprint(other, revision="7") != fingerprint(one, revision="8")


def test_what_a_server_counts_is_not_its_identity() -> None:
    """SGLang tells its load, vLLM gives its permissions new ids all the time."""
    with serving(SGLANG, "") as server:
        known = fingerprint(server)
        server.config = replace(SGLANG, about={"get_server_info": {"last_gen_throughput": 99.0}})
        assert fingerprint(server) == known
        server.config = replace(SGLANG, about={"get_model_info": {"weight_version": "2"}})
        assert fingerprint(server) != known


def test_with_a_revision_a_chat_model_of_openai_costs_nothing_to_meet() -> None:
    with serving(OPENAI_CHAT, SPOKEN) as server:
        endpoint = run(model(server, revision="2026-01").probe())
        assert endpoint.chat_only and server.completion_tokens == 0
        assert endpoint.spent == ServerUsage(0, 0, 0, server.requests, 0), "a refusal is a request, too"


# What arrives ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [1, 3], ids=["token by token", "three at once"])
@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_the_text_is_what_was_said_byte_for_byte(config: Config, together: int) -> None:
    config = replace(config, tokens_per_event=together)
    with serving(config, ScriptedModel(SPOKEN, words=NO_MERGED)) as server:
        for alternatives in (0, 3):
            request = CompletionRequest(
                60, alternatives=alternatives, sampling=Sampling(config.only_temperature or 0.0)
            )
            pieces = ask(server, request)
            assert text(pieces) == SPOKEN
            assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]
            assert pieces[-1].ended_by is None
            assert all(bool(piece.data) != bool(piece.thought) for piece in pieces[:-1])
            assert "".join(piece.thought for piece in pieces).strip() == config.thoughts


@pytest.mark.parametrize("config", [VLLM, SGLANG, LLAMA_CPP, OPENAI_CHAT, OPENAI_TEXT], ids=lambda one: one.kind)
def test_tokens_come_with_their_scores_and_those_that_might_have_come(config: Config) -> None:
    scorer = ScriptedModel("Option A\n12", certainty=9)
    ((*rows,),) = run(scorer.score([ScoreRequest((0,), scorer.tokenizer.encode(b"Option A\n12"), (0, 1, 2))]))
    with serving(config, scorer) as server:
        for piece, row in zip(ask(server, CompletionRequest(3, alternatives=4)), rows, strict=False):
            said = int(row.argmax())
            assert piece.logprob == pytest.approx(float(row[said]))
            if config.kind in ("vllm", "sglang", "llama.cpp"):
                assert piece.token == said
            known = {data: float(row[token]) for token, data in enumerate(scorer.tokenizer.vocabulary) if data}
            assert piece.data not in dict(piece.alternatives)
            assert [score for _, score in piece.alternatives] == sorted(
                (s for _, s in piece.alternatives), reverse=True
            )
            assert all(score == pytest.approx(known[data]) for data, score in piece.alternatives)
            if config.kind in ("llama.cpp", "openai") and config.chat:  # the others lose the bytes of half a character
                order = [token for token in (-row).argsort()[:5] if token != said]
                expected = [data for token in order if (data := scorer.tokenizer.vocabulary[token]) is not None]
                assert [data for data, _ in piece.alternatives] == expected


def test_with_a_tokenizer_half_characters_are_tokens_too() -> None:
    scorer = ScriptedModel(SPOKEN, words=NO_MERGED)
    with serving(VLLM, scorer) as server:
        pieces = ask(server, CompletionRequest(60, alternatives=3), tokenizer=scorer.tokenizer)
    ids = scorer.tokenizer.encode(SPOKEN.encode())
    assert [piece.token for piece in pieces[:-1]] == list(ids)
    assert [piece.data for piece in pieces[:-1]] == [scorer.tokenizer.vocabulary[token] for token in ids]
    assert all(piece.logprob is not None and piece.alternatives for piece in pieces[:-1])


@pytest.mark.parametrize("config", [VLLM, SGLANG, LLAMA_CPP], ids=lambda config: config.kind)
def test_with_a_tokenizer_what_a_chat_might_have_said_was_the_spelling_of_an_id(config: Config) -> None:
    scorer = ScriptedModel("Option A", certainty=9)
    with serving(config, scorer) as server:
        (first, *_) = ask(server, CompletionRequest(2, alternatives=4), CHAT, tokenizer=scorer.tokenizer)
    assert first.data == b"Option"
    assert {data for data, _ in first.alternatives} <= set(scorer.tokenizer.vocabulary)


@pytest.mark.parametrize("config", [VLLM, SGLANG, LLAMA_CPP, OPENAI_TEXT], ids=lambda config: config.kind)
def test_with_a_tokenizer_plain_text_is_sent_as_ids_so_that_no_spelling_in_it_is_a_special_token_S12(
    config: Config,
) -> None:
    scorer, said = DemoModel.load(), "Ada said </s> and <unk>, then:"
    with serving(config, scorer) as server:
        ask(server, CompletionRequest(2), (PromptTurn(None, said),), tokenizer=scorer.tokenizer)
        sent = server.bodies[-1]["prompt"]
        known, by_ids = fingerprint(server), fingerprint(server, tokenizer=scorer.tokenizer)
    if config is OPENAI_TEXT:
        assert sent == said and by_ids == known, "nobody knows its tokens for certain"
    else:
        assert sent == [*scorer.tokenizer.bos, *scorer.tokenizer.encode(said.encode())]
        assert by_ids != known, "it need not be how the server cuts the text"


@cases("models/openai", "how tokens are spelled")
def test_how_tokens_are_spelled(spelling: str, data: bytes | None, number: int | None) -> None:
    others = [{spelling: -1.0, r"bytes:\xff": -2.0}]
    scores = {"tokens": [spelling], "token_logprobs": [-9999.0], "top_logprobs": others}
    (token,) = read(choice(text="x", logprobs=scores), (b"zero", b"one", b"two")).tokens
    assert token == ServerToken(data, number, None, ((b"\xff", -2.0),))


def test_a_text_that_a_token_does_not_fit_keeps_its_bytes() -> None:
    """SentencePiece spells a token without the space that stands before it."""
    scores = {"tokens": ["Foo"], "token_logprobs": [-0.5], "top_logprobs": [{"Foo": -0.5, "Bar": -1.0}]}
    delta = read(choice(text=" Foo", logprobs=scores, token_ids=[7]), ())
    assert list(Assembler((), raw=True).take(delta)) == [StreamPiece(b" Foo", 7, -0.5)]


def test_what_was_held_back_belongs_to_no_single_token() -> None:
    """llama.cpp holds back what may begin a stop string, and gives its bytes to the token that comes after."""
    said = ((5, ""), (6, "the"), (7, " end"), (8, "é"))
    events = [{"content": content, "tokens": [token], "stop": False} for token, content in said]
    assembler = Assembler((), raw=True)
    pieces = [piece for event in events for piece in assembler.take(read(event, ()))]
    assert [(piece.data, piece.token) for piece in pieces] == [(b"the", None), (b" end", 7), ("é".encode(), None)]


@cases("models/openai", "a character of several tokens was taken for the last of them", globals())
def test_a_character_of_several_tokens_was_taken_for_the_last_of_them(
    vocabulary: tuple[bytes, ...], others: list[dict[str, Any]], token: ServerToken
) -> None:
    """llama.cpp gives the last one the bytes of all."""
    entry = {"id": 2, "token": "é", "bytes": [0xC3, 0xA9], "logprob": -1.0, "top_logprobs": others}
    delta = read({"content": "é", "tokens": [2], "completion_probabilities": [entry]}, vocabulary)
    assert [one._replace(alternatives=()) for one in delta.tokens] == [token]


@pytest.mark.parametrize(("temperature", "told"), [(0.0, True), (1.0, True), (0.7, False)])
def test_only_the_models_own_scores_are_given(temperature: float, told: bool) -> None:
    """SGLang divides by the temperature before it tells them."""
    with serving(SGLANG, "Option A") as server:
        (first, *_) = ask(server, CompletionRequest(1, alternatives=12, sampling=Sampling(temperature)))
    assert (first.logprob is not None) is told and bool(first.alternatives) is told


# Stops, bounds, ends --------------------------------------------------------------------------------------------------


ENDING = "One.\n\nTwo and the END"
STOPS = [
    (("\n",), "One.\n", "\n"),  # the token is ".\n\n": what it says beyond is cut
    (("the END", "x"), ENDING, "the END"),  # of several tokens
    (("Two", "."), "One.", "."),
    (("nowhere",), ENDING, None),
]


@pytest.mark.parametrize("prompt", [TEXT, CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("config", TELLING, ids=lambda config: config.kind)
@pytest.mark.parametrize(("stops", "said", "ended_by"), STOPS)
def test_a_stop_string_is_told_apart_from_the_end(
    config: Config, prompt: Prompt, stops: tuple[str, ...], said: str, ended_by: str | None
) -> None:
    with serving(config, ENDING) as server:
        pieces = ask(server, CompletionRequest(40, stops=stops, alternatives=2), prompt)
    assert text(pieces) == said
    assert (pieces[-1].finish, pieces[-1].ended_by) == ("stop", ended_by)


def test_a_server_that_talks_on_is_left() -> None:
    talk = sse(choice(text="a\nb"), choice(text="c"), choice(text=["not", "read"]))
    with serving(VLLM, "", Fault(plain=talk)) as server:
        pieces = ask(server, CompletionRequest(9, stops=("\n",)))
        assert text(pieces) == "a\n" and pieces[-1].ended_by == "\n"
    with serving(replace(VLLM, refuses=frozenset({"stop"}), seconds_per_token=0.004), "a\n" * 99) as server:
        pieces = ask(server, CompletionRequest(200, stops=("\n",)))
        assert text(pieces) == "a\n" and pieces[-1].ended_by == "\n" and server.completion_tokens < 99


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_the_bound_ends_an_answer(config: Config) -> None:
    with serving(replace(config, thoughts=""), SPOKEN) as server:
        pieces = ask(server, CompletionRequest(5, sampling=Sampling(config.only_temperature or 0.0)))
    assert pieces[-1].finish == "length" and text(pieces) == "Ein n"


# What it costs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_what_it_cost_is_what_the_server_counted(config: Config) -> None:
    """Law 6."""
    role = "user" if not config.text or config.kind == "ollama" else None
    request = CompletionRequest(20, sampling=Sampling(config.only_temperature or 0.0))
    with serving(config, SPOKEN) as server:
        asked = model(server)
        run(asked.probe())
        met = counted(server)
        work = (pieces_of(asked, (PromptTurn(role, "- Option"),), request) for _ in range(2))
        first, second = (run(each)[-1].spent for each in work)
        size, said = 1 + len(ScriptedModel("").tokenizer.encode(b"- Option")), (server.completion_tokens - met[2]) // 2
        assert server.requests - met[0] == 2
        if not config.tells_usage:
            assert first == second == ServerUsage()
            return
        assert first is not None and (first.prompt_tokens, first.completion_tokens) == (size, said)
        assert second == ServerUsage(size, size, said)


@pytest.mark.parametrize(
    "usage", ["many", {"prompt_tokens": "3", "completion_tokens": -1}, {"prompt_tokens": True}, []]
)
def test_a_usage_that_is_no_count_is_not_told(usage: object) -> None:
    said = choice(text="Hi", finish_reason="stop") | {"usage": usage}
    with serving(VLLM, "", Fault(plain=sse(said, "[DONE]"))) as server:
        assert ask(server)[-1].spent == ServerUsage()


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["left", "cancelled"])
def test_leaving_ends_the_request(is_cancelled: bool) -> None:
    with serving(replace(VLLM, seconds_per_token=0.004), "word " * 400) as server:

        async def read() -> None:
            async with aclosing(model(server).stream(TEXT, CompletionRequest(2000))) as pieces:
                async for _ in pieces:
                    if not is_cancelled:
                        return

        async def left() -> None:
            task = asyncio.create_task(read())
            await asyncio.to_thread(server.wait, lambda: server.completion_tokens > 0)
            if is_cancelled:
                task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() is is_cancelled
            await asyncio.to_thread(server.wait, lambda: server.disconnects == 1)

        run(left())
        assert 0 < server.completion_tokens < 500
