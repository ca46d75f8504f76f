"""Keys of requests: SHA-256 over everything that an answer depends on. Also the keys of lmms-eval's cache."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any, Literal, NamedTuple
from zlib import crc32

from lmql_lite.cache.responses.request import LOGLIKELIHOOD, AnyRequest, generation_options, is_deterministic
from lmql_lite.redaction import is_secret

KEY_VERSION = 1
SEED_OPTIONS = (
    "temperature", "top_p", "top_k", "max_new_tokens", "max_gen_toks", "do_sample", "num_beams", "until",
    "repetition_penalty", "n", "best_of", "num_return_sequences",
)  # fmt: skip
"""Options that are part of a key of lmms-eval."""
TRANSPORT = frozenset(
    ("batch_size", "cache", "concurrency", "extra_headers", "headers", "max_retries", "num_concurrent", "num_retries",
     "request_timeout", "retries", "stream", "timeout", "user", "verbose")
)  # fmt: skip
"""Options that never change an answer. Every other one is part of a key, except credentials."""
ALIASES = {
    "max_tokens": ("max_tokens", "max_new_tokens", "max_gen_toks", "max_completion_tokens"),
    "stop": ("stop", "until", "stop_sequences"),
}
REMEMBERED = 64
"""Number of option dicts whose canonical form is remembered. Requests of a task share one dict."""
KeyRule = Literal["full", "seed"]

_USER = re.compile(r"(?<=://)[^/@\s]+@")
_PAIR = re.compile(r"([\w-]+)=[^,|&\"\s]*")


class Unkeyable(ValueError):
    """A request holds a value that cannot be part of a key. The sentence names the value."""


def canonical(value: Any) -> Any:
    """JSON data, equal for equivalent values: `0.0` and `0`, a tuple and a list. Raises Unkeyable."""
    kind = type(value)
    if value is None or kind is str or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise Unkeyable(f"{value} in a request is not a number that a key can hold")
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        if not all(type(name) is str for name in value):
            raise Unkeyable("a request holds a dict whose keys are not all text")
        found = {name: canonical(each) for name, each in value.items()}
        return {"$": "dict", "v": found} if "$" in found else found
    if isinstance(value, list | tuple):
        return [canonical(each) for each in value]
    if isinstance(value, Set):
        return {"$": "set", "v": sorted((canonical(each) for each in value), key=_compact)}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$": "bytes", "v": hashlib.sha256(value).hexdigest()}
    if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return canonical(value.item())
    raise Unkeyable(f"a request holds a value of type {kind.__qualname__}; pass text, numbers, bytes, lists or dicts")


def canonical_options(options: Mapping[str, Any]) -> str:
    """Canonical JSON text of the options that may change an answer, with aliases unified. Raises Unkeyable."""
    found = {name: canonical(value) for name, value in options.items() if name not in TRANSPORT and not is_secret(name)}
    for name, aliases in ALIASES.items():
        used = [alias for alias in aliases if alias in found]
        if len(used) == 1:  # several aliases may contradict each other, so each then keeps its name
            value = found.pop(used[0])
            found[name] = [value] if name == "stop" and isinstance(value, str) else value
    return _compact(found)


def content_of(arguments: Sequence[Any], options: Mapping[str, Any]) -> str:
    """Canonical JSON text of everything that a request shows the model, without options. Raises Unkeyable."""
    parts = []
    for each in arguments:
        if type(each) is str:
            parts.append(encode_basestring_ascii(each))
        else:
            parts.append('{"$":"options"}' if each is options else _compact(canonical(each)))
    return ",".join(parts)


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


# The key of lmms-eval ------------------------------------------------------------------------------------------------


def seed_key(
    request_type: str,
    task_name: str,
    doc_id: Any,
    idx: int,
    options: Mapping[str, Any] | None,
    *,
    content_hash: str = "",
    task_fingerprint: str = "",
    model_fingerprint_hash: str = "",
    eval_version: str = "",
    version: int = 1,
) -> str:
    """Cache key of lmms-eval, byte for byte. Its version 1 includes neither the model nor the prompt of a generation.

    seed_key("generate_until", "mme", 3, 0, {"temperature": 0.0, "until": ["\\n"]})
    """
    payload: dict[str, Any] = {"v": version, "rt": request_type, "tn": task_name, "did": doc_id, "idx": idx,
                               "gk": seed_options(options)}  # fmt: skip
    optional = {"ch": content_hash, "tf": task_fingerprint, "mfh": model_fingerprint_hash, "ev": eval_version}
    payload |= {name: value for name, value in optional.items() if value}
    return hashlib.sha256(json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seed_options(options: Mapping[str, Any] | None) -> str:
    """Canonical JSON text of the twelve options in keys of lmms-eval. Raises Unkeyable."""
    found = {}
    for name, value in (options or {}).items():
        if name in SEED_OPTIONS:
            value = value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value
            found[name] = int(value) if isinstance(value, float) and value.is_integer() else value
    try:
        return _compact(found)
    except (TypeError, ValueError) as error:
        raise Unkeyable(f"the options of a request have no canonical form ({error})") from None


def seed_content_hash(arguments: Sequence[Any]) -> str:
    """Content hash of lmms-eval: the first 16 digits over the leading text arguments."""
    leading = []
    for each in arguments:
        if not isinstance(each, str):
            break
        leading.append(each)
    return hashlib.sha256("\0".join(leading).encode("utf-8", "surrogatepass")).hexdigest()[:16] if leading else ""


# Fingerprints --------------------------------------------------------------------------------------------------------


def fingerprint_model(model: str, model_args: str | Mapping[str, Any] | None = None) -> str:
    """Identity of a model as text: its name and its arguments in any order, without credentials.

    fingerprint_model("vllm", "revision=main,api_key=sk-1") == 'vllm|{"revision":"main"}'
    """
    if isinstance(model_args, str):
        pairs = [part.partition("=") for part in model_args.split(",") if part.strip()]
        model_args = {name.strip(): _parsed(value.strip()) for name, _, value in pairs}
    kept = {name: value for name, value in (model_args or {}).items() if not is_secret(name)}
    return without_user(f"{model}|{_compact(_described(kept))}" if kept else f"{model}|")


def without_user(text: str) -> str:
    """Text without the user and password of URLs, and without `api_key=...` and the like."""
    return _PAIR.sub(lambda pair: "" if is_secret(pair[1]) else pair[0], _USER.sub("", text))


def model_hash(fingerprint: str) -> str:
    """Name of a model's folder: the first 16 digits of the SHA-256 of its fingerprint."""
    return hashlib.sha256(fingerprint.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def fingerprint_task(config: Mapping[str, Any] | None) -> str:
    """First 16 digits of the SHA-256 of a task's configuration, without addresses of functions; "" for None."""
    if not config:
        return ""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", _compact(_described(config)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _described(value: Any) -> Any:
    """A value as JSON data, with the repr of values that JSON lacks."""
    if isinstance(value, Mapping):
        return {str(name): _described(each) for name, each in value.items()}
    if isinstance(value, Set):
        return sorted((_described(each) for each in value), key=_compact)
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


@dataclass(frozen=True, slots=True)
class KeyedOptions:
    """Options of a request in canonical form. `problem` is the reason why there is none."""

    text: str
    is_deterministic: bool
    problem: str = ""
    shared: dict[str, str] = field(default_factory=dict)
    """Fields of a key that all requests with these options share, by task."""


class Keyed(NamedTuple):
    """Key of a request, empty if its answer must not be kept: it samples, or there is a problem."""

    key: str
    content: str
    """Short digest, for people, of the text that the request shows the model."""
    options: KeyedOptions
    problem: str = ""


class KeyMaker:
    """Keys of one model's requests. The parts that many requests share are computed once."""

    def __init__(
        self, fingerprint: str, tasks: Mapping[str, str] | None, rule: KeyRule, default_temperature: float
    ) -> None:
        self._model = hashlib.sha256(fingerprint.encode("utf-8", "surrogatepass")).hexdigest()
        self._tasks = dict(tasks or {})
        self._is_seed = rule == "seed"
        self._default_temperature = default_temperature
        self._options: dict[tuple[str, int], tuple[Any, Any, KeyedOptions]] = {}

    def task_fingerprint(self, task_name: str) -> str:
        return self._tasks.get(task_name, "")

    def key(self, request_type: str, request: AnyRequest) -> Keyed:
        """Key of a request, with its parts."""
        given = generation_options(request)
        known = self._options.get((request_type, id(given)))
        if known is not None and known[0] is given and known[1] == given:
            options = known[2]
        else:
            options = self._canonical(request_type, given)
        if options.problem or not options.is_deterministic:
            return Keyed("", "", options, options.problem)
        try:
            if self._is_seed:
                return self._seed_key(request_type, request, given, options)
            task, doc_id, idx = request.task_name, request.doc_id, request.idx
            shown = content_of(request.args, given).encode()
            doc = str(doc_id) if type(doc_id) is int else _compact(canonical(doc_id))
            place = str(idx) if type(idx) is int else _compact(canonical(idx))
        except RecursionError:
            return Keyed("", "", options, "a request is nested too deeply for a key")
        except Unkeyable as error:
            return Keyed("", "", options, str(error))
        shared = options.shared.get(task) or self._shared(request_type, task, options)
        payload = f'{{"did":{doc},"idx":{place},{shared},"x":['.encode()
        return Keyed(hashlib.sha256(payload + shown + b"]}").hexdigest(), f"{crc32(shown):08x}", options)

    def _canonical(self, request_type: str, given: Mapping[str, Any]) -> KeyedOptions:
        """Canonical options, remembered by the dict that holds them."""
        deterministic = is_deterministic(request_type, given, self._default_temperature)
        try:
            options = KeyedOptions(seed_options(given) if self._is_seed else canonical_options(given), deterministic)
        except Unkeyable as error:
            return KeyedOptions("{}", deterministic, str(error))
        except RecursionError:
            return KeyedOptions("{}", deterministic, "the options of a request are nested too deeply")
        if given and not self._is_seed:
            if len(self._options) >= REMEMBERED:
                self._options.clear()
            self._options[request_type, id(given)] = given, copy.deepcopy(given), options
        return options

    def _shared(self, request_type: str, task: str, options: KeyedOptions) -> str:
        fields = {"gk": options.text, "mf": self._model, "rt": request_type, "tf": self.task_fingerprint(task),
                  "tn": task, "v": f"lmql-{KEY_VERSION}"}  # fmt: skip
        shared = options.shared[task] = _compact(fields)[1:-1]
        return shared

    def _seed_key(
        self, request_type: str, request: AnyRequest, given: Mapping[str, Any], options: KeyedOptions
    ) -> Keyed:
        task, content = request.task_name, seed_content_hash(request.args)
        try:
            key = seed_key(request_type, task, request.doc_id, request.idx, given,
                           content_hash=content if request_type == LOGLIKELIHOOD else "",
                           task_fingerprint=self.task_fingerprint(task))  # fmt: skip
        except (TypeError, ValueError) as error:
            raise Unkeyable(f"a request has no key of lmms-eval ({error})") from None
        return Keyed(key, content, options)
