"""Names of a query for editors."""

from __future__ import annotations

from lmql_lite.apps.editors.query_names import CONSTRAINT_HELP, meaning
from lmql_lite.apps.examination import examined
from lmql_lite.lang.keywords import CONSTRAINTS
from lmql_lite.lang.source import Source


def test_every_constraint_has_its_help() -> None:
    assert set(CONSTRAINT_HELP) == set(CONSTRAINTS)


def test_words_of_the_prompt_and_of_python_have_no_meaning() -> None:
    text = '"len place [X]{place}" where len(X) < 3'
    found = examined(Source("q.lq", text))
    assert meaning(found, text.index("place")) is None and meaning(found, text.index("len(X)")) is None
    assert "input" in (meaning(found, text.rindex("place") + 1) or "")
