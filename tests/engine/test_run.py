"""Runs from source to result: control flow, text and tokens, stops, endings, inputs, isolation, failures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.models.base import ScoreRequest
from tests.tables import cases


def run(source: str, says: str, session: lq.Session, inputs: dict[str, Any] | None = None, **options: Any) -> lq.Result:
    return lq.run_sync(source, inputs, model=lq.ScriptedModel(says), session=session, **options)


# Control flow and names ------------------------------------------------------------------------------------------


def test_loops_branches_break_continue_and_else(session: lq.Session) -> None:
    source = """
seen = []
for i in range(9):
    if i == 1:
        continue
    if i == 4:
        break
    "{i}:[X]\\n" where len(X) == 1
    seen.append(X)
else:
    "never"
while len(seen) < 5:
    "w[Y]" where len(Y) == 1
    seen.append(Y)
else:
    "."
for nothing in []:
    "no"
else:
    "!"
return seen
"""
    result = run(source, "0:a\n2:b\n3:c\nwdwe.!", session)
    assert result.value == ["a", "b", "c", "d", "e"]
    assert result.prompt == "0:a\n2:b\n3:c\nwdwe.!"


def test_nested_loops_keep_their_own_iterators(session: lq.Session) -> None:
    source = """
for a in "xy":
    for b in (1, 2):
        "{a}{b} "
        if b == 1:
            continue
        "| "
"""
    assert run(source, "", session).prompt == "x1 x2 | y1 y2 | "


def test_unpacking_targets(session: lq.Session) -> None:
    source = 'for n, (a, *rest) in enumerate([("p", 1, 2), ("q", 3)]):\n    "{n}{a}{rest};"'
    assert run(source, "", session).prompt == "0p[1, 2];1q[3];"


def test_functions_and_comprehensions_see_variables_as_they_are_when_called(session: lq.Session) -> None:
    source = """
factor = 1
def times(number):
    return number * factor
"[X]" where X == "3"
factor = int(X)
late = [times(n) for n in range(3)]
class Box:
    def get(self):
        return X
"[X]" where X == "4"
return late, Box().get(), (lambda: factor)()
"""
    assert run(source, "34", session).value == ([0, 3, 6], "4", 3)


def test_functions_before_the_header_see_the_holes(session: lq.Session) -> None:
    source = """
prefix = "<"
def wrapped():
    return prefix + X + context.prompt
argmax
    "a[X]" where X == "b"
    prefix = ">"
    return wrapped()
"""
    assert run(source, "", session).value == ">bab"


def test_await_and_async_values_in_text(session: lq.Session) -> None:
    source = """
import asyncio
async def fetch(text):
    await asyncio.sleep(0)
    return text.upper()
value = await fetch("a")
"{value}{fetch('b')}[X]" where X in ["c"]
return await fetch(X)
"""
    result = run(source, "", session)
    assert (result.prompt, result.value) == ("ABc", "C")


def test_formats_conversions_and_escapes(session: lq.Session) -> None:
    source = 'x = 2.5\ny = "é"\n"{x:>6.2f}|{y!r}|{y!a}|[[not a hole]]|{{x}}"'
    assert run(source, "", session).prompt == "  2.50|'é'|'\\xe9'|[not a hole]|{x}"


def test_interpolated_brackets_never_open_a_hole(session: lq.Session) -> None:
    result = run('"{text}[X]" where X == "!"', "", session, {"text": "[Y] {z} <|eos|>"})
    assert result.prompt == "[Y] {z} <|eos|>!"
    assert dict(result.variables) == {"X": "!"}


def test_a_return_ends_the_query_and_a_bare_one_returns_nothing(session: lq.Session) -> None:
    assert run('"a"\nreturn 1\n"b"', "", session).prompt == "a"
    assert run('"a"\nif True:\n    return\n"b"', "", session).value is None


def test_no_state_is_shared_between_runs(session: lq.Session) -> None:
    query = lq.compile(
        'items = []\ndef add(x, to=[]):\n    to.append(x)\n    return to\n"[X]" where X == "a"\nreturn add(X)'
    )

    async def both() -> list[lq.Result]:
        return await asyncio.gather(*(query.run(model=lq.ScriptedModel("a"), session=session) for _ in range(3)))

    assert [result.value for result in asyncio.run(both())] == [["a"]] * 3


def test_the_text_so_far_is_context_prompt(session: lq.Session) -> None:
    source = """
"a[X]" where X == "b"
first = context.prompt
def later():
    return context.prompt
"c"
return first, later()
"""
    assert run(source, "", session).value == ("ab", "abc")


def test_an_empty_prompt_and_a_query_without_holes(session: lq.Session) -> None:
    result = run('""\nx = 1', "", session)
    assert (result.prompt, result.tokens, result.usage.forward_passes) == ("", (), 0)


# Text and tokens -------------------------------------------------------------------------------------------------


def test_text_in_pieces_and_in_one_string_gives_the_same_tokens_S10(session: lq.Session) -> None:
    says = "Option A and more\n"
    pieces = run('s = "Opt"\n"{s}"\n"ion"\n" "\n"[X]" where STOPS_AT(X, "\\n")', says, session)
    whole = run('"Option [X]" where STOPS_AT(X, "\\n")', says, session)
    assert [token.id for token in pieces.tokens] == [token.id for token in whole.tokens]


def test_a_prompt_that_ends_inside_a_token_is_healed_without_an_extra_pass_S10(session: lq.Session) -> None:
    result = run('"Q: Opt[X]" where STOPS_BEFORE(X, " A")', "Q: Option A", session)
    assert result["X"] == "ion"
    # ` Option` is one token although the prompt ends in the middle of it
    assert b" Option" in [token.data for token in result.tokens]
    plain = run('"Q:[X]" where X == " Option"', "Q: Option A", session)
    assert plain.usage.forward_passes == 0


def test_a_stop_is_an_observation_and_the_surplus_stays_where_the_text_goes_on_so_S14(session: lq.Session) -> None:
    source = '"-[X]" where STOPS_AT(X, "\\n")\n"-[Y]" where STOPS_AT(Y, "\\n")'
    result = run(source, "-ab\n-cd\n\nef", session)
    assert dict(result.variables) == {"X": "ab\n", "Y": "cd\n"}
    crossing = next(token for token in result.tokens if token.data == b"\n-")
    assert (crossing.hole, crossing.fate) == ("X", "kept")
    cut = next(token for token in result.tokens if token.data == b"\n\n")
    assert (cut.hole, cut.fate) == ("Y", "cut")
    assert result.usage.wasted_tokens == 1


def test_a_surplus_that_does_not_fit_is_dropped_and_the_path_goes_on_from_the_cut_text_S14(session: lq.Session) -> None:
    result = run('"-[X]" where STOPS_AT(X, "\\n")\n"*[Y]" where len(Y) == 2', "-ab\n-cd", session)
    assert result.prompt.startswith("-ab\n*")
    assert [token.data for token in result.tokens if token.fate == "cut"] == [b"\n-"]


def test_a_surplus_that_only_a_later_statement_completes_stays_S14(session: lq.Session) -> None:
    source = 'for item in range(2):\n    "[X]" where STOPS_AT(X, "\\n")\n    dash = "-"\n    "{dash}"\n"!"'
    result = run(source, "ab\n-cd\n-!", session)
    assert [token.data for token in result.tokens if token.data == b"\n-"] == [b"\n-"] * 2
    assert result.usage.wasted_tokens == 0


def test_a_stop_before_takes_back_several_tokens_S15(session: lq.Session) -> None:
    result = run('"[X]" where STOPS_BEFORE(X, "xyz")\n"?"', "abxyzcd", session)
    assert (result["X"], result.prompt) == ("ab", "ab?")
    assert b"".join(token.data for token in result.tokens if token.fate == "cut") == b"xyz"


def test_special_token_spellings_in_values_are_plain_text_S12(session: lq.Session) -> None:
    result = lq.run_sync('"Say {text}:[X]" where len(X) < 5', {"text": "<|eos|><|bos|>"}, model="demo", session=session)
    assert result.prompt.startswith("Say <|eos|><|bos|>:")
    assert sum(token.text == "<|eos|>" for token in result.tokens) == 0


# Holes -----------------------------------------------------------------------------------------------------------


@cases("engine/run", "how a hole ends S13", globals())
def test_how_a_hole_ends_S13(session: lq.Session, where: str, says: str, value: str, ending: str) -> None:
    result = run(f'"[X]" where {where}', says, session)
    if "not" not in where:
        assert result["X"] == value
    assert result.endings["X"] == ending
    condition = where.replace("STOPS_AT", "(lambda *_: True)").replace("STOPS_BEFORE", "(lambda *_: True)")
    assert eval(condition, {"X": result["X"]})


def test_a_hole_that_is_filled_again_was_charged_the_forced_tokens_of_its_last_value(session: lq.Session) -> None:
    model = lq.ScriptedModel("2024-02-29", certainty=20.0)  # a value of ten tokens, nine of them forced
    source = '".[Y] then [Y]." where Y in ["none", "ab", "2024-02-29"]'
    assert lq.run_sync(source, model=model, max_tokens=10, session=session).prompt.startswith(".2024-02-29 then ")


def test_a_token_within_forced_text_left_none_for_the_rest_of_the_value_S19(session: lq.Session) -> None:
    model = lq.ScriptedModel("any script", seed=0, certainty=0.0)
    conditions = (r"Y.startswith('é')", r"re.fullmatch('\\S+ \\S+', Y)", "REGEX(Y, '(?s:.){4,12}')")
    result = lq.run_sync(f'"12[Y]\\n." where {" and ".join(conditions)}', model=model, max_tokens=10, session=session)
    assert result["Y"].startswith("é") and re.fullmatch(r"\S+ \S+", result["Y"])


def test_max_tokens_ends_a_hole_validly_S19(session: lq.Session) -> None:
    result = run('"[X]" where "zz" in X', "abcdefghijkl", session, max_tokens=5)
    assert result["X"].endswith("zz")
    assert len([token for token in result.tokens if token.hole == "X"]) <= 5
    assert run('"[X]"', "abcdefghijkl", session, max_tokens=5)["X"] == "abcde"


def test_a_fully_determined_hole_costs_no_call(session: lq.Session) -> None:
    model = lq.ScriptedModel("abc")
    result = lq.run_sync('"Say:[X].[Y]" where X == "only this" and Y in ["or that"]', model=model, session=session)
    assert (model.calls, result.usage.tokens_from_model) == (0, 0)
    assert result.prompt == "Say:only this.or that"
    assert (result.usage.tokens_forced or 0) > 0


def test_a_choice_costs_as_many_calls_as_it_has_undecided_branches(session: lq.Session) -> None:
    model = lq.ScriptedModel("we choose Option B with context")
    source = '"we choose[X]" where X in [" Option A with a lot of context", " Option B with context", " Another one"]'
    result = lq.run_sync(source, model=model, session=session)
    assert result["X"] == " Option B with context"
    assert model.calls == 2


def test_a_condition_may_use_earlier_holes_and_python_values_S20(session: lq.Session) -> None:
    source = 'limit = 3\n"[A]-[B]" where len(A) == 2 and len(B) < limit and B != A and not B in [A + A]'
    result = run(source, "ab-abab", session)
    assert result["A"] == "ab"
    assert len(result["B"]) < 3 and result["B"] != "ab"


def test_unsatisfiable_conditions_raise_and_name_the_clause(session: lq.Session) -> None:
    with pytest.raises(lq.ConstraintError, match="`len\\(X\\) < 2` cannot hold together") as caught:
        run('names = ["abc", "def"]\n"[X]" where X in names and len(X) < 2', "", session)
    assert caught.value.span is not None and caught.value.span.source == "len(X) < 2"
    with pytest.raises(lq.ConstraintError, match=r"no text satisfies|is false"):
        run('names = []\n"[X]" where X in names', "", session)
    with pytest.raises(lq.ConstraintError, match="within max_tokens"):
        run('"[X]" where len(X) > 50', "", session, max_tokens=3)


def test_a_condition_with_a_value_of_the_wrong_type_names_its_place(session: lq.Session) -> None:
    with pytest.raises(lq.ConstraintError, match="a number") as caught:
        run('limit = "3"\n"[X]" where len(X) < limit', "", session)
    assert caught.value.span is not None and caught.value.span.line == 2


# Inputs, options, failures ---------------------------------------------------------------------------------------


def test_a_missing_input_is_named_with_its_place(session: lq.Session) -> None:
    with pytest.raises(lq.InputError, match="'place' is missing, and so are time") as caught:
        run('"In {place} at {time}"', "", session)
    assert caught.value.span is not None and caught.value.span.source == "place"


def test_an_unknown_input_gets_a_suggestion(session: lq.Session) -> None:
    with pytest.raises(lq.InputError, match="no input 'plaec'") as caught:
        run('"In {place}"', "", session, {"plaec": "Rome", "place": "x"})
    assert caught.value.hint == "did you mean place?"


def test_header_options_and_call_options(session: lq.Session) -> None:
    source = 'sample(temperature=0.7, seed=5, max_tokens=4)\n    "[X]"'
    model = lq.ScriptedModel("", certainty=0)
    first = lq.run_sync(source, model=model, session=session)
    assert first.seed == 5
    assert lq.run_sync(source, model=model, session=session).prompt == first.prompt
    others = {lq.run_sync(source, model=model, session=session, seed=seed).prompt for seed in range(8)}
    assert len(others) > 4
    assert lq.run_sync(source, model=model, session=session, seed=5, max_tokens=2).prompt != first.prompt


def test_a_run_without_a_seed_names_the_one_it_drew(session: lq.Session) -> None:
    model = lq.ScriptedModel("", certainty=0)
    first = lq.run_sync('"[X]"', model=model, session=session, decoder="sample", max_tokens=8)
    again = lq.run_sync('"[X]"', model=model, session=session, decoder="sample", max_tokens=8, seed=first.seed)
    assert again.prompt == first.prompt


@cases("engine/run", "wrong options are refused with a sentence", globals())
def test_wrong_options_are_refused_with_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((lq.InputError, lq.ModelError), match=sentence):
        lq.run_sync('"[X]"', **options)


def test_an_exception_of_the_querys_own_python_is_the_users(session: lq.Session) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run('"a"\nx = 1\ny = x / 0', "", session)
    frames = caught.traceback
    assert (str(frames[-1].path), frames[-1].lineno) == ("<query>", 2)


class Failing(lq.ScriptedModel):
    """Says a few tokens and then breaks down."""

    def __init__(self, says: str, after: int) -> None:
        super().__init__(says)
        self.after = after

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        if self.calls >= self.after:
            raise OSError("the disk is on fire")
        return await super().score(requests)


def test_a_model_that_raises_mid_run_names_the_hole_and_what_it_said_stays(session: lq.Session) -> None:
    model = Failing("abcdef", after=3)
    with pytest.raises(lq.ModelError, match=r"\[X\] could not be filled: .*the disk is on fire") as caught:
        lq.run_sync('"Say:[X]" where len(X) == 5', model=model, session=session)
    assert caught.value.span is not None and caught.value.span.source == "[X]"
    model.after = 100
    calls = model.calls
    result = lq.run_sync('"Say:[X]" where len(X) == 5', model=model, session=session)
    assert result.usage.tokens_from_cache == 3
    assert model.calls - calls == 2


def test_a_text_longer_than_the_context_names_the_hole(session: lq.Session) -> None:
    with pytest.raises(lq.ModelError, match=r"\[X\] exceeds the context of scripted, which reads at most 4096 tokens"):
        run('"{text}[X]"', "", session, {"text": "x " * 4000})


@pytest.mark.parametrize(
    "source", ['"{text}[X]"', '"[A]" where A in ["y"]\n"{text}[X]"', '"{text}[X]" where X in ["a", "b"]']
)
def test_a_text_that_cannot_fit_is_refused_without_encoding_it(session: lq.Session, source: str) -> None:
    model = lq.ScriptedModel("abc")
    encoded: list[int] = []
    encode = model.tokenizer.encode
    model.tokenizer.encode = lambda text: encoded.append(len(text)) or encode(text)  # type: ignore
    with pytest.raises(lq.ModelError, match=r"\[X\] exceeds the context of scripted, which reads at most 4096 tokens"):
        lq.run_sync(source, {"text": "x" * 400_000}, model=model, session=session)
    assert sum(encoded) < 1000


def test_a_text_that_the_hole_itself_forces_may_be_longer_than_the_context(session: lq.Session) -> None:
    text = "x" * 40_000
    result = run('argmax(max_tokens=40_001)\n    "[X]" where X in [text, text + "!"]', "", session, {"text": text})
    assert result.variables["X"] == text


def test_cancelling_one_run_takes_nothing_from_another_S32(session: lq.Session) -> None:
    class Slow(lq.ScriptedModel):
        async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
            await asyncio.sleep(0.01)
            return await super().score(requests)

    model = Slow("abcdef")
    query = lq.compile('"Say:[X]" where len(X) == 4')

    async def race() -> tuple[lq.Result, bool]:
        first = asyncio.create_task(query.run(model=model, session=session))
        second = asyncio.create_task(query.run(model=model, session=session))
        await asyncio.sleep(0.015)
        first.cancel()
        result = await second
        return result, first.cancelled() or isinstance(
            (await asyncio.gather(first, return_exceptions=True))[0], BaseException
        )

    result, cancelled = asyncio.run(race())
    assert cancelled
    assert result["X"] == "abcd"
    assert model.calls == 4


def test_threads_share_one_session_and_get_the_same_answers_S28(session: lq.Session) -> None:
    source = 'sample(seed=3)\n    "Things to pack for {place}:\\n-[A]-[B]"\nwhere len(A) < 12 and len(B) < 12'
    query = lq.compile(source)
    places = ["Rome", "Oslo", "Rome", "Cairo"] * 3
    with ThreadPoolExecutor(6) as pool:
        crowd = list(pool.map(lambda place: query.run_sync({"place": place}, session=session).prompt, places))
    alone = {place: query.run_sync({"place": place}, session=lq.Session(), cache=False).prompt for place in set(places)}
    assert crowd == [alone[place] for place in places]


@pytest.mark.parametrize(
    "value",
    [
        *("x:>{w}", "x!r:>{w}", "x:{f}", "y:{w}.{n}f", "y:{w + 1}.{n!s}f", "y:{w:d}.2f", "x:"),
        *("x=", " x = ", "x=!s", "x=:>5", "x=:>{w}", "d['a']=", "[[1][0]]=", "x==1", "x!=1"),
    ],
)
def test_a_value_is_formatted_as_in_an_f_string(value: str, session: lq.Session) -> None:
    names: dict[str, Any] = {"x": "ab", "w": 6, "f": "*^7", "y": 3.14159, "n": 2, "d": {"a": 1}}
    query = "".join(f"{name} = {each!r}\n" for name, each in names.items()) + f'"""a{{{value}}}b"""'
    result = lq.run_sync(query, model=lq.ScriptedModel(""), session=session)
    assert result.prompt == eval(f'f"""a{{{value}}}b"""', names)


def test_a_name_in_another_form_of_its_letters_is_the_same_name(session: lq.Session) -> None:
    source = '"[ﬁ] [X]" where len(fi) == 2 and X == fi\nreturn ﬁ + fi'
    result = lq.run_sync(source, model=lq.ScriptedModel("ab ab"), session=session)
    assert (dict(result.variables), result.value) == ({"fi": "ab", "X": "ab"}, "abab")
    chosen = lq.run_sync('"Say [ﬁ]" distribution ﬁ in ["a", "b"]', model=lq.ScriptedModel("Say b"), session=session)
    assert chosen["fi"] == "b"


def test_a_byte_order_mark_before_a_query_is_no_part_of_it(session: lq.Session) -> None:
    assert lq.run_sync('\ufeff"hello"', model=lq.ScriptedModel(""), session=session).prompt == "hello"


@pytest.mark.parametrize(
    ("query", "least", "most"),
    [
        ('"The [S]" where len(TOKENS(S)) <= 2', 0, 2),
        ('"Go[S]" where len(TOKENS(S)) == 1', 1, 1),
        ('"Go to the [S]" where len(TOKENS(S)) == 5', 5, 5),
    ],
)
@pytest.mark.parametrize("seed", [0, 3, 11])
def test_a_first_token_healed_over_the_end_of_the_prompt_counts_where_it_is_shown(
    query: str, least: int, most: int, seed: int
) -> None:
    """S15."""
    result = lq.run_sync(f"sample(temperature=2, seed={seed})\n{query}", model="demo")
    assert least <= sum(token.hole == "S" for token in result.tokens) <= most
