"""The kinds of server that the stub imitates: which routes and fields there are, and what comes back. Only data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["openai", "vllm", "sglang", "llama.cpp", "ollama"]
Types = tuple[type, ...]
Fields = Mapping[str, Types]


def _fields(*, text: str = "", number: str = "", whole: str = "", flag: str = "", **others: Types) -> Fields:
    """Names of fields by the type of their values."""
    types = {text: (str,), number: (int, float), whole: (int,), flag: (bool,)}
    return {name: each for names, each in types.items() for name in names.split()} | others


_SAMPLED = _fields(text="model", number="temperature top_p", whole="seed", flag="stream", stop=(str, list))
_PENALTIES = _fields(text="user", number="presence_penalty frequency_penalty", stream_options=(dict,))
_COMMON: Fields = {**_SAMPLED, **_PENALTIES, "logit_bias": (dict,)}
_TEXT: Fields = {**_COMMON, **_fields(whole="max_tokens logprobs", flag="echo", prompt=(str, list))}
_CHAT: Fields = {
    **_COMMON,
    **_fields(whole="max_tokens max_completion_tokens top_logprobs", flag="logprobs"),
    **_fields(messages=(list,), response_format=(dict,)),
}
_OPEN = _fields(number="min_p", whole="top_k")
_VLLM: Fields = {
    **_OPEN,
    **_fields(number="repetition_penalty", whole="prompt_logprobs", structured_outputs=(dict,)),
    **_fields(flag="return_token_ids return_tokens_as_token_ids include_stop_str_in_output"),
}
_CONTINUE = _fields(flag="continue_final_message")
_SGLANG: Fields = {**_OPEN, **_fields(text="ebnf regex", number="repetition_penalty", flag="no_stop_trim")}
_LLAMA: Fields = {**_OPEN, **_fields(text="grammar", number="repeat_penalty")}
_NATIVE: Fields = {
    **_LLAMA,
    **_SAMPLED,
    **_fields(whole="n_predict n_probs", flag="return_tokens timings_per_token cache_prompt"),
    **_fields(logit_bias=(list,), prompt=(str, list), json_schema=(dict,)),
}
_TEXT_EXTRAS: Mapping[Kind, Fields] = {
    "vllm": _VLLM,
    "sglang": {**_SGLANG, "json_schema": (str,), "return_token_ids": (bool,)},
}
_CHAT_EXTRAS: Mapping[Kind, Fields] = {
    "vllm": {**_VLLM, **_CONTINUE, "add_generation_prompt": (bool,)},
    "sglang": {**_SGLANG, **_CONTINUE},
    "llama.cpp": {**_LLAMA, **_CONTINUE, "add_generation_prompt": (bool,)},
}


@dataclass(frozen=True, slots=True)
class Config:
    """One kind of server with one model."""

    kind: Kind
    model: str = "stub"
    snapshot: str = "2026-01-01"
    """Of the model: answers name it."""
    key: str | None = None
    """The API key that it wants."""
    seconds_per_token: float = 0.0
    tokens_per_event: int = 1
    text: bool = True
    """It has `/v1/completions` for this model."""
    chat: bool = True
    width: int = 20
    """So many alternatives it gives at most."""
    context: int = 4096
    deaf: bool = False
    """It does not notice that a connection was closed: it says and counts all that it was asked for."""
    tells_usage: bool = True
    refuses: frozenset[str] = frozenset()
    """Fields that it knows and does not take for this model."""
    only_temperature: float | None = None
    thoughts: str = ""
    """What a reasoning model thinks before it answers."""
    prefills: bool = True
    """llama.cpp: it goes on with a turn of the assistant, being told to."""
    version: str = "0.11.2"
    about: Mapping[str, Any] = field(default_factory=dict)
    """What its own routes say beside the usual, by route."""

    def fields(self, *, chat: bool, native: bool) -> Fields:
        if native:
            return _NATIVE
        extras = (_CHAT_EXTRAS if chat else _TEXT_EXTRAS).get(self.kind, {})
        return {**(_CHAT if chat else _TEXT), **extras}


OPENAI_TEXT = Config("openai", chat=False, width=5)
OPENAI_CHAT = Config("openai", text=False, refuses=frozenset({"max_tokens"}))
OPENAI_REASONING = Config(
    "openai",
    text=False,
    refuses=frozenset({"max_tokens", "logprobs", "top_logprobs", "stop"}),
    only_temperature=1.0,
    thoughts="Let me see.",
)
VLLM = Config("vllm", version="0.32.0")
SGLANG = Config("sglang")
LLAMA_CPP = Config("llama.cpp", version="b9000-abc")
OLLAMA = Config("ollama", version="0.13.0")


def about(config: Config, path: str) -> dict[str, Any] | None:
    """What a GET says; None where there is no such route."""
    entry: dict[str, Any] = {"id": config.model, "object": "model", "created": time.time_ns()}
    owner = {"llama.cpp": "llamacpp", "ollama": "library"}.get(config.kind, config.kind)
    entry["owned_by"] = owner
    if config.kind in ("vllm", "sglang"):
        entry |= {"root": f"/models/{config.model}", "max_model_len": config.context}
    routes: dict[Kind, dict[str, Any]] = {
        "openai": {},
        "vllm": {"version": {"version": config.version}},
        "sglang": {
            "get_model_info": {"model_path": f"/models/{config.model}", "is_generation": True},
            "get_server_info": {"version": config.version, "last_gen_throughput": 12.5},
        },
        "llama.cpp": {
            "props": {
                "build_info": config.version,
                "model_path": f"/models/{config.model}.gguf",
                "default_generation_settings": {"n_ctx": config.context},
            }
        },
        "ollama": {
            "api/version": {"version": config.version},
            "api/tags": {"models": [{"name": config.model, "digest": "abc123"}]},
        },
    }
    known = {"v1/models": {"object": "list", "data": [entry]}, **routes[config.kind]}
    for route, more in config.about.items():
        known[route] = {**known.get(route, {}), **more}
    return known.get(path)
