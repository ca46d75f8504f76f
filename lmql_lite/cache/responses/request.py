"""Requests to any model, its answers, and the rules for which answers may be kept."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol

LOGLIKELIHOOD = "loglikelihood"
EMPTY = "the answer is empty"
UNNAMED = "default temperature"
SAMPLING = frozenset(("temperature", "dosample", "n", "bestof", "numreturnsequences", "candidatecount"))
"""Options that decide about sampling, without case and separators."""
OPTIONS_AS_TEXT = ("args", "body", "config", "kwargs", "options", "params")
"""Ends of the names of texts that hold options, without case and separators."""
_LEAVES = (str, bytes, int, float, type, type(None))
_OPTION = re.compile(r"([\w-]+)\s*[=:]\s*([^,;\s]+)")
NOT_OPTIONS = frozenset(
    ("messages", "prompt", "input", "content", "contents", "tools", "functions", "toolchoice", "responseformat",
     "jsonschema", "guidedjson", "schema", "responseschema", "properties", "$defs", "definitions", "logitbias",
     "metadata", "documents", "doc", "headers", "extraheaders")
)  # fmt: skip
"""Options whose names inside are data: a schema with a property `n` does not sample."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a model: the arguments of its method `request_type`, and its place in a data set.

    The first dict among `arguments` holds the generation options. `metadata` may name `task`, `doc_id` and `repeats`.

        Request("generate_until", ("Is a whale a fish?", {"max_tokens": 5}), metadata={"task": "sea", "doc_id": 7})

    >>> lq.Request("generate_until", ("Is a whale a fish?", {"max_tokens": 5})).arguments[0]
    'Is a whale a fish?'
    """

    request_type: str
    arguments: tuple[Any, ...]
    idx: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> tuple[Any, ...]:
        return self.arguments

    @property
    def task_name(self) -> str:
        return str(self.metadata.get("task", ""))

    @property
    def doc_id(self) -> Any:
        return self.metadata.get("doc_id")


class AnyRequest(Protocol):
    """Fields of a request that the cache reads: `Request`, or an object of an evaluation harness."""

    @property
    def args(self) -> Sequence[Any]: ...
    @property
    def idx(self) -> int: ...
    @property
    def task_name(self) -> Any: ...
    @property
    def doc_id(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of a model with more than its text. A hit returns all fields.

    >>> lq.Reply("no").finish_reason is None
    True
    """

    text: str
    usage: Mapping[str, int | None] | None = None
    finish_reason: str | None = None
    tool_calls: Sequence[Any] | None = None


def generation_options(request: AnyRequest) -> Mapping[str, Any]:
    """Options of a request: the first dict among its arguments, or nothing."""
    for each in request.args:
        if isinstance(each, dict):
            return each
    return {}


def type_of(request: AnyRequest) -> str:
    return str(getattr(request, "request_type", "generate_until"))


def is_deterministic(request_type: str, options: Any, default_temperature: float = 0.0) -> bool:
    """True if equal requests give equal answers. An unreadable value counts as sampling.

    `options` are a dict, or all arguments of a request: options at any depth count. `default_temperature` is that of
    the model for requests that name none.
    """
    return why_sampling(request_type, options, default_temperature) is None


def why_sampling(request_type: str, options: Any, default_temperature: float) -> str | None:
    """Name of the option because of which equal requests may get different answers; None if they get equal ones.

    It is UNNAMED if only the model's own temperature is the reason.
    """
    if request_type.startswith(LOGLIKELIHOOD):
        return None
    is_greedy = False
    for name, value in _sampling_options(options, set()):
        if value is None:
            continue
        if name == "temperature":
            is_greedy = True
            samples = _number(value) != 0
        elif name == "dosample":
            samples = not _is_no(value)
            is_greedy = is_greedy or not samples
        else:
            samples = not 0 <= _number(value) <= 1
        if samples:
            return name
    return None if is_greedy or default_temperature == 0 else UNNAMED


def _sampling_options(value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Options that decide about sampling, at any depth of dicts, lists and objects such as `SamplingParams`."""
    if isinstance(value, _LEAVES) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, list | tuple):
        for each in value:
            if not isinstance(each, _LEAVES):
                yield from _sampling_options(each, seen)
    elif isinstance(value, dict | Mapping):
        if "role" in value:  # a turn of a chat, whose text is not an option
            return
        for name, each in value.items():
            plain = _folded(name)
            if plain in SAMPLING:
                yield plain, each
            elif isinstance(each, str) and plain.endswith(OPTIONS_AS_TEXT):
                yield from _sampling_options(_read(each), seen)
            elif not isinstance(each, _LEAVES) and plain not in NOT_OPTIONS:
                yield from _sampling_options(each, seen)
    elif isinstance(value, partial):
        yield from _sampling_options((value.args, value.keywords), seen)
    elif not callable(value):
        for name in ("temperature", "do_sample", "n", "best_of", "num_return_sequences", "candidate_count"):
            if (each := getattr(value, name, None)) is not None and not callable(each):
                yield _folded(name), each
        yield from _sampling_options(getattr(value, "__dict__", None), seen)


def _read(text: str) -> Any:
    """Options that are written as text: a JSON object, or `temperature=0.7,do_sample=True` as in harnesses."""
    with suppress(ValueError):
        return json.loads(text)
    return dict(_OPTION.findall(text))


@lru_cache(1024)
def _folded(name: Any) -> str:
    """Name of an option without case and separators, since APIs write `do_sample` and `doSample`."""
    return name.lower().replace("_", "").replace("-", "") if isinstance(name, str) else ""


def _number(value: Any) -> float:
    """The value as a number; NaN if it is not one, so that every comparison fails."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def _is_no(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("", "0", "false", "no", "none")
    try:
        return not value
    except (TypeError, ValueError):
        return False


def rejection(request_type: str, answer: Any, minus_infinity: bool = False) -> str | None:
    """Reason why an answer must not be served again; None if it may be.

    `minus_infinity` accepts a log-likelihood of minus infinity.
    """
    if answer is None:
        return "the answer is None"
    if request_type == LOGLIKELIHOOD:
        if not isinstance(answer, list | tuple) or len(answer) != 2:
            return "a loglikelihood is a pair of a number and a bool"
        score, is_greedy = (scalar(each) for each in answer)
        if type(score) not in (int, float) or not isinstance(is_greedy, bool):
            return "a loglikelihood is a pair of a number and a bool"
        if score - score != 0 and not (minus_infinity and score == -math.inf):
            return "the loglikelihood is not finite"
        return None
    text = answer.text if isinstance(answer, Reply) and not answer.tool_calls else scalar(answer)
    return EMPTY if isinstance(text, str) and not text.strip() else None


def scalar(value: Any) -> Any:
    """The Python value of a numpy scalar, or of a numpy or torch array without dimensions; other values as they are."""
    if type(value).__module__ in ("numpy", "torch") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value
