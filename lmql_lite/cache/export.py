"""Entries one by one, as plain values that JSON can hold: for whoever takes them elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from lmql_lite.cache.file_contents import ModelEntries
from lmql_lite.cache.nodes import ROOT, Nodes
from lmql_lite.cache.tree import Node


def exported(known: ModelEntries) -> Iterator[dict[str, Any]]:
    """One object per entry, made when it is read; None for minus infinity, no token, and no time."""
    model = {"model": known.model.name, "fingerprint": known.model.fingerprint}
    written = (seconds or None for seconds in known.written.tolist())
    path = _Paths(known.tree).of
    topks, greedy, sampled = known.entries.topks, known.entries.greedy, known.entries.sampled
    ends = np.cumsum(topks.sizes)
    for node, begin, end, rest in zip(topks.nodes, ends - topks.sizes, ends, topks.rest, strict=True):
        yield model | {
            "kind": "top-k",
            "path": path(int(node)),
            "ids": topks.ids[begin:end].tolist(),
            "logprobs": [_finite(logprob) for logprob in topks.logprobs[begin:end].tolist()],
            "rest": _finite(float(rest)),
            "written": next(written),
        }
    for row, node in enumerate(greedy.nodes.tolist()):
        yield model | {
            "kind": "greedy",
            "path": path(node),
            "question": greedy.questions[row].tobytes().hex(),
            "token": _token(int(greedy.tokens[row])),
            "logprob": _finite(float(greedy.logprobs[row])),
            "written": next(written),
        }
    for row, node in enumerate(sampled.nodes.tolist()):
        yield model | {
            "kind": "sampled",
            "path": path(node),
            "question": sampled.questions[row].tobytes().hex(),
            "seed": int(sampled.seeds[row]),
            "index": int(sampled.indices[row]),
            "token": _token(int(sampled.tokens[row])),
            "logprob": _finite(float(sampled.logprobs[row])),
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
