"""The grammars of the language as parsers: Lark over `grammar/lq.lark` and `grammar/prompt.lark`.

Errors of a grammar are examples in its own terms. A row of `grammar/NAME.errors` is `LSQB AT ! * | AT | a decorator's
name is missing after '@' | hint`: terminals that are right, the one that does not fit, the place to blame, a sentence.
Each example is run through the parser up to the state that refuses it; an error in that state is described by its row.

A build writes all tables into the package as JSON. Where they are missing, or belong to another grammar or another
Lark, they are made from these files, which takes 0.1 s.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, NamedTuple

from lmql_lite.assets import asset

if TYPE_CHECKING:
    from lark import Lark

UNUSED = ("regex", "interegular")
"""Packages that Lark imports where they are installed, slow to load and of no use here."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "lq": {"lexer": "basic", "start": ["query"]},
    "prompt": {"lexer": "contextual", "start": ["prompt", "group"]},
    "raw_prompt": {"lexer": "contextual", "start": ["prompt", "group"]},
}
"""Lark's options by grammar. `raw_prompt` is `prompt` in a raw string, where a backslash is like any character."""

ANY = "*"
"""A misfit of any kind, also text that is no terminal at all."""


class Misfit(NamedTuple):
    """One row of a table of errors."""

    blame: str
    """Place to report: `@` is the misfit, a terminal's name the last such terminal before it; other words are the
    reader's."""
    sentence: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class Grammar:
    parser: Lark
    misfits: Mapping[tuple[int, str], Misfit]
    """Rows by the state of the parser that refuses, and by the terminal that it refuses."""

    def misfit(self, states: Iterable[int], terminal: str) -> Misfit | None:
        """The row for a terminal that was refused: of the first of these states that has one."""
        for state in states:
            if found := self.misfits.get((state, terminal)) or self.misfits.get((state, ANY)):
                return found
        return None


@cache
def grammar(name: str) -> Grammar:
    """The grammar of this name, one of `OPTIONS`."""
    with _without(UNUSED):
        import lark  # noqa: F401

    found = stored().get(name)
    return loaded(found) if found else made(name)


def made(name: str, *, strict: bool = False) -> Grammar:
    """The grammar made from its files. `strict` refuses conflicts, which Lark otherwise settles silently."""
    from lark import Lark

    file = name.removeprefix("raw_")
    text = _text(f"{file}.lark")
    if name != file:
        text = text.replace(r"\\", r"\0")  # no text has this character
    parser = Lark(text, parser="lalr", maybe_placeholders=True, strict=strict, **OPTIONS[name])
    return Grammar(parser, misfits(parser, _text(f"{file}.errors")))


# Tables of errors ----------------------------------------------------------------------------------------------------


def misfits(parser: Lark, rows: str) -> Mapping[tuple[int, str], Misfit]:
    """The table of these rows. Raises ValueError for one that is no error of the grammar, or that has a row above."""
    table: dict[tuple[int, str], Misfit] = {}
    terminals = [*(each.name for each in parser.terminals), "$END"]
    for row in rows.splitlines():
        if not row or row.startswith("#"):
            continue
        example, blame, *rest = (each.strip() for each in row.split("|"))
        sentence, hint = [*rest, "", ""][:2]
        *before, _, misfit = example.split()
        at: Any = parser.parse_interactive("", start=parser.options.start[0])
        for terminal in before:
            _feed(at, terminal)
        found = {(at.parser_state.position, ANY)} if misfit == ANY else set()
        for terminal in terminals if misfit == ANY else [misfit]:
            if (state := _refusing(at, terminal)) is not None:
                found.add((state, terminal))
        if found <= table.keys():
            raise ValueError(f"this is no error, or has a row above: {row}")
        table = dict.fromkeys(found, Misfit(blame, sentence, hint or None)) | table
    return table


def _refusing(at: Any, terminal: str) -> int | None:
    """The state that refuses a terminal: what is complete before it is reduced first. None if it is taken."""
    from lark import UnexpectedToken

    trial = at.copy(deepcopy_values=False)
    try:
        _feed(trial, terminal)
    except UnexpectedToken:
        return int(trial.parser_state.position)
    return None


def _feed(parser: Any, terminal: str) -> None:
    from lark import Token

    parser.feed_token(Token(terminal, ""))


# Stored tables -------------------------------------------------------------------------------------------------------


def tables() -> str:
    """All grammars as JSON, for a build to store as `grammar/tables.json`."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    found: dict[str, Any] = {"digest": _digest()}
    for name in OPTIONS:
        one = made(name)
        data, memo = one.parser.memo_serialize([TerminalDef, Rule])
        rows = [(state, terminal, row) for (state, terminal), row in one.misfits.items()]
        found[name] = {"parser": {"data": data, "memo": memo}, "misfits": rows}
    return json.dumps(found, separators=(",", ":"))


@cache
def stored() -> Mapping[str, Any]:
    """The tables that a build stored for these very files; none if there are no such tables."""
    file = asset("grammar", "tables.json")
    if not file.is_file():
        return {}
    found: dict[str, Any] = json.loads(file.read_text("utf-8"), object_hook=_with_numbers)
    return found if found["digest"] == _digest() else {}


def loaded(found: Mapping[str, Any]) -> Grammar:
    """A grammar from its stored tables."""
    from lark import Lark

    rows = {(state, terminal): Misfit(*row) for state, terminal, row in found["misfits"]}
    return Grammar(Lark.load(found["parser"]), rows)


def _with_numbers(found: dict[str, Any]) -> dict[Any, Any]:
    """A JSON object whose keys are numbers, as a dict with these."""
    return {int(key): value for key, value in found.items()} if all(map(str.isdigit, found)) else found


def _digest() -> str:
    import lark

    files = (_text(f"{name}.{kind}") for name in ("lq", "prompt") for kind in ("lark", "errors"))
    return hashlib.sha256("\0".join([lark.__version__, *files]).encode()).hexdigest()


def _text(name: str) -> str:
    return asset("grammar", name).read_text("utf-8")


# Import of Lark ------------------------------------------------------------------------------------------------------


class _Absent:
    """Finder that hides packages from the imports of one thread."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names, self.thread = names, threading.get_ident()

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name in self.names and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"{name} is not used here", name=name)
        return None


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Imports inside find none of these packages, unless they are loaded already."""
    finder: Any = _Absent(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
