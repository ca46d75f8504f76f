"""`lq eval`: runs of a query on a data set, and their reports."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite import __version__
from lmql_lite.apps.eval_options import EvalOptions, eval_options
from lmql_lite.apps.eval_results import compare_runs, export, show
from lmql_lite.apps.eval_views import NOT_REACHED, RUN_PATH, Progress, report_lines
from lmql_lite.apps.interruption import until_interrupted
from lmql_lite.apps.plan_view import plan_lines, plan_object
from lmql_lite.apps.status_line import StatusLine
from lmql_lite.apps.terminal import (
    INTERRUPTED,
    counted,
    find_modules_beside,
    load,
    model_named,
    note,
    read_inputs,
    reporting,
    write_error,
    write_object,
    write_wrapped,
)
from lmql_lite.errors import InputError

if TYPE_CHECKING:
    from lmql_lite.data.folder import RunFolder
    from lmql_lite.data.job import EvalJob
    from lmql_lite.data.metrics import Metric
    from lmql_lite.data.run import Engine, Tally
    from lmql_lite.engine.plan import Plan

ALL_FAILED = 8


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
@click.argument("data", metavar="DATA", type=RUN_PATH)
@eval_options
def run_eval(query: str, data: Path, **given: Any) -> None:
    """Run QUERY (a .lq file, or module:function of an @query function) on the rows of DATA.

    DATA is a .jsonl, .json, .csv or .tsv file, or with the extra [data] a .parquet file. Columns are inputs of the same
    name. Running the same command again continues a run; a finished run asks no model. A row that fails counts as
    wrong, and is run again next time.
    """
    from lmql_lite.data.folder import FINISHED, REPORT, RUN, RunFolder, identity_of
    from lmql_lite.data.job import continued, default_folder
    from lmql_lite.data.report import report_of
    from lmql_lite.data.run import evaluate
    from lmql_lite.store.files import replace_file

    options = EvalOptions(**given)
    progress = Progress(options.model or os.environ.get("LQ_MODEL") or "the model")
    line = StatusLine(progress.text)
    with _interruptible(), reporting(options.as_json), closing(line):
        if not options.as_json:
            line.start()
        gates, job = options.gates, _job(query, data, options)
        engine = _engine(query, job, options)
        path = options.output or default_folder(query, dict(job.identity))
        if not options.fresh and (path / RUN).exists():
            job = replace(job, identity=continued(dict(job.identity), identity_of(path), path))
        if options.dry_run:
            counts, plan = _planned(job, path, is_new=options.fresh)
            line.close()
            if options.as_json:
                write_object({**counts, "plan": None if plan is None else plan_object(plan)})
            else:
                write_wrapped(_plan_lines(counts, plan))
            return
        if options.fresh and path.exists():
            path.rename(path.with_name(f"{path.name}-{int(time.time())}"))
        with redirect_stdout(sys.stderr) if options.as_json else nullcontext():
            folder = RunFolder(path, job.identity, [f"lq {__version__}", *sys.argv[1:]], job.scoring)
            tally = _evaluated(job, folder, evaluate(job, folder, progress.see, engine, progress.go_on))
        line.close()
        problem = folder.problem
        report = report_of(job.identity, tally, FINISHED)
        if not problem:
            replace_file(path / REPORT, [json.dumps(report, indent=1).encode()])
        if options.as_json:
            write_object({"folder": str(path), **report})
        else:
            write_wrapped(report_lines(report, str(path)))
        if problem:
            note(f"{problem}; the report covers all rows, and rows that were not written will be run again")
        sys.exit(_exit_code(report, gates) or (6 if problem else 0))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Context in which Ctrl-C ends the command with the sentence that the run has given it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        write_error(str(interrupt) or "interrupted")
        sys.exit(INTERRUPTED)


def _evaluated(job: EvalJob, folder: RunFolder, run: Coroutine[Any, Any, Tally]) -> Tally:
    """Tally of a run. The folder is closed; Ctrl-C says what it keeps."""
    from lmql_lite.data.folder import FINISHED, attempts_in

    status = "stopped"
    try:
        tally = until_interrupted(run)
        status = FINISHED
    except KeyboardInterrupt:
        answered = {(each["id"], each["repeat"]) for each in attempts_in(folder.path) if not each.get("error")}
        sentence = f"{len(answered):,} of {job.scoring.attempts:,} answers are kept in {folder.path}"
        raise KeyboardInterrupt(f"interrupted; {sentence}; run the same command to continue") from None
    finally:
        folder.close(status)
    return tally


def _planned(job: EvalJob, folder: Path, *, is_new: bool) -> tuple[dict[str, Any], Plan | None]:
    """Numbers of attempts that are asked for, would be run and would fail because their row cannot be read; and the
    plan of the first one that would not. Asks no model and writes nothing. `is_new`: what the folder has does not
    count."""
    from lmql_lite.data.run import unfinished

    rows = list(unfinished(job, None if is_new else folder))
    problems = [f"{row.id}: {row.problem}" for row in rows if row.problem]
    counts = {
        "folder": str(folder),
        "asked": job.scoring.attempts or 0,
        "to_run": len(rows),
        "would_fail": len(problems),
        "first_problem": next(iter(problems), ""),
    }
    first = next((row for row in rows if not row.problem), None)
    limits = {f"max_{name}": limit for name, limit in job.budget.items()}
    return counts, None if first is None else job.plan(first, limits)


def _plan_lines(counts: Mapping[str, Any], plan: Plan | None) -> Iterator[str]:
    known = counts["asked"] - counts["to_run"]
    asked = counted(counts["asked"], "attempt")
    yield f"{counts['folder']}: {asked} asked for, {known:,} known, {counts['to_run']:,} to run"
    if counts["would_fail"]:
        yield f"{counted(counts['would_fail'], 'attempt')} would fail at once: {counts['first_problem']}"
    if plan is not None:
        yield from plan_lines(plan)


def _job(query: str, data: Path, options: EvalOptions) -> EvalJob:
    from lmql_lite.data.job import EvalJob, eval_cache, run_identity
    from lmql_lite.engine.session import Session

    found, source = _query(query)
    session, model = Session(), model_named(options.model, {"base_url": options.base_url})
    own: Any = {"max_tokens": options.max_tokens, "cache_mode": options.cache_mode, "prices": options.prices}
    run_options: Any = {"model": model, "session": session, "cache": eval_cache(options.cache)}
    run_options |= {name: value for name, value in own.items() if value is not None}
    variables = read_inputs(options.texts, options.values)
    settings = {"seed": options.seed, "max_tokens": options.max_tokens, "variables": variables}
    return EvalJob(
        query=found, data=data, options=run_options, metrics=_metrics(options.metrics, run_options),
        identity=run_identity(found, source, model, session, data, settings), variables=variables,
        columns=options.columns, id_column=options.id_column, target=options.target, cluster=options.cluster,
        selection=options.selection, seed=options.seed, repeat=options.repeat, concurrency=options.concurrency,
        timeout=options.timeout, budget=options.budget,
    )  # fmt: skip


def _metrics(specs: Sequence[str], options: Mapping[str, Any]) -> tuple[Metric, ...]:
    """The metrics of `-m`. Those that would have one name, such as two of `regex:`, are named as they were given."""
    from lmql_lite.data.metrics import metric_named

    found = {spec: metric_named(spec, lambda path: _judge(path, options)) for spec in specs}
    names = [metric.name for metric in found.values()]
    return tuple(
        metric if names.count(metric.name) == 1 else replace(metric, name=spec) for spec, metric in found.items()
    )


def _query(name: str) -> tuple[Any, str]:
    """A query and the text that it depends on: of a Python function that of its module. Raises InputError."""
    module, colon, function = name.partition(":")
    if not colon or Path(name).exists():
        found = load(name)
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


def _engine(query: str, job: EvalJob, options: EvalOptions) -> Engine | None:
    """The engine of the command; None runs the rows in this process. Raises InputError."""
    from lmql_lite.api import Query

    if options.workers is None:
        return None
    from lmql_lite.data.ray import RayEngine

    is_module = not isinstance(job.query, Query)
    source = query if is_module else job.query.program.span.text
    cache = options.cache if options.cache is None or "://" in options.cache else os.path.abspath(options.cache)
    model = options.model or os.environ.get("LQ_MODEL")
    return RayEngine(
        source, is_module, model, options.base_url, options.workers, options.gpus_per_worker, cache
    ).run  # fmt: skip


def _exit_code(report: Mapping[str, Any], gates: list[tuple[str, float]]) -> int:
    means = {each["name"]: each["mean"] for each in report["metrics"]}
    code = 0
    for name, least in gates:
        if name not in means:
            raise InputError(f"--min names no metric of this run: {name!r}", hint=f"there are {', '.join(means)}")
        if means[name] < least:
            write_error(f"{name} is {means[name]:.4f}, and at least {least:g} was asked for")
            code = NOT_REACHED
    failed = sum(report["errors"].values())
    if not code and failed and failed == report["attempts"]:
        write_error("every row failed")
        code = ALL_FAILED
    return code


for command in (show, compare_runs, export):
    eval.add_command(command)
