"""The converted demo model says in llama.cpp what it says here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lmql_lite.assets import asset
from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.demo import DemoModel
from tests.servers.conftest import client
from tests.servers.processes import ServerProcess

if TYPE_CHECKING:
    import httpx

FOLDER = asset("demo/model", "config.json").parent
TRANSCRIPTS = sorted((Path(__file__).parent.parent.parent / "examples" / "expected").glob("*.txt"))
ODD = [*"éẞ²٣½–„·\0\x7f\u0301\u00a0\u3000\u200b", "Zoë", "José", "日本", "😀", "'s", "'ll", "don't", "it's", "McDonald"]
ODD += [
    "HELLOworld",
    "a\tb",
    "\r\n",
    ".\n",
    "?\n\n",
    ">>\n",
    "}\n",
    "<<12*7=84>>",
    '"Alice",',
    "(x)",
    "--",
    "...",
    "\\n",
]
"""Pieces on which ways of splitting a text differ."""
EOS = 1
WINDOW = 2e-2
"""Scores of two programs differ by less; where the two best ones are closer than this, they may choose differently."""


@pytest.fixture(scope="module")
def model() -> DemoModel:
    return DemoModel.load()


@pytest.fixture(scope="module")
def llama(llama_cpp_server: ServerProcess) -> Iterator[httpx.Client]:
    with client(llama_cpp_server) as found:
        found.headers["Connection"] = "close"
        yield found


def post(llama: httpx.Client, path: str, **body: Any) -> Any:
    response = llama.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def ids_there(llama: httpx.Client, text: str) -> list[int]:
    ids: list[int] = post(llama, "/tokenize", content=text, add_special=True, parse_special=False)["tokens"]
    return ids


def ids_here(model: DemoModel, text: str) -> list[int]:
    return [*model.tokenizer.bos, *model.tokenizer.encode(text.encode())]


def probes(model: DemoModel) -> list[str]:
    """Transcripts of the examples, and pieces of text in a random order."""
    rng = random.Random(7)
    words = [token.decode() for token in model.tokenizer.vocabulary if token is not None and token.isascii()]
    mixed = ["".join(rng.choices(ODD + words[:200] * 2 + words, k=rng.randrange(1, 15))) for _ in range(250)]
    fit = [text for text in mixed if not differs(text)]
    return [path.read_text("utf-8") for path in TRANSCRIPTS] + [piece for piece in ODD if not differs(piece)] + fit


def differs(text: str) -> bool:
    """The converted tokenizer's two known differences: an apostrophe before a capital, or behind an accent that is a
    character of its own."""
    return any(
        (left == "'" and right.isupper()) or (left == "\u0301" and right == "'") for left, right in pairwise(text)
    )


def test_the_same_bytes_each_time(demo_gguf: Path, tmp_path: Path) -> None:
    from tests.servers.gguf import convert

    assert convert(FOLDER, tmp_path / "again.gguf").read_bytes() == demo_gguf.read_bytes()


def test_token_ids_are_the_same(model: DemoModel, llama: httpx.Client) -> None:
    texts = probes(model)
    assert len(texts) >= 200
    for text in texts:
        assert ids_there(llama, text) == ids_here(model, text), text


@pytest.mark.parametrize("text", ["'Tom", "e\u0301's"], ids=["before a capital", "behind an accent"])
def test_token_ids_differ_at_some_apostrophes(model: DemoModel, llama: httpx.Client, text: str) -> None:
    there = ids_there(llama, text)
    assert there != ids_here(model, text)
    assert b"".join(model.tokenizer.vocabulary[number] or b"" for number in there) == text.encode()


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_sixty_greedy_tokens_and_their_scores_are_the_same(model: DemoModel, llama: httpx.Client, path: Path) -> None:
    """From the middle of an example's transcript on, with end-of-text left out."""
    text = path.read_text("utf-8")
    prompt = text[: len(text) // 2]
    greedy = {"temperature": 0, "repeat_penalty": 1.0, "logit_bias": [[EOS, False]], "n_probs": 1}
    there = post(llama, "/completion", prompt=ids_here(model, prompt), n_predict=60, **greedy)
    told = [(each["id"], each["logprob"]) for each in there["completion_probabilities"]]
    assert len(told) == 60
    request = ScoreRequest(tuple(ids_here(model, prompt)), tuple(number for number, _ in told), tuple(range(60)))
    for (number, logprob), scores in zip(told, asyncio.run(model.score([request]))[0], strict=True):
        assert abs(scores[number] - logprob) < WINDOW
        rivals = np.delete(scores, [number, EOS])
        assert scores[number] > rivals.max() - WINDOW
