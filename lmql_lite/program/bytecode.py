"""Python inside a query, compiled: code objects that know the query's own file name and lines."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, ModuleType
from typing import Any

from lmql_lite.errors import QueryError, Span
from lmql_lite.lang.nodes import Expression
from lmql_lite.lang.sentences import said_by_compiler
from lmql_lite.lang.source import places


def compiled(python: ast.expr | ast.Module, span: Span) -> CodeType:
    """Code for `eval` of an expression, or `exec` of statements. With a top-level `await` it gives a coroutine.

    All nodes of an expression have places (`ast.fix_missing_locations`); statements get those that are missing.
    """
    mode = "exec" if isinstance(python, ast.Module) else "eval"
    try:
        tree = ast.fix_missing_locations(python) if isinstance(python, ast.Module) else ast.Expression(python)
        # the __future__ flags of this module do not hold for queries
        code: CodeType = compile(tree, span.name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        sentence, hint = said_by_compiler(error.msg)
        raise QueryError(sentence, span=_blamed(error, span), hint=hint) from None
    except (ValueError, RecursionError, MemoryError):
        raise QueryError("this is nested too deeply or is not valid text", span=span) from None
    return code


def _blamed(error: SyntaxError, span: Span) -> Span:
    """Part of a span to which an error of Python's compiler points."""
    line = (error.lineno or 0) - span.first_line
    if line < 0:
        return span
    start = places(span.text).offset(line, max((error.offset or 1) - 1, 0))
    start = min(max(start, span.start), max(span.end - 1, span.start))
    return span.at(start, span.end)


def code_of(expression: Expression) -> CodeType:
    return compiled(expression.tree.body, expression.span)


def code_of_call(name: str, place: Expression) -> CodeType:
    """An awaited call of `name` as if it stood in that place, so that a traceback shows it."""
    node = place.tree.body
    call = ast.Await(ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [], []), node))
    return compiled(ast.fix_missing_locations(ast.copy_location(call, node)), place.span)


def codes_of(part: object) -> list[CodeType]:
    """All Python in a part of a program."""
    found: list[CodeType] = []
    stack = [part]
    while stack:
        each = stack.pop()
        if isinstance(each, CodeType):
            found.append(each)
        elif isinstance(each, tuple):
            stack += each
        elif is_dataclass(each) and not isinstance(
            each, type | Span
        ):  # the type of a hole may be a class of the user's
            stack += [getattr(each, field.name) for field in fields(each)]
    return found


def names_of(code: CodeType) -> set[str]:
    """Every name that is read from the environment, and every attribute."""
    return {*code.co_names, *names_read_later(code)}


def names_read_later(code: CodeType) -> set[str]:
    """Names that the functions and classes inside it read."""
    return {name for inner in code.co_consts if isinstance(inner, CodeType) for name in names_of(inner)}


class NotWritten(Exception):
    """A value that is known only when the query runs."""


def written(node: ast.expr, names: Mapping[str, object]) -> Any:
    """Value of code that is written out: literals, `names`, attributes of modules, `range` and compiled patterns.
    Raises NotWritten for all other code, and errors of Python itself."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name in names:
            return names[name]
        case ast.Attribute(ast.Name(module), name) if isinstance(names.get(module), ModuleType):
            return getattr(names[module], name)
        case ast.Call(function, arguments, keywords) if ast.unparse(function) in ("re.compile", "range"):
            make = range if isinstance(function, ast.Name) else written(function, names)
            named = {keyword.arg: written(keyword.value, names) for keyword in keywords if keyword.arg}
            return make(*[written(argument, names) for argument in arguments], **named)
        case ast.Subscript(value, index):
            return written(value, names)[written(index, names)]
        case ast.BinOp(left, ast.BitOr(), right):
            return written(left, names) | written(right, names)
        case ast.UnaryOp(ast.USub(), operand):
            return -written(operand, names)
        case ast.List(items):
            return [written(item, names) for item in items]
        case ast.Tuple(items):
            return tuple([written(item, names) for item in items])
        case ast.Set(items):
            return {written(item, names) for item in items}
        case ast.Dict(keys, values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {written(key, names): written(value, names) for key, value in pairs if key}
    raise NotWritten


def constant(node: ast.expr) -> Any:
    """Value of a literal; None for all other code."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
