"""Where the tree of a server's text meets the server: what is known is read, what is being said is waited for, the rest
is asked for. The only file that opens a Completer's streams.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice

from lmql_lite.cache.explain import difference
from lmql_lite.cache.spelling import BYTES
from lmql_lite.cache.texts import END, TURNS, Manner, Said, Texts
from lmql_lite.cache.tree import Node, TokenTree
from lmql_lite.errors import BrokenOff, CacheError, ModelError
from lmql_lite.models.base import Completer, Endpoint, Piece, Prompt, Turn, Wish
from lmql_lite.runtime.budget import Bill
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.state import Step
from lmql_lite.runtime.texts.healing import Strayed, forms, given, said_again, tail
from lmql_lite.runtime.texts.streams import Stream
from lmql_lite.tokens import Role

GO_ON = "Go on exactly where you stopped. Say only what comes next."
"""What is said to a server that answers an open turn of its own instead of going on with it (S29)."""
LEAST_STRIDE, MOST_STRIDE = 64, 4096
LESSONS = 3
"""After so many answers it is known how long they are."""
TURN_TOKENS = 16
"""More than a chat's template puts around a turn."""
TRIES = 3
"""So often a request that broke off is made again from where it had got to, before its error counts."""

ROLES: dict[int, Role] = {TURNS["system"]: "system", TURNS["user"]: "user", TURNS["assistant"]: "assistant"}


@dataclass(frozen=True, slots=True)
class Asking:
    """What a reader takes for an answer, the first that is known, and what it asks for where there is none.

    What is asked for is one of what is taken. `wish` takes how many tokens the hole may still have, how many a request
    asks for that may serve more than this hole, and the whole text so far.
    """

    reads: tuple[Manner, ...]
    writes: Manner
    wish: Callable[[int, int, bytes], Wish]
    ends: Callable[[bytes], bool]
    """Whether the server ends by itself after a text, being held to what it was asked for."""


class Reader:
    """One run's hold on the streams: it follows at most one."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.stream: Stream | None = None
        self._left: list[Stream] = []
        """May still be closing."""

    def follow(self, stream: Stream) -> None:
        if stream is not self.stream:
            self.leave()
            stream.follow(self.ledger)
            self.stream = stream

    def leave(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.leave(self.ledger)
            self._left = [one for one in self._left if not one.is_closed] + [stream]

    async def close(self) -> None:
        """Leaves, and waits until every request is closed that nobody else reads: none outlives the run."""
        self.leave()
        for stream in self._left:
            await stream.closed()


class TextFrontier:
    """One server and its tree, for one event loop."""

    def __init__(self, completer: Completer, endpoint: Endpoint, tree: TokenTree, *, replay: bool = False) -> None:
        self.completer = completer
        self.endpoint = endpoint
        self.texts = Texts(tree)
        self._replay = replay
        self._is_met = not endpoint.must_be_asked
        self._lessons = 0
        self._longest = 0.0
        self._streams: dict[Node, list[Stream]] = {}
        """By their tips."""

    async def read(self, node: Node, asking: Asking, left: int, reader: Reader, newest: Step | None) -> Said:
        """The token after `node`, in a hole that may have `left` tokens. `newest` is the last step on the way there.

        Raises ModelError where the server fails, BudgetError before it is asked for more than the run may spend, and
        CacheError where a replay ends.
        """
        opened = broken = strayed = 0
        while True:
            said = self.texts.read(node, asking.reads)
            if said is not None:
                return said
            stream = reader.stream
            if stream is None or not self._may_reach(stream, node, asking):
                stream = next((one for one in self._streams.get(node, ()) if one.manner in asking.reads), None)
            if stream is None:
                if self._replay:
                    raise self._unknown(node)
                if opened - strayed == TRIES:
                    raise ModelError(f"{self.completer.name} says nothing, and does not say that the text ends here")
                if not self._is_met:
                    await self._meet(reader.ledger)
                    continue
                opened += 1
                reader.leave()
                stream = self._open(node, asking, left, reader.ledger, newest, strayed)
            reader.follow(stream)
            try:
                await stream.next()
            except Strayed:
                strayed += 1
            except ModelError as error:
                broken += 1
                if not isinstance(error, BrokenOff) or broken >= TRIES:
                    raise

    def stride(self, left: int) -> int:
        """How many tokens a request asks for that may serve more than one hole: what the hole may have, and later
        somewhat more than were lately used. It is closed where its reader leaves, but not every server notices that."""
        if self._lessons < LESSONS:
            return left
        return int(min(max(4 * self._longest, LEAST_STRIDE), MOST_STRIDE))

    async def score(self, node: Node, options: Sequence[str], ledger: Ledger) -> tuple[float, ...]:
        """The log-probability of each option after `node`: one request, none where there are no options.

        Raises ModelError, before anything is spent, where the server cannot tell.
        """
        if not options:
            return ()
        if self._replay:
            raise self._unknown(node)
        if not self.endpoint.scores:
            raise ModelError(
                f"{self.completer.name} tells no log-probabilities of given texts",
                hint="use a model in this process, or a server that scores prompts (vLLM, SGLang)",
            )
        if not self._is_met:
            await self._meet(ledger)
        prompt = self.prompt(node)
        texts = 1 + len(options)  # the prompt alone too
        most = _most_tokens(prompt) * texts + sum(len(option.encode()) for option in options)
        ledger.request(most)
        asking = self.completer.score(prompt, options)
        scored = await (ledger.calls.weigh(self.completer.name, prompt, options, asking) if ledger.calls else asking)
        ledger.pay(Bill(most, texts, scored.spent))
        return scored.logprobs

    async def _meet(self, ledger: Ledger) -> None:
        """Before the first request: what is known of the server may be what an earlier process has found out.

        Raises ModelError where it is another one by now.
        """
        ledger.afford(0)
        endpoint = await self.completer.meet()
        ledger.learn(endpoint.spent)
        if endpoint.fingerprint != self.endpoint.fingerprint:
            raise ModelError(
                f"{self.completer.place} is not what it was when the cache was written, and cannot go on with that",
                hint="run it again: what it says from now on is kept apart; revision= vouches that it is the same",
            )
        self._is_met = True

    def _may_reach(self, stream: Stream, node: Node, asking: Asking) -> bool:
        """Whether a stream may still come by `node`: so far it says what leads there."""
        if stream.is_over or stream.manner not in asking.reads:
            return False
        if stream.tip == node:
            return True
        tree = self.texts.tree
        said = tree.path(stream.tip)
        return tree.path(node)[: len(said)] == said

    def _open(self, node: Node, asking: Asking, left: int, ledger: Ledger, newest: Step | None, strayed: int) -> Stream:
        """`strayed`: so many answers did not begin with the end of the prompt, as they were asked to."""
        node = self._whole(node)
        again, wish = self._healed(node, asking.wish(left, self.stride(left), self.said(node)), newest, strayed)
        prompt = self.prompt(self._before(node, len(again)))
        most = _most_tokens(prompt)
        room = ledger.request(most)
        if room is not None:
            wish = replace(wish, max_tokens=min(wish.max_tokens, room))
        pieces = self.completer.stream(prompt, wish)
        if ledger.calls is not None:
            pieces = ledger.calls.overhear(self.completer.name, prompt, wish, pieces)
        if again:
            pieces = said_again(pieces, again)
        elif self._is_space_of_a_turn(node):
            pieces = _begun_by_space(pieces)
        bill = Bill(most, wish.max_tokens)
        stream = Stream(pieces, self.texts, node, asking.writes, ledger, bill, asking.ends, self._moved)
        self._streams.setdefault(node, []).append(stream)
        return stream

    def _whole(self, node: Node) -> Node:
        """The last place, here or above, where no character is half said: a prompt cannot end in the middle of one."""
        return self._before(node, _begun(self.texts.tree.path(node)))

    def _before(self, node: Node, size: int) -> Node:
        """So many bytes up the path."""
        tree = self.texts.tree
        return tree.walk(tree.root, tree.path(node)[:-size])[0] if size else node

    def _healed(self, node: Node, wish: Wish, newest: Step | None, strayed: int) -> tuple[bytes, Wish]:
        """The end of the prompt that is not sent, as the answer begins with it, and what is wished for then.

        None where nothing would be left of the text, or a server answers what it should go on with.
        """
        *_, last = self.prompt(node)
        is_open = last.role is None or (last.role == "assistant" and self.endpoint.continues_turns)
        size = given(newest) if is_open else 0
        again = tail(last.text).encode()[-size:].decode("utf-8", "ignore") if size else ""
        if last.text.strip() == again.strip():
            again = ""
        *_, (text, wish) = islice(forms(again, wish, self.endpoint), strayed + 1)
        return text.encode(), wish

    def _is_space_of_a_turn(self, node: Node) -> bool:
        """Whether all that was said of the answering turn so far is white space, which is not sent."""
        path = self.texts.tree.path(node)
        size = next((back for back, token in enumerate(reversed(path)) if token >= END), 0)
        said = bytes(path[len(path) - size :])
        return bool(said) and not said.strip() and path[-size - 1] == TURNS["assistant"]

    def _moved(self, stream: Stream, node: Node | None) -> None:
        if node is None and stream.said:
            self._lessons += 1
            self._longest = max(0.9 * self._longest, stream.said * (2 if stream.ran_out else 1))
        here = self._streams.get(stream.tip, [])
        if stream in here:
            here.remove(stream)
            if not here:
                del self._streams[stream.tip]
            if node is not None:
                self._streams.setdefault(node, []).append(stream)

    def prompt(self, node: Node) -> Prompt:
        """The text that leads to a node, as a server takes it."""
        turns: list[Turn] = []
        role: Role | None = None
        data = bytearray()
        for token in self.texts.tree.path(node):
            if token < END:
                data.append(token)
                continue
            if role is not None or data:
                turns.append(Turn(role or "user", _text(data)))
            role, data = ROLES[token], bytearray()
        turns.append(Turn(role, _text(data)))
        if role == "assistant":
            if not data.strip():  # it is about to begin; answers of a chat begin without white space
                del turns[-1]
            elif not self.endpoint.continues_turns:
                turns.append(Turn("user", GO_ON))
        return tuple(turns)

    def said(self, node: Node) -> bytes:
        """The text that leads to a node, turns not told apart."""
        return bytes(token for token in self.texts.tree.path(node) if token < END)

    def _unknown(self, node: Node) -> CacheError:
        why = difference(self.texts.tree.logged, self.texts.tree.path(node)).told(BYTES, "byte")
        return CacheError(
            f"the replay does not know what {self.completer.name} says {why}",
            hint="run it once with cache_mode='rw' to record what is new",
        )


def _most_tokens(prompt: Prompt) -> int:
    """A token has at least one byte; one begins a text, and a chat puts some around each turn."""
    return sum(len(turn.text.encode()) + (TURN_TOKENS if turn.role else 1) for turn in prompt)


def _text(data: bytearray) -> str:
    return data.decode("utf-8", "ignore")


def _begun(path: tuple[int, ...]) -> int:
    """How many bytes at the end of a path are the beginning of a character."""
    for back, byte in enumerate(reversed(path[-3:]), start=1):
        if byte & 0xC0 != 0x80:  # here it begins, or a turn does
            size = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0) if byte < END else 1
            return back if back < size else 0
    return 0


async def _begun_by_space(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """Without white space at the beginning: it is there already."""
    begun = False
    async with aclosing(pieces):
        async for piece in pieces:
            if not begun:
                piece = replace(piece, data=piece.data.lstrip())
                begun = bool(piece.data)
            yield piece
