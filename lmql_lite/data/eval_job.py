"""Job of a data-set run: the query, the selected rows, and the parts of an attempt's key."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from lmql_lite.api import Query, RunOptions
from lmql_lite.cache.token_cache import TokenCache
from lmql_lite.data.data_file import FileRow, is_table, read_rows
from lmql_lite.data.equality import is_blank
from lmql_lite.data.metrics import Metric
from lmql_lite.data.outcomes import Scoring
from lmql_lite.decorators import QueryFunction
from lmql_lite.errors import InputError, did_you_mean

AnyQuery = Query | QueryFunction[Any, Any, Any]
KEY_VERSION = 1
TREE_BYTES = 48 * 2**20


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected rows. The report of a run covers these only. `percent` is a share of all rows."""

    start: int = 0
    stop: int | None = None
    percent: float | None = None
    sample: int | None = None
    ids: frozenset[str] = frozenset()
    filters: tuple[tuple[str, str], ...] = ()

    def rows(self, source: Iterable[FileRow]) -> list[int] | None:
        """Numbers of the rows that are chosen; None for all. Raises InputError for a column or id that is not there."""
        if self == Selection():
            return None
        chosen: list[tuple[int, str]] = []
        columns = dict[str, None]()
        for number, row in enumerate(source):
            columns.update(dict.fromkeys(row.values))
            matches = all(str(row.values.get(name)) == value for name, value in self.filters)
            if matches and (not self.ids or row.id in self.ids):
                chosen.append((number, row.id))
        for name, _ in self.filters:
            if name not in columns:
                raise InputError(f"no row has a column {name!r}", hint=did_you_mean(name, columns))
        if unknown := self.ids - {name for _, name in chosen}:
            raise InputError(f"no row has the id {sorted(unknown)[0]!r}")
        stop = self.stop if self.percent is None else round(len(chosen) * self.percent / 100)
        chosen = chosen[self.start : stop]
        if self.sample is not None:  # by the digest of the id: another row in the data changes few of them
            chosen = sorted(chosen, key=lambda each: sha256(each[1].encode()).digest())[: self.sample]
        return sorted(number for number, _ in chosen)


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
    """Most seconds of one try of a row."""
    retries: int = 0
    """Most tries of a row that fails, the first one apart."""
    keeps_prompts: bool = False
    """Records have the program's own text unabridged."""
    rescore: bool = False
    budget: Mapping[str, float] = field(default_factory=dict)
    """Most requests, total_tokens and cost of the whole run."""
    prepare: Callable[[FileRow], FileRow] = lambda row: row
    """Adds columns to a row."""

    @property
    def scoring(self) -> Scoring:
        names = tuple(metric.name for metric in self.metrics)
        logs = tuple(metric.name for metric in self.metrics if metric.is_log)
        return Scoring(names, logs, self.cluster, self.repeat)

    @property
    def returns(self) -> bool:
        """True if the query has a `return` with a value."""
        return self.query.returns if isinstance(self.query, Query) else self.query.program.returns

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        if isinstance(self.query, Query):
            return (*self.query.inputs, *sorted(self.query.program.builtins))
        return tuple(self.query.__signature__.parameters)

    def rows(self, *, is_checked: bool = False) -> Iterator[FileRow]:
        """Rows of the data, with the columns that are prepared; `is_checked` as in `read_rows`."""
        return map(self.prepare, read_rows(self.data, self.id_column, is_checked=is_checked))

    def inputs_of(self, row: FileRow) -> dict[str, Any]:
        """Inputs of the query: variables, and columns of the row; `columns` maps inputs to columns of other names."""
        found = dict(self.variables)
        for name in self.inputs:
            column = self.columns.get(name, name)
            if column in row.values:
                found[name] = row.values[column]
        return found

    def target_of(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The target of a row by its name; nothing for a row without one. A blank cell of a CSV file is none."""
        if self.target not in columns or (is_table(self.data) and is_blank(columns[self.target])):
            return {}
        return {"target": columns[self.target]}

    def key(self, name: str, repeat: int, inputs: Mapping[str, Any]) -> str:
        """Key of an attempt: all that its answer depends on."""
        own = json.dumps([name, repeat, inputs], sort_keys=True, default=str)
        return sha256((self._identity_text + own).encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def _identity_text(self) -> str:
        return json.dumps([KEY_VERSION, {**self.identity, "data": None}], sort_keys=True, default=str)

    @cached_property
    def attempts(self) -> int:
        """Number of attempts that are asked for. Raises InputError for data that cannot be run over."""
        self.check()
        chosen = self.selection.rows(self.rows())
        rows = sum(1 for _ in self.rows()) if chosen is None else len(chosen)
        return rows * self.repeat

    def check(self) -> None:
        """Raises InputError where the data has no column that the query reads, or that is asked for."""
        first = next(self.rows(), None)
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


def eval_cache(file: str | None = None) -> TokenCache:
    """Cache of a data-set run. Its rows ask different questions, so that memory holds what rows under way and shared
    beginnings need, and little more."""
    return TokenCache(file, max_bytes=TREE_BYTES)


def machine_cache(folder: Path) -> str:
    """File of this machine in a folder of caches. Raises InputError where the folder cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"the cache folder {folder} cannot be made: {error.strerror}") from None
    return str(folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', socket.gethostname())}.tokens")
