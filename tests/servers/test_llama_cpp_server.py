"""What llama.cpp's own server (as of xllamacpp 2026.10) does, as far as a client has to know it.

| asked | answered |
|---|---|
| model | any name is served; `/v1/models` and `/props` tell one alias, the model's file, its context and its template |
| prompt | a text or ids; bos is put before a text, special spellings in it are special tokens |
| n_predict | 0 is one token; more than there is room for is cut |
| too long a prompt | refused with status 400, streaming or not |
| a stream | an event for each whole piece of text, with the id of its last token; then how it ended, without text |
| finish | `limit`; `eos` for end-of-text and a finished grammar; `word` with the stop string, which is left out |
| a character of several tokens | one event: the bytes of all, the id and the score of the last; cut short, it is lost |
| n_probs=N | the N likeliest, N unbounded, and the one that was said; before bias, grammar and temperature |
| grammar, json_schema | a grammar that does not parse is refused; a schema that makes no sense is ignored |
| other fields | ignored; wrong values are refused |
| logit_bias | pairs of an id and a number, or false for never; unknown ids are ignored |
| timings | what was known of the prompt (`cache_n`), to the token, and what was not (`prompt_n`) |
| a turn that has begun | is gone on with; `/apply-template` shows the prompt of a chat |
| a connection | is closed behind each stream, though the headers say that it is kept |
| a client that goes | ends its stream |
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.demo import DemoModel
from tests.servers.conftest import TEMPLATE, client
from tests.servers.llama_cpp import CONTEXT
from tests.servers.processes import ServerProcess

if TYPE_CHECKING:
    import httpx

PLAIN = {"temperature": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "return_tokens": True}
MOON = "Q: When did the first moon landing take place?\nA:"
BEGUN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am"}]
BOS, EOS = 0, 1


@pytest.fixture(scope="module")
def server(llama_cpp_server: ServerProcess) -> Iterator[httpx.Client]:
    with client(llama_cpp_server) as found:
        found.headers["Connection"] = "close"
        yield found


def ids_of(text: str) -> list[int]:
    tokenizer = DemoModel.load().tokenizer
    return [*tokenizer.bos, *tokenizer.encode(text.encode())]


def complete(server: httpx.Client, **body: Any) -> Any:
    response = server.post("/completion", json=PLAIN | body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: httpx.Client, **body: Any) -> tuple[int, str]:
    response = server.post("/completion", json=PLAIN | body)
    return response.status_code, response.json()["error"]["message"]


def stream(server: httpx.Client, **body: Any) -> list[Any]:
    with server.stream("POST", "/completion", json=PLAIN | body | {"stream": True}) as response:
        return [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]


def spelled(*characters: str) -> str:
    """The grammar of these characters and nothing else."""
    return "root ::= " + " ".join(f'"{character}"' for character in characters)


def test_what_it_says_about_itself(server: httpx.Client) -> None:
    (entry,) = server.get("/v1/models").json()["data"]
    assert (entry["id"], entry["owned_by"]) == ("demo", "llamacpp")
    props = server.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == CONTEXT
    assert props["chat_template"] == TEMPLATE.rstrip("\n") or props["chat_template"] == TEMPLATE
    assert {"build_info", "model_path", "model_alias", "bos_token", "eos_token", "modalities"} <= set(props)
    assert complete(server, prompt="Q:", n_predict=1, model="nonsense")["content"] == " When"


@pytest.mark.parametrize("text", ["Q:", "<|bos|>Q:", "Q:<|eos|>", "日😀é"])
def test_special_spellings_in_a_prompt_are_special_tokens_and_ids_are_taken_as_they_are(
    text: str, server: httpx.Client
) -> None:
    cut, sent = (complete(server, prompt=prompt, n_predict=1)["tokens_evaluated"] for prompt in (text, ids_of(text)))
    assert sent == len(ids_of(text))
    assert (cut == sent) is ("<|" not in text)
    assert refused(server, prompt=[BOS, 5000])[0] == 400


def test_too_long_a_prompt_is_refused_and_too_long_an_answer_is_cut(server: httpx.Client) -> None:
    for streamed in (False, True):
        status, told = refused(server, prompt=[BOS] * (CONTEXT + 1), stream=streamed)
        assert status == 400 and "exceeds the available context size" in told
    *_, last = stream(server, prompt=[BOS] * (CONTEXT - 9), n_predict=5000, logit_bias=[[EOS, False]])
    assert (last["stop_type"], last["truncated"]) == ("limit", True)
    assert last["tokens_evaluated"] + last["tokens_predicted"] == CONTEXT
    assert complete(server, prompt="Q:", n_predict=0)["tokens_predicted"] == 1


@pytest.mark.parametrize(
    ("body", "text", "kind", "word"),
    [
        ({"prompt": "Q:", "stop": ["-", "?"]}, "presented", "word", "?"),
        ({"prompt": "Q:", "stop": ["\n"]}, "presented?", "word", "\n"),
        ({"prompt": MOON + " 1969-07-20\n", "stop": ["-"]}, "", "eos", ""),
        ({"prompt": MOON, "grammar": spelled(" 1969")}, " 1969", "eos", ""),
        ({"prompt": MOON, "n_predict": 3}, " 19", "limit", ""),
    ],
    ids=["a stop inside a token", "a stop", "end-of-text", "end of the grammar", "limit"],
)
def test_how_an_answer_ends(body: dict[str, Any], text: str, kind: str, word: str, server: httpx.Client) -> None:
    *events, last = stream(server, **{"n_predict": 40, **body})
    assert "".join(event["content"] for event in events).endswith(text)
    assert (last["content"], last["stop_type"], last["stopping_word"]) == ("", kind, word)
    assert {"tokens_evaluated", "tokens_predicted"} <= set(last) and last["timings"]["prompt_n"] > 0


def test_a_character_of_several_tokens_has_the_id_of_the_last(server: httpx.Client) -> None:
    events = stream(server, prompt="Q:", n_predict=20, grammar=spelled("日", "x"), n_probs=2)
    assert [event["content"] for event in events] == ["日", "x", "", ""]
    vocabulary = DemoModel.load().tokenizer.vocabulary
    (entry,) = events[0]["completion_probabilities"]
    assert entry["bytes"] == list("日".encode())
    assert vocabulary[entry["id"]] == vocabulary[events[0]["tokens"][0]] == "日".encode()[-1:]
    assert "".join(event["content"] for event in stream(server, prompt="Q:", n_predict=2, grammar=spelled("日"))) == ""


def test_logprobs_are_the_models_own_whatever_is_forced(server: httpx.Client) -> None:
    model = DemoModel.load()
    scores = asyncio.run(model.score([ScoreRequest(tuple(ids_of("Q:")))]))[0][0]
    forced = {"logit_bias": [[ids_of(" When")[1], False], [5000, False]], "grammar": spelled("x"), "temperature": 0.3}
    found = complete(server, prompt="Q:", n_predict=1, n_probs=100, **forced)["completion_probabilities"][0]
    assert found["token"] == "x" and len(found["top_logprobs"]) == 100
    told = {entry["id"]: entry["logprob"] for entry in [found, *found["top_logprobs"]]}
    assert np.allclose(list(told.values()), [scores[number] for number in told], atol=2e-2)


def test_what_it_holds_its_model_to(server: httpx.Client) -> None:
    events = stream(server, prompt=MOON, n_predict=30, json_schema={"enum": ["x", "y"]})
    assert "".join(event["content"] for event in events) in ('"x"', '"y"')
    for grammar in ("root ::= (((", 'start ::= "a"', 'root ::= root "a" | "b"'):
        assert refused(server, prompt="Q:", grammar=grammar)[0] == 400
    assert complete(server, prompt="Q:", n_predict=1, nonsense={"guided_grammar": "root ::= ((("})["content"]
    assert refused(server, prompt="Q:", n_predict="x")[0] == 400


def test_a_seed_repeats_a_text(server: httpx.Client) -> None:
    texts = [complete(server, prompt="Q:", n_predict=12, temperature=1, seed=seed)["content"] for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_what_it_knows_of_a_prompt_is_told_to_the_token(server: httpx.Client) -> None:
    prompt = ids_of("What it knows. " * 40)
    told = [stream(server, prompt=prompt, n_predict=1)[-1]["timings"] for _ in range(2)]
    assert [timings["prompt_n"] + timings["cache_n"] for timings in told] == [len(prompt)] * 2
    assert told[1]["prompt_n"] == 1


def test_a_connection_is_closed_behind_a_stream_though_its_headers_say_otherwise(server: httpx.Client) -> None:
    port = server.base_url.port
    assert port is not None
    request = json.dumps(PLAIN | {"prompt": "Q:", "n_predict": 1, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", port)) as kept:
        head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request)}\r\n"
        kept.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + request)
        answer = b"".join(iter(lambda: kept.recv(4096), b""))
    assert b"\r\nKeep-Alive: " in answer and answer.endswith(b"\r\n0\r\n\r\n")


def test_a_turn_that_has_begun_is_gone_on_with(server: httpx.Client) -> None:
    for told in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        shown = server.post("/apply-template", json={"messages": BEGUN, **told}).json()["prompt"]
        assert shown == "user: Hi\nassistant:I am", "what its template puts before a new turn, and the text"
    both = {"messages": BEGUN, "continue_final_message": True}
    assert server.post("/apply-template", json=both).status_code == 400
