"""Identity of a data-set run: what of a model is in it, and what a folder says about a model that does not answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.data.job import continued, default_folder, fingerprint_of, run_identity
from lmql_lite.engine.session import Session
from lmql_lite.models.base import Capabilities
from tests.servers.scored import ScriptedCompleter

QUERY = lq.compile('"Say:[X]"')


class Server(ScriptedCompleter):
    """A server that reports what it is set to."""

    def __init__(self, *, costs: bool = False, is_up: bool = True) -> None:
        super().__init__("Say: hi")
        self.costs, self.is_up = costs, is_up

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        if not self.is_up:
            raise lq.ModelError("nothing answers at http://localhost:1")
        return replace(await super().probe(known), probe_costs=self.costs)


def identity(model: Any, query: Any = QUERY, **settings: Any) -> dict[str, Any]:
    return run_identity(query, "source", model, Session(), Path("d.csv"), settings)


def test_two_models_of_one_name_are_told_apart() -> None:
    one, two = lq.ScriptedModel("Say: hi"), lq.ScriptedModel("Say: no")
    assert one.name == two.name and identity(one) != identity(two)
    assert identity(one) == identity(lq.ScriptedModel("Say: hi"))


def test_a_server_is_known_by_what_it_reports_for_free() -> None:
    server = Server()
    assert fingerprint_of(server, Session()) == server.fingerprint
    assert fingerprint_of(Server(costs=True), Session()) is None
    assert server.requests == 0


def test_a_folder_goes_on_where_the_server_does_not_answer(tmp_path: Path) -> None:
    there, here = identity(Server()), identity(Server(is_up=False))
    assert here["fingerprint"] is None and continued(here, there, tmp_path) == there
    assert default_folder("q.lq", here) == default_folder("q.lq", there)
    with pytest.raises(lq.InputError, match=r"another settings: settings is \{\} there, \{'seed': 1\} here"):
        continued(identity(Server(), seed=1), there, tmp_path)


def test_the_model_of_the_header_and_of_a_query_function_is_the_run_s() -> None:
    assert identity(None, lq.compile('argmax\n    "[X]"\nfrom "demo"'))["model"] == "demo"
    found = identity(None, lq.compile('argmax\n    "[X]"\nfrom some_name'))
    assert (found["model"], found["fingerprint"]) == ("of the query", None)
    model = lq.ScriptedModel("Say: hi")

    @lq.query(model=model)
    def said() -> str:
        '''"Say:[X]"'''

    assert identity(None, said)["fingerprint"] == model.fingerprint
