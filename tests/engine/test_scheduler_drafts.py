"""Drafts from the tree, which the model scores ahead of a run. Only speed changes."""

from __future__ import annotations

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.engine.watched import watched

ROWS = """
"Name: {name}; likes: [A]" where STOPS_AT(A, ";")
" and is [B]" where STOPS_AT(B, "\\n")
"""


def rows_model() -> lq.ScriptedModel:
    def script(said: bytes) -> bytes:
        name = said.split(b"Name: ")[-1].split(b";")[0]
        whole = b"Name: %b; likes: walking the dog, and the cat; and is %b of the sea in winter\n" % (name, name)
        return whole[len(said) :] if whole.startswith(said) else b""

    return lq.ScriptedModel(script)


def test_similar_rows_take_half_the_passes_and_say_the_same() -> None:
    query = lq.compile(ROWS)
    names = ["Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances", "Alan", "Radia"]
    passes, texts = {}, {}
    for speculate in (True, False):
        session, model = lq.Session(), rows_model()
        results = [query.run_sync({"name": name}, model=model, session=session, speculate=speculate) for name in names]
        texts[speculate] = [result.prompt for result in results]
        passes[speculate] = model.calls
        assert sum(result.usage.forward_passes or 0 for result in results) == model.calls
    assert texts[True] == texts[False]
    assert 2 * passes[True] <= passes[False]


def test_accepted_guesses_are_told_with_their_tokens(session: lq.Session) -> None:
    query, model = lq.compile(ROWS), rows_model()
    query.run_sync({"name": "Ada"}, model=model, session=session)

    *seen, finished = watched(ROWS, {"name": "Edsger"}, model=model, session=session)
    drafts = sum(isinstance(event, events.TokenMoved) and event.token.source == "draft" for event in seen)
    assert isinstance(finished, events.Finished) and finished.result.usage.draft_accepted == drafts
    assert drafts > 10


def test_a_draft_never_goes_beyond_what_the_model_reads(session: lq.Session) -> None:
    model = lq.ScriptedModel("a b c d e f g h i j k l m n o p\n")
    model.context_length = 30
    query = lq.compile('"{start}[A]" where STOPS_AT(A, "\\n")')
    query.run_sync({"start": "a b"}, model=model, session=session)
    again = query.run_sync({"start": "xyz a b"}, model=model, session=session, max_tokens=20)
    assert again["A"]


FEW_SHOTS = """
"Thing: apple\\nKind: fruit\\nThing: mouse\\nKind: animal\\nThing: {thing}\\nKind:[KIND]" where CONDITION
"""
THINGS = [f"{adjective} {noun}" for adjective in ("big", "old", "new", "red") for noun in "abcdefghijklmnopqrst"]


def tools_only(words: tuple[bytes, ...] = (b" fruit", b" animal", b" tool", b"Thing:", b"Kind:")) -> lq.ScriptedModel:
    return lq.ScriptedModel(lambda said: b" tool\n"[len(said.rpartition(b"Kind:")[2]) :], words=words)


@pytest.mark.parametrize(
    "condition",
    ['KIND in [" fruit", " animal", " tool"]', "len(TOKENS(KIND)) == 1", 'STOPS_AT(KIND, "l") and not "u" in KIND'],
    ids=["options", "tokens", "letters"],
)
def test_a_draft_is_not_fed_beyond_the_condition_and_the_end_of_its_hole(condition: str, session: lq.Session) -> None:
    query, model = lq.compile(FEW_SHOTS.replace("CONDITION", condition)), tools_only()
    alone = query.map_sync([{"thing": thing} for thing in THINGS], model=tools_only(), cache=False)
    for batch in range(0, len(THINGS), 20):
        results = query.map_sync([{"thing": each} for each in THINGS[batch : batch + 20]], model=model, session=session)
        assert sum(result.usage.draft_rejected or 0 for result in results) == 0
        assert [result["KIND"] for result in results] == [result["KIND"] for result in alone[batch : batch + 20]]


@pytest.mark.parametrize("is_map", [False, True], ids=["one by one", "in batches"])
@pytest.mark.parametrize(
    "condition", ['STOPS_AT(KIND, "l")', 'STOPS_BEFORE(KIND, "\\n")'], ids=["one pick", "two picks"]
)
def test_a_place_that_rejects_drafts_is_given_no_more_of_them_in_later_runs(
    condition: str, is_map: bool, session: lq.Session
) -> None:
    query, model = lq.compile(FEW_SHOTS.replace("CONDITION", condition)), tools_only()
    rejected = []
    for batch in range(0, len(THINGS), 20):
        rows = [{"thing": thing} for thing in THINGS[batch : batch + 20]]
        if is_map:
            results = query.map_sync(rows, model=model, session=session)
        else:
            results = [query.run_sync(row, model=model, session=session) for row in rows]
        rejected.append(sum(result.usage.draft_rejected or 0 for result in results))
    assert 0 < rejected[0] < 20 and rejected[-1] <= 2 and sum(rejected) <= 20, rejected


def test_a_place_that_rejects_drafts_takes_none_from_another_place(session: lq.Session) -> None:
    labels, rows, model = (
        lq.compile(FEW_SHOTS.replace("CONDITION", 'STOPS_AT(KIND, "l")')),
        lq.compile(ROWS),
        rows_model(),
    )
    passes = []
    for name in ["Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances", "Alan", "Radia"]:
        for thing in "abcd":
            labels.run_sync({"thing": f"{thing} {name}"}, model=model, session=session, max_tokens=2)
        result = rows.run_sync({"name": name}, model=model, session=session)
        passes.append(result.usage.forward_passes or 0)
    assert 2 * max(passes[1:]) <= passes[0], passes
