"""Capability cache: capabilities of servers found by an earlier process. It serves servers whose probe costs a request
(S4), and replays, which send nothing.

They are stored as text in a tree of their own, named by a digest of the server's address. Each change follows the
capabilities before it. Free probes are stored too, so that an earlier mistake does not last.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from weakref import WeakKeyDictionary

from lmql_lite.cache.tokens.bytes import VOCABULARY, ByteTree, CacheKey
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.cache.tokens.trees import ModelTrees
from lmql_lite.models.base import Capabilities, Completer

PLAIN = CacheKey()


class CapabilityCache:
    """Capabilities of servers in the trees of one session. Each entry of a tree is read once for each of its files."""

    def __init__(self) -> None:
        self._read: WeakKeyDictionary[TokenTree, tuple[Node, Capabilities | None]] = WeakKeyDictionary()
        """Latest entry of each tree, and the node after it."""

    def known(self, trees: ModelTrees, completer: Completer) -> Capabilities | None:
        """The latest capabilities found; None if there are none."""
        return self._last(trees.tree(_name(completer)))[1]

    async def keep(self, trees: ModelTrees, completer: Completer) -> None:
        """Stores the capabilities for later processes, if they are new."""
        tree = trees.tree(_name(completer))
        node, before = self._last(tree)
        found = await completer.probe(before)
        if before is None or before.fingerprint != found.fingerprint:
            plain = asdict(Capabilities())
            entry = {name: value for name, value in asdict(found).items() if name != "spent" and value != plain[name]}
            ByteTree(tree).write(node, json.dumps(entry).encode(), None, PLAIN, run=0)
            await trees.save(_name(completer), completer.place, VOCABULARY)

    def _last(self, tree: TokenTree) -> tuple[Node, Capabilities | None]:
        """The node after the latest entry, and the entry; None if a later version of the package wrote it."""
        texts = ByteTree(tree)
        node, found = (tree.root, None) if tree.outlives_file else self._read.get(tree, (tree.root, None))
        while (entry := texts.read(node, (PLAIN,))) is not None and not entry.ends:
            node = texts.walk(node, entry.data)
            try:
                found = Capabilities(**json.loads(entry.data))
            except (TypeError, ValueError):
                found = None
        self._read[tree] = node, found
        return node, found


def _name(completer: Completer) -> str:
    return f"at:{hashlib.blake2b(completer.place.encode(), digest_size=16).hexdigest()}"
