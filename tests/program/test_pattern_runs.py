"""Whole runs under patterns: whatever a model says, `where` is true of the value in Python."""

from __future__ import annotations

import pytest

import lmql_lite as lq
from tests.properties.plain_where import FUNCTIONS
from tests.tables import cases


@cases("program/pattern_runs", "the value meets its condition in python")
@pytest.mark.parametrize("following", ["", ".", "\\n- next"])
def test_the_value_meets_its_condition_in_python(condition: str, following: str, session: lq.Session) -> None:
    """Law 3, S18, S19: a model that says anything at all, the best and two random draws of it."""
    for decoder, seed in (("argmax", 1), ("sample", 2), ("sample", 3)):
        source = f'{decoder}(max_tokens=40)\n    import re\n    "So: [X: str]{following}"\nwhere\n    {condition}\n'
        result = lq.run_sync(source, model=lq.ScriptedModel("", certainty=0, seed=seed), session=session, seed=seed)
        assert eval(condition, {**FUNCTIONS, "X": result["X"]}), result["X"]
        assert result.prompt == f"So: {result['X']}{following}".replace("\\n", "\n")
