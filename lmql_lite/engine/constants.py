"""Values of a program's Python that are the same in every run. Only expressions without side effects are evaluated."""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections import Counter
from collections.abc import Mapping
from dis import get_instructions
from types import CodeType
from typing import Any

from lmql_lite.engine.environment import value_of
from lmql_lite.program.bytecode import codes_of
from lmql_lite.program.ops import REFLECTION, Program

HARMLESS = frozenset({
    "abs", "bool", "chr", "dict", "enumerate", "float", "frozenset", "int", "len", "list", "max", "min", "ord", "range",
    "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
})  # fmt: skip
"""Builtins without side effects that call no code of the query."""
OF_RE = frozenset({"re", "compile", "escape", "A", "I", "M", "S", "X", *(flag.name or "" for flag in re.RegexFlag)})
FIXED = (str, int, float, bool, type(None), range, re.Pattern)


class NotConstant(Exception):
    """The value depends on the run."""


class Constants:
    """Values of names and expressions of one program that are the same in every run.

    A name has such a value if it is a given input, or if exactly one statement assigns it. For a list, set or dict,
    moreover, no other code that could change it may mention the name.
    """

    def __init__(self, program: Program, inputs: Mapping[str, Any]) -> None:
        pieces = (*program.prologue, *program.python)
        lets = [piece.code for piece in pieces if isinstance(piece.tree, ast.Module)]
        parts = (*(piece.code for piece in pieces), program.parts, program.options)
        codes = [(code, _mentioned(code)) for code in codes_of(parts)]
        assigned = Counter([*program.holes, *(name for code, _ in codes for name in _assigned(code))])
        self._known: dict[str, Any] = {
            name: getattr(builtins, name) for name in HARMLESS - assigned.keys() - inputs.keys()
        }
        self._has_re = "re" not in inputs and assigned["re"] <= 1
        if any(names & REFLECTION for _, names in codes):  # with these names Python may change anything
            return
        plain = HARMLESS | assigned.keys() | inputs.keys()
        self._changed = {
            name for code, names in codes if code in lets or names - plain for name in names - _assigned(code)
        }
        for name, value in inputs.items():
            self._learn(name, value)
        for code in lets:
            own = _assigned(code)
            if own <= {"re"} or any(assigned[name] > 1 for name in own) or not self._is_harmless(code, own):
                continue
            environment = self._environment(code)
            try:
                value_of(code, environment)
            except Exception:
                continue  # the run will report it
            for name in own & environment.keys():
                self._learn(name, environment[name])

    def value(self, code: CodeType) -> Any:
        """The value of an expression. Raises NotConstant if it depends on the run, or cannot be evaluated."""
        if not self._is_harmless(code, frozenset()):
            raise NotConstant
        try:
            return value_of(code, self._environment(code))
        except Exception:
            raise NotConstant from None

    def _learn(self, name: str, value: object) -> None:
        if _is_fixed(value) or (_is_plain(value) and name not in self._changed):
            self._known[name] = value

    def _is_harmless(self, code: CodeType, own: frozenset[str]) -> bool:
        names = _mentioned(code) - own
        return names - (OF_RE if self._has_re and "re" in names else frozenset()) <= self._known.keys()

    def _environment(self, code: CodeType) -> dict[str, Any]:
        names = _mentioned(code)
        known = {name: copy.deepcopy(value) for name, value in self._known.items() if name in names}
        return {"__builtins__": {}, **({"re": re} if self._has_re and "re" in names else {}), **known}


def _mentioned(code: CodeType) -> frozenset[str]:
    """Names and attributes that code reads, assigns or imports, including its inner functions."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    waits = {"await"} if any(step.opname in ("SEND", "GET_AWAITABLE") for step in get_instructions(code)) else set()
    return frozenset({*code.co_names, *waits}.union(*map(_mentioned, inner)))


def _assigned(code: CodeType) -> frozenset[str]:
    stores = ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    own = {str(step.argval) for step in get_instructions(code) if step.opname in stores}
    return frozenset(own.union(*map(_assigned, inner)))


def _is_plain(value: object) -> bool:
    """True for data that may be replaced by a copy."""
    if isinstance(value, dict):
        return type(value) is dict and all(_is_fixed(key) and _is_fixed(each) for key, each in value.items())
    return _is_fixed(value) or (type(value) in (list, set) and all(map(_is_fixed, value)))  # type: ignore[call-overload]


def _is_fixed(value: object) -> bool:
    """True for immutable data."""
    if isinstance(value, tuple | frozenset):
        return type(value) in (tuple, frozenset) and all(map(_is_fixed, value))
    return type(value) in FIXED
