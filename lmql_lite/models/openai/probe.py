"""Capabilities of a server. Free routes reveal most of them, a request for one token the rest.

Nothing is taken from a model's name. Servers refuse fields that they do not know, and the models of one server differ
in what they accept (`negotiation.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lmql_lite.errors import BrokenOff, ModelError, did_you_mean
from lmql_lite.models.base import (
    Capabilities,
    CompletionRequest,
    JsonSchema,
    Prompt,
    PromptTurn,
    ServerUsage,
)
from lmql_lite.models.openai.dialects import CAN, Dialect, Kind
from lmql_lite.models.openai.negotiation import PUSHED, Exchange, Sender
from lmql_lite.models.openai.refusals import ServerRefusal
from lmql_lite.options import Sampling

if TYPE_CHECKING:
    from lmql_lite.models.openai.client import Client

_TEXT_PROBE: Prompt = (PromptTurn(None, "1 2 3"),)
_CHAT_PROBE: Prompt = (PromptTurn("user", "Hi"),)
_SCHEMA_PROBE = JsonSchema(
    '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}'
)
_TEXT_WIDTH = 5
"""Alternatives that the oldest route reports at most."""
_MIN_THOUGHTS = 16
"""Least limit that reasoning models of OpenAI take."""
_DRAWN = Sampling(temperature=1.0)
"""Sampling of the probes: every model takes it, even those that take no other temperature."""
_UNSTABLE_FIELDS = {
    "created", "permission", "permissions", "modified_at", "expires_at", "size_vram", "is_sleeping", "total_slots",
    "owned_by", "status", "object",
}  # fmt: skip
"""Fields of a model's description that change although the model stays the same."""
_SGLANG_FIELDS = (
    "version", "model_path", "tokenizer_path", "dtype", "quantization", "kv_cache_dtype", "context_length",
    "chat_template", "lora_paths", "revision", "weight_version", "enable_deterministic_inference",
)  # fmt: skip
"""Stable fields of SGLang's information; the others count requests and measure speed."""
_ROUTES = ("get_model_info", "model_info", "props", "version", "api/version")
"""Routes by which servers tell their kind. SGLang has renamed its own."""
_LLAMA_FIELDS = ("build_info", "model_path", "model_alias", "chat_template", "bos_token", "eos_token", "modalities")


async def probe(sender: Sender, name: str, revision: str | None, *, by_ids: bool) -> Capabilities:
    """Finds out what a server can do, by free requests and, if these do not tell, by one token: the sender has its
    dialect then. The result has also the usage of the probe.

    `revision` vouches for the model in place of what the server reports (S4). `by_ids`: prompts are sent as token ids,
    where the server takes them; these need not be the tokens that it would cut the text into. Raises ModelError for no
    answer, another kind of server, a wrong key or a wrong model.
    """
    client = sender.client
    dialect, reported = await _look_around(client, name)
    is_official = client.address.is_official
    if is_official:  # closing the connection ends an answer there, as gateways report that resell them
        dialect = replace(dialect, can=replace(dialect.can, bills_to_the_end=False))

    def fingerprint(served: str | None) -> str:
        where = client.address
        address = {"address": where.shown, "kind": dialect.kind, "served": served, **reported, **_named(where.variant)}
        facts = {"name": name} | (address if revision is None else {"revision": revision})
        facts |= {"prompts": "ids"} if by_ids and dialect.takes_ids else {}
        text = json.dumps(facts, sort_keys=True, default=str)
        return f"openai:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"

    chat, tokens = dialect.can.chat_only or is_official, 1  # models of OpenAI and Azure are mostly those of chats
    spent = ServerUsage(0, 0, 0, 0, 0)  # a refusal costs nothing, but its requests count
    served: str | None = None
    while True:
        can = replace(dialect.can, fingerprint=fingerprint(served), chat_only=chat)
        if dialect.is_known:
            sender.dialect = replace(dialect, can=can)
            return can
        width = can.alternatives if chat else min(can.alternatives, _TEXT_WIDTH)
        can = replace(can, probe_costs=True, alternatives=width)
        sender.dialect = replace(dialect, can=can)
        # with a revision, the served name of a model of OpenAI is not needed, and the first request shows the rest
        if served is not None or (chat and revision is not None and dialect.kind == "openai"):
            return replace(can, spent=spent)
        try:
            served, found = await _ask_for_a_token(sender, name, tokens)
            dialect, spent = replace(dialect, can=replace(found, spent=None)), spent.plus(found.spent)
        except ServerRefusal as refusal:
            spent = replace(spent, requests=spent.requests + refusal.requests)
            if not chat and not is_official and _is_about_chat(refusal):
                chat = True
            elif chat and is_official and tokens == 1 and "not a chat model" in refusal.reason:
                chat = False
            elif chat and tokens == 1 and _is_about_thoughts(refusal):
                tokens = _MIN_THOUGHTS
            else:
                raise


def _named(variant: Mapping[str, object]) -> dict[str, object]:
    """The variant under names that no server uses for what it reports."""
    return {f"sent {name}": value for name, value in variant.items()}


async def _ask_for_a_token(sender: Sender, name: str, tokens: int) -> tuple[str, Capabilities]:
    """Served model, and capabilities by one token, requested with every option: refused or ignored ones are missing."""
    can = sender.dialect.can
    prompt, pushed = (_CHAT_PROBE, _SCHEMA_PROBE) if can.chat_only else (_TEXT_PROBE, None)
    request = CompletionRequest(tokens, pushed=pushed, sampling=_DRAWN, alternatives=can.alternatives)

    async def read(exchange: Exchange) -> tuple[str, Capabilities]:
        served, spent, alternatives, has_text, is_over = None, None, 0, False, False
        async with aclosing(sender.deltas(exchange)) as deltas:
            async for delta in deltas:
                spent, served = delta.spent or spent, delta.served or served
                has_text |= bool(delta.text)
                is_over |= delta.done or delta.finish is not None
                alternatives = max([alternatives, *(len(token.alternatives) for token in delta.tokens)])
        if served is None and not is_over:
            raise BrokenOff(f"{sender.client.address.shown} ended an answer before it began")
        left = sender.dialect.can
        return str(served), replace(
            left,
            takes_schemas=any(field in exchange.body for field in PUSHED),
            # an answer that ended at once had no alternatives to report
            alternatives=left.alternatives if alternatives or not has_text else 0,
            spent=spent,
        )

    body = sender.dialect.body(name, prompt, request, tokenizer=None)
    (served, found), requests = await sender.answered(body, read)
    return served, replace(found, spent=replace(found.spent or ServerUsage(), requests=requests))


def _is_about_chat(refusal: ServerRefusal) -> bool:
    """True if the server has no route for plain text, at least not for this model."""
    if refusal.status in (404, 405, 501) or refusal.code == "OperationNotSupported":  # Azure's word for it
        return True
    words = re.search(r"\bchat\b|completion operation", refusal.reason)
    return refusal.status in (400, 403, 422) and words is not None


def _is_about_thoughts(refusal: ServerRefusal) -> bool:
    """True if a reasoning model refuses a limit that leaves no room for an answer."""
    return (
        refusal.status == 400
        and re.search(r"could not finish the message|output limit", refusal.reason, re.I) is not None
    )


# Free routes ---------------------------------------------------------------------------------------------------------


async def _look_around(client: Client, name: str) -> tuple[Dialect, dict[str, Any]]:
    """Dialect of a server, and what it reports about itself and the model: a missing route is an answer, too."""
    root = client.address.root
    listed = await entries(client)

    async def seen(*routes: str) -> list[Mapping[str, Any]]:
        return list(await asyncio.gather(*(_fetch(client, f"{root}/{route}") for route in routes)))

    found = dict(zip(_ROUTES, await seen(*_ROUTES), strict=True)) if not client.address.is_official else {}
    kind: Kind = "openai" if client.address.is_official else _kind(found, listed)
    if kind == "unknown" and "llama.cpp Python" in str((await seen("openapi.json"))[0].get("info")):
        raise ModelError(
            f"{client.address.shown} is the server of llama-cpp-python, which lets one request break off another",
            hint="use llama.cpp's own llama-server, or run the file in this process: llamacpp:FILE.gguf",
        )
    entry = _entry(name, kind, listed)
    reported: dict[str, Any] = {key: value for key, value in entry.items() if key not in _UNSTABLE_FIELDS}
    context = entry.get("max_model_len")
    can = CAN[kind]
    match kind:
        case "vllm":
            reported["version"] = found["version"].get("version")
        case "sglang":
            info: dict[str, Any] = {}
            for one in (found["get_model_info"], found["model_info"], *await seen("get_server_info", "server_info")):
                info |= one
            reported |= {key: info[key] for key in _SGLANG_FIELDS if key in info}
        case "llama.cpp":
            props = found["props"]
            reported |= {key: props[key] for key in _LLAMA_FIELDS if key in props}
            context = (props.get("default_generation_settings") or {}).get("n_ctx", context)
            can = replace(can, continues_turns=await _prefills(client))
            # it closes each connection after a stream, although it reports otherwise
            client.headers["Connection"] = "close"
        case "ollama":
            models = (await seen("api/tags"))[0].get("models") or ()
            tag: Mapping[str, Any] = next((one for one in models if one.get("name") in (name, f"{name}:latest")), {})
            reported |= {"version": found["api/version"].get("version"), "digest": tag.get("digest")}
    context = context if isinstance(context, int) and context > 0 else None
    return Dialect(kind, replace(can, context_length=context)), reported


async def _fetch(client: Client, url: str, body: Mapping[str, object] | None = None) -> Mapping[str, Any]:
    """JSON object of a free route; empty if there is none."""
    try:
        found = await client.fetch(url, body)
    except (ModelError, ServerRefusal):
        return {}
    return found if isinstance(found, Mapping) else {}


async def entries(client: Client) -> list[Mapping[str, Any]]:
    """Descriptions of the served models; none if the server does not list them."""
    address = client.address
    try:
        models = await client.fetch(f"{address.url}/models")
    except ServerRefusal as refusal:
        is_misplaced = refusal.status == 404 and not address.url.endswith("/v1")
        if is_misplaced and "data" in await _fetch(client, f"{address.url}/v1/models"):
            raise ModelError(
                f"{address.shown} is not the address of this server's API",
                hint=f"did you mean base_url='{address.shown}/v1'?",
            ) from None
        if refusal.status < 400 or refusal.status in (401, 403) or refusal.status >= 500:
            raise
        return []
    listed = models.get("data") if isinstance(models, Mapping) else None
    if not isinstance(listed, list):
        raise address.no_api(f"lists its models as {' '.join(str(models).split())[:60]!r}")
    return [entry for entry in listed if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)]


def _kind(found: Mapping[str, Mapping[str, Any]], entries: list[Mapping[str, Any]]) -> Kind:
    owners = {str(entry.get("owned_by")) for entry in entries}
    if "model_path" in {**found["get_model_info"], **found["model_info"]}:
        return "sglang"
    if {"default_generation_settings", "build_info"} & found["props"].keys():
        return "llama.cpp"
    if "vllm" in owners:
        return "vllm"
    if "version" in found["api/version"]:
        return "ollama"
    return "openai" if owners & {"openai", "openai-internal", "system"} else "unknown"


def _entry(name: str, kind: Kind, entries: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Description of the model. Raises ModelError if the server does not have it."""
    names = {name, f"{name}:latest"} if kind == "ollama" else {name}
    entry = next((entry for entry in entries if entry["id"] in names), None)
    if entry is not None:
        return entry
    if not entries or kind in ("openai", "unknown"):  # a gateway serves more than it lists, Azure deployments
        return {}
    if kind in ("llama.cpp", "sglang"):  # they serve one model, under any name
        return entries[0] if len(entries) == 1 else {}
    known = [str(entry["id"]) for entry in entries]
    listed = ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
    raise ModelError(
        f"the server has no model called {name!r}", hint=did_you_mean(name, known) or f"it serves {listed}"
    )


async def _prefills(client: Client) -> bool:
    """True if the server continues a begun turn: llama.cpp shows the prompt that it would make of a chat."""
    turns = (PromptTurn("user", "a?"), PromptTurn("assistant", "bcd"))
    begun = Dialect("llama.cpp", CAN["llama.cpp"]).prompted("", turns)
    shown = await _fetch(client, f"{client.address.root}/apply-template", begun)
    return str(shown.get("prompt")).endswith("bcd")
