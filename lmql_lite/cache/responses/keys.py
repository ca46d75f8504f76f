"""Keys of requests: SHA-256 over everything that an answer depends on. Also the keys of lmms-eval's cache."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

from lmql_lite.cache.responses.canonical import Unkeyable, canonical, compact, digest
from lmql_lite.cache.responses.request import (
    UNNAMED,
    AnyRequest,
    generation_options,
    scalar,
    why_sampling,
)
from lmql_lite.redaction import is_secret

KEY_VERSION = 1
_PLAIN = (str, int, float, bool, type(None))
_OPTIONS = {"$": "options"}
"""Stands for the options among the arguments in a key."""
SEED_OPTIONS = (
    "temperature", "top_p", "top_k", "max_new_tokens", "max_gen_toks", "do_sample", "num_beams", "until",
    "repetition_penalty", "n", "best_of", "num_return_sequences",
)  # fmt: skip
"""Options that are part of a key of lmms-eval."""
TRANSPORT = frozenset(
    ("batch_size", "cache", "concurrency", "max_retries", "num_concurrent", "num_retries", "request_timeout", "retries",
     "stream", "timeout", "verbose")
)  # fmt: skip
"""Options that never change an answer. Every other one is part of a key, except credentials."""
HEADERS = frozenset(("headers", "extra_headers", "default_headers", "http_headers"))
QUERIES = frozenset(("extra_query", "default_query", "query_params"))
"""Options that hold HTTP headers and query parameters, at any depth. Gateways choose a model by them, so they are part
of a key: each value as a digest, since it may be a credential of an unknown name."""
TRACING = frozenset(
    ("baggage", "idempotency-key", "traceparent", "tracestate", "user-agent", "x-client-request-id", "x-correlation-id",
     "x-request-id", "x-trace-id")
)  # fmt: skip
"""Headers that identify one request or the client, and never change an answer."""
ALIASES = {
    "max_tokens": ("max_tokens", "max_new_tokens", "max_gen_toks", "max_completion_tokens"),
    "stop": ("stop", "until", "stop_sequences"),
}

_CREDENTIAL = re.compile(
    r"(?:set-)?cookie|(?:.*[-_])?(?:auth|access|security|session|csrf|xsrf)[-_]token|key|sig", re.I
)
_USER = re.compile(r"(?<=://)[^/@\s]+@")
_SERVER = re.compile(
    r"https?://|(?:async_)?(?:openai|azure|anthropic|claude|gemini|litellm)(?:[/_|]|$)|"
    r"(?:gpt|claude|gemini|grok)-\d|chatgpt-|o\d(?:-[\w.-]+)?(?:\||$)|deepseek-(?:chat|reasoner)(?:\||$)|"
    r"mistral-(?:large|medium|small)-(?:latest|\d{4})(?:\||$)|"
    r"(?:bedrock|cohere|deepseek|fireworks|groq|mistral|ollama|openrouter|together|xai)/|"
    r"[\w-]*-completions(?:\||$)",
    re.I,
)
_ADDRESS = re.compile(r'"(?:base_url|api_base|azure_endpoint)":')
_PAIR = re.compile(r"(?<![\w-])([\w-]+)=[^,|&\"\s]*")


def canonical_options(options: Mapping[str, Any]) -> str:
    """Canonical JSON text of the options that may change an answer, with aliases unified. Raises Unkeyable."""
    found = canonical(
        {
            name: _loggable_item(name, value)
            for name, value in options.items()
            if name not in TRANSPORT and not is_secret(str(name))
        }
    )
    if "$" in found:  # names that are not all text
        return compact(found)
    for name, aliases in ALIASES.items():
        used = [alias for alias in aliases if alias in found]
        if len(used) == 1:  # several aliases may contradict each other, so each then keeps its name
            value = found.pop(used[0])
            found[name] = [value] if name == "stop" and isinstance(value, str) else value
    return compact(found)


def _loggable(value: Any, name: str) -> Any:
    """Options as they may be written to the log: without credentials in headers, and with digests for other headers,
    query parameters and nested secrets. Raises Unkeyable, with the name of the option, for functions and objects."""
    if type(value) in _PLAIN:
        return value
    if type(value) is list or type(value) is tuple:
        return [_loggable(each, name) for each in value]
    if isinstance(value, Set):
        for each in value:
            _loggable(each, name)
        return value
    if isinstance(value, dict):
        return {each: _loggable_item(each, content) for each, content in value.items()}
    if isinstance(scalar(value), str | int | float | bytes):
        return value
    raise Unkeyable(
        f"the option {name!r} holds a value of type {type(value).__qualname__}, which no key can represent; "
        "write options as text, numbers, lists and dicts"
    )


def _loggable_item(name: Any, value: Any) -> Any:
    if name in HEADERS or name in QUERIES:
        return _header_digests(value)
    if isinstance(name, str) and isinstance(value, str) and is_secret(name):
        return digest(value)
    return _loggable(value, str(name))


def _header_digests(headers: Any) -> Any:
    """Digest of the values of each header or query parameter, by its name in small letters, without credentials."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        return digest(canonical(headers))
    found: dict[str, list[str]] = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            return digest(canonical(headers))
        name = str(pair[0].decode("latin-1") if isinstance(pair[0], bytes) else pair[0]).lower()
        if name not in TRACING and not is_secret(name) and not _CREDENTIAL.fullmatch(name):
            found.setdefault(name, []).append(digest(canonical(pair[1])))
    return found


# The key of lmms-eval ------------------------------------------------------------------------------------------------


def seed_key(
    request_type: str,
    task_name: str,
    doc_id: Any,
    idx: int,
    options: Mapping[str, Any],
    *,
    content_hash: str = "",
    task_fingerprint: str = "",
) -> str:
    """Cache key of version 1 of lmms-eval, byte for byte, for comparisons. It names neither the model nor the prompt.

    seed_key("generate_until", "mme", 3, 0, {"temperature": 0.0, "until": ["\\n"]})
    """
    payload: dict[str, Any] = {"v": 1, "rt": request_type, "tn": task_name, "did": doc_id, "idx": idx,
                               "gk": seed_options(options)}  # fmt: skip
    optional = {"ch": content_hash, "tf": task_fingerprint}
    payload |= {name: value for name, value in optional.items() if value}
    return hashlib.sha256(json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seed_options(options: Mapping[str, Any]) -> str:
    """Canonical JSON text of the twelve options in keys of lmms-eval."""
    found = {name: value for name, value in options.items() if name in SEED_OPTIONS}
    whole = {name: int(value) for name, value in found.items() if isinstance(value, float) and value.is_integer()}
    return compact(found | whole)


# Fingerprints --------------------------------------------------------------------------------------------------------


def fingerprint_model(model: str, model_args: str | Mapping[str, Any] | None = None) -> str:
    """Identity of a model as text: its name and its arguments in any order, without credentials.

    fingerprint_model("vllm", "revision=main,api_key=sk-1") == 'vllm|{"revision":"main"}'
    """
    if isinstance(model_args, str):
        pairs = [part.partition("=") for part in model_args.split(",") if part.strip()]
        model_args = {name.strip(): _parsed(value.strip()) for name, _, value in pairs}
    kept = {name: each for name, each in (model_args or {}).items() if not is_secret(name)}
    kept = _loggable(_described(kept), "")
    return without_user(f"{model}|{compact(kept)}" if kept else f"{model}|")


def without_user(text: str) -> str:
    """Text without the user and password of URLs, and without `api_key=...` and the like."""
    return _PAIR.sub(lambda pair: "" if is_secret(pair[1]) else pair[0], _USER.sub("", text))


def model_hash(fingerprint: str) -> str:
    """Name of a model's folder: the first 16 digits of the SHA-256 of its fingerprint."""
    return hashlib.sha256(fingerprint.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def is_server(fingerprint: str) -> bool:
    """True for a model that a server runs, as its name or its arguments say."""
    return bool(_SERVER.match(fingerprint) or _ADDRESS.search(fingerprint))


def fingerprint_task(config: Mapping[str, Any] | None) -> str:
    """First 16 digits of the SHA-256 of a task's configuration, without addresses of functions; "" for None."""
    if not config:
        return ""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", compact(_described(config)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _described(value: Any) -> Any:
    """A value as JSON data, with the repr of values that JSON lacks."""
    if isinstance(value, Mapping):
        return {str(name): _described(each) for name, each in value.items()}
    if isinstance(value, Set):
        return sorted((_described(each) for each in value), key=compact)
    if isinstance(value, list | tuple):
        return [_described(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, str | bool | int | float) else repr(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


# Keys of a cache -----------------------------------------------------------------------------------------------------


class Keyed(NamedTuple):
    """Key of a request, empty if its answer must not be kept: it samples, or there is a problem. The document and the
    index are JSON data, None for a document that JSON lacks."""

    key: str
    doc_id: Any
    idx: Any
    options: str
    is_deterministic: bool
    problem: str = ""


class KeyMaker:
    """Keys of one model's requests. `default_temperature` None is 1 for a model that a server runs, and else 0."""

    def __init__(self, fingerprint: str, tasks: Mapping[str, str] | None, default_temperature: float | None) -> None:
        self._model = hashlib.sha256(fingerprint.encode("utf-8", "surrogatepass")).hexdigest()
        self._tasks = dict(tasks or {})
        self._is_guess = default_temperature is None and is_server(fingerprint)
        self._default_temperature = 1.0 if self._is_guess else default_temperature or 0.0
        self._name = fingerprint.partition("|")[0]

    def task_fingerprint(self, task_name: str) -> str:
        return self._tasks.get(task_name, "")

    def key(self, request_type: str, request: AnyRequest) -> Keyed:
        """Key of a request, with its parts."""
        given = generation_options(request)
        doc_id, idx, sampling, options, problem = None, 0, None, "{}", ""
        try:
            sampling = why_sampling(request_type, request.args, self._default_temperature)
            doc_id, idx = canonical(request.doc_id), canonical(request.idx)
            options = canonical_options(given)
            if sampling is None:
                task = request.task_name
                parts = {"did": doc_id, "gk": options, "idx": idx, "mf": self._model, "rt": request_type,
                         "tf": self.task_fingerprint(task), "tn": task, "v": f"lmql-{KEY_VERSION}",
                         "x": [_OPTIONS if each is given else canonical(each) for each in request.args]}  # fmt: skip
                key = hashlib.sha256(compact(parts).encode()).hexdigest()
                return Keyed(key, doc_id, idx, options, True)
        except RecursionError:
            problem = "a request is nested too deeply for a key"
        except Unkeyable as error:
            problem = str(error)
        if self._is_guess and sampling == UNNAMED:
            problem = (
                f"they name no temperature, and {self._name!r} is a model of a server, which may sample; write "
                "temperature=0 into the requests, or open the cache with CachePolicy(default_temperature=0)"
            )
        return Keyed("", doc_id, idx, options, sampling is None, problem)
