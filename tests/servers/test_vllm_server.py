"""What vLLM's server (0.32, on the CPU) does, as far as a client has to know it.

| asked | answered |
|---|---|
| model | `/v1/models` tells names and `max_model_len`, `/version` the version; another name is an error 404 |
| prompt | a text, ids, or a list of either; bos is put before a text, special spellings in it are special tokens |
| no prompt | refused as if there were none; in a list it is bos alone |
| max_tokens | more than the context is refused; more than is left of it is cut to that |
| a stream | an event for one token or several, with their ids; `finish_reason` in the last; then usage, `[DONE]` |
| a character of several tokens | events without text until it is whole; cut inside of it, it is lost |
| finish_reason | `stop` and `stop_reason` the stop string, or null for end-of-text, whose id and score are told |
| stop | kept on demand; a token that runs on behind it is cut in the text and whole in `logprobs` |
| logprobs=N | the N likeliest and the one that was said, at most 20; before bias and temperature, after a grammar |
| tokens in logprobs | as text, half characters as ``; by id on demand, and then a chat tells the spelling's bytes |
| prompt_logprobs | of every token but the first, in a list for each prompt |
| structured_outputs | a grammar or a JSON Schema; one that does not parse is refused |
| other fields | ignored, `guided_grammar` of older versions too |
| temperature | from 0 to 2 |
| usage | with what is known of the prompt's beginning, in blocks of 128 tokens |
| a turn that has begun | is gone on with on demand, if no new one is to begin |
| a client that goes | ends its stream |
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.demo import DemoModel
from tests.servers.conftest import client
from tests.servers.processes import ServerProcess, once, settled
from tests.servers.vllm import CONTEXT

if TYPE_CHECKING:
    import httpx

PLAIN = {
    "model": "demo",
    "temperature": 0,
    "top_k": -1,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "return_token_ids": True,
}
MOON = "Q: When did the first moon landing take place?\nA:"
BEGUN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am"}]
BOS, EOS = 0, 1
BLOCK = 128

pytestmark = pytest.mark.xdist_group("vllm")
"""One server for both files: it takes a minute to start, and 3 GB."""


@pytest.fixture(scope="module")
def vllm(vllm_server: ServerProcess) -> Iterator[httpx.Client]:
    with client(vllm_server) as found:
        yield found


def ids_of(text: str) -> list[int]:
    tokenizer = DemoModel.load().tokenizer
    return [*tokenizer.bos, *tokenizer.encode(text.encode())]


def answer(vllm: httpx.Client, *, chat: bool = False, **body: Any) -> Any:
    """To a request that succeeds."""
    response = vllm.post("/v1/chat/completions" if chat else "/v1/completions", json=PLAIN | body)
    assert response.status_code == 200, response.text
    return response.json()


def choice(vllm: httpx.Client, **body: Any) -> Any:
    return answer(vllm, **body)["choices"][0]


def refused(vllm: httpx.Client, *, chat: bool = False, **body: Any) -> tuple[int, str, str | None]:
    response = vllm.post("/v1/chat/completions" if chat else "/v1/completions", json=PLAIN | body)
    error = response.json()["error"]
    return response.status_code, error["message"], error["param"]


def stream(vllm: httpx.Client, *, chat: bool = False, **body: Any) -> list[Any]:
    """The one choice of every event. What comes behind is checked here."""
    body = PLAIN | body | {"stream": True, "stream_options": {"include_usage": True}}
    with vllm.stream("POST", "/v1/chat/completions" if chat else "/v1/completions", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    *events, last = map(json.loads, lines)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == sum(
        len(event["choices"][0].get("token_ids") or ()) for event in events
    )
    return [event["choices"][0] for event in events]


def joined(texts: Iterable[str]) -> str:
    return "".join(texts)


def ids_in(events: list[Any]) -> list[int]:
    """Of a busy server an event may have several."""
    return [number for event in events for number in event["token_ids"]]


def spelled(*characters: str) -> dict[str, str]:
    """The grammar of these characters and nothing else."""
    return {"grammar": "root ::= " + " ".join(f'"{character}"' for character in characters)}


def metric(vllm: httpx.Client, name: str) -> float:
    found = [line for line in vllm.get("/metrics").text.splitlines() if line.startswith(f"vllm:{name}{{")]
    return sum(float(line.split()[-1]) for line in found)


def test_what_it_says_about_itself(vllm: httpx.Client) -> None:
    (entry,) = vllm.get("/v1/models").json()["data"]
    assert (entry["id"], entry["owned_by"], entry["max_model_len"]) == ("demo", "vllm", CONTEXT)
    assert vllm.get("/version").json()["version"].startswith("0.32.")
    assert refused(vllm, prompt="Q:", model="nonsense")[::2] == (404, "model")


@pytest.mark.parametrize("text", ["Q:", "<|bos|>Q:", "Q:<|eos|>", "日😀é"])
def test_special_spellings_in_a_prompt_are_special_tokens_and_ids_are_taken_as_they_are(
    text: str, vllm: httpx.Client
) -> None:
    cut = choice(vllm, prompt=text, max_tokens=1)["prompt_token_ids"]
    assert cut[0] == BOS
    assert (cut == ids_of(text)) is ("<|" not in text)
    assert choice(vllm, prompt=ids_of(text), max_tokens=1)["prompt_token_ids"] == ids_of(text)
    assert "out of vocabulary" in refused(vllm, prompt=[BOS, 5000])[1]


def test_a_prompt_of_nothing_is_none_unless_it_is_in_a_list(vllm: httpx.Client) -> None:
    assert refused(vllm, prompt="")[::2] == (400, "prompt")
    assert choice(vllm, prompt=[""], max_tokens=1)["prompt_token_ids"] == [BOS]


def test_more_than_the_context_is_refused_and_more_than_is_left_is_cut(vllm: httpx.Client) -> None:
    status, told, param = refused(vllm, prompt="Q:", max_tokens=CONTEXT + 1)
    assert (status, param) == (400, "max_tokens") and "max_model_len" in told
    status, told, _ = refused(vllm, prompt=[BOS] * (CONTEXT + 1), max_tokens=1)
    assert status == 400 and f"maximum context length is {CONTEXT} tokens" in told
    found = answer(vllm, prompt=[BOS] * (CONTEXT - 4), max_tokens=CONTEXT, logit_bias={str(EOS): -100})
    assert (found["usage"]["total_tokens"], found["choices"][0]["finish_reason"]) == (CONTEXT, "length")


def test_events_tell_the_ids_of_tokens(vllm: httpx.Client) -> None:
    events = stream(vllm, prompt=MOON, max_tokens=4)
    assert joined(event["text"] for event in events) == " 196"
    assert ids_in(events) == [222, 18, 26, 23]
    assert [event["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["length"]


def test_end_of_text_is_told_by_its_id(vllm: httpx.Client) -> None:
    last = stream(vllm, prompt=MOON + " 1969-07-20\n", max_tokens=5, logprobs=1)[-1]
    assert (last["text"], last["token_ids"], last["finish_reason"], last["stop_reason"]) == ("", [EOS], "stop", None)
    assert last["logprobs"]["tokens"] == ["<|eos|>"]


@pytest.mark.parametrize(("stop", "text"), [("\n", "?\n"), ("?", "?")])
def test_a_stop_string_is_told_and_cuts_the_text_and_not_its_token(stop: str, text: str, vllm: httpx.Client) -> None:
    """Greedily the model says the token `?` with its line end."""
    events = stream(vllm, prompt="Q:", max_tokens=30, logprobs=1, stop=["-", stop], include_stop_str_in_output=True)
    assert joined(event["text"] for event in events).endswith(f"ed{text}")
    assert (events[-1]["stop_reason"], events[-1]["finish_reason"]) == (stop, "stop")
    assert events[-1]["logprobs"]["tokens"][-1] == "?\n"


def test_a_character_of_several_tokens_comes_whole_or_not_at_all(vllm: httpx.Client) -> None:
    body = {"prompt": "Q:", "max_tokens": 20, "structured_outputs": spelled("日", "x"), "logprobs": 2}
    events = stream(vllm, **body)
    assert joined(event["text"] for event in events) == "日x"
    assert [token for event in events for token in event["logprobs"]["tokens"]] == ["", "", "日", "x", "<|eos|>"]
    assert joined(event["text"] for event in stream(vllm, **body | {"max_tokens": 2})) == ""
    named = stream(vllm, **body, return_tokens_as_token_ids=True)
    tokens = [token for event in named for token in event["logprobs"]["tokens"]]
    assert tokens == [f"token_id:{number}" for number in ids_in(named)] and len(tokens) == 5


def test_special_spellings_in_the_text_are_text(vllm: httpx.Client) -> None:
    events = stream(vllm, prompt="Q:", max_tokens=20, structured_outputs=spelled("<|eos|>x"))
    assert joined(event["text"] for event in events) == "<|eos|>x" and EOS not in ids_in(events)[:-1]


def test_logprobs_are_the_models_own_but_under_a_grammar(vllm: httpx.Client) -> None:
    model = DemoModel.load()
    scores = asyncio.run(model.score([ScoreRequest(tuple(ids_of("Q:")))]))[0][0]
    expected = {text: scores[model.tokenizer.vocabulary.index(text.encode())] for text in (" When", " What")}
    biased = choice(vllm, prompt="Q:", max_tokens=1, logprobs=2, logit_bias={str(ids_of(" When")[1]): -100})
    cold = choice(vllm, prompt="Q:", max_tokens=1, logprobs=2, temperature=0.3, seed=3)
    assert (biased["text"], cold["text"]) == (" What", " When")
    for found in (biased["logprobs"]["top_logprobs"][0], cold["logprobs"]["top_logprobs"][0]):
        assert set(found) == set(expected)
        assert np.allclose([found[text] for text in expected], list(expected.values()), atol=2e-4)
    (held,) = choice(vllm, prompt="Q:", max_tokens=1, logprobs=2, structured_outputs=spelled("x"))["logprobs"][
        "top_logprobs"
    ]
    assert held["x"] == 0.0 and min(held.values()) == -9999.0
    assert refused(vllm, prompt="Q:", logprobs=21)[::2] == (400, "logprobs")


def test_in_a_chat_tokens_have_bytes_but_where_they_are_told_by_id(vllm: httpx.Client) -> None:
    body = {"messages": BEGUN[:1], "max_tokens": 1, "logprobs": True, "top_logprobs": 2}
    (entry,) = choice(vllm, chat=True, **body)["logprobs"]["content"]
    assert all(bytes(other["bytes"]).decode() == other["token"] for other in (entry, *entry["top_logprobs"]))
    (entry,) = choice(vllm, chat=True, **body, return_tokens_as_token_ids=True)["logprobs"]["content"]
    assert bytes(entry["top_logprobs"][1]["bytes"]).startswith(b"token_id:")


def test_the_tokens_of_prompts_are_scored(vllm: httpx.Client) -> None:
    texts = [MOON, MOON + " José é"]
    model = DemoModel.load()
    found = answer(vllm, prompt=texts, max_tokens=1, prompt_logprobs=0)["choices"]
    assert [one["index"] for one in found] == [0, 1]
    sent = answer(vllm, prompt=[ids_of(text) for text in texts], max_tokens=1, prompt_logprobs=0)["choices"]
    assert [list(one["prompt_logprobs"][-1]) for one in sent] == [list(one["prompt_logprobs"][-1]) for one in found]
    for one, text in zip(found, texts, strict=True):
        ids = ids_of(text)
        rows = asyncio.run(model.score([ScoreRequest((), tuple(ids), tuple(range(1, len(ids))))]))[0]
        first, *others = one["prompt_logprobs"]
        assert first is None
        assert [int(next(iter(other))) for other in others] == ids[1:]
        expected = [float(row[number]) for row, number in zip(rows, ids[1:], strict=True)]
        assert np.allclose([next(iter(other.values()))["logprob"] for other in others], expected, atol=5e-4)
    chat = answer(vllm, chat=True, messages=BEGUN[:1], max_tokens=1, prompt_logprobs=0)
    assert chat["prompt_logprobs"][0] is None and len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_what_it_holds_its_model_to(vllm: httpx.Client) -> None:
    said = stream(vllm, prompt=MOON, max_tokens=30, structured_outputs={"json": {"enum": ["x", "y"]}})
    assert joined(one["text"] for one in said) in ('"x"', '"y"')
    said = stream(vllm, chat=True, messages=BEGUN[:1], max_tokens=9, structured_outputs=spelled("x", "日"))
    assert joined(one["delta"].get("content") or "" for one in said) == "x日"
    assert refused(vllm, prompt="Q:", structured_outputs={"grammar": "root ::= ((("})[0] == 400
    old = choice(vllm, prompt=MOON, max_tokens=3, guided_grammar="root ::= (((")
    assert old["text"] == " 19", "a field that it does not know is ignored"


def test_a_seed_repeats_a_text(vllm: httpx.Client) -> None:
    texts = [choice(vllm, prompt="Q:", max_tokens=12, temperature=1, seed=seed)["text"] for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    assert refused(vllm, prompt="Q:", temperature=2.1)[0] == 400


def test_what_it_knows_of_a_prompt_is_told_in_blocks(vllm: httpx.Client) -> None:
    prompt = ids_of("What it knows. " * 40)
    told = [answer(vllm, prompt=prompt, max_tokens=1)["usage"] for _ in range(2)]
    assert [usage["prompt_tokens"] for usage in told] == [len(prompt)] * 2
    assert told[1]["prompt_tokens_details"]["cached_tokens"] == (len(prompt) - 1) // BLOCK * BLOCK > 0


def test_a_turn_that_has_begun_is_gone_on_with(vllm: httpx.Client) -> None:
    told = {"continue_final_message": True, "add_generation_prompt": False}
    found = answer(vllm, chat=True, messages=BEGUN, max_tokens=2, **told)
    assert found["prompt_token_ids"] == ids_of("user: Hi\nassistant: I am")[1:], "the template has no bos"
    assert refused(vllm, chat=True, messages=BEGUN, continue_final_message=True)[0] == 400
    assert len(answer(vllm, chat=True, messages=BEGUN, max_tokens=2)["prompt_token_ids"]) > len(
        found["prompt_token_ids"]
    ), "a new turn begins"


def test_a_client_that_goes_ends_its_stream(vllm: httpx.Client) -> None:
    def ended_early() -> bool:
        generated = settled(lambda: metric(vllm, "generation_tokens_total"))
        body = PLAIN | {"prompt": "Gone:", "max_tokens": 490, "stream": True, "logit_bias": {str(EOS): -100}}
        with vllm.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            for _ in range(6):
                next(lines)
        deadline = time.monotonic() + 20
        while metric(vllm, "num_requests_running"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return settled(lambda: metric(vllm, "generation_tokens_total")) - generated < 490

    assert once(ended_early)
