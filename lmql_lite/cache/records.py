"""Facts one by one, as plain values that JSON can hold: for whoever takes them elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lmql_lite.cache.facts import Facts
from lmql_lite.cache.nodes import ROOT, Nodes
from lmql_lite.cache.tree import Node


def records(facts: Facts) -> Iterator[dict[str, Any]]:
    """One record per fact, made when it is read. Where there is no number (minus infinity, no token, no time): None."""
    model = {"model": facts.model.name, "fingerprint": facts.model.fingerprint}
    written = (seconds or None for seconds in facts.written.tolist())
    path = _Paths(facts.tree).of
    heads, verdicts, draws = facts.heads, facts.verdicts, facts.draws
    ends = np.cumsum(heads.sizes)
    for node, begin, end, rest in zip(heads.nodes, ends - heads.sizes, ends, heads.rest, strict=True):
        yield model | {
            "kind": "head",
            "path": path(int(node)),
            "ids": heads.ids[begin:end].tolist(),
            "logprobs": [_finite(logprob) for logprob in heads.logprobs[begin:end].tolist()],
            "rest": _finite(float(rest)),
            "written": next(written),
        }
    for row, node in enumerate(verdicts.nodes.tolist()):
        yield model | {
            "kind": "verdict",
            "path": path(node),
            "question": verdicts.questions[row].tobytes().hex(),
            "token": _token(int(verdicts.tokens[row])),
            "logprob": _finite(float(verdicts.logprobs[row])),
            "written": next(written),
        }
    for row, node in enumerate(draws.nodes.tolist()):
        yield model | {
            "kind": "draw",
            "path": path(node),
            "question": draws.questions[row].tobytes().hex(),
            "seed": int(draws.seeds[row]),
            "index": int(draws.indices[row]),
            "token": _token(int(draws.tokens[row])),
            "logprob": _finite(float(draws.logprobs[row])),
            "written": next(written),
        }


class _Paths:
    """Token ids from the root to nodes, quickly where one node is the child of the last one."""

    def __init__(self, tree: Nodes) -> None:
        self._tree = tree
        self._last: Node = ROOT
        self._path: tuple[int, ...] = ()

    def of(self, node: Node) -> tuple[int, ...]:
        follows = node != ROOT and self._tree.parent(node) == self._last
        self._path = (*self._path, self._tree.token(node)) if follows else self._tree.path(node)
        self._last = node
        return self._path


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _token(token: int) -> int | None:
    return None if token < 0 else token
