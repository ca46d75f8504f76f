"""Token tree of one model: nodes and entries in memory, bounded in bytes, over the rows of a file or a server."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from lmql_lite.cache.tokens.drafts import SUFFIX_BYTES, DraftLengths, Suffixes
from lmql_lite.cache.tokens.draws import mix
from lmql_lite.cache.tokens.nodes import ROOT_TOKEN, SCORES, Answer, Entry, Freed, Node, Question, ScoreEntry
from lmql_lite.cache.tokens.rows import (
    MAX_PIECE,
    RowBatch,
    RowError,
    Rows,
    TreeRow,
    packed_entry,
    packed_question,
    packed_tokens,
    place_below,
    unpacked_row,
    unpacked_tokens,
)
from lmql_lite.cache.tokens.scores import Scores, TopK
from lmql_lite.cache.tokens.text import Difference

MAX_BYTES = 256 * 2**20
"""Default memory limit. A row of scores takes 6 kB at a vocabulary of 1,536 and 600 kB at 151,000; a top-k entry takes
about 1 kB."""
NODE_BYTES = 540
"""Memory of Python's objects of a node."""
MAX_WAITING = 100_000
"""Maximum number of entries that wait to be written again after a failed write."""
SETTLED = 1000
"""Number of freed nodes that are noted at once."""
FEW = 32
"""Number of suffixes of freed nodes that may stay in the index."""
KEPT_PATHS = 64
"""Number of paths that are kept."""


@dataclass(slots=True)
class DirtyEntries:
    """Entries that were added to a tree and that no file holds yet, in the order of arrival.

    At the `replaced` nodes these entries supersede all others. The nodes stay in the tree while this object lives.
    """

    entries: dict[tuple[Node, Question], Entry] = field(default_factory=dict)
    replaced: set[Node] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def shorten(self) -> None:
        """Makes the top k of whole scores, which would take too long under the lock of the tree."""
        for entry in self.entries.values():
            if isinstance(entry, ScoreEntry):
                entry.top_k()

    @property
    def nodes(self) -> list[Node]:
        """The nodes of the entries, in the order of arrival."""
        return list(dict.fromkeys(node for node, _ in self.entries))

    def drop(self, nodes: Set[Node]) -> None:
        """Removes the entries of these nodes, which are superseded."""
        self.entries = {asked: entry for asked, entry in self.entries.items() if asked[0] not in nodes}

    def over(self, newer: DirtyEntries) -> DirtyEntries:
        """These entries, which could not be written, and newer ones; the first of several counts."""
        self.drop(newer.replaced)
        new = {asked: entry for asked, entry in newer.entries.items() if asked not in self.entries}
        return DirtyEntries(self.entries | new, self.replaced | newer.replaced)


class TokenTree:
    """Token tree of one model (one fingerprint). Models add entries at token paths, and decoders read them (S35).

    For its users the tree is append-only. It is safe for threads (S28): one lock guards entries and nodes. `rows` are
    read where memory has nothing; with `records` the tree notes which entries they lack.

    `max_bytes` bounds entries and nodes. Eviction first reduces a whole row of scores to its top-k entry and moves the
    node to the end of the queue; the next time it drops all entries of that node. Nodes on the path to a pin are
    skipped (S9). If there are no others, rows above pinned nodes are reduced to top-k entries, but not dropped. The
    latest entries always stay. A node lives as long as it has an entry, or something holds it or a node below it.
    """

    def __init__(
        self, max_bytes: int = MAX_BYTES, rows: Rows | None = None, fingerprint: str = "", *, records: bool = False
    ) -> None:
        self.max_bytes = max_bytes
        self.fingerprint = fingerprint
        self.draft_lengths = DraftLengths()
        self._rows = rows
        self._numbers = itertools.count()
        self._freed: deque[Freed] = deque()
        self._count = 1
        self._paths: dict[int, tuple[int, ...]] = {}
        """Paths of the latest nodes that were asked for, by number."""
        self.root = Node(None, ROOT_TOKEN, next(self._numbers), self._freed)
        self._suffixes = Suffixes()
        self._dirty: DirtyEntries | None = DirtyEntries() if records else None
        self._longest = 1
        """Maximum number of tokens in an entry of this process."""
        self._spare: OrderedDict[Node, None] = OrderedDict()
        """Evictable nodes with entries, least recently used first."""
        self._pins: dict[Node, int] = {}
        self._held: dict[Node, None] = {}
        """Nodes with entries on the path to a pin."""
        self._entry_bytes = self._whole = 0
        """Memory of the entries, and number of whole rows, which can be reduced to their top k."""
        self._lock = Lock()

    def __len__(self) -> int:
        with self._lock:
            self._settle()
            return self._count

    @property
    def nbytes(self) -> int:
        """Memory of entries and nodes, which `max_bytes` bounds."""
        with self._lock:
            return self._nbytes()

    @property
    def outlives_file(self) -> bool:
        """True if rows were removed since the tree began to read them, so that it looks again."""
        return self._rows is not None and self._rows.void > 0

    def _nbytes(self) -> int:
        self._settle()
        return self._known_bytes

    @property
    def _known_bytes(self) -> int:
        """`nbytes` with nodes that were freed lately."""
        return self._entry_bytes + NODE_BYTES * self._count + SUFFIX_BYTES * len(self._suffixes)

    # nodes

    def extend(self, node: Node, token: int) -> Node:
        """The child of `node` by `token`, added if it is missing."""
        with self._lock:
            return self._extend(node, token)

    def extend_path(self, node: Node, tokens: Sequence[int]) -> Node:
        """Extends by one token after another. Returns the last node, which keeps all of them."""
        with self._lock:
            for token in tokens:
                node = self._extend(node, token)
            if len(tokens) > 1 and self._nbytes() > self.max_bytes:
                self._drop_spare()
            return node

    def walk(self, node: Node, tokens: Sequence[int]) -> tuple[Node, int]:
        """The last existing node on the way from `node` by `tokens`, and the number of tokens that lead there."""
        with self._lock:
            for many, token in enumerate(tokens):
                below = self._child(node, token)
                if below is None:
                    return node, many
                node = below
            return node, len(tokens)

    def path(self, node: Node) -> tuple[int, ...]:
        """Token ids from the root to `node`. Those of the latest nodes are kept, since runs ask for them token by
        token."""
        known, place, ids = self._paths, node, list[int]()
        while place.parent is not None and place.number not in known:
            ids.append(place.token)
            place = place.parent
        found = (*known.get(place.number, ()), *reversed(ids))
        if ids:
            if len(known) >= KEPT_PATHS:
                self._paths = known = {}
            known[node.number] = found
        return found

    def path_hash(self, node: Node) -> int:
        """Hash of 64 bits that depends only on the token ids of the path, and is equal in every process (S3)."""
        way = []
        while not node.hash and node.parent is not None:
            way.append(node)
            node = node.parent
        found = node.hash
        for each in reversed(way):
            found = each.hash = mix(found, each.token)
        return found

    def nodes_to(self, node: Node) -> Iterator[Node]:
        """The nodes from `node` up to the root, without the root."""
        while node.parent is not None:
            yield node
            node = node.parent

    def draft(self, node: Node, most: int, *, skip: bool) -> tuple[int, ...]:
        """Draft of at most `most` tokens after `node`, which followed the same last tokens elsewhere. With `skip` these
        may differ a little."""
        with self._lock:
            return self._suffixes.draft(node, most, skip)

    def difference(self, node: Node) -> Difference:
        """The first difference between the path to a node and the stored rows."""
        path = self.path(node)
        if self._rows is None:
            return Difference((), path[0] if path else None, ())
        places = {_place_of(each): depth for depth, each in enumerate(reversed([*self.nodes_to(node), self.root]))}
        with self._lock:
            onward = self._rows.onward(self.fingerprint, places.keys())
        depth, stored = 0, dict[int, None]()
        for place, tokens in onward:
            way = (*path[: places[place]], *unpacked_tokens(tokens))
            same = next(
                (at for at, (a, b) in enumerate(zip(way, path, strict=False)) if a != b), min(len(way), len(path))
            )
            if same > depth:
                depth, stored = same, {}
            if same == depth and len(way) > depth:
                stored[way[depth]] = None
        return Difference(path[:depth], path[depth] if depth < len(path) else None, tuple(stored))

    def _child(self, node: Node, token: int) -> Node | None:
        known = None if node.below is None else node.below.get(token)
        return None if known is None else known()

    def _extend(self, node: Node, token: int) -> Node:
        below = node.below
        if below is None:
            below = node.below = {}
        else:
            known = below.get(token)
            child = None if known is None else known()
            if child is not None:
                return child
        child = Node(node, token, next(self._numbers), self._freed)
        below[token] = weakref.ref(child)
        self._count += 1
        if len(self._freed) > SETTLED:
            self._settle()
        if self._spare and self._known_bytes > self.max_bytes:
            self._drop_spare()
        return child

    def _settle(self) -> None:
        """Notes which nodes were freed."""
        while self._freed:
            siblings, token = self._freed.popleft()
            known = siblings.get(token)
            if known is not None and known() is None:
                del siblings[token]
            self._count -= 1
        if len(self._suffixes) > self._count + self._count // 2 + FEW:
            self._suffixes.clean()

    # entries

    def scores(self, node: Node) -> ScoreEntry | None:
        """Scores of the tokens after `node`; None if they are unknown."""
        with self._lock:
            entry = self._entry(node, SCORES)
            assert entry is None or isinstance(entry, ScoreEntry), "answers have other questions"
            return entry

    def add_scores(self, node: Node, scores: Scores | TopK, run: int) -> ScoreEntry:
        """Adds an entry. Returns the one that counts: the first, unless it has only the top k of these scores."""
        with self._lock:
            entry = self._add(node, SCORES, ScoreEntry(scores, run))
            assert isinstance(entry, ScoreEntry), "answers have other questions"
            return entry

    def answer(self, node: Node, question: Question) -> Answer | None:
        """Token that answers a question which scores cannot decide (S1): the best one, or one sampled under a seed."""
        with self._lock:
            entry = self._entry(node, question)
            assert entry is None or isinstance(entry, Answer), "scores have another question"
            return entry

    def add_answer(self, node: Node, question: Question, answer: Answer) -> Answer:
        """Adds an answer. Returns the one that counts: the first."""
        with self._lock:
            entry = self._add(node, question, answer)
            assert isinstance(entry, Answer), "scores have another question"
            return entry

    def add_path(
        self,
        node: Node,
        tokens: Sequence[int],
        entries: Mapping[int, Entry],
        question: Question,
    ) -> list[Node]:
        """Adds a path of tokens below `node`, with entries before the tokens whose index they have. Known ones stay.

        Returns the nodes of the tokens. The last one keeps all of them, and is pinned for the caller. None of these
        entries is evicted to make room for the others.
        """
        with self._lock:
            way = [node]
            for token in tokens:
                way.append(self._extend(way[-1], token))
            self._pin(way[-1])
            for index, entry in entries.items():
                place = way[index]
                if self._entry_around(place, question) is None:
                    self._set(place, question, entry)
                    if self._dirty is not None:
                        self._dirty.entries[place, question] = entry
            self._make_room()
            return way[1:]

    def entry_around(self, node: Node, question: Question) -> tuple[Entry, int] | None:
        """The entry at `node`, else that of a server's token which `node` is inside of. Also the number of tokens from
        the place of the entry to `node` (S11)."""
        with self._lock:
            return self._entry_around(node, question)

    def _entry_around(self, node: Node, question: Question) -> tuple[Entry, int] | None:
        entry = self._entry(node, question)
        if entry is not None:
            return entry, 0
        way: tuple[int, ...] = ()
        for before in range(1, self._reach()):
            if node.parent is None:
                return None
            way, node = (node.token, *way), node.parent
            entry = self._entry(node, question)
            if entry is not None and len(entry.onward) >= before and entry.tokens[:before] == way:
                return entry, before
        return None

    def _reach(self) -> int:
        """Maximum number of tokens in an entry."""
        stored = 1 if self._rows is None else self._rows.longest(self.fingerprint)
        return min(max(self._longest, stored), MAX_PIECE)

    def drop_scores(self) -> None:
        """Removes all scores; nodes and answers stay."""
        with self._lock:
            for node in [*self._spare, *self._held]:
                if node.entries and (entry := node.entries.pop(SCORES, None)) is not None:
                    self._count_entry(entry, -1)
                    if not node.entries:
                        self._spare.pop(node, None)
                        self._held.pop(node, None)

    def _add(self, node: Node, question: Question, entry: Entry) -> Entry:
        first = self._entry(node, question)
        if first is not None and (first.is_whole or not entry.is_whole):
            return first
        if first is None and self._dirty is not None:  # a file stores only the top k
            self._dirty.entries[node, question] = entry
        self._set(node, question, entry)
        self._keep(node)
        return entry

    def _entry(self, node: Node, question: Question) -> Entry | None:
        if node in self._spare:
            self._spare.move_to_end(node)
        known = None if node.entries is None else node.entries.get(question)
        if known is None and self._dirty is not None and (dirty := self._dirty.entries.get((node, question))):
            return dirty
        if self._rows is not None and node.looked < (self._rows.epoch if known is None else self._rows.void):
            self._look(node)
            known = None if node.entries is None else node.entries.get(question)
        return known

    def _set(self, node: Node, question: Question, entry: Entry) -> None:
        if node.entries is None:
            node.entries = {}
        if question in node.entries:
            self._count_entry(node.entries[question], -1)
        node.entries[question] = entry
        self._count_entry(entry, 1)
        self._longest = max(self._longest, 1 + len(entry.onward))
        self._suffixes.enter(node)
        (self._held if node.pinned else self._spare)[node] = None

    # rows: read where memory has nothing, and again after rows were removed

    def _look(self, node: Node) -> None:
        """Reads the rows at a node, and those of a server's tokens that reach beyond it (S11)."""
        assert self._rows is not None, "there is something to look at"
        self._spare.pop(node, None)
        node.pinned += 1
        way = [node]
        for _ in range(self._reach() - 1):
            if way[-1].parent is None:
                break
            way.append(way[-1].parent)
        found = self._rows_at(way)
        for each in reversed(way):
            self._take(each, found.get(each, ()))
        if self._nbytes() > self.max_bytes:
            self._make_room()
        node.pinned -= 1
        if not node.pinned and node.entries:
            self._held.pop(node, None)
            self._spare[node] = None

    def _rows_at(self, nodes: Sequence[Node]) -> dict[Node, list[TreeRow]]:
        """Rows at nodes whose way is that of the node (law 5). The rows above, as far as they are there, are compared
        once."""
        assert self._rows is not None
        places = {_place_of(node): node for node in nodes}
        found: dict[Node, list[TreeRow]] = {}
        for row in self._rows.rows(self.fingerprint, list(places)):
            node = places[row.place]
            above = _place_above(node, row)
            if above is not None and _place_of(above) == row.parent and self._stands(above):
                found.setdefault(node, []).append(row)
        return found

    def _stands(self, node: Node) -> bool:
        """True if the rows at a node and above it do not contradict its path."""
        assert self._rows is not None
        while node.parent is not None and node.looked < 0:
            rows = self._rows.rows(self.fingerprint, [_place_of(node)])
            above = [place for row in rows if (place := _place_above(node, row)) is not None]
            if not above:
                return not rows
            node = above[0]
        return True

    def _take(self, node: Node, rows: Sequence[TreeRow]) -> None:
        """Takes over the rows at a node. They take the place of all that memory has there if they contradict it;
        otherwise what they lack is written again."""
        assert self._rows is not None
        if self._dirty is not None and node in self._dirty.replaced:
            node.looked = self._rows.epoch
            return
        if self._may_be_old(node) and self._is_contradicted(node, rows, self._dirty):
            self._drop(node)
            if self._dirty is not None:
                self._dirty.drop({node})
        node.looked = self._rows.epoch
        for row in rows:
            with suppress(RowError):
                question, entry = unpacked_row(row)
                if node.entries is None or question not in node.entries:
                    self._set(node, question, entry)
        if self._dirty is not None and node.entries:
            stored = {row.question for row in rows}
            for question, entry in node.entries.items():
                if packed_question(question) not in stored:
                    self._dirty.entries.setdefault((node, question), entry)

    def _may_be_old(self, node: Node) -> bool:
        """True if rows were removed since the node was looked at."""
        return self._rows is not None and max(node.looked, 0) < self._rows.void

    def _is_contradicted(self, node: Node, rows: Sequence[TreeRow], dirty: DirtyEntries | None) -> bool:
        """True if a row differs from what memory has, which a refresh replaced: an answer depends on the scores beside
        it, so that all of it is old."""
        for row in rows:
            with suppress(RowError):
                question, _ = unpacked_row(row)
                known = None if node.entries is None else node.entries.get(question)
                if known is None and dirty is not None:
                    known = dirty.entries.get((node, question))
                if known is not None and packed_entry(known) != row.value:
                    return True
        return False

    # entries that no rows have yet

    @property
    def is_dirty(self) -> bool:
        with self._lock:
            return bool(self._dirty)

    def take_dirty(self) -> DirtyEntries:
        """Entries added since the last call. Raises ValueError if the tree does not record them."""
        with self._lock:
            if self._dirty is None:
                raise ValueError("this tree does not record which entries are new")
            dirty, self._dirty = self._dirty, DirtyEntries()
            return dirty

    def put_back(self, dirty: DirtyEntries) -> None:
        """Puts back entries that could not be written, so that the next write has them."""
        with self._lock:
            if self._dirty is not None and len(dirty) + len(self._dirty) < MAX_WAITING:
                self._dirty = dirty.over(self._dirty)

    def batch(self, dirty: DirtyEntries) -> RowBatch:
        """Rows of dirty entries, in a transaction, with everything seen that others wrote. Drops entries at places that
        a refresh replaced meanwhile."""
        assert self._rows is not None, "there is something to write to"
        with self._lock:
            asked = dirty.nodes if self._rows.void else []
            unsure = [node for node in asked if node not in dirty.replaced and self._may_be_old(node)]
            for node, rows_there in (self._rows_at(unsure) if unsure else {}).items():
                if self._is_contradicted(node, rows_there, dirty):
                    dirty.drop({node})
                    self._drop(node)
            nodes = set(dirty.nodes)
            rows = [
                TreeRow(_place_of(node), packed_question(question), *_way_to(node, nodes), packed_entry(entry))
                for (node, question), entry in dirty.entries.items()
            ]
            for node in nodes:
                node.looked = self._rows.epoch
            for node, question in dirty.entries:
                if question not in (node.entries or ()):
                    node.looked = -1  # it was evicted, and is read from the rows when it is asked for
            replaced = [_place_of(node) for node in dirty.replaced]
            longest = max((1 + len(entry.onward) for entry in dirty.entries.values()), default=1)
            return RowBatch(rows, replaced, longest)

    def replace_with(self, fresh: TokenTree) -> None:
        """Replaces all entries at the nodes of another tree's new entries by those."""
        new = fresh.take_dirty()
        own: dict[Node, Node] = {fresh.root: self.root}
        with self._lock:
            for node in new.nodes:
                own[node] = self._copied(node, own)
            nodes = {own[node] for node in new.nodes}
            if self._dirty is not None:
                self._dirty.drop(nodes)
                self._dirty.replaced |= nodes
            for node in nodes:
                self._drop(node)
                node.looked = node.looked if self._rows is None else self._rows.epoch
            for (node, question), entry in new.entries.items():
                self._add(own[node], question, entry)

    def _copied(self, node: Node, own: dict[Node, Node]) -> Node:
        """The node of this tree with the path of another tree's node; `own` are the known ones."""
        way = []
        while node not in own:
            way.append(node)
            assert node.parent is not None, "the root is known"
            node = node.parent
        here = own[node]
        for each in reversed(way):
            here = own[each] = self._extend(here, each.token)
        return here

    # memory

    def pin(self, node: Node) -> None:
        """Keeps the entries of `node` and of all nodes above it for a run (S9). Pins are counted."""
        with self._lock:
            self._pin(node)

    def _pin(self, node: Node) -> None:
        self._pins[node] = self._pins.get(node, 0) + 1
        place: Node | None = node
        while place is not None:
            place.pinned += 1
            if place.pinned > 1:  # all nodes above are pinned too, so a run that moves on pins one node
                return
            self._spare.pop(place, None)
            if place.entries:
                self._held[place] = None
            place = place.parent

    def unpin(self, node: Node) -> None:
        """Removes one pin. Raises ValueError if there is none."""
        with self._lock:
            if node not in self._pins:
                raise ValueError(f"{node} is not pinned")
            self._pins[node] -= 1
            if not self._pins[node]:
                del self._pins[node]
            place: Node | None = node
            while place is not None:
                place.pinned -= 1
                if place.pinned:
                    break
                if place in self._held:
                    del self._held[place]
                    self._spare[place] = None
                place = place.parent
            if self._nbytes() > self.max_bytes:
                self._make_room()

    def _keep(self, node: Node) -> None:
        """Keeps the entry just added here, and evicts others for it."""
        if self._known_bytes > self.max_bytes:
            self._spare.pop(node, None)
            self._make_room(newest=node)
        if not node.pinned:
            self._spare[node] = None
            self._spare.move_to_end(node)

    def _drop_spare(self) -> None:
        """Evicts entries of unpinned nodes until the rest fits."""
        while self._spare and self._nbytes() > self.max_bytes:
            node = next(iter(self._spare))
            if self._shorten(node):
                self._spare.move_to_end(node)
            else:
                del self._spare[node]
                self._drop(node)

    def _make_room(self, newest: Node | None = None) -> None:
        self._drop_spare()
        if self._whole and self._nbytes() > self.max_bytes:
            self.shorten_rows(newest)  # all rows at once, to avoid this for every new row

    def shorten_rows(self, newest: Node | None = None) -> None:
        """Reduces all rows to their top-k entries, except the newest and those that a run asks for."""
        for node in [*self._spare, *self._held]:
            if node not in self._pins and node is not newest:
                self._shorten(node)

    def _shorten(self, node: Node) -> bool:
        """Reduces whole scores to their top-k entry. Returns False if there are none."""
        entry = None if node.entries is None else node.entries.get(SCORES)
        if node.entries is None or not isinstance(entry, ScoreEntry) or not entry.is_whole:
            return False
        self._count_entry(entry, -1)
        node.entries[SCORES] = entry = entry._replace(scores=entry.top_k())
        self._count_entry(entry, 1)
        if self._dirty is not None and (node, SCORES) in self._dirty.entries:
            self._dirty.entries[node, SCORES] = entry
        return True

    def _drop(self, node: Node) -> None:
        """Drops the entries of a node from memory."""
        for entry in (node.entries or {}).values():
            self._count_entry(entry, -1)
        node.entries = None
        node.looked = -1
        self._spare.pop(node, None)
        self._held.pop(node, None)

    def _count_entry(self, entry: Entry, change: int) -> None:
        self._whole += change * entry.is_whole
        self._entry_bytes += change * entry.nbytes


def _way_to(node: Node, nodes: Set[Node]) -> tuple[int, bytes]:
    """The nearest of `nodes` above a node, or the root, and the tokens from there. Rows of one run lead to each other
    alone, so that runs can be removed in any order."""
    tokens: list[int] = []
    while node.parent is not None:
        tokens.append(node.token)
        node = node.parent
        if node in nodes:
            break
    return _place_of(node), packed_tokens(tokens[::-1])


def _place_of(node: Node) -> int:
    """Hash of the path by which the rows of a node are found."""
    way = []
    while not node.place and node.parent is not None:
        way.append(node)
        node = node.parent
    found = node.place
    for each in reversed(way):
        found = each.place = place_below(found, each.token)
    return found


def _place_above(node: Node, row: TreeRow) -> Node | None:
    """The node at which the way of a row begins; None if the row is of another path."""
    place: Node | None = node
    try:
        for token in reversed(unpacked_tokens(row.tokens)):
            if place is None or place.token != token:
                return None
            place = place.parent
    except RowError:
        return None
    return place
