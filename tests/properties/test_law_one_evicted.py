"""Law 1 without memory: before each call, a tree evicts everything that is not pinned (S9, law 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.engine.result import Result
from tests.properties.test_law_one import SCRIPT, WORDS, programs, segments
from tests.properties.test_law_one_interleaved import choices, tools
from tests.servers.scored import ScoredCompleter

ABOUT_A_NODE = (
    *(
        "extend",
        "extend_path",
        "walk",
        "path",
        "path_hash",
        "nodes_to",
        "draft",
        "pin",
        "unpin",
        "scores",
        "add_scores",
    ),
    *("add_path", "entry_around", "answer", "add_answer"),
)


class Merciless(TokenTree):
    """Tree that evicts before every call all that it may evict."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self.asked(found) if name in ABOUT_A_NODE else found

    def asked(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        def ask(node: Node, *others: Any, **named: Any) -> Any:
            with self._lock:
                self.max_bytes = 1
                self._make_room()
            above = node.parent
            assert above is None or self._child(above, node.token) is node, "one node for one path"
            return answer(node, *others, **named)

        return ask


@lq.query
def one_of(options: list[str]) -> str:
    """lq
    "(one of {', '.join(options)}) [ANSWER]" where ANSWER in options
    return ANSWER
    """


@lq.query
def aside() -> None:
    """lq
    " and [MORE]" where len(MORE) <= 3
    """


@lq.query
def twice(options: list[str]) -> str:
    """lq
    sample(n=1)
        "[ONE: one_of(options)]-[TWO: one_of(options)]"
        return ONE + TWO
    """


def add(a: int, b: int) -> int:
    return a + b


GIVEN = {"one_of": one_of, "aside": aside, "twice": twice, "add": add, "ab": ["a", "ab", "Option A"]}
CALLS = ["X: one_of(ab)", "X: aside", "X: twice(ab)", "argmax(tools=[add]) X", "sample(tools=[add]) X", "X"]


@st.composite
def calls(draw: st.DrawFn) -> str:
    """A query whose holes are filled by other queries or may call a tool."""
    lines = []
    for number in range(draw(st.integers(1, 3))):
        hole = draw(st.sampled_from(CALLS))
        ends = f' where STOPS_AT(X{number}, "\\n")' if hole.endswith(" X") or hole == "X" else ""
        lines.append(f'"a{number}:[{hole.replace("X", f"X{number}")}], "{ends}')
    return "\n".join(lines)


SOURCES = st.one_of(programs(), segments(), choices(), tools(), calls())
PENALISED: dict[str, Any] = {"repetition_penalty": 1.3, "frequency_penalty": -0.4}
DECODERS = st.sampled_from(
    [
        {"decoder": "argmax"},
        {"decoder": "argmax", **PENALISED},
        {"decoder": "argmax", "speculate": False},
        {"decoder": "sample"},
        {"decoder": "sample", "n": 3, "temperature": 0.7, "top_k": 5},
        {"decoder": "sample", "top_p": 0.9, **PENALISED},
        {"decoder": "beam", "n": 3},
        {"decoder": "beam", "n": 2, "presence_penalty": 0.5},
        {"decoder": "beam_sample", "n": 2},
    ]
)
TALK = "a0:`add(1, 2) # result: 3` and so on\n, a1:" + SCRIPT
RUNS = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


async def seen(source: str, model: Any, session: lq.Session, **options: Any) -> Any:
    """All parts of the results that the cache may not change."""
    query = lq.compile(source)
    given_to_it = {name: GIVEN[name] for name in query.inputs}
    try:
        found = await query.run(given_to_it, model=model, session=session, max_tokens=12, **options)
    except (lq.ConstraintError, lq.ModelError, lq.QueryError) as error:
        return type(error), str(error)
    results: Sequence[Result] = found if isinstance(found, list) else [found]
    return [
        (
            result.prompt,
            dict(result.variables),
            [(token.id, token.hole, token.fate, token.logprob) for token in result.tokens],
            dict(result.endings),
            result.seed,
        )
        for result in results
    ]


@contextmanager
def merciless() -> Iterator[None]:
    """Makes all trees inside the context `Merciless`."""
    with ExitStack() as patches:
        for module in ("cache.tokens.trees", "engine.session"):
            patches.enter_context(patch(f"lmql_lite.{module}.TokenTree", Merciless))
        yield


@RUNS
@given(
    sources=st.lists(SOURCES, min_size=1, max_size=3),
    options=DECODERS,
    seed=st.integers(0, 2),
    certainty=st.sampled_from([0.0, 3.0, 6.0]),
)
def test_runs_at_once_in_a_memory_that_keeps_nothing_say_what_they_say_alone(
    sources: list[str], options: dict[str, Any], seed: int, certainty: float
) -> None:
    def model() -> lq.ScriptedModel:
        return lq.ScriptedModel(TALK, seed=seed, certainty=certainty, words=WORDS)

    async def ways(folder: Path) -> None:
        chosen, file = {"seed": seed, **options}, str(folder / "x.tokens")
        alone = [await seen(source, model(), lq.Session(), cache=False, **chosen) for source in sources]
        with merciless():
            session, filed = lq.Session(), lq.Session()
            # a refresh supersedes all entries at a node, also answers to other questions
            for modes in ({}, {"cache": file, "cache_mode": "refresh"}, {"cache": file}):
                here = filed if modes else session
                runs = [seen(source, model(), here, **modes, **chosen) for source in sources * 2]
                assert await asyncio.gather(*runs) == alone * 2, modes
        for source, said in zip(sources, alone, strict=True):
            silent = model()
            assert await seen(source, silent, lq.Session(), cache=file, cache_mode="replay", **chosen) == said
            assert silent.calls == 0

    with TemporaryDirectory() as folder:
        asyncio.run(ways(Path(folder)))


@RUNS
@given(
    sources=st.lists(st.one_of(programs(), segments(), calls()), min_size=1, max_size=3),
    seed=st.integers(0, 2),
    able=st.sampled_from([{"alternatives": 5}, {"takes_languages": True}, {"alternatives": 20, "stops": 4}, {}]),
)
def test_texts_of_servers_in_a_memory_that_keeps_nothing_are_what_they_are_alone(
    sources: list[str], seed: int, able: dict[str, Any]
) -> None:
    server = ScoredCompleter(lq.ScriptedModel(TALK, seed=seed, certainty=3.0, words=()), **able)

    async def said(source: str, session: lq.Session, **options: Any) -> Any:
        found = await seen(source, server, session, seed=seed, **options)
        return [each[:2] for each in found] if isinstance(found, list) else found[0]

    async def ways(folder: Path) -> None:
        alone = [await said(source, lq.Session(), cache=True) for source in sources]
        with merciless():
            for cache in (True, str(folder / "x.tokens")):
                session = lq.Session()
                runs = [said(source, session, cache=cache) for source in sources * 2]
                assert await asyncio.gather(*runs) == alone * 2

    with TemporaryDirectory() as folder:
        asyncio.run(ways(Path(folder)))
