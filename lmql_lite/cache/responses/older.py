"""The older interface of lmms-eval's caches: one JSONL file per task and rank, and a wrapper around a model.

`LMMS_EVAL_USE_CACHE=True` enables the files, `LMMS_EVAL_HOME` moves them. `ResponseCache` does more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmql_lite.cache.responses.cache import CachePolicy, ResponseCache
from lmql_lite.cache.responses.keys import KeyMaker, fingerprint_model
from lmql_lite.cache.responses.request import AnyRequest, Request, is_deterministic, rejection
from lmql_lite.store.log import SUFFIX

REQUEST_METHODS = frozenset(("generate_until", "generate_until_multi_round", "loglikelihood", "loglikelihood_rolling"))
NAMES = ("model_name", "model_version", "model_id", "pretrained", "model")
NAMES_OF_LMMS_EVAL = (*NAMES[:4], "fps", "max_pixels", "min_pixels", "model")
"""Attributes of which the first text names the model in lmms-eval."""
_SHARD = re.compile(r"_rank\d+_world_size\d+$")


class JsonlCache:
    """Mix-in for a model class: answers by task and document in files that people can read.

    Each record has the answer and a digest of the request, so that a changed prompt or option is asked again. A record
    without a digest, from lmms-eval itself, counts for its document. The folders of lmms-eval are read, not written.
    Answers of sampling requests, and empty ones, are never kept and never served.

        def generate_until(self, requests):
            self.load_cache()
            cached, pending = self.get_response_from_cache(requests)
            answers = [self.call_backend(request) for request in pending]
            for request, answer in zip(pending, answers):
                self.add_request_response_to_cache(request, answer)
            return merge_responses(cached, answers)

    >>> hasattr(lq.JsonlCache, "load_cache")
    True
    """

    rank: int = 0
    world_size: int = 1
    cache_tasks: Sequence[str] = ()
    """Names of the tasks of the model, which are part of its folder's name. lmms-eval keeps them in `task_dict`."""

    def load_cache(self) -> None:
        """Reads the files of all ranks of this model, if the environment enables the cache. Later records win."""
        self._kept: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        self._keys = KeyMaker("", None, 0.0)
        self._warned = getattr(self, "_warned", set[str]())
        self._is_on = os.environ.get("LMMS_EVAL_USE_CACHE") == "True"
        for folder in (self._folder_of_lmms_eval(), self._folder()) if self._is_on else ():
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                self._read(path)

    def load_jsonl_cache(self) -> dict[str, dict[Any, Any]]:
        """Cached answers by task and document."""
        self._load_once()
        found: dict[str, dict[Any, Any]] = {}
        for (task, _), records in self._kept.items():
            for record in records.values():
                found.setdefault(record.get("task", task), {})[record["doc_id"]] = record["response"]
        return found

    def get_response_from_cache(self, requests: Sequence[AnyRequest]) -> tuple[list[dict[str, Any]], list[AnyRequest]]:
        """Cached answers as dicts of `index`, `doc_id` and `response`, and the requests without one."""
        self._load_once()
        cached: list[dict[str, Any]] = []
        pending: list[AnyRequest] = []
        for index, request in enumerate(requests):
            records = self._kept.get(_place(request.task_name, request.doc_id), {})
            record = self._known(request, records) if records else None
            if record is None:
                pending.append(request)
            else:
                cached.append({"index": index, "doc_id": request.doc_id, "response": record["response"]})
        return cached, pending

    def add_request_response_to_cache(self, request: AnyRequest, response: Any) -> None:
        """Appends an answer to the file of its task, unless it must not be kept."""
        self._load_once()
        if not self._is_on or rejection("generate_until", response) is not None or not (key := self._key(request)):
            return
        task, file_name = str(request.task_name), _file_name(str(request.task_name))
        record = {"doc_id": request.doc_id, "response": response, "request": key}
        record |= {"task": task} if file_name != task else {}
        path = self._folder() / f"{file_name}_rank{self.rank}_world_size{self.world_size}{SUFFIX}"
        try:
            line = json.dumps(record) + "\n"
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(path, "a+b") as file:
                if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                    line = f"\n{line}"
                file.write(line.encode())
        except (OSError, TypeError, ValueError) as error:
            warnings.warn(f"the answer to document {request.doc_id!r} was not kept ({error})", RuntimeWarning, 2)
            return
        self._keep(file_name, record)

    def _load_once(self) -> None:
        if not hasattr(self, "_kept"):
            self.load_cache()

    def _tasks(self) -> list[str]:
        return list(self.cache_tasks or getattr(self, "task_dict", ()))

    def _folder(self) -> Path:
        tasks = _digest_of_tasks(sorted(self._tasks()))[:16]
        return _home() / f"{type(self).__name__}_{_file_name(_name(self, NAMES))}_{tasks}"

    def _folder_of_lmms_eval(self) -> Path:
        """Folder that lmms-eval would use. It names the model by the last part of its name."""
        name = os.path.basename(_name(self, NAMES_OF_LMMS_EVAL))
        return _home() / f"{type(self).__name__}_{name}_{_digest_of_tasks(self._tasks())}"

    def _read(self, path: Path) -> None:
        for line in filter(bytes.strip, path.read_bytes().splitlines()):
            try:
                given = json.loads(line)
                record = {"doc_id": given["doc_id"], "response": given["response"]}
                record |= {name: given[name] for name in ("request", "task") if given.get(name) is not None}
            except (ValueError, KeyError, TypeError, AttributeError):
                warnings.warn(f"{path} has a line that is not a record; it is not used", RuntimeWarning, 4)
                continue
            if rejection("generate_until", record["response"]) is None:
                self._keep(_SHARD.sub("", path.stem), record)

    def _keep(self, task: str, record: dict[str, Any]) -> None:
        """Adds a record, which replaces earlier ones of its request, and of its document if they know no request."""
        records = self._kept.setdefault(_place(task, record["doc_id"]), {})
        for earlier in ("", record.get("request", "")):
            records.pop(earlier, None)
        records[record.get("request", "")] = record

    def _known(self, request: AnyRequest, records: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
        """The record of a request, or else one of its document that lmms-eval wrote."""
        if not is_deterministic("generate_until", request.args):
            return None
        theirs = records.get("") if request.doc_id is not None else None
        own = set(records) - {""}
        return (records.get(self._key(request)) if own else None) or theirs

    def _key(self, request: AnyRequest) -> str:
        """Digest of a request, empty if its answer must not be kept."""
        keyed = self._keys.key("generate_until", request)
        if keyed.problem and keyed.problem not in self._warned:
            self._warned.add(keyed.problem)
            warnings.warn(f"requests are sent each time, and not kept: {keyed.problem}", RuntimeWarning, 4)
        return keyed.key


def merge_responses(cached: Sequence[Mapping[str, Any]], answers: Sequence[Any]) -> list[Any]:
    """Cached and new answers in the order of their requests."""
    known = {each["index"]: each["response"] for each in cached}
    new = iter(answers)
    return [known[index] if index in known else next(new) for index in range(len(known) + len(answers))]


def _home() -> Path:
    return Path(os.environ.get("LMMS_EVAL_HOME") or "~/.cache/lmms-eval").expanduser() / "eval_cache"


def _name(model: Any, attributes: Sequence[str]) -> str:
    """Name of a model: the first text among its attributes, or else the name of its class."""
    found = (getattr(model, each, None) for each in attributes)
    return next((each for each in found if isinstance(each, str) and each), type(model).__name__)


def _digest_of_tasks(tasks: Sequence[str]) -> str:
    text = unicodedata.normalize("NFC", "|".join(tasks)).replace("\r\n", "\n").replace("\r", "\n")
    return hashlib.sha256(text.encode()).hexdigest()


def _place(task: Any, doc_id: Any) -> tuple[str, str]:
    """Task, as files are named by it, and document of a request."""
    return _file_name(str(task)), json.dumps(doc_id, default=repr)


def _file_name(text: str) -> str:
    """Part of a file's name for a name; distinct for distinct names, and itself for its result."""
    plain = re.sub(r"[^\w.-]", "_", text)
    if plain == text and len(text) < 100:
        return text
    return f"{plain[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class CachingModel:
    """Wrapper that puts a cache in front of a model's request methods; everything else is the model's own.

    Equal arguments are one question, whatever their document. A model with `set_cache_hook` gets a hook to store
    answers before its method returns: `hook.add_partial(method, arguments, answer)`.

        model = CachingModel(model, "answers.db")
        answers = model.generate_until(requests)

    >>> class Shout:
    ...     def generate_until(self, requests):
    ...         return [request.arguments[0].upper() for request in requests]
    >>> lq.CachingModel(Shout(), "answers.db").generate_until([lq.Request("generate_until", ("hi", {}))])
    ['HI']
    """

    def __init__(self, model: Any, db_path: str | Path, policy: CachePolicy | None = None) -> None:
        name = next((value for each in NAMES if isinstance(value := getattr(model, each, None), str)), "")
        fingerprint = fingerprint_model(f"{type(model).__qualname__}/{name}")
        self._model = model
        self.cache = ResponseCache(
            db_path, Path(db_path).with_suffix(SUFFIX), model_fingerprint=fingerprint, policy=policy
        )
        if callable(set_hook := getattr(model, "set_cache_hook", None)):
            set_hook(CacheHook(self.cache))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        if name not in REQUEST_METHODS or not callable(value):
            return value

        def cached(requests: Sequence[AnyRequest]) -> list[Any]:
            asked = [Request(name, tuple(request.args)) for request in requests]
            originals = {id(own): request for own, request in zip(asked, requests, strict=True)}
            return self.cache.execute(_Original(name, value, originals), name, asked)

        return cached

    def close(self) -> None:
        self.cache.close()


class _Original:
    """A model's method that gets the caller's own requests."""

    def __init__(self, name: str, method: Callable[[list[Any]], Any], originals: Mapping[int, Any]) -> None:
        setattr(self, name, lambda requests: method([originals[id(each)] for each in requests]))


class CacheHook:
    """Hook with which a model stores answers one by one."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache

    def add_partial(self, method: str, arguments: Sequence[Any], answer: Any) -> None:
        self._cache.store(Request(method, tuple(arguments)), answer)
