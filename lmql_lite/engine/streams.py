"""Streams of a server's responses. A run reads the text after a node: from the tree, or from a stream that writes into
it, for all runs that wait there.

Only this module opens streams of a Completer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from weakref import WeakValueDictionary

from lmql_lite.cache.tokens.bytes import DIGEST, END, MEDIA, TURNS, ByteTree, CacheKey, KnownToken
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.cache.tokens.text import BYTES
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.engine import events
from lmql_lite.engine.forms import Form, tokens_for
from lmql_lite.engine.healing import (
    Diverged,
    Strayed,
    answered,
    forms,
    given,
    incomplete,
    reopened,
    without_blanks,
)
from lmql_lite.engine.ledger import Ledger, OpenRequest
from lmql_lite.engine.record import Record, Step, back
from lmql_lite.errors import BudgetError, CacheError, ModelError
from lmql_lite.media import DIGEST_BYTES, Media
from lmql_lite.models.answer_form import unwrapped
from lmql_lite.models.base import (
    Capabilities,
    Completer,
    Prompt,
    PromptTurn,
    RanOutEarly,
    ServerUsage,
    StreamPiece,
)
from lmql_lite.program.ops import Hole
from lmql_lite.tokens import Role

GO_ON = "Go on exactly where you stopped. Say only what comes next."
"""User's turn for a server that answers an open turn of the assistant instead of continuing it (S29)."""
TURN_TOKENS = 16
"""Upper bound of the tokens that a chat template puts around a turn."""
ITEM_TOKENS = 16384
"""Upper bound of the tokens of a picture, video or clip. A server may count more; the bill is its own report."""
TRIES = 3
"""Maximum number of requests for one token without any text."""

ITEMS = frozenset(MEDIA.values())
ROLES: dict[int, Role] = {TURNS["system"]: "system", TURNS["user"]: "user", TURNS["assistant"]: "assistant"}


class ServerScheduler:
    """One server and its tree, for one event loop: the open streams, which all runs may read."""

    def __init__(self, completer: Completer, capabilities: Capabilities, tree: TokenTree) -> None:
        self.completer = completer
        self.capabilities = capabilities
        self.byte_tree = ByteTree(tree)
        self.is_probed = not capabilities.probe_costs
        self.media: WeakValueDictionary[str, Media] = WeakValueDictionary()
        """Items by their digests, while a run has them."""
        self.streams: dict[Node, list[Stream]] = {}
        """Open streams by their tips."""

    async def probe(self, ledger: Ledger) -> None:
        """Probes the server before the first request, if its capabilities are from an earlier process.

        Raises ModelError if the server is another one now: no result holds answers of two. The next run asks anew.
        """
        capabilities = await ledger.probed(self.completer.probe)
        if capabilities.fingerprint != self.capabilities.fingerprint:
            raise ModelError(
                f"{self.completer.place} has changed since the cache was written, so this run cannot use both",
                hint="run it again (cache_mode='rw'): all is asked anew; revision= vouches that the model is the same",
            )
        self.is_probed = True

    def may_reach(self, stream: Stream, node: Node, question: Form) -> bool:
        """True if the text of a stream may still lead to `node`."""
        if stream.is_over or stream.key not in question.reads:
            return False
        if stream.tip == node:
            return True
        tree = self.byte_tree.tree
        begun = tree.path(stream.tip)
        return tree.path(node)[: len(begun)] == begun

    def move(self, stream: Stream, node: Node | None) -> None:
        """Notes the new tip of a stream; None at its end."""
        here = self.streams.get(stream.tip, [])
        if stream in here:
            here.remove(stream)
            if not here:
                del self.streams[stream.tip]
            if node is not None:
                self.streams.setdefault(node, []).append(stream)

    def before(self, node: Node, size: int) -> Node:
        """Node `size` bytes up the path."""
        tree = self.byte_tree.tree
        return tree.walk(tree.root, tree.path(node)[:-size])[0] if size else node

    def text_to(self, node: Node) -> bytes:
        """Text that leads to a node, without the borders of turns."""
        return bytes(token for token in self.byte_tree.tree.path(node) if token < END)

    def continues(self, node: Node) -> bool:
        """True if the server continues the text that leads to a node: it is no turn of a chat, or an open one."""
        path = self.byte_tree.tree.path(node)
        return self.capabilities.continues_turns or not any(token in ROLES for token in path)

    def is_blank_answer(self, node: Node) -> bool:
        """True if the server answers the open turn of the assistant anew, and the turn has only white space so far."""
        path = self.byte_tree.tree.path(node)
        size = next((back for back, token in enumerate(reversed(path)) if token >= END), len(path))
        is_open = size < len(path) and path[-size - 1] == TURNS["assistant"]
        is_anew = size > 0 or not self.capabilities.continues_turns
        return is_open and is_anew and not bytes(path[len(path) - size :]).strip()

    def prompt(self, node: Node) -> Prompt:
        """Text that leads to a node, as a prompt."""
        turns: list[PromptTurn] = []
        role: Role | None = None
        data, media = bytearray(), list[tuple[int, Media]]()
        path = iter(self.byte_tree.tree.path(node))
        for token in path:
            if token < END:
                data.append(token)
                continue
            if token in ITEMS:
                digest = bytes(each - DIGEST for each in islice(path, DIGEST_BYTES)).hex()
                media.append((len(data.decode("utf-8", "ignore")), self.media[digest]))
                continue
            if role is not None or data:
                turns.append(PromptTurn(role or "user", data.decode("utf-8", "ignore"), tuple(media)))
            role, data, media = ROLES[token], bytearray(), []
        turns.append(PromptTurn(role, data.decode("utf-8", "ignore"), tuple(media)))
        if role == "assistant":
            if not data.strip():  # answers of a chat begin without white space
                del turns[-1]
            elif not self.capabilities.continues_turns:
                turns.append(PromptTurn("user", GO_ON))
        return tuple(turns)

    def unknown(self, node: Node) -> CacheError:
        why = self.byte_tree.tree.difference(node).describe(BYTES, "byte")
        return CacheError(
            f"the recording has no answer of {self.completer.name} {why}",
            hint="run it once with cache_mode='rw' to record the new answers",
        )


class Stream:
    """One response, open while it has followers. Each arriving piece becomes an entry of the tree.

    `begin` is the node at which the answer begins, and `tip` the one after which the next piece is written: the text
    between them is known. Pieces that arrive together are written together. `sent` is the request with its cost. The
    run that sent it pays; if that run leaves before others, one of them takes over (S32).
    """

    def __init__(
        self,
        scheduler: ServerScheduler,
        ask: Callable[[], AsyncGenerator[StreamPiece, None]],
        again: bytes,
        known: bytes,
        begin: Node,
        tip: Node,
        question: Form,
        ledger: Ledger,
        sent: OpenRequest,
    ) -> None:
        """`ask` sends the request, whose answer begins with the end of the prompt said `again`, and with what is
        `known`."""
        self.begin = begin
        self.tip = tip
        self.key = question.writes
        self.ends = question.ends
        self.thoughts: list[str] = []
        """Thoughts of the model so far, in parts as they arrived."""
        self.is_over = False
        self.ran_out = False
        """True if the response ended at its `max_tokens`."""
        self._scheduler = scheduler
        self._pieces = answered(ask, again, known, self._paid)
        self._ledger = ledger
        self._sent = sent
        self._followers: list[Ledger] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._arrived: list[StreamPiece] = []
        """Pieces that are not written yet."""
        self._spent: ServerUsage | None = None
        """Usage as reported so far."""
        self._error: Exception | None = None
        scheduler.byte_tree.tree.pin(tip)
        scheduler.streams.setdefault(tip, []).append(self)
        with ledger.counting(sent.count):  # the context of the task that sends the request
            self._task = asyncio.create_task(self._read())

    async def next(self) -> None:
        """Waits for another piece or the end. Raises the error with which the request failed."""
        if not self.is_over:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        if self._error is not None:
            raise self._error

    @property
    def is_closed(self) -> bool:
        return self._task.done()

    def follow(self, ledger: Ledger) -> None:
        self._followers.append(ledger)

    def leave(self, ledger: Ledger) -> None:
        """Removes a follower. Without followers, the request ends."""
        self._write()
        self._followers.remove(ledger)
        if self._followers:
            self._ledger = self._followers[0]
            return
        self._scheduler.byte_tree.tree.unpin(self.tip)
        if not self.is_over:
            self._end()
            self._task.cancel()

    async def closed(self) -> None:
        """Waits until the request is closed, if it has no followers."""
        if not self._followers and not self.is_closed:
            await asyncio.wait([self._task])

    async def over(self) -> None:
        """Waits for the end of the response."""
        while not self.is_over:
            await self.next()

    def _paid(self, spent: ServerUsage | None) -> None:
        """Pays for an answer that broke off. Raises BudgetError if the budget does not cover the request again."""
        name = self._scheduler.completer.name
        cut = f"{name} broke off an answer in the middle, and the same request was sent again"
        for follower in self._followers:
            follower.notices.append(cut)
        self._spent = None
        self._sent.repeat(self._ledger, spent)

    async def _read(self) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    if not self._arrived:
                        asyncio.get_running_loop().call_soon(self._write)
                    self._arrived.append(piece)
                    self._spent = piece.spent or self._spent
        except Exception as error:  # raised to the readers, since nobody awaits this task
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        """Ends the stream. A request that was closed early does not report its tokens (S32)."""
        if not self.is_over:
            self._write()
            self.is_over = True
            self._sent.pay(self._ledger, self._spent)
            self._scheduler.move(self, None)
            self._wake()

    def _write(self) -> None:
        """Writes the pieces that have arrived, and pins the last node, so that text ahead of the readers stays (S9)."""
        pieces, self._arrived = self._arrived, []
        if not pieces or self.is_over:
            return
        self.thoughts += [piece.thought for piece in pieces if piece.thought]
        texts, before = self._scheduler.byte_tree, self.tip
        words = [piece for piece in pieces if piece.data]
        if words:
            way = texts.append(before, words, self.key, self._ledger.run)
            self._ledger.arrive(way, [len(word.data) for word in words])
            self._scheduler.move(self, way[-1])
            self.tip = way[-1]
            texts.tree.unpin(before)
        last = pieces[-1]
        self.ran_out = last.finish == "length"
        if last.finish == "stop" and last.ended_by is None:
            texts.write(self.tip, b"", None, self.key, self._ledger.run)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


@dataclass(slots=True)
class Attempts:
    """Numbers of requests for one token: opened, ended early, and with an answer that did not begin as required."""

    opened: int = 0
    early: int = 0
    strayed: int = 0


class Reader:
    """Reader of a server's text for one run. It follows at most one stream."""

    def __init__(self, scheduler: ServerScheduler, record: Record) -> None:
        self.scheduler = scheduler
        self.record = record
        self.ledger = record.ledger
        self.stream: Stream | None = None
        self._exhausted: set[tuple[Node, CacheKey]] = set()
        """Begins of answers that this run has followed, by their question: asked again, they lead no further."""
        self._diverged: set[tuple[Node, CacheKey]] = set()
        """Those of them whose text was another one than the text that was known."""
        self._began: dict[tuple[bytes, CacheKey], Node] = {}
        """Places at which this run first asked a question of a segment."""
        self._attempts = Attempts()
        """Requests for the token that comes next."""
        self._heard = 0
        """Number of emitted parts of the stream's thoughts."""
        self._hole: Hole | None = None
        self._most = self._taken = 0
        self._left: list[Stream] = []
        """Streams that may still be closing."""

    def begin(self, hole: Hole, most: int) -> None:
        """Begins a hole, with at most `most` requests."""
        self._hole, self._most, self._taken, self._attempts = hole, most, 0, Attempts()

    def depart(self, question: Form) -> None:
        """Called when a token joins the path that is not of the answer to the question: another answer begins there."""
        self._began.pop((question.key, question.writes), None)

    async def read(self, node: Node, question: Form, left: int, newest: Step | None) -> KnownToken | None:
        """Token after `node`, in a hole with at most `left` more bytes. `newest` is the last step on the path to
        `node`. None if thoughts were emitted instead: the run then asks again.

        Raises ModelError if the server fails, BudgetError before a request that the run cannot afford, and CacheError
        at the end of a replay.
        """
        scheduler, tried = self.scheduler, self._attempts
        began = self._began.setdefault((question.key, question.writes), node)
        while not self._hear():
            known = scheduler.byte_tree.read(node, question.reads)
            if known is not None:
                self._attempts = Attempts()
                if known.key != question.writes:
                    self.depart(question)
                return known
            stream = self.stream
            if stream is None or not scheduler.may_reach(stream, node, question):
                if stream is not None:
                    self._exhausted.add((stream.begin, stream.key))
                stream = next((one for one in scheduler.streams.get(node, ()) if one.key in question.reads), None)
            if stream is None:
                if self.ledger.replays:
                    raise scheduler.unknown(node)
                if tried.opened - tried.strayed == TRIES:
                    raise ModelError(
                        f"{scheduler.completer.name} returned neither text nor the end of the text, {TRIES} times"
                    )
                if not scheduler.is_probed:
                    await scheduler.probe(self.ledger)
                    continue
                begin = self._begin(node, question, began, newest)
                self.leave()
                self._take()
                stream = self._open(begin, node, question, left, newest, began)
                if stream is None:
                    await self.ledger.account.released()
                    continue
                tried.opened += 1
            self._follow(stream)
            try:
                await stream.next()
            except Strayed:
                tried.strayed += 1
            except Diverged:
                self._diverged.add((stream.begin, stream.key))
                tried.opened -= 1
            except RanOutEarly:
                tried.early += 1
                if tried.early >= TRIES:
                    raise
        return None

    def leave(self) -> None:
        """Leaves the stream."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.leave(self.ledger)
            self._left = [one for one in self._left if not one.is_closed] + [stream]

    async def close(self) -> None:
        """Leaves the stream, and waits until requests without other readers are closed: none outlives the run."""
        self.leave()
        for stream in self._left:
            await stream.closed()

    def _follow(self, stream: Stream) -> None:
        if stream is not self.stream:
            self.leave()
            stream.follow(self.ledger)
            self.stream, self._heard = stream, 0

    def _hear(self) -> bool:
        """Emits new thoughts of the stream; False if there are none."""
        new = self.stream.thoughts[self._heard :] if self.stream is not None else []
        self._heard += len(new)
        if new:
            self.record.tell(events.Thought("".join(new), self._hole.name if self._hole else ""))
        return bool(new)

    def _take(self) -> None:
        """Counts a request for the hole. Raises BudgetError if it is one too many."""
        self._taken += 1
        if self._hole is not None and self._taken > self._most:
            many = f"{self._most} request{'' if self._most == 1 else 's'}"
            why, hint = "", "raise max_hole_requests"
            if self._hole.conditions or self._hole.type is not None:
                why = ": its condition forbids much of what the model generates"
                hint = "tell the model in the prompt what it may answer, or raise max_hole_requests"
            raise BudgetError(
                f"[{self._hole.name}] has used its {many}, and needs another{why}", span=self._hole.span, hint=hint
            ).of("max_hole_requests", self._most, self._taken)

    def _begin(self, node: Node, question: Form, began: Node, newest: Step | None) -> Node:
        """Place at which the request for a token after `node` begins. `began` is the place at which the run asked the
        question first.

        Other text is continued. An answer that the server cannot continue, or a draw, is a function of its whole
        request: if only a part of it is known, the same request is sent again. Raises ModelError if that leads to
        another text.
        """
        is_open = self.scheduler.continues(node)
        if question.most is not None or (is_open and not question.draws):
            return node
        tree, last = self.scheduler.byte_tree.tree, self.stream
        if last is not None and last.ran_out and last.tip == node:
            return node
        path, size = tree.path(node), len(tree.path(began))
        begins = [began, _answered_from(newest)]
        for begin in (each for each in begins if each is not None and size <= len(tree.path(each))):
            is_text = all(token < END for token in path[len(tree.path(begin)) :])
            if is_text and (begin, question.writes) not in self._exhausted:
                return begin
        if is_open or node in begins or not any((each, question.writes) in self._diverged for each in begins if each):
            return node
        raise ModelError(
            f"{self.scheduler.completer.name} answers otherwise than before, and cannot continue the part of its "
            "answer that is known",
            hint="ask for all of it anew: cache_mode='refresh'",
        )

    def _open(
        self, begin: Node, tip: Node, question: Form, left: int, newest: Step | None, began: Node
    ) -> Stream | None:
        """A new stream of the answer that begins at `begin`, of which the text up to `tip` is known; None while other
        requests have reserved its tokens."""
        scheduler, ledger, can = self.scheduler, self.ledger, self.scheduler.capabilities
        name, tried = scheduler.completer.name, self._attempts
        text = scheduler.text_to(begin)
        left, newest = tokens_for(left + len(scheduler.text_to(tip)) - len(text)), _newest_at(newest, begin)
        node = scheduler.before(begin, incomplete(text))
        prompt = scheduler.prompt(node)
        if not prompt:
            raise ModelError(
                f"{name} answers turns of a chat, but there is no text before the hole",
                hint="begin the query with some text, which becomes the user's turn",
            )
        most = left
        if tried.opened <= tried.strayed:  # else an answer had no text, perhaps for want of tokens
            before = len(text) - len(scheduler.text_to(began))
            most = question.length(left, _most_tokens(prompt), before, _filled(newest))
        last, request = prompt[-1], question.request(most, text)
        is_open = last.role is None or (last.role == "assistant" and can.continues_turns)
        said = reopened(last.text, given(newest)) if is_open else ""
        *_, (said, request) = islice(forms(said, request, can), tried.strayed + 1)
        again = said.encode()
        prompt = scheduler.prompt(scheduler.before(node, len(again)))
        sent = ledger.request(_most_tokens(prompt), request.max_tokens)
        if sent is None:
            return None
        request = replace(request, max_tokens=sent.bill.most_completion)
        form = question.form(text)
        if form is not None:
            prompt, again = form.told(prompt), b""
        is_blank = form is None and not again and question.most is None and scheduler.is_blank_answer(node)

        def ask() -> AsyncGenerator[StreamPiece, None]:
            pieces = scheduler.completer.stream(prompt, request)
            if ledger.calls is not None:
                pieces = ledger.calls.record_stream(name, prompt, request, pieces)
            if form is not None:
                return unwrapped(pieces, form)
            return without_blanks(pieces) if is_blank else pieces

        tip, tree = node if tip == begin else tip, scheduler.byte_tree.tree
        known = bytes(tree.path(tip)[len(tree.path(node)) :])
        return Stream(scheduler, ask, again, known, begin, tip, question, ledger, sent)

    async def score(self, node: Node, options: Sequence[str]) -> tuple[float, ...]:
        """Log-probability of each option after `node`, by one request, or by none if there are no options.

        Raises ModelError, before anything is spent, if the server cannot score.
        """
        scheduler, ledger = self.scheduler, self.ledger
        completer = scheduler.completer
        if not options:
            return ()
        if ledger.replays:
            raise scheduler.unknown(node)
        if not scheduler.capabilities.scores:
            raise ModelError(
                f"the server of {completer.name} reports no log-probabilities of given texts",
                hint="use a local: model, or a server that scores prompts (vLLM, SGLang)",
            )
        if not scheduler.is_probed:
            await scheduler.probe(ledger)
        prompt = scheduler.prompt(node)
        texts = 1 + len(options)  # and the prompt by itself
        most = _most_tokens(prompt) * texts + sum(len(option.encode()) for option in options)
        while (sent := ledger.request(most, texts)) is None:
            await ledger.account.released()
        spent = None
        try:
            with ledger.counting(sent.count):
                asking = completer.score(prompt, options)
                calls = ledger.calls
                scored = await (calls.weigh(completer.name, prompt, options, asking) if calls else asking)
            spent = scored.spent
        finally:
            sent.pay(ledger, spent)
        return scored.logprobs


def _answered_from(newest: Step | None) -> Node | None:
    """Node after the last text on a path that the model did not generate."""
    return next((step.node for step in back(newest) if step.token.source not in ("model", "cache")), None)


def _filled(newest: Step | None) -> int:
    """Number of bytes of holes on a path."""
    tokens = (step.token for step in back(newest))
    return sum(len(token.data) for token in tokens if token.hole is not None)


def _newest_at(newest: Step | None, node: Node) -> Step | None:
    """The step that leads to a node, which is on the path of `newest`; None if none does."""
    return next((step for step in back(newest) if step.node == node), None)


def _most_tokens(prompt: Prompt) -> int:
    """Upper bound of a prompt's tokens: one per byte, one at the beginning, and some for each turn and each item."""
    return sum(
        len(turn.text.encode()) + (TURN_TOKENS if turn.role else 1) + ITEM_TOKENS * len(turn.media) for turn in prompt
    )
