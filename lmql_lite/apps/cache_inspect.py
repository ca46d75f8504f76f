"""`lq cache inspect`: the contents of a `.tokens` file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.terminal import counted, note, reporting, write, write_object, written_ago

if TYPE_CHECKING:
    from lmql_lite.cache.tokens.inspect import Stretch
    from lmql_lite.cache.tokens.rows import ModelName
    from lmql_lite.cache.tokens.text import Vocabulary

WIDTH = 90
"""Characters of a stretch that are shown."""
LINES = 40
"""Stretches that are shown by default."""
KINDS = (("top-k", "entry"), ("greedy", "answer"), ("sampled", "answer"))

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
    folder named with --model local:FOLDER. For a model behind an API, FILE has text: each token of an answer is an
    entry at its first byte, and <user>, <assistant> and <end> are turns of a chat and the end of the text.
    """
    from lmql_lite.cache.tokens.inspect import chosen, model_shown, read_file, survey, trees_of

    with reporting(as_json):
        contents = read_file(file)
        models = chosen(contents.models, model)
        trees, shown = trees_of(contents.rows), list[dict[str, Any]]()
        for one in models:
            vocabulary = vocabulary_of(one, model)
            stretches = survey(trees[one.fingerprint], depth=depth, limit=limit or (None if as_json else LINES))
            times = [written for other, written, _ in contents.rows if other.fingerprint == one.fingerprint]
            if as_json:
                shown.append(_model_object(one, times, stretches, vocabulary))
                continue
            written = written_ago(min(times), max(times), time.time())
            write(f"{model_shown(one)}: {counted(stretches[0].total, 'entry')}, {written}")
            write("\n".join(_lines(stretches, vocabulary)))
            if vocabulary is None:
                note("the tokenizer of this model is not available, so its tokens are shown as numbers")
        if as_json:
            write_object({"file": file, "bytes": contents.bytes, "damage": len(contents.damage), "models": shown})
        elif not models:
            write("the file is empty: nothing has been generated yet")
        if contents.damage:
            note(f"the file is damaged, and some of it cannot be shown: lq cache verify {file}")


def vocabulary_of(model: ModelName, named: str | None = None) -> Vocabulary | None:
    """The bytes of a model's tokens, where they can be had quickly.

    Those of the demo model, if it is the one of this version, of a folder that the user named as `local:FOLDER`, and of
    servers, whose trees are of bytes.
    """
    from lmql_lite.cache.tokens.bytes import VOCABULARY
    from lmql_lite.cache.tokens.text import BYTES
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
    from lmql_lite.cache.tokens.text import BYTES, shortened, spelled

    unit = "byte" if vocabulary is BYTES else "token"
    lines: list[tuple[int, str]] = []
    hidden: list[tuple[int, int]] = []  # of the stretches that the lines are inside of: depth, and branches left out
    for stretch in stretches:
        while hidden and hidden[-1][0] >= stretch.depth:
            lines += _left_out(*hidden.pop())
        text = shortened(spelled(stretch.tokens, vocabulary), WIDTH) if stretch.tokens else "(the beginning)"
        count = stretch.below.total()
        below = f"; {counted(count, 'entry')} below" if count else ""
        lines.append((stretch.depth, f"{text}  {counted(len(stretch.tokens), unit)}, {_kinds(stretch.here)}{below}"))
        hidden.append((stretch.depth, stretch.hidden))
    while hidden:
        lines += _left_out(*hidden.pop())
    return [f"{'  ' * (depth + 1)}{line}" for depth, line in lines]


def _left_out(depth: int, hidden: int) -> list[tuple[int, str]]:
    branches = f"{hidden:,} more branch{'es' * (hidden != 1)}"
    return [(depth + 1, f"… {branches}")] if hidden else []


def _kinds(count: Counter[str]) -> str:
    return ", ".join(counted(count[kind], f"{kind} {noun}") for kind, noun in KINDS if count[kind]) or "no entries"


def _model_object(
    model: ModelName, times: Sequence[int], stretches: list[Stretch], vocabulary: Vocabulary | None
) -> dict[str, Any]:
    places = {id(stretch): number for number, stretch in enumerate(stretches)}
    return {
        "name": model.name,
        "fingerprint": model.fingerprint,
        "vocabulary_size": model.vocabulary_size,
        "oldest": min(times) or None,
        "newest": max(times) or None,
        "stretches": [
            {
                "parent": None if stretch.parent is None else places[id(stretch.parent)],
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


def _count_object(count: Counter[str]) -> dict[str, int]:
    return {"topks": count["top-k"], "greedy": count["greedy"], "sampled": count["sampled"]}


def _text(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    return b"".join(vocabulary[token] or b"" for token in tokens).decode("utf-8", "replace")
