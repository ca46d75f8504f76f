"""Options of `lq eval run`, and the parsing of their values."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.eval_views import RUN_PATH
from lmql_lite.apps.run_command import two_prices
from lmql_lite.apps.terminal import BASE_URL, RUN_MODEL
from lmql_lite.errors import InputError

if TYPE_CHECKING:
    from lmql_lite.data.job import Selection

AT_LEAST_1 = click.IntRange(min=1)
OPTIONS = (
    click.option(
        "-o", "--output", type=RUN_PATH, metavar="FOLDER", help="Folder of the run (default: runs/NAME-MODEL-DIGEST)."
    ),
    RUN_MODEL,
    BASE_URL,
    click.option("--var", "texts", multiple=True, metavar="NAME=TEXT", help="An input that is the same for all rows."),
    click.option(
        "--var-json", "values", multiple=True, metavar="NAME=JSON",
        help="An input that is not text, the same for all rows.",
    ),
    click.option(
        "-m", "--metric", "metrics", multiple=True, metavar="METRIC",
        help="exact, contains, regex:.., f1, choice, json, acc, acc_norm, acc_bytes, perplexity, word_perplexity, "
        "byte_perplexity, pass@K, majority, FILE.py:FUNCTION or FILE.lq.",
    ),
    click.option(
        "--target", default="target", show_default=True, metavar="COLUMN", help="Column with the right answer."
    ),
    click.option("--id-column", default="id", show_default=True, metavar="COLUMN", help="Column with the row's id."),
    click.option(
        "--map", "mapped", multiple=True, metavar="INPUT=COLUMN", help="Read INPUT from a column with another name."
    ),
    click.option("--cluster", metavar="COLUMN", help="For intervals, draw rows with equal values together."),
    click.option("--limit", metavar="N|N%|A:B", help="Only the first N rows, or rows A to B."),
    click.option("--sample", type=AT_LEAST_1, metavar="N", help="N rows, chosen by their ids."),
    click.option(
        "--filter", "filters", multiple=True, metavar="COLUMN=VALUE",
        help="Only rows with this value, such as id=r7; several of one column: any of them.",
    ),
    click.option(
        "-j", "--concurrency", type=AT_LEAST_1, metavar="N",
        help="Number of rows at a time (default: what the model allows).",
    ),
    click.option("--repeat", type=AT_LEAST_1, default=1, metavar="K", help="Run each row K times."),
    click.option(
        "--seed", default="0", show_default=True, metavar="N|random",
        help="Make draws repeatable. random: draw a seed for a new folder, and write it to run.json.",
    ),
    click.option(
        "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
        help="Time limit of a row; a row that takes longer fails.",
    ),
    click.option(
        "--retries", type=click.IntRange(min=0), default=0, metavar="N",
        help="Run a row again, up to N times, if the model or the query's own Python failed.",
    ),
    click.option("--max-tokens", type=AT_LEAST_1, metavar="N", help="Maximum number of tokens of a hole."),
    click.option(
        "--cache", metavar="PLACE",
        help="File (x.tokens) that keeps the model's answers, or a folder (DIR/) with such a file for each machine.",
    ),
    click.option("--cache-mode", type=click.Choice(["rw", "ro", "refresh", "replay", "off"]), help="As in lq run."),
    click.option("--fresh", is_flag=True, help="Start over: set aside the rows that the folder has."),
    click.option(
        "--max-requests", type=click.IntRange(min=0), metavar="N", help="Maximum number of requests of the whole run."
    ),
    click.option(
        "--max-total-tokens", type=click.IntRange(min=0), metavar="N", help="Maximum number of tokens of the whole run."
    ),
    click.option(
        "--max-cost", type=click.FloatRange(min=0), metavar="SUM", help="Maximum cost of the whole run; needs --prices."
    ),
    click.option("--prices", metavar="IN,OUT", callback=two_prices, help="Prices of a million tokens."),
    click.option(
        "--dry-run", is_flag=True,
        help="Run nothing. Show how many rows would be run, and how the holes of the first would be filled.",
    ),
    click.option(
        "--errors", type=click.Choice(["wrong", "skip"]), default="wrong", show_default=True,
        help="Count failed rows as wrong, or leave them out.",
    ),
    click.option(
        "--min", "minimum", multiple=True, metavar="METRIC>=X", help="Exit code 4 if the mean is below X."
    ),
    click.option("--workers", type=AT_LEAST_1, metavar="N", help="Run the rows on N Ray workers (extra [ray])."),
    click.option("--gpus-per-worker", type=click.FloatRange(min=0), default=0, metavar="N", help="GPUs per worker."),
    click.option(
        "--ray-env", multiple=True, metavar="NAME",
        help="Pass this environment variable, such as a key, to the workers.",
    ),
    click.option(
        "--format", "form", type=click.Choice(["table", "json", "events"]), default="table", show_default=True,
        help="events: a line of JSON for each row when it ends.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
)  # fmt: skip


def eval_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Options of `lq eval run` as click reads them."""

    output: Path | None
    model: str | None
    base_url: str | None
    texts: tuple[str, ...]
    values: tuple[str, ...]
    metrics: tuple[str, ...]
    target: str
    id_column: str
    mapped: tuple[str, ...]
    cluster: str | None
    limit: str | None
    sample: int | None
    filters: tuple[str, ...]
    concurrency: int | None
    repeat: int
    seed: str
    timeout: float | None
    retries: int
    max_tokens: int | None
    cache: str | None
    cache_mode: str | None
    fresh: bool
    max_requests: int | None
    max_total_tokens: int | None
    max_cost: float | None
    prices: tuple[float, float] | None
    dry_run: bool
    errors: str
    minimum: tuple[str, ...]
    workers: int | None
    gpus_per_worker: float
    ray_env: tuple[str, ...]
    form: str
    quiet: bool

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
    def cache_folder(self) -> Path | None:
        """The place of --cache where it is a folder."""
        is_folder = self.cache is not None and (self.cache.endswith(("/", os.sep)) or Path(self.cache).is_dir())
        return Path(self.cache) if self.cache is not None and is_folder else None

    @property
    def selection(self) -> Selection:
        """Raises InputError for a limit that is none."""
        from lmql_lite.data.job import Selection

        filters: dict[str, frozenset[str]] = {}
        for name, value in (_pair("--filter", each) for each in self.filters):
            filters[name] = filters.get(name, frozenset()) | {value}
        return Selection(**_limit(self.limit), sample=self.sample, filters=filters)

    def seed_of(self, folder: Path | None) -> int:
        """The seed of the run: `random` is that of the run in `folder`, or a new one. Raises InputError."""
        from lmql_lite.data.folder import RUN, identity_of

        if self.seed != "random":
            if not (self.seed.isascii() and self.seed.isdigit()):
                raise InputError(f"--seed is a whole number or random; this is {self.seed!r}", hint="--seed 1")
            return int(self.seed)
        if folder is not None and (folder / RUN).exists():
            return int(identity_of(folder)["settings"]["seed"])
        return secrets.randbits(53)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option} takes NAME=VALUE; this is {text!r}")
    return name, value


def _limit(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if whole := re.fullmatch(r"(\d+(?:\.\d+)?)%", text):
        return {"percent": float(whole[1])}
    if span := re.fullmatch(r"(\d*):(\d*)", text):
        return {"start": int(span[1] or 0), "stop": int(span[2]) if span[2] else None}
    if text.isdigit():
        return {"stop": int(text)}
    raise InputError(f"--limit is a number of rows, a share or a range; this is {text!r}", hint="100, 10% or 20:40")


def _gate(text: str) -> tuple[str, float]:
    found = re.fullmatch(r"([^>=]+)>=(-?\d+(?:\.\d+)?)", text.replace(" ", ""))
    if found is None:
        raise InputError(f"--min takes METRIC>=X; this is {text!r}", hint="--min 'exact>=0.9'")
    return found[1], float(found[2])
