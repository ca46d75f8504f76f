"""Broken programs of many kinds: each is refused before the model is asked, with its place, a sentence and a hint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lmql_lite as lq

PLACED = re.compile(r"(\d+:\d+) (\(run\) )?(\(unmet\) )?(.*?)(?: \| (.*))?")


def _read() -> list[tuple[str, str, list[str]]]:
    text = Path(__file__).with_name("broken_programs.txt").read_text("utf-8")
    pieces = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)[1:]
    return [(pieces[at], pieces[at + 1], pieces[at + 3].splitlines()) for at in range(0, len(pieces), 4)]


PROGRAMS = _read()
REFUSED = [each for each in PROGRAMS if not each[2][0].startswith("beyond: ")]
BEYOND = [each for each in PROGRAMS if each[2][0].startswith("beyond: ")]


def test_there_are_many_of_them_and_few_are_beyond_a_checker() -> None:
    assert len(REFUSED) >= 172 and len(BEYOND) < 10
    assert len({text for _, text, _ in PROGRAMS}) == len(PROGRAMS)


def _refusal(text: str, *, by_run: bool) -> lq.LmqlLiteError:
    """What refuses the program. A raw error of Python is none, and the model must not have been asked."""
    model = lq.ScriptedModel("3")
    with pytest.raises(lq.LmqlLiteError) as caught:
        query = lq.compile(text)
        assert by_run, "it compiles"
        query.run_sync(model=model)
    assert model.calls == 0
    return caught.value


@pytest.mark.parametrize(("text", "said"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_a_broken_program_is_refused_with_place_sentence_and_hint(text: str, said: list[str]) -> None:
    error = _refusal(text, by_run="(run)" in said[0])
    assert len(error.problems) == len(said)
    for problem, line in zip(error.problems, said, strict=True):
        read = PLACED.fullmatch(line)
        assert read and problem.span
        place, _, unmet, message, hint = read.groups()
        assert f"{problem.span.line}:{problem.span.column}" == place
        assert problem.message.startswith(message)
        assert (problem.hint or "").startswith(hint or "") and bool(problem.hint) == bool(hint)
        assert isinstance(problem, lq.ConstraintError) == bool(unmet)


def _without_place(message: str) -> str:
    return re.sub(r"line \d+| at 0x\w+", "", message)


@pytest.mark.parametrize("text", [each[1] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_a_broken_program_is_refused_as_well_inside_a_longer_one(text: str) -> None:
    """Behind a line that is right: the same sentence, one line below."""
    alone = _refusal(text, by_run=True)
    if "decoder" in alone.message or "header" in alone.message or not text.strip() or text.startswith("#"):
        return  # of these the first line of the file decides
    shifted = _refusal(f"first = 3\n{text}", by_run=True)
    assert [_without_place(each.message) for each in shifted.problems] == [
        _without_place(each.message) for each in alone.problems
    ]
    assert [each.span.line - 1 for each in shifted.problems if each.span] == [
        each.span.line for each in alone.problems if each.span
    ]


@pytest.mark.parametrize("text", [each[1] for each in BEYOND], ids=[each[0] for each in BEYOND])
def test_what_is_beyond_a_checker_compiles(text: str) -> None:
    lq.compile(text)
