"""Shrinking: smaller programs that fail in the same way as a random one."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from tests.properties.random_programs import Program
from tests.properties.whole_programs import Query


async def smallest(program: Program, fails: Callable[[Program], Awaitable[bool]], tries: int = 400) -> Program:
    """A program that still fails and from which nothing more can be removed, within `tries` runs."""
    goes_on = True
    while goes_on:
        goes_on = False
        for smaller in simpler(program):
            tries -= 1
            if tries < 0:
                return program
            if await fails(smaller):
                program, goes_on = smaller, True
                break
    return program


def simpler(program: Program) -> Iterator[Program]:
    for source in simpler_sources(program.source):
        used = {name: value for name, value in program.inputs.items() if name in source}
        yield replace(program, source=source, inputs=used)
    for name in program.options:
        if name not in ("max_tokens", "max_backtracks"):
            yield replace(program, options={key: value for key, value in program.options.items() if key != name})
    if program.options.get("n", 1) > 2:
        yield replace(program, options={**program.options, "n": 2})
    for model in ((0, 20.0, None), (0, 0.0, None)):
        if program.model not in (model, (0, 20.0, None)):
            yield replace(program, model=model)


def simpler_sources(source: str) -> Iterator[str]:
    lines = source.split("\n")
    for at, line in enumerate(lines):
        depth = indent(line)
        end = next((after for after in range(at + 1, len(lines)) if indent(lines[after]) <= depth), len(lines))
        yield "\n".join(lines[:at] + lines[end:])
        if end > at + 1:
            inside = textwrap.dedent("\n".join(lines[at + 1 : end])).split("\n")
            yield "\n".join(lines[:at] + [" " * depth + each for each in inside] + lines[end:])
    try:
        query = Query(source)
    except (SyntaxError, AssertionError):
        return
    places = [(prompt.end, prompt.line_end, prompt.clauses) for prompt in query.prompts]
    if query.clauses:
        places.append((*query.where, query.clauses))
    for start, end, clauses in places:
        before, after = source[:start].rstrip(), source[end:]
        is_last = start == query.where[0] and bool(query.clauses)
        if clauses and "distribution" not in source[start:end]:
            yield before + after
            for at, clause in enumerate(clauses):
                kept = [each.text for each in clauses]
                for less in ([], *([each] for each in simpler_clauses(clause.text))):
                    parts = kept[:at] + less + kept[at + 1 :]
                    if parts:
                        where = " and ".join(f"({part})" if " or " in part else part for part in parts)
                        yield before + ("\nwhere\n    " if is_last else " where ") + where + after
    for prompt in query.prompts:
        for hole in holes_in(source[prompt.start : prompt.end]):
            for less in ("", f"[{hole[1]}]"):
                text = source[prompt.start : prompt.end].replace(hole[0], less, 1)
                if less != hole[0]:
                    yield source[: prompt.start] + text + source[prompt.end :]
        text = '"' + "".join(hole[0] for hole in holes_in(source[prompt.start : prompt.end])) + '"'
        if text != source[prompt.start : prompt.end]:
            yield source[: prompt.start] + text + source[prompt.end :]


def holes_in(string: str) -> list[tuple[str, str]]:
    """Pairs (hole, name) of the holes in a string of a random program."""
    found, at = [], 0
    while (at := string.find("[", at)) >= 0:
        end, deep = at + 1, 1
        while end < len(string) and deep:
            deep += (string[end] in "[(") - (string[end] in "])")
            end += 1
        inside = string[at + 1 : end - 1]
        found.append((string[at:end], inside.partition(":")[0].split()[-1]))
        at = end
    return found


def simpler_clauses(text: str) -> Iterator[str]:
    tree = ast.parse(text, mode="eval").body
    for node in ast.walk(tree):
        smaller: list[ast.expr] = []
        if isinstance(node, ast.BoolOp):
            smaller = node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            smaller = [node.operand]
        old = ast.unparse(node)
        for each in smaller:
            for written in (f"({old})", old):
                if written in text:
                    yield text.replace(written, ast.unparse(each), 1)
                    break


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())
