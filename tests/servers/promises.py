"""What is promised of every server (S6, S7): a class of tests with the same queries, that the file of each inherits.

A file has the fixture `known`, the model of its server, which was found out about.
"""

from __future__ import annotations

import asyncio
import datetime
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest

import lmql_lite as lq
from lmql_lite.models.openai.model import OpenAIModel
from tests.test_examples import EXAMPLES, INPUTS, TYPED, shown

SAMPLED = "10_sampled_people"
"""A server's own draws are not those of this process (S6)."""
UNSCORED = "12_distribution"
"""Not every server scores given texts, and none in the tokens of this process."""
SAME = [path for path in sorted(EXAMPLES.glob("*.lq")) if path.stem not in (SAMPLED, UNSCORED)]


class Asked:
    """Runs with one model, and counts what it is asked."""

    def __init__(self, model: OpenAIModel) -> None:
        self.model = model
        self._before = model.requests

    @property
    def requests(self) -> int:
        return self.model.requests - self._before

    def __call__(self, query: str | Path | lq.Query, /, **options: Any) -> lq.Result:
        compiled = query if isinstance(query, lq.Query) else lq.compile(query)
        return compiled.run_sync(options.pop("inputs", {}), **{"model": self.model, "session": lq.Session(), **options})


def value(name: str, holds: Callable[[Any], object]) -> Callable[[lq.Result], object]:
    return lambda result: holds(result[name])


PACK = "Things to pack for the beach:\\n-"
CONDITIONS: dict[str, tuple[str, Callable[[lq.Result], object]]] = {
    "choices": (
        'argmax\n    "Review: The food was great.\\nSentiment:[X]"\nwhere X in [" positive", " negative", " negated"]',
        value("X", lambda text: text in (" positive", " negative", " negated")),
    ),
    "a choice that begins another": (
        '"Answer:[X]!" where X in [" a", " ab", " abc"]',
        value("X", lambda text: text in (" a", " ab", " abc")),
    ),
    "a pattern": (
        '"Code:[X]." where REGEX(X, r" [A-F]{2}-[0-9]{3}(?:-x)?")',
        value("X", lambda text: re.fullmatch(" [A-F]{2}-[0-9]{3}(?:-x)?", text)),
    ),
    "characters": (f'"{PACK}[X]" where 7 <= len(X) <= 9', value("X", lambda text: 7 <= len(text) <= 9)),
    "words": (
        '"A good dad joke.\\nQ:[X]" where len(WORDS(X)) == 4',
        value("X", lambda text: len(text.split()) == 4),
    ),
    "bans": (
        f'"{PACK}[X]" where not "s" in X and not "S" in X and STOPS_AT(X, "\\n") and 3 < len(X) < 20',
        value("X", lambda text: "s" not in text.lower() and 3 < len(text) < 20),
    ),
    "stops": (
        '"A good dad joke.\\nQ:[X]\\nA:[Y]" where STOPS_AT(X, "?") and STOPS_BEFORE(Y, ["\\n", "."])',
        lambda result: result["X"].count("?") == 1 and "." not in result["Y"],
    ),
    "a stop that is a pattern": (
        '"A good dad joke.\\nQ:[X]" where STOPS_AT(X, re.compile(r"[?!]")) and len(X) < 80',
        value("X", lambda text: re.fullmatch(r"[^?!]*[?!]?", text)),
    ),
    "an integer": (
        '"Towels:[X]" where INT(X) and 20 < int(X) < 120',
        value("X", lambda text: 20 < int(text) < 120),
    ),
    "a date": (
        '"Q: When did the first moon landing take place?\\nA: [X]" where DATE(X) and X.startswith("19")',
        value("X", lambda text: datetime.date.fromisoformat(text).year // 100 == 19),
    ),
    "Python judges": (
        f'"{PACK}[X]" where STOPS_BEFORE(X, "\\n") and sum(X.encode()) % 2 == 0',
        value("X", lambda text: sum(text.encode()) % 2 == 0),
    ),
    "a segment": (
        '\'Ada lives in London.\\nAs JSON: {{"name": "[X]", "age": [Y], "city": "[Z]"}}\' where STOPS_BEFORE(X, \'"\') '
        'and Y in ["35", "36", "37"] and STOPS_BEFORE(Z, \'"\') and len(Z) < 9 and len(X) > 1',
        lambda result: len(result["X"]) > 1 and result["Y"] in ("35", "36", "37") and len(result["Z"]) < 9,
    ),
    "types of text": (
        "\"Towels:[X: int], [Y: Literal['red', 'dark red', 'blue']], [Z: bool].\" where X > 3",
        lambda result: result["X"] > 3 and result["Y"] in ("red", "dark red", "blue") and result["Z"] in (True, False),
    ),
    "a type in JSON": (
        '"Ada is 36 years old.\\nAs JSON: [X: dict[str, str | int]]"',
        value("X", lambda found: found and all(type(each) in (str, int) for each in found.values())),
    ),
    "either or": (
        '"Answer:[X]" where (X in [" yes", " no"] or (INT(X) and int(X) > 5)) and len(X) < 6',
        value("X", lambda text: text in (" yes", " no") or int(text) > 5),
    ),
    "without a letter": (
        '"Answer:[X]" where X.isupper() and len(X) == 6',
        value("X", lambda text: text.isupper() and len(text) == 6),
    ),
}


TOOL = """
import asyncio
async def second():
    await asyncio.sleep(0.3)
    return {answer!r}
"{beginning}\\n-[FIRST]" where STOPS_AT(FIRST, "\\n")
"-{{await second()}}-[THIRD]" where STOPS_AT(THIRD, "\\n")
"""
LIST = "A list of things not to forget when going to the sea (not travelling): \\n- Sunglasses "
UNICODE = ["日本", "日记", "😀!", "é", "e\u0301", "Ünïcödé"]


class Promises:
    hottest: ClassVar[float] = 20.0
    """A temperature that it takes."""

    @pytest.fixture(autouse=True)
    def environment_names_no_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
            monkeypatch.delenv(name, raising=False)

    @pytest.fixture
    def asked(self, known: OpenAIModel) -> Asked:
        return Asked(known)

    @pytest.mark.parametrize("path", SAME, ids=lambda path: path.stem)
    def test_an_example_says_on_a_server_what_it_says_in_this_process(
        self,
        path: Path,
        asked: Asked,
        session: lq.Session,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        query, expected = lq.compile(path), (EXAMPLES / "expected" / f"{path.stem}.txt").read_text("utf-8")

        def told(**options: Any) -> tuple[str, int]:
            before = asked.requests
            monkeypatch.setattr("sys.stdin", StringIO(TYPED.get(path.stem, "")))
            result = asked(query, inputs=INPUTS.get(path.stem, {}), **options)
            assert result.usage.requests == asked.requests - before
            return shown(query, result), asked.requests - before

        file = tmp_path / "x.tokens"
        ways = {
            "cold": told(session=session, cache=True),
            "warm": told(session=session, cache=True),
            "alone S7": told(cache=False),
            "without guesses": told(cache=True, speculate=False),
            "file": told(cache=file),
            "known file": told(cache=file),
            "replay": told(cache=file, cache_mode="replay"),
        }
        assert [ways[way][1] for way in ("warm", "known file", "replay")] == [0, 0, 0]
        assert 0 < ways["cold"][1] <= ways["alone S7"][1], "together the holes ask no more often than each by itself"
        assert {way: text for way, (text, _) in ways.items()} == dict.fromkeys(ways, expected)

    def test_a_list_that_a_loop_asks_for_is_one_request(self, asked: Asked) -> None:
        asked(EXAMPLES / "01_packing_list.lq")
        assert asked.requests == 1

    def test_people_who_are_drawn_meet_their_conditions_and_repeat_under_their_seed(
        self, asked: Asked, session: lq.Session
    ) -> None:
        first = asked(EXAMPLES / f"{SAMPLED}.lq", session=session)
        requests = asked.requests
        again = asked(EXAMPLES / f"{SAMPLED}.lq", session=session)
        assert (again.prompt, again.value, asked.requests) == (first.prompt, first.value, requests)
        assert len(first.value) == 3
        for name, age, city in first.value:
            assert 1 < len(name) < 12 and 18 <= age < 100 and len(city) < 20 and '"' not in name + city
        assert asked(EXAMPLES / f"{SAMPLED}.lq", session=session, seed=12).prompt != first.prompt

    @pytest.mark.parametrize("source", list(CONDITIONS))
    def test_a_condition_holds_on_a_server_law_3(self, source: str, asked: Asked, session: lq.Session) -> None:
        query, holds = CONDITIONS[source]
        result = asked(query, session=session)
        assert holds(result), result.prompt
        requests = asked.requests
        assert asked(query, session=session).prompt == result.prompt
        assert asked.requests == requests, "a second run asks for nothing"
        alone = asked(query, cache=False)
        assert holds(alone), alone.prompt

    def test_a_condition_that_nothing_meets_is_refused_before_anything_is_asked_S22(self, asked: Asked) -> None:
        with pytest.raises(lq.ConstraintError, match="cannot hold together"):
            asked('limit = 3\n"a[X]" where len(X) < limit and "long" in X')
        assert asked.requests == 0

    def test_a_tool_whose_answer_the_server_guessed_costs_no_request(self, asked: Asked, session: lq.Session) -> None:
        free = asked(f'"{LIST}\\n-[A]-[B]-[C]" where STOPS_AT(A, "\\n") and STOPS_AT(B, "\\n") and STOPS_AT(C, "\\n")')
        guessed, wrong = free["B"], " Parasol\n"
        assert guessed != wrong
        before = asked.requests
        right = asked(TOOL.format(answer=guessed, beginning=LIST), session=session)
        assert (right["THIRD"], asked.requests - before) == (free["C"], 1)
        asked(TOOL.format(answer=wrong, beginning=LIST), session=session)
        assert asked.requests - before == 2, "another answer is asked for from there, and what came before is known"

    @pytest.mark.parametrize("seed", [1, 2**64 - 1], ids=["one", "the largest"])
    def test_a_sample_repeats_from_the_cache_under_its_seed_S6(self, seed: int, asked: Asked, tmp_path: Path) -> None:
        query, file = 'sample(temperature=1.2)\n    "Say:[X]"\nwhere len(X) < 30', tmp_path / "x.tokens"
        first = asked(query, cache=file, seed=seed)
        again = asked(query, cache=file, seed=seed)
        assert (again.prompt, asked.requests) == (first.prompt, 1)
        others = {asked(query, cache=file, seed=seed ^ other)["X"] for other in (2, 4, 8)}
        assert others != {first["X"]}
        assert asked.requests == 4

    def test_greedy_runs_and_samples_do_not_answer_each_other_S1(self, asked: Asked, session: lq.Session) -> None:
        query = '"Say:[X]" where len(X) < 12'
        asked(query, session=session)
        asked(query, session=session, decoder="sample", seed=3)
        assert asked.requests == 2

    def test_prompts_and_options_of_every_script(self, asked: Asked, session: lq.Session) -> None:
        query = lq.compile('"Grüße, 世界 😀 {who}:[X]." where X in options\nreturn X')
        inputs = {"who": "Zoë\u200d", "options": UNICODE}
        result = asked(query, inputs=inputs, session=session)
        assert result.value in UNICODE
        assert result.prompt == f"Grüße, 世界 😀 Zoë\u200d:{result.value}."
        assert asked(query, inputs=inputs, session=session).prompt == result.prompt
        for option in UNICODE:
            assert asked(query, inputs=inputs | {"options": [option, option + "!"]}).value in (option, option + "!")

    def test_any_character_may_be_said_freely(self, asked: Asked) -> None:
        result = asked(f'sample(temperature={self.hottest}, seed=5)\n    "日本語:[X]"\nwhere len(X) == 24')
        assert len(result["X"]) == 24

    def test_a_prompt_that_is_too_long_is_one_sentence(self, asked: Asked) -> None:
        with pytest.raises(lq.ModelError) as caught:
            asked('"{text}[X]" where len(X) < 5', inputs={"text": "x " * 1200})
        assert caught.value.span is not None and caught.value.span.source == "[X]"
        assert "\n" not in caught.value.message
        assert asked('"Say:[X]" where len(X) < 5')["X"], "and the next run is served"

    def test_two_runs_at_once_each_get_their_own_text(self, asked: Asked, session: lq.Session) -> None:
        paths = [EXAMPLES / f"{name}.lq" for name in ("01_packing_list", "04_dad_joke", "06_dates")]
        queries = [lq.compile(path) for path in paths]

        async def together() -> list[lq.Result]:
            runs = [query.run(model=asked.model, session=session, cache=True) for query in queries]
            return await asyncio.gather(*runs)

        for path, query, result in zip(paths, queries, asyncio.run(together()), strict=True):
            assert shown(query, result) == (EXAMPLES / "expected" / f"{path.stem}.txt").read_text("utf-8")

    def test_equal_runs_at_once_are_one_request(self, asked: Asked, session: lq.Session) -> None:
        query = lq.compile(EXAMPLES / "01_packing_list.lq")

        async def crowd() -> list[lq.Result]:
            return await asyncio.gather(*(query.run(model=asked.model, session=session) for _ in range(4)))

        results = asyncio.run(crowd())
        assert len({result.prompt for result in results}) == 1
        assert asked.requests == sum(result.usage.requests or 0 for result in results) == 1
