"""Law 1 for the whole language: statements around holes, decorators, nested queries, tools, distributions, values that
Python rejects, under every decoder. A cache changes nothing, and a second process never asks the model (S3, S7)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from tests.properties.test_law_one import CONDITIONS, PYTHON, SCRIPT, TEXTS, WORDS

BEFORE = (
    PYTHON
    + """
said = []
def note(value):
    said.append(value)
    return value
class Tidy:
    def __init__(self, mark):
        self.mark, self.seen = mark, 0
    def stream(self, text):
        self.seen += 1
    def post(self, value, text):
        note(value)
        return value, text + self.mark
class Known:
    def pre(self, name, context):
        return "known" if len(context.prompt) % 3 == 0 else None
tidy, known = Tidy("."), Known()
counter = [lambda: len(said)]
def add(a: int, b: int) -> int:
    said.append((a, b))
    return a + b
@query
def ask(word):
    '''lq
    "<{word}[A]>" where len(A) < 3
    found = note(A)
    return found + "!"
    '''
@query
def remark(word):
    '''lq
    for _ in range(2):
        "({word}[B])" where len(B) < 2
    '''
"""
)
HOLES = [
    "[{H}]",
    "[{H}]",
    "[{H}]",
    "[@note {H}]",
    "[@tidy {H}]",
    "[@known @note {H}]",
    "[{H}: ask(note(1))]",
    "[{H}: remark('r')]",
    "[{H}: int]",
    "[argmax {H}]",
    "[sample(temperature=0.8) {H}]",
    "[argmax(tools=[add], max_calls=2) {H}]",
]
BLOCKS = [
    ("for item in ['a', 'b']:", ()),
    ("for item in note([1, 2]):", ("else:",)),
    ("while counter[0]() < 4:\n    note(0)", ()),
    ("try:", ("except Exception as error:\n    note(type(error).__name__)",)),
    ("try:\n    note(1)", ("except ValueError:", "else:", "finally:\n    note('last')")),
    ("try:", ("finally:\n    note('always')",)),
    ("if counter[0]() % 2:", ("else:",)),
    ("match len(said) % 3:\n  case 0:", ("  case other:",)),
]
OPTIONS: list[dict[str, Any]] = [
    {"decoder": "argmax"},
    {"decoder": "sample"},
    {"decoder": "sample", "temperature": 0.7, "top_k": 6, "frequency_penalty": 0.7},
    {"decoder": "sample", "n": 2},
    {"decoder": "beam", "n": 1},
    {"decoder": "beam", "n": 3},
    {"decoder": "beam", "n": 2, "presence_penalty": 1.0},
    {"decoder": "beam_sample", "n": 3, "top_p": 0.9},
]


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A query of a few statements, some of them nested, each with a prompt."""
    numbers = iter(range(99))

    def prompt() -> str:
        name, text = f"H{next(numbers)}", draw(st.sampled_from(TEXTS)).replace("\n", "\\n")
        if draw(st.integers(0, 6)) == 0:
            return f'"{text}[{name}]" distribution {name} in ["a", "ab", "b\\n"]'
        hole = draw(st.sampled_from(HOLES)).format(H=name)
        if ": int" in hole:
            return f'"{text}{hole}" where len({name}) < 4'
        return f'"{text}{hole}{text}" where {draw(st.sampled_from(CONDITIONS)).format(H=name)}'

    def statements(depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(draw(st.integers(1, 2))):
            if not depth or draw(st.booleans()):
                lines.append(prompt())
                continue
            head, clauses = draw(st.sampled_from(BLOCKS))
            lines += head.split("\n")
            for clause in ("", *clauses):
                indent = " " * (6 if head.startswith("match") else 4)
                lines += [*(clause.split("\n") if clause else []), *(indent + line for line in statements(depth - 1))]
        return lines

    return BEFORE + "\n".join([*statements(2), "return (said, context.prompt, tidy.seen)"])


async def seen(query: lq.Query, model: lq.ScriptedModel, session: lq.Session, **options: Any) -> list[Any]:
    """All parts of each result that the cache may not change. Sources of tokens may differ."""
    try:
        found = await query.run(model=model, session=session, max_tokens=8, max_backtracks=6, **options)
    except (lq.ConstraintError, lq.ModelError, lq.QueryError) as error:
        return ["error", str(error)]
    results = found if isinstance(found, list) else [found]
    return [
        (
            result.prompt,
            repr(result.variables),
            repr(result.value),
            [(token.id, token.hole, token.fate, token.logprob) for token in result.tokens],
            dict(result.endings),
            result.score,
            result.seed,
        )
        for result in results
    ]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    source=queries(),
    options=st.sampled_from(OPTIONS),
    seed=st.integers(0, 3),
    certainty=st.sampled_from([0.0, 3.0, 6.0]),
)
def test_every_construct_is_the_same_with_every_cache_and_a_second_process_asks_nothing(
    source: str, options: dict[str, Any], seed: int, certainty: float
) -> None:
    query, chosen = lq.compile(source), {"seed": seed, **options}
    model = lq.ScriptedModel(SCRIPT, seed=seed, certainty=certainty, words=WORDS)

    async def ways(folder: Path) -> None:
        file, session = str(folder / "x.tokens"), lq.Session()
        off = await seen(query, model, lq.Session(), cache=False, **chosen)
        assert await seen(query, model, session, **chosen) == off, "cold"
        calls = model.calls
        assert await seen(query, model, session, **chosen) == off, "warm"
        assert model.calls == calls, "warm"
        assert await seen(query, model, lq.Session(), cache=lq.TokenCache(max_bytes=3000), **chosen) == off, "evicted"
        assert await seen(query, model, lq.Session(), speculate=False, **chosen) == off, "without guesses"
        assert await seen(query, model, lq.Session(), cache=file, **chosen) == off, "the file is new"
        calls = model.calls
        assert await seen(query, model, lq.Session(), cache=file, cache_mode="replay", **chosen) == off, "replayed"
        assert model.calls == calls, "the file"

    with TemporaryDirectory() as folder:
        asyncio.run(ways(Path(folder)))


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(source=queries(), seed=st.integers(0, 3), certainty=st.sampled_from([0.0, 3.0, 6.0]))
def test_one_beam_is_argmax_whatever_the_program_does_S24(source: str, seed: int, certainty: float) -> None:
    query, model = lq.compile(source), lq.ScriptedModel(SCRIPT, seed=seed, certainty=certainty, words=WORDS)

    async def both() -> None:
        for beam, alone in (("beam", "argmax"), ("beam_sample", "sample")):
            session = lq.Session()
            expected = await seen(query, model, session, decoder=alone, seed=seed)
            found = await seen(query, model, session, decoder=beam, n=1, seed=seed)
            if expected[0] == "error":
                assert found == expected
            else:  # a beam's score includes forced tokens
                assert [each[:5] for each in found] == [each[:5] for each in expected]

    asyncio.run(both())
