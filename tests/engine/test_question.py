"""Questions to a server: what counts as a token, and what free text counts for under a grammar."""

from __future__ import annotations

import asyncio

import pytest

import lmql_lite as lq
from tests.servers.lettered import LetteredCompleter
from tests.servers.scored import ScoredCompleter


def test_a_character_of_several_tokens_fits_where_one_token_is_left() -> None:
    """Such a hole failed after three requests: none had room for the character."""
    for seed in range(10):
        result = lq.run_sync('"日[X]"', model=LetteredCompleter(seed), max_tokens=1, session=lq.Session())
        assert len(result["X"].encode()) <= 4 + 3


def test_an_end_of_text_that_a_grammar_forbids_ends_no_hole_under_it() -> None:
    """Free text was read under a grammar wherever it fitted the hole, and so its end-of-text, which was masked."""
    source, ends = '"a[X]: " where len(X) < 6 and REGEX(X, r"[a-e., ]+")', 0

    async def both(seed: int) -> bool:
        session, model = lq.Session(), LetteredCompleter(seed, takes_languages=True)
        alone = await lq.run(source, model=model, session=lq.Session())
        free = await lq.run('"a[X]"', model=model, session=session)
        after = await lq.run(source, model=model, session=session)
        assert (after["X"], after.endings) == (alone["X"], alone.endings)
        return len(free["X"]) < 5

    for seed in range(12):
        ends += asyncio.run(both(seed))
    assert ends, "some free text ends early"


PRIME = """
"A prime: [X]." where INT(X) and 10 < int(X) < 500 and all(int(X) % k for k in range(2, int(X)))
"""


@pytest.mark.parametrize("able", [{}, {"alternatives": 5}], ids=["grammar only", "alternatives"])
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_rejected_value_is_replaced_under_a_grammar(able: dict[str, int], seed: int) -> None:
    """R4. A Python condition got one try: `has no value that meets ...: the only possible value was '40'`."""
    scorer = lq.ScriptedModel("A prime: 40.", seed=seed, certainty=3.0)
    model, session = ScoredCompleter(scorer, takes_languages=True, **able), lq.Session()
    result = lq.run_sync(PRIME, model=model, session=session)
    assert result["X"] > 10 and all(result["X"] % k for k in range(2, result["X"]))
    asked = model.requests
    assert 1 < asked <= 64
    assert lq.run_sync(PRIME, model=model, session=session)["X"] == result["X"]
    assert model.requests == asked, "what replaced a rejected value is known"
    assert lq.run_sync(PRIME, model=model, session=lq.Session(), cache=False)["X"] == result["X"]
