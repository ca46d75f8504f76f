"""Queries that are right, with the outlines of their trees, for every test of the language."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmql_lite.lang import nodes


@dataclass(frozen=True)
class Good:
    """A query and the outline of its tree."""

    name: str
    text: str
    outline: str


def outline(query: nodes.QueryNode) -> str:
    """The tree in short lines: strings with their text decoded, Python as `ast.unparse` writes it."""
    lines = [f"prologue {_code(code.tree)}" for code in query.prologue]
    if query.decoder:
        arguments = ", ".join(f"{each.name}={_code(each.value.tree)}" for each in query.decoder.arguments)
        lines.append(f"{query.decoder.name}({arguments})")
    lines.extend(line for statement in query.body for line in _statement(statement, ""))
    lines.extend(
        f"{word} {_code(clause.tree)}" for word, clause in (("from", query.model), ("where", query.where)) if clause
    )
    if query.distribution:
        lines.append(f"distribution {query.distribution.name} in {_code(query.distribution.options.tree)}")
    return "\n".join(lines) + "\n"


def _code(tree: ast.AST) -> str:
    return ast.unparse(tree).replace("\n", " | ")


def _statement(statement: nodes.Statement, pad: str) -> list[str]:
    match statement:
        case nodes.PromptNode():
            clauses = f" where {_code(statement.where.tree)}" if statement.where else ""
            if statement.distribution:
                clauses += (
                    f" distribution {statement.distribution.name} in {_code(statement.distribution.options.tree)}"
                )
            return [pad + " ".join(_part(part) for part in statement.parts) + clauses]
        case nodes.Code():
            return [f"{pad}code {_code(statement.tree)}"]
        case nodes.IfNode():
            return [f"{pad}if {_code(statement.test.tree)}", *_suites(statement.body, statement.orelse, pad)]
        case nodes.WhileNode():
            return [f"{pad}while {_code(statement.test.tree)}", *_suites(statement.body, statement.orelse, pad)]
        case nodes.ForNode():
            word = "async for" if statement.is_async else "for"
            head = f"{pad}{word} {_code(statement.target)} in {_code(statement.iterable.tree)}"
            return [head, *_suites(statement.body, statement.orelse, pad)]
        case nodes.WithNode():
            word = "async with" if statement.is_async else "with"
            items = ", ".join(
                _code(item.manager.tree) + (f" as {_code(item.target)}" if item.target else "")
                for item in statement.items
            )
            return [f"{pad}{word} {items}", *_suites(statement.body, (), pad)]
        case nodes.TryNode():
            lines = [f"{pad}try", *_suites(statement.body, (), pad)]
            for handler in statement.handlers:
                head = ("except*" if statement.of_groups else "except") + (
                    f" {_code(handler.type.tree)}" if handler.type else ""
                )
                lines += [pad + head + (f" as {handler.name}" if handler.name else "")]
                lines += _suites(handler.body, (), pad)
            lines += _suites((), statement.orelse, pad)
            return lines + ([f"{pad}finally", *_suites(statement.final, (), pad)] if statement.final else [])
        case nodes.MatchNode():
            lines = [f"{pad}match {_code(statement.subject.tree)}"]
            for case in statement.cases:
                guard = f" if {_code(case.guard.tree)}" if case.guard else ""
                lines += [f"{pad}  case {_code(case.pattern)}{guard}", *_suites(case.body, (), pad + "  ")]
            return lines
        case nodes.ReturnNode():
            return [f"{pad}return {_code(statement.value.tree)}" if statement.value else f"{pad}return"]
    return [pad + type(statement).__name__.removesuffix("Node").lower()]


def _suites(body: tuple[nodes.Statement, ...], orelse: tuple[nodes.Statement, ...], pad: str) -> list[str]:
    lines = [line for statement in body for line in _statement(statement, pad + "  ")]
    if orelse:
        lines.append(f"{pad}else")
        lines.extend(line for statement in orelse for line in _statement(statement, pad + "  "))
    return lines


def _part(part: nodes.Part) -> str:
    match part:
        case nodes.LiteralNode():
            return repr(part.text)
        case nodes.TagNode():
            return f"<{part.role}>"
        case nodes.InterpolationNode():
            conversion = f"!{part.conversion}" if part.conversion else ""
            return "{" + _code(part.value.tree) + conversion + (f":{part.format}" if part.format else "") + "}"
        case nodes.HoleNode():
            decorators = "".join(f"@{_code(each.tree)} " for each in part.decorators)
            call = f"{_code(part.call.tree)} -> " if part.call else ""
            annotation = f": {_code(part.annotation.tree)}" if part.annotation else ""
            return f"[{decorators}{call}{part.name}{annotation}]"


def _read_good() -> list[Good]:
    text = Path(__file__).with_name("good_queries.txt").read_text("utf-8")
    pieces = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)[1:]
    return [Good(*pieces[at : at + 2], pieces[at + 3]) for at in range(0, len(pieces), 4)]


GOOD = _read_good()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `good` runs once for every query."""
    if "good" in metafunc.fixturenames:
        metafunc.parametrize("good", GOOD, ids=lambda good: good.name)


@pytest.fixture(name="outline")
def outline_fixture():
    return outline


@pytest.fixture(scope="session")
def good_texts() -> list[str]:
    return [good.text for good in GOOD]
