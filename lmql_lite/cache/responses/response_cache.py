"""`ResponseCache`: answers of any model under exact keys, which survive runs, processes and crashes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmql_lite.cache.responses.cache_policy import CacheNotices, CachePolicy
from lmql_lite.cache.responses.model_answers import answers_of, async_answers_of, called, method_of
from lmql_lite.cache.responses.model_folder import CacheRun, ModelFolder, root_folder, run_id
from lmql_lite.cache.responses.request import EMPTY, AnyRequest, type_of
from lmql_lite.cache.responses.request_key import KeyMaker, KeyRule, fingerprint_model, model_hash, without_user
from lmql_lite.cache.responses.response_batch import Asked, Batch, CacheHit, InFlight, RecordMaker, judged, usable
from lmql_lite.cache.responses.response_files import Explanation, explain
from lmql_lite.cache.responses.response_index import KEYS_PER_QUERY, IndexDamaged
from lmql_lite.cache.responses.response_merge import MergeReport, OnConflict, end_run, merge
from lmql_lite.cache.responses.response_store import ResponseStore, StoreFiles
from lmql_lite.errors import CacheError, InputError
from lmql_lite.store.single_flight import ended

LINES_PER_GROUP = 256
GROUPS_AHEAD = 16


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
                            self.policy.mode in ("rw", "refresh"), self.policy.max_bytes)  # fmt: skip
        self._seconds = self.policy.seconds
        self._inherited: list[ResponseStore] = []
        self._records = RecordMaker(self._keys, self._place.model_hash)
        self._counts = dict.fromkeys(
            ("hits", "misses", "skipped_non_deterministic", "shared", "rejected", "unkeyed", "not_kept"), 0
        )
        self._entries: int | None = None
        self._run: tuple[CacheRun, int, int] | None = None
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
        self._flights = InFlight()

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
        folder = root_folder(root) / model_hash(fingerprint)
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
        folder = ModelFolder(root_folder(root) / model_hash(fingerprint))
        run = folder.run(run_id(world_size))
        cache = cls(run.log(rank).with_suffix(".db"), run.log(rank), model_fingerprint=fingerprint,
                    task_fingerprints=task_fingerprints, policy=policy, keys=keys, root=folder.path)  # fmt: skip
        cache._run = run, rank, world_size
        if cache._place.is_writable:
            with suppress(OSError):  # the folder cannot be written, which gave a warning already
                run.begin(rank)
        return cache

    def finalize(self, success: bool = True, *, seconds: float = 60.0) -> MergeReport | None:
        """Closes a rank's cache from `create`. Rank 0 then merges the run into `cache.jsonl` and `cache.db`.

        Rank 0 waits at most `seconds` until all ranks have finalized, and also merges runs that were killed. Other
        ranks return at once. With `success=False` nothing is merged: the answers are served from their logs, and the
        next successful run merges them. May be called again. Returns the report of this run's merge.
        """
        if self._run is None:
            raise InputError("finalize() ends a run, but this cache has none", hint="use ResponseCache.create")
        self.close()
        try:
            return end_run(*self._run, seconds) if success and self._place.is_writable else None
        except (OSError, CacheError) as error:
            self._notices.speak(error)
            return None

    def execute(
        self, model: Any, request_type: str, requests: Iterable[AnyRequest], *, batch_size: int | None = None
    ) -> list[Any]:
        """One answer for each request, in order: from the cache, else from the model's method `request_type`.

        The method gets a list of requests, all at once or `batch_size` at a time, and returns their answers as a list
        or an iterator. The answers of a list are on disk before the model is called again, those of an iterator are
        written as they arrive. Exceptions of the model pass through, and earlier answers are kept. Raises ModelError
        for too few or too many answers.
        """
        method = method_of(model, request_type)
        batch = self._begin(request_type, requests, is_sync=True)
        try:
            for part in batch.parts(batch_size):
                for answer, is_lazy, created_at in answers_of(method(part), len(part)):
                    self._take(batch, answer, created_at)
                    if self._send(batch, is_due=is_lazy) and len(batch.groups) > GROUPS_AHEAD:
                        wait([batch.groups[-GROUPS_AHEAD]])
                self._send(batch, is_due=True)
                batch.settle()
        finally:
            self._send(batch, is_due=True)
            batch.settle()
            failed = self._leave(batch)
        wait([future for _, future in batch.elsewhere])
        if again := self._again(batch):
            batch.fill(again, self.execute(model, request_type, [batch.requests[index] for index in again]))
        self._notices.speak(failed)
        return batch.results

    async def aexecute(
        self, model: Any, request_type: str, requests: Iterable[AnyRequest], *, batch_size: int | None = None
    ) -> list[Any]:
        """`execute` for event loops. The method may be async or return an async iterator; others run in a thread."""
        method = method_of(model, request_type)
        batch = self._begin(request_type, requests, is_sync=False)
        try:
            for part in batch.parts(batch_size):
                given = await called(method, part)
                if isinstance(given, list | tuple):
                    for answer, _, created_at in answers_of(given, len(part)):
                        self._take(batch, answer, created_at)
                        self._send(batch, is_due=False)
                else:
                    async for answer, is_lazy, created_at in async_answers_of(given, len(part)):
                        self._take(batch, answer, created_at)
                        if self._send(batch, is_due=is_lazy) and len(batch.groups) > GROUPS_AHEAD:
                            await ended(batch.groups[-GROUPS_AHEAD])
                await asyncio.sleep(0)  # so that other tasks, which were woken with this one, are in the same group
                self._send(batch, is_due=True)
                for group in batch.groups:
                    await ended(group)
                batch.settle()
        finally:
            try:
                self._send(batch, is_due=True)
                for group in batch.groups:
                    await ended(group)
            finally:
                failed = self._leave(batch)
        for _, future in batch.elsewhere:
            await ended(future)
        if again := self._again(batch):
            batch.fill(again, await self.aexecute(model, request_type, [batch.requests[index] for index in again]))
        self._notices.speak(failed)
        return batch.results

    def lookup(self, request: AnyRequest, request_type: str | None = None) -> CacheHit | None:
        """The cached answer to a request; None for a miss."""
        key = self._keys.key(request_type or type_of(request), request).key
        hit = self._found([key])[0].get(key) if key else None
        return hit and CacheHit(*hit)

    def store(self, request: AnyRequest, response: Any, request_type: str | None = None) -> bool:
        """Stores an answer. False if it must not or cannot be kept."""
        batch = Batch(request_type or type_of(request), [request], [None])
        keyed = self._keys.key(batch.request_type, request)
        self._current()
        self._notices.note_unkeyed([keyed.problem] if keyed.problem else [])
        batch.asked.append(Asked(0, request, keyed, self.policy.mode == "refresh"))
        self._take(batch, response, time.time())
        is_kept = any(row for _, row in batch.writes)
        self._send(batch, is_due=True)
        self._notices.speak(failed := self._leave(batch))
        return is_kept and failed is None

    def explain(self, request: AnyRequest, request_type: str | None = None) -> Explanation:
        """Explanation of a hit or a miss: the key, the nearest answer in the log, and the fields that differ."""
        kind = request_type or type_of(request)
        keyed = self._keys.key(kind, request)
        problem = keyed.problem or ("" if keyed.key else "the model samples: its answers are logged, not served")
        record = self._records.record(kind, Asked(0, request, keyed))
        return explain(
            record, self._place.root or self._place.log.parent, bool(keyed.key and self._found([keyed.key])[0]), problem
        )

    def _begin(self, request_type: str, requests: Iterable[AnyRequest], *, is_sync: bool) -> Batch:
        """Batch with the known answers; the others are to be asked for, or awaited from another call."""
        store = self._current()
        flushes = store.flushes if store is not None else 0
        listed = list(requests)
        batch = Batch(request_type, listed, [None] * len(listed))
        results, settled = batch.results, self._flights.settled
        missing: dict[str, Asked] = {}
        hit_count, all_keys = 0, self._keys.keys(request_type, listed)
        for start in range(0, len(listed), KEYS_PER_QUERY):
            keys = all_keys[start : start + KEYS_PER_QUERY]
            hits, stale = self._found([keyed.key for keyed in keys if keyed.key])
            for index, keyed in enumerate(keys, start):
                key = keyed.key
                if (hit := hits.get(key)) is not None:
                    results[index] = hit[0]
                    hit_count += 1
                elif not key:
                    batch.asked.append(Asked(index, listed[index], keyed))
                elif key in missing:
                    batch.copies.setdefault(key, []).append(index)
                else:
                    missing[key] = Asked(index, listed[index], keyed, key in stale or self.policy.mode == "refresh")
        unkeyed = len(problems := [each.keyed.problem for each in batch.asked if each.keyed.problem])
        if store is not None:
            self._notices.note_unkeyed(problems)
        self._notices.speak()
        counts = {"hits": hit_count, "unkeyed": unkeyed, "skipped_non_deterministic": len(batch.asked) - unkeyed,
                  "shared": sum(map(len, batch.copies.values())), "misses": 0}  # fmt: skip
        if missing:
            try:
                counts["misses"] = self._flights.join(batch, missing, is_sync=is_sync)
                if self._flights.settled != settled:  # answers to others' requests may be known now
                    self._fill(batch, counts, flushes)
            except BaseException:
                self._leave(batch)
                raise
            batch.asked.sort(key=lambda each: each.index)
        self._count(counts)
        return batch

    def _found(self, keys: list[str], *, since: int | None = None) -> tuple[dict[str, tuple[Any, float]], set[str]]:
        """Cached answers and their times by key, and the keys with expired answers."""
        store = self._current()
        if store is None or not keys or self.policy.mode == "refresh":
            return {}, set()
        try:
            known = store.find(keys, since=since)
        except (CacheError, IndexDamaged, OSError, sqlite3.Error) as error:
            self._notices.note(f"{self._place.log}: the cache cannot be read ({error})")
            return {}, set()
        return usable(known, 0.0 if self._seconds is None else time.time() - self._seconds)

    def _fill(self, batch: Batch, counts: dict[str, int], flushes: int) -> None:
        """Looks up the missing answers once more."""
        hits, _ = self._found([each.keyed.key for each in batch.asked if each.leads], since=flushes)
        for each in batch.asked:
            if each.leads and (hit := hits.get(each.keyed.key)) is not None:
                batch.note(each, hit[0])
                self._flights.leave(each)
                counts["hits"], counts["misses"] = counts["hits"] + 1, counts["misses"] - 1
        batch.asked = [each for each in batch.asked if each.answer is None]

    def _take(self, batch: Batch, answer: Any, created_at: float) -> None:
        """Stores the next answer of the model in the batch, and makes its line for the log."""
        asked = batch.asked[batch.answered]
        batch.answered += 1
        batch.note(asked, answer)
        if self._store is None or not self._store.keeps:
            return
        text, problem = judged(batch.request_type, answer, self.policy.minus_infinity)
        problem = asked.keyed.problem or problem
        if problem and asked.keyed.key:
            self._count({"rejected": 1})
            if answer is not None and problem != EMPTY:
                self._notices.note_rejected(problem)
        batch.writes.append(self._records.write(batch.request_type, asked, text, problem, created_at))

    def _send(self, batch: Batch, *, is_due: bool) -> bool:
        """Passes lines to the log, in groups, or all of them if they are due. Returns True if it did."""
        if not batch.writes or self._store is None or not (is_due or len(batch.writes) >= LINES_PER_GROUP):
            return False
        writes, batch.writes = batch.writes, []
        batch.groups.append(self._store.commit(writes))
        return True

    def _leave(self, batch: Batch) -> BaseException | None:
        """Passes the answers to other calls that wait for them. Returns the error of a write, if there was one."""
        for each in batch.asked:
            self._flights.leave(each)
        errors = [error for group in batch.groups if (error := group.exception())]
        if errors:
            self._count({"not_kept": batch.answered})
        return errors[0] if errors else None

    def _again(self, batch: Batch) -> list[int]:
        """Requests that another call asked for and left unanswered."""
        again = batch.unanswered()
        self._count({"shared": len(batch.elsewhere) - len(again)})
        return again

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
                self._store = store = ResponseStore(
                    dataclasses.replace(self._place, is_writable=False), self._notices.note
                )
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
            with suppress(CacheError, IndexDamaged):
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
