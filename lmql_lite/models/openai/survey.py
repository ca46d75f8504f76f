"""Free capability probe of a server: its kind, version and models.

It sends a few free requests at once, each with a short timeout. A missing route is an answer, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lmql_lite.errors import ModelError, did_you_mean
from lmql_lite.models.base import Turn
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.client import Connection, Refusal
from lmql_lite.models.openai.dialects import Kind, Server

_PASSING_FACTS = {
    "created", "permission", "permissions", "modified_at", "expires_at", "size_vram", "is_sleeping", "total_slots",
    "owned_by", "status", "object",
}  # fmt: skip
"""Fields that change although the model stays the same."""
_SGLANG_FACTS = (
    "version", "model_path", "tokenizer_path", "dtype", "quantization", "kv_cache_dtype", "context_length",
    "chat_template", "lora_paths", "revision", "weight_version", "enable_deterministic_inference",
)  # fmt: skip
"""Stable fields of SGLang's information; the others count requests and measure speed."""
_LLAMA_FACTS = ("build_info", "model_path", "model_alias", "chat_template", "bos_token", "eos_token", "modalities")


@dataclass(frozen=True, slots=True)
class Survey:
    """Result of the probe. `reported` goes into the fingerprint (S4)."""

    server: Server
    reported: dict[str, Any] = field(default_factory=dict)
    context_length: int | None = None

    def fingerprint(
        self, address: Address, name: str, served: str | None, revision: str | None, *, by_ids: bool
    ) -> str:
        """Digest of the address and everything reported, or of the revision that the user vouches for (S4).

        `by_ids`: prompts are sent as token ids, which need not be the tokens that the server would cut the text into.
        """
        facts = (
            {"revision": revision, "name": name}
            if revision is not None
            else {"address": address.shown, "name": name, "kind": self.server.kind, "served": served, **self.reported}
        )
        text = json.dumps(facts | ({"prompts": "ids"} if by_ids else {}), sort_keys=True, default=str)
        return f"openai:{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


async def survey(connection: Connection, name: str) -> Survey:
    """Result of the probe. Raises ModelError for no answer, another kind of server, a wrong key or a wrong model."""
    address = connection.address
    entries = await _entries(connection)
    found: dict[str, Any] = {}
    if not address.is_official:
        routes = {"sglang": "get_model_info", "llama": "props", "version": "version", "ollama": "api/version"}
        answers = await asyncio.gather(*(_look(connection, f"{address.root}/{route}") for route in routes.values()))
        found = dict(zip(routes, answers, strict=True))
    kind = _kind(found, entries) if not address.is_official else "openai"
    if kind == "unknown":
        kind = await _kind_by_description(connection)
    entry = _entry(name, kind, entries)
    return await _surveyed(connection, kind, found, entry, name)


async def _look(connection: Connection, url: str, body: Mapping[str, object] | None = None) -> Any:
    """Answer of a route; "" if there is none."""
    try:
        return await connection.look(url, body)
    except ModelError:
        return ""


async def _entries(connection: Connection) -> list[Mapping[str, Any]] | None:
    """Descriptions of the served models; None if the server does not list them."""
    try:
        models = await connection.look(f"{connection.address.url}/models")
    except Refusal as refusal:
        models = refusal
    if isinstance(models, Refusal):
        if models.status in (401, 403):
            raise models
        if models.status == 404 and not connection.address.url.endswith("/v1"):
            nested = await _look(connection, f"{connection.address.url}/v1/models")
            if isinstance(nested, Mapping) and "data" in nested:
                raise ModelError(
                    f"{connection.address.shown} is not where this server has its API",
                    hint=f"did you mean base_url='{connection.address.shown}/v1'?",
                )
        if models.status >= 500:
            raise models
        return None
    listed = models.get("data") if isinstance(models, Mapping) else None
    if not isinstance(listed, list):
        shown = " ".join(str(models).split())[:60]
        raise ModelError(
            f"{connection.address.shown} is no OpenAI-compatible API: its list of models is {shown!r}",
            hint="base_url is the address that ends in /v1, not the one of a web page",
        )
    return [entry for entry in listed if isinstance(entry, Mapping) and isinstance(entry.get("id"), str)]


def _kind(found: Mapping[str, Any], entries: list[Mapping[str, Any]] | None) -> Kind:
    owners = {str(entry.get("owned_by")) for entry in entries or ()}
    if _has(found["sglang"], "model_path"):
        return "sglang"
    if _has(found["llama"], "default_generation_settings") or _has(found["llama"], "build_info"):
        return "llama.cpp"
    if "vllm" in owners and _has(found["version"], "version"):
        return "vllm"
    if _has(found["ollama"], "version"):
        return "ollama"
    if owners & {"openai", "openai-internal", "system"}:
        return "openai"
    return "vllm" if "vllm" in owners else "unknown"


def _has(found: Any, name: str) -> bool:
    return isinstance(found, Mapping) and name in found


async def _kind_by_description(connection: Connection) -> Kind:
    """Kind of a server by other routes: newer SGLang moved its information, llama-cpp-python names itself elsewhere."""
    root = connection.address.root
    if _has(await _look(connection, f"{root}/model_info"), "model_path"):
        return "sglang"
    described = await _look(connection, f"{root}/openapi.json")
    title = described.get("info", {}).get("title", "") if isinstance(described, Mapping) else ""
    return "llama-cpp-python" if "llama.cpp Python" in title else "unknown"


def _entry(name: str, kind: Kind, entries: list[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    """Description of the model. Raises ModelError if the server certainly does not have it."""
    if not entries:
        return {}
    names = {name, f"{name}:latest"} if kind == "ollama" else {name}
    entry = next((entry for entry in entries if entry["id"] in names), None)
    if entry is not None:
        return entry
    if kind in ("llama.cpp", "llama-cpp-python", "sglang"):  # they serve one model, under any name
        return entries[0] if len(entries) == 1 else {}
    if kind == "unknown":  # a gateway may serve more than it lists
        return {}
    known = [str(entry["id"]) for entry in entries]
    raise _unknown(name, known)


def _unknown(name: str, known: list[str]) -> ModelError:
    listed = ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
    hint = did_you_mean(name, known) or (f"it has {listed}" if known else "GET /v1/models lists what it has")
    return ModelError(f"the server has no model called {name!r}", hint=hint)


async def _surveyed(
    connection: Connection, kind: Kind, found: Mapping[str, Any], entry: Mapping[str, Any], name: str
) -> Survey:
    """Result of the probe, with what each kind of server reports about the model itself."""
    root = connection.address.root
    reported: dict[str, Any] = {key: value for key, value in entry.items() if key not in _PASSING_FACTS}
    context = entry.get("max_model_len")
    server = Server(kind)
    if kind == "vllm":
        version = found["version"].get("version") if isinstance(found["version"], Mapping) else None
        reported["version"] = version
        server = Server(kind, _numbers(version))
    elif kind == "sglang":
        looks = [f"{root}/get_model_info", f"{root}/model_info", f"{root}/get_server_info", f"{root}/server_info"]
        told: dict[str, Any] = {}
        for one in await asyncio.gather(*(_look(connection, url) for url in looks)):
            told |= one if isinstance(one, Mapping) else {}
        reported |= {key: told[key] for key in _SGLANG_FACTS if key in told}
        server = Server(kind, _numbers(told.get("version")), bool(told.get("enable_deterministic_inference")))
    elif kind == "llama.cpp":
        props = found["llama"]
        reported |= {key: props[key] for key in _LLAMA_FACTS if key in props}
        context = (props.get("default_generation_settings") or {}).get("n_ctx", context)
        server = Server(kind, prefills=await _prefills(connection, server))
        connection.keep_none_open()  # it closes each connection after a stream, although it reports otherwise
    elif kind == "ollama":
        version = found["ollama"].get("version")
        tags = await _look(connection, f"{root}/api/tags")
        models = tags.get("models") if isinstance(tags, Mapping) else None
        named = (one for one in models or () if one.get("name") in (name, f"{name}:latest"))
        tag: Mapping[str, Any] = next(named, {})
        reported |= {"version": version, "digest": tag.get("digest")}
        server = Server(kind, _numbers(version))
    context = context if isinstance(context, int) and context > 0 else None
    return Survey(replace(server, context=context), reported, context)


async def _prefills(connection: Connection, server: Server) -> bool:
    """True if the server continues a begun turn: llama.cpp shows the prompt that it would make of a chat."""
    begun = replace(server, prefills=True).prompted("", (Turn("user", "a?"), Turn("assistant", "bcd")))
    shown = await _look(connection, f"{connection.address.root}/apply-template", begun)
    return isinstance(shown, Mapping) and str(shown.get("prompt")).endswith("bcd")


def _numbers(version: object) -> tuple[int, ...]:
    """`0.11.0rc2.dev7+g1234` -> (0, 11, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", str(version or ""))
    return tuple(int(part) for part in match[0].split(".")) if match else ()
