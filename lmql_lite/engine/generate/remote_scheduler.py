"""Scheduler of a server: it answers from the tree, lets readers share a stream, and sends requests for the rest.

Only this module opens streams of a Completer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from weakref import WeakValueDictionary

from lmql_lite.cache.byte_tree import DIGEST, END, MEDIA, TURNS, ByteTree, KnownToken
from lmql_lite.cache.entry import Node
from lmql_lite.cache.token_text import BYTES, difference
from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.engine import events
from lmql_lite.engine.generate.healing import (
    Strayed,
    forms,
    given,
    incomplete,
    reopened,
    said_again,
    without_blanks,
)
from lmql_lite.engine.generate.question import TOKEN_BYTES, HoleQuestion
from lmql_lite.engine.generate.streams import Stream, Watching
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.state import Step
from lmql_lite.errors import BrokenOff, BudgetError, CacheError, ModelError
from lmql_lite.media import DIGEST_BYTES, Media
from lmql_lite.models.answer_form import unwrapped
from lmql_lite.models.base import Capabilities, Completer, Prompt, PromptTurn
from lmql_lite.program.ops import Hole
from lmql_lite.tokens import Role

GO_ON = "Go on exactly where you stopped. Say only what comes next."
"""User's turn for a server that answers an open turn of the assistant instead of continuing it (S29)."""
LEAST_STRIDE, MOST_STRIDE = 64, 4096
LESSONS = 3
"""Number of answers that show their usual length."""
FIRST_STRIDE = 20
"""Minimum tokens of the first request to a server that bills answers to their end."""
FIRST_SHARES = {"one": 0.25, "several": 0.75, "more": 1.5}
"""Tokens of that first request for each prompt token, which another request would bill again: for one hole, for
several, and for holes that more may follow."""
TURN_TOKENS = 16
"""Upper bound of the tokens that a chat template puts around a turn."""
ITEM_TOKENS = 16384
"""Upper bound of the tokens of a picture, video or clip. A server may count more; the bill is its own report."""
TRIES = 3
"""Maximum number of requests that break off for one token; each continues where the one before broke off."""

ITEMS = frozenset(MEDIA.values())
ROLES: dict[int, Role] = {TURNS["system"]: "system", TURNS["user"]: "user", TURNS["assistant"]: "assistant"}


class ServerChanged(ModelError):
    """The server is not the one whose answers are in the tree. A run that has read none of them begins again."""


@dataclass(slots=True)
class Attempts:
    """Numbers of requests for one token: opened, broken off, and with an answer that did not begin as required."""

    opened: int = 0
    broken: int = 0
    strayed: int = 0


class Reader:
    """Reader of the streams for one run. It follows at most one stream."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.stream: Stream | None = None
        self.reached: tuple[Node, int] | None = None
        """Place of the last token read, and its number of bytes."""
        self.attempts = Attempts()
        """Requests for a token before which the model is still reasoning."""
        self._heard = 0
        """Number of emitted parts of the stream's thoughts."""
        self._hole: Hole | None = None
        self._most = self._taken = 0
        self._left: list[Stream] = []
        """Streams that may still be closing."""

    def begin(self, hole: Hole, most: int) -> None:
        """Begins a hole, with at most `most` requests."""
        self._hole, self._most, self._taken = hole, most, 0

    def take(self) -> None:
        """Counts a request for the hole. Raises BudgetError if it is one too many."""
        self._taken += 1
        if self._hole is not None and self._taken > self._most:
            many = f"{self._most} request{'' if self._most == 1 else 's'}"
            raise BudgetError(
                f"[{self._hole.name}] has used its {many}, and needs another: its condition forbids much of what the "
                "model generates",
                span=self._hole.span,
                hint="tell the model in the prompt what it may answer, or raise max_hole_requests",
            ).of("max_hole_requests", self._most, self._taken)

    def follow(self, stream: Stream) -> None:
        if stream is not self.stream:
            self.leave()
            stream.follow(self.ledger)
            self.stream, self._heard = stream, 0

    def hear(self) -> bool:
        """Emits new thoughts of the stream; False if there are none."""
        new = self.stream.thoughts[self._heard :] if self.stream is not None else []
        self._heard += len(new)
        if new:
            self.ledger.events.append(events.Thought("".join(new), self._hole.name if self._hole else ""))
        return bool(new)

    def leave(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.leave(self.ledger, self.reached)
            self._left = [one for one in self._left if not one.is_closed] + [stream]

    async def close(self) -> None:
        """Leaves the stream, and waits until requests without other readers are closed: none outlives the run."""
        self.leave()
        for stream in self._left:
            await stream.closed()


class RemoteScheduler:
    """One server and its tree, for one event loop."""

    def __init__(
        self, completer: Completer, capabilities: Capabilities, tree: TokenTree, *, replay: bool = False
    ) -> None:
        self.completer = completer
        self.capabilities = capabilities
        self.byte_tree = ByteTree(tree)
        self._replay = replay
        self._is_probed = not capabilities.probe_costs
        self._lessons = 0
        self._longest = 0.0
        self.media: WeakValueDictionary[str, Media] = WeakValueDictionary()
        """Items by their digests, while a run has them."""
        self._streams: dict[Node, list[Stream]] = {}
        """Open streams by their tips."""

    async def read(
        self, node: Node, question: HoleQuestion, left: int, reader: Reader, newest: Step | None
    ) -> KnownToken | None:
        """Token after `node`, in a hole with at most `left` more tokens. `newest` is the last step on the path to
        `node`.

        None if thoughts were emitted instead: the reader then asks again for the token after them.

        Raises ModelError if the server fails, BudgetError before a request that the run cannot afford, and CacheError
        at the end of a replay.
        """
        tried, reader.attempts = reader.attempts, Attempts()
        while True:
            if reader.hear():
                reader.attempts = tried
                return None
            known = self.byte_tree.read(node, question.reads)
            if known is not None:
                reader.reached = node, len(known.data)
                return known
            stream = reader.stream
            if stream is None or not self._may_reach(stream, node, question):
                stream = next((one for one in self._streams.get(node, ()) if one.key in question.reads), None)
            if stream is None:
                if self._replay:
                    raise self._unknown(node)
                if tried.opened - tried.strayed == TRIES:
                    raise ModelError(
                        f"{self.completer.name} returned neither text nor the end of the text, {TRIES} times"
                    )
                if not self._is_probed:
                    await self._probe(reader.ledger)
                    continue
                reader.leave()
                reader.take()
                is_again = tried.opened > tried.strayed
                stream = self._open(node, question, left, reader.ledger, newest, tried.strayed, is_again=is_again)
                if stream is None:
                    await reader.ledger.account.released()
                    continue
                tried.opened += 1
            reader.follow(stream)
            try:
                await stream.next()
            except Strayed:
                tried.strayed += 1
            except ModelError as error:
                tried.broken += 1
                if not isinstance(error, BrokenOff) or tried.broken >= TRIES:
                    raise

    def stride(self, question: HoleQuestion, left: int, most_prompt: int) -> int:
        """Maximum tokens of a request, in a hole with at most `left` more tokens.

        After some answers, a request for several holes gets the recent length with a margin. A server that bills
        answers to their end gets little more than the known need. No answer of a chat is cut if the server could not
        continue it.
        """
        can = self.capabilities
        most = left if question.undecided is None else min(left, question.undecided + 1)  # a token has a byte or more
        if not can.bills_to_the_end or (can.chat_only and not can.continues_turns):
            is_long = not question.runs_on or self._lessons < LESSONS
            return most if is_long else int(min(max(4 * self._longest, LEAST_STRIDE), MOST_STRIDE))
        if not question.is_left:
            return left
        holes = "one" if not question.runs_on else "more" if question.lookahead.goes_on else "several"
        first = max(FIRST_SHARES[holes] * most_prompt / TOKEN_BYTES, FIRST_STRIDE)
        wanted = min(1.25 * self._longest + 2 if self._lessons else first, MOST_STRIDE)
        if question.undecided is not None:
            wanted = min(wanted, question.undecided / TOKEN_BYTES + 2)
        return int(wanted if question.runs_on else min(wanted, left))

    async def score(self, node: Node, options: Sequence[str], ledger: Ledger) -> tuple[float, ...]:
        """Log-probability of each option after `node`, by one request, or by none if there are no options.

        Raises ModelError, before anything is spent, if the server cannot score.
        """
        if not options:
            return ()
        if self._replay:
            raise self._unknown(node)
        if not self.capabilities.scores:
            raise ModelError(
                f"the server of {self.completer.name} reports no log-probabilities of given texts",
                hint="use a local: model, or a server that scores prompts (vLLM, SGLang)",
            )
        if not self._is_probed:
            await self._probe(ledger)
        prompt = self.prompt(node)
        texts = 1 + len(options)  # and the prompt by itself
        most = _most_tokens(prompt) * texts + sum(len(option.encode()) for option in options)
        while (sent := ledger.request(most, texts)) is None:
            await ledger.account.released()
        spent = None
        try:
            with ledger.counting(sent.count):
                asking = self.completer.score(prompt, options)
                calls = ledger.calls
                scored = await (calls.weigh(self.completer.name, prompt, options, asking) if calls else asking)
            spent = scored.spent
        finally:
            sent.pay(ledger, spent)
        return scored.logprobs

    async def _probe(self, ledger: Ledger) -> None:
        """Probes the server before the first request, if its capabilities are from an earlier process.

        Raises ServerChanged if the server is another one now.
        """
        capabilities = await ledger.probed(self.completer.probe)
        if capabilities.fingerprint != self.capabilities.fingerprint:
            raise ServerChanged(
                f"{self.completer.place} has changed since the cache was written, so this run cannot use both",
                hint="run it again to store the new answers separately, or pass revision= if the model is the same",
            )
        self._is_probed = True

    def _may_reach(self, stream: Stream, node: Node, question: HoleQuestion) -> bool:
        """True if the text of a stream may still lead to `node`."""
        if stream.is_over or stream.key not in question.reads:
            return False
        if stream.tip == node:
            return True
        tree = self.byte_tree.tree
        begun = tree.path(stream.tip)
        return tree.path(node)[: len(begun)] == begun

    def _open(
        self,
        node: Node,
        question: HoleQuestion,
        left: int,
        ledger: Ledger,
        newest: Step | None,
        strayed: int,
        *,
        is_again: bool,
    ) -> Stream | None:
        """A new stream; None while other requests have reserved its tokens. `strayed` is the number of answers that did
        not begin with the end of the prompt, as required. `is_again`: an answer had no text, perhaps for want of
        tokens.
        """
        text = self.text_to(node)
        node = self._before(node, incomplete(text))
        prompt = self.prompt(node)
        if not prompt:
            raise ModelError(
                f"{self.completer.name} answers turns of a chat, but there is no text before the hole",
                hint="begin the query with some text, which becomes the user's turn",
            )
        last = prompt[-1]
        request = question.request(left if is_again else self.stride(question, left, _most_tokens(prompt)), text)
        is_open = last.role is None or (last.role == "assistant" and self.capabilities.continues_turns)
        again = reopened(last.text, given(newest)) if is_open else ""
        *_, (again, request) = islice(forms(again, request, self.capabilities), strayed + 1)
        held_back = again.encode()
        prompt = self.prompt(self._before(node, len(held_back)))
        most = _most_tokens(prompt)
        sent = ledger.request(most, request.max_tokens)
        if sent is None:
            return None
        request = replace(request, max_tokens=sent.bill.most_completion)
        form = question.form(text)
        if form is not None:
            prompt = form.told(prompt)
        pieces = self.completer.stream(prompt, request)
        if ledger.calls is not None:
            pieces = ledger.calls.record_stream(self.completer.name, prompt, request, pieces)
        if form is not None:
            pieces = unwrapped(pieces, form)
        elif held_back:
            pieces = said_again(pieces, held_back)
        elif question.most is None and self._is_blank_answer(node):
            pieces = without_blanks(pieces)
        watching = Watching(question.ends, self._moved, self._learn)
        stream = Stream(pieces, self.byte_tree, node, question.writes, ledger, sent, watching)
        self._streams.setdefault(node, []).append(stream)
        return stream

    def _before(self, node: Node, size: int) -> Node:
        """Node `size` bytes up the path."""
        tree = self.byte_tree.tree
        return tree.walk(tree.root, tree.path(node)[:-size])[0] if size else node

    def _is_blank_answer(self, node: Node) -> bool:
        """True if the server answers the open turn of the assistant anew, and the turn has only white space so far."""
        path = self.byte_tree.tree.path(node)
        size = next((back for back, token in enumerate(reversed(path)) if token >= END), len(path))
        is_open = size < len(path) and path[-size - 1] == TURNS["assistant"]
        is_anew = size > 0 or not self.capabilities.continues_turns
        return is_open and is_anew and not bytes(path[len(path) - size :]).strip()

    def _learn(self, stream: Stream, size: int) -> None:
        """Learns from a stream that a run left after `size` tokens."""
        if size:
            self._lessons += 1
            needed = 2 * size if stream.ran_out and size == stream.size else size
            self._longest = max(0.9 * self._longest, needed)

    def _moved(self, stream: Stream, node: Node | None) -> None:
        here = self._streams.get(stream.tip, [])
        if stream in here:
            here.remove(stream)
            if not here:
                del self._streams[stream.tip]
            if node is not None:
                self._streams.setdefault(node, []).append(stream)

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

    def text_to(self, node: Node) -> bytes:
        """Text that leads to a node, without the borders of turns."""
        return bytes(token for token in self.byte_tree.tree.path(node) if token < END)

    def _unknown(self, node: Node) -> CacheError:
        why = difference(self.byte_tree.tree.stored_children, self.byte_tree.tree.path(node)).describe(BYTES, "byte")
        return CacheError(
            f"the recording has no answer of {self.completer.name} {why}",
            hint="run it once with cache_mode='rw' to record the new answers",
        )


def _most_tokens(prompt: Prompt) -> int:
    """Upper bound of a prompt's tokens: one per byte, one at the beginning, and some for each turn and each item."""
    return sum(
        len(turn.text.encode()) + (TURN_TOKENS if turn.role else 1) + ITEM_TOKENS * len(turn.media) for turn in prompt
    )
