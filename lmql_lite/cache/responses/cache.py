"""`ResponseCache`: answers of any model under exact keys, which survive runs, processes and crashes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any, TypeVar

from lmql_lite.cache.responses.canonical import Unkeyable, canonical
from lmql_lite.cache.responses.keys import Keyed, KeyMaker, KeyRule, fingerprint_model, model_hash, without_user
from lmql_lite.cache.responses.logs import MergeReport, OnConflict, RankOfRun, merge, run_id
from lmql_lite.cache.responses.policy import CacheNotices, CachePolicy
from lmql_lite.cache.responses.request import EMPTY, AnyRequest, rejection, type_of
from lmql_lite.cache.responses.store import RUNS, IndexLost, ResponseStore, StoreFiles, Write, row_of
from lmql_lite.cache.responses.values import UnknownType, decoded, encoded
from lmql_lite.errors import CacheError, InputError, ModelError
from lmql_lite.store.flight import SingleFlight, ended
from lmql_lite.store.log import RESPONSE, SCHEMA, SUFFIX, line_of

LINES_PER_GROUP = 256
GROUPS_AHEAD = 16
"""Maximum number of groups of one call that wait to be written."""
Done = TypeVar("Done")
Method = Callable[[list[AnyRequest]], Any]
Answer = tuple[Any, bool, float]
"""An answer of a model, True if answers arrive one by one, and its Unix time."""


@dataclass(frozen=True, slots=True)
class CacheHit:
    """A cached answer, and its Unix time."""

    response: Any
    created_at: float


@dataclass(slots=True)
class Asked:
    """A request to send to the model, and the places of further requests with its key."""

    index: int
    request: AnyRequest
    keyed: Keyed
    copies: list[int] = field(default_factory=list)
    replaces: bool = False
    leads: bool = False
    """True if other calls may wait for this answer."""
    answer: tuple[Any] | None = None
    """The answer in a tuple, because an answer may be None; None before it arrives."""


@dataclass(slots=True)
class CacheCall:
    """One active call of `execute`."""

    request_type: str
    requests: list[AnyRequest]
    results: list[Any]
    asked: list[Asked] = field(default_factory=list)
    elsewhere: list[tuple[int, Future[Any]]] = field(default_factory=list)
    """Requests that another call has sent, with the future of the answer."""
    answered: int = 0
    writes: list[Write] = field(default_factory=list)
    groups: list[Future[None]] = field(default_factory=list)
    """Writes that are going on, or have failed."""

    def note(self, asked: Asked, answer: Any) -> None:
        """Stores the answer for a request and for those with the same key."""
        asked.answer = (answer,)
        for index in (asked.index, *asked.copies):
            self.results[index] = answer

    def parts(self, size: int | None) -> Iterator[list[AnyRequest]]:
        requests = [each.request for each in self.asked]
        step = size or max(1, len(requests))
        return (requests[start : start + step] for start in range(0, len(requests), step))


class _Blocking:
    """Waiting and asking of `execute`. Nothing here suspends a coroutine."""

    is_blocking = True

    async def answers(self, method: Method, part: list[AnyRequest]) -> AsyncGenerator[Answer, None]:
        for each in _answers(method(part), len(part)):
            yield each

    async def wait(self, future: Future[Any]) -> None:
        wait([future])

    async def let_others_join(self) -> None:
        """Does nothing, since a thread lets the others run while it waits."""


class _Awaiting:
    """Waiting and asking of `aexecute`. A method that blocks runs in a thread."""

    is_blocking = False

    async def answers(self, method: Method, part: list[AnyRequest]) -> AsyncGenerator[Answer, None]:
        if iscoroutinefunction(method):
            given = await method(part)
        elif isasyncgenfunction(method):
            given = method(part)
        else:
            given = await asyncio.to_thread(method, part)
            given = await given if isawaitable(given) else given
        if isinstance(given, AsyncIterator):
            count = 0
            async for answer in given:
                count += 1
                yield _counted(answer, count, len(part))
            _counted(None, count, len(part), is_end=True)
        elif isinstance(given, list | tuple):
            for each in _answers(given, len(part)):
                yield each
        else:
            answers = _answers(given, len(part))
            while (each_or_end := await asyncio.to_thread(next, answers, None)) is not None:
                yield each_or_end

    async def wait(self, future: Future[Any]) -> None:
        await ended(future)

    async def let_others_join(self) -> None:
        """Lets the tasks that were woken with this one add to the same group of writes."""
        await asyncio.sleep(0)


class ResponseCache:
    """Cache of one rank's answers from one model: `db_path` is the index, `audit_path` the log.

    `open` names the files itself and reads those of all ranks. `keys="seed"` makes the keys of lmms-eval, which do not
    include the prompt, for use with an imported cache. Safe for threads, event loops and forked processes. Raises
    CacheError for files of a newer version, and for a log that another process writes.

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
        keys: KeyRule = "full",
        root: Path | None = None,
    ) -> None:
        if keys not in ("full", "seed"):
            raise InputError(f"keys={keys!r} is unknown", hint="write full or seed")
        if os.path.realpath(db_path) == os.path.realpath(audit_path):
            raise InputError(f"{db_path} cannot be both the index and the log", hint="name two files")
        self.policy = policy or CachePolicy()
        self._notices = CacheNotices(Path(audit_path), self.policy.on_error)
        self.notices = self._notices.sentences
        fingerprint = without_user(model_fingerprint)
        self._keys = KeyMaker(fingerprint, task_fingerprints, keys, self.policy.default_temperature)
        self._place = StoreFiles(Path(audit_path), Path(db_path), fingerprint, model_hash(fingerprint), root,
                                 self.policy.mode in ("rw", "refresh"))  # fmt: skip
        self._seconds = self.policy.seconds
        self._inherited: list[ResponseStore] = []
        self._counts = dict.fromkeys(
            ("hits", "misses", "skipped_non_deterministic", "shared", "rejected", "unkeyed", "not_kept"), 0
        )
        self._entries: int | None = None
        self._run: RankOfRun | None = None
        self._store: ResponseStore | None = None
        self._begin_process()
        if self.policy.mode != "off":
            self._store = ResponseStore(self._place, self._notices.note)
            try:
                if self._place.is_writable and not self._store.keeps and self.policy.on_error == "raise":
                    raise CacheError(self.notices[0])
                self._notices.speak()
            except BaseException:
                self.close()
                raise

    def _begin_process(self) -> None:
        self._lock = threading.Lock()
        self._flights = SingleFlight[Any]()
        self._led: dict[str, int] = {}
        """Threads of the calls that ask for a key."""

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
        keys: KeyRule = "full",
    ) -> ResponseCache:
        """Cache of a model under a folder: `root/<model_hash>/rank<R>.jsonl` and `.db`.

        Answers of all ranks are served, of any number of ranks. A second process of one rank writes its own files.
        """
        fingerprint = fingerprint_model(model, model_args)
        folder = _root_folder(root) / model_hash(fingerprint)
        return cls(folder / f"rank{rank}.db", folder / f"rank{rank}.jsonl", model_fingerprint=fingerprint,
                   task_fingerprints=task_fingerprints, policy=policy, keys=keys, root=folder)  # fmt: skip

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
        keys: KeyRule = "full",
    ) -> ResponseCache:
        """Cache of one rank of a run, which `finalize` ends: `root/<model_hash>/runs/<run>/rank_<R>.jsonl` and `.db`.

        The run is named by LMMS_CACHE_RUN_ID, SLURM_JOB_ID or TORCHELASTIC_RUN_ID. Otherwise several ranks are named by
        MASTER_ADDR, MASTER_PORT and their number, and a single rank at random. Answers of all runs are served.
        """
        if not 0 <= rank < world_size:
            raise InputError(f"rank={rank} is not a rank of {world_size}", hint="count ranks from 0")
        fingerprint = fingerprint_model(model, model_args)
        folder = _root_folder(root) / model_hash(fingerprint)
        run = RankOfRun(folder / RUNS / run_id(world_size), rank, world_size)
        cache = cls(run.log.with_suffix(".db"), run.log, model_fingerprint=fingerprint,
                    task_fingerprints=task_fingerprints, policy=policy, keys=keys, root=folder)  # fmt: skip
        cache._run = run
        if cache._place.is_writable:
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
        self.close()
        if not success or not self._place.is_writable:
            return None
        try:
            report, missing = run.end(wait)
        except (OSError, CacheError) as error:
            self._notices.speak(error)
            return None
        if missing:
            ranks = ", ".join(map(str, missing))
            self._notices.speak(
                CacheError(
                    f"{run.run} is merged without waiting any longer: rank {ranks} of {run.world_size} did not "
                    f"finish within {wait:g} s, and what it keeps from now on is merged with the next run"
                )
            )
        return report

    def execute(
        self, model: Any, request_type: str, requests: Iterable[AnyRequest], *, batch_size: int | None = None
    ) -> list[Any]:
        """One answer for each request, in order: from the cache, else from the model's method `request_type`.

        The method gets a list of requests, all at once or `batch_size` at a time, and returns their answers as a list
        or an iterator. The answers of a list are on disk before the model is called again, those of an iterator are
        written as they arrive. Exceptions of the model pass through, and earlier answers are kept. Raises ModelError
        for too few or too many answers.
        """
        return _driven(self._execute(_Blocking(), model, request_type, list(requests), batch_size))

    async def aexecute(
        self, model: Any, request_type: str, requests: Iterable[AnyRequest], *, batch_size: int | None = None
    ) -> list[Any]:
        """`execute` for event loops. The method may be async or return an async iterator; others run in a thread."""
        return await self._execute(_Awaiting(), model, request_type, list(requests), batch_size)

    async def _execute(
        self,
        means: _Blocking | _Awaiting,
        model: Any,
        request_type: str,
        requests: list[AnyRequest],
        batch_size: int | None,
    ) -> list[Any]:
        method = getattr(model, request_type, None)
        if not callable(method):
            raise InputError(
                f"the model has no method {request_type!r}", hint="add a method that takes a list of requests"
            )
        call = self._begin(request_type, requests, is_blocking=means.is_blocking)
        try:
            for part in call.parts(batch_size):
                async with aclosing(means.answers(method, part)) as answers:
                    async for answer, is_lazy, created_at in answers:
                        self._take(call, answer, created_at)
                        if self._send(call, is_due=is_lazy) and len(call.groups) > GROUPS_AHEAD:
                            await means.wait(call.groups[-GROUPS_AHEAD])
                await means.let_others_join()
                await self._write(call, means)
        finally:
            try:
                await self._write(call, means)
            finally:
                failed = self._leave(call)
        again = []
        for index, future in call.elsewhere:
            await means.wait(future)
            if future.cancelled():  # the other call ended without an answer
                again.append(index)
            else:
                call.results[index] = future.result()
        self._count({"shared": len(call.elsewhere) - len(again)})
        if again:
            more = await self._execute(means, model, request_type, [requests[index] for index in again], None)
            for index, answer in zip(again, more, strict=True):
                call.results[index] = answer
        self._notices.speak(failed)
        return call.results

    def lookup(self, request: AnyRequest, request_type: str | None = None) -> CacheHit | None:
        """The cached answer to a request; None for a miss."""
        key = self._keys.key(request_type or type_of(request), request).key
        hit = self._found([key])[0].get(key) if key else None
        return hit and CacheHit(*hit)

    def store(self, request: AnyRequest, response: Any, request_type: str | None = None) -> bool:
        """Stores an answer. False if it must not or cannot be kept."""
        call = CacheCall(request_type or type_of(request), [request], [None])
        keyed = self._keys.key(call.request_type, request)
        self._current()
        self._notices.note_unkeyed([keyed.problem] if keyed.problem else [])
        call.asked.append(Asked(0, request, keyed, replaces=self.policy.mode == "refresh"))
        self._take(call, response, time.time())
        is_kept = any(row for _, row in call.writes)
        _driven(self._write(call, _Blocking()))
        self._notices.speak(failed := self._leave(call))
        return is_kept and failed is None

    def _begin(self, request_type: str, requests: list[AnyRequest], *, is_blocking: bool) -> CacheCall:
        """Call with the known answers; the others are to be asked for, or awaited from another call.

        Keys are claimed before they are looked up, so that what another call stored meanwhile is found.
        """
        call = CacheCall(request_type, requests, [None] * len(requests))
        unkeyed: list[Asked] = []
        by_key: dict[str, Asked] = {}
        for index, (request, keyed) in enumerate(zip(requests, self._keys.keys(request_type, requests), strict=True)):
            if not keyed.key:
                unkeyed.append(Asked(index, request, keyed))
            elif keyed.key in by_key:
                by_key[keyed.key].copies.append(index)
            else:
                by_key[keyed.key] = Asked(index, request, keyed)
        problems = [each.keyed.problem for each in unkeyed if each.keyed.problem]
        if self._current() is not None:
            self._notices.note_unkeyed(problems)
        try:
            for each in by_key.values():
                self._claim(call, each, is_blocking=is_blocking)
            hits, stale = self._found([each.keyed.key for each in call.asked])
            counts = {"unkeyed": len(problems), "skipped_non_deterministic": len(unkeyed) - len(problems)}
            counts |= {"hits": 0, "shared": 0, "misses": 0}
            for each in call.asked:
                if (hit := hits.get(each.keyed.key)) is not None:
                    call.note(each, hit[0])
                    self._free(each)
                    counts["hits"] += 1 + len(each.copies)
                else:
                    each.replaces = each.keyed.key in stale or self.policy.mode == "refresh"
                    counts["misses"] += 1
                    counts["shared"] += len(each.copies)
            self._notices.speak()
        except BaseException:
            self._leave(call)
            raise
        waiting = [each for each in call.asked if each.answer is None]
        call.asked = sorted(waiting + unkeyed, key=lambda each: each.index)
        self._count(counts)
        return call

    def _claim(self, call: CacheCall, asked: Asked, *, is_blocking: bool) -> None:
        """Makes this call ask for a key, unless another one does."""
        me, key = threading.get_ident(), asked.keyed.key
        if (future := self._flights.join(key)) is None:
            self._led[key] = me
            asked.leads = True
        elif not (is_blocking and self._led.get(key) == me):  # a thread that asks already must not wait for itself
            call.elsewhere += [(index, future) for index in (asked.index, *asked.copies)]
            return
        call.asked.append(asked)

    def _free(self, asked: Asked) -> None:
        """Passes an answer, or its absence, to the calls that wait for it."""
        if asked.leads:
            asked.leads = False
            self._led.pop(asked.keyed.key, None)
            self._flights.leave(asked.keyed.key, *(asked.answer or ()))

    def _found(self, keys: list[str]) -> tuple[dict[str, tuple[Any, float]], set[str]]:
        """Cached answers and their times by key, and the keys of those that are too old, or of a kind that only a newer
        version knows."""
        hits: dict[str, tuple[Any, float]] = {}
        stale: set[str] = set()
        store = self._current()
        if store is None or not keys or self.policy.mode == "refresh":
            return hits, stale
        oldest = 0.0 if self._seconds is None else time.time() - self._seconds
        try:
            found = store.find(keys)
        except (CacheError, IndexLost, OSError, sqlite3.Error) as error:
            self._notices.note(f"{self._place.log}: the cache cannot be read ({error})")
            return hits, stale
        for key, (text, created_at) in found.items():
            try:
                if created_at < oldest:
                    stale.add(key)
                else:
                    hits[key] = decoded(text), created_at
            except ValueError:
                stale.add(key)
        return hits, stale

    def _take(self, call: CacheCall, answer: Any, created_at: float) -> None:
        """Stores the next answer of the model in the call, and makes its line for the log."""
        asked = call.asked[call.answered]
        call.answered += 1
        call.note(asked, answer)
        if self._store is None or not self._store.keeps:
            return
        text, problem = "null", ""
        try:
            text = encoded(answer)
        except UnknownType as error:
            problem = str(error)
        problem = asked.keyed.problem or problem
        problem = problem or rejection(call.request_type, answer, self.policy.minus_infinity) or ""
        if problem and asked.keyed.key:
            self._count({"rejected": 1})
            if answer is not None and problem != EMPTY:
                self._notices.note_rejected(problem)
        call.writes.append(self._line(call.request_type, asked, text, problem, created_at))

    def _line(self, request_type: str, asked: Asked, text: str, problem: str, created_at: float) -> Write:
        """Line and row of an answer, given as JSON text. With a problem it gets no key, and is not served.

        A document that JSON lacks is replaced by the name of its type.
        """
        task, doc_id, idx = str(asked.request.task_name), asked.request.doc_id, asked.request.idx
        try:
            doc_id, idx = canonical(doc_id), canonical(idx)
        except (Unkeyable, RecursionError):
            doc_id, idx = f"{type(doc_id).__qualname__} {doc_id!r:.80}", 0
        keyed, key = asked.keyed, "" if problem else asked.keyed.key
        record = {"kind": RESPONSE, "schema": SCHEMA, "model_hash": self._place.model_hash, "cache_key": key,
                  "content_hash": keyed.content, "request_type": request_type, "task_name": task,
                  "task_fingerprint": self._keys.task_fingerprint(task), "gen_kwargs": keyed.options,
                  "doc_id": doc_id, "idx": idx, "response": text, "created_at": created_at,
                  "deterministic": keyed.is_deterministic}  # fmt: skip
        if problem:
            record["rejected"] = problem
        elif asked.replaces:
            record["replaces"] = True
        return line_of(record), row_of(record) if key else None

    def _send(self, call: CacheCall, *, is_due: bool) -> bool:
        """Passes lines to the log, in groups, or all of them if they are due. Returns True if it did."""
        if not call.writes or self._store is None or not (is_due or len(call.writes) >= LINES_PER_GROUP):
            return False
        writes, call.writes = call.writes, []
        call.groups.append(self._store.commit(writes))
        return True

    async def _write(self, call: CacheCall, means: _Blocking | _Awaiting) -> None:
        """Returns when the answers so far are written, or could not be."""
        self._send(call, is_due=True)
        for group in call.groups:
            await means.wait(group)
        call.groups = [group for group in call.groups if group.exception() is not None]

    def _leave(self, call: CacheCall) -> BaseException | None:
        """Ends a call. Returns the error of a write, if there was one."""
        for each in call.asked:
            self._free(each)
        errors = [error for group in call.groups if group.done() and (error := group.exception())]
        if errors:
            self._count({"not_kept": call.answered})
        return errors[0] if errors else None

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def _current(self) -> ResponseStore | None:
        """The store of this process. A forked child opens its own."""
        store = self._store
        if store is not None and store.pid != os.getpid():
            self._inherited.append(store)  # closing the parent's index here would disturb the parent
            store.close()
            self._begin_process()
            warn = self._notices.note
            try:
                self._store = store = ResponseStore(self._place, warn)
            except CacheError as error:
                warn(f"{error.message}: this forked process keeps no answers")
                self._store = store = ResponseStore(dataclasses.replace(self._place, is_writable=False), warn)
        return store

    def get_stats(self) -> dict[str, Any]:
        """Counts since the cache was opened, and `total_cached_entries`. Also works after `close`."""
        with self._lock:
            counts: dict[str, Any] = dict(self._counts)
        if (store := self._current()) is not None:
            self._entries = store.count()
        asked = counts["hits"] + counts["misses"]
        return counts | {"hit_rate": counts["hits"] / max(1, asked), "total_cached_entries": self._entries or 0}

    def close(self) -> None:
        """Closes the files. May be called again."""
        if (store := self._current()) is not None:
            with suppress(CacheError, IndexLost, sqlite3.Error):
                self._entries = store.count()
            self._store = None
            store.close()

    def __enter__(self) -> ResponseCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            if self._store is not None:
                self._store.close()

    @staticmethod
    def merge_shards(
        shard_paths: Sequence[str | Path], output_path: str | Path, on_conflict: OnConflict = "first"
    ) -> MergeReport:
        """Joins shards of one model, named by index or log, into the shard `output_path`.

        The answer of the first shard counts; an existing output comes before all shards. Raises CacheError, and writes
        nothing, for shards of several models, an output that is an input, and a conflict under `error`.
        """
        return merge([Path(path) for path in shard_paths], Path(output_path), on_conflict)


def _root_folder(root: str | Path) -> Path:
    """The folder of all models; that of the file if the root is named like an index or a log, as in lmms-eval."""
    path = Path(os.path.realpath(root))
    return path.parent if path.suffix in (".db", SUFFIX) and not path.is_dir() else path


def _driven(work: Coroutine[Any, Any, Done]) -> Done:
    """Result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        value: Done = end.value
        return value
    raise AssertionError("blocking work does not suspend")


def _answers(given: Any, expected: int) -> Iterator[Answer]:
    """Each answer of a list or an iterator. Raises ModelError for another number of answers."""
    if isinstance(given, list | tuple):
        _counted(None, len(given), expected, is_end=True)
        now = time.time()
        yield from ((answer, False, now) for answer in given)
        return
    if not isinstance(given, Iterator):
        raise ModelError(f"the model returned {type(given).__qualname__}", hint="return a list or an iterator")
    count = 0
    for count, answer in enumerate(given, 1):
        yield _counted(answer, count, expected)
    _counted(None, count, expected, is_end=True)


def _counted(answer: Any, count: int, expected: int, *, is_end: bool = False) -> Answer:
    """The answer with the number `count`, that came alone. Raises ModelError for too many, or too few at the end."""
    if count > expected or (is_end and count < expected):
        raise ModelError(
            f"the model returned {count} answers to {expected} requests", hint="return one answer for each request"
        )
    return answer, True, time.time()
