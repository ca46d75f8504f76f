"""Queries that a hole calls (S26)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.servers.kinds import OPENAI_CHAT, VLLM
from tests.servers.stub import serving


def speaking(*lines: tuple[str, str]) -> lq.ScriptedModel:
    """A model that answers text that ends with the first of a pair with the second."""

    def script(text: bytes) -> bytes:
        found: list[tuple[int, bytes]] = []
        for end, answer in lines:
            whole = (end + answer).encode()
            reached = [size for size in range(len(end) - 1, len(whole) + 1) if text.endswith(whole[:size])]
            found += [(min(size, len(end)), whole[size:]) for size in reached if size]
        return max(found)[1] if found else b""

    script.__qualname__ = f"speaking {lines}"  # by which it is told from others
    return lq.ScriptedModel(script)


@lq.query
def one_of(options: list[str]) -> str:
    """lq
    "(one of {', '.join(options)}) [ANSWER]" where ANSWER in options
    return ANSWER
    """


@lq.query
def aside() -> None:
    """lq
    " and [MORE]" where len(MORE) <= 3
    """


CHOICE = {"one_of": one_of, "ab": ["a", "b"]}


def test_what_a_query_says_goes_and_what_it_returns_stays(session: lq.Session) -> None:
    model = speaking(("b) ", "b"), ("X=b.", "end"))
    result = lq.run_sync(
        '"X=[X: one_of(options)].[Y]"\nreturn X, Y, context.prompt',
        {"one_of": one_of, "options": ["a", "b"]},
        model=model,
        session=session,
    )
    assert result.prompt == "X=b.end"
    assert result.value == ("b", "end", "X=b.end")
    assert {token.text for token in result.tokens if token.fate == "removed" and token.hole == "ANSWER"} == {"b"}
    kept = [token for token in result.tokens if token.fate == "kept"]
    assert [token.source for token in kept if token.hole == "X"] == ["forced"]
    assert set(result.variables) == {"X", "Y"}


def test_without_a_return_its_text_stays(session: lq.Session) -> None:
    model = speaking(("cats and ", "dog"))
    result = lq.run_sync('"cats[X: aside]."', {"aside": aside}, model=model, session=session)
    assert result.prompt == "cats and dog."
    assert result["X"] == " and dog"


@pytest.mark.parametrize("form", ["[X: one_of(ab)]", "[one_of(X, ab)]"], ids=["type", "call"])
def test_the_forms_of_a_call_mean_the_same(session: lq.Session, form: str) -> None:
    result = lq.run_sync(f'"X={form}"', CHOICE, model=speaking(("b) ", "b")), session=session)
    assert result.prompt == "X=b"


def test_a_call_in_where_means_the_same(session: lq.Session) -> None:
    source = '"X=[X]" where one_of(X, ab)'
    assert lq.run_sync(source, CHOICE, model=speaking(("b) ", "b")), session=session).prompt == "X=b"


def test_conditions_of_the_hole_guide_what_the_query_returns(session: lq.Session) -> None:
    source = '"X=[X: one_of(ab)]" where X != "b"'
    result = lq.run_sync(source, CHOICE, model=speaking(("b) ", "b")), session=session)
    assert result["X"] == "a"


def test_conditions_that_cannot_guide_are_checked(session: lq.Session) -> None:
    @lq.query
    def shouted() -> str:
        """lq
        "[Q]" where len(Q) == 1
        return Q.upper()
        """

    with pytest.raises(lq.ConstraintError, match="the query gave 'Q'") as caught:
        source = '"X=[X: shouted]" where X == "q"'
        lq.run_sync(source, {"shouted": shouted}, model=speaking(("X=", "q")), session=session)
    assert caught.value.span is not None and caught.value.span.source == 'X == "q"'


def test_a_value_of_any_type_is_the_variable_and_its_text_the_prompt(session: lq.Session) -> None:
    @lq.query
    def number() -> int:
        """lq
        "as a number: [N: int]"
        return N
        """

    source = '"age [X: number]."\nreturn X + 1'
    result = lq.run_sync(source, {"number": number}, model=speaking(("number: ", "41.")), session=session)
    assert (result.prompt, result.value) == ("age 41.", 42)


def test_queries_call_queries_and_see_only_their_own_names(session: lq.Session) -> None:
    @lq.query
    def inner(options: list[str]) -> str:
        """lq
        "<[X: one_of(options)]>"
        return X + "!"
        """

    source = 'name = "outer"\n"A[X: inner(ab)] {name}"\nreturn X'
    result = lq.run_sync(source, {"inner": inner, "ab": ["a", "b"]}, model=speaking(("b) ", "b")), session=session)
    assert result.prompt == "Ab! outer"


def test_a_query_that_calls_itself(session: lq.Session) -> None:
    @lq.query
    def down(n: int, again: Any) -> None:
        """lq
        "{n}"
        if n > 0:
            "[X: again(n - 1, again)]"
        """

    result = lq.run_sync('"[X: down(3, down)]"', {"down": down}, model=speaking(), session=session)
    assert result.prompt == "3210"


def test_a_query_that_calls_itself_for_ever_is_told_so(session: lq.Session) -> None:
    @lq.query
    def ever(again: Any) -> None:
        """lq
        "[X: again(again)]"
        """

    with pytest.raises(lq.QueryError, match="more than 100 deep") as caught:
        lq.run_sync('"[X: ever(ever)]"', {"ever": ever}, model=speaking(), session=session)
    assert caught.value.span is not None and caught.value.hint is not None


def test_methods_are_queries_too(session: lq.Session) -> None:
    class Menu:
        def __init__(self) -> None:
            self.dishes = ["soup", "fish"]

        @lq.query
        def dish(self) -> str:
            """lq
            "? [D]" where D in self.dishes
            return D
            """

    source = '"I take[X: menu.dish()]."'
    assert (
        lq.run_sync(source, {"menu": Menu()}, model=speaking(("? ", "fish")), session=session).prompt == "I takefish."
    )


def test_a_call_that_does_not_fit_says_where(session: lq.Session) -> None:
    with pytest.raises(lq.QueryError, match="do not fit the query: too many positional arguments") as caught:
        lq.run_sync('"[X: one_of(1, 2, 3)]"', {"one_of": one_of}, model=speaking(), session=session)
    assert caught.value.span is not None and caught.value.span.source == "one_of(1, 2, 3)"


def test_in_a_loop_each_call_begins_where_the_last_one_ended(session: lq.Session) -> None:
    source = 'for each in "xy":\n    "{each}: [X: one_of(ab)]\\n"'
    model = speaking(("x: (one of a, b) ", "a"), ("y: (one of a, b) ", "b"))
    assert lq.run_sync(source, CHOICE, model=model, session=session).prompt == "x: a\ny: b\n"


def test_its_own_decoder_is_heeded_and_calls_draw_differently(session: lq.Session) -> None:
    @lq.query
    def drawn() -> str:
        """lq
        sample(temperature=5.0)
            "[Q]"
            return Q
        where
            len(Q) == 6
        """

    model = lq.ScriptedModel("aaaaaa", certainty=1.0)
    source = '"[A: drawn][B: drawn]"\nreturn A, B'
    first = lq.run_sync(source, {"drawn": drawn}, model=model, session=session, seed=1)
    again = lq.run_sync(source, {"drawn": drawn}, model=model, session=session, seed=1)
    other = lq.run_sync(source, {"drawn": drawn}, model=model, session=session, seed=2)
    assert first.value == again.value != other.value
    assert first["A"] != first["B"]


def test_text_that_was_told_is_never_taken_back(session: lq.Session) -> None:
    async def told() -> tuple[str, str]:
        query, text, prompt = lq.compile('"x [X: one_of(ab)] y[Y: aside]"'), "", ""
        inputs = {**CHOICE, "aside": aside}
        async with aclosing(query.stream(inputs, model=speaking(("b) ", "b")), session=session)) as stream:
            async for event in stream:
                if isinstance(event, events.Text):
                    text += event.text
                if isinstance(event, events.Finished):
                    prompt = event.result.prompt
        return text, prompt

    text, prompt = asyncio.run(told())
    assert text == prompt


def test_the_second_process_asks_nothing(tmp_path: Path) -> None:
    source, inputs = '"X=[X: one_of(ab)].[Y]" where len(Y) < 5', CHOICE
    options: Any = {"model": lq.ScriptedModel("X=(one of a, b) b"), "cache": str(tmp_path / "x.tokens")}
    off = lq.run_sync(source, inputs, model=options["model"], cache=False)
    first = lq.run_sync(source, inputs, session=lq.Session(), **options)
    second = lq.run_sync(source, inputs, session=lq.Session(), **options)
    assert off.prompt == first.prompt == second.prompt
    assert second.usage.forward_passes == 0


ANSWER = '{"answer":"b"}'


@pytest.mark.parametrize("config", [VLLM, OPENAI_CHAT], ids=["vllm", "chat"])
def test_on_a_server(session: lq.Session, config: Any) -> None:
    def script(text: bytes) -> bytes:
        said = text.decode()
        asked, _, begun = said.rpartition("(one of a, b) ")
        if asked and config is OPENAI_CHAT and ANSWER.startswith(begun):
            return ANSWER[len(begun) :].encode()  # a chat is held by a schema
        endings = {"(one of a, b)": b" b", "(one of a, b) ": b"b", ".": b" ok"}
        return next((goes_on for end, goes_on in endings.items() if said.endswith(end)), b"")

    with serving(config, script) as server:
        model = lq.model(f"openai/{server.config.model}", base_url=server.base_url, api_key="x")
        source = '"X=[X: one_of(ab)].[Y]" where len(Y) < 9'
        result = lq.run_sync(source, CHOICE, model=model, session=session)
    assert result["X"] == "b"
    assert result.prompt == f"X=b.{result['Y']}"
    assert any(token.fate == "removed" for token in result.tokens)


def test_a_query_with_a_model_of_its_own_goes_on_with_the_text(session: lq.Session, tmp_path: Path) -> None:
    other = speaking(("one word: ", "five"))

    @lq.query(model=other)
    def word() -> str:
        """lq
        " In one word: [W]"
        return W
        """

    source = '"2 + 3 = [X: word].[Y]"\nreturn X, Y'
    model = speaking(("= five.", " So."))
    result = lq.run_sync(source, {"word": word}, model=model, session=session)
    assert (result.prompt, result.value) == ("2 + 3 = five. So.", ("five", " So."))
    path = str(tmp_path / "x.tokens")
    lq.run_sync(source, {"word": word}, model=model, cache=path, session=lq.Session())
    again = lq.run_sync(source, {"word": word}, model=model, cache=path, session=lq.Session())
    assert (again.prompt, again.usage.forward_passes) == (result.prompt, 0)


def test_what_it_returns_is_as_its_annotation_says(session: lq.Session) -> None:
    @lq.query
    def number() -> float:
        """lq
        "as a number: [N: int]"
        return N
        """

    result = lq.run_sync(
        '"[X: number]"\nreturn X', {"number": number}, model=speaking(("number: ", "4.")), session=session
    )
    assert isinstance(result.value, float)


@pytest.mark.parametrize("hole", ["X: remark()", "@shout X", "@broken X"], ids=["query", "decorator", "error"])
def test_a_value_that_takes_the_place_of_text_behind_a_token_that_runs_on_S14(session: lq.Session, hole: str) -> None:
    """The token `\\n-` ends A and runs past its end. It is cut there before the next hole begins, and only once."""
    source = f"""
@query
def remark():
    '''lq
    "zz[B]" where len(B) == 1
    '''
def shout(value):
    return value, value.upper() + "!"
def broken(value):
    raise ValueError(value)
try:
    "[A]" where STOPS_AT(A, "\\n")
    "[{hole}]" where len(X) == 2
except Exception as error:
    "{{type(error).__name__}}"
" end"
"""
    result = lq.run_sync(source, model=lq.ScriptedModel("a\n- bcdef"), session=session)
    said = {"X: remark()": "ConstraintError", "@shout X": result.variables.get("X", "").upper() + "!"}
    assert result.prompt == f"a\n{said.get(hole, 'ValueError')} end"
    assert [token.data for token in result.tokens if token.fate == "cut"] == [b"\n-"]
    result.check_ledger()


def test_conditions_join_those_of_a_called_query_that_returns_its_hole_and_else_check_its_answer() -> None:
    source = """
@query
def word():
    '''lq
    "[R]" where R in ["aa", "bb"]
    return R
    '''
"[A: word()]" where CLAUSE
"""
    model = lq.ScriptedModel("aa")
    assert lq.run_sync(source.replace("CLAUSE", 'A.upper() == "BB"'), model=model)["A"] == "bb"
    with pytest.raises(lq.ConstraintError, match="the query gave 'aa'") as caught:
        other = source.replace("return R", "return R.strip()")
        lq.run_sync(other.replace("CLAUSE", 'str.upper(A) == "BB"'), model=model)
    assert caught.value.hint is not None
    assert lq.run_sync(source.replace("CLAUSE", 'str.upper(A) == "BB"'), model=model)["A"] == "bb"


def test_python_refuses_what_a_query_would_return_and_the_query_finds_another(session: lq.Session) -> None:
    model = speaking(("b) ", "a"), ("X=b.", "end"))
    source = '"X=[X: one_of(ab)]." where judge(X)\n"[Y]"'
    given = {**CHOICE, "judge": lambda text: text == "b"}
    for options in ({}, {"decoder": "sample", "seed": 1}, {"decoder": "beam", "n": 2}):
        results = lq.run_sync(source, given, model=model, session=session, **options)
        best = results[0] if isinstance(results, list) else results
        assert best["X"] == "b" and best.prompt.startswith("X=b.")


def test_python_refuses_what_a_query_of_a_query_would_return() -> None:
    seen: list[str] = []

    def judge(text: str) -> bool:
        seen.append(text)
        return text == "b"

    source = '@query\ndef between():\n    """lq\n    "[Z: one_of(ab)]" where Z != "c"\n    return Z\n    """\n'
    source += '"X=[X: between()]." where judge(X)'
    given = {"one_of": one_of, "ab": ["a", "b", "c"], "judge": judge}
    result = lq.run_sync(source, given, model=speaking(("c) ", "a")), cache=False)
    assert result["X"] == "b" and seen[0] == "a"


def test_python_judges_a_value_as_the_query_gives_it_and_not_before_a_decorator() -> None:
    shout = lq.Decorator(post=lambda value, prompt: value.upper())
    source = '@query\ndef loud():\n    """lq\n    "[@shout Z]" where Z in ["a", "b"]\n    return Z\n    """\n'
    source += '"X=[X: loud()]." where judge(X)'
    given = {"shout": shout, "judge": lambda text: text == "A"}
    assert lq.run_sync(source, given, model=speaking(("X=", "a")), cache=False)["X"] == "A"


@pytest.mark.parametrize(("clause", "holds"), [("== 3", True), ("== 5", False), ("< 5", True), ("> 3", False)])
def test_tokens_of_a_value_that_a_query_gave_are_those_that_spell_it(clause: str, holds: bool) -> None:
    source = '@query\ndef one():\n    """lq\n    "([A])" where len(A) == 1\n    """\n"[Y: one()]" where len(TOKENS(Y)) '
    model = lq.ScriptedModel("(a)")
    assert lq.run_sync('"[Y]"', model=model)["Y"] == "(a)" and len(model.tokenizer.encode(b"(a)")) == 3
    if holds:
        assert lq.run_sync(source + clause, model=model, cache=False)["Y"] == "(a)"
    else:
        with pytest.raises(lq.ConstraintError, match=r"\[Y\] does not meet"):
            lq.run_sync(source + clause, model=model, cache=False)
    if not holds:
        opposite = source.replace("where len(TOKENS", "where not len(TOKENS") + clause
        assert lq.run_sync(opposite, model=model, cache=False)["Y"] == "(a)"


def test_a_decorator_gives_a_value_of_as_many_tokens_as_spell_it() -> None:
    given = {"fixed": lq.Decorator(pre=lambda name: "abc")}
    model = lq.ScriptedModel("abc")
    assert lq.run_sync('"[@fixed X]" where len(TOKENS(X)) == 3', given, model=model)["X"] == "abc"
    with pytest.raises(lq.ConstraintError, match=r"a decorator gave 'abc'"):
        lq.run_sync('"[@fixed X]" where len(TOKENS(X)) == 2', given, model=model)


CALLED = '''@query
async def called(items):
    """lq
    {}
    """
"1"
"2"
"""3"""
{}
'''
AFTER = '"[Z]" where len(Z) == 2'
DECODERS: tuple[dict[str, Any], ...] = (
    {},
    {"decoder": "sample", "seed": 1},
    {"decoder": "beam", "n": 3},
    {"decoder": "best_k", "n": 2},
)


def all_of(body: str, caller: str, decoder: dict[str, Any], inputs: dict[str, Any] | None = None) -> list[lq.Result]:
    source = CALLED.format(body.replace("\n", "\n    "), caller)
    answer: Any = lq.run_sync(source, inputs or {}, model="demo", session=lq.Session(), **decoder)
    results = answer if isinstance(answer, list) else [answer]
    for each in results:
        each.check_ledger()
    return results


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_query_without_prompts_may_await_and_return(decoder: dict[str, Any]) -> None:
    body = "import asyncio\nb = await asyncio.sleep(0, items * 2)\nreturn b"
    for result in all_of(body, f'"[X: called(3)]"\n{AFTER}', decoder):
        assert result["X"] == 6 and result.prompt.startswith("1236")


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_query_with_a_decoder_of_its_own_may_be_called_before_a_fork(decoder: dict[str, Any]) -> None:
    body = 'sample(temperature=0.5)\n"<[A]>" where len(A) == 2\nreturn A'
    for result in all_of(body, f'"[X: called(3)]"\n{AFTER}\nreturn X + Z', decoder):
        assert result.value == result["X"] + result["Z"] == result.prompt[3:]


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_handler_sees_no_text_of_a_query_that_failed(decoder: dict[str, Any]) -> None:
    body = '"<[A]>" where len(A) == 2\nitems.append(A)\nraise ValueError(A)'
    caller = (
        f'xs = []\ntry:\n    "[X: called(xs)]"\nexcept ValueError as e:\n    "({{context.prompt}})"\n{AFTER}\nreturn xs'
    )
    for result in all_of(body, caller, decoder):
        assert result.prompt.startswith("123(123)") and len(result.value) == 1 and "X" not in result


@pytest.mark.parametrize("decoder", DECODERS)
def test_what_a_query_does_to_an_argument_is_done_once_in_each_branch(decoder: dict[str, Any]) -> None:
    body = '"[A]" where len(A) == 1\nitems.append(A)\n"[B]" where len(B) == 1\nreturn A + B'
    for result in all_of(body, f'xs = []\n"[X: called(xs)]"\n{AFTER}\nreturn xs', decoder):
        assert result.value == [result["X"][0]]


def test_a_decorator_of_a_query_in_a_hole_decorates_no_later_hole() -> None:
    caller = f'try:\n    "[@up X: called(1)]"\nexcept ValueError:\n    "no"\n{AFTER}'
    body = '"[A]" where len(A) == 1\nraise ValueError(A)'
    inputs = {"up": lambda value: "UP"}
    for result in all_of(body, caller, {"decoder": "beam", "n": 3}, inputs):
        assert result["Z"] != "UP"


def test_a_traceback_has_the_line_of_the_call() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        all_of('"[A]" where len(A) == 1\n1 / 0', '"[X: called(1)]"', {})
    lines = [frame.lineno for frame in caught.traceback if str(frame.path).endswith("<query>")]
    assert len(lines) == 2 and lines[0] > lines[1]


def test_a_called_query_of_a_run_that_is_left_runs_its_finally() -> None:
    log: list[str] = []
    body = (
        'try:\n    "[A]" where len(A) == 1\n    "[B]" where len(B) == 1\nfinally:\n    "end"\n    items.append("inner")'
    )
    source = CALLED.format(
        body.replace("\n", "\n    "), 'try:\n    "[X: called(log)]"\nfinally:\n    log.append("outer")'
    )

    async def some() -> None:
        async with aclosing(lq.compile(source).stream({"log": log}, model="demo", session=lq.Session())) as stream:
            async for event in stream:
                if isinstance(event, events.HoleClosed):
                    break

    asyncio.run(some())
    assert log == ["inner", "outer"]


def test_a_called_query_that_waits_for_the_other_branches_is_refused() -> None:
    body = '"[A]" where len(A) == 1\nawait items.acquire()\n"[B]" where len(B) == 1\nreturn A + B'
    with pytest.raises(lq.QueryError, match=r"waits in Lock.acquire"):
        all_of(body, f'"[X: called(lock)]"\n{AFTER}', {"decoder": "beam", "n": 2}, {"lock": asyncio.Lock()})
