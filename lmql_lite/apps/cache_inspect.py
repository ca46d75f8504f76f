"""`lq cache inspect` and `lq cache explain`: the contents of a `.tokens` file, and the part of it that a query uses."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.terminal import (
    EXIT_CODES,
    counted,
    load,
    model_named,
    model_options,
    note,
    read_inputs,
    reporting,
    write,
    write_object,
    written_ago,
)
from lmql_lite.errors import CacheError

if TYPE_CHECKING:
    from lmql_lite.apps.explanation import RunExplanation
    from lmql_lite.cache.columns import Model
    from lmql_lite.cache.file_contents import ModelEntries
    from lmql_lite.cache.token_text import Vocabulary
    from lmql_lite.cache.tree_summary import Count, Stretch

WIDTH = 90
"""Characters of a stretch that are shown."""
LINES = 40
"""Stretches that are shown by default."""

MODEL = click.option(
    "--model", metavar="NAME", help="Only answers of this model: its name, or the beginning of its fingerprint."
)


@click.command()
@click.argument("file")
@MODEL
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Show at most N levels of branches.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show the N lines with the most entries in and below them (default: 40; with --json, all).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with nothing cut.")
def inspect(file: str, model: str | None, depth: int | None, limit: int | None, as_json: bool) -> None:
    """Show the tree of tokens in FILE.

    Each line is a run of tokens without branches, below the line that it continues. At its end are the number of
    entries in it, and the number below it. An entry is a top-k entry (the best tokens at a place, with their scores), a
    greedy answer (the best token under conditions that a top-k entry does not decide) or a sampled answer (the token
    that was sampled under a seed).

    FILE has tokens as numbers. They are shown as text if the tokenizer is available: that of the demo model, or of a
    folder named with --model local:FOLDER. For a model behind an API, FILE has text: each byte of an answer is an
    entry, and <user>, <assistant> and <end> are turns of a chat and the end of the text.
    """
    from lmql_lite.cache.file_contents import chosen, model_shown, read_file
    from lmql_lite.cache.tree_summary import survey

    with reporting(as_json):
        contents = read_file(file)
        models = chosen(contents.models, model)
        shown: list[dict[str, Any]] = []
        for one in models:
            known, vocabulary = contents.by_model[one.fingerprint].distinct(), vocabulary_of(one, model)
            stretches = survey(known, depth=depth, limit=limit or (None if as_json else LINES))
            if as_json:
                shown.append(_model_object(known, stretches, vocabulary))
                continue
            if not len(known):
                write(f"{model_shown(one)}: no entries")
                continue
            total = stretches[0].here.total + stretches[0].below.total
            write(f"{model_shown(one)}: {counted(total, 'entry')}, {_written(known)}")
            write("\n".join(_lines(stretches, vocabulary)))
            if vocabulary is None:
                note("the tokenizer of this model is not available, so its tokens are shown as numbers")
        if as_json:
            write_object({"file": file, "bytes": contents.bytes, "damage": len(contents.damage), "models": shown})
        elif not models:
            write("the file is empty: nothing has been generated yet")
        if contents.damage:
            note(f"the file is damaged, and some of it cannot be shown: lq cache verify {file}")


def vocabulary_of(model: Model, named: str | None = None) -> Vocabulary | None:
    """The bytes of a model's tokens, where they can be had quickly.

    Those of the demo model, if it is the one of this version, of a folder that the user named as `local:FOLDER`, and of
    servers, whose trees are of bytes.
    """
    from lmql_lite.cache.byte_tree import VOCABULARY
    from lmql_lite.cache.token_text import BYTES
    from lmql_lite.errors import ModelError
    from lmql_lite.models.demo import DemoModel
    from lmql_lite.models.tokenizer import HFTokenizer

    if model.fingerprint.startswith("demo:"):
        demo = DemoModel.load()
        return demo.tokenizer.vocabulary if demo.fingerprint == model.fingerprint else None
    if model.vocabulary_size == VOCABULARY:
        return BYTES
    folder = Path((named or "").removeprefix("local:")).expanduser()
    if named != model.name or not named.startswith("local:") or not folder.is_dir():
        return None
    try:
        vocabulary = HFTokenizer.from_folder(folder).vocabulary
    except ModelError:
        return None
    return vocabulary if len(vocabulary) == model.vocabulary_size else None


def _lines(stretches: list[Stretch], vocabulary: Vocabulary | None) -> list[str]:
    from lmql_lite.cache.token_text import BYTES, shortened, spelled

    unit = "byte" if vocabulary is BYTES else "token"
    lines: list[tuple[int, str]] = []
    hidden: list[tuple[int, int]] = []  # of the stretches that the lines are inside of: depth, and branches left out
    for stretch in stretches:
        while hidden and hidden[-1][0] >= stretch.depth:
            lines += _left_out(*hidden.pop())
        text = shortened(spelled(stretch.tokens, vocabulary), WIDTH) if stretch.tokens else "(the beginning)"
        below = f"; {counted(stretch.below.total, 'entry')} below" if stretch.below.total else ""
        lines.append((stretch.depth, f"{text}  {counted(len(stretch.tokens), unit)}, {_kinds(stretch.here)}{below}"))
        hidden.append((stretch.depth, stretch.hidden))
    while hidden:
        lines += _left_out(*hidden.pop())
    return [f"{'  ' * (depth + 1)}{line}" for depth, line in lines]


def _left_out(depth: int, hidden: int) -> list[tuple[int, str]]:
    branches = f"{hidden:,} more branch{'es' * (hidden != 1)}"
    return [(depth + 1, f"… {branches}")] if hidden else []


def _kinds(count: Count) -> str:
    kinds = ((count.topks, "top-k entry"), (count.greedy, "greedy answer"), (count.sampled, "sampled answer"))
    return ", ".join(counted(number, kind) for number, kind in kinds if number) or "no entries"


def _times(known: ModelEntries) -> tuple[int, int]:
    """When the oldest and the newest of the entries were written; 0 is not known."""
    return (int(known.written.min()), int(known.written.max())) if len(known) else (0, 0)


def _written(known: ModelEntries) -> str:
    oldest, newest = _times(known)
    return written_ago(oldest, newest, time.time())


def _model_object(known: ModelEntries, stretches: list[Stretch], vocabulary: Vocabulary | None) -> dict[str, Any]:
    oldest, newest = _times(known)
    return {
        "name": known.model.name,
        "fingerprint": known.model.fingerprint,
        "vocabulary_size": known.model.vocabulary_size,
        "oldest": oldest or None,
        "newest": newest or None,
        "stretches": [
            {
                "parent": stretch.parent,
                "depth": stretch.depth,
                "ids": stretch.tokens,
                "text": None if vocabulary is None else _text(stretch.tokens, vocabulary),
                "here": _count_object(stretch.here),
                "below": _count_object(stretch.below),
                "hidden": stretch.hidden,
            }
            for stretch in stretches
        ],
    }


def _count_object(count: Count) -> dict[str, int]:
    return {"topks": count.topks, "greedy": count.greedy, "sampled": count.sampled}


def _text(tokens: tuple[int, ...], vocabulary: Vocabulary) -> str:
    return b"".join(vocabulary[token] or b"" for token in tokens).decode("utf-8", "replace")


@click.command()
@click.argument("query")
@click.option("--cache", "file", required=True, metavar="FILE", help="The .tokens file.")
@click.option("--var", "texts", multiple=True, metavar="NAME=TEXT", help="An input, as in lq run.")
@click.option("--var-json", "values", multiple=True, metavar="NAME=JSON", help="An input that is not text.")
@model_options
@click.option("--seed", type=int, metavar="N", help="The seed of the run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain(
    query: str,
    file: str,
    texts: tuple[str, ...],
    values: tuple[str, ...],
    model: str | None,
    seed: int | None,
    as_json: bool,
    **access: Any,
) -> None:
    """Show which part of a run of QUERY FILE knows, and the reason for the first miss.

    The query is run, including its own Python, but no model is asked, and FILE does not change. (A server is asked for
    its capabilities, which may cost a token.) A miss has one of three reasons: FILE only knows other models; the text
    before differs (the report shows the first token that differs); or the place is known, but under other conditions,
    sampling or seed.

    Exit code 0 if FILE knows everything that the run asks, 6 if something is missing, as with lq run --cache-mode
    replay. So a script can tell whether a recording is still complete.
    """
    import asyncio

    with reporting(as_json):
        compiled, inputs = load(query), read_inputs(texts, values)
        from lmql_lite.apps.explanation import explained  # after the query was read: mistakes in it come quickly

        found = asyncio.run(explained(compiled, inputs, file, model=model_named(model, access), seed=seed))
        if found.is_sampled and seed is None and "seed" not in {option.name for option in compiled.program.options}:
            note(f"each run of this query draws its own seed; this is for seed {found.seed} (--seed N for another)")
        if as_json:
            write_object({"query": query, "file": file} | _explanation_object(found))
        else:
            write("\n".join(_explanation_lines(found)))
    if found.miss is not None:
        sys.exit(EXIT_CODES[CacheError])


def _explanation_lines(found: RunExplanation) -> list[str]:
    names = [f"[{hole.name}]" for hole in found.holes]
    width = max(map(len, names), default=0)
    lines, now = [], time.time()
    for name, hole in zip(names, found.holes, strict=True):
        known = [counted(hole.known, "token") + " known"] + [f"{hole.forced:,} forced"] * (hole.forced > 0)
        if hole.known:
            known.append(written_ago(hole.oldest, hole.newest, now))
        rest = "" if hole.is_whole else "; the next one is not known"
        lines.append(f"{name:<{width}}  line {hole.line}: {', '.join(known)}{rest}")
    if found.miss is None:
        return [*lines, "all is known: this run asks the model for nothing"]
    lines += [f"  {sentence}" for sentence in found.miss.sentences]
    return lines


def _explanation_object(found: RunExplanation) -> dict[str, Any]:
    miss = found.miss
    return {
        "model": found.model,
        "fingerprint": found.fingerprint,
        "seed": found.seed,
        "complete": miss is None,
        "holes": [
            {
                "name": hole.name,
                "line": hole.line,
                "known": hole.known,
                "forced": hole.forced,
                "oldest": hole.oldest or None,
                "newest": hole.newest or None,
                "complete": hole.is_whole,
            }
            for hole in found.holes
        ],
        "miss": None
        if miss is None
        else {
            "reason": miss.reason,
            "token": len(miss.difference.before) + 1,
            "asked": _token_object(miss.difference.asked, found.vocabulary),
            "stored": [_token_object(token, found.vocabulary) for token in miss.difference.stored],
            "sentences": miss.sentences,
        },
    }


def _token_object(token: int | None, vocabulary: Vocabulary) -> dict[str, Any] | None:
    return None if token is None else {"id": token, "text": _text((token,), vocabulary)}
