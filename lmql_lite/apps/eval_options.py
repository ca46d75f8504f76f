"""Options of `lq eval run`, and the parsing of their values."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.eval_views import RUN_PATH
from lmql_lite.apps.run_command import two_prices
from lmql_lite.apps.terminal import BASE_URL, RUN_MODEL
from lmql_lite.errors import InputError

if TYPE_CHECKING:
    from lmql_lite.data.eval_job import Selection

OPTIONS = (
    click.option("--from", "harness", type=click.Choice(["lm-eval"]), help="QUERY is a task of lm-evaluation-harness."),
    click.option(
        "-o", "--output", type=RUN_PATH, metavar="FOLDER", help="Folder of the run (default: runs/NAME-MODEL-DIGEST)."
    ),
    RUN_MODEL,
    BASE_URL,
    click.option("--var", "texts", multiple=True, metavar="NAME=TEXT", help="An input that is the same for all rows."),
    click.option(
        "--var-json",
        "values",
        multiple=True,
        metavar="NAME=JSON",
        help="An input that is not text, the same for all rows.",
    ),
    click.option(
        "-m",
        "--metric",
        "metrics",
        multiple=True,
        metavar="METRIC",
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
    click.option("--sample", type=click.IntRange(min=1), metavar="N", help="N rows, chosen by their ids."),
    click.option("--id", "ids", multiple=True, metavar="ID", help="Only this row."),
    click.option("--filter", "filters", multiple=True, metavar="COLUMN=VALUE", help="Only rows with this value."),
    click.option(
        "--failed", type=RUN_PATH, metavar="RUN", help="Only rows that are wrong in RUN, by its first metric."
    ),
    click.option("--errors-of", type=RUN_PATH, metavar="RUN", help="Only rows that ended with an error in RUN."),
    click.option(
        "-j",
        "--concurrency",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of rows at a time (default: what the model allows).",
    ),
    click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="K", help="Run each row K times."),
    click.option(
        "--seed",
        default="0",
        show_default=True,
        metavar="N|random",
        help="Make draws repeatable. random: draw a seed for a new folder, and write it to run.json.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Time limit of a row; a row that takes longer fails.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Run a row again, up to N times, if the model or the query's own Python failed.",
    ),
    click.option(
        "--log-samples",
        type=click.Choice(["short", "all"]),
        default="short",
        show_default=True,
        help="all: write long prompts to rows.jsonl unabridged.",
    ),
    click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Maximum number of tokens of a hole."),
    click.option("--cache", metavar="FILE", help="File (x.tokens) that keeps the model's answers."),
    click.option(
        "--use-cache",
        "--use_cache",
        "cache_folder",
        type=RUN_PATH,
        metavar="DIR",
        help="Folder with one such file per machine, which the Ray workers of a machine share.",
    ),
    click.option("--cache-mode", type=click.Choice(["rw", "ro", "refresh", "replay", "off"]), help="As in lq run."),
    click.option("--no-cache", "cache_mode", flag_value="off", help="The same as --cache-mode off."),
    click.option("--refresh", "cache_mode", flag_value="refresh", help="The same as --cache-mode refresh."),
    click.option(
        "--reuse-rows",
        "reuse",
        multiple=True,
        type=RUN_PATH,
        metavar="RUN",
        help="Use rows with the same key from another run.",
    ),
    click.option("--rescore", is_flag=True, help="Score all records again, without asking the model."),
    click.option("--resume", type=RUN_PATH, metavar="RUN", help="The same as -o RUN, for a folder that is a run."),
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
    click.option(
        "--dry-run",
        is_flag=True,
        help="Run nothing. Show how many rows would be run, and how their holes would be filled.",
    ),
    click.option("--prices", metavar="IN,OUT", callback=two_prices, help="Prices of a million tokens."),
    click.option(
        "--errors",
        type=click.Choice(["wrong", "skip"]),
        default="wrong",
        show_default=True,
        help="Count failed rows as wrong, or leave them out.",
    ),
    click.option(
        "--max-errors",
        type=click.IntRange(min=0),
        metavar="N",
        help="Exit code 8 if more than N rows failed (default: all).",
    ),
    click.option("--min", "minimum", multiple=True, metavar="METRIC>=X", help="Exit code 4 if the mean is below X."),
    click.option("--baseline", type=RUN_PATH, metavar="RUN", help="Compare with another run."),
    click.option("--no-worse", type=float, metavar="X", help="Exit code 4 if the baseline is better by more than X."),
    click.option(
        "--junit", type=RUN_PATH, metavar="FILE", help="Write a report as JUnit XML, with a test case per row."
    ),
    click.option("--engine", type=click.Choice(["ray"]), help="Run the rows on Ray workers; needs the extra [ray]."),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Number of Ray workers.",
    ),
    click.option(
        "--ray-address", metavar="ADDRESS", help="Address of a Ray cluster. Default: start one on this machine."
    ),
    click.option("--gpus-per-worker", type=click.FloatRange(min=0), default=0, metavar="N", help="GPUs per worker."),
    click.option(
        "--ray-env",
        multiple=True,
        metavar="NAME",
        help="Pass this environment variable, such as a key, to the workers.",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(["table", "json", "events"]),
        default="table",
        show_default=True,
        help="events: a line of JSON for each row when it ends.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress."),
)


def eval_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{option} takes NAME=VALUE; this is {text!r}")
    return name, value


def selection(flags: Mapping[str, Any]) -> Selection:
    from lmql_lite.data.eval_job import Selection
    from lmql_lite.data.eval_report import is_wrong, last_attempts

    limit: dict[str, Any] = {}
    if (text := flags["limit"]) is not None:
        if whole := re.fullmatch(r"(\d+(?:\.\d+)?)%", text):
            limit = {"percent": float(whole[1])}
        elif span := re.fullmatch(r"(\d*):(\d*)", text):
            limit = {"start": int(span[1] or 0), "stop": int(span[2]) if span[2] else None}
        elif text.isdigit():
            limit = {"stop": int(text)}
        else:
            raise InputError(
                f"--limit is a number of rows, a share or a range; this is {text!r}", hint="100, 10% or 20:40"
            )
    ids = set(flags["ids"])
    for run, wants_errors in ((flags["failed"], False), (flags["errors_of"], True)):
        if run is not None:
            ids |= {
                name for (name, _), record in last_attempts(run).items() if is_wrong(record, only_errors=wants_errors)
            }
            if not ids:
                raise InputError(f"{run} has no such rows")
    filters = tuple(pair("--filter", each) for each in flags["filters"])
    return Selection(**limit, sample=flags["sample"], ids=frozenset(ids), filters=filters)


def gate(text: str) -> tuple[str, float]:
    found = re.fullmatch(r"([^>=]+)>=(-?\d+(?:\.\d+)?)", text.replace(" ", ""))
    if found is None:
        raise InputError(f"--min takes METRIC>=X; this is {text!r}", hint="--min 'exact>=0.9'")
    return found[1], float(found[2])


def seed_of(given: str, folder: Path | None) -> int:
    """The seed of a run: `random` is that of the run in `folder`, or a new one. Raises InputError."""
    from lmql_lite.data.run_folder import RUN, identity_of

    if given != "random":
        if not (given.isascii() and given.isdigit()):
            raise InputError(f"--seed is a whole number or random; this is {given!r}", hint="--seed 1")
        return int(given)
    if folder is not None and (folder / RUN).exists():
        return int(identity_of(folder)["settings"]["seed"])
    return secrets.randbits(53)


def cache_of(file: str | None, folder: Path | None) -> str | None:
    """File of --cache, or that of this machine in the folder of --use-cache. Raises InputError."""
    from lmql_lite.data.eval_job import machine_cache

    if folder is None:
        return file
    if file is not None:
        raise InputError("--cache and --use-cache name two places for the same cache", hint="leave one of them out")
    return machine_cache(folder)
