"""Scheduler of a server: it answers from the tree, lets readers share a stream, and sends requests for the rest.

Only this module opens streams of a Completer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from weakref import WeakValueDictionary

from lmql_lite.cache.tokens.bytes import DIGEST, END, MEDIA, TURNS, ByteTree, CacheKey, KnownToken
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.cache.tokens.text import BYTES
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.engine import events
from lmql_lite.engine.forms import TOKEN_BYTES, Form, tokens_for
from lmql_lite.engine.generate.healing import (
    Diverged,
    Strayed,
    forms,
    given,
    incomplete,
    reopened,
    said_again,
    without_blanks,
)
from lmql_lite.engine.generate.streams import Stream, Watching
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.state import Step
from lmql_lite.errors import BudgetError, CacheError, ModelError
from lmql_lite.media import DIGEST_BYTES, Media
from lmql_lite.models.answer_form import unwrapped
from lmql_lite.models.base import Capabilities, Completer, Prompt, PromptTurn, RanOutEarly, StreamPiece
from lmql_lite.program.ops import Hole
from lmql_lite.tokens import Role

GO_ON = "Go on exactly where you stopped. Say only what comes next."
"""User's turn for a server that answers an open turn of the assistant instead of continuing it (S29)."""
SHARES = {"one": (8, 0.25), "several": (20, 0.75), "more": (20, 1.5)}
"""Tokens of a request to a server that bills answers to their end: at least, and for each prompt token, which another
request would bill again. For one hole, for several, and for holes that more may follow."""
MAX_TOKENS = 4096
"""Maximum tokens of such a request."""
TURN_TOKENS = 16
"""Upper bound of the tokens that a chat template puts around a turn."""
ITEM_TOKENS = 16384
"""Upper bound of the tokens of a picture, video or clip. A server may count more; the bill is its own report."""
TRIES = 3
"""Maximum number of requests for one token without any text."""

ITEMS = frozenset(MEDIA.values())
ROLES: dict[int, Role] = {TURNS["system"]: "system", TURNS["user"]: "user", TURNS["assistant"]: "assistant"}


@dataclass(slots=True)
class Attempts:
    """Numbers of requests for one token: opened, ended early, and with an answer that did not begin as required."""

    opened: int = 0
    early: int = 0
    strayed: int = 0


class Reader:
    """Reader of the streams for one run. It follows at most one stream."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.stream: Stream | None = None
        self.exhausted: set[tuple[Node, CacheKey]] = set()
        """Begins of answers that this run has followed, by their question: asked again, they lead no further."""
        self.diverged: set[tuple[Node, CacheKey]] = set()
        """Those of them whose text was another one than the text that was known."""
        self._began: dict[tuple[bytes, CacheKey], Node] = {}
        """Places at which this run first asked a question of a segment."""
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

    def began(self, node: Node, question: Form) -> Node:
        """Place at which this run first asked the question in its segment: at first, `node`."""
        return self._began.setdefault((question.key, question.writes), node)

    def depart(self, question: Form) -> None:
        """Called when a token joins the path that is not of the answer to the question: another answer begins there."""
        self._began.pop((question.key, question.writes), None)

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
            stream.leave(self.ledger)
            self._left = [one for one in self._left if not one.is_closed] + [stream]

    async def close(self) -> None:
        """Leaves the stream, and waits until requests without other readers are closed: none outlives the run."""
        self.leave()
        for stream in self._left:
            await stream.closed()


class RemoteScheduler:
    """One server and its tree, for one event loop."""

    def __init__(self, completer: Completer, capabilities: Capabilities, tree: TokenTree) -> None:
        self.completer = completer
        self.capabilities = capabilities
        self.byte_tree = ByteTree(tree)
        self._is_probed = not capabilities.probe_costs
        self.media: WeakValueDictionary[str, Media] = WeakValueDictionary()
        """Items by their digests, while a run has them."""
        self._streams: dict[Node, list[Stream]] = {}
        """Open streams by their tips."""

    async def read(
        self, node: Node, question: Form, left: int, reader: Reader, newest: Step | None
    ) -> KnownToken | None:
        """Token after `node`, in a hole with at most `left` more bytes. `newest` is the last step on the path to
        `node`.

        None if thoughts were emitted instead: the reader then asks again for the token after them.

        Raises ModelError if the server fails, BudgetError before a request that the run cannot afford, and CacheError
        at the end of a replay.
        """
        tried, reader.attempts = reader.attempts, Attempts()
        began = reader.began(node, question)
        while True:
            if reader.hear():
                reader.attempts = tried
                return None
            known = self.byte_tree.read(node, question.reads)
            if known is not None:
                if known.key != question.writes:
                    reader.depart(question)
                return known
            stream = reader.stream
            if stream is None or not self._may_reach(stream, node, question):
                if stream is not None:
                    reader.exhausted.add((stream.begin, stream.key))
                stream = next((one for one in self._streams.get(node, ()) if one.key in question.reads), None)
            if stream is None:
                if reader.ledger.replays:
                    raise self._unknown(node)
                if tried.opened - tried.strayed == TRIES:
                    raise ModelError(
                        f"{self.completer.name} returned neither text nor the end of the text, {TRIES} times"
                    )
                if not self._is_probed:
                    await self._probe(reader.ledger)
                    continue
                begin = self._begin(node, question, (began, _answered_from(newest)), reader)
                reader.leave()
                reader.take()
                is_again = tried.opened > tried.strayed
                stream = self._open(
                    begin, node, question, left, reader.ledger, newest, tried.strayed, began, is_again=is_again
                )
                if stream is None:
                    await reader.ledger.account.released()
                    continue
                tried.opened += 1
            reader.follow(stream)
            try:
                await stream.next()
            except Strayed:
                tried.strayed += 1
            except Diverged:
                reader.diverged.add((stream.begin, stream.key))
                tried.opened -= 1
            except RanOutEarly:
                tried.early += 1
                if tried.early >= TRIES:
                    raise

    def _begin(self, node: Node, question: Form, begins: tuple[Node, Node | None], reader: Reader) -> Node:
        """Place at which the request for a token after `node` begins. `begins` are the place at which the run asked the
        question first, and the end of the last text on the path that the model did not generate.

        Other text is continued. An answer that the server cannot continue, or a draw, is a function of its whole
        request: if only a part of it is known, the same request is sent again. Raises ModelError if that leads to
        another text.
        """
        is_open = self._continues(node)
        if question.most is not None or (is_open and not question.draws):
            return node
        tree, last = self.byte_tree.tree, reader.stream
        if last is not None and last.ran_out and last.tip == node:
            return node
        path, size = tree.path(node), len(tree.path(begins[0]))
        for begin in (each for each in begins if each is not None and size <= len(tree.path(each))):
            is_text = all(token < END for token in path[len(tree.path(begin)) :])
            if is_text and (begin, question.writes) not in reader.exhausted:
                return begin
        if is_open or node in begins or not any((each, question.writes) in reader.diverged for each in begins if each):
            return node
        raise ModelError(
            f"{self.completer.name} answers otherwise than before, and cannot continue the part of its answer that is "
            "known",
            hint="ask for all of it anew: cache_mode='refresh'",
        )

    def _continues(self, node: Node) -> bool:
        """True if the server continues the text that leads to a node: it is no turn of a chat, or an open one."""
        path = self.byte_tree.tree.path(node)
        return self.capabilities.continues_turns or not any(token in ROLES for token in path)

    def length(self, question: Form, left: int, most_prompt: int, known: int, filled: int) -> int:
        """Maximum tokens of a request, in a hole with at most `left` more tokens: a function of the query alone. The
        answer has `known` bytes before, and all holes before have `filled`.

        A server that bills answers to their end gets a number in proportion to its prompt, which another request would
        bill again, less what is filled of a loop, or as many as the answer has so far. A draw is never cut, as it
        cannot be continued, nor is an answer of a chat if the server could not continue it.
        """
        can = self.capabilities
        most = left if question.undecided is None else min(left, question.undecided + 1)  # a token has a byte or more
        if question.draws or not can.bills_to_the_end or (can.chat_only and not can.continues_turns):
            return most
        if not question.is_left:
            return left
        holes = "one" if not question.runs_on else "more" if question.lookahead.goes_on else "several"
        least, share = SHARES[holes]
        size = share * (most_prompt - filled) - filled if holes == "more" else share * most_prompt
        wanted = min(max(size / TOKEN_BYTES, least, known / TOKEN_BYTES), MAX_TOKENS)
        if question.undecided is not None:
            wanted = min(wanted, question.undecided / TOKEN_BYTES + 2)
        return int(wanted if question.runs_on else min(wanted, left))

    async def score(self, node: Node, options: Sequence[str], ledger: Ledger) -> tuple[float, ...]:
        """Log-probability of each option after `node`, by one request, or by none if there are no options.

        Raises ModelError, before anything is spent, if the server cannot score.
        """
        if not options:
            return ()
        if ledger.replays:
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

        Raises ModelError if the server is another one now: no result holds answers of two. The next run asks anew.
        """
        capabilities = await ledger.probed(self.completer.probe)
        if capabilities.fingerprint != self.capabilities.fingerprint:
            raise ModelError(
                f"{self.completer.place} has changed since the cache was written, so this run cannot use both",
                hint="run it again (cache_mode='rw'): all is asked anew; revision= vouches that the model is the same",
            )
        self._is_probed = True

    def _may_reach(self, stream: Stream, node: Node, question: Form) -> bool:
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
        begin: Node,
        tip: Node,
        question: Form,
        left: int,
        ledger: Ledger,
        newest: Step | None,
        strayed: int,
        began: Node,
        *,
        is_again: bool,
    ) -> Stream | None:
        """A new stream of the answer that begins at `begin`, of which the text up to `tip` is known; None while other
        requests have reserved its tokens. `strayed` is the number of answers that did not begin with the end of the
        prompt, as required. `began` is the place at which the question was asked first. `is_again`: an answer had no
        text, perhaps for want of tokens.
        """
        text = self.text_to(begin)
        left, newest = tokens_for(left + len(self.text_to(tip)) - len(text)), _newest_at(newest, begin)
        node = self._before(begin, incomplete(text))
        prompt = self.prompt(node)
        if not prompt:
            raise ModelError(
                f"{self.completer.name} answers turns of a chat, but there is no text before the hole",
                hint="begin the query with some text, which becomes the user's turn",
            )
        last = prompt[-1]
        before = len(text) - len(self.text_to(began))
        most = left if is_again else self.length(question, left, _most_tokens(prompt), before, _filled(newest))
        request = question.request(most, text)
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

        def ask() -> AsyncGenerator[StreamPiece, None]:
            pieces = self.completer.stream(prompt, request)
            if ledger.calls is not None:
                pieces = ledger.calls.record_stream(self.completer.name, prompt, request, pieces)
            if form is not None:
                return unwrapped(pieces, form)
            if held_back:
                return said_again(pieces, held_back)
            return without_blanks(pieces) if question.most is None and self._is_blank_answer(node) else pieces

        cut = f"{self.completer.name} broke off an answer in the middle, and the same request was sent again"
        watching = Watching(question.ends, self._moved, cut)
        tip = node if tip == begin else tip
        known = bytes(self.byte_tree.tree.path(tip)[len(self.byte_tree.tree.path(node)) :])
        stream = Stream(ask, self.byte_tree, begin, tip, known, question.writes, ledger, sent, watching)
        self._streams.setdefault(tip, []).append(stream)
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
        why = self.byte_tree.tree.difference(node).describe(BYTES, "byte")
        return CacheError(
            f"the recording has no answer of {self.completer.name} {why}",
            hint="run it once with cache_mode='rw' to record the new answers",
        )


def _answered_from(newest: Step | None) -> Node | None:
    """Node after the last text on a path that the model did not generate."""
    step = newest
    while step is not None and (step.token.fate != "kept" or step.token.source in ("model", "cache")):
        step = step.before
    return None if step is None else step.node


def _filled(newest: Step | None) -> int:
    """Number of bytes of holes on a path."""
    size, step = 0, newest
    while step is not None:
        size += len(step.token.data) if step.token.hole is not None and step.token.fate == "kept" else 0
        step = step.before
    return size


def _newest_at(newest: Step | None, node: Node) -> Step | None:
    """The step that leads to a node, which is on the path of `newest`; None if none does."""
    step = newest
    while step is not None and step.node != node:
        step = step.before
    return step


def _most_tokens(prompt: Prompt) -> int:
    """Upper bound of a prompt's tokens: one per byte, one at the beginning, and some for each turn and each item."""
    return sum(
        len(turn.text.encode()) + (TURN_TOKENS if turn.role else 1) + ITEM_TOKENS * len(turn.media) for turn in prompt
    )
