"""Common mistakes in `where` clauses on text, which Python would find only after the model was asked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal

from lmql_lite.errors import QueryError, did_you_mean
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.lang.names import reads
from lmql_lite.lang.source import span_of
from lmql_lite.program.symbols import PARTS
from lmql_lite.program.where import EXAMPLES, SYMBOLS

ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
METHODS = frozenset(dir(str))
TEXTS = frozenset({"lower", "upper", "title", "capitalize", "casefold", "swapcase", "strip", "lstrip", "rstrip"})
"""Methods of text that always return text."""
NUMBERS = frozenset({"len", "int", "float", "abs", "round"})
SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Nodes of Python inside which a name may mean something else."""
INSTEAD = {
    **dict.fromkeys(("contains", "includes", "has"), '".." in {}'),
    **dict.fromkeys(("len", "length", "size"), "len({}) < 80"),
    **dict.fromkeys(("matches", "match", "test"), 'REGEX({}, r"..")'),
}
"""Methods of other languages, and the condition of this language for each."""


def refuse_mistakes(clause: nodes.Expression, hole: str) -> None:
    """Raises QueryError for the first mistake in a clause; the hole is text."""
    for node in _parts(clause.tree.body):
        found = _mistake(node, hole)
        if found:
            message, hint = found
            raise QueryError(message, span=span_of(node, clause.span), hint=hint)


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions in a tree from the outside in, in source order."""
    if isinstance(node, SCOPES):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _parts(child)


def _mistake(node: ast.expr, hole: str) -> tuple[str, str] | None:
    """Sentence and hint."""
    match node:
        case ast.Compare(left, operators, comparators):
            return _of_comparison(node, [left, *comparators], operators, hole)
        case ast.Call(ast.Name("len"), [ast.Compare(left, [operator], [right])]) if reads(node, hole):
            symbol = SYMBOLS.get(type(operator), "<")
            hint = f"write len({ast.unparse(left)}) {symbol} {ast.unparse(right)}"
            return "this len(...) closes after the comparison instead of before it", hint
        case ast.Call(ast.Name("len"), given, []) if len(given) != 1 and reads(node, hole):
            return f"len takes one value, and this call has {len(given)}", f"write len({hole})"
        case ast.Subscript(ast.Name(name)) if name in EXAMPLES or name in NUMBERS or name in PARTS:
            return f"{name} is a function and takes parentheses", f"write {name}({hole})"
        case ast.Call(ast.Name(name)) if name == hole and name not in EXAMPLES:
            return f"[{hole}] is text and cannot be called", f"write {hole} alone, or put an operator between the two"
        case ast.Attribute(owner, name) if name not in METHODS and _kind(owner, hole) == "text":
            close = did_you_mean(name, (each for each in METHODS if not each.startswith("_")))
            meant = INSTEAD.get(name.lower())
            hint = f"write {meant.format(hole)}" if meant else close or f'for example {hole}.startswith("a")'
            return f"text has no method '{name}'", hint
        case ast.Call(ast.Attribute(ast.Name(name), method), [_, *_], []) if name == hole and method.startswith("is"):
            return f"{hole}.{method}() takes nothing between its parentheses", f"write {hole}.{method}()"
        case ast.BinOp(left, ast.Sub() | ast.Div() | ast.FloorDiv() | ast.Pow(), right):
            texts = [each for each in (left, right) if _kind(each, hole) == "text"]
            if any(reads(each, hole) for each in texts):
                return f"[{hole}] is text, and text has no arithmetic", f"write int({hole}), or [{hole}: int]"
    return None


def _of_comparison(
    node: ast.Compare, sides: list[ast.expr], operators: list[ast.cmpop], hole: str
) -> tuple[str, str] | None:
    for side in sides:
        match side:
            case ast.Call(ast.Name(name)) if name in EXAMPLES and reads(side, hole):
                alone = "write it alone" if name in STOPS else "write it alone, or with `not` before it"
                return f"{name}({hole}) is true or false and cannot be compared", alone
    for left, operator, right in zip(sides, operators, sides[1:], strict=False):
        if isinstance(operator, ast.Is | ast.IsNot) and reads(left, hole) and _kind(right, hole):
            symbol = "==" if isinstance(operator, ast.Is) else "!="
            return "'is' compares objects, not their text", f"write {symbol}"
        if isinstance(operator, ORDER) and {_kind(left, hole), _kind(right, hole)} == {"text", "number"}:
            text = left if _kind(left, hole) == "text" else right
            if reads(text, hole):
                shown = ast.unparse(text)
                sides_shown = [f"{{}}({shown})" if side is text else ast.unparse(side) for side in (left, right)]
                asked = f" {SYMBOLS[type(operator)]} ".join(sides_shown)
                hint = f"write {asked.format('len')} for its length, {asked.format('int')} for the number in it"
                return f"{shown} is text and cannot be compared with a number", hint
    return None


def _kind(node: ast.expr, hole: str) -> Literal["text", "number"] | None:
    """Kind of the value, if it is certain."""
    match node:
        case ast.Name(name) if name == hole:
            return "text"
        case ast.Constant(str()):
            return "text"
        case ast.Constant(bool()):
            return None
        case ast.Constant(int() | float()):
            return "number"
        case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
            return _kind(operand, hole)
        case ast.Subscript(value):
            return "text" if _kind(value, hole) == "text" else None
        case ast.Call(ast.Attribute(owner, method)) if method in TEXTS and _kind(owner, hole) == "text":
            return "text"
        case ast.Call(ast.Name(name)) if name in NUMBERS:
            return "number"
    return None
