"""`lq cache`: counting, checking, compacting, merging, exporting and clearing `.tokens` files."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lmql_lite.apps.terminal import (
    EXIT_CODES,
    INTERRUPTED,
    JSON,
    counted,
    note,
    reporting,
    write,
    write_error,
    write_lines,
    write_object,
)
from lmql_lite.errors import CacheError

if TYPE_CHECKING:
    from lmql_lite.cache.tokens.inspect import Rewritten

NAMES = {"topks": "top-k entries", "greedy": "greedy answers", "sampled": "sampled answers"}
MODEL = click.option(
    "--model", metavar="NAME", help="Only entries of this model: its name, or the beginning of its fingerprint."
)
KINDS = {"topks": "top-k", "greedy": "greedy", "sampled": "sampled"}


@click.group(short_help="Maintain .tokens files.")
def cache() -> None:
    """Maintain .tokens files, which keep models' answers for later runs.

    Only compact and clear change a FILE, and no command overwrites another file. Commands that only read also accept
    the URL of a stream (redis://host:port/name) as FILE.
    """


@cache.command()
@click.argument("file")
@JSON
def stats(file: str, as_json: bool) -> None:
    """Count the entries in FILE, by model."""
    from lmql_lite.cache.tokens.inspect import fingerprint_shown, read_file
    from lmql_lite.cache.tokens.text import size_shown, visible

    with reporting(as_json):
        found = read_file(file)
        kinds = {what: found.count(kind) for what, kind in KINDS.items()}
        numbers = {**kinds, "bytes": found.bytes}
        if as_json:
            models = [asdict(model) for model in found.models]
            write(json.dumps(numbers | {"models": models, "damage": found.damage}))
            return
        for model in found.models:
            size, fingerprint = size_shown(model.vocabulary_size), fingerprint_shown(model.fingerprint)
            write(f"{'model':<16} {visible(model.name)}, {size}, {fingerprint}")
        for what, number in numbers.items():
            write(f"{NAMES.get(what, what):<16} {number:,}")
        if not found.is_sound:
            write_error(f"damaged in {counted(len(found.damage), 'place')}; see lq cache verify {file}")


@cache.command()
@click.argument("file")
def verify(file: str) -> None:
    """Read and check all of FILE.

    Exit code 6 if some of it is damaged. Runs ask for the damaged part again, and lq cache compact leaves it out.
    """
    from lmql_lite.cache.tokens.inspect import read_file
    from lmql_lite.cache.tokens.text import visible

    with reporting(as_json=False):
        found, name = read_file(file), visible(file)
        for damage in found.damage:
            write(f"{name}: {damage}")
        if found.is_sound:
            write(f"{name}: sound, {counted(len(found.rows), 'entry')}")
        else:
            sys.exit(EXIT_CODES[CacheError])


@cache.command()
@click.argument("file")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=0),
    metavar="N",
    help="Drop the runs that were not used for the longest time, until FILE has at most N bytes.",
)
@JSON
def compact(file: str, max_bytes: int | None, as_json: bool) -> None:
    """Make FILE smaller, and drop what is damaged.

    --max-bytes drops entries too; runs ask for them again when they need them.

    Other processes may use FILE meanwhile: entries that they write are kept. A crash leaves the old FILE.
    """
    from lmql_lite.cache.tokens.inspect import compacted

    with reporting(as_json):
        done = compacted(file, max_bytes=max_bytes)
        if as_json:
            write_object({"file": file} | asdict(done))
            return
        write(f"{'':<8} {'before':>14} {'after':>14}")
        for what in ("bytes", "entries"):
            write(f"{what:<8} {getattr(done.before, what):>14,} {getattr(done.after, what):>14,}")
        _note_damage(done)


@cache.command()
@click.argument("file")
@MODEL
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def clear(file: str, model: str | None, yes: bool, as_json: bool) -> None:
    """Drop all entries in FILE, or those of one model. FILE itself stays, and runs fill it again.

    Asks for confirmation. Without a terminal it cannot ask, and needs --yes.
    """
    from lmql_lite.cache.tokens.inspect import chosen, cleared, model_shown, read_file
    from lmql_lite.cache.tokens.text import visible

    with reporting(as_json):
        contents = read_file(file)
        names = ", ".join(model_shown(one) for one in chosen(contents.models, model)) or "no model"
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(
                    "this drops entries permanently, and there is no terminal to confirm it: add --yes"
                )
            question = f"Drop all answers of {names} from {visible(file)} ({contents.bytes:,} bytes)?"
            if not click.confirm(question, err=True):
                write_error("nothing was changed")
                sys.exit(INTERRUPTED)
        done = cleared(file, model=model)
        if as_json:
            write_object({"file": file} | asdict(done))
            return
        dropped = counted(done.before.entries - done.after.entries, "entry")
        write(f"{visible(file)}: {dropped} of {names} dropped, {counted(done.after.entries, 'entry')} left")
        if model is not None:
            _note_damage(done)


def _note_damage(done: Rewritten) -> None:
    if done.was_damaged:
        note("the file was damaged; its unreadable part was dropped, and runs will ask for it again")


@cache.command()
@click.argument("files", nargs=-1, required=True)
@click.option("-o", "--output", required=True, metavar="FILE", help="The new file; it must not exist.")
@JSON
def merge(files: tuple[str, ...], output: str, as_json: bool) -> None:
    """Join FILES into a new file that has all their entries. FILES do not change.

    If several FILES answer the same question, the answer of the first one counts.
    """
    from lmql_lite.cache.tokens.inspect import merged, write_new
    from lmql_lite.cache.tokens.text import visible

    with reporting(as_json):
        if os.path.lexists(output):
            raise CacheError(f"{output} exists, and is not overwritten", hint="name another file, or remove it")
        done = merged(files)
        for file in done.damaged:
            note(f"{visible(file)} is damaged; its unreadable part is left out (lq cache verify shows where)")
        write_new(output, done.rows)
        if as_json:
            write_object({"file": output, "models": done.models, "entries": len(done.rows)})
            return
        write(f"{visible(output)}: {counted(done.models, 'model')}, {counted(len(done.rows), 'entry')}")


@cache.command()
@click.argument("file")
@MODEL
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT", help="A new file instead of stdout.")
def export(file: str, model: str | None, output: Path | None) -> None:
    """Print all entries in FILE as JSON lines.

    One object per entry, for other programs, in the format of recordings; `merge` reads it again:

    \b
    model, fingerprint, vocabulary  the model, and its number of tokens
    kind                top-k, greedy or sampled
    after, says         text before it, and its own, of a model behind an API
    logprob             log-probability of its token; null: minus infinity, or not known
    place, parent       hashes of its path and of that of the entry before it (0 at the beginning of the text)
    tokens              ids of the tokens from parent to place
    written             unix time in seconds
    question, value     those of the file, in hexadecimal and base64

    The last field is a checksum of the line.
    """
    from lmql_lite.cache.tokens.inspect import chosen, read_file
    from lmql_lite.cache.tokens.recorded import line_of_row

    with reporting(as_json=False):
        contents = read_file(file)
        models = {one.fingerprint for one in chosen(contents.models, model)}
        rows = (each for each in contents.rows if each[0].fingerprint in models)
        write_lines((line_of_row(each).decode().rstrip() for each in rows), output)
        if not contents.is_sound:
            note(f"the file is damaged, and some of it cannot be read: lq cache verify {file}")
