"""Tests of joke.lq that play a recording: they cost nothing, need no key, and say the same on every machine.

After a change of the query, or of the model: lq run joke.lq --cache joke.tokens
"""

from pathlib import Path
from shutil import copy

import pytest

import lmql_lite as lq

HERE = Path(__file__).parent
QUERY, RECORDING = HERE / "joke.lq", HERE / "joke.tokens"


def test_a_joke_is_a_question_and_an_answer() -> None:
    result = lq.run_sync(QUERY, cache=RECORDING, cache_mode="replay")
    assert result.value == {"question": "Why did the bicycle fall over?", "answer": "Because it was two tired."}
    assert result.usage.forward_passes == 0  # with a model behind an API: result.usage.requests == 0


def test_an_edited_prompt_is_missing_and_only_what_follows_the_edit_is_paid_for(tmp_path: Path) -> None:
    recording = copy(RECORDING, tmp_path)
    edited = QUERY.read_text("utf-8").replace("\\nA:", "\\nAnswer:")

    with pytest.raises(lq.CacheError, match=r"the recording has no answer of demo .*fall over\?"):
        lq.run_sync(edited, cache=recording, cache_mode="replay")

    result = lq.run_sync(edited, cache=recording, cache_mode="rw")
    sources = {hole: {token.source for token in result.tokens if token.hole == hole} for hole in result.variables}
    assert sources["JOKE"] == {"cache"}
    assert "model" in sources["PUNCHLINE"]

    assert lq.run_sync(edited, cache=recording, cache_mode="replay").value == result.value
