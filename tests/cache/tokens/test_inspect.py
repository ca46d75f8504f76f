"""Views of a whole file that tools show: spelled tokens, the first difference, models, JSON data."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lmql_lite.cache.tokens.inspect import chosen, write_new
from lmql_lite.cache.tokens.nodes import Answer, ScoreEntry
from lmql_lite.cache.tokens.recorded import line_of_row, read_recording
from lmql_lite.cache.tokens.rows import ModelName, Stored, place_below
from lmql_lite.cache.tokens.scores import TopK
from lmql_lite.cache.tokens.text import quoted, spelled, visible
from lmql_lite.errors import CacheError
from lmql_lite.store.log import line_of
from tests.cache.tokens.entries import stored
from tests.cache.tokens.process import Process, at, processes

MODEL, NAMESAKE = ModelName("some:0123", "some", 1536), ModelName("some:0199", "some", 1536)
OTHER = ModelName("other:0145", "other", 3)
QUESTION = bytes(range(16))


def entries(*paths: Sequence[int], model: ModelName = MODEL) -> list[Stored]:
    """A top-k entry after each path."""
    scores = TopK(np.array([3, 4], np.int32), np.array([-0.5, -np.inf], np.float32), 0.5, 1536)
    return [stored(model, path, ScoreEntry(scores, 0)) for path in paths]


def test_the_first_difference_of_a_path_is_told() -> None:
    words = [b"Q", b":", b" the", b" a", None, b" an", b" one", b" two"]
    model = ModelName("model", "a model", 1536)
    write_new("x.tokens", entries(*((4, 0, 1, end) for end in (2, 5, 6, 7)), model=model))

    async def work(one: Process) -> None:
        await one.trees.follow()
        tree = one.tree

        def told(*path: int) -> str:
            return tree.difference(at(tree, *path)).describe(words)

        found = tree.difference(at(tree, 4, 0, 1, 3, 0))
        assert (found.before, found.asked, found.stored) == ((4, 0, 1), 3, (2, 5, 6, 7))
        assert found.describe(words) == 'at token 4, after "Q:": stored " the", " an", " one" and 1 more, asked " a"'
        assert found.describe(None) == "at token 4, after [4 0 1]: stored [2], [5], [6] and 1 more, asked [3]"
        assert told(4, 0, 1).startswith('at token 4, after "Q:": the stored text continues with')
        assert told(0) == 'at token 1, the first: stored <4>, asked "Q"'
        assert told(4, 0, 1, 2).endswith("continues with nothing; no scores are stored")

    processes(1, work)


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        ([b"a\n", b"\t\r\x1b[31m\x07"], r'"a\n\t\r\x1b[31m\x07"'),
        ([b"\xe2\x80\xae", b"\xc3", b"\xa9", b"\xff"], r'"\u202eé\xff"'),
        ([b'say "x"'], "'say \"x\"'"),
        ([b'"', b"'"], '"\\"\'"'),
        ([b"a\\n"], r'"a\\n"'),
        ([None, b"a", None, None, b"b"], '<0> "a" <2> <3> "b"'),
        ([], '""'),
        (["🌳".encode(), b"\xf0\x9f"], '"🌳\\xf0\\x9f"'),
    ],
    ids=["control", "bytes", "double quotes", "both quotes", "backslash", "special tokens", "nothing", "half"],
)
def test_tokens_are_spelled_so_that_everything_is_visible(tokens: list[bytes | None], shown: str) -> None:
    assert spelled(range(len(tokens)), tokens) == shown
    assert shown.isprintable()


def test_half_a_character_is_visible() -> None:
    assert visible("a\udcffb") == r"a\xffb" and quoted("it's") == '"it\'s"'


def test_models_are_meant_by_name_or_fingerprint() -> None:
    models = [MODEL, NAMESAKE, OTHER]
    assert chosen(models, None) == tuple(models)
    assert chosen(models, "some") == (MODEL, NAMESAKE)
    assert chosen(models, "some:012") == chosen(models, "012") == (MODEL,)
    for wanted, sentence in (
        ("01", "begins several"),
        ("x", "has no entries of a model 'x'"),
        ("", "has no entries"),
    ):
        with pytest.raises(CacheError, match=sentence):
            chosen(models, wanted)


def test_what_is_exported_are_plain_values() -> None:
    rows = [
        *entries((2,)),
        stored(MODEL, (), Answer(-1, -np.inf, 0), QUESTION),
        stored(MODEL, (), Answer(0, -0.5, 0), (QUESTION, 2**64 - 1, 7)),
    ]
    lines = [line_of_row(each) for each in rows]
    who = {"schema": 1, "model": "some", "fingerprint": MODEL.fingerprint, "vocabulary": 1536, "written": 9}
    root = who | {"place": "0" * 16, "parent": "0" * 16, "tokens": [], "question": QUESTION.hex()}
    below = who | {"place": f"{place_below(0, 2):016x}", "parent": "0" * 16, "tokens": [2], "question": ""}
    values = [b64encode(row.value).decode() for *_, row in rows]
    assert [{name: value for name, value in json.loads(line).items() if name != "crc32"} for line in lines] == [
        below | {"kind": "top-k", "logprob": -0.5, "value": values[0]},
        root | {"kind": "greedy", "logprob": None, "value": values[1]},
        root | {"kind": "sampled", "logprob": -0.5, "value": values[2], "question": rows[2][2].question.hex()},
    ]
    Path("x.jsonl").write_bytes(b"".join(lines))
    assert read_recording(Path("x.jsonl")) == (rows, 0)
    Path("x.jsonl").write_bytes(line_of({"kind": "greedy"} | root | {"token": 1, "logprob": -0.5}))
    with pytest.raises(CacheError, match="written by an earlier lmql-lite"):
        read_recording(Path("x.jsonl"))
