"""Text and holes of a segment are matched as one thing: a token may span the border between them (S14-S16)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.scripted import WORDS
from lmql_lite.program.ops import Hole

LISTING = '"A: [X]B: [Y]" where STOPS_AT(X, "\\n") and STOPS_AT(Y, ".")'
"""A model that has a token from the end of X into Y need not stop between the two."""


def run(source: str, says: str, words: tuple[bytes, ...], **options: Any) -> lq.Result:
    model = lq.ScriptedModel(says, words=(*WORDS, *words))
    return lq.run_sync(source, model=model, session=lq.Session(), **options)


def spelled(result: lq.Result) -> list[tuple[bytes, str | None, str]]:
    return [(token.data, token.hole, token.fate) for token in result.tokens]


def joined(source: str) -> list[str]:
    """The holes of a query that stand in one segment with the hole before them."""
    program = lq.compile(source).program
    return [op.name for op in program.parts if isinstance(op, Hole) and op.continues_segment]


# A surplus that reaches into the next hole -----------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["argmax", "sample"])
def test_a_token_from_one_hole_into_the_next_is_kept_and_counted_once_S14_S15(decoder: str) -> None:
    result = run(LISTING, "A: ab\nB: yes.", (b"\nB: ye",), decoder=decoder, seed=1)
    assert dict(result.variables) == {"X": "ab\n", "Y": "yes."}
    assert dict(result.endings) == {"X": "stop", "Y": "stop"}
    assert spelled(result)[-3:] == [(b"\nB: ye", "X", "kept"), (b"s", "Y", "kept"), (b".", "Y", "kept")]
    assert (result.usage.wasted_tokens, result.usage.completion_tokens) == (0, 5)


def test_what_the_model_has_said_of_the_next_hole_is_not_asked_for_again() -> None:
    joint = run(LISTING, "A: ab\nB: yes.", (b"\nB: yes",)).usage
    parted = run(LISTING, "A: ab\nB: yes.", ()).usage
    assert (joint.forward_passes, parted.forward_passes) == (4, 7)


def test_the_next_hole_may_end_inside_the_token() -> None:
    result = run(LISTING + '\n"!"', "A: ab\nB: y.", (b"\nB: y.",))
    assert dict(result.variables) == {"X": "ab\n", "Y": "y."}
    assert (result.prompt, result.endings["Y"]) == ("A: ab\nB: y.!", "stop")
    assert spelled(result)[-2:] == [(b"\nB: y.", "X", "kept"), (b"!", None, "kept")]


def test_a_token_may_span_several_holes() -> None:
    source = '"[X],[Y],[Z]" where ' + " and ".join(f'STOPS_BEFORE({hole}, ",")' for hole in "XYZ")
    result = run(source, "a,b,c,d", (b",b,c",))
    assert dict(result.variables) == {"X": "a", "Y": "b", "Z": "c"}
    assert (b",b,c", "X", "kept") in spelled(result)
    assert result.usage.wasted_tokens == 1  # the comma before which Z ends


def test_holes_side_by_side_share_a_token() -> None:
    result = run('"[X][Y]" where STOPS_AT(X, ".") and len(Y) == 2', "a.bc", (b".b",))
    assert dict(result.variables) == {"X": "a.", "Y": "bc"}
    assert spelled(result) == [(b"a", "X", "kept"), (b".b", "X", "kept"), (b"c", "Y", "kept")]


def test_a_choice_and_fixed_text_go_on_inside_the_token_S18() -> None:
    source = '"[X]: [Y] ([Z])" where X in ["a", "ab"] and Y in ["yes", "no"] and Z == "sure"'
    result = run(source, "a: yes (sure)", (b": y",))
    assert result.prompt == "a: yes (sure)"
    assert (b": y", "X", "kept") in spelled(result)
    assert (result.usage.forward_passes, result.usage.wasted_tokens) == (1, 0)


def test_a_hole_that_can_only_be_empty_lets_the_surplus_through() -> None:
    result = run('"[X]-[E]-[Y]" where STOPS_AT(X, ".") and E == "" and len(Y) == 2', "a.--bc", (b".--b",))
    assert result.prompt == "a.--bc"
    assert spelled(result) == [(b"a", "X", "kept"), (b".--b", "X", "kept"), (b"c", "Y", "kept")]


# A surplus that does not fit -------------------------------------------------------------------------------------


def test_a_token_whose_last_bytes_do_not_fit_the_next_hole_is_cut_at_the_end_of_its_own_S14() -> None:
    source = '"A: [X]B: [Y]" where STOPS_AT(X, "\\n") and Y in ["no", "yo"]'
    result = run(source, "A: ab\nB: yes.", (b"\nB: ye",))
    assert dict(result.variables) == {"X": "ab\n", "Y": "yo"}
    assert (b"\nB: ye", "X", "cut") in spelled(result)
    assert (b"\n", "X", "kept") in spelled(result)
    assert result.usage.wasted_tokens == 1


def test_a_token_past_several_stops_is_cut_at_the_last_one_that_it_fits_S14() -> None:
    source = '"-[X]-[Y]-[Z]" where STOPS_AT(X, "\\n") and STOPS_AT(Y, "\\n") and Z in ["a", "b"]'
    result = run(source, "-x\n-y\n-z", (b"\n-y\n-z",))
    assert (result["X"], result["Y"], result["Z"]) in (("x\n", "y\n", "a"), ("x\n", "y\n", "b"))
    assert [token.data for token in result.tokens if token.fate == "cut"] == [b"\n-y\n-z"]
    # what stays before the cut belongs to whose it is: the end of X, the text between, the beginning of Y (S31)
    kept = [(token.data, token.hole, token.source) for token in result.tokens if token.fate == "kept"]
    assert kept[2:6] == [
        (b"\n", "X", "model"),
        (b"-", None, "prompt"),
        (b"y", "Y", "model"),
        (b"\n-", "Y", "model"),
    ]


def test_a_stop_that_is_taken_back_into_the_token_before_leaves_each_its_own_S31() -> None:
    source = '"[X], [Y]!" where STOPS_AT(X, ".") and STOPS_BEFORE(Y, "bcd")'
    result = run(source, "a., ybcd", (b"., yb",))
    assert dict(result.variables) == {"X": "a.", "Y": "y"}
    assert spelled(result) == [
        (b"a", "X", "kept"),
        (b"., yb", "X", "cut"),
        (b"c", "Y", "cut"),
        (b"d", "Y", "cut"),
        (b".", "X", "kept"),
        (b", ", None, "kept"),
        (b"y", "Y", "kept"),
        (b"!", None, "kept"),
    ]


def test_a_surplus_of_several_tokens_is_kept_as_far_as_it_fits() -> None:
    source = '"[X]xyz[Y]" where STOPS_BEFORE(X, "xyzb") and len(Y) == 2 and not "b" in Y'
    result = run(source, "axyzbc", ())
    assert [token.data for token in result.tokens if token.fate == "cut"] == [b"b"]
    source = '"[X]xyz[Y]" where STOPS_BEFORE(X, "xyzb") and len(Y) == 2'
    result = run(source, "axyzbc", ())
    assert (result["Y"], result.usage.wasted_tokens, result.usage.forward_passes) == ("bc", 0, 6)


def test_a_beginning_that_leaves_too_few_tokens_is_no_beginning_S19() -> None:
    source = '"[X],[Y]" where STOPS_BEFORE(X, ",") and (Y in ["a"] or REGEX(Y, r"b{9}"))'
    assert run(source, "x,b", (b",b",), max_tokens=12)["Y"] == "b" * 9
    assert run(source, "x,b", (b",b",), max_tokens=3)["Y"] == "a"


# What ends a segment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "source"),
    [
        ("a hole of JSON before", '"[X: list[int]], [Y]"'),
        ("a hole of JSON", '"[X], [Y: dict]"'),
        ("a type of the user's", "import dataclasses\n@dataclasses.dataclass\nclass T:\n    a: int\n'[X], [Y: T]'"),
        ("a statement", '"[X]"\nn = 1\n", [Y]"'),
        ("a value of the segment in the text", '"[X], {X}[Y]"'),
        ("a value of the segment in a condition", '"[X], [Y]" where Y != X'),
        ("a value of the segment two holes before", '"[X], [M], {X}"\n"[Y]" where len(M) < 2 and len(Y) < 2'),
        ("the text so far", '"[X], {len(context.prompt)}[Y]"'),
        ("a predicate on the hole before", '"[X], [Y]" where str.upper(X) == "A"'),
        ("a predicate on the hole itself", '"[X], [Y]" where str.upper(Y) == "A"'),
        ("a condition of Python over both", '"[X], [Y]" where int(X) + int(Y) == 3'),
        ("a function that reads the hole", 'X = ""\ndef f():\n    return X\n"[X], {f()}[Y]"'),
        ("a function before the header", 'def f():\n    return X\nargmax\n    "[X], {f()}[Y]"\n'),
        ("a place that is jumped to", '"[X]"\nwhile len(context.prompt) < 3:\n    ", [Y]" where len(Y) == 1'),
        ("the end of a branch", 'a = 1\nif a:\n    "[X]"\n", [Y]"'),
    ],
)
def test_what_ends_a_segment_S16(why: str, source: str) -> None:
    assert "Y" not in joined(source), why


@pytest.mark.parametrize(
    "source",
    [
        '"[X], [Y]"',
        '"[X: int], [Y: bool]"',
        '"[X]"\n", "\n"[Y]" where len(Y) < 3',
        'n = 3\nwords = ["a"]\n"[X], {n:>3}[Y]" where Y in [w.upper() for w in words] and len(Y) < n',
        '"[A]"\nb = 1\n"[X], {A}[Y]" where Y != A',
        'def f():\n    return A\n"[A]"\nb = 1\n"[X], {f()}[Y]"',
        'for n in range(3):\n    "[X], [Y]"',
    ],
)
def test_what_does_not_end_a_segment_S16(source: str) -> None:
    assert joined(source) == ["Y"]


@pytest.mark.parametrize(
    "source",
    [
        '"[X]" where STOPS_AT(X, ".")\nn = 1\n", [Y]" where len(Y) == 2',
        '"[X], [Y]" where STOPS_AT(X, ".") and len(Y) == 2 and Y != X',
        '"[X], [Y]" where STOPS_AT(X, ".") and len(Y) == 2 and str.upper(Y) == "BC"',
        '"[X], [Y]" where STOPS_AT(X, ".") and len(Y) == 2 and str.upper(X) == "A."',
    ],
)
def test_at_the_end_of_a_segment_a_surplus_goes_to_the_next_text_only_S14(source: str) -> None:
    whole = run(source, "a., bc", (b"., ", b"., b"))
    assert (b"., b", "X", "cut") in spelled(whole)
    assert whole.prompt == "a., bc"
    text_only = run(source, "a., bc", (b"., ",))
    assert (b"., ", "X", "kept") in spelled(text_only)


def test_a_list_in_a_loop_needs_no_cut_S14() -> None:
    result = run('for n in range(3):\n    "- [X]" where STOPS_AT(X, "\\n")', "- a\n- b\n- c\n- d", (b"\n- ",))
    assert result.prompt == "- a\n- b\n- c\n"
    crossing = [(hole, fate) for data, hole, fate in spelled(result) if data == b"\n- "]
    assert crossing == [("X", "kept"), ("X", "kept"), ("X", "cut")]


# Beside it -------------------------------------------------------------------------------------------------------


def test_a_watcher_sees_holes_open_and_close_in_order_and_no_text_twice_S33() -> None:
    words = (*WORDS, b"\nB: ye", b".\nC: d")
    source = '"A: [X]B: [Y]C: [Z]" where STOPS_AT(X, "\\n") and STOPS_BEFORE(Y, "C") and len(Z) == 2'
    model = lq.ScriptedModel("A: ab\nB: yes.\nC: de", words=words)

    async def watched() -> list[events.Event]:
        return [event async for event in lq.compile(source).stream(model=model, session=lq.Session())]

    seen = asyncio.run(watched())
    finished = seen[-1]
    assert isinstance(finished, events.Finished)
    texts = [event for event in seen if isinstance(event, events.Text)]
    assert "".join(event.text for event in texts) == finished.result.prompt == "A: ab\nB: yes.\nC: de"
    for hole, value in finished.result.variables.items():
        assert "".join(event.text for event in texts if event.hole == hole) == value
    order = [
        type(event).__name__ + " " + event.name
        for event in seen
        if isinstance(event, events.HoleOpened | events.HoleClosed)
    ]
    assert order == [f"{what} {hole}" for hole in "XYZ" for what in ("HoleOpened", "HoleClosed")]
    # what the token from X said of Y is shown before Y is asked for
    opened = next(at for at, event in enumerate(seen) if isinstance(event, events.HoleOpened) and event.name == "Y")
    assert seen[opened + 1] == events.Text("ye", "Y")


@pytest.mark.parametrize("decoder", ["argmax", "sample"])
def test_a_model_that_ends_with_a_blank_line_stops_there_S14(decoder: str) -> None:
    result = run('"Q:[X]" where STOPS_AT(X, "\\n")', "Q: a the.\n\nmore", (), decoder=decoder, seed=1)
    assert (result["X"], result.endings["X"]) == (" a the.\n", "stop")
    assert [token.data for token in result.tokens if token.fate == "cut"] == [b".\n\n"]
    assert result.usage.forward_passes == 3


@pytest.mark.parametrize("decoder", ["argmax", "sample"])
def test_cache_off_cold_and_warm_agree_on_segments(decoder: str) -> None:
    words = (*WORDS, b"\n-a", b"e\n- ", b".\n", b"\n-\n-", b", and ", b"a, ")
    session = lq.Session()
    source = """
for n in range(3):
    "-[A]-[B], [C] and [D]\\n" where (STOPS_AT(A, "\\n") and len(A) < 9 and STOPS_BEFORE(B, ", ") and len(B) < 9
        and C in ["a", "ab", "e\\n"] and STOPS_AT(D, "e") and len(D) < 9)
"""
    query = lq.compile(source)
    for seed in range(4):
        model = lq.ScriptedModel("-a\n-a, and e\n- e\n-", certainty=2, seed=seed, words=words)
        runs = [
            query.run_sync(model=model, session=session, decoder=decoder, seed=seed, cache=cache)
            for cache in (False, True, True, False)
        ]
        assert len({run.prompt for run in runs}) == 1
        assert len({tuple((token.id, token.hole, token.fate) for token in run.tokens) for run in runs}) == 1
        assert runs[2].usage.forward_passes == 0


def test_a_token_that_is_healed_over_the_text_before_its_hole_counts_for_it_S15() -> None:
    counted = 'len(TOKENS(X)) == 2 and len(TOKENS(Y)) == 2 and STOPS_BEFORE(X, ",")'
    result = run(f'"A[X], [Y]" where {counted}', "A12, 12b", (b"A1", b", 1"))
    # `A` was held back for healing: `A1` begins before X, and `, 1` before Y
    assert [(token.data, token.hole) for token in result.tokens] == [
        (b"A1", "X"),
        (b"2", "X"),
        (b", 1", "Y"),
        (b"2", "Y"),
    ]
    assert dict(result.variables) == {"X": "12", "Y": "12"}


def test_typed_holes_that_are_text_share_tokens() -> None:
    source = '"[A: int], [B: int]; [C: Literal[True]]."'
    result = run(source, "12, 34; True.", (b", 3", b"4; T"))
    assert [data for data, _, _ in spelled(result)[:3]] == [b"12", b", 3", b"4; T"]
    assert result.usage.forward_passes == 3
