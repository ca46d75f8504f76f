"""Cases of a query: inputs and expectations, in a TOML file beside the query.

# choose.cases.toml
[[case]]
name = "rain"
inputs = { weather = "rainy" }
returns = "umbrella"
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmql_lite.errors import InputError, did_you_mean
from lmql_lite.options import OPTIONS

SUFFIX = ".cases.toml"
OF_A_FILE = ("query", "model", "options", "case")
OF_A_CASE = (
    "name", "inputs", "options", "returns", "holes", "assert", "distribution", "seeds", "pass_rate"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """Runs of a query with the same inputs, one per seed, and their expectations.

    `expected` has the return value, if one is named, as `returns`; `holes` has values of holes; `conditions` are Python
    expressions; `distribution` has the lowest and highest probabilities of options for each hole. The case passes if at
    least the share `pass_rate` of its runs passes.
    """

    name: str
    line: int
    inputs: Mapping[str, Any]
    options: Mapping[str, Any]
    expected: Mapping[str, Any]
    holes: Mapping[str, Any]
    conditions: tuple[str, ...]
    distribution: Mapping[str, Mapping[str, tuple[float, float]]]
    seeds: tuple[int | None, ...]
    pass_rate: float


@dataclass(frozen=True, slots=True)
class CaseFile:
    """Cases of one query. `model` is the one that the file names."""

    path: Path
    query: Path
    model: str | None
    cases: tuple[Case, ...]

    @property
    def recording(self) -> Path:
        """File with what the model answered to the cases."""
        return self.path.with_name(f"{self.path.name.removesuffix(SUFFIX)}.cases.tokens")


def case_files(place: Path) -> Iterator[Path]:
    """Case files that a name stands for: itself, that of a query, or all below a folder. Raises InputError."""
    if place.is_dir():
        found = sorted(
            path
            for path in place.rglob(f"*{SUFFIX}")
            if not any(part[0] == "." for part in path.relative_to(place).parts)
        )
        if not found:
            raise InputError(f"{place} has no cases", hint=f"cases of choose.lq are in choose{SUFFIX}, beside it")
        yield from found
    elif place.suffix in (".lq", ".lmql"):
        path = place.with_name(place.stem + SUFFIX)
        if not path.exists():
            raise InputError(f"{place} has no cases: there is no file {path}", hint="docs/testing.md shows one")
        yield path
    elif place.name.endswith(SUFFIX):
        yield place
    else:
        raise InputError(f"{place} is not a query, a folder or a file that ends in {SUFFIX}")


def read_cases(path: Path) -> CaseFile:
    """The cases of a file. Raises InputError, with the line of the case, for what is not a case."""
    try:
        text = path.read_text("utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            f"{path} is not TOML: {error}", hint="texts stand in quotes, and a table on one line"
        ) from None
    place = str(path)
    _known(table, OF_A_FILE, place)
    query = path.with_name(_text(table, "query", place) or path.name.removesuffix(SUFFIX) + ".lq")
    if not query.is_file():
        raise InputError(
            f"{path} has cases of {query}, which does not exist", hint='query = "FILE.lq" names another one'
        )
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*case\s*\]\]", line)]
    tables, shared = table.get("case"), _table(table, "options", place)
    if not isinstance(tables, list) or not tables or len(lines) != len(tables):
        raise InputError(f"{path} has no cases", hint="each begins with a line [[case]]")
    cases = tuple(
        _case(each, number, line, shared, f"{path}:{line}")
        for number, (each, line) in enumerate(zip(tables, lines, strict=True), 1)
    )
    names = [case.name for case in cases]
    if twice := [case for at, case in enumerate(cases) if case.name in names[:at]]:
        raise InputError(f"{path}:{twice[0].line}: a second case is called {twice[0].name!r}")
    return CaseFile(path, query, _text(table, "model", place), cases)


def _case(table: dict[str, Any], number: int, line: int, shared: dict[str, Any], place: str) -> Case:
    _known(table, OF_A_CASE, place)
    options = shared | _table(table, "options", place)
    for name in options:
        if name not in OPTIONS or name in ("cache", "cache_mode", "model", "session", "trace"):
            hint = did_you_mean(name, OPTIONS)
            raise InputError(f"{place}: options has no {name!r}", hint=hint)
    conditions = table.get("assert", [])
    conditions = [conditions] if isinstance(conditions, str) else conditions
    for condition in conditions:
        try:
            ast.parse(condition, mode="eval")
        except (SyntaxError, TypeError, ValueError) as error:
            raise InputError(
                f"{place}: assert has {condition!r}, which is not an expression of Python ({error})",
                hint='such as assert = ["len(ANSWER) < 5"]',
            ) from None
    seeds, rate = table.get("seeds"), table.get("pass_rate", 1.0)
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        seeds = list(range(seeds))
    if seeds is not None and not (isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)):
        raise InputError(f"{place}: seeds is a number of them, or a list; this is {seeds!r}", hint="seeds = 20")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise InputError(f"{place}: pass_rate is a share above 0 and at most 1; this is {rate!r}")
    if rate < 1 and seeds is None:
        raise InputError(f"{place}: pass_rate is a share of seeds, and there is one run", hint="add seeds = 20")
    return Case(
        name=_text(table, "name", place) or f"case {number}",
        line=line,
        inputs=_table(table, "inputs", place),
        options=options,
        expected={"returns": table["returns"]} if "returns" in table else {},
        holes=_table(table, "holes", place),
        conditions=tuple(conditions),
        distribution={hole: _bounds(hole, each, place) for hole, each in _table(table, "distribution", place).items()},
        seeds=(options.get("seed"),) if seeds is None else tuple(seeds),
        pass_rate=float(rate),
    )


def _bounds(hole: str, options: Any, place: str) -> dict[str, tuple[float, float]]:
    found = {}
    for option, bound in options.items() if isinstance(options, dict) else [("", None)]:
        bounds: list[Any] = bound if isinstance(bound, list) else [bound, 1.0]
        if len(bounds) != 2 or not all(isinstance(each, int | float) and 0 <= each <= 1 for each in bounds):
            raise InputError(
                f"{place}: distribution.{hole} gives the lowest probability of each option, or the lowest and "
                "the highest",
                hint=f'distribution.{hole} = {{ " yes" = 0.6, " no" = [0, 0.4] }}',
            )
        found[option] = (float(bounds[0]), float(bounds[1]))
    return found


def _known(table: Mapping[str, Any], names: tuple[str, ...], place: str) -> None:
    for name in table:
        if name not in names:
            raise InputError(
                f"{place}: {name!r} is not known", hint=did_you_mean(name, names) or f"known: {', '.join(names)}"
            )


def _table(table: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise InputError(f"{place}: {name} is a table; this is {found!r}", hint=f'{name} = {{ NAME = "value" }}')
    return found


def _text(table: Mapping[str, Any], name: str, place: str) -> str | None:
    found = table.get(name)
    if found is not None and not isinstance(found, str):
        raise InputError(f"{place}: {name} is a text; this is {found!r}")
    return found
