"""What llama.cpp's Python server (llama-cpp-python 0.3.36) does, as far as a client has to know it.

| asked | answered |
|---|---|
| model | any name is served; `/v1/models` tells one alias, neither context length nor version |
| prompt | one text, in a list or not; ids are refused; bos is put before it, special spellings are special tokens |
| a stream | a chunk for each whole piece of text, then one without text that has `finish_reason`, then `[DONE]` |
| usage | only where nothing is streamed, whatever `stream_options` says |
| finish_reason | `length`; `stop` for end-of-text, a stop string and a finished grammar alike |
| stop | any number; cut off the text; a token that runs into one is cut in the text and whole in `logprobs` |
| logprobs=N | the N likeliest, then the sampled one, N unbounded; before bias, grammar and temperature |
| tokens in logprobs | as text; parts of characters and end-of-text are all spelled `` and share an entry |
| streaming with logprobs | characters of several tokens are lost; without they come whole |
| echo | not streaming: log-probabilities of the prompt, right for models with bos, none for the first token |
| grammar | a field of the body, GBNF; one that does not parse ends the server |
| defaults | temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, repeat_penalty 1.1: send all of them |
| seed, logit_bias | heeded; a bias names token ids, unknown ones are ignored |
| max_tokens | 16 unless told; 0 is no limit; more than there is room for is cut; a character begun is completed |
| too long a prompt | 400; when streaming 200 and nothing, and the connection closes, perhaps under the next request |
| other fields | ignored, `n` too; wrong values are errors 500 |
| a second request | breaks the first one off, unless the server was told not to; else waits for it |
| a client that goes | ends its stream; an answer that is not streamed is computed to its end |
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.demo import DemoModel
from tests.servers.llama import CONTEXT, missing, serving
from tests.servers.processes import ServerProcess, once

httpx = pytest.importorskip("httpx", reason="needs httpx: pip install --group servers")
pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

PLAIN = {"temperature": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
MOON = "Q: When did the first moon landing take place?\nA:"
REPEATING = "candle? clock\nriver? stone\n" * 6
EOS = 1
ENDLESS = {"temperature": 1, "seed": 1, "logit_bias": {str(EOS): -1000}}
"""Goes on until `max_tokens`."""


def complete(llama: Any, **body: Any) -> Any:
    """The answer to a request that succeeds."""
    response = llama.post("/v1/completions", json=PLAIN | body)
    assert response.status_code == 200, response.text
    return response.json()


def text_of(llama: Any, **body: Any) -> str:
    text: str = complete(llama, **body)["choices"][0]["text"]
    return text


def lines(response: Any) -> list[str]:
    return [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]


def stream(llama: Any, **body: Any) -> list[Any]:
    """The one choice of every chunk. The last line is checked here."""
    with llama.stream("POST", "/v1/completions", json=PLAIN | body | {"stream": True}) as response:
        *chunks, done = lines(response)
    assert done == "[DONE]"
    return [json.loads(chunk)["choices"][0] for chunk in chunks]


def spelled(*characters: str) -> str:
    """The grammar of these characters and nothing else, one by one."""
    return "root ::= " + " ".join(f'"{character}"' for character in characters)


def test_one_model_is_told_and_nothing_about_it(llama: Any) -> None:
    models = llama.get("/v1/models").json()["data"]
    assert models == [{"id": "demo", "object": "model", "owned_by": "me", "permissions": []}]


def test_any_model_name_is_served(llama: Any, demo_gguf: Path) -> None:
    assert complete(llama, prompt="Q:", model="nonsense", max_tokens=1)["model"] == "nonsense"
    assert complete(llama, prompt="Q:", max_tokens=1)["model"] == str(demo_gguf)


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("Q:", 3), ("<|bos|>Q:", 4), ("Q:<|eos|>", 4), ("", 1)],
    ids=["bos is added", "bos that is there is not seen", "eos", "nothing but bos"],
)
def test_special_spellings_in_a_prompt_are_special_tokens(llama: Any, prompt: str, count: int) -> None:
    assert complete(llama, prompt=prompt, max_tokens=1)["usage"]["prompt_tokens"] == count


def test_special_spellings_in_the_text_are_text(llama: Any) -> None:
    answer = complete(llama, prompt="Q:", max_tokens=20, grammar=spelled("<|eos|>x"))
    assert answer["choices"][0]["text"] == "<|eos|>x"


def test_a_prompt_is_one_text(llama: Any) -> None:
    assert text_of(llama, prompt=[MOON], max_tokens=11) == " 1969-07-20"
    for prompt in ([0, 2, 3], [[0, 2, 3]], ["Q:", "A:"]):
        assert llama.post("/v1/completions", json={"prompt": prompt}).status_code == 500


def test_a_stream_is_pieces_then_the_end_and_no_usage(llama: Any) -> None:
    body = {"prompt": MOON, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    with llama.stream("POST", "/v1/completions", json=PLAIN | body) as response:
        *chunks, done = lines(response)
    assert done == "[DONE]"
    assert not any("usage" in json.loads(chunk) for chunk in chunks)
    choices = [json.loads(chunk)["choices"] for chunk in chunks]
    assert choices == [
        [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}]
        for text, finish in [(" ", None), ("1", None), ("9", None), ("6", None), ("", "length")]
    ]
    usage = complete(llama, prompt=MOON, max_tokens=4)["usage"]
    assert usage == {"prompt_tokens": 17, "completion_tokens": 4, "total_tokens": 21}


def test_a_character_of_several_tokens_comes_whole(llama: Any) -> None:
    chunks = stream(llama, prompt="Q:", max_tokens=20, grammar=spelled("日", "😀", "x"))
    assert [chunk["text"] for chunk in chunks] == ["日", "😀", "x", ""]


def test_with_logprobs_a_stream_loses_characters_of_several_tokens(llama: Any) -> None:
    body = {"prompt": "Q:", "max_tokens": 20, "grammar": spelled("日", "x"), "logprobs": 0}
    chunks = stream(llama, **body)
    assert [chunk["text"] for chunk in chunks] == ["", "", "", "x", ""]
    assert [chunk["logprobs"]["tokens"] for chunk in chunks[:-1]] == [[""], [""], [""], ["x"]]
    whole = complete(llama, **body)["choices"][0]
    assert whole["text"] == "日x"
    assert whole["logprobs"]["tokens"] == ["", "", "", "x"]


def test_max_tokens_inside_a_character(llama: Any) -> None:
    """It is completed, with more tokens than allowed; dropped where the text begins with it."""
    body = {"prompt": "Q:", "max_tokens": 2, "grammar": spelled("x", "日")}
    answer = complete(llama, **body)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("x日", 4)
    assert [chunk["text"] for chunk in stream(llama, **body)] == ["x", "日", ""]
    answer = complete(llama, **body | {"grammar": spelled("日")})
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("", 2)


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 60},
        {"max_tokens": 60, "stop": ["\n"]},
        {"max_tokens": 60, "stop": [f"stop {number}" for number in range(100)] + ["\n"]},
        {"max_tokens": 60, "grammar": 'root ::= " 1969-07-20"'},
    ],
    ids=["end-of-text", "stop string", "one of many stop strings", "end of the grammar"],
)
def test_nothing_tells_one_end_from_another(llama: Any, body: dict[str, Any]) -> None:
    choice = complete(llama, prompt=MOON, **body)["choices"][0]
    assert choice["text"].rstrip("\n") == " 1969-07-20"
    *pieces, last = stream(llama, prompt=MOON, **body)
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    assert last == choice | {"text": ""}
    assert choice["finish_reason"] == "stop" and set(choice) == {"text", "index", "logprobs", "finish_reason"}


def test_a_stop_inside_a_token_cuts_its_text_and_not_its_logprob(llama: Any) -> None:
    """Greedily the model says `presented?` and then the token `?` with its line end."""
    chunks = stream(llama, prompt="Q:", max_tokens=30, stop=["\n"], logprobs=0)
    assert "".join(chunk["text"] for chunk in chunks).endswith("presented?")
    assert chunks[-2]["text"] == "?"
    assert chunks[-2]["logprobs"]["tokens"] == ["?\n"]


def test_a_text_that_only_began_like_a_stop_is_sent(llama: Any) -> None:
    chunks = stream(llama, prompt=MOON, max_tokens=8, stop=["-08"])
    assert "".join(chunk["text"] for chunk in chunks) == " 1969-07"
    assert chunks[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("width", [0, 1, 5, 100_000])
def test_logprobs_are_as_wide_as_asked_for(llama: Any, width: int) -> None:
    """Less where tokens are spelled alike: parts of characters and special tokens are all ``."""
    greedy = stream(llama, prompt="Q:", max_tokens=1, logprobs=width)[0]["logprobs"]
    assert greedy["tokens"] == [" When"] and greedy["text_offset"] == [2]
    assert greedy["top_logprobs"][0][" When"] == greedy["token_logprobs"][0]
    assert len(greedy["top_logprobs"][0]) == (max(width, 1) if width < 1000 else 1406)


def test_logprobs_are_the_models_own_whatever_is_forced(llama: Any) -> None:
    """Before bias, grammar and temperature. What was sampled comes last where it is not among the likeliest."""
    forced = {"logit_bias": {"260": -50}, "grammar": spelled("x"), "temperature": 0.3, "seed": 3}
    found = complete(llama, prompt="Q:", max_tokens=1, logprobs=2, **forced)["choices"][0]["logprobs"]
    model = DemoModel.load()
    ids = (*model.tokenizer.bos, *model.tokenizer.encode(b"Q:"))
    scores = asyncio.run(model.score([ScoreRequest(ids)]))[0][0]
    expected = {text: scores[model.tokenizer.vocabulary.index(text.encode())] for text in (" When", " What", "x")}
    assert list(found["top_logprobs"][0]) == list(expected)
    assert np.allclose(list(found["top_logprobs"][0].values()), list(expected.values()), atol=2e-4)
    assert found["token_logprobs"] == [found["top_logprobs"][0]["x"]]


def test_end_of_text_has_no_logprob_of_its_own(llama: Any) -> None:
    *pieces, last = stream(llama, prompt=MOON + " 1969-07-20\n", max_tokens=20, logprobs=1)
    assert pieces == []
    assert last == {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}


def test_echo_scores_a_prompt(llama: Any) -> None:
    prompt = MOON + " 1969-07-20\nQ: José é"
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 1}
    choice = complete(llama, **body)["choices"][0]
    model = DemoModel.load()
    ids = (*model.tokenizer.bos, *model.tokenizer.encode(prompt.encode()))
    rows = asyncio.run(model.score([ScoreRequest((), ids, tuple(range(1, len(ids))))]))[0]
    expected = [float(row[number]) for row, number in zip(rows, ids[1:], strict=True)]
    first, *others, _ = choice["logprobs"]["token_logprobs"]
    assert choice["text"].startswith(prompt) and first is None
    assert np.allclose(others, expected[1:], atol=2e-4)
    spans = pairwise(choice["logprobs"]["text_offset"])
    assert [prompt[start:end] for start, end in spans] == choice["logprobs"]["tokens"][:-1]
    assert len(stream(llama, **body)) == 2, "a stream begins behind the prompt"


@pytest.mark.parametrize("streamed", [False, True], ids=["at once", "stream"])
def test_a_grammar_is_heeded(llama: Any, streamed: bool) -> None:
    grammar = 'root ::= " " year ("\\n" | "!"{2})\nyear ::= [^a-z \\n2] "0"? [0-9]+'
    body = {"prompt": MOON, "max_tokens": 10, "grammar": grammar, "stop": ["\n"], "logit_bias": {"17": 5}}
    text = "".join(chunk["text"] for chunk in stream(llama, **body)) if streamed else text_of(llama, **body)
    assert re.fullmatch(r" [^a-z \n2]0?[0-9]+(!!)?", text)


@pytest.mark.parametrize(
    "grammar",
    ["root ::= (((", 'start ::= "a"', 'root ::= root "a" | "b"'],
    ids=["syntax", "no root", "left recursion"],
)
def test_a_grammar_that_does_not_parse_ends_the_server(demo_gguf: Path, tmp_path: Path, grammar: str) -> None:
    with serving(demo_gguf, tmp_path / "server.log") as server, pytest.raises(httpx.TransportError):
        httpx.post(f"{server.base_url}/completions", json={"prompt": "Q:", "grammar": grammar}, trust_env=False)
    assert server.process.returncode < 0


def test_a_seed_repeats_a_text(llama: Any) -> None:
    texts = [text_of(llama, prompt="Q:", max_tokens=12, temperature=1, seed=seed) for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    free = {text_of(llama, prompt="Q:", max_tokens=12, temperature=1) for _ in range(4)}
    assert len(free) > 1, "without a seed each request has one of its own"


def test_a_bias_names_token_ids(llama: Any) -> None:
    when = DemoModel.load().tokenizer.vocabulary.index(b" When")
    assert text_of(llama, prompt="Q:", max_tokens=1) == " When"
    assert text_of(llama, prompt="Q:", max_tokens=1, logit_bias={str(when): -1000}) == " What"
    assert text_of(llama, prompt="Q:", max_tokens=1, logit_bias={"5000": -1000}) == " When"
    assert llama.post("/v1/completions", json={"prompt": "Q:", "logit_bias": {" When": -1000}}).status_code == 500


def test_the_defaults_change_what_a_model_says(llama: Any) -> None:
    """Greedy all the same: the penalty on what was said before is on unless it is sent as 1."""
    body = {"prompt": REPEATING, "max_tokens": 20, "temperature": 0}
    unsaid = llama.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert unsaid != text_of(llama, **body)
    assert unsaid == text_of(llama, **body, repeat_penalty=1.1)


def test_other_fields_are_ignored_and_wrong_values_are_errors_500(llama: Any) -> None:
    answer = complete(llama, prompt=MOON, max_tokens=11, n=3, best_of=3, nonsense={"guided_regex": "x"})
    assert [choice["text"] for choice in answer["choices"]] == [" 1969-07-20"]
    wrong = llama.post("/v1/completions", json={"prompt": "Q:", "logprobs": -1})
    assert wrong.status_code == 500
    assert wrong.json()["error"]["type"] == "internal_server_error"


@pytest.mark.parametrize("limit", [0, None, 5000])
def test_without_a_limit_a_text_fills_the_context(llama: Any, limit: int | None) -> None:
    answer = complete(llama, prompt="x " * 490, max_tokens=limit, **ENDLESS)
    assert answer["usage"]["prompt_tokens"] > CONTEXT - 100
    assert answer["usage"]["total_tokens"] == CONTEXT
    assert answer["choices"][0]["finish_reason"] == "length"


def test_unless_told_a_text_has_sixteen_tokens(llama: Any) -> None:
    assert complete(llama, prompt="Q:", **ENDLESS)["usage"]["completion_tokens"] == 16


def test_too_long_a_prompt_is_an_error_with_a_code(llama: Any) -> None:
    response = llama.post("/v1/completions", json={"prompt": "x " * CONTEXT})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_too_long_a_prompt_is_a_stream_of_nothing(llama: Any, llama_server: ServerProcess) -> None:
    """The connection is closed behind it, while a client may already be sending its next request there."""
    with llama.stream("POST", "/v1/completions", json={"prompt": "x " * CONTEXT, "stream": True}) as response:
        assert response.status_code == 200
        assert list(response.iter_lines()) == []
    llama.close()
    assert httpx.get(f"{llama_server.base_url}/models", trust_env=False).status_code == 200


@pytest.mark.parametrize("interrupts", [True, False], ids=["by default", "when told not to"])
def test_a_second_request_breaks_off_the_first(demo_gguf: Path, tmp_path: Path, interrupts: bool) -> None:

    def broken_off() -> bool:
        first = httpx.Client(base_url=server.address, trust_env=False, verify=False, timeout=60)
        second = httpx.Client(base_url=server.address, trust_env=False, verify=False, timeout=60)
        with first, second:
            body = PLAIN | ENDLESS | {"prompt": "Q:", "max_tokens": 400, "stream": True}
            with first.stream("POST", "/v1/completions", json=body) as response:
                read = response.iter_lines()
                found = [next(read)]
                assert text_of(second, prompt=MOON, max_tokens=11) == " 1969-07-20"
                try:
                    found += read
                except httpx.RemoteProtocolError:
                    assert interrupts
            return '"finish_reason": "length"' not in "".join(found)

    with serving(demo_gguf, tmp_path / "server.log", interrupt_requests=interrupts) as server:
        assert once(broken_off, tries=5 if interrupts else 1) is interrupts


@pytest.mark.parametrize("streamed", [True, False], ids=["a stream", "no other answer"])
def test_a_client_that_goes_ends(llama: Any, llama_server: ServerProcess, streamed: bool) -> None:
    """By the counts that the server writes down for each text that it has finished."""
    port = int(llama_server.address.rsplit(":", 1)[1])
    complete(llama, prompt="Gone:", max_tokens=1)

    def ended_early() -> bool:
        body = PLAIN | ENDLESS | {"prompt": f"Gone {streamed}:", "max_tokens": 400, "stream": streamed}
        before = llama_server.logged()
        request = json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request)}\r\n"
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + request)
            deadline = time.monotonic() + 20
            while "prefix-match" not in llama_server.logged()[len(before) :]:  # it has begun
                assert time.monotonic() < deadline
                time.sleep(0.001)
        complete(llama, prompt="Q:", max_tokens=1)
        since = llama_server.logged()[len(before) :]
        is_finished = "/   399 runs" in since
        assert is_finished or "Disconnected from client" in since
        return not is_finished

    assert once(ended_early, tries=5 if streamed else 1) is streamed
