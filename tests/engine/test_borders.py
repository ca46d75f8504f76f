"""Numbers at borders: of blocks, of tokens beyond a hole, of requests, of the pieces of an answer."""

from __future__ import annotations

import json
from pathlib import Path

import lmql_lite as lq
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.constraints.terms import Constant, Term
from lmql_lite.engine.forms import Form
from lmql_lite.engine.record import Step
from lmql_lite.engine.segment import Lookahead
from lmql_lite.engine.state import Overhang, Piece, block_marks
from lmql_lite.models.base import Capabilities
from lmql_lite.tokens import Token
from tests.servers.scored import ScriptedCompleter
from tests.tables import cases

ANY = Constant(True)


def text(size: int, block: int | None = None, *, is_value: bool = False) -> Piece:
    return Piece(b"x" * size, None, "prompt", block=block, is_value=is_value)


@cases("engine/borders", "whole tokens of a block count, if there are enough", globals())
def test_whole_tokens_of_a_block_count(size: int, pieces: tuple[Piece, ...], marks: dict[int, int]) -> None:
    assert block_marks((size,) * (sum(len(each.data) for each in pieces) // size), pieces) == marks


@cases("engine/borders", "tokens beyond the end of a hole reach so many bytes")
def test_tokens_beyond_the_end_of_a_hole_reach_so_many_bytes(
    tokens: tuple[bytes, ...], before: bytes, reaches: list[int]
) -> None:
    root = TokenTree().root
    steps = tuple(Step(Token(1, data, "X", "model", "kept", None), root, root, None, None) for data in tokens)
    overhang = Overhang(steps, (Piece(before, "X", "model"),), b"".join(tokens)[len(before) :])
    assert [overhang.reach(many) for many in range(len(tokens) + 1)] == reaches


@cases("engine/borders", "a request to a server that bills to the end has a length in proportion", globals())
def test_a_request_to_a_server_that_bills_to_the_end_has_a_length_in_proportion(
    parts: tuple[Term | bytes, ...], goes_on: bool, length: int
) -> None:
    form = Form(Lookahead(parts, goes_on), Capabilities("", bills_to_the_end=True))
    assert form.length(100, most_prompt=1600, known=0, filled=0) == length
    assert form.length(100, most_prompt=0, known=0, filled=0) in (20, 100)


def test_the_pieces_of_an_answer_are_counted_and_joined(tmp_path: Path) -> None:
    trace, model = tmp_path / "run.json", ScriptedCompleter("Say: aé.")
    result = lq.run_sync('"Say:[X]" where STOPS_AT(X, ".")', model=model, session=lq.Session(), trace=str(trace))
    (call,) = json.loads(trace.read_text("utf-8"))["calls"]
    assert call["answered"]["text"] == result["X"] == " aé."
    assert call["answered"]["pieces"] == 4
