"""A `where` in plain Python: its functions, written from the definition of the language, and its clauses."""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text.strip()) if text.strip() else []


def is_date(text: str) -> bool:
    try:
        return bool(re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text)) and bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def phrases(said: str | Sequence[str]) -> tuple[str, ...]:
    return (said,) if isinstance(said, str) else tuple(said)


FUNCTIONS: Mapping[str, Any] = {
    "re": re,
    "CHARS": list,
    "WORDS": str.split,
    "SENTENCES": sentences,
    "LINES": lambda text: text.removesuffix("\n").split("\n") if text else [],
    "INT": lambda text: re.fullmatch("0|-?[1-9][0-9]*", text) is not None,
    "FLOAT": lambda text: re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", text) is not None,
    "DATE": is_date,
    "VALUE": lambda hole, value: value,
    "REGEX": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "STARTS_WITH": lambda text, said: text.startswith(phrases(said)),
    "ENDS_WITH": lambda text, said: text.endswith(phrases(said)),
}
STOPS = ("STOPS_AT", "STOPS_BEFORE")
TYPES: Mapping[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


def is_reached(stop: str, text: str, end: int, said: Any) -> bool:
    """True if a value that continues as `text` reaches the stop at `end`."""
    if isinstance(said, re.Pattern):
        return stop == "STOPS_AT" and any(said.fullmatch(text, start, end) for start in range(end))
    if stop == "STOPS_AT":
        return text[:end].endswith(phrases(said))
    return text.startswith(phrases(said), end)


class OnTokens(ast.NodeTransformer):
    """Replaces `TOKENS(X)` and the X of `str(X)` by look-ups by the hole's name, and stops by look-ups by number."""

    def __init__(self) -> None:
        self.stops: list[ast.Call] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name("TOKENS"), [ast.Name(hole)]):
                return ast.copy_location(ast.Call(node.func, [ast.Constant(hole)], []), node)
            case ast.Call(ast.Name("str"), [ast.Name(hole) as name]):
                value = ast.Call(ast.Name("VALUE", ast.Load()), [ast.Constant(hole), name], [])
                return ast.copy_location(ast.Call(node.func, [value], []), node)
            case ast.Call(ast.Name(name)) if name in STOPS:
                self.stops.append(node)
                asked = ast.Call(ast.Name("STOPPED", ast.Load()), [ast.Constant(len(self.stops) - 1)], [])
                return ast.copy_location(asked, node)
        return node


@dataclass(frozen=True)
class Stop:
    """One `STOPS_AT(X, ...)` or `STOPS_BEFORE(X, ...)` of a clause."""

    word: str
    hole: str
    said: CodeType


class Part(NamedTuple):
    """A clause, or a part of it: the code of a part without `and`, `or` and `not`, or the parts that one of these
    words joins."""

    word: str
    parts: tuple[Part, ...] = ()
    code: CodeType | None = None


def part_of(tree: ast.expr) -> Part:
    match tree:
        case ast.UnaryOp(ast.Not(), operand):
            return Part("not", (part_of(operand),))
        case ast.BoolOp(operator, values):
            return Part("and" if isinstance(operator, ast.And) else "or", tuple(map(part_of, values)))
    return Part("", (), compiled(tree))


def truth(part: Part, names: Mapping[str, Any]) -> bool | None:
    """Truth of a part; None for one that reads a number or a character which the text does not have (S20)."""
    if part.code is not None:
        try:
            return bool(eval(part.code, dict(names)))
        except (ValueError, IndexError):
            return None
    deciding = part.word == "or"
    undecided = False
    for each in part.parts:
        found = truth(each, names)
        if part.word == "not":
            return None if found is None else not found
        if found is deciding:
            return deciding
        undecided |= found is None
    return None if undecided else not deciding


@dataclass(frozen=True, eq=False)
class Clause:
    """One operand of the `and` at the top of a `where`."""

    text: str
    tree: Part
    names: frozenset[str]
    stops: tuple[Stop, ...]
    constants: tuple[Any, ...]

    @property
    def counts_tokens(self) -> bool:
        return "TOKENS" in self.names

    def holds(self, names: Mapping[str, Any], *, stopped: Collection[int] | None = None) -> bool:
        """True if the clause holds. `stopped` has the numbers of its stops that end the value here; None means all."""
        here = {**FUNCTIONS, **names, "STOPPED": lambda stop: stopped is None or stop in stopped}
        return truth(self.tree, here) is True


def clause_of(tree: ast.expr) -> Clause:
    text, on_tokens = ast.unparse(tree), OnTokens()
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    constants = tuple(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    read = part_of(on_tokens.visit(ast.parse(text, mode="eval").body))
    stops = tuple(
        Stop(call.func.id, call.args[0].id, compiled(call.args[1]))
        for call in on_tokens.stops
        if isinstance(call.func, ast.Name) and isinstance(call.args[0], ast.Name)
    )
    return Clause(text, read, names, stops, constants)


def compiled(tree: ast.expr) -> CodeType:
    return compile(ast.fix_missing_locations(ast.Expression(tree)), "where", "eval")


def operands(tree: ast.expr) -> Iterator[ast.expr]:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for value in tree.values:
            yield from operands(value)
    else:
        yield tree
