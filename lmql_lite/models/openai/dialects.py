"""Dialects of the OpenAI protocol: capabilities and request formats of each kind of server.

Everything here is about kinds of servers, from their sources and documentation, never about a model. A field that a
server refuses anyway is left out from then on (`negotiation.py`).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from lmql_lite.constraints.language import ANYTHING, Language
from lmql_lite.errors import ModelError
from lmql_lite.media import Media
from lmql_lite.models.base import Capabilities, CompletionRequest, JsonSchema, Prompt, PromptTurn
from lmql_lite.models.grammars import gbnf
from lmql_lite.options import Sampling
from lmql_lite.tokens import Tokenizer

Kind = Literal["openai", "responses", "vllm", "sglang", "llama.cpp", "llama-cpp-python", "ollama", "unknown"]
Body = dict[str, Any]

MAX_BYTES = 20 << 20
"""Largest item that is sent: the limit of most services."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_CLIPS = {"audio/wav": "wav", "audio/mpeg": "mp3"}

OPTIONAL = (
    "stream_options",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "return_tokens",
    "timings_per_token",
    "repetition_penalty",
    "repeat_penalty",
    "cache_prompt",
    "seed",
    "stop",
    "store",
    "include",
)
"""Fields that may be left out if a server refuses them, without changing the question."""
PUSHED = (
    "response_format",
    "structured_outputs",
    "guided_grammar",
    "guided_json",
    "grammar",
    "json_schema",
    "ebnf",
    "text",
)
"""Fields that constrain the answer. They may be left out, too, because every answer is checked on arrival."""
WIDTHS = ("top_logprobs", "logprobs", "n_probs")
LIMITS = ("max_completion_tokens", "max_tokens")
"""Names of the token limit in a chat: some models of OpenAI take only the first, most servers the second."""
MIN_OUTPUT = 16
"""Least limit that the Responses API takes. Reasoning models of OpenAI may refuse a lower one in a chat."""
_LENGTH = re.compile(
    r"context (?:length|window|size)|max_model_len|max(?:_completion)?_tokens\W.*(?:too large|at most)", re.I
)
_FULL = re.compile(
    r"even without any output|available context size|resulted in \d+ tokens|is longer than the model's", re.I
)
"""Messages about a prompt that does not fit even alone: of vLLM, llama.cpp, OpenAI and SGLang."""
_ROUTES: Mapping[bool, str] = {False: "/completions", True: "/chat/completions"}


_CAN: Mapping[Kind, Capabilities] = {
    # xgrammar takes 20 to 60 ms for each rule that many tokens fit, llama.cpp next to nothing
    "vllm": Capabilities(
        takes_languages=True,
        most_rules=100,
        takes_schemas=True,
        alternatives=20,
        takes_seeds=True,
        scores=True,
        stops=16,
    ),
    "sglang": Capabilities(
        takes_languages=True, most_rules=100, takes_schemas=True, alternatives=20, scores=True, stops=16
    ),
    "llama.cpp": Capabilities(takes_languages=True, takes_schemas=True, alternatives=20, takes_seeds=True, stops=16),
    # asked for alternatives, it drops each character of several tokens
    "llama-cpp-python": Capabilities(continues_turns=False, takes_languages=True, takes_seeds=True),
    "ollama": Capabilities(chat_only=True, continues_turns=False, takes_schemas=True, takes_seeds=True),
    "openai": Capabilities(
        continues_turns=False, takes_schemas=True, alternatives=20, takes_seeds=True, bills_to_the_end=True
    ),
    "responses": Capabilities(
        chat_only=True, continues_turns=False, takes_schemas=True, alternatives=20, bills_to_the_end=True
    ),
    "unknown": Capabilities(continues_turns=False, alternatives=20, takes_seeds=True, bills_to_the_end=True),
}
"""Capabilities of each kind, without those that a version or an option adds. Ollama wraps every prompt in a chat
template. `stops` is 0 where the response does not name the stop string that it met."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Kind of a server, and its version as far as it matters; () if unknown."""

    kind: Kind
    version: tuple[int, ...] = ()
    seeded: bool = False
    """SGLang only: the server was started so that seeds count."""
    prefills: bool = False
    """llama.cpp only: the server continues the assistant's turn, as it does unless configured otherwise or too old."""
    stops_on_close: bool = False
    """Closing the connection is known to end an answer at this address, whatever the kind of the server."""
    context: int | None = None
    """Tokens that prompt and answer may have together. vLLM refuses requests for more in the answer alone."""

    @property
    def can(self) -> Capabilities:
        """Capabilities as far as kind, version and options decide them."""
        can = replace(_CAN[self.kind], context_length=self.context)
        if self.stops_on_close:
            can = replace(can, bills_to_the_end=False)
        match self.kind:
            case "sglang":
                return replace(can, takes_seeds=self.seeded)
            case "llama.cpp":
                return replace(can, continues_turns=self.prefills)
            case "ollama":
                return replace(can, alternatives=20 if self.version >= (0, 12, 11) else 0)
        return can

    @property
    def is_known(self) -> bool:
        """False if a probe has to find out whether the server takes plain text."""
        return self.kind not in ("openai", "unknown", "responses")

    @property
    def is_serial(self) -> bool:
        """True if requests must follow one another: llama-cpp-python may interrupt one when another arrives."""
        return self.kind == "llama-cpp-python"

    @property
    def takes_ids(self) -> bool:
        """True if prompts may be token ids. The server tokenises text itself, special tokens in it included."""
        return self.kind in ("vllm", "sglang", "llama.cpp")

    def is_native(self, chat: bool) -> bool:
        """True for llama.cpp's own route. It alone reports the stop string that ended a text, and all token ids."""
        return self.kind == "llama.cpp" and not chat

    def is_raw(self, request: CompletionRequest) -> bool:
        """True if log-probabilities are the model's own, before masks and temperature."""
        if request.pushed is not None:  # vLLM masks first, even where it reports values before temperature and bias
            return False
        if self.kind in ("vllm", "llama.cpp"):
            return True
        # SGLang divides by the temperature first; for some others this is unknown
        return self.kind in ("openai", "responses") or request.sampling.temperature in (0.0, 1.0)

    def route(self, chat: bool, root: str) -> str:
        if self.kind == "responses":
            return "/responses"
        return f"{root}/completion" if self.is_native(chat) else _ROUTES[chat]

    def body(self, model: str, prompt: Prompt, request: CompletionRequest, *, tokenizer: Tokenizer | None) -> Body:
        """Body of a request. With a tokenizer, tokens may be reported by id and the prompt is sent as ids (S12).

        Raises ModelError if the server has no form for the request.
        """
        chat = prompt[-1].role is not None
        if request.sampling.effort is not None and not chat:
            raise ModelError(f"effort= is for chats, and {model} takes plain text", hint="leave effort= out")
        if self.kind == "responses":
            return self._response_body(model, prompt, request)
        body: Body = {"stream": True, **self.prompted(model, prompt, tokenizer), **self._sampling(request.sampling)}
        if request.sampling.effort is not None:
            body["reasoning_effort"] = request.sampling.effort
        native, can = self.is_native(chat), self.can
        # one more than requested, because the generated token is among them
        width = min(request.alternatives + 1, can.alternatives) if request.alternatives else 0
        most = request.max_tokens if self.context is None else min(request.max_tokens, self.context)
        if native:
            body |= {"n_predict": most, "n_probs": width, "return_tokens": True, "timings_per_token": True}
        elif chat:
            body[LIMITS[0] if self.kind == "openai" else LIMITS[1]] = most
            if can.alternatives:
                body |= {"logprobs": True, "top_logprobs": width}
        else:
            body["max_tokens"] = most
            if can.alternatives:
                body["logprobs"] = width
        if not native and self.kind != "llama-cpp-python":
            # with the second, an answer that is left early has told its usage so far
            every = {"continuous_usage_stats": True} if self.kind == "vllm" else {}
            body["stream_options"] = {"include_usage": True, **every}
        if self.kind in ("vllm", "sglang") and (self.kind == "vllm" or not chat):
            body["return_token_ids"] = True
            if tokenizer is not None and self.kind == "vllm" and not chat:  # in a chat, bytes come from the spelling
                body["return_tokens_as_token_ids"] = True
        if request.stops and can.stops and (self.kind != "llama.cpp" or not chat):
            body["stop"] = list(request.stops)
            including = {"vllm": "include_stop_str_in_output", "sglang": "no_stop_trim"}.get(self.kind)
            if including is not None:
                body[including] = True
        if request.begin:
            assert not isinstance(request.pushed, JsonSchema), "a schema speaks of the whole answer"
            body |= self._pushed((request.pushed or ANYTHING).begun_by(request.begin), chat)
        elif request.pushed is not None:
            body |= self._pushed(request.pushed, chat)
        return body

    def _response_body(self, model: str, prompt: Prompt, request: CompletionRequest) -> Body:
        """Body of a request to the Responses API, which neither has seeds nor stop strings."""
        sampling, width = request.sampling, min(request.alternatives + 1, self.can.alternatives)
        body: Body = {
            "stream": True,
            "store": False,
            "model": model,
            "input": self.prompted(model, prompt)["messages"],
            "max_output_tokens": max(request.max_tokens, MIN_OUTPUT),
            "include": ["message.output_text.logprobs"],
            "top_logprobs": width if request.alternatives else 0,
            **self._sampling(sampling),
        }
        if sampling.temperature == 1.0:  # the default; reasoning models refuse the field
            del body["temperature"]
        body["reasoning"] = {"summary": "auto"} | ({"effort": sampling.effort} if sampling.effort else {})
        if isinstance(request.pushed, JsonSchema):
            schema = json.loads(request.pushed.text)
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}}
        return body

    def prompted(self, model: str, prompt: Prompt, tokenizer: Tokenizer | None = None) -> Body:
        """Fields of a request that hold the prompt."""
        *before, last = prompt
        if last.role is None:
            if before:
                raise ModelError("a prompt is plain text or turns with roles, not both")
            text: str | list[int] = last.text
            if tokenizer is not None and self.takes_ids:
                text = [*tokenizer.bos, *tokenizer.encode(last.text.encode())]
            elif not text and self.kind == "vllm":
                return {"model": model, "prompt": [""]}  # vLLM refuses "" as a missing prompt
            return {"model": model, "prompt": text} | ({"cache_prompt": True} if self.is_native(False) else {})
        turns = prompt if last.text or last.role != "assistant" else prompt[:-1]
        if not turns:
            raise ModelError(f"the prompt of {model} is empty", hint="begin it with a user's turn")
        body: Body = {"model": model, "messages": [_message(turn) for turn in turns]}
        if turns[-1].role == "assistant":
            if not self.can.continues_turns:
                raise ModelError(
                    f"the server of {model} cannot continue a turn of the assistant that has begun",
                    hint="let the assistant's turn begin with the hole",
                )
            body["continue_final_message"] = True
            if self.kind != "sglang":  # the default begins a new turn, and both together are refused
                body["add_generation_prompt"] = False
        return body

    def _sampling(self, sampling: Sampling) -> Body:
        """Sampling fields, complete for servers that would otherwise use the model's defaults, penalties included."""
        greedy = sampling.temperature == 0.0
        body: Body = {"temperature": sampling.temperature}
        if sampling.top_p != 1.0 and not greedy:
            body["top_p"] = sampling.top_p
        filters = ("top_k", "min_p") if self.can.takes_languages else ()
        if filters:
            body.setdefault("top_p", 1.0)
            body["top_k"] = -1 if self.kind in ("vllm", "sglang") else 0
            body["min_p"] = 0.0
            body["repetition_penalty" if self.kind in ("vllm", "sglang") else "repeat_penalty"] = 1.0
        for name, value in sampling.truncation.items():
            if greedy or name == "top_p":
                continue
            if name not in filters:
                raise ModelError(f"this server does not support {name}=", hint="use temperature= and top_p=")
            body[name] = value
        if not greedy and self.can.takes_seeds:
            body["seed"] = (sampling.seed + sampling.index * 0x9E3779B1) % 2**31
        return body

    def _pushed(self, pushed: Language | JsonSchema, chat: bool) -> Body:
        if isinstance(pushed, JsonSchema):
            return self._schema(json.loads(pushed.text), pushed.text, chat)
        if self.kind == "vllm":
            grammar = gbnf(pushed)
            return {"structured_outputs": {"grammar": grammar}} if self._is_recent else {"guided_grammar": grammar}
        if self.kind == "sglang":
            return {"ebnf": gbnf(pushed)}
        if self.can.takes_languages:
            return {"grammar": gbnf(pushed)}
        raise ModelError("the server takes no grammars")

    def _schema(self, schema: Any, text: str, chat: bool) -> Body:
        if self.kind == "vllm":
            return {"structured_outputs": {"json": schema}} if self._is_recent else {"guided_json": schema}
        if not chat and self.kind == "sglang":
            return {"json_schema": text}
        if not chat and self.kind == "llama.cpp":
            return {"json_schema": schema}
        form = {"name": "answer", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": form}}

    @property
    def _is_recent(self) -> bool:
        """True for recent field names of vLLM: it ignores unknown fields, so each version needs its own names."""
        return not self.version or self.version >= (0, 11)


def _message(turn: PromptTurn) -> Body:
    if turn.role is None:
        raise ModelError("a prompt is plain text or turns with roles, not both")
    return {"role": turn.role, "content": content(turn)}


def refused_field(body: Mapping[str, Any], reason: str, param: str | None) -> str | None:
    """Field that the server's refusal names, if it may be left out or renamed."""
    names = (*LIMITS, *WIDTHS, *OPTIONAL, *PUSHED)
    if "summary" in body.get("reasoning", ()) and re.search(
        r"\breasoning\.|organization must be verified", f"{param} {reason}"
    ):
        return "reasoning"
    if param is not None:
        exact = param.split(".")[0]
        return exact if exact in body and exact in names else None
    words = set(re.findall(r"\w+", reason))
    named = next((name for name in names if name in body and name in words), None)
    if named is None and "logprobs" in words and "top_logprobs" in body:
        return "top_logprobs"
    if named is None and words & {"grammar", "schema", "regex", "ebnf"}:
        return next((name for name in PUSHED if name in body), None)
    return named


def without(body: Body, field: str, *, narrows: bool = True) -> Body:
    """Request in another form after `field` was refused: fewer alternatives if it `narrows`, another name, or without
    it."""
    body = dict(body)
    value = body.pop(field, None)
    if field in LIMITS:
        return body | {LIMITS[1 - LIMITS.index(field)]: value}
    if field == "reasoning" and isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name != "summary"}  # the effort is part of the question
        return body | ({field: kept} if kept else {})
    if field in (*WIDTHS, "include"):
        width = value if isinstance(value, int) and not isinstance(value, bool) else 0
        narrower = max((step for step in (5, 1) if narrows and step < width), default=None)
        if narrower is not None:
            return body | {field: narrower}
        for name in (*WIDTHS, "include"):
            body.pop(name, None)
    return body


def is_about_length(reason: str) -> bool:
    """True for a refusal because prompt and answer are too long together."""
    return _LENGTH.search(reason) is not None


def shorter(body: Body, status: int, reason: str) -> Body | None:
    """Request for half as many tokens if prompt and answer were too long together, else None."""
    if status not in (400, 413, 422) or not is_about_length(reason) or _FULL.search(reason):
        return None
    name = next((name for name in (*LIMITS, "n_predict", "max_output_tokens") if name in body), None)
    return None if name is None or body[name] < 2 else body | {name: body[name] // 2}


def content(turn: PromptTurn) -> str | list[dict[str, Any]]:
    """Content of a turn: its text, or a list of parts where it has items. Raises InputError at the place of an item
    that is too large or of a format that the protocol does not know."""
    if not turn.media:
        return turn.text
    parts: list[dict[str, Any]] = []
    begin = 0
    for place, item in turn.media:
        parts += [{"type": "text", "text": turn.text[begin:place]}] if place > begin else []
        parts.append(_part(item))
        begin = place
    return parts + ([{"type": "text", "text": turn.text[begin:]}] if turn.text[begin:] else [])


def _part(item: Media) -> dict[str, Any]:
    if len(item.data) > MAX_BYTES:
        problem = f"has {len(item.data) / 2**20:.1f} MiB, and a server is sent {MAX_BYTES >> 20} at most"
        raise item.wrong(problem, "make it smaller")
    data = base64.b64encode(item.data).decode()
    if item.modality == "image" and item.mime in _PICTURES:
        return {"type": "image_url", "image_url": {"url": f"data:{item.mime};base64,{data}"}}
    if item.modality == "audio" and item.mime in _CLIPS:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _CLIPS[item.mime]}}
    if item.modality == "video" and item.mime is not None and item.mime.startswith("video/"):
        return {"type": "video_url", "video_url": {"url": f"data:{item.mime};base64,{data}"}}
    known = {"image": "PNG, JPEG, GIF or WebP", "audio": "WAV or MP3", "video": "MP4 or WebM"}[item.modality]
    raise item.wrong("is of a format that servers do not take", f"convert it to {known}")
