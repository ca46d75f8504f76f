"""What servers are, kept beside what they said: a process that knows all answers need not ask a server even that (S4).

It is text, in a tree of its own under the place where the server is asked: what the server is, and behind that what it
became, as often as it changed. Only of servers that do not tell it without being asked for a token.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from typing import Protocol

from lmql_lite.cache.texts import VOCABULARY, Manner, Texts
from lmql_lite.cache.tree import Node, TokenTree
from lmql_lite.models.base import Completer, Endpoint

PLAIN = Manner()
NOT_KEPT = ("spent", "fingerprint")


class Trees(Protocol):
    """Of one cache."""

    def tree(self, fingerprint: str) -> TokenTree: ...

    async def save(self, fingerprint: str, name: str, vocabulary_size: int) -> bool: ...


def known(trees: Trees, completer: Completer) -> Endpoint | None:
    """What an earlier run found out, None where none did."""
    return _last(trees, completer)[1]


async def keep(trees: Trees, completer: Completer) -> None:
    """What is known by now, for later processes."""
    node, before = _last(trees, completer)
    endpoint = await completer.meet(before)
    if endpoint.must_be_asked and (before is None or before.fingerprint != endpoint.fingerprint):
        Texts(trees.tree(_of(completer))).write(node, _written(endpoint), None, PLAIN, run=0)
        await trees.save(_of(completer), completer.place, VOCABULARY)


def _of(completer: Completer) -> str:
    return f"at:{hashlib.blake2b(completer.place.encode(), digest_size=16).hexdigest()}"


def _last(trees: Trees, completer: Completer) -> tuple[Node, Endpoint | None]:
    """What it was when it was last met, and where that ends."""
    texts = Texts(trees.tree(_of(completer)))
    node, found = texts.tree.root, None
    while (said := texts.read(node, (PLAIN,))) is not None and not said.ends:
        node, found = texts.walk(node, said.data), _read(said.data)
    return node, found


def _written(endpoint: Endpoint) -> bytes:
    plain = Endpoint("")
    told = {each.name: getattr(endpoint, each.name) for each in fields(endpoint) if each.name not in NOT_KEPT}
    told = {name: value for name, value in told.items() if value != getattr(plain, name)}
    return json.dumps({"fingerprint": endpoint.fingerprint, **told}).encode()


def _read(data: bytes) -> Endpoint | None:
    """None where another version wrote it, that knows more."""
    try:
        return Endpoint(**json.loads(data))
    except (TypeError, ValueError):
        return None
