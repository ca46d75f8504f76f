"""Options of `lq eval run`: each is a field, with its flag and its help."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.eval_views import RUN_PATH
from lmql_lite.apps.run_command import two_prices
from lmql_lite.apps.terminal import BASE_URL_HELP, JSON_HELP, MODEL_HELP
from lmql_lite.errors import InputError

if TYPE_CHECKING:
    from lmql_lite.data.job import Selection

AT_LEAST_0, AT_LEAST_1 = click.IntRange(min=0), click.IntRange(min=1)


def _option(*flags: str, **settings: Any) -> Any:
    """A field that `eval_options` makes an option of."""
    return field(metadata={"flags": flags, "settings": settings})


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Options of `lq eval run` as click reads them."""

    output: Path | None = _option(  # noqa: RUF009  a field
        "-o", "--output", type=RUN_PATH, metavar="FOLDER", help="Folder of the run (default: runs/NAME-MODEL-DIGEST)."
    )
    model: str | None = _option("--model", metavar="ID", help=MODEL_HELP)
    base_url: str | None = _option("--base-url", metavar="URL", help=BASE_URL_HELP)
    texts: tuple[str, ...] = _option(
        "--var", multiple=True, metavar="NAME=TEXT", help="An input that is the same for all rows."
    )
    values: tuple[str, ...] = _option(
        "--var-json", multiple=True, metavar="NAME=JSON", help="An input that is not text, the same for all rows."
    )
    metrics: tuple[str, ...] = _option(
        "-m", "--metric", multiple=True, metavar="METRIC",
        help="exact, contains, regex, regex:PATTERN, f1, choice, json, acc, acc_norm, FILE.py:FUNCTION or FILE.lq.",
    )  # fmt: skip
    target: str = _option(
        "--target", default="target", show_default=True, metavar="COLUMN", help="Column with the right answer."
    )
    id_column: str = _option(
        "--id-column", default="id", show_default=True, metavar="COLUMN", help="Column with the row's id."
    )
    mapped: tuple[str, ...] = _option(
        "--map", multiple=True, metavar="INPUT=COLUMN", help="Read INPUT from a column with another name."
    )
    cluster: str | None = _option(
        "--cluster", metavar="COLUMN", help="For intervals, draw rows with equal values together."
    )
    limit: int | None = _option("--limit", type=AT_LEAST_1, metavar="N", help="Only the first N rows.")
    filters: tuple[str, ...] = _option(
        "--filter", multiple=True, metavar="COLUMN=VALUE",
        help="Only rows with this value, such as id=r7; several of one column: any of them.",
    )  # fmt: skip
    concurrency: int | None = _option(
        "-j", "--concurrency", type=AT_LEAST_1, metavar="N",
        help="Number of rows at a time (default: what the model allows).",
    )  # fmt: skip
    repeat: int = _option("--repeat", type=AT_LEAST_1, default=1, metavar="K", help="Run each row K times.")
    seed: int = _option(
        "--seed", type=AT_LEAST_0, default=0, show_default=True, metavar="N", help="Makes draws repeatable."
    )
    timeout: float | None = _option(
        "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
        help="Time limit of a row; a row that takes longer fails.",
    )  # fmt: skip
    max_tokens: int | None = _option(
        "--max-tokens", type=AT_LEAST_1, metavar="N", help="Maximum number of tokens of a hole."
    )
    cache: str | None = _option("--cache", metavar="FILE", help="File (x.tokens) that keeps the model's answers.")
    cache_mode: str | None = _option(
        "--cache-mode", type=click.Choice(["rw", "ro", "refresh", "replay", "off"]), help="As in lq run."
    )
    fresh: bool = _option("--fresh", is_flag=True, help="Start over: set aside the rows that the folder has.")
    max_requests: int | None = _option(
        "--max-requests", type=AT_LEAST_0, metavar="N", help="Maximum number of requests of the whole run."
    )
    max_total_tokens: int | None = _option(
        "--max-total-tokens", type=AT_LEAST_0, metavar="N", help="Maximum number of tokens of the whole run."
    )
    max_cost: float | None = _option(
        "--max-cost", type=click.FloatRange(min=0), metavar="SUM",
        help="Maximum cost of the whole run; needs --prices.",
    )  # fmt: skip
    prices: tuple[float, ...] | None = _option(
        "--prices", metavar="IN,OUT", callback=two_prices, help="Prices of a million tokens."
    )
    dry_run: bool = _option(
        "--dry-run", is_flag=True,
        help="Run nothing. Show how many rows would be run, and how the holes of the first would be filled.",
    )  # fmt: skip
    minimum: tuple[str, ...] = _option(
        "--min", multiple=True, metavar="METRIC>=X", help="Exit code 4 if the mean is below X."
    )
    workers: int | None = _option(
        "--workers", type=AT_LEAST_1, metavar="N", help="Run the rows on N Ray workers (extra [ray])."
    )
    gpus_per_worker: float = _option(
        "--gpus-per-worker", type=click.FloatRange(min=0), default=0, metavar="N", help="GPUs per worker."
    )
    as_json: bool = _option("--json", is_flag=True, help=JSON_HELP)

    @property
    def columns(self) -> dict[str, str]:
        """Columns of inputs that have other names."""
        return dict(_pair("--map", each) for each in self.mapped)

    @property
    def gates(self) -> list[tuple[str, float]]:
        return [_gate(each) for each in self.minimum]

    @property
    def budget(self) -> dict[str, float]:
        """Limits of the whole run. Raises InputError for a cost without prices."""
        limits: Mapping[str, float | None] = {
            "requests": self.max_requests, "total_tokens": self.max_total_tokens, "cost": self.max_cost
        }  # fmt: skip
        if self.max_cost is not None and self.prices is None:
            hint = "--prices 0.15,0.60"
            raise InputError("--max-cost needs --prices, because servers do not report them", hint=hint)
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def selection(self) -> Selection:
        from lmql_lite.data.job import Selection

        filters: dict[str, frozenset[str]] = {}
        for name, value in (_pair("--filter", each) for each in self.filters):
            filters[name] = filters.get(name, frozenset()) | {value}
        return Selection(self.limit, filters)


def eval_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options."""
    for each in reversed(fields(EvalOptions)):
        command = click.option(*each.metadata["flags"], each.name, **each.metadata["settings"])(command)
    return command


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option} takes NAME=VALUE; this is {text!r}")
    return name, value


def _gate(text: str) -> tuple[str, float]:
    found = re.fullmatch(r"([^>=]+)>=(-?\d+(?:\.\d+)?)", text.replace(" ", ""))
    if found is None:
        raise InputError(f"--min takes METRIC>=X; this is {text!r}", hint="--min 'exact>=0.9'")
    return found[1], float(found[2])
