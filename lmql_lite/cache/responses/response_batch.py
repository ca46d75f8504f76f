"""One call of a response cache: its requests with their keys, and the records of their answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from lmql_lite.cache.responses.canonical import canonical, compact
from lmql_lite.cache.responses.media_content import Unkeyable
from lmql_lite.cache.responses.request import AnyRequest, rejection
from lmql_lite.cache.responses.request_key import Keyed, KeyMaker
from lmql_lite.cache.responses.response_index import Row, checksum
from lmql_lite.cache.responses.response_store import Write
from lmql_lite.cache.responses.value_codec import UnknownType, decoded, encoded
from lmql_lite.store.log import RESPONSE, SCHEMA, line_of
from lmql_lite.store.single_flight import SingleFlight


@dataclass(frozen=True, slots=True)
class CacheHit:
    """A cached answer, and its Unix time."""

    response: Any
    created_at: float


@dataclass(slots=True)
class Asked:
    """A request to send to the model."""

    index: int
    request: AnyRequest
    keyed: Keyed
    replaces: bool = False
    leads: bool = False
    """True if other calls may wait for this answer."""
    answer: tuple[Any] | None = None
    """The answer in a tuple, because an answer may be None; None before it arrives."""


@dataclass(slots=True)
class Batch:
    """One active call of `execute`."""

    request_type: str
    requests: list[AnyRequest]
    results: list[Any]
    asked: list[Asked] = field(default_factory=list)
    copies: dict[str, list[int]] = field(default_factory=dict)
    """Indices of further requests with the key of a sent one."""
    elsewhere: list[tuple[int, Future[Any]]] = field(default_factory=list)
    """Requests that another call has sent, with the future of the answer."""
    answered: int = 0
    writes: list[Write] = field(default_factory=list)
    groups: list[Future[None]] = field(default_factory=list)

    def note(self, asked: Asked, answer: Any) -> None:
        """Stores the answer for a request and for those with the same key."""
        asked.answer = (answer,)
        for index in (asked.index, *self.copies.pop(asked.keyed.key, ())):
            self.results[index] = answer

    def settle(self) -> None:
        """Waits until the answers so far are written. Groups without an error are forgotten."""
        wait(self.groups)
        self.groups = [group for group in self.groups if group.exception() is not None]

    def fill(self, places: list[int], answers: list[Any]) -> None:
        for place, answer in zip(places, answers, strict=True):
            self.results[place] = answer

    def unanswered(self) -> list[int]:
        """Stores the answers of other calls. Returns the requests that those calls left unanswered."""
        for index, future in self.elsewhere:
            if not future.cancelled():
                self.results[index] = future.result()
        return [index for index, future in self.elsewhere if future.cancelled()]

    def parts(self, size: int | None) -> Iterator[list[AnyRequest]]:
        requests = [each.request for each in self.asked]
        step = size or max(1, len(requests))
        return (requests[start : start + step] for start in range(0, len(requests), step))


def judged(request_type: str, answer: Any, minus_infinity: bool) -> tuple[str, str]:
    """JSON text of an answer, and the reason why it must not be kept, "" if it may be."""
    text, problem = "null", ""
    try:
        text = encoded(answer)
    except UnknownType as error:
        problem = str(error)
    return text, problem or rejection(request_type, answer, minus_infinity) or ""


def usable(known: Mapping[str, tuple[str, float]], oldest: float) -> tuple[dict[str, tuple[Any, float]], set[str]]:
    """Answers and their times by key, and the keys of those that are too old, or of a kind that only a newer version
    knows."""
    hits: dict[str, tuple[Any, float]] = {}
    stale: set[str] = set()
    for key, (text, created_at) in known.items():
        try:
            if created_at < oldest:
                stale.add(key)
            else:
                hits[key] = decoded(text), created_at
        except ValueError:
            stale.add(key)
    return hits, stale


class RecordMaker:
    """Maker of records of one model's answers."""

    def __init__(self, keys: KeyMaker, model_hash: str) -> None:
        self._keys, self._model_hash = keys, model_hash

    def write(self, request_type: str, asked: Asked, text: str, problem: str, created_at: float) -> Write:
        """Line and row of an answer, given as JSON text. With a problem it gets no key, and is not served."""
        record = self.record(request_type, asked) | {"response": text, "created_at": created_at}
        if problem:
            return line_of(record | {"cache_key": "", "rejected": problem}), None
        if asked.replaces:
            record["replaces"] = True
        if not (key := asked.keyed.key):
            return line_of(record), None
        doc, idx = compact(record["doc_id"]), record["idx"] if type(record["idx"]) is int else 0
        return line_of(record), Row(key, request_type, record["task_name"], doc, idx, record["gen_kwargs"], text,
                                    created_at, checksum(key, text), self._model_hash, asked.replaces)  # fmt: skip

    def record(self, request_type: str, asked: Asked) -> dict[str, Any]:
        """Fields of a record without the answer. A document that JSON lacks is replaced by the name of its type."""
        task, doc_id, idx = str(asked.request.task_name), asked.request.doc_id, asked.request.idx
        try:
            doc_id, idx = canonical(doc_id), canonical(idx)
        except (Unkeyable, RecursionError):
            doc_id, idx = f"{type(doc_id).__qualname__} {doc_id!r:.80}", 0
        return {"kind": RESPONSE, "schema": SCHEMA, "model_hash": self._model_hash, "cache_key": asked.keyed.key,
                "content_hash": asked.keyed.content, "request_type": request_type, "task_name": task,
                "task_fingerprint": self._keys.task_fingerprint(task), "gen_kwargs": asked.keyed.options.text,
                "doc_id": doc_id, "idx": idx, "deterministic": asked.keyed.is_deterministic}  # fmt: skip


class InFlight:
    """Keys that calls of this process are asking for. One call asks the model, the others wait for its answer."""

    def __init__(self) -> None:
        self._flights = SingleFlight[Any]()
        self._led: dict[str, int] = {}
        self.settled = 0
        """Number of keys whose request has ended."""

    def join(self, batch: Batch, missing: dict[str, Asked], *, is_sync: bool) -> int:
        """Assigns missing answers to this batch or to other calls that ask for them. Returns the number of the
        batch's."""
        me, before = threading.get_ident(), len(batch.asked)
        for key, each in missing.items():
            if (future := self._flights.join(key)) is None:
                self._led[key] = me
                each.leads = True
            elif not (is_sync and self._led.get(key) == me):  # this thread asks already, and must not wait for itself
                batch.elsewhere += [(index, future) for index in (each.index, *batch.copies.pop(key, ()))]
                continue
            batch.asked.append(each)
        return len(batch.asked) - before

    def leave(self, asked: Asked) -> None:
        """Passes an answer, or its absence, to the calls that wait for it."""
        if asked.leads:
            asked.leads = False
            self.settled += 1
            self._led.pop(asked.keyed.key, None)
            self._flights.leave(asked.keyed.key, *(asked.answer or ()))
