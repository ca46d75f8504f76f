"""Model objects of classes that are not derived from ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Completer, Scorer, as_model
from tests.servers.scored import ScriptedCompleter


class Foreign:
    """Hands on these members of another model, and has no others."""

    def __init__(self, model: Any, *members: str) -> None:
        for name in members:
            setattr(self, name, getattr(model, name))


def scorer(**more: Any) -> Any:
    found = Foreign(lq.ScriptedModel("Say: hi", seed=9), "name", "fingerprint", "tokenizer", "context_length", "score")
    vars(found).update(more)
    return found


def test_a_scorer_of_another_class_runs_with_defaults_for_what_it_lacks() -> None:
    model = scorer(sequences=3, epsilon=0.0)
    assert lq.run_sync('"Say:[X]"', model=model)["X"] == " hi"
    wrapped = as_model(model)
    assert isinstance(wrapped, Scorer) and (wrapped.sequences, wrapped.epsilon, wrapped.marks) == (3, 0.0, frozenset())
    assert as_model(model) == wrapped != as_model(scorer()) and as_model(wrapped) is wrapped
    model.fingerprint = "another"
    assert wrapped.fingerprint == "another"
    with pytest.raises(ModelError, match="cannot be shown"):
        lq.run_sync('"{image(data)}[X]"', {"data": b"x"}, model=model)
    with pytest.raises(ModelError, match="cannot move blocks of a prompt"):
        lq.run_sync('"Say:[X]"', model=model, blocks="rotate")


def test_a_server_of_another_class_runs_and_reports_no_scores() -> None:
    model = Foreign(ScriptedCompleter("Say: hi"), "name", "place", "probe", "stream")
    assert lq.run_sync('"Say:[X]"', model=model)["X"] == " hi"
    wrapped = as_model(model)
    assert isinstance(wrapped, Completer)
    with pytest.raises(ModelError, match="does not report log-probabilities"):
        asyncio.run(wrapped.score((), (" hi",)))


@pytest.mark.parametrize("given", [3, object(), lq.ScriptedModel, Foreign(lq.ScriptedModel("x"), "name", "score")])
def test_what_is_no_model_is_named(given: Any) -> None:
    with pytest.raises(ModelError, match="is not a model"):
        lq.run_sync('"Say:[X]"', model=given)
