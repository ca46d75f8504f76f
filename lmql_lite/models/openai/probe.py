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
from lmql_lite.models.openai.dialects import MIN_OUTPUT, PUSHED, Dialect, Kind
from lmql_lite.models.openai.negotiation import Exchange, Sender
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
_LLAMA_FIELDS = ("build_info", "model_path", "model_alias", "chat_template", "bos_token", "eos_token", "modalities")


async def probe(sender: Sender, name: str, revision: str | None, *, by_ids: bool) -> tuple[Dialect, Capabilities]:
    """Dialect and capabilities of a server, by free requests and, if these do not tell, by one token.

    `revision` vouches for the model in place of what the server reports (S4). `by_ids`: prompts are sent as token ids,
    where the server takes them; these need not be the tokens that it would cut the text into. Raises ModelError for no
    answer, another kind of server, a wrong key or a wrong model.
    """
    client = sender.client
    dialect, reported = await _look_around(client, name)
    stops_on_close = client.address.is_official or client.address.is_azure  # as gateways report that resell them
    dialect = replace(dialect, stops_on_close=stops_on_close)
    if dialect.is_serial:
        client.lower_concurrency(1)

    def fingerprint(served: str | None) -> str:
        where = client.address
        address = {"address": where.shown, "kind": dialect.kind, "served": served, **reported, **_named(where.variant)}
        facts = {"name": name} | (address if revision is None else {"revision": revision})
        facts |= {"prompts": "ids"} if by_ids and dialect.takes_ids else {}
        text = json.dumps(facts, sort_keys=True, default=str)
        return f"openai:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"

    can = replace(dialect.can, fingerprint=fingerprint(None))
    if dialect.is_known:
        return dialect, can
    chat, tokens = dialect.stops_on_close, 1  # models of OpenAI and Azure are mostly those of chats
    refused = ServerUsage(0, 0, 0, 0, 0)  # a refusal costs nothing, but its requests count
    while True:
        can = replace(can, chat_only=chat)
        if chat and revision is not None and dialect.kind == "openai":
            # the served name is not needed, and the first request shows the rest
            return dialect, replace(can, probe_costs=True, spent=refused)
        try:
            served, found = await _ask_for_a_token(sender, name, dialect, can, tokens)
        except ServerRefusal as refusal:
            refused = replace(refused, requests=refused.requests + refusal.requests)
            is_first_chat = chat and tokens == 1
            if not chat and not dialect.stops_on_close and _is_about_chat(refusal):
                chat = True
            elif is_first_chat and dialect.stops_on_close and "not a chat model" in refusal.reason:
                chat = False
            elif is_first_chat and _is_about_responses(refusal):
                dialect, tokens = replace(dialect, kind="responses"), MIN_OUTPUT
                can = replace(dialect.can, fingerprint=can.fingerprint)
            elif is_first_chat and _is_about_thoughts(refusal):
                tokens = MIN_OUTPUT
            else:
                raise
        else:
            return dialect, replace(found, fingerprint=fingerprint(served), spent=refused.plus(found.spent))


def _named(variant: Mapping[str, object]) -> dict[str, object]:
    """The variant under names that no server uses for what it reports."""
    return {f"sent {name}": value for name, value in variant.items()}


async def _ask_for_a_token(
    sender: Sender, name: str, dialect: Dialect, can: Capabilities, tokens: int
) -> tuple[str, Capabilities]:
    """Served model, and capabilities by one token, requested with every option: refused or ignored ones are missing."""
    prompt, pushed = (_CHAT_PROBE, _SCHEMA_PROBE) if can.chat_only else (_TEXT_PROBE, None)
    request = CompletionRequest(tokens, pushed=pushed, sampling=_DRAWN, alternatives=can.alternatives)
    if not can.chat_only:
        sender.narrow(_TEXT_WIDTH)
    body = dialect.body(name, prompt, request, tokenizer=None)

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
        return str(served), replace(
            can,
            probe_costs=True,
            takes_schemas=any(field in exchange.body for field in PUSHED),
            takes_seeds="seed" in exchange.body,
            # an answer that ended at once had no alternatives to report
            alternatives=exchange.width if alternatives or not has_text else 0,
            spent=spent or ServerUsage(),
        )

    (served, found), requests = await sender.answered(dialect, can.chat_only, body, read)
    return served, replace(found, spent=replace(found.spent or ServerUsage(), requests=requests))


def _is_about_chat(refusal: ServerRefusal) -> bool:
    """True if the server has no route for plain text, at least not for this model."""
    if refusal.status in (404, 405, 501) or refusal.code == "OperationNotSupported":  # Azure's word for it
        return True
    words = re.search(r"\bchat\b|completion operation", refusal.reason)
    return refusal.status in (400, 403, 422) and words is not None


def _is_about_responses(refusal: ServerRefusal) -> bool:
    """True if the model is served by the Responses API alone."""
    return refusal.status in (400, 404) and re.search(r"v1/responses|responses api", refusal.reason, re.I) is not None


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
    found: dict[str, Any] = {}
    if not (client.address.is_official or client.address.is_azure):
        routes = {"sglang": "get_model_info", "llama": "props", "version": "version", "ollama": "api/version"}
        answers = await asyncio.gather(*(_fetch(client, f"{root}/{route}") for route in routes.values()))
        found = dict(zip(routes, answers, strict=True))
    kind: Kind = "openai" if not found else _kind(found, listed)
    if kind == "unknown":
        kind = await _kind_by_description(client)
    entry = _entry(name, kind, listed, lists_all=client.address.is_official or kind != "openai")
    reported: dict[str, Any] = {key: value for key, value in entry.items() if key not in _UNSTABLE_FIELDS}
    context = entry.get("max_model_len")
    dialect = Dialect(kind)
    match kind:
        case "vllm":
            reported["version"] = found["version"].get("version")
            dialect = Dialect(kind, _numbers(reported["version"]))
        case "sglang":
            names = ("get_model_info", "model_info", "get_server_info", "server_info")
            info: dict[str, Any] = {}
            for one in await asyncio.gather(*(_fetch(client, f"{root}/{route}") for route in names)):
                info |= one
            reported |= {key: info[key] for key in _SGLANG_FIELDS if key in info}
            seeded = bool(info.get("enable_deterministic_inference"))
            dialect = Dialect(kind, _numbers(info.get("version")), seeded=seeded)
        case "llama.cpp":
            reported |= {key: found["llama"][key] for key in _LLAMA_FIELDS if key in found["llama"]}
            context = (found["llama"].get("default_generation_settings") or {}).get("n_ctx", context)
            dialect = Dialect(kind, prefills=await _prefills(client))
            # it closes each connection after a stream, although it reports otherwise
            client.headers["Connection"] = "close"
        case "ollama":
            models = (await _fetch(client, f"{root}/api/tags")).get("models") or ()
            tag: Mapping[str, Any] = next((one for one in models if one.get("name") in (name, f"{name}:latest")), {})
            reported |= {"version": found["ollama"].get("version"), "digest": tag.get("digest")}
            dialect = Dialect(kind, _numbers(reported["version"]))
    return replace(dialect, context=context if isinstance(context, int) and context > 0 else None), reported


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
        if refusal.status in (401, 403) or refusal.status >= 500:
            raise
        return []
    listed = models.get("data") if isinstance(models, Mapping) else None
    if not isinstance(listed, list):
        raise address.no_api(f"lists its models as {' '.join(str(models).split())[:60]!r}")
    return [entry for entry in listed if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)]


def _kind(found: Mapping[str, Mapping[str, Any]], entries: list[Mapping[str, Any]]) -> Kind:
    owners = {str(entry.get("owned_by")) for entry in entries}
    if "model_path" in found["sglang"]:
        return "sglang"
    if "default_generation_settings" in found["llama"] or "build_info" in found["llama"]:
        return "llama.cpp"
    if "vllm" in owners and "version" in found["version"]:
        return "vllm"
    if "version" in found["ollama"]:
        return "ollama"
    if owners & {"openai", "openai-internal", "system"}:
        return "openai"
    return "vllm" if "vllm" in owners else "unknown"


async def _kind_by_description(client: Client) -> Kind:
    """Kind of a server by other routes: newer SGLang moved its information, llama-cpp-python names itself elsewhere."""
    root = client.address.root
    if "model_path" in await _fetch(client, f"{root}/model_info"):
        return "sglang"
    title = (await _fetch(client, f"{root}/openapi.json")).get("info", {}).get("title", "")
    return "llama-cpp-python" if "llama.cpp Python" in title else "unknown"


def _entry(name: str, kind: Kind, entries: list[Mapping[str, Any]], *, lists_all: bool) -> Mapping[str, Any]:
    """Description of the model. Raises ModelError if the server, which `lists_all`, does not have it."""
    names = {name, f"{name}:latest"} if kind == "ollama" else {name}
    entry = next((entry for entry in entries if entry["id"] in names), None)
    if entry is not None:
        return entry
    if not entries or kind == "unknown" or not lists_all:  # a gateway serves more than it lists, Azure deployments
        return {}
    if kind in ("llama.cpp", "llama-cpp-python", "sglang"):  # they serve one model, under any name
        return entries[0] if len(entries) == 1 else {}
    known = [str(entry["id"]) for entry in entries]
    listed = ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
    raise ModelError(
        f"the server has no model called {name!r}", hint=did_you_mean(name, known) or f"it serves {listed}"
    )


async def _prefills(client: Client) -> bool:
    """True if the server continues a begun turn: llama.cpp shows the prompt that it would make of a chat."""
    turns = (PromptTurn("user", "a?"), PromptTurn("assistant", "bcd"))
    begun = Dialect("llama.cpp", prefills=True).prompted("", turns)
    shown = await _fetch(client, f"{client.address.root}/apply-template", begun)
    return str(shown.get("prompt")).endswith("bcd")


def _numbers(version: object) -> tuple[int, ...]:
    """`0.11.0rc2.dev7+g1234` -> (0, 11, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", str(version or ""))
    return tuple(int(part) for part in match[0].split(".")) if match else ()
