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

from lmql_lite.cache.responses.cache import ResponseCache
from lmql_lite.cache.responses.keys import KeyMaker, fingerprint_model
from lmql_lite.cache.responses.policy import CachePolicy
from lmql_lite.cache.responses.request import AnyRequest, Request, is_deterministic, rejection
from lmql_lite.store.log import SUFFIX

REQUEST_METHODS = frozenset(("generate_until", "generate_until_multi_round", "loglikelihood", "loglikelihood_rolling"))
NAMES = ("model_name", "model_version", "model_id", "pretrained", "model")
NAMES_OF_LMMS_EVAL = (
    "model_name",
    "model_version",
    "model_id",
    "pretrained",
    "fps",
    "max_pixels",
    "min_pixels",
    "model",
)
"""Attributes of which the first text names the model in lmms-eval."""


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
        """Reads the files of this model, if the environment enables the cache."""
        self._kept: dict[str, dict[tuple[str, str | None], dict[str, Any]]] = {}
        self._digests = KeyMaker("", None, "full", 0.0)
        self._warned = getattr(self, "_warned", set[str]())
        self._is_on = os.environ.get("LMMS_EVAL_USE_CACHE") == "True"
        if self._is_on:
            self._read()

    def load_jsonl_cache(self) -> dict[str, dict[Any, Any]]:
        """Cached answers by task and document."""
        if not hasattr(self, "_kept"):
            self.load_cache()
        return {
            next(iter(kept.values())).get("task", task): {each["doc_id"]: each["response"] for each in kept.values()}
            for task, kept in self._kept.items()
        }

    def get_response_from_cache(self, requests: Sequence[AnyRequest]) -> tuple[list[dict[str, Any]], list[AnyRequest]]:
        """Cached answers as dicts of `index`, `doc_id` and `response`, and the requests without one."""
        if not hasattr(self, "_kept"):
            self.load_cache()
        cached: list[dict[str, Any]] = []
        pending: list[AnyRequest] = []
        for index, request in enumerate(requests):
            if (known := self._known(request)) is None:
                pending.append(request)
            else:
                cached.append({"index": index, "doc_id": request.doc_id, "response": known["response"]})
        return cached, pending

    def add_request_response_to_cache(self, request: AnyRequest, response: Any) -> None:
        """Appends an answer to the file of its task, unless it must not be kept."""
        if not hasattr(self, "_kept"):
            self.load_cache()
        if not self._is_on or rejection("generate_until", response) is not None:
            return
        digest = self._digest(request)
        if digest is None:
            return
        task = str(request.task_name)
        record = {"doc_id": request.doc_id, "response": response, "request": digest}
        if _file_name(task) != task:
            record["task"] = task
        try:
            line = json.dumps(record) + "\n"
            path = self._folder() / f"{_file_name(task)}_rank{self.rank}_world_size{self.world_size}{SUFFIX}"
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(path, "a+b") as file:
                if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                    line = f"\n{line}"
                file.write(line.encode())
        except (OSError, TypeError, ValueError) as error:
            warnings.warn(f"the answer to document {request.doc_id!r} was not kept ({error})", RuntimeWarning, 2)
            return
        self._keep(_file_name(task), record)

    def _tasks(self) -> list[str]:
        return list(self.cache_tasks or getattr(self, "task_dict", ()))

    def _folder(self) -> Path:
        tasks = _digest_of_tasks(sorted(self._tasks()))[:16]
        return _home() / f"{type(self).__name__}_{_file_name(_name(self, NAMES))}_{tasks}"

    def _folder_of_lmms_eval(self) -> Path:
        """Folder that lmms-eval would use. It names the model by the last part of its name."""
        name = os.path.basename(_name(self, NAMES_OF_LMMS_EVAL))
        return _home() / f"{type(self).__name__}_{name}_{_digest_of_tasks(self._tasks())}"

    def _read(self) -> None:
        """Reads the files of all ranks of any number of ranks; later records win, and ours over those of lmms-eval."""
        for folder in (self._folder_of_lmms_eval(), self._folder()):
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                self._read_file(path, re.sub(r"_rank\d+_world_size\d+$", "", path.stem))

    def _read_file(self, path: Path, task: str) -> None:
        for line in path.read_bytes().splitlines():
            try:
                given = json.loads(line)
                record = {name: given[name] for name in ("doc_id", "response")}
                record |= {name: given.get(name) for name in ("request", "task") if given.get(name) is not None}
            except (ValueError, KeyError, TypeError, AttributeError):
                if line.strip():
                    warnings.warn(f"{path} has a line that is not a record; it is not used", RuntimeWarning, 5)
                continue
            if rejection("generate_until", record["response"]) is None:
                self._keep(_file_name(task), record)

    def _keep(self, task: str, record: dict[str, Any]) -> None:
        place = _document(record["doc_id"]), record.get("request")
        kept = self._kept.setdefault(task, {})
        kept.pop(place, None)  # the later record comes last
        kept.pop((place[0], None), None)  # a record that knows its request replaces one that does not
        kept[place] = record

    def _known(self, request: AnyRequest) -> dict[str, Any] | None:
        """The record of a request, or else one of its document that lmms-eval wrote."""
        kept, document = self._kept.get(_file_name(str(request.task_name)), {}), _document(request.doc_id)
        if not kept or not is_deterministic("generate_until", request.args):
            return None
        theirs = kept.get((document, None)) if request.doc_id is not None else None
        digest = self._digest(request) if theirs is None or len(kept) > 1 else None
        return (kept.get((document, digest)) if digest is not None else None) or theirs

    def _digest(self, request: AnyRequest) -> str | None:
        """Digest of a request; None if its answer must not be kept."""
        keyed = self._digests.key("generate_until", request)
        if keyed.problem and keyed.problem not in self._warned:
            self._warned.add(keyed.problem)
            warnings.warn(f"requests are sent each time, and not kept: {keyed.problem}", RuntimeWarning, 4)
        return keyed.key or None


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


def _document(doc_id: Any) -> str:
    return json.dumps(doc_id, default=repr)


def _file_name(text: str) -> str:
    """Part of a file's name for a name; distinct for distinct names."""
    plain = re.sub(r"[^\w.-]", "_", text)
    return (
        plain if plain == text and len(text) < 100 else f"{plain[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    )


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
