"""Request formats of each kind of server: details that the OpenAI protocol leaves open or that a server renames.

Everything here is about kinds of servers, from their sources and documentation, never about a model. A field that a
server refuses anyway is left out from then on (`asking.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmql_lite.constraints.language import ANYTHING, Language
from lmql_lite.errors import ModelError
from lmql_lite.models.base import JsonSchema, Prompt, Wish
from lmql_lite.models.grammars import ebnf, gbnf
from lmql_lite.tokens import Role, Sampling, Tokenizer

Kind = Literal["openai", "vllm", "sglang", "llama.cpp", "llama-cpp-python", "ollama", "unknown"]
Body = dict[str, Any]

OPTIONAL = (
    "stream_options",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "return_tokens",
    "repetition_penalty",
    "repeat_penalty",
    "cache_prompt",
    "seed",
    "stop",
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
)
"""Fields that constrain the answer. They may be left out, too, because every answer is checked on arrival."""
WIDTHS = ("top_logprobs", "logprobs", "n_probs")
LIMITS = ("max_completion_tokens", "max_tokens")
"""Names of the token limit in a chat: some models of OpenAI take only the first, most servers the second."""
_BAN = -100
_LENGTH = re.compile(
    r"context (?:length|window|size)|max_model_len|max(?:_completion)?_tokens\W.*(?:too large|at most)", re.I
)
_FULL = re.compile(
    r"even without any output|available context size|resulted in \d+ tokens|is longer than the model's", re.I
)
"""Messages about a prompt that does not fit even alone: of vLLM, llama.cpp, OpenAI and SGLang."""
_ROUTES: Mapping[bool, str] = {False: "/completions", True: "/chat/completions"}


@dataclass(frozen=True, slots=True)
class Server:
    """Kind of a server, and its version as far as it matters; () if unknown."""

    kind: Kind
    version: tuple[int, ...] = ()
    seeded: bool = False
    """SGLang only: the server was started so that seeds count."""
    prefills: bool = False
    """llama.cpp only: the server continues the assistant's turn, as it does unless configured otherwise or too old."""
    context: int | None = None
    """Tokens that prompt and answer may have together. vLLM refuses requests for more in the answer alone."""

    @property
    def continues_turns(self) -> bool:
        return self.prefills if self.kind == "llama.cpp" else self.kind in ("vllm", "sglang")

    @property
    def is_chat_only(self) -> bool | None:
        """True if every prompt is wrapped in a chat template, as by Ollama; None if a probe has to find out."""
        return {"ollama": True, "openai": None, "unknown": None}.get(self.kind, False)

    @property
    def takes_languages(self) -> bool:
        return self.kind in ("vllm", "sglang", "llama.cpp", "llama-cpp-python")

    @property
    def most_rules(self) -> int:
        """Maximum rules of a server grammar.

        xgrammar takes 20 to 60 ms for each rule that many tokens fit, llama.cpp next to nothing.
        """
        return 100 if self.kind in ("vllm", "sglang") else 2000

    @property
    def takes_schemas(self) -> bool:
        return self.kind in ("vllm", "sglang", "llama.cpp", "ollama", "openai")

    @property
    def alternatives(self) -> int:
        """Maximum alternatives per token. Asked for any, llama-cpp-python drops each character of several tokens."""
        if self.kind == "ollama":
            return 20 if self.version >= (0, 12, 11) else 0
        widths = {"vllm": 20, "sglang": 20, "llama.cpp": 20, "llama-cpp-python": 0, "openai": 20, "unknown": 20}
        return widths[self.kind]

    @property
    def takes_bans(self) -> bool:
        return (self.kind == "vllm" and self.version >= (0, 10, 2)) or self.kind == "llama.cpp"

    @property
    def takes_seeds(self) -> bool:
        return self.seeded if self.kind == "sglang" else True

    @property
    def scores(self) -> bool:
        return self.kind in ("vllm", "sglang")

    @property
    def stops(self) -> int:
        """Maximum stop strings if the answer names the one it met, else 0. The protocol has four, and names none."""
        return 16 if self.kind in ("vllm", "sglang", "llama.cpp") else 0

    @property
    def is_serial(self) -> bool:
        """True if requests must follow one another: llama-cpp-python may interrupt one when another arrives."""
        return self.kind == "llama-cpp-python"

    @property
    def limit(self) -> str:
        return LIMITS[0] if self.kind == "openai" else LIMITS[1]

    @property
    def samplings(self) -> tuple[str, ...]:
        """Fields of `Sampling` that the server takes beside temperature and `top_p`."""
        return ("top_k", "min_p") if self.takes_languages else ()

    def is_native(self, chat: bool) -> bool:
        """True for llama.cpp's own route. It alone reports the stop string that ended a text, and all token ids."""
        return self.kind == "llama.cpp" and not chat

    def sends_stops(self, chat: bool) -> bool:
        return bool(self.stops) and (self.kind != "llama.cpp" or not chat)

    def is_raw(self, wish: Wish) -> bool:
        """True if log-probabilities are the model's own, before masks and temperature."""
        if wish.pushed is not None:  # vLLM masks first, even where it reports values before temperature and bias
            return False
        if self.kind in ("vllm", "llama.cpp"):
            return True
        if wish.banned:
            return False
        # SGLang divides by the temperature first; for some others this is unknown
        return self.kind == "openai" or wish.sampling.temperature in (0.0, 1.0)

    def route(self, chat: bool, root: str) -> str:
        return f"{root}/completion" if self.is_native(chat) else _ROUTES[chat]

    def body(self, model: str, prompt: Prompt, wish: Wish, *, tokenizer: Tokenizer | None) -> Body:
        """Body of a request. With a tokenizer, tokens may be reported by id and the prompt is sent as ids (S12).

        Raises ModelError if the server has no form for the request.
        """
        chat = prompt[-1].role is not None
        body: Body = {"stream": True, **self.prompted(model, prompt, tokenizer), **self._sampling(wish.sampling)}
        native = self.is_native(chat)
        # one more than requested, because the generated token is among them
        width = min(wish.alternatives + 1, self.alternatives) if wish.alternatives else 0
        most = wish.max_tokens if self.context is None else min(wish.max_tokens, self.context)
        if native:
            body |= {"n_predict": most, "n_probs": width, "return_tokens": True}
        elif chat:
            body[self.limit] = most
            if self.alternatives:
                body |= {"logprobs": True, "top_logprobs": width}
        else:
            body["max_tokens"] = most
            if self.alternatives:
                body["logprobs"] = width
        if not native and self.kind != "llama-cpp-python":
            body["stream_options"] = {"include_usage": True}
        if self.kind in ("vllm", "sglang") and (self.kind == "vllm" or not chat):
            body["return_token_ids"] = True
            if tokenizer is not None and self.kind == "vllm" and not chat:  # in a chat, bytes come from the spelling
                body["return_tokens_as_token_ids"] = True
        if wish.stops and self.sends_stops(chat):
            body["stop"] = list(wish.stops)
            including = {"vllm": "include_stop_str_in_output", "sglang": "no_stop_trim"}.get(self.kind)
            if including is not None:
                body[including] = True
        if wish.banned:
            body["logit_bias"] = (
                [[token, False] for token in wish.banned] if native else {str(token): _BAN for token in wish.banned}
            )
        if wish.begin:
            assert not isinstance(wish.pushed, JsonSchema), "a schema speaks of the whole answer"
            body |= self._pushed((wish.pushed or ANYTHING).begun_by(wish.begin), chat)
        elif wish.pushed is not None:
            body |= self._pushed(wish.pushed, chat)
        return body

    @property
    def takes_ids(self) -> bool:
        """True if prompts may be token ids. The server tokenises text itself, special tokens in it included."""
        return self.kind in ("vllm", "sglang", "llama.cpp")

    def prompted(self, model: str, prompt: Prompt, tokenizer: Tokenizer | None = None) -> Body:
        """Fields of a request that hold the prompt."""
        *before, last = prompt
        if last.role is None:
            if before:
                raise ModelError("plain text stands alone: turns have roles")
            text: str | list[int] = last.text
            if tokenizer is not None and self.takes_ids:
                text = [*tokenizer.bos, *tokenizer.encode(last.text.encode())]
            elif not text and self.kind == "vllm":
                return {"model": model, "prompt": [""]}  # vLLM refuses "" as a missing prompt
            return {"model": model, "prompt": text} | ({"cache_prompt": True} if self.is_native(False) else {})
        turns = prompt if last.text or last.role != "assistant" else prompt[:-1]
        if not turns:
            raise ModelError(f"{model} is asked to answer, and nothing was said to it", hint="begin with a user's turn")
        body: Body = {"model": model, "messages": [_message(turn.role, turn.text) for turn in turns]}
        if turns[-1].role == "assistant":
            if not self.continues_turns:
                raise ModelError(
                    f"{model} is behind a server that answers a turn and cannot go on with one that has begun",
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
        if self.samplings:
            body.setdefault("top_p", 1.0)
            body["top_k"] = -1 if self.kind in ("vllm", "sglang") else 0
            body["min_p"] = 0.0
            body["repetition_penalty" if self.kind in ("vllm", "sglang") else "repeat_penalty"] = 1.0
        for name, value in (("top_k", sampling.top_k), ("min_p", sampling.min_p or None)):
            if value is None or greedy:
                continue
            if name not in self.samplings:
                raise ModelError(
                    f"the server takes no {name}: the OpenAI protocol has none", hint="temperature and top_p remain"
                )
            body[name] = value
        if not greedy and self.takes_seeds:
            body["seed"] = (sampling.seed + sampling.index * 0x9E3779B1) % 2**31
        return body

    def _pushed(self, pushed: Language | JsonSchema, chat: bool) -> Body:
        if isinstance(pushed, JsonSchema):
            return self._schema(json.loads(pushed.text), pushed.text, chat)
        if self.kind == "vllm":
            grammar = ebnf(pushed)
            return {"structured_outputs": {"grammar": grammar}} if self._is_recent else {"guided_grammar": grammar}
        if self.kind == "sglang":
            return {"ebnf": ebnf(pushed)}
        if self.takes_languages:
            return {"grammar": gbnf(pushed)}
        raise ModelError("the server takes no grammar")

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


def _message(role: Role | None, text: str) -> Body:
    if role is None:
        raise ModelError("plain text stands alone: turns have roles")
    return {"role": role, "content": text}


def refused_field(body: Mapping[str, Any], told: str, param: str | None) -> str | None:
    """Field that the server's refusal names, if it may be left out or renamed."""
    names = (*LIMITS, *WIDTHS, *OPTIONAL, *PUSHED)
    if param is not None:
        exact = param.split(".")[0]
        return exact if exact in body and exact in names else None
    said = set(re.findall(r"\w+", told))
    named = next((name for name in names if name in body and name in said), None)
    if named is None and said & {"grammar", "schema", "regex", "ebnf"}:
        return next((name for name in PUSHED if name in body), None)
    return named


def without(body: Body, field: str) -> Body:
    """Request in another form after `field` was refused: fewer alternatives, another name, or without it."""
    body = dict(body)
    value = body.pop(field, None)
    if field in LIMITS:
        return body | {LIMITS[1 - LIMITS.index(field)]: value}
    if field in WIDTHS:
        width = value if isinstance(value, int) and not isinstance(value, bool) else 0
        narrower = max((step for step in (5, 1) if step < width), default=None)
        if narrower is not None:
            return body | {field: narrower}
        for name in WIDTHS:
            body.pop(name, None)
    return body


def is_about_length(told: str) -> bool:
    """True for a refusal because prompt and answer are too long together."""
    return _LENGTH.search(told) is not None


def shorter(body: Body, status: int, told: str) -> Body | None:
    """Request for half as many tokens if prompt and answer were too long together, else None."""
    if status not in (400, 413, 422) or not is_about_length(told) or _FULL.search(told):
        return None
    name = next((name for name in (*LIMITS, "n_predict") if name in body), None)
    return None if name is None or body[name] < 2 else body | {name: body[name] // 2}
