"""Scripted models: identity, and functions that do not look how far an answer has got."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.scripted import Script
from tests.servers.scored import ScriptedCompleter
from tests.tables import cases

UMBRELLA = '"Is it {weather}? Umbrella:[X]" where X in ["yes", "no"]'


def named_answer(text: bytes) -> Script:
    def answer(said: bytes) -> bytes:
        return text if said.endswith(b":") else b""

    return answer


class Answers:
    """Callable objects of one class and one name."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    def __call__(self, said: bytes) -> bytes:
        return self.text if said.endswith(b":") else b""

    def __repr__(self) -> str:
        return "Answers()"


KINDS: dict[str, Callable[[bytes], Script]] = {"functions of one name": named_answer, "callable objects": Answers}


@pytest.mark.parametrize("model", [lq.ScriptedModel, ScriptedCompleter])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", [True, False])
def test_a_scripted_function_does_not_give_the_answers_of_another_one(kind: str, model: Any, cache: bool) -> None:
    session = lq.Session()
    for text in ("yes", "no", "yes"):
        scripted = model(KINDS[kind](text.encode()))
        result = lq.run_sync(UMBRELLA, {"weather": "rain"}, model=scripted, session=session, cache=cache)
        assert result["X"] == text


def test_a_scripted_function_does_not_give_what_a_file_has_of_another_one(tmp_path: Any) -> None:
    """Nor what it said itself before it changed, to a new model."""
    said = [b"yes"]
    for text in ("yes", "no"):
        said[0] = text.encode()
        for script in (named_answer(text.encode()), lambda written: said[0] if written.endswith(b":") else b""):
            model, file = lq.ScriptedModel(script), str(tmp_path / "answers.tokens")
            result = lq.run_sync(UMBRELLA, {"weather": "rain"}, model=model, session=lq.Session(), cache=file)
            assert result["X"] == text


def test_models_of_one_text_are_one_model_and_other_options_make_another() -> None:
    others = (("ho", {}), ("hi", {"seed": 1}), ("hi", {"certainty": 3}), ("hi", {"levels": 2}), ("hi", {"words": ()}))
    made: list[Any] = [("hi", {}), ("hi", {}), *others]
    prints = {lq.ScriptedModel(f"Say: {said}", **options).fingerprint for said, options in made}
    assert len(prints) == 1 + len(others)


def rainy(text: bytes) -> bytes:
    return b" yes" if b"rain" in text else b" no"


def test_a_pickled_copy_is_the_same_model() -> None:
    model = lq.ScriptedModel(rainy)
    copy = pickle.loads(pickle.dumps(model))
    assert copy.fingerprint == model.fingerprint and copy.script(b"rain?") == b" yes"


@pytest.mark.parametrize("model", [lq.ScriptedModel, ScriptedCompleter])
@cases("models/scripted", "a function that ignores how far its answer has got says it once")
def test_a_function_that_ignores_how_far_its_answer_has_got_says_it_once(query: str, prompt: str, model: Any) -> None:
    assert lq.run_sync(query, model=model(rainy), session=lq.Session()).prompt == prompt


@pytest.mark.parametrize(
    "text", [b"aaaa", b"haha", b"a\n\nb", b" yes yes", "né né 😀😀".encode()], ids=lambda text: text.decode()
)
def test_a_function_that_looks_how_far_its_answer_has_got_is_taken_at_its_word(text: bytes) -> None:
    begin = b"Say:"
    model = lq.ScriptedModel(lambda said: text[len(said) - len(begin) :])
    assert lq.run_sync('"Say:[X]"', model=model)["X"] == text.decode()


def test_a_function_that_asks_for_the_whole_line_before_is_not_misled_by_a_longer_token() -> None:
    model = lq.ScriptedModel(lambda said: b"go" if said.endswith(b"step.\n") else b"")
    result = lq.run_sync('"One step.\\n[X]" where X in ["go", "stay"]', model=model)
    assert result.prompt == "One step.\ngo"


def test_without_certainty_the_scores_are_noise_of_eight_nats() -> None:
    """With less of it, what a test draws would hardly depend on the text."""
    (rows,) = asyncio.run(lq.ScriptedModel("", certainty=0).score([ScoreRequest((0, 5, 9))]))
    assert 7 < max(rows[0]) - min(rows[0]) <= 8


def test_a_script_that_returns_a_text_is_refused_by_a_sentence() -> None:
    script: Any = lambda written: " yes"  # noqa: E731
    with pytest.raises(lq.ModelError, match="the script returned ' yes', which is not bytes") as caught:
        lq.run_sync('"Rain?[X]"', model=lq.ScriptedModel(script))
    assert caught.value.hint == 'return bytes, such as b" yes"'
