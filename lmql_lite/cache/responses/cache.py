"""`ResponseCache`: answers of any model under exact keys, which survive runs, processes and crashes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any, Literal

from lmql_lite.cache.responses.index import Index, Row, row_of
from lmql_lite.cache.responses.keys import Keyed, KeyMaker, fingerprint_model, model_hash, without_user
from lmql_lite.cache.responses.merge import MergeReport, RankOfRun, merge, rank_of_run
from lmql_lite.cache.responses.request import EMPTY, AnyRequest, rejection, type_of
from lmql_lite.cache.responses.values import UnknownType, decoded, encoded
from lmql_lite.errors import CacheError, InputError, ModelError
from lmql_lite.store.files import is_on_network
from lmql_lite.store.log import (
    RESPONSE,
    SCHEMA,
    SUFFIX,
    GroupCommit,
    LogWriter,
    Shared,
    line_of,
    opening,
    refuse_foreign,
)

Write = tuple[bytes, Row | None]
"""One line for the log, and the row for the index if the answer may be served."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "D": 86_400, "W": 604_800}


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Policy of a response cache.

    `mode`: `rw` reads and writes, `ro` only reads, `refresh` asks again and replaces, `off` does nothing.
    `expiry`: age from which an answer is asked for again, in seconds or as `"7D"`, `"12h"`, `"30m"`.
    `on_error`: `warn` or `raise` a CacheError if an answer cannot be kept.
    `default_temperature`: temperature of the model for requests that name none. None is 1 for a model that a server
    runs (`openai/...`, or an argument `base_url`), as its API would do, and 0 for others.
    `minus_infinity`: True if a log-likelihood of minus infinity may be kept.

    >>> lq.CachePolicy(mode="ro", expiry="7D").on_error
    'warn'
    """

    mode: Literal["rw", "ro", "refresh", "off"] = "rw"
    expiry: float | str | None = None
    on_error: Literal["warn", "raise"] = "warn"
    default_temperature: float | None = None
    minus_infinity: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("rw", "ro", "refresh", "off"):
            raise InputError(
                f"mode={self.mode!r} is not a mode of a response cache", hint="write rw, ro, refresh or off"
            )
        if self.on_error not in ("warn", "raise"):
            raise InputError(f"on_error={self.on_error!r} is unknown", hint="write warn or raise")
        _ = self.seconds

    @property
    def is_writer(self) -> bool:
        return self.mode in ("rw", "refresh")

    @property
    def replaces(self) -> bool:
        """True if a new answer takes the place of one that is kept."""
        return self.mode == "refresh" or self.expiry is not None

    @property
    def seconds(self) -> float | None:
        """`expiry` in seconds."""
        given = self.expiry
        if given is None or isinstance(given, int | float):
            return given
        try:
            return float(given[:-1]) * _UNITS[given[-1:]]
        except (ValueError, KeyError, TypeError):  # TypeError: a timedelta, for one
            raise InputError(f"expiry={given!r} is not a time", hint='write seconds, or "7D", "12h", "30m"') from None


@dataclass(frozen=True, slots=True)
class CacheHit:
    """A cached answer, and its Unix time."""

    response: Any
    created_at: float


@dataclass(slots=True)
class Asked:
    """A request to send to the model, and its place among the requests of a call, with those of equal requests."""

    request: AnyRequest
    keyed: Keyed
    places: list[int]


@dataclass(slots=True)
class CacheCall:
    """One active call of `execute`."""

    request_type: str
    results: list[Any]
    questions: list[Asked] = field(default_factory=list)
    leads: set[str] = field(default_factory=set)
    """Keys that this call asks for, so that others wait for it."""
    elsewhere: list[Asked] = field(default_factory=list)
    """Questions that other calls ask, whose ends are `others`."""
    others: list[Shared] = field(default_factory=list)
    answered: int = 0
    writes: set[Shared] = field(default_factory=set)

    def note(self, question: Asked, answer: Any) -> None:
        """Stores the answer to a question for all its requests."""
        for place in question.places:
            self.results[place] = answer

    def parts(self, size: int | None) -> Iterator[list[AnyRequest]]:
        requests = [each.request for each in self.questions]
        step = size or max(1, len(requests))
        return (requests[start : start + step] for start in range(0, len(requests), step))


_CALLS = ContextVar[tuple[CacheCall, ...]]("calls", default=())
"""Calls whose model is answering here."""


@contextmanager
def _answering(call: CacheCall) -> Iterator[None]:
    token = _CALLS.set((*_CALLS.get(), call))
    try:
        yield
    finally:
        _CALLS.reset(token)


class ResponseCache:
    """Cache of one rank's answers from one model: `db_path` is the index, `audit_path` the log.

    `open` names the files itself and reads those of all ranks. Safe for threads and event loops; each process opens its
    own. Raises CacheError for files of a newer version, and for a log that another process writes.

    >>> class Shout:
    ...     def generate_until(self, requests):
    ...         return [request.arguments[0].upper() for request in requests]
    >>> with lq.ResponseCache.open("eval_cache", model="shout") as cache:
    ...     cache.execute(Shout(), "generate_until", [lq.Request("generate_until", ("hi", {}))])
    ['HI']
    """

    def __init__(
        self,
        db_path: str | Path,
        audit_path: str | Path,
        *,
        model_fingerprint: str = "",
        task_fingerprints: Mapping[str, str] | None = None,
        policy: CachePolicy | None = None,
        root: Path | None = None,
    ) -> None:
        if os.path.realpath(db_path) == os.path.realpath(audit_path):
            raise InputError(f"{db_path} cannot be both the index and the log", hint="name two files")
        self.policy = policy or CachePolicy()
        self.notices: list[str] = []
        """Sentences about failures. Each is a warning once."""
        self._unsaid: list[str] = []
        self._path = Path(audit_path)
        fingerprint = without_user(model_fingerprint)
        self._model_hash = model_hash(fingerprint)
        self._keys = KeyMaker(fingerprint, task_fingerprints, self.policy.default_temperature)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held while a group is written, and while the files are taken away from the cache."""
        self._asked: dict[str, Shared | None] = {}
        """Keys that are being asked for, with the answer that other calls wait for, if any do."""
        self._counts = dict.fromkeys(
            ("hits", "misses", "skipped_non_deterministic", "shared", "rejected", "unkeyed", "not_kept"), 0
        )
        self._entries = 0
        self._run: RankOfRun | None = None
        self._merged: MergeReport | None = None
        """Report of a run all of whose ranks are merged."""
        self._log: LogWriter | None = None
        self._index: Index | None = None
        self._commits = GroupCommit(self._commit)
        if self.policy.mode == "off":
            return
        try:
            self._log = self._writer(opening(fingerprint, self._model_hash))
            index = None if self._log is None or is_on_network(self._path.parent) else Path(db_path)
            about = fingerprint, self._model_hash
            self._index = Index(index, self._path, root, about, self._log is not None, self._note)
            if self.policy.is_writer and self._log is None and self.policy.on_error == "raise":
                raise CacheError(self.notices[0])
            self._warn()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        root: str | Path,
        *,
        model: str,
        model_args: str | Mapping[str, Any] | None = None,
        rank: int = 0,
        task_fingerprints: Mapping[str, str] | None = None,
        policy: CachePolicy | None = None,
    ) -> ResponseCache:
        """Cache of a model under a folder: `root/<model_hash>/rank<R>.jsonl` and `.db`.

        Answers of all ranks are served, of any number of ranks. Each process has a rank of its own.
        """
        fingerprint = fingerprint_model(model, model_args)
        folder = _root_folder(root) / model_hash(fingerprint)
        return cls(folder / f"rank{rank}.db", folder / f"rank{rank}.jsonl", model_fingerprint=fingerprint,
                   task_fingerprints=task_fingerprints, policy=policy, root=folder)  # fmt: skip

    @classmethod
    def create(
        cls,
        root: str | Path,
        *,
        model: str,
        model_args: str | Mapping[str, Any] | None = None,
        rank: int = 0,
        world_size: int = 1,
        task_fingerprints: Mapping[str, str] | None = None,
        policy: CachePolicy | None = None,
    ) -> ResponseCache:
        """Cache of one rank of a run, which `finalize` ends: `root/<model_hash>/runs/<run>/rank_<R>.jsonl` and `.db`.

        The run is named by LMMS_CACHE_RUN_ID, SLURM_JOB_ID or TORCHELASTIC_RUN_ID. Otherwise several ranks are named by
        MASTER_ADDR, MASTER_PORT and their number, and a single rank at random. Answers of all runs are served.
        """
        if not 0 <= rank < world_size:
            raise InputError(f"rank={rank} is not a rank of {world_size}", hint="count ranks from 0")
        fingerprint = fingerprint_model(model, model_args)
        folder = _root_folder(root) / model_hash(fingerprint)
        run = rank_of_run(folder, rank, world_size)
        cache = cls(run.log.with_suffix(".db"), run.log, model_fingerprint=fingerprint,
                    task_fingerprints=task_fingerprints, policy=policy, root=folder)  # fmt: skip
        cache._run = run
        if cache.policy.is_writer:
            run.begin()
        return cache

    def finalize(self, success: bool = True, *, wait: float = 60.0) -> MergeReport | None:
        """Closes a rank's cache from `create`. Rank 0 then moves the answers of the run to `cache.jsonl`.

        Rank 0 waits at most `wait` seconds until the other ranks have finalized, merges what is there, and also merges
        runs that were killed. A warning names the ranks that had not finalized: their answers are served from their
        logs, or merged already if their process is gone. Other ranks return at once. With `success=False` nothing is
        merged, and the next successful run merges it. May be called again. Returns the report of this run's merge.
        """
        run = self._run
        if run is None:
            raise InputError("finalize() ends a run, but this cache has none", hint="use ResponseCache.create")
        if self._merged is not None:
            return self._merged
        self.close()
        if not success or not self.policy.is_writer:
            return None
        try:
            report, missing = run.end(wait)
        except (OSError, CacheError) as error:
            self._warn(error)
            return None
        if missing:
            ranks = ", ".join(map(str, missing))
            self._warn(
                CacheError(
                    f"{run.folder} is merged without waiting any longer: rank {ranks} of {run.world_size} did not "
                    f"finish within {wait:g} s, and what it keeps from now on is merged with the next run"
                )
            )
        else:
            self._merged = report
        return report

    # -- asking

    def execute(
        self, model: Any, request_type: str, requests: Iterable[AnyRequest], *, batch_size: int | None = None
    ) -> list[Any]:
        """One answer for each request, in order: from the cache, else from the model's method `request_type`.

        The method gets a list of requests, all at once or `batch_size` at a time, and returns their answers as a list
        or an iterator. The answers of a list are on disk before the model is called again, those of an iterator are
        written as they arrive. Exceptions of the model pass through, and earlier answers are kept. Raises ModelError
        for too few or too many answers.
        """
        method = _method(model, request_type)
        call = self._begin(request_type, list(requests))
        try:
            with _answering(call):
                for part in call.parts(batch_size):
                    for answers in _answers(method(part), len(part)):
                        self._take(call, answers)
                    wait(call.writes)
        finally:
            try:
                wait(call.writes)
            finally:
                self._leave(call)
        wait(call.others)
        if again := self._shared(call):
            more = self.execute(model, request_type, [each.request for each in again], batch_size=batch_size)
            for question, answer in zip(again, more, strict=True):
                call.note(question, answer)
        self._warn(self._failure(call))
        return call.results

    async def aexecute(
        self, model: Any, request_type: str, requests: Iterable[AnyRequest], *, batch_size: int | None = None
    ) -> list[Any]:
        """`execute` for event loops. The method may be async or return an async iterator; others run in a thread."""
        method = _method(model, request_type)
        call = self._begin(request_type, list(requests))
        try:
            with _answering(call):
                for part in call.parts(batch_size):
                    async with aclosing(_awaited_answers(method, part)) as arriving:
                        async for answers in arriving:
                            await asyncio.sleep(0)  # tasks that were woken with this one join its group of writes
                            self._take(call, answers)
                    await _all_ended(call.writes)
        finally:
            try:
                await _all_ended(call.writes)
            finally:
                self._leave(call)
        await _all_ended(call.others)
        if again := self._shared(call):
            more = await self.aexecute(model, request_type, [each.request for each in again], batch_size=batch_size)
            for question, answer in zip(again, more, strict=True):
                call.note(question, answer)
        self._warn(self._failure(call))
        return call.results

    def lookup(self, request: AnyRequest, request_type: str | None = None) -> CacheHit | None:
        """The cached answer to a request; None for a miss."""
        key = self._keys.key(request_type or type_of(request), request).key
        return self._found([key]).get(key) if key else None

    def store(self, request: AnyRequest, response: Any, request_type: str | None = None) -> bool:
        """Stores an answer. False if it must not or cannot be kept."""
        call = CacheCall(request_type or type_of(request), [None])
        keyed = self._keys.key(call.request_type, request)
        self._note_unkeyed([keyed])
        call.questions.append(Asked(request, keyed, [0]))
        is_kept = any(row for _, row in self._take(call, [response]))
        wait(call.writes)
        failure = self._failure(call)
        self._warn(failure)
        return is_kept and failure is None

    def _begin(self, request_type: str, requests: list[AnyRequest]) -> CacheCall:
        """Call with the known answers; the others are to be asked for, or awaited from another call.

        Keys are claimed before they are looked up, so that what another call stored meanwhile is found.
        """
        call = CacheCall(request_type, [None] * len(requests))
        questions: dict[str | int, Asked] = {}
        for place, request in enumerate(requests):
            keyed = self._keys.key(request_type, request)
            if known := questions.get(keyed.key or place):
                known.places.append(place)
            else:
                questions[keyed.key or place] = Asked(request, keyed, [place])
        unkeyed = [each.keyed for each in questions.values() if not each.keyed.key]
        problems = self._note_unkeyed(unkeyed)
        counts = {"unkeyed": problems, "skipped_non_deterministic": len(unkeyed) - problems}
        counts |= {"hits": 0, "shared": 0, "misses": 0}
        try:
            mine = [each for each in questions.values() if self._claim(call, each)]
            hits = self._found([each.keyed.key for each in mine if each.keyed.key])
            self._leave(call, hits)
            for each in mine:
                if (hit := hits.get(each.keyed.key)) is not None:
                    call.note(each, hit.response)
                    counts["hits"] += len(each.places)
                    continue
                call.questions.append(each)
                if each.keyed.key:
                    counts["misses"] += 1
                    counts["shared"] += len(each.places) - 1
            self._warn()
        except BaseException:
            self._leave(call)
            raise
        self._count(counts)
        return call

    def _claim(self, call: CacheCall, question: Asked) -> bool:
        """True if this call must ask. Other calls that ask the same then wait for its answer."""
        key = question.keyed.key
        if not key:
            return True
        with self._lock:
            if key not in self._asked:
                self._asked[key] = None
                call.leads.add(key)
                return True
            if any(key in each.leads for each in _CALLS.get()):  # a model that asks the cache must not wait for itself
                return True
            end = self._asked[key] = self._asked[key] or Shared()
        call.elsewhere.append(question)
        call.others.append(end)
        return False

    def _leave(self, call: CacheCall, keys: Iterable[str] | None = None) -> None:
        """Lets the calls that wait for keys go on, with the answers; for all keys of a call, if none are given."""
        answers = {each.keyed.key: call.results[each.places[0]] for each in call.questions[: call.answered]}
        for key in call.leads.intersection(call.leads if keys is None else keys):
            call.leads.remove(key)
            with self._lock:
                end = self._asked.pop(key)
            if end is not None:
                end.set_result(answers.get(key))

    def _shared(self, call: CacheCall) -> list[Asked]:
        """Takes the answers of other calls. Returns the questions of those that failed, which are asked again."""
        again = []
        for question, other in zip(call.elsewhere, call.others, strict=True):
            if (answer := other.result()) is None:
                again.append(question)
            else:
                call.note(question, answer)
                self._count({"shared": len(question.places)})
        return again

    def _found(self, keys: list[str]) -> dict[str, CacheHit]:
        """Cached answers by key, without those that are too old, or of a kind that only a newer version knows."""
        hits: dict[str, CacheHit] = {}
        index = self._opened()
        if index is None or not keys or self.policy.mode == "refresh":
            return hits
        try:
            found = index.find(keys)
        except (CacheError, OSError, sqlite3.Error) as error:
            self._note(f"{self._path}: the cache cannot be read ({error})")
            return hits
        oldest = time.time() - self.policy.seconds if self.policy.seconds is not None else 0.0
        for key, (text, created_at) in found.items():
            if created_at >= oldest:
                with suppress(ValueError):
                    hits[key] = CacheHit(decoded(text), created_at)
        return hits

    # -- writing

    def _writer(self, first_line: bytes) -> LogWriter | None:
        """Writer of the log; None if it is only read, or cannot be written."""
        if not self.policy.is_writer:
            with suppress(OSError):  # found again when the log is read
                refuse_foreign(self._path)
            return None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return LogWriter(self._path, first_line)
        except BlockingIOError:
            raise CacheError(
                f"another process writes {self._path}", hint="give each process a rank of its own (rank=)"
            ) from None
        except OSError as error:
            self._note(f"{self._path} cannot be written ({error.strerror}): no answers are kept")
            return None

    def _opened(self) -> Index | None:
        """The index; None if the cache is off or closed. Raises CacheError in a forked process."""
        if self._index is not None and self._pid != os.getpid():
            raise CacheError(
                f"{self._path} is open in another process, from which this one was forked",
                hint="open a cache in each process, with a rank of its own (rank=)",
            )
        return self._index

    def _take(self, call: CacheCall, answers: Sequence[Any]) -> list[Write]:
        """Stores the next answers of the model in the call, and passes their lines to the log."""
        questions = call.questions[call.answered : call.answered + len(answers)]
        call.answered += len(answers)
        for question, answer in zip(questions, answers, strict=True):
            call.note(question, answer)
        if self._log is None:
            return []
        self._opened()
        now = time.time()
        writes = [self._written(call.request_type, each, answer, now)
                  for each, answer in zip(questions, answers, strict=True)]  # fmt: skip
        call.writes.add(self._commits.add(writes))
        return writes

    def _written(self, request_type: str, question: Asked, answer: Any, now: float) -> Write:
        """Line and row of an answer. With a problem it gets no key, and is not served."""
        request, keyed = question.request, question.keyed
        text, problem = "null", keyed.problem
        try:
            text = encoded(answer)
        except UnknownType as error:
            problem = problem or str(error)
        problem = problem or rejection(request_type, answer, self.policy.minus_infinity) or ""
        if problem and keyed.key:
            self._count({"rejected": 1})
            if answer is not None and problem != EMPTY:
                self._note(f"{self._path}: an answer is not kept, and is asked for again: {problem}")
        task = str(request.task_name)
        record = {"kind": RESPONSE, "schema": SCHEMA, "model_hash": self._model_hash,
                  "cache_key": "" if problem else keyed.key,
                  "request_type": request_type, "task_name": task,
                  "task_fingerprint": self._keys.task_fingerprint(task), "gen_kwargs": keyed.options,
                  "doc_id": keyed.doc_id, "idx": keyed.idx, "response": text, "created_at": now,
                  "deterministic": keyed.is_deterministic}  # fmt: skip
        if problem:
            record["rejected"] = problem
        elif self.policy.replaces:
            record["replaces"] = True
        return line_of(record), row_of(record) if record["cache_key"] else None

    def _commit(self, group: list[Write]) -> None:
        """Writes a group of answers: first their lines, then their rows."""
        with self._writing:
            if self._log is None or self._index is None:
                raise OSError(f"{self._path} is not open for writing")
            self._log.append([line for line, _ in group])
            self._index.add([row for _, row in group if row is not None], self._log)

    def _failure(self, call: CacheCall) -> BaseException | None:
        """Error of a write of a call that has ended; None if there was none."""
        errors = [error for future in call.writes if (error := future.exception()) is not None]
        if errors:
            self._count({"not_kept": call.answered})
        return errors[0] if errors else None

    # -- notices and counts

    def _note(self, sentence: str) -> None:
        """Keeps a sentence for the next warning, if it is new."""
        if sentence not in self.notices:
            self.notices.append(sentence)
            self._unsaid.append(sentence)

    def _note_unkeyed(self, some: Iterable[Keyed]) -> int:
        """Notes why requests have no key. Returns the number of those that do not just sample."""
        problems = [each.problem for each in some if each.problem]
        for problem in problems if self._opened() is not None else ():
            self._note(f"{self._path}: requests are sent each time, and not kept: {problem}")
        return len(problems)

    def _warn(self, failure: BaseException | None = None) -> None:
        """Emits new sentences as warnings, once the answers are safe. Raises CacheError for a failure if the policy
        does."""
        if failure is not None:
            reason = failure.strerror if isinstance(failure, OSError) and failure.strerror else str(failure)
            sentence = f"{self._path}: an answer could not be kept ({reason})"
            if isinstance(failure, CacheError):
                sentence = failure.message
            self._note(sentence)
            if self.policy.on_error == "raise":
                raise CacheError(sentence) from failure
        unsaid, self._unsaid = self._unsaid, []
        for each in unsaid:
            warnings.warn(each, RuntimeWarning, stacklevel=3)

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def get_stats(self) -> dict[str, Any]:
        """Counts since the cache was opened, and `total_cached_entries`. Also works after `close`."""
        with self._lock:
            counts: dict[str, Any] = dict(self._counts)
        if (index := self._opened()) is not None:
            self._entries = index.count()
        asked = counts["hits"] + counts["misses"]
        return counts | {"hit_rate": counts["hits"] / max(1, asked), "total_cached_entries": self._entries}

    def close(self) -> None:
        """Closes the files, unless a forked process has them from its parent. May be called again."""
        if self._pid != os.getpid():
            return
        self._commits.close()
        with self._writing:
            index, log, self._index, self._log = self._index, self._log, None, None
        if index is not None:
            with suppress(CacheError, sqlite3.Error):
                self._entries = index.count()
            index.close()
        if log is not None:
            log.close()

    def __enter__(self) -> ResponseCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    @staticmethod
    def merge_shards(shard_paths: Sequence[str | Path], output_path: str | Path) -> MergeReport:
        """Joins shards of one model, named by index or log, into the shard `output_path`.

        The answer of the first shard counts; an existing output comes before all shards. Raises CacheError, and writes
        nothing, for shards of several models and an output that is an input.
        """
        return merge([Path(path) for path in shard_paths], Path(output_path))


def _root_folder(root: str | Path) -> Path:
    """The folder of all models; that of the file if the root is named like an index or a log, as in lmms-eval."""
    path = Path(os.path.realpath(root))
    return path.parent if path.suffix in (".db", SUFFIX) and not path.is_dir() else path


# Answers of a model --------------------------------------------------------------------------------------------------


def _method(model: Any, request_type: str) -> Callable[[list[AnyRequest]], Any]:
    found: Any = getattr(model, request_type, None)
    if not callable(found):
        raise InputError(f"the model has no method {request_type!r}", hint="add a method that takes a list of requests")
    method: Callable[[list[AnyRequest]], Any] = found
    return method


def _answers(given: Any, expected: int) -> Iterator[Sequence[Any]]:
    """Answers as they arrive: those of a list together, those of an iterator one by one. Raises ModelError for another
    number of answers."""
    if isinstance(given, list | tuple):
        _check_number(len(given), expected, is_end=True)
        yield given
        return
    if not isinstance(given, Iterator):
        raise ModelError(f"the model returned {type(given).__qualname__}", hint="return a list or an iterator")
    count = 0
    for count, answer in enumerate(given, 1):
        _check_number(count, expected)
        yield [answer]
    _check_number(count, expected, is_end=True)


async def _awaited_answers(
    method: Callable[[list[AnyRequest]], Any], part: list[AnyRequest]
) -> AsyncGenerator[Sequence[Any], None]:
    """`_answers` of a method of any kind. One that blocks, and the iterator that it returns, run in threads."""
    is_async = isasyncgenfunction(method) or iscoroutinefunction(method)
    given = method(part) if is_async else await asyncio.to_thread(method, part)
    if isawaitable(given):
        given = await given
    if isinstance(given, AsyncIterator):
        count = 0
        async for answer in given:
            count += 1
            _check_number(count, len(part))
            yield [answer]
        _check_number(count, len(part), is_end=True)
    elif isinstance(given, list | tuple):
        for answers in _answers(given, len(part)):
            yield answers
    else:
        arriving = _answers(given, len(part))
        while (some := await asyncio.to_thread(next, arriving, None)) is not None:
            yield some


def _check_number(count: int, expected: int, *, is_end: bool = False) -> None:
    """Raises ModelError for too many answers, or too few at the end."""
    if count > expected or (is_end and count < expected):
        raise ModelError(
            f"the model returned {count} answers to {expected} requests", hint="return one answer for each request"
        )


async def _all_ended(futures: Iterable[Shared]) -> None:
    for each in list(futures):
        await each.ended()
