"""Job of a data-set run: the query, the selected rows, how they are scored, and its identity, which is everything that
its answers depend on except the rows. Settings that only change its cost are left out: cache, prices, limits,
concurrency."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, cast

from lmql_lite.api import Query, RunOptions
from lmql_lite.cache.tokens.trees import TokenCache
from lmql_lite.data.equality import is_blank
from lmql_lite.data.metrics import Metric
from lmql_lite.data.rows import FileRow, is_table, read_rows
from lmql_lite.decorators import QueryFunction
from lmql_lite.engine.blocking import blocking
from lmql_lite.engine.plan import Plan
from lmql_lite.engine.rows import constant_model
from lmql_lite.engine.session import Session
from lmql_lite.engine.settings import checked
from lmql_lite.errors import InputError, ModelError, did_you_mean
from lmql_lite.models.base import Completer, Model

AnyQuery = Query | QueryFunction[Any, Any, Any]
Identity = dict[str, Any]
"""`query` (digest), `model` (name, or address and name), `fingerprint`, `data` (name) and `settings`."""
KEY_VERSION = 1
TREE_BYTES = 48 * 2**20
SHORT_KEY = 16
"""Digits of an attempt's key by which a run knows it."""
_WORDS = {"fingerprint": "version of the model"}
"""Names of an identity's fields in a sentence, where they differ from the field's own."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected rows: the first `limit` of those that have one of the values for each column of `filters`. The report of
    a run covers these only."""

    limit: int | None = None
    filters: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def rows(self, source: Iterator[FileRow]) -> Iterator[FileRow]:
        """Raises InputError for a column or value that no row has, in the rows up to the limit."""
        columns: dict[str, None] = {"id": None}
        missing = {(name, value) for name, values in self.filters.items() for value in values}
        count = 0
        for row in source:
            columns.update(dict.fromkeys(row.values))
            own = {(name, str(row.values.get(name, row.id if name == "id" else None))) for name in self.filters}
            missing -= own
            if all(value in self.filters[name] for name, value in own):
                if count == self.limit:
                    return
                count += 1
                yield row
        for name, value in sorted(missing):
            if name not in columns:
                raise InputError(f"no row has a column {name!r}", hint=did_you_mean(name, columns))
            raise InputError(f"no row has the {name} {value!r}")


@dataclass(frozen=True, slots=True)
class Scoring:
    """Everything but the records that a report is made from. The folder of a run keeps it, so that a run can be looked
    at while it is going on and after it has died. `attempts` is the number that is asked for, None if it is not known.
    """

    metrics: tuple[str, ...]
    cluster: str | None = None
    attempts: int | None = None


@dataclass(frozen=True)
class EvalJob:
    """A run over a data set. `options` apply to the run of each row; a folder must have the same `identity`."""

    query: AnyQuery
    data: Path
    options: RunOptions
    identity: Mapping[str, Any]
    metrics: tuple[Metric, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    id_column: str = "id"
    target: str = "target"
    cluster: str | None = None
    selection: Selection = field(default_factory=Selection)
    seed: int = 0
    repeat: int = 1
    concurrency: int | None = None
    timeout: float | None = None
    """Most seconds of a row."""
    budget: Mapping[str, float] = field(default_factory=dict)
    """Most requests, total_tokens and cost of the whole run."""

    @cached_property
    def scoring(self) -> Scoring:
        """Scoring of the report. Raises InputError for data that cannot be run over."""
        self.check()
        attempts = sum(1 for _ in self.rows()) * self.repeat
        return Scoring(tuple(metric.name for metric in self.metrics), self.cluster, attempts)

    @property
    def scored(self) -> list[str]:
        """Metrics of this job with their versions."""
        return [f"{metric.name}@{metric.version}" for metric in self.metrics]

    @property
    def returns(self) -> bool:
        """True if the query has a `return` with a value."""
        return self.query.returns if isinstance(self.query, Query) else self.query.program.returns

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        if isinstance(self.query, Query):
            return (*self.query.inputs, *sorted(self.query.program.builtins))
        return tuple(self.query.__signature__.parameters)

    def rows(self) -> Iterator[FileRow]:
        """The selected rows, in the order of the data."""
        return self.selection.rows(read_rows(self.data, self.id_column))

    def inputs_of(self, row: FileRow) -> dict[str, Any]:
        """Inputs of the query: variables, and columns of the row; `columns` maps inputs to columns of other names."""
        found = dict(self.variables)
        for name in self.inputs:
            column = self.columns.get(name, name)
            if column in row.values:
                found[name] = row.values[column]
        return found

    def plan(self, row: FileRow, limits: Mapping[str, Any]) -> Plan:
        """Plan of a row's run within limits of the whole run."""
        inputs, options = self.inputs_of(row), cast("Any", {**self.options, **limits})
        query = self.query
        return query.plan(inputs, **options) if isinstance(query, Query) else query.plan(**inputs, **options)

    def target_of(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The target of a row by its name; nothing for a row without one. A blank cell of a CSV file is none."""
        if self.target not in columns or (is_table(self.data) and is_blank(columns[self.target])):
            return {}
        return {"target": columns[self.target]}

    def key(self, row: FileRow, repeat: int) -> str:
        """Key of an attempt: all that its answer depends on."""
        own = json.dumps([row.id, repeat, self.inputs_of(row)], sort_keys=True, default=str)
        return sha256((self._identity_text + own).encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def _identity_text(self) -> str:
        return json.dumps([KEY_VERSION, {**self.identity, "data": None}], sort_keys=True, default=str)

    def check(self) -> None:
        """Raises InputError where the data has no column that the query reads, or that is asked for."""
        first = next(read_rows(self.data, self.id_column), None)
        if first is None:
            raise InputError(f"{self.data} has no rows")
        if first.problem:
            return
        wanted = [self.columns.get(name, name) for name in _required(self.query) if name not in self.variables]
        wanted += [*self.columns.values(), *([self.cluster] if self.cluster else [])]
        if any(metric.needs_target for metric in self.metrics):
            wanted.append(self.target)
        for name in wanted:
            if name not in first.values:
                meant = did_you_mean(name, first.values) or f"the columns are {', '.join(map(str, first.values))}"
                raise InputError(f"{self.data} has no column {name!r}", hint=meant)


def _required(query: AnyQuery) -> list[str]:
    if isinstance(query, Query):
        return [wanted.name for wanted in query.program.inputs if wanted.form == "value"]
    parameters = query.__signature__.parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in (2, 4)]


# Identity ------------------------------------------------------------------------------------------------------------


def run_identity(
    query: Any, source: str, model: str | Model | None, session: Session, data: Path, settings: Mapping[str, Any]
) -> Identity:
    """Identity of a run. `source` is the query's text; `model` overrules the query's own. Raises ModelError."""
    given = query.options.get("model") if model is None and isinstance(query, QueryFunction) else model
    found = constant_model(given, query.program, session)
    return {
        "query": text_digest(source),
        "model": "of the query" if found is None else found.place if isinstance(found, Completer) else found.name,
        "fingerprint": None if found is None else fingerprint_of(found, session),
        "data": data.name,
        "settings": dict(settings),
    }


def fingerprint_of(model: Model, session: Session) -> str | None:
    """Digest of weights and tokenizer, or of what a server reports; None where that would cost a request, and where
    the server does not answer."""
    if not isinstance(model, Completer):
        return model.fingerprint
    try:
        found = blocking(session.capabilities(model, checked({})))
    except ModelError:  # scores and reports of finished rows need no server; rows that are missing say what is wrong
        return None
    return None if found is None or found.probe_costs else found.fingerprint


def continued(identity: Identity, there: Mapping[str, Any], folder: Path) -> Identity:
    """Identity of a run that goes on with a folder. An unknown fingerprint counts as the folder's.

    Raises InputError where the folder is that of another run.
    """
    if identity["fingerprint"] is None:
        identity = identity | {"fingerprint": there.get("fingerprint")}
    differences = [name for name in identity if there.get(name) != identity[name]]
    if differences:
        first = differences[0]
        raise InputError(
            f"{folder} is a run with another {', '.join(_WORDS.get(name, name) for name in differences)}: "
            f"{first} is {there.get(first)!r} there, {identity[first]!r} here",
            hint="name another folder with -o, or begin this one anew with --fresh",
        )
    return identity


def default_folder(query: str, identity: Identity) -> Path:
    """Folder of a run that names none. The same command has the same one, whatever became of its model."""
    stem = Path(query).stem if query.endswith((".lq", ".lmql")) else query.replace(":", ".")
    name = re.sub(r"[^\w.-]+", "-", f"{stem}-{identity['model']}").strip("-")[:80]
    own = {field: value for field, value in identity.items() if field != "fingerprint"}
    return Path("runs") / f"{name}-{text_digest(json.dumps(own, sort_keys=True, default=str))[:6]}"


def text_digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


# Caches --------------------------------------------------------------------------------------------------------------


def eval_cache(file: str | None = None) -> TokenCache:
    """Cache of a data-set run. Its rows ask different questions, so that memory holds what rows under way and shared
    beginnings need, and little more."""
    return TokenCache(file, max_bytes=TREE_BYTES)
