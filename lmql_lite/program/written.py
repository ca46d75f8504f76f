"""Values that are written out in a clause are known when it is compiled, without running anything."""

from __future__ import annotations

import ast
import re
from typing import Any

FLAGS = re.RegexFlag.__members__


class NotWritten(Exception):
    """This value is Python's to tell, when the query runs."""


def written(node: ast.expr) -> Any:
    """The value of a literal, a range of literals, or what `re` makes of one. Raises NotWritten for all others."""
    match node:
        case ast.Constant(value):
            return value
        case ast.List(items):
            return [written(item) for item in items]
        case ast.Tuple(items):
            return tuple(written(item) for item in items)
        case ast.Set(items):
            return {written(item) for item in items}
        case ast.Dict(keys, values) if None not in keys:
            return {written(key): written(value) for key, value in zip(keys, values, strict=True) if key}
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.BinOp(left, ast.BitOr(), right):
            return written(left) | written(right)
        case ast.Name("re"):
            return re
        case ast.Attribute(ast.Name("re"), name) if name in FLAGS:
            return FLAGS[name]
        case ast.Call(ast.Attribute(ast.Name("re"), "compile"), arguments, keywords):
            named = {keyword.arg: written(keyword.value) for keyword in keywords if keyword.arg}
            return re.compile(*map(written, arguments), **named)
        case ast.Call(ast.Name("range"), arguments, []):
            return range(*map(written, arguments))
    raise NotWritten
