"""`lq eval`: runs of a query on a data set, and their reports."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite import __version__
from lmql_lite.apps.eval_options import cache_of, eval_options, gate, pair, seed_of, selection
from lmql_lite.apps.eval_results import compare_runs, export, merge, show
from lmql_lite.apps.eval_views import (
    NOT_REACHED,
    RUN_PATH,
    Progress,
    RowEvents,
    comparison_lines,
    is_worse,
    report_lines,
    row_cases,
    row_events,
)
from lmql_lite.apps.junit import write_junit
from lmql_lite.apps.terminal import (
    INTERRUPTED,
    counted,
    find_modules_beside,
    load,
    model_named,
    note,
    read_inputs,
    reporting,
    write,
    write_error,
    write_object,
)
from lmql_lite.errors import InputError

if TYPE_CHECKING:
    from lmql_lite.data.eval_job import EvalJob
    from lmql_lite.data.evaluation import Engine, Tally
    from lmql_lite.data.harness_task import HarnessTask
    from lmql_lite.data.metrics import Metric
    from lmql_lite.data.outcomes import Scoring

SOME_FAILED = 8


class EvalCommands(click.Group):
    """Group of commands. If the first argument is a query, the command is `lq eval run`."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        if arguments and arguments[0] not in (*self.commands, "-h", "--help"):
            arguments = ["run", *arguments]
        return super().parse_args(context, arguments)


@click.group("eval", cls=EvalCommands, short_help="Run a query on a data set, score the answers, compare runs.")
def eval() -> None:
    """lq eval QUERY DATA [-o FOLDER] runs a query on each row of a data set and scores the answers.

    Run the same command again to continue an unfinished run. `lq eval run --help` has all options.
    """


@eval.command("run")
@click.argument("query", metavar="QUERY")
@click.argument("data", metavar="[DATA]", type=RUN_PATH, required=False)
@eval_options
def run_eval(
    query: str, data: Path | None, harness: str | None, output: Path | None, model: str | None, base_url: str | None,
    metrics: tuple[str, ...], baseline: Path | None, no_worse: float | None, minimum: tuple[str, ...], form: str,
    quiet: bool, fresh: bool, reuse: tuple[Path, ...], errors: str, max_errors: int | None, resume: Path | None,
    dry_run: bool, junit: Path | None, **flags: Any,
) -> None:  # fmt: skip
    """Run QUERY (a .lq file, or module:function of an @query function) on the rows of DATA.

    With --from lm-eval, QUERY is the YAML file of a multiple_choice or generate_until task, which names its data.

    DATA is a .jsonl, .json, .csv or .tsv file, or with the extra [data] .parquet, .arrow or a saved datasets folder.
    Columns are inputs of the same name. Running the same command again continues a run; a finished run asks no model. A
    row that fails counts as wrong, and is run again next time.
    """
    from lmql_lite.data.eval_report import compare, report_of
    from lmql_lite.data.repeats import check_tries, is_of_tries
    from lmql_lite.data.run_folder import FINISHED, REPORT, identity_of
    from lmql_lite.data.run_identity import default_folder
    from lmql_lite.store.atomic_file import replace_file

    as_json = form == "json"
    with _interruptible(), reporting(as_json), row_events(form == "events") as events:
        if dry_run and events is not None:
            raise InputError("--format events cannot be combined with --dry-run", hint="--format json")
        if resume is not None:
            identity_of(resume)
            output = resume
        for other in (*reuse, *([baseline] if baseline is not None else [])):
            if other.is_dir() or not other.exists():  # a log alone has rows, too
                identity_of(other)
        gates = [gate(each) for each in minimum]
        task = _task(query) if harness is not None else None
        of_tries = [each for each in metrics if is_of_tries(each)]
        scores = [each for each in metrics if each not in of_tries] or [*(task.metrics if task else ())]
        if (data := data or (task.data if task else None)) is None:
            raise InputError("there is no data to run the query over", hint="lq eval QUERY DATA")
        flags["seed"] = seed_of(flags["seed"], None if fresh else output)
        job = _job(query, data, model, base_url, scores, flags, task)
        check_tries(of_tries, job.repeat, has_metric=bool(job.metrics))
        engine = _engine(query, job, model, base_url, flags)
        path = output or default_folder(query, dict(job.identity))
        if dry_run:
            _show_plan(job, path, reuse, fresh, as_json)
            return
        if fresh and path.exists():
            path.rename(path.with_name(f"{path.name}-{int(time.time())}"))
        shown = events or Progress(not quiet and form == "table")
        with nullcontext() if form == "table" else redirect_stdout(sys.stderr):
            scoring = replace(
                job.scoring, of_tries=tuple(of_tries), skip_errors=errors == "skip", attempts=job.attempts
            )
            job, tally, problem = _evaluated(job, scoring, path, reuse, shown, engine)
        report = report_of(job.identity, scoring, tally, FINISHED)
        if baseline is not None:
            report["comparison"] = compare(baseline, path)
        if not problem:
            replace_file(path / REPORT, [json.dumps(report, indent=1).encode()])
        if junit is not None:
            write_junit(junit, [(str(path), [*row_cases(path, tally.outcomes, query, data)])])
        if events is not None:
            events.done({"folder": str(path), **report})
        elif as_json:
            write_object({"folder": str(path), **report})
        else:
            write("\n".join(report_lines(report, str(path))))
            if baseline is not None:
                write("\n".join(comparison_lines(report["comparison"])))
        if problem:
            note(f"{problem}; the report covers all rows, and rows that were not written will be run again")
        sys.exit(_exit_code(report, gates, no_worse, max_errors) or (6 if problem else 0))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Context in which Ctrl-C ends the command with the sentence that the run has given it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        write_error(str(interrupt) or "interrupted")
        sys.exit(INTERRUPTED)


def _evaluated(
    job: EvalJob,
    scoring: Scoring,
    path: Path,
    reuse: tuple[Path, ...],
    shown: Progress | RowEvents,
    engine: Engine | None,
) -> tuple[EvalJob, Tally, str]:
    """The run: the job with the folder's identity, the tally, and a sentence about lines that were not written."""
    from lmql_lite.data.evaluation import evaluate
    from lmql_lite.data.run_folder import FINISHED, RunFolder, attempts_in

    folder = RunFolder(path, job.identity, [f"lq {__version__}", *sys.argv[1:]], scoring)
    job = replace(job, identity=folder.identity)
    status = "stopped"
    try:
        shown.begin(path, job)
        tally = asyncio.run(evaluate(job, folder, reuse, shown.see, engine, shown.go_on))
        status = FINISHED
    except KeyboardInterrupt:
        answered = {(each["id"], each["repeat"]) for each in attempts_in(path) if not each.get("error")}
        sentence = f"{len(answered):,} of {scoring.attempts:,} answers are kept in {path}"
        raise KeyboardInterrupt(f"interrupted; {sentence}; run the same command to continue") from None
    finally:
        shown.end()
        folder.close(status)
    return job, tally, folder.problem


def _show_plan(job: EvalJob, path: Path, reuse: tuple[Path, ...], fresh: bool, as_json: bool) -> None:
    from lmql_lite.apps.eval_plan import eval_plan

    found = eval_plan(job, path, reuse, is_new=fresh)
    write_object(found.as_object()) if as_json else write("\n".join(found.lines()))


def _job(
    query: str, data: Path, model: str | None, base_url: str | None, metrics: list[str], flags: dict[str, Any],
    task: HarnessTask | None,
) -> EvalJob:  # fmt: skip
    from lmql_lite.data.eval_job import EvalJob, eval_cache
    from lmql_lite.data.run_identity import run_identity
    from lmql_lite.engine.session import Session

    if task is not None:
        flags["max_tokens"] = flags["max_tokens"] or task.max_tokens
        flags["target"] = "task_target"
    flags["cache"] = cache_of(flags["cache"], flags["cache_folder"])
    found, source = _query(query, task.source if task is not None else None)
    session = Session()
    found_model = model_named(model, {"base_url": base_url})
    options: dict[str, Any] = {"model": found_model, "session": session, "cache": eval_cache(flags["cache"])}
    options |= {name: flags[name] for name in ("max_tokens", "cache_mode", "prices") if flags[name] is not None}
    variables = read_inputs(flags["texts"], flags["values"])
    budget = {
        name: flags[f"max_{name}"] for name in ("requests", "total_tokens", "cost") if flags[f"max_{name}"] is not None
    }
    if "cost" in budget and flags["prices"] is None:
        raise InputError("--max-cost needs --prices, because servers do not report them", hint="--prices 0.15,0.60")
    settings = {"seed": flags["seed"], "max_tokens": flags["max_tokens"], "variables": variables}
    identity = run_identity(found, source, found_model, session, data, settings)
    job = EvalJob(
        query=found, data=data, options=options, identity=identity,  # type: ignore[arg-type]
        metrics=_metrics(metrics, options),
        variables=variables, columns=dict(pair("--map", each) for each in flags["mapped"]),
        id_column=flags["id_column"], target=flags["target"], cluster=flags["cluster"],
        selection=selection(flags), seed=flags["seed"], repeat=flags["repeat"], concurrency=flags["concurrency"],
        timeout=flags["timeout"], retries=flags["retries"], keeps_prompts=flags["log_samples"] == "all",
        rescore=flags["rescore"], budget=budget,
    )  # fmt: skip
    return job if task is None else replace(job, prepare=task.prepare)


def _metrics(specs: list[str], options: Mapping[str, Any]) -> tuple[Metric, ...]:
    """The metrics of `-m`. Those that would have one name, such as two of `regex:`, are named as they were given."""
    from lmql_lite.data.metrics import metric_named

    found = {spec: metric_named(spec, lambda path: _judge(path, options)) for spec in specs}
    names = [metric.name for metric in found.values()]
    return tuple(
        metric if names.count(metric.name) == 1 else replace(metric, name=spec) for spec, metric in found.items()
    )


def _task(path: str) -> HarnessTask:
    from lmql_lite.data.harness_task import harness_task

    return harness_task(Path(path))


def _query(name: str, text: str | None) -> tuple[Any, str]:
    """A query and the text that it depends on: of a Python function that of its module. Raises InputError."""
    module, colon, function = name.partition(":")
    if not colon or text is not None or Path(name).exists():
        found = load(name, text)
        return found, found.program.span.text
    from lmql_lite.decorators import QueryFunction

    find_modules_beside(Path())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{name} cannot be imported: {error}", hint="a query is FILE.lq or module:function") from None
    if not isinstance(found, QueryFunction):
        raise InputError(f"{name} is not a function with @query")
    file = sys.modules[module].__file__
    return found, f"{function}\n{Path(file).read_text('utf-8') if file else found.__doc__}"


def _judge(path: Path, options: Mapping[str, Any]) -> Any:
    """Metric from a query: it reads answer, target and columns, and returns a number or a bool."""
    from lmql_lite.data.metrics import answer_of

    find_modules_beside(path.parent, is_first=False)
    query = load(str(path))

    async def judge(record: Mapping[str, Any]) -> Any:
        known = {**record.get("columns", {}), "answer": answer_of(record), "target": record.get("target")}
        names = (*query.inputs, *query.program.builtins)
        result = await query.run({name: known[name] for name in names if name in known}, **options)
        return result.value

    return judge


def _engine(
    query: str, job: EvalJob, model: str | None, base_url: str | None, flags: Mapping[str, Any]
) -> Engine | None:
    """The engine of the command; None runs the rows in this process. Raises InputError."""
    from lmql_lite.api import Query

    if flags["engine"] is None:
        return None
    from lmql_lite.data.ray_engine import RayEngine

    if flags["cache"] is not None and flags["cache_folder"] is None:
        hint = "--use-cache DIR has a file for each machine; without it each worker has a tree of its own"
        raise InputError("--cache is a file of one process", hint=hint)
    for name in flags["ray_env"]:
        if name not in os.environ:
            raise InputError(f"--ray-env {name}: this environment has no such variable")
    is_module = not isinstance(job.query, Query)
    source = query if is_module else job.query.program.span.text
    named = model or os.environ.get("LQ_MODEL")
    workers, address = flags["workers"], flags["ray_address"]
    folder, environment = flags["cache_folder"], {name: os.environ[name] for name in flags["ray_env"]}
    return RayEngine(
        source, is_module, named, base_url, workers, address, flags["gpus_per_worker"],
        None if folder is None else str(folder.resolve()), environment,
    ).run  # fmt: skip


def _exit_code(
    report: Mapping[str, Any], gates: list[tuple[str, float]], no_worse: float | None, max_errors: int | None
) -> int:
    means = {each["name"]: each["mean"] for each in report["metrics"]}
    code = 0
    for name, least in gates:
        if name not in means:
            raise InputError(f"--min names no metric of this run: {name!r}", hint=f"there are {', '.join(means)}")
        if means[name] < least:
            write_error(f"{name} is {means[name]:.4f}, and at least {least:g} was asked for")
            code = NOT_REACHED
    if no_worse is not None and "comparison" in report and is_worse(report["comparison"], no_worse):
        code = NOT_REACHED
    failed = sum(report["errors"].values())
    if not code and max_errors is not None and failed > max_errors:
        write_error(f"{counted(failed, 'row')} failed, and at most {max_errors} may")
        code = SOME_FAILED
    if not code and max_errors is None and failed and failed == report["attempts"]:
        write_error("every row failed; with --max-errors N, N rows may")
        code = SOME_FAILED
    return code


for command in (show, compare_runs, export, merge):
    eval.add_command(command)
