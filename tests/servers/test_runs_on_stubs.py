"""Whole runs against servers of every kind, as the stub imitates them, over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.models.openai.model import OpenAIModel
from lmql_lite.models.scripted import ScriptedModel
from tests.servers.kinds import LLAMA_CPP, OLLAMA, OPENAI_CHAT, OPENAI_TEXT, SGLANG, VLLM, Config
from tests.servers.stub import Server, serving

KINDS = {
    "openai-text": OPENAI_TEXT,
    "openai-chat": OPENAI_CHAT,
    "vllm": VLLM,
    "sglang": SGLANG,
    "llama.cpp": LLAMA_CPP,
    "ollama": OLLAMA,
}

JOKE = '''
argmax(cache="joke.tokens")
    """A good dad joke. A indicates the punchline
    Q:[JOKE]
    A:[PUNCHLINE]"""
where
    len(JOKE) < 120 and STOPS_AT(JOKE, "?") and
    STOPS_AT(PUNCHLINE, "\\n") and len(PUNCHLINE) > 1
'''
TOLD = "Q: Why did the hen cross the road?\nA: To get to the other side.\n"


def comedian(said: bytes) -> bytes:
    """Goes on with the joke wherever the text has got to; asked anew in a chat, it tells the punchline."""
    joke = TOLD.encode()[len("Q:") :]
    for length in range(len(joke), 0, -1):
        if said.endswith(joke[:length]):
            return joke[length:]
    return joke if said.endswith(b"Q:") else b" To get to the other side.\n"


CITIES = (" Paris", " Lyon", " Marseille")


def model_of(server: Server) -> OpenAIModel:
    return OpenAIModel("stub", base_url=server.base_url, api_key="sk-test")


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_the_joke_query_works_on_every_kind_of_server_and_once_is_enough(config: Config, tmp_path: Path) -> None:
    with serving(config, comedian) as server:
        result = lq.run_sync(JOKE, model=model_of(server), session=lq.Session())
        assert result["JOKE"].endswith("?")
        assert result["PUNCHLINE"].endswith("\n") and len(result["PUNCHLINE"]) > 1
        assert (
            result.prompt == f"A good dad joke. A indicates the punchline\nQ:{result['JOKE']}\nA:{result['PUNCHLINE']}"
        )
        asked = server.requests
        assert asked <= 4
        again = lq.run_sync(JOKE, model=model_of(server), session=lq.Session())
        assert again.prompt == result.prompt
        assert (server.requests, again.usage.completion_tokens) == (asked, 0)


@pytest.mark.parametrize("city", ["Paris", "none of them"])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_conditions_hold_on_every_kind_of_server(config: Config, city: str) -> None:
    """Also where it would have said something else, which is held to a grammar or a schema."""
    source = '"The capital of France is[CITY]." where CITY in [" Paris", " Lyon", " Marseille"]'
    is_chat = not config.text or config.kind == "ollama"
    said = "Paris" if config is OPENAI_TEXT else city
    with serving(config, f"The capital of France is {said}.\n") as server:
        result = lq.run_sync(source, model=model_of(server), session=lq.Session())
    assert result["CITY"] == " Paris" if said == "Paris" and not is_chat else result["CITY"] in CITIES


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize(
    "options", [{"cache": False}, {"speculate": False}, {}], ids=["alone", "without guesses", "as usual"]
)
def test_a_tool_was_called_where_the_rules_of_a_server_end_and_its_result_was_not_inserted(
    config: Config, options: dict[str, bool]
) -> None:
    source = '"Go:[argmax(tools=[get]) X]" where STOPS_AT(X, "done")'
    asked = list[str]()

    def get(key: str) -> str:
        asked.append(key)
        return "one"

    with serving(config, 'Go: `get("a") # result: "one"` done\nThe end.') as server:
        result = lq.run_sync(source, {"get": get}, model=model_of(server), session=lq.Session(), **options)
    assert result["X"].strip().startswith('`get("a") # result: "one"`') and asked == ["a"]


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("before", ["As JSON: ", "{:user}As JSON.{:assistant}"], ids=["text", "chat"])
def test_a_typed_hole_whose_first_sign_is_forced_was_not_held_to_its_schema(kind: str, before: str) -> None:
    with serving(KINDS[kind], 'As JSON: {"a": 1}') as server:
        result = lq.run_sync(f'"{before}[X: dict[str, int]]"', model=model_of(server), session=lq.Session())
        assert result["X"] == {"a": 1}
        assert any(name in server.bodies[0] for name in ("structured_outputs", "json_schema", "response_format"))
        assert "additionalProperties" in str(server.bodies[0])


LAW_ONE = (
    '"Ratio: [X]\\n" where INT(X) and 0 < int(X) <= 1500 and len(X) < 8',
    '"a [X]b[Y]\\n" where len(X) < 6 and INT(Y) and len(Y) < 4',
    '"I like [X].\\nmy number is [Y]." where STOPS_BEFORE(X, ".") and len(X) < 9 and INT(Y) and int(Y) < 50',
    '"x[X]\\n" where X in [" yes", " no", " not"]',
)


@pytest.mark.parametrize("config", [VLLM, LLAMA_CPP], ids=lambda config: config.kind)
@pytest.mark.parametrize("source", LAW_ONE)
def test_without_a_cache_a_hole_ended_later_as_the_server_was_not_sent_what_follows_it_law_1(
    config: Config, source: str
) -> None:
    """R5. A grammar without the text after the hole does not offer that text's first character as an end (S16, S18)."""
    for seed in range(3):
        with serving(config, ScriptedModel("", certainty=0, seed=seed)) as server:
            cached, uncached = (
                lq.run_sync(source, model=model_of(server), session=lq.Session(), cache=cache, max_tokens=12)
                for cache in (True, False)
            )
        assert uncached.prompt == cached.prompt
