"""Calls of models in one run, with questions and answers; collected only for a certificate (`trace="run.json"`)."""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.models.base import CompletionRequest, Prompt, Scored, Scorer, ScoreRequest, ServerUsage, StreamPiece
from lmql_lite.tokens import Tokenizer

BEFORE = 8
"""Number of recorded tokens before each scored place."""


@dataclass(slots=True)
class Call:
    """One call of a model. `at_ms` is its start and `ms` its duration, None while it is under way.

    `asked` and `answered` are JSON data. A call that has neither an `error` nor an end was cancelled.
    """

    kind: str
    model: str
    at_ms: float
    asked: dict[str, Any]
    answered: dict[str, Any] = field(default_factory=dict)
    spent: ServerUsage | None = None
    ms: float | None = None
    error: str | None = None


class Calls:
    """The calls of one run, in the order in which they began."""

    def __init__(self) -> None:
        self.made: list[Call] = []
        self.options: Mapping[str, Any] = {}
        """Options of the run, including those of its query's header."""
        self._began = time.perf_counter()

    def now(self) -> float:
        """Milliseconds since the run began."""
        return round(1000 * (time.perf_counter() - self._began), 3)

    async def record_stream(
        self, model: str, prompt: Prompt, request: CompletionRequest, pieces: AsyncGenerator[StreamPiece, None]
    ) -> AsyncGenerator[StreamPiece, None]:
        """The pieces of a request to a server, passed on and recorded."""
        call = self._begin("stream", model, {"prompt": _turns(prompt), "request": request})
        text, many, thoughts, decoder = "", 0, "", getincrementaldecoder("utf-8")("replace")
        with self.during(call):
            async with aclosing(pieces):
                async for piece in pieces:
                    text, many, thoughts = text + decoder.decode(piece.data), many + 1, thoughts + piece.thought
                    call.answered = {
                        "text": text,
                        "pieces": many,
                        "finish": piece.finish,
                        "ended_by": piece.ended_by,
                        **({"thoughts": thoughts} if thoughts else {}),
                    }
                    call.spent = piece.spent or call.spent
                    yield piece

    async def weigh(self, model: str, prompt: Prompt, options: Sequence[str], asking: Awaitable[Scored]) -> Scored:
        """The answer to a request that scores texts, recorded."""
        call = self._begin("score", model, {"prompt": _turns(prompt), "options": list(options)})
        with self.during(call):
            scored = await asking
            call.answered = {"logprobs": list(scored.logprobs)}
        return scored

    def scores(self, scorer: Scorer, requests: Sequence[ScoreRequest], together: int) -> Call:
        """Record of a pass of a model in this process. `together` counts the pass's requests, other runs' included."""
        asked = [_asked(request, scorer.tokenizer) for request in requests]
        return self._begin("scores", scorer.name, {"requests": asked, "in_pass": together})

    def _begin(self, kind: str, model: str, asked: dict[str, Any]) -> Call:
        call = Call(kind, model, self.now(), asked)
        self.made.append(call)
        return call

    @contextmanager
    def during(self, call: Call) -> Iterator[None]:
        """Records the duration and the error of a call."""
        try:
            yield
        except Exception as error:
            call.error = str(error)
            raise
        finally:
            call.ms = round(self.now() - call.at_ms, 3)


async def recorded_scores(
    scorer: Scorer, requests: Sequence[ScoreRequest], logs: Sequence[Calls | None]
) -> list[list[NDArray[np.float32]]]:
    """Scores of the requests, recorded in their logs. Each request has one log or none."""
    with ExitStack() as recording:
        calls = []
        for log in {id(each): each for each in logs if each is not None}.values():
            own = [at for at, each in enumerate(logs) if each is log]
            calls.append((log.scores(scorer, [requests[at] for at in own], len(requests)), own))
            recording.enter_context(log.during(calls[-1][0]))
        answers = await scorer.score(requests)
    for call, own in calls:
        call.answered = {"best": [[_best(row, scorer.tokenizer) for row in answers[at]] for at in own]}
    return answers


def _asked(request: ScoreRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "prefix": len(request.prefix),
        "after": _text(request.prefix[-BEFORE:], tokenizer),
        "new": list(request.new_ids),
        "text": _text(request.new_ids, tokenizer),
        "positions": list(request.positions),
    }


def _best(row: NDArray[np.float32], tokenizer: Tokenizer) -> dict[str, Any]:
    """The most likely token at one position."""
    best = int(row.argmax())
    return {"id": best, "text": _text((best,), tokenizer), "logprob": float(row[best])}


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    return b"".join(tokenizer.vocabulary[each] or b"" for each in ids).decode("utf-8", "replace")


def _turns(prompt: Prompt) -> list[dict[str, str | None]]:
    return [{"role": turn.role, "text": turn.text} for turn in prompt]
