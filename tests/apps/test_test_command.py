"""`lq test`: cases pass or say what does not hold, reports, exit codes, and sentences for what is no case."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lmql_lite.apps.cli import main
from tests.tables import cases

QUERY = """
"The weather is {weather}. Should I take an umbrella? Answer:[ANSWER]" where ANSWER in [" yes", " no"]
if ANSWER == " yes":
    return "umbrella"
return "hat"
"""
WEIGHED = """
"The weather is {weather}. Should I take an umbrella? Answer:[ANSWER]" distribution ANSWER in [" yes", " no"]
"""
RAIN = '[[case]]\nname = "rain"\ninputs = { weather = "rainy" }\n'


@pytest.fixture
def lq_test(capsys: pytest.CaptureFixture[str]) -> object:
    """Runs `lq test` on the query with these cases: its exit code, stdout and stderr."""

    def run(cases: str | None, *arguments: str, query: str = QUERY) -> tuple[int, str, str]:
        if cases is not None:
            Path("choose.lq").write_text(query)
            Path("choose.cases.toml").write_text(cases)
        code = 0
        try:
            main(["test", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


def test_a_case_that_holds_passes_and_is_replayed_without_asking(lq_test) -> None:  # type: ignore[no-untyped-def]
    cases = (
        RAIN + 'returns = "umbrella"\nholes = { ANSWER = " yes" }\nassert = ["len(ANSWER) < 5", "\'rainy\' in prompt"]'
    )
    code, out, _ = lq_test(cases, "choose.lq")
    assert code == 0
    assert out.splitlines()[:2] == ["choose.cases.toml", "  ok    rain"] and "1 case: 1 passed, 0 failed" in out
    before = Path("choose.cases.jsonl").read_bytes()
    code, out, _ = lq_test(None, "--record", "none")
    assert code == 0 and "0 tokens asked" in out
    assert Path("choose.cases.jsonl").read_bytes() == before


@cases("apps/command", "a case that does not hold says why")
def test_a_case_that_does_not_hold_says_why(lq_test, line: str, problem: str) -> None:  # type: ignore[no-untyped-def]
    cases = RAIN + line if not line.startswith("inputs") else f"[[case]]\nname = 'rain'\n{line}"
    code, out, _ = lq_test(cases, "choose.cases.toml")
    assert code == 4
    assert "  FAIL  rain  (line 1)" in out and f"        {problem}" in out.splitlines()
    assert "1 case: 0 passed, 1 failed" in out


TRUTHS = "[true, [1, 0.0], {a = true, b = 2}]"


@pytest.mark.parametrize(
    ("expected", "is_right"),
    [(TRUTHS, True), (TRUTHS.replace("[true,", "[1,"), False), (TRUTHS.replace("a = true", "a = 1"), False),
     (TRUTHS.replace("[1, 0.0]", "[true, false]"), False), (TRUTHS.replace("1, 0.0", "1.0, 0"), True)],
)  # fmt: skip
def test_a_bool_is_no_number_to_a_case(lq_test, expected: str, is_right: bool) -> None:  # type: ignore[no-untyped-def]
    query = '"x"\nreturn [True, [1, 0.0], {"a": True, "b": 2}]\n'
    code, _, _ = lq_test(f"[[case]]\nreturns = {expected}\n", "choose.lq", query=query)
    assert (code == 0) == is_right


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ('{ " no" = 0.5, " yes" = [0, 0.5] }', None),
        ('{ " yes" = 1 }', "expected at least 1"),
        ('{ " no" = [0, 0.1] }', "expected at most 0.1"),
        ('{ " maybe" = 0.1 }', "' maybe' is not an option of [ANSWER]; there are ' yes', ' no'"),
    ],
)
def test_thresholds_of_a_distribution(lq_test, bounds: str, problem: str | None) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = lq_test(RAIN + f"distribution.ANSWER = {bounds}", "choose.lq", query=WEIGHED)
    assert (code, problem is None or problem in out) == (0 if problem is None else 4, True)


def test_a_case_of_many_seeds_passes_where_enough_of_them_do(lq_test) -> None:  # type: ignore[no-untyped-def]
    drawn = RAIN + 'options = { decoder = "sample", temperature = 4.0 }\nreturns = "umbrella"\nseeds = 12\n'
    code, out, _ = lq_test(drawn, "choose.lq", "--json")
    (case,) = json.loads(out)["cases"]
    assert code == 4 and [run["seed"] for run in case["runs"]] == list(range(12))
    share = sum(not run["problems"] for run in case["runs"]) / 12
    assert 0 < share < 1 and case["pass_rate"] == share
    code, out, _ = lq_test(drawn + f"pass_rate = {share}", "choose.lq")
    assert code == 0 and f"  ok    rain  {round(share * 12)} of 12 seeds" in out
    code, out, _ = lq_test(drawn + f"pass_rate = {share + 0.01}", "choose.lq")
    assert code == 4 and f"of 12 seeds, at least {share + 0.01:g} must pass" in out and "seed " in out


def test_reports_have_every_case(lq_test) -> None:  # type: ignore[no-untyped-def]
    cases = RAIN + '[[case]]\nname = "\\u0007wrong <&"\ninputs = { weather = "rainy" }\nreturns = "hat"'
    code, out, _ = lq_test(cases + '\n[[case]]\nname = "error"', "choose.lq", "--json", "--junit", "report.xml")
    told = json.loads(out)
    assert (code, told["passed"], told["failed"]) == (4, 1, 2)
    assert [case["line"] for case in told["cases"]] == [1, 4, 8]
    (suite,) = ElementTree.parse("report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], ["error"]]
    assert "the input 'weather' is missing" in (suite[2][0].text or "")


def test_an_edited_query_asks_for_what_follows_the_edit_and_says_what(lq_test) -> None:  # type: ignore[no-untyped-def]
    lq_test(RAIN, "choose.lq")
    code, out, _ = lq_test(RAIN, "choose.lq", query=QUERY.replace("Answer:", "So:"))
    assert code == 0 and 'an umbrella?": recorded " Answer: ", now " So: "' in out
    edited = QUERY.replace("Answer:", "Reply:")
    code, out, _ = lq_test(RAIN, "choose.lq", "--record", "none", query=edited)
    assert code == 4 and "choose.cases.jsonl is stale" in out and "lq test choose.cases.toml asks" in out


def test_without_a_recording_none_names_file_and_remedy(lq_test) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = lq_test(RAIN, "choose.lq", "--record", "none")
    assert code == 4 and "there is no recording choose.cases.jsonl" in out and "lq test choose.cases.toml asks" in out
    assert not Path("choose.cases.jsonl").exists()


@cases("apps/command", "what is no case is a sentence with its place", globals())
def test_what_is_no_case_is_a_sentence_with_its_place(  # type: ignore[no-untyped-def]
    lq_test, cases: str, problem: str, hint: str
) -> None:
    code, _, err = lq_test(cases, "choose.lq")
    assert code == 2 and problem in err and hint in err


def test_places(lq_test) -> None:  # type: ignore[no-untyped-def]
    assert lq_test(None)[0] == 2
    assert lq_test(None, "notes.txt")[0] == 2
    Path("alone.lq").write_text('"Hi"')
    assert "alone.cases.toml" in lq_test(None, "alone.lq")[2]
    code, out, _ = lq_test(RAIN, ".", "choose.lq")  # named twice, run once
    assert code == 0 and "1 case: 1 passed" in out
    Path("choose.lq").write_text('"[1X]"')
    assert lq_test(None, ".")[0] == 3


def test_a_model_is_that_of_the_command_then_of_the_file(lq_test) -> None:  # type: ignore[no-untyped-def]
    cases = 'model = "nothing"\n' + RAIN
    code, _, err = lq_test(cases, "choose.lq")
    assert code == 5 and "no model is called 'nothing'" in err
    assert lq_test(cases, "choose.lq", "--model", "demo")[0] == 0
