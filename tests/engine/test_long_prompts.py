"""Long prompts with one beginning: what is remembered of them changes no result."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.models.base import Model
from tests.servers.scored import ScriptedCompleter

QUERY = lq.compile('"{text}"\n"And so:[X]" where X in [" yes", " no"]\n"{text} again:[Y]" where len(TOKENS(Y)) < 3')
SHOT = "The room was fine, and the food was not.\n"
LONG = SHOT * 20
TEXTS = (LONG, LONG + "x", LONG + "y", "z" + LONG, LONG[:-30] + SHOT, LONG[:700] + "?" + LONG[700:], LONG[:400], LONG)


def says(text: bytes) -> bytes:
    return (b" no" if b"?" in text else b" yes")[len(text) - text.rfind(b":") - 1 :]


def account(result: lq.Result) -> list[Any]:
    return [result.prompt, dict(result.variables), [(t.id, t.data, t.hole, t.fate, t.logprob) for t in result.tokens]]


@pytest.mark.parametrize("kind", [lq.ScriptedModel, ScriptedCompleter])
@pytest.mark.parametrize("max_bytes", [256 * 2**20, 20_000])
def test_a_shared_beginning_changes_no_token(kind: Any, max_bytes: int) -> None:
    model: Model = kind(says)
    shared: Any = {"session": lq.Session(), "cache": lq.TokenCache(max_bytes=max_bytes)}
    for text in TEXTS:
        together = QUERY.run_sync({"text": text}, model=model, **shared)
        alone = QUERY.run_sync({"text": text}, model=kind(says), session=lq.Session())
        assert account(together) == account(alone)


def test_a_warm_row_asks_for_nothing_however_long_its_prompt_is() -> None:
    model, session = lq.ScriptedModel(says), lq.Session()
    first = QUERY.run_sync({"text": LONG}, model=model, session=session)
    again = QUERY.run_sync({"text": LONG}, model=model, session=session)
    assert account(first) == account(again) and again.usage.forward_passes == 0
