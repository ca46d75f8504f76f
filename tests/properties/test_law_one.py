"""Law 1: a cache may only be faster, never different (S1-S11). Random programs on a random model with ties."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.models import scripted

WORDS = (
    *scripted.WORDS,
    b"\n- ",
    b"\n-a",
    b"e, a",
    b"a: a",
    b".Q:ab",
    b"\na\n",
    b"\n\n\n",
    b", a, ",
    b"c12a",
    b"b\n\nOption",
)
"""Tokens that reach from one hole over the text after it into the next hole (S14)."""
SCRIPT = "a\n- Option A.\nthe end?\na\n\n\nb\n\nOption, a, a: ab.Q:abc12a"
TEXTS = ["a", "\n", "\n-", "- ", "Q:", " the", "Option", "é", "😀", ".", "?\n", "b\n\n", "", " ", "c12"]
CONDITIONS = [
    'STOPS_AT({H}, "\\n")',
    'STOPS_BEFORE({H}, "\\n")',
    'STOPS_AT({H}, "e") and len({H}) < 9',
    'STOPS_BEFORE({H}, "a") or len({H}) == 4',
    "len({H}) < 6",
    "len({H}) > 2 and len({H}) <= 5",
    '{H} in ["Option A", "Option B", "Another"]',
    '{H} in ["a", "ab", "abc", "the end"] and not {H} == "ab"',
    'not "e" in {H} and len({H}) < 7',
    '"12" in {H} and STOPS_AT({H}, ".")',
    'REGEX({H}, r"[a-c]+|é?[0-9][0-9]")',
    "INT({H}) and len({H}) < 4",
    '{H}.startswith(("a", "1")) and len({H}) < 5',
    'len({H}) == 2 and {H}.upper() != "AA" and sum({H}.encode()) % 3 != 0',
    "len({H}) == 2 and steady({H})",
    'len({H}) < 8 and (STOPS_AT({H}, ["?", "."]) or {H} in ["é", "ée"])',
]


PYTHON = """
def steady(text, final=True):
    return (sum(text.encode()) % 3 != 0) if text and (final or text[-1] in "aeb") else None
"""


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A query of a few prompts with holes, values of earlier holes, conditions, loops and branches."""
    lines: list[str] = []
    holes: list[str] = []
    for number in range(draw(st.integers(1, 4))):
        parts, clauses = [], []
        for _ in range(draw(st.integers(1, 3))):
            parts.append(draw(st.sampled_from(TEXTS)).replace("\n", "\\n"))
            what = draw(st.integers(0, 3))
            if what == 0 and holes:
                parts.append("{" + draw(st.sampled_from(holes)) + "}")
            elif what > 0:
                name = f"H{number}_{len(clauses)}"
                parts.append(f"[{name}]")
                clauses.append(draw(st.sampled_from(CONDITIONS)).format(H=name))
                holes.append(name)
        parts.append(draw(st.sampled_from(TEXTS)).replace("\n", "\\n"))
        where = f" where {' and '.join(f'({clause})' for clause in clauses)}" if clauses else ""
        prompt = f'"{"".join(parts)}"{where}'
        wrap = draw(st.integers(0, 5))
        if wrap == 0:
            lines += ["for item in range(2):", f"    {prompt}"]
        elif wrap == 1 and holes and not clauses:
            lines += [f"if len(str({holes[0]})) > 3:", f"    {prompt}", "else:", '    "other"']
        else:
            lines.append(prompt)
    return PYTHON + "\n".join(lines)


@st.composite
def segments(draw: st.DrawFn) -> str:
    """A query of one long segment: tokens cross its texts, and holes end inside tokens (S16)."""
    parts, clauses = [], []
    for number in range(draw(st.integers(2, 5))):
        parts.append(draw(st.sampled_from(["", "-", "- ", ", ", ": ", "\n", "Q:", "a", "\n-"])).replace("\n", "\\n"))
        parts.append(f"[H{number}]")
        clauses.append(draw(st.sampled_from(ENDS)).format(H=f"H{number}"))
    return f'"{"".join(parts)}" where {" and ".join(f"({clause})" for clause in clauses)}'


ENDS = [
    'STOPS_AT({H}, "\\n")',
    'STOPS_AT({H}, ["a", "e"]) and len({H}) < 7',
    'STOPS_BEFORE({H}, "\\n") and len({H}) < 6',
    'STOPS_BEFORE({H}, ", ") and len({H}) < 6',
    'STOPS_BEFORE({H}, "e, a") and len({H}) < 8',
    '{H} in ["a", "ab", "Option", "e"]',
    "INT({H}) and len({H}) < 4",
    "len({H}) < 4",
    '{H} in ["", "a"]',
    '{H} == ""',
    '{H} == "a"',
]


Seen = tuple[Any, ...]


async def seen(program: lq.Query, session: lq.Session, model: lq.ScriptedModel, **options: Any) -> Seen:
    """All parts of a run that the cache may not change: text, values, path, scores, endings. Sources may differ."""
    try:
        result = await program.run(session=session, model=model, max_tokens=12, **options)
    except (lq.ConstraintError, lq.ModelError) as error:
        return ("error", str(error))
    path = [(token.id, token.hole, token.fate, token.logprob) for token in result.tokens]
    return (result.prompt, dict(result.variables), path, dict(result.endings), result.seed)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    source=st.one_of(programs(), segments()),
    decoder=st.sampled_from(["argmax", "sample"]),
    seed=st.integers(0, 3),
    levels=st.sampled_from([None, 2]),
    certainty=st.sampled_from([0.0, 3.0, 6.0]),
)
def test_cache_on_off_warm_evicted_and_concurrent_give_the_same_run(
    source: str, decoder: str, seed: int, levels: int | None, certainty: float
) -> None:
    model = lq.ScriptedModel(SCRIPT, seed=seed, levels=levels, certainty=certainty, words=WORDS)
    program = lq.compile(source)
    options = {"decoder": decoder, "seed": seed}

    async def all_ways() -> dict[str, Seen]:
        session, evicting, crowded = lq.Session(), lq.TokenCache(max_bytes=3000), lq.Session()
        ways = {
            "off": await seen(program, session, model, cache=False, **options),
            "cold": await seen(program, session, model, **options),
            "warm": await seen(program, session, model, **options),
            "off, beside a warm tree": await seen(program, session, model, cache=False, **options),
            "evicted": await seen(program, session, model, cache=evicting, **options),
            "without guesses": await seen(program, lq.Session(), model, speculate=False, **options),
        }
        together = await asyncio.gather(
            *(seen(program, crowded, model, **options) for _ in range(2)),
            seen(program, crowded, model, decoder="sample", seed=seed + 1),
        )
        return ways | {"one of two at once": together[0], "other of two at once": together[1]}

    ways = asyncio.run(all_ways())
    for way, run in ways.items():
        assert run == ways["off"], way


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    source=st.one_of(programs(), segments()),
    options=st.sampled_from(
        [
            {"decoder": "argmax"},
            {"decoder": "sample"},
            {"decoder": "sample", "temperature": 0.7, "top_k": 5},
            {"decoder": "sample", "temperature": 1.5, "top_p": 0.9},
        ]
    ),
    seed=st.integers(0, 3),
    certainty=st.sampled_from([0.0, 3.0, 6.0]),
)
def test_a_second_process_asks_nothing_and_says_the_same_S3(
    source: str, options: dict[str, Any], seed: int, certainty: float
) -> None:
    """Top-k entries, greedy and sampled answers in a file answer every question: any decoder, mask, temperature."""
    program = lq.compile(source)

    async def processes(folder: Path) -> None:
        model = lq.ScriptedModel(SCRIPT, seed=seed, certainty=certainty, words=WORDS)
        chosen = {"seed": seed, **options}
        file = str(folder / "x.tokens")
        off = await seen(program, lq.Session(), model, cache=False, **chosen)
        assert await seen(program, lq.Session(), model, cache=file, **chosen) == off, "the file is new"
        calls = model.calls
        assert await seen(program, lq.Session(), model, cache=file, **chosen) == off, "the file is known"
        assert await seen(program, lq.Session(), model, cache=file, cache_mode="replay", **chosen) == off
        assert model.calls == calls

    with TemporaryDirectory() as folder:
        asyncio.run(processes(Path(folder)))


def test_a_warm_run_asks_the_model_nothing(session: lq.Session) -> None:
    model = lq.ScriptedModel("x", certainty=0, seed=3)
    source = 'sample(seed=9)\n    "Say:[A]\\n[B]" \nwhere len(A) < 20 and len(B) < 20'
    first = lq.run_sync(source, model=model, session=session)
    calls = model.calls
    second = lq.run_sync(source, model=model, session=session)
    assert calls > 0 and model.calls == calls
    assert second.prompt == first.prompt
    assert second.usage.forward_passes == 0
    assert second.usage.tokens_from_model == 0
    assert second.usage.tokens_from_cache == first.usage.tokens_from_model


def test_another_decoder_and_condition_reuse_the_same_facts_S1(session: lq.Session) -> None:
    model = lq.ScriptedModel("hello world\n and more", seed=1)
    lq.run_sync('"Say:[A]" where STOPS_AT(A, "\\n")', model=model, session=session)
    calls = model.calls
    narrower = lq.run_sync('"Say:[B]" where len(B) < 6', model=model, session=session)
    assert model.calls == calls
    assert narrower["B"] == "hello"


@pytest.mark.parametrize("how_many", [2, 8])
def test_equal_questions_in_flight_are_asked_once(session: lq.Session, how_many: int) -> None:
    model = lq.ScriptedModel("one two three four\n")
    query_text = '"Count:[A]" where STOPS_AT(A, "\\n")'
    query = lq.compile(query_text)

    async def crowd() -> list[lq.Result]:
        return await asyncio.gather(*(query.run(model=model, session=session) for _ in range(how_many)))

    alone = lq.run_sync(query_text, model=lq.ScriptedModel("one two three four\n"), session=lq.Session())
    results = asyncio.run(crowd())
    assert {result.prompt for result in results} == {alone.prompt}
    assert model.calls == alone.usage.forward_passes
    # one run asked; the others got their tokens from its request (S31)
    assert sorted(result.usage.tokens_from_model or 0 for result in results)[:-1] == [0] * (how_many - 1)
