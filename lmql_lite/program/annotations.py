"""The type of a hole as it is written: what is known of it when the query is compiled."""

from __future__ import annotations

import ast
import builtins
import datetime
import re
from types import ModuleType
from typing import Any

from lmql_lite.program.types import NAMES

MODULES: dict[str, ModuleType] = {"datetime": datetime, "re": re}


class NotKnown(Exception):
    """What this annotation means is decided when the query runs."""


def written(annotation: ast.expr, own: frozenset[str]) -> Any:
    """The value of an annotation whose names are Python's or `NAMES`. Raises NotKnown for all others.

    `own` are the names that the query binds or is given.
    """
    try:
        return _written(annotation, own)
    except (TypeError, ValueError, LookupError, AttributeError, re.error) as error:
        # Python says it again when the query runs
        raise NotKnown from error


def _written(node: ast.expr, own: frozenset[str]) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) if name not in own and (name in NAMES or hasattr(builtins, name)):
            return NAMES[name] if name in NAMES else getattr(builtins, name)
        case ast.Attribute(ast.Name(module), name) if module not in own and module in MODULES:
            return getattr(MODULES[module], name)
        case ast.Call(ast.Attribute(ast.Name("re"), "compile"), arguments, []) if "re" not in own:
            return re.compile(*(_written(argument, own) for argument in arguments))
        case ast.Subscript(value, index):
            return _written(value, own)[_written(index, own)]
        case ast.BinOp(left, ast.BitOr(), right):
            return _written(left, own) | _written(right, own)
        case ast.UnaryOp(ast.USub(), operand):
            return -_written(operand, own)
        case ast.Tuple(items):
            return tuple(_written(item, own) for item in items)
        case ast.List(items):
            return [_written(item, own) for item in items]
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            return {_written(key, own) if key else None: _written(value, own) for key, value in pairs}
    raise NotKnown
