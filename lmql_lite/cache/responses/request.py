"""Requests to any model, its answers, and the rules for which answers may be kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

LOGLIKELIHOOD = "loglikelihood"


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


def is_deterministic(request_type: str, options: Mapping[str, Any] | None, default_temperature: float = 0.0) -> bool:
    """True if equal requests give equal answers. An unreadable value counts as sampling.

    `default_temperature` is that of the model for requests that name none.
    """
    if request_type == LOGLIKELIHOOD:
        return True
    options = options or {}
    temperature = options.get("temperature")
    if _number(default_temperature if temperature is None else temperature) != 0:
        return False
    if not _is_no(options.get("do_sample")):
        return False
    return all(
        (count := options.get(name)) is None or 0 <= _number(count) <= 1
        for name in ("n", "best_of", "num_return_sequences")
    )


def _number(value: Any) -> float:
    """The value as a number; NaN if it is not one, so that every comparison fails."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
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
        score, is_greedy = answer
        if not isinstance(score, float) or not isinstance(is_greedy, bool):
            return "a loglikelihood is a pair of a number and a bool"
        if not math.isfinite(score) and not (minus_infinity and score == -math.inf):
            return "the loglikelihood is not finite"
        return None
    text = answer.text if isinstance(answer, Reply) and not answer.tool_calls else answer
    return "the answer is empty" if isinstance(text, str) and not text.strip() else None
