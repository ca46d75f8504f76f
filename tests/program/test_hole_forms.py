"""What stands in the brackets of a hole besides its name: decoders, decorators, calls; and what is refused there."""

from __future__ import annotations

import pytest

import lmql_lite as lq
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from lmql_lite.program.compiler import compile
from lmql_lite.program.ops import Hole
from tests.tables import cases


def holes(source: str) -> list[Hole]:
    return [op for op in compile(parse(Source("q", source))).parts if isinstance(op, Hole)]


def said(source: str) -> tuple[str, str, str | None]:
    with pytest.raises(lq.QueryError) as caught:
        compile(parse(Source("q", source)))
    (problem,) = caught.value.problems
    assert problem.span is not None
    return problem.span.source, problem.message, problem.hint


def test_a_hole_may_have_a_decoder_of_its_own() -> None:
    (hole,) = holes('"[sample(temperature=0.8, top_k=t) X]"')
    assert hole.decoder is not None and hole.decoder.name == "sample"
    assert [(each.name, each.span.source) for each in hole.decoder.options] == [("temperature", "0.8"), ("top_k", "t")]
    assert holes('"[ARGMAX X]"')[0].decoder is not None


def test_a_hole_with_a_decoder_or_a_decorator_and_the_one_behind_it_begin_a_segment() -> None:
    joins = [hole.continues_segment for hole in holes('"[A]-[B]-[argmax C]-[D]-[E]-[@f G]-[H]-[g(I)]-[J]-[K]"')]
    assert joins == [False, True, False, False, True, False, False, False, False, True]


@cases("program/hole_forms", "what is wrong with a decoder at a hole", globals())
def test_what_is_wrong_with_a_decoder_at_a_hole(hole: str, place: str, sentence: str, hint: str | None) -> None:
    source, message, found = said(f'"{hole}"')
    assert source == place
    assert sentence.replace("\\", "") in message
    assert (hint or "") in (found or "")


def test_what_a_hole_calls_is_kept_apart_from_its_arguments() -> None:
    source = '"[A: q(1, b=n)] [B: q] [C: self.q(2)] [q(D, 3)] [E: int] [F]" where q(F, 4) and len(F) < 3 and F in x'
    calls = {hole.name: [(each.form, each.span.source) for each in hole.callees] for hole in holes(source)}
    assert calls == {
        "A": [("type", "q(1, b=n)")],
        "B": [("type", "q")],
        "C": [("type", "self.q(2)")],
        "D": [("hole", "q(D, 3)")],
        "E": [],
        "F": [("where", "q(F, 4)")],
    }
    (function, arguments) = (holes(source)[0].callees[0].function, holes(source)[0].callees[0].arguments)
    assert arguments is not None
    assert (eval(function, {"q": 7}), eval(arguments, {"n": 2})) == (7, ((1,), {"b": 2}))
    last = holes(source)[-1].callees[0].arguments
    assert last is not None and eval(last, {}) == ((4,), {})


@pytest.mark.parametrize(
    "where", ["len(X) < 3", "bool(X)", "re.search('a', X)", "pattern.search(X)", "INT(X)", "f(X, X)", "X.isdigit()"]
)
def test_what_cannot_be_a_query_is_none(where: str) -> None:
    assert holes(f'"[X]" where {where}')[0].callees == ()


def test_a_call_that_is_no_query_is_said_at_its_place() -> None:
    with pytest.raises(lq.QueryError, match=r"what \[X\] calls is not a query: len") as caught:
        lq.run_sync('"[len(X)]"', model=lq.ScriptedModel(""), session=lq.Session())
    assert caught.value.span is not None and caught.value.span.source == "len(X)"


def test_two_queries_cannot_fill_one_hole() -> None:
    source = '@query\ndef q(x=1):\n    """lq\n    "a"\n    """\n"[X: q]" where q(X)'
    with pytest.raises(lq.QueryError, match=r"two queries cannot fill \[X\]"):
        lq.run_sync(source, model=lq.ScriptedModel(""), session=lq.Session())


def test_groups_of_exceptions_hold_no_prompt() -> None:
    source, message, _ = said('try:\n    "[A]"\nexcept* ValueError:\n    pass')
    assert source.startswith("except*") and "no prompt" in message


# What may come after a hole -----------------------------------------------------------------------------------------


@cases("program/hole_forms", "a clause is enforced at each hole that may be the last S20")
def test_a_clause_is_enforced_at_each_hole_that_may_be_the_last_S20(why: str, source: str, last: set[str]) -> None:
    names = sorted({each.name for each in holes(source)})
    clause = " < ".join(f"len({name})" for name in names)
    lines = "".join(f"    {line}\n" for line in source.splitlines())
    found = holes(f"argmax\n{lines}where\n    {clause}")
    assert {hole.name for hole in found if hole.conditions} == last


@cases("program/hole_forms", "the text that always follows a hole S18")
def test_the_text_that_always_follows_a_hole_S18(source: str, following: str) -> None:
    assert holes(source)[0].following.decode() == following
