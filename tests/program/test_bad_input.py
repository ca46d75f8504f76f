"""What is wrong with a `where` clause: one sentence, its place, and a hint, as early as it can be known (S22)."""

from __future__ import annotations

import enum
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

import lmql_lite as lq

LONG = 10**130


@pytest.mark.parametrize(
    ("where", "place", "sentence"),
    [
        # options
        ("X in []", "X in []", "nothing can fill"),
        ("len(X) < 9 and X in ()", "X in ()", "nothing can fill"),
        ("X == 5", "5", "one of several texts; this is 5"),
        ('X in ["a", 5]', '["a", 5]', "this is 5"),
        ("X in 5", "5", "list, set or other collection"),
        ('X in [b"a"]', '[b"a"]', "this is b'a'"),
        ('X in {"a": 1, 5: 2}', '{"a": 1, 5: 2}', "this is 5"),
        (f'X in "{"a" * 201}"', f'"{"a" * 201}"', "up to 200 characters; this one has 201"),
        ('X.lower() in ["a", None]', '["a", None]', "this is None"),
        ('X.lower() == "Yes"', 'X.lower() == "Yes"', "no text satisfies"),
        ('X.strip() == " a"', 'X.strip() == " a"', "no text satisfies"),
        ("5 in X", "5", "can only contain text"),
        ("X.startswith(['a'])", "['a']", "tuple of texts"),
        ("STARTS_WITH(X, [])", "STARTS_WITH(X, [])", "nothing can fill"),
        ('ENDS_WITH(X, ["a", 5])', '["a", 5]', "collection of texts"),
        ('"\\ud800" in X', '"\\ud800"', "surrogate"),
        ('X in ["a", "\\udfff"]', '["a", "\\udfff"]', "surrogate"),
        # numbers
        ('len(X) < "a"', '"a"', "compared with a number"),
        ('len(X) in "abc"', '"abc"', "collection of numbers"),
        ('len(WORDS(X)) in [1, "a"]', '[1, "a"]', "collection of numbers"),
        (f"int(X) < {LONG}", f"{LONG}", "up to 120 digits"),
        (f"float(X) > -{LONG}", f"-{LONG}", "up to 120 digits"),
        ('float(X) < "1.5"', '"1.5"', "compared with a number"),
        ('int(X) in ["a"]', '["a"]', "compared with a number"),
        ("len(X) in range(0, 1000000, 2)", "range(0, 1000000, 2)", "more than 100,000"),
        # bounds that contradict each other
        ("len(X) < 0", "len(X) < 0", "no text satisfies"),
        ("3 < len(X) < 2", "3 < len(X) < 2", "no text satisfies"),
        ("len(X) > 5 and len(X) < 3", "len(X) < 3", "`len\\(X\\) > 5` and `len\\(X\\) < 3` cannot hold together"),
        ('len(X) > 5 and "a" in X and len(X) < 3', "len(X) < 3", "`len\\(X\\) > 5` and `len\\(X\\) < 3` cannot"),
        ("len(WORDS(X)) > 3 and len(WORDS(X)) < 2", "len(WORDS(X)) < 2", "cannot hold together"),
        ('X in ["cat", "horse"] and len(X) == 4', "len(X) == 4", "cannot hold together"),
        ('X == "a" and X != "a"', 'X != "a"', "cannot hold together"),
        # patterns
        ('REGEX(X, "(?=a)b")', '"(?=a)b"', "ahead or behind"),
        ('re.search("(?<!a)b", X)', '"(?<!a)b"', "ahead or behind"),
        ('re.fullmatch(r"(a)\\1", X)', 'r"(a)\\1"', "earlier group"),
        ('REGEX(X, "(a")', '"(a"', "not a regular expression"),
        ('re.search("(a", X, re.I)', '"(a"', "not a regular expression"),
        ("REGEX(X, 5)", "5", "is a text, or what re.compile"),
        ('re.search("a|^b", X)', '"a|^b"', "two ends only"),
        (r're.match(r"\bword", X)', r'r"\bword"', "word borders"),
        # stops
        ('STOPS_AT(X, "")', '""', "not empty"),
        ("STOPS_AT(X, [])", "[]", "not empty"),
        ('STOPS_BEFORE(X, ["a", 5])', '["a", 5]', "this is 5"),
        ('STOPS_AT(X, re.compile("a*"))', 're.compile("a*")', "matches the empty text"),
        ('STOPS_AT(X, re.compile("(?=a)b"))', 're.compile("(?=a)b")', "ahead or behind"),
        ('STOPS_AT(X, re.compile("(a"))', 're.compile("(a")', "not a regular expression"),
        ('STOPS_AT(X, re.compile("a$"))', 're.compile("a$")', "cannot stand in a stop"),
        ('STOPS_AT(X, re.compile(b"a"))', 're.compile(b"a")', "not empty"),
        ('STOPS_BEFORE(X, re.compile("a+"))', 're.compile("a+")', "any number of characters, more than the 64"),
        ('STOPS_BEFORE(X, ["b", re.compile("a{65}")])', '["b", re.compile("a{65}")]', "65 characters"),
        ('not STOPS_AT(X, "a")', 'STOPS_AT(X, "a")', "cannot be negated"),
        ('X == "b" or not (INT(X) and STOPS_BEFORE(X, "a"))', 'STOPS_BEFORE(X, "a")', "cannot be negated"),
        ('all([STOPS_AT(X, "a")])', 'all([STOPS_AT(X, "a")])', "STOPS_AT cannot be part of a condition"),
        # functions of the language
        ('STOP_AT(X, "a")', "STOP_AT", "did you mean 'STOPS_AT'"),
        ('stops_at(X, "a")', "stops_at", "did you mean 'STOPS_AT'"),
        ('TOKENS(X)[0] == "a"', "TOKENS(X)", "only says how long"),
        ('"The" in WORDS(X)', "WORDS(X)", "only says how long"),
        ("len(SENTENCES(X)) % 2 == 0", "SENTENCES(X)", "only says how long"),
        ("len(TOKENS(X, 3)) < 5", "TOKENS(X, 3)", "only says how long"),
        ("INT(X, 3)", "INT(X, 3)", "takes a hole"),
        ("ERASE(X)", "ERASE", "no constraint is called 'ERASE'"),
    ],
)
def test_what_is_written_out_is_judged_when_the_query_is_compiled(where: str, place: str, sentence: str) -> None:
    with pytest.raises(lq.LmqlLiteError, match=sentence) as caught:
        lq.compile(f'"[X]" where {where}')
    (problem,) = caught.value.problems
    cannot_be_met = problem.message.startswith("nothing can fill")
    assert type(problem) is (lq.ConstraintError if cannot_be_met else lq.QueryError)
    assert problem.span is not None and problem.span.source == place
    assert problem.hint or "did you mean" in problem.message
    assert len(problem.message) < 300


@pytest.mark.parametrize(
    ("where", "value", "sentence"),
    [
        ("X in v", [], "nothing can fill"),
        ("X in v", ["a", 5], "this is 5"),
        ("X in v", [10**5000], "a value that cannot be shown"),
        ("X == v", list(range(10**5)), r"\.\. \(list\)"),
        ("v in X", "\ud800", "surrogate"),
        ("len(X) < v and len(X) > 5", 3, "cannot hold together"),
        ("int(X) > v and INT(X) and int(X) < 3", 5, "`int\\(X\\) > v` and `int\\(X\\) < 3` cannot"),
        ("float(X) > v and 1 < float(X) < 3", 5, "cannot hold together"),
        ("int(X) in v", [10**5000], "up to 120 digits"),
        ("int(X) in v", range(0, 10**30, 7), "more than 100,000"),
        ("float(X) < v", float("nan"), "compared with a number"),
        ("REGEX(X, v)", "(?=a)", "ahead or behind"),
        ("re.search(v, X)", "(", "not a regular expression"),
        ("v.search(X)", SimpleNamespace(search=str), "what re.compile makes of one"),
        ("STOPS_AT(X, v)", "", "not empty"),
    ],
)
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


@pytest.mark.parametrize(
    "where",
    [
        "X not in []",
        'X in [] or X == "a"',
        "len(X) in [] or INT(X)",
        'X in ["<|endoftext|>", "</s>"]',
        'STOPS_AT(X, re.compile("a|b+"))',
        'STOPS_BEFORE(X, re.compile("a{1,64}"))',
        'v.startswith("a") or X.startswith("a")',
        "len(X) < 10**2 * 5",
        "len(X) > 5 and (len(X) < 3 or INT(X))",
        "int(X) > 5 and int(X) < v",
        "float(X) >= 5 and float(X) <= 5",
    ],
)
def test_nothing_is_said_of_what_may_hold(where: str) -> None:
    lq.compile(f'"[X]" where {where}')


def test_every_clause_that_is_wrong_is_named() -> None:
    with pytest.raises(lq.QueryError) as caught:
        lq.compile('"[X]" where X == 5\n"[Y]" where Y in []\n"[Z]" where not STOPS_AT(Z, "a")')
    assert [problem.span.line for problem in caught.value.problems if problem.span] == [1, 2, 3]


# Names that are there without an import ----------------------------------------------------------------------------


def test_re_needs_no_import(session: lq.Session) -> None:
    source = 'wanted = re.compile("[ab]+")\n"say [X]\\n" where re.fullmatch(wanted, X)\nreturn re.sub("a", "b", X)'
    query = lq.compile(source)
    assert query.inputs == ()
    assert query.run_sync(model=lq.ScriptedModel("say ab\n"), session=session).value == "bb"


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


def test_what_is_called_re_and_is_not_pythons_does_not_guide(session: lq.Session) -> None:
    query = lq.compile('"[X]" where re.search("a", X)')
    with pytest.raises(lq.ConstraintError, match="Python's own re") as caught:
        query.run_sync({"re": "mail"}, session=session, model=lq.ScriptedModel(""))
    assert caught.value.hint


class Colors(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ('"css { color: red }[X]"', "{{ and }}"),
        ('"[X]" where X in Colors', "[X: Colors]"),
        ('"[X: list[int]]" where len(TOKENS(X)) < 50', "max_tokens"),
    ],
)
def test_the_hint_names_what_was_meant(source: str, hint: str) -> None:
    inputs = {"Colors": Colors} if "Colors" in source else {}
    with pytest.raises(lq.LmqlLiteError) as caught:
        lq.run_sync(source, inputs, model=lq.ScriptedModel("css"))
    assert hint in str(caught.value.hint)


def test_a_pattern_with_a_doubled_bracket_prints_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lq.run_sync('"[X]" where REGEX(X, r"[[:alpha:]]+")', model=lq.ScriptedModel("a]"))
