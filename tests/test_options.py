"""Options: one table, and everything that is read from it or checked against it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from lmql_lite.api import Options
from lmql_lite.apps.playground.routes import FORM
from lmql_lite.apps.run_command import run
from lmql_lite.lang.keywords import DECODERS
from lmql_lite.options import ALIASES, AT_HOLE, IN_HEADER, NEAREST, OPTIONS, HeaderOptions, OptionRow, Sampling

PAGE = Path(__file__).parent.parent / "docs" / "language.md"
PLACES = {"call": "call", "run": "header", "query": "header", "hole": "header, hole"}


def row(option: OptionRow) -> str:
    """The line of an option in the table of docs/language.md."""
    flag = option.name.replace("_", "-")
    flag = f"--{'no-' * (option.flag == '')}{flag}" if len(flag) > 1 else f"-{flag}"
    shown = "" if option.flag is None else f"`{flag} {option.flag}`".replace(" `", "`")
    cells = (f"`{option.name}`", option.values, PLACES[option.scope], shown, option.help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def test_the_documentation_has_the_table() -> None:
    assert "\n".join(map(row, OPTIONS.values())) in PAGE.read_text("utf-8")


def test_what_a_caller_may_give_is_typed_and_has_a_row() -> None:
    assert set(Options.__annotations__) == set(OPTIONS)
    assert set(HeaderOptions.__annotations__) <= set(IN_HEADER)


@pytest.mark.parametrize("name", get_type_hints(HeaderOptions))
def test_an_option_has_one_type_and_may_be_left_out(name: str) -> None:
    of_row, none = get_args(get_type_hints(HeaderOptions)[name])
    assert none is type(None)
    assert OPTIONS[name].type == of_row
    assert OPTIONS[name].help.endswith(".")


def test_every_option_of_a_hole_but_n_is_part_of_how_a_token_is_chosen() -> None:
    assert {*AT_HOLE, "seed", "index"} - {"n"} == set(inspect.signature(Sampling).parameters)


def test_the_command_has_a_flag_for_each_option_that_names_one() -> None:
    flags = {option.name for option in run.params}
    assert {name for name, option in OPTIONS.items() if option.flag is not None} <= flags
    assert not {name for name, option in OPTIONS.items() if option.flag is None and name != "model"} & flags


def test_the_page_is_given_the_rows_of_its_form() -> None:
    named = {str(each["name"]): each for each in FORM}
    assert named.keys() == {name for name, option in OPTIONS.items() if option.on_page}
    assert not named.keys() & {"cache", "trace", "session", "max_cost", "prices"}  # the command line alone says these
    assert named["cache_mode"]["choices"] == OPTIONS["cache_mode"].choices
    assert named["decoder"]["choices"] == DECODERS
    assert (named["seed"]["type"], named["temperature"]["type"], named["speculate"]["type"]) == ("int", "float", "bool")


def test_a_decoder_is_here_or_has_a_nearest_one() -> None:
    assert not set(DECODERS) & set(NEAREST)
    assert set(ALIASES) | set(ALIASES.values()) <= set(DECODERS)


def test_policies_that_draw_alike_are_the_same_question_and_others_are_not() -> None:
    assert Sampling(1.0, top_p=3, min_p=-1).policy == Sampling(1.0, seed=4, index=2).policy
    assert Sampling(1.0, top_k=0).policy == Sampling(1.0, top_k=1).policy
    several = [Sampling(1.0), Sampling(0.5), Sampling(1.0, 5), Sampling(1.0, top_p=0.5), Sampling(1.0, min_p=0.5)]
    assert len({each.policy for each in several}) == len(several)
