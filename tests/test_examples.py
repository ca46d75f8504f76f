"""Every example runs on the demo model and says what stands beside it in `examples/expected/`.

After the demo model was trained anew: `python tests/test_examples.py` writes them again; read the difference.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.apps.results import as_text, with_distributions

EXAMPLES = Path(__file__).parent.parent / "examples"
INPUTS = {"05_sentiment": {"review": "The room was dirty and the staff was rude."}, "09_no_repeats": {"place": "Rome"}}
TYPED = {"14_chat": "What is the capital of France?\nWhat colour is snow?\nWhat does the cow say?\n\n"}
"""Into those that ask, as `lq run` and `lq chat` read it."""
QUERIES = sorted(EXAMPLES.glob("*.lq"))


def ran(path: Path, **options: Any) -> lq.Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(TYPED.get(path.stem, "")))
        return lq.compile(path).run_sync(INPUTS.get(path.stem, {}), **options)


def shown(query: lq.Query, result: lq.Result) -> str:
    """The prompt with its distributions, and below a line what the query returned."""
    value = f"\n-> {as_text(result.value)}" if query.returns else ""
    return with_distributions(result).rstrip("\n") + value + "\n"


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: path.stem)
def test_an_example_says_what_it_should(path: Path) -> None:
    result = ran(path, session=lq.Session())
    assert shown(lq.compile(path), result) == (EXAMPLES / "expected" / f"{path.stem}.txt").read_text("utf-8")


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: path.stem)
def test_an_example_is_the_same_without_a_cache_and_free_the_second_time(path: Path) -> None:
    session = lq.Session()
    cold, warm, uncached = ran(path, session=session), ran(path, session=session), ran(path, cache=False)
    assert cold.prompt == warm.prompt == uncached.prompt
    assert [token.id for token in cold.tokens] == [token.id for token in uncached.tokens]
    assert warm.usage.forward_passes == 0


def test_there_are_ten_and_each_has_its_expected_output() -> None:
    assert len(QUERIES) >= 10
    assert {path.stem for path in QUERIES} == {path.stem for path in (EXAMPLES / "expected").glob("*.txt")}


def test_the_options_example_asks_for_no_more_than_its_two_choices() -> None:
    result = lq.compile(EXAMPLES / "02_long_options.lq").run_sync(session=lq.Session())
    assert (result.usage.forward_passes or 0) <= 2
    assert (result.usage.tokens_forced or 0) >= 6


def test_the_key_value_example_runs_its_tools_and_finds_the_ball() -> None:
    result = lq.compile(EXAMPLES / "03_key_value.lq").run_sync(session=lq.Session())
    assert result.prompt.count("# result: ") >= 10
    assert result.value == " blue ball."


if __name__ == "__main__":
    for path in QUERIES:
        expected = shown(lq.compile(path), ran(path))
        (EXAMPLES / "expected" / f"{path.stem}.txt").write_text(expected, "utf-8")
