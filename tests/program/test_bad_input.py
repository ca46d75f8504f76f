"""What is wrong with a `where` clause: one sentence, its place, and a hint, as early as it can be known (S22)."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

import lmql_lite as lq
from tests.tables import cases

LONG = 10**130


@cases("program/bad_input", "what is written out is judged when the query is compiled", globals())
def test_what_is_written_out_is_judged_when_the_query_is_compiled(where: str, place: str, sentence: str) -> None:
    with pytest.raises(lq.LmqlLiteError, match=sentence) as caught:
        lq.compile(f'"[X]" where {where}')
    (problem,) = caught.value.problems
    assert re.search(sentence, problem.message)
    cannot_be_met = problem.message.startswith("nothing can fill")
    assert type(problem) is (lq.ConstraintError if cannot_be_met else lq.QueryError)
    assert problem.span is not None and problem.span.source == place
    assert problem.hint or "did you mean" in problem.message
    assert len(problem.message) < 300


@cases("program/bad_input", "what a run gives is judged before the model is asked", globals())
def test_what_a_run_gives_is_judged_before_the_model_is_asked(
    where: str, value: Any, sentence: str, session: lq.Session
) -> None:
    model = lq.ScriptedModel("")
    query = lq.compile(f'"[X]" where {where}')
    with pytest.raises(lq.ConstraintError, match=sentence) as caught:
        query.run_sync({"v": value}, model=model, session=session)
    assert caught.value.span is not None and caught.value.span.source in where
    assert len(caught.value.message) < 300
    assert model.calls == 0


@cases("program/bad_input", "nothing is said of what may hold")
def test_nothing_is_said_of_what_may_hold(where: str) -> None:
    lq.compile(f'"[X]" where {where}')


def test_every_clause_that_is_wrong_is_named() -> None:
    with pytest.raises(lq.QueryError) as caught:
        lq.compile('"[X]" where X == 5\n"[Y]" where Y in []\n"[Z]" where not STOPS_AT(Z, "a")')
    assert [problem.span.line for problem in caught.value.problems if problem.span] == [1, 2, 3]


def test_blocks_inside_one_another_are_at_most_as_many_as_python_allows() -> None:
    loops = "".join(f"{' ' * at}for a{at} in [1]:\n" for at in range(21))
    with pytest.raises(
        lq.QueryError, match="more blocks stand inside one another here than Python's compiler allows"
    ) as caught:
        lq.compile(f'{loops}{" " * 21}"[X]"')
    assert caught.value.hint == "move some into a function" and caught.value.span is not None


# Names that are there without an import ----------------------------------------------------------------------------


def test_an_input_called_re_is_the_input(session: lq.Session) -> None:
    query = lq.compile('"Re: {re}"')
    assert query.run_sync({"re": "your mail"}, session=session, model=lq.ScriptedModel("")).prompt == "Re: your mail"

    @lq.query(model=lq.ScriptedModel(""), session=session)
    def answer(re: str) -> Any:
        """lq
        "Re: {re}"
        return re
        """

    assert answer("your letter") == "your letter"


def test_a_pattern_with_a_doubled_bracket_prints_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lq.run_sync('"[X]" where REGEX(X, r"[[:alpha:]]+")', model=lq.ScriptedModel("a]"))
