"""What a program's Python is certain to give, found without running it: only what can have no effect is evaluated."""

from __future__ import annotations

import builtins
import copy
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from dis import get_instructions
from types import CodeType
from typing import Any

from lmql_lite.program.ops import Let, Program
from lmql_lite.program.segments import REFLECTION
from lmql_lite.runtime.environment import value_of

HARMLESS = (
    "abs", "bool", "chr", "dict", "enumerate", "float", "frozenset", "int", "len", "list", "max", "min", "ord", "range",
    "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
)  # fmt: skip
"""Builtins that change nothing and call nothing of the query's."""
OF_RE = frozenset({"compile", "escape", "A", "I", "M", "S", "X", *(flag.name or "" for flag in re.RegexFlag)})
FIXED = (str, int, float, bool, type(None), range, re.Pattern)


class NotForeseen(Exception):
    """Only a run finds this out."""


class Foreseen:
    """The values of names and expressions of one program that every run finds.

    A name has one if it is an input that is given, or one statement alone assigns it; a list, if moreover no other
    statement reads it, and nothing that could change it.
    """

    def __init__(self, program: Program, inputs: Mapping[str, Any]) -> None:
        lets = [let.code for let in (*program.prologue, *program.ops) if isinstance(let, Let)]
        said = [(code, _names_of(code)) for code in _codes((program.prologue, program.ops, program.options))]
        assigned = Counter(name for _, names in said for name in names.assigns)
        assigned.update(program.holes)
        self._known: dict[str, Any] = {name: getattr(builtins, name) for name in HARMLESS if name not in assigned}
        if "re" not in assigned and "re" not in inputs:
            self._known["re"] = re
        if any(names.reads & REFLECTION for _, names in said):  # through these Python may change anything
            return
        self._changed = {
            name
            for code, names in said
            if code in lets or names.touches or (names.calls and not names.reads <= {*HARMLESS, *names.assigns})
            for name in names.reads
        }
        for name, value in inputs.items():
            self._learn(name, value)
        for code in lets:
            names = _names_of(code)
            if names == IMPORT_RE and assigned["re"] == 1:
                self._known["re"] = re
            elif self._is_harmless(names) and all(assigned[name] == 1 for name in names.assigns):
                environment = self._environment(names)
                try:
                    value_of(code, environment)
                except Exception:
                    continue  # the run will say so
                for name in names.assigns & environment.keys():
                    self._learn(name, environment[name])

    def value(self, code: CodeType) -> Any:
        """What an expression gives. Raises NotForeseen where that depends on the run, and where it fails."""
        names = _names_of(code)
        if not self._is_harmless(names):
            raise NotForeseen
        try:
            return value_of(code, self._environment(names))
        except Exception:
            raise NotForeseen from None

    def _learn(self, name: str, value: object) -> None:
        if _is_fixed(value) or (_is_plain(value) and name not in self._changed):
            self._known[name] = value

    def _is_harmless(self, names: Names) -> bool:
        touches = names.touches - OF_RE if "re" in names.reads else names.touches
        return not touches and names.reads - names.assigns <= self._known.keys()

    def _environment(self, names: Names) -> dict[str, Any]:
        known = {name: value for name, value in self._known.items() if name in names.reads}
        return {
            "__builtins__": {},
            **{name: value if name == "re" else copy.deepcopy(value) for name, value in known.items()},
        }


@dataclass(frozen=True, slots=True)
class Names:
    """What a piece of Python reads and assigns, its inner functions included.

    `touches`: attributes that it reads or calls, what it imports, and whether it writes to items or awaits; `calls`:
    it calls something.
    """

    reads: frozenset[str]
    assigns: frozenset[str]
    touches: frozenset[str]
    calls: bool


IMPORT_RE = Names(frozenset(), frozenset({"re"}), frozenset({"re"}), calls=False)


def _names_of(code: CodeType) -> Names:
    reads, assigns, touches, calls = set[str](), set[str](), set[str](), False
    for step in get_instructions(code):
        verb, _, what = step.opname.partition("_")
        match verb:
            case "LOAD" if what in ("NAME", "GLOBAL"):
                reads.add(str(step.argval))
            case "STORE" | "DELETE" if what in ("NAME", "GLOBAL"):
                assigns.add(str(step.argval))
            case "IMPORT" | "LOAD" | "STORE" | "DELETE" if verb == "IMPORT" or "ATTR" in what or "METHOD" in what:
                touches.add(str(step.argval))
            case "STORE" | "DELETE" if "SUBSCR" in what or "SLICE" in what:
                touches.add("[]")
            case "SEND" | "YIELD":
                touches.add("await")
            case "CALL":
                calls = True
        if isinstance(step.argval, CodeType):
            inner = _names_of(step.argval)
            reads |= inner.reads
            assigns |= inner.assigns
            touches |= inner.touches
            calls = calls or inner.calls
    return Names(frozenset(reads), frozenset(assigns), frozenset(touches), calls)


def _codes(part: object) -> Iterator[CodeType]:
    if isinstance(part, CodeType):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _codes(each)
    elif is_dataclass(part) and not isinstance(part, type):
        for field in fields(part):
            yield from _codes(getattr(part, field.name))


def _is_plain(value: object) -> bool:
    """Data, and a copy of it is as good."""
    if isinstance(value, dict):
        return type(value) is dict and all(_is_fixed(key) and _is_fixed(each) for key, each in value.items())
    return _is_fixed(value) or (type(value) in (list, set) and all(map(_is_fixed, value)))  # type: ignore[call-overload]


def _is_fixed(value: object) -> bool:
    """Data that nothing can change."""
    if isinstance(value, tuple | frozenset):
        return type(value) in (tuple, frozenset) and all(map(_is_fixed, value))
    return type(value) in FIXED
