"""A model on a server: it writes freely, and one answer may serve the holes of a whole segment. Each token is checked
as it arrives.

If a token does not fit, the server's alternatives are tried, best first. Answers under a condition are stored under
that condition (S1, S22).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lmql_lite.cache.tokens.bytes import TURNS, VOCABULARY, Alternatives, KnownToken
from lmql_lite.cache.tokens.draws import is_greedy
from lmql_lite.cache.tokens.nodes import Answer
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.constraints.language import Language
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import Term, identity, starts_character
from lmql_lite.engine.fill import CUT, Fill, Pick, Tried, fail_unfilled, matcher_of, shown
from lmql_lite.engine.forms import TOKEN_BYTES, Form, Forms, Rejected, requested, text_engine
from lmql_lite.engine.healing import incomplete
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.path import BytePath
from lmql_lite.engine.record import Record
from lmql_lite.engine.segment import Lookahead
from lmql_lite.engine.settings import Settings
from lmql_lite.engine.state import NO_ID, State, TokenChoice, data_of
from lmql_lite.engine.streams import Reader, ServerScheduler
from lmql_lite.errors import ConstraintError, ModelError
from lmql_lite.media import Media
from lmql_lite.models.base import Capabilities, Completer
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

SCORED = 0
"""Token of an answer that holds only a score."""
PRINTABLE = range(0x20, 0x7F)


class ServerModel:
    """A model on a server, with everything that its runs share. Its matchers read bytes, for want of a vocabulary."""

    vocabulary = None
    vocabulary_size = VOCABULARY
    notices: Sequence[str] = ()

    def __init__(self, completer: Completer, capabilities: Capabilities) -> None:
        self.name = completer.name
        self.fingerprint = capabilities.fingerprint
        self.completer = completer
        self.capabilities = capabilities
        self.engine = text_engine(by_server=True)
        self.forms = Forms(self.engine, capabilities)

    def scheduler(self, tree: TokenTree) -> ServerScheduler:
        return ServerScheduler(self.completer, self.capabilities, tree)

    def generator(
        self, scheduler: ServerScheduler, ledger: Ledger, settings: Settings, sampling: Sampling
    ) -> ServerGenerator:
        return ServerGenerator(self, scheduler, ledger, settings)


class ServerGenerator:
    """A model on a server as one run asks it."""

    spells_freely = True

    def __init__(self, model: ServerModel, scheduler: ServerScheduler, ledger: Ledger, settings: Settings) -> None:
        chat = scheduler.capabilities.chat_only
        self.record = Record(ledger)
        self.path = BytePath(scheduler.byte_tree, model.engine.vocabulary, self.record, chat=chat)
        self.model = model.name
        self.engine = model.engine
        self.tree = scheduler.byte_tree.tree
        self.scheduler = scheduler
        self.reader = Reader(scheduler, self.record)
        ledger.by_server = True
        self.settings = settings
        self._forms = model.forms
        self._segment: Form | None = None
        self._left = 0
        """Number of holes of the segment that are not open yet."""
        self._own: bytes | None = None
        """Key of the answers to a hole, or to holes drawn together, that is asked alone."""
        self._fill: ServerFill | None = None

    def show(self, state: State, item: Media) -> State:
        self.scheduler.media[item.digest] = item
        return self.path.show_item(state, item)

    def fill(
        self, op: Hole, term: Term, state: State, sampling: Sampling, limit: int, lookahead: Callable[[], Lookahead]
    ) -> ServerFill:
        before, is_isolated = self._fill, self.settings.is_isolated
        goes_on = op.continues_segment and self._left > 0 and not (before and before.fell_short)
        if self._segment is None or not goes_on:
            self._segment = self._begun(op, state, lookahead())
        elif before is not None and before.is_held:
            self._segment = self._segment.under_condition()
        self._left -= 1
        question = self._segment
        # a server counts penalties from the start of a request, so each hole is a separate request
        if is_isolated or sampling.penalises:
            # holes under the grammar of a segment are drawn together, as with a cache (law 1)
            is_drawn = isinstance(question.pushed, Language) and not (is_greedy(sampling) or sampling.penalises)
            if self._own is None or not (goes_on and is_drawn):
                self.reader.leave()
                once = b"%d" % secrets.randbits(64) if is_isolated else b""
                self._own = _digest(question.key, state.text.encode(), once)
            question = replace(self._forms.alone(question, op, term), key=self._own)
        self._fill = ServerFill(op, self, replace(question, sampling=sampling), limit)
        return self._fill

    def _begun(self, op: Hole, state: State, lookahead: Lookahead) -> Form:
        """The question for the rest of the segment."""
        lookahead = requested(lookahead, speculates=self.settings.speculate)
        known = [part if isinstance(part, bytes) else identity(part) for part in lookahead.parts]
        parts = (state.text.encode(), repr((known, lookahead.schema)).encode())
        begin = len(self.scheduler.text_to(state.node)) + len(data_of(state.pending))
        form = self._forms.form(op, lookahead, tells=self.settings.tells)
        self._left = form.lookahead.holes
        return replace(form, key=_digest(*parts), begin=begin)

    def leave(self) -> None:
        self.reader.leave()

    async def finish(self, state: State) -> State:
        stream = self.reader.stream
        if stream is not None and stream.ends(self.scheduler.text_to(stream.tip)):
            await stream.over()  # the server ends here by itself, and then reports its usage
        self.reader.leave()
        state = self.path.settle(state)
        self.record.ledger.used(self.tree.nodes_to(state.node))
        return state

    async def close(self) -> None:
        await self.reader.close()

    def count(self, text: str, held: bytes = b"") -> int:
        """Estimated number of tokens of a text."""
        return -(-len(text) // TOKEN_BYTES)

    async def weigh(self, state: State, options: Sequence[str]) -> list[list[TokenChoice]]:
        """Each option as the next text, in one piece, since its tokens are not known. One request asks for all unknown
        options; each score is stored as the answer to its own question."""
        self.reader.leave()  # scoring is a separate request
        known: dict[str, Answer] = {}
        is_isolated = self.settings.is_isolated
        for option in () if is_isolated else options:
            answer = self.tree.answer(state.node, _question(option))
            if answer is not None:
                known[option] = answer
        unknown = [option for option in options if option not in known]
        logprobs = await self.reader.score(state.node, unknown)
        for option, logprob in zip(unknown, logprobs, strict=True):
            answer = Answer(SCORED, float(np.float32(logprob)), self.record.ledger.run)  # float32, as in a file
            known[option] = answer if is_isolated else self.tree.add_answer(state.node, _question(option), answer)
        return [[self._whole(state, option, known[option])] for option in options]

    def _whole(self, state: State, option: str, answer: Answer) -> TokenChoice:
        node, source = (
            self.tree.extend_path(state.node, option.encode()),
            self.record.ledger.source(state.node, answer.run),
        )
        return TokenChoice(NO_ID, option.encode(), answer.logprob, source, node=node)


class ServerFill(Fill):
    """The filling of one hole by a server."""

    tokens_of_choice = 0

    def __init__(self, op: Hole, generator: ServerGenerator, question: Form, limit: int) -> None:
        super().__init__(op, generator.path, generator.record, question.sampling, limit)
        self._reader = generator.reader
        self._reader.begin(op, generator.settings.hole_requests)
        self._scheduler = generator.scheduler
        self._first = self._question = question
        self.fell_short = False
        """True if the hole was closed before the end of the language of its segment."""
        self.is_held = False
        """True if free text did not fit, so that the server gets its grammar to the end of the segment."""
        self._rejected: Rejected = frozenset()
        self._insists = False
        """True if required text is inserted because the server did not write it."""

    def forced(self, state: State) -> bytes:
        """The part of the required text to insert; the server writes the rest, whose tokens may differ.

        Nothing is inserted if the request enforces the text, or at the beginning of an answer that the server cannot
        continue (S29). A space at the end is not inserted, because models write it with the next word.
        """
        matcher = matcher_of(state)
        forced = matcher.forced()
        if not forced or self._insists or matcher.advance(forced, tokens=0).ending is not None:
            return forced
        if not matcher.text:
            begins = self._scheduler.byte_tree.tree.path(state.node)[-1:] == (TURNS["assistant"],)
            is_asked = begins and not self._scheduler.capabilities.continues_turns and bool(forced.strip())
            if is_asked or self._question.pushed is not None:
                return b""
            if begins:
                return forced
        return forced.rstrip(b" ")

    def pick(self, state: State) -> Pick:
        state = _counted(self.path.settle(state))
        matcher = matcher_of(state)
        left = max(self.limit * TOKEN_BYTES - len(matcher.text), incomplete(matcher.text))
        if not left and not matcher.may_end:
            raise self.incomplete(matcher, "raise max_tokens, or limit the length in the condition")
        return Pick(state, matcher, left)

    async def choose(self, pick: Pick) -> TokenChoice | None:
        """The next token, checked. None after thoughts, and if the server is asked another question."""
        if not pick.left:
            return CUT
        question, matcher = self._question, pick.matcher
        said = await self._read(pick, question)
        if said is None:
            return None
        is_fit = fits(said.data, matcher)
        text = self._scheduler.text_to(pick.state.node) if question.pushed is not None else b""
        is_allowed = question.pushed is None or (is_fit and question.allows(text, said))
        if (said.ends or (is_fit and not is_allowed)) and question.pushed and question.ends(text):
            self._question = question.beyond()  # the grammar ends here, but the hole goes on after a tool call
            return None
        if said.key == question.held:
            self._hold()
        if not is_allowed:
            # the token is from free text; only answers under the condition count
            said = await self._answer(pick, question.under_condition())
            is_fit = fits(said.data, matcher)
        told = None if is_fit else question.told()
        if told is not None:
            self._question = told
            return None
        if is_fit:
            choice = self._choice(pick, said)
            if self.op.may_reject and not self._question.is_anew:
                is_plain = question.pushed is None or said.key.question is None  # under a grammar there are no others
                others = self._fitting(pick, said.data, self._details(pick, said) if is_plain else None)
                self._tried.append(Tried(pick, said.data, others, known=bool(others) or said.ends))
            return choice
        if matcher.may_end and is_full(matcher):
            return CUT
        if matcher.forced():  # the server's text lacks the required prefix, so the prefix is inserted
            self._insists = True
            return None
        return await self._instead(pick, said)

    def take(self, pick: Pick, choice: TokenChoice, *, again: bool = False) -> State:
        self._insists, self.fell_short = False, not choice.data
        return _counted(super().take(pick, choice, again=again))

    # Tokens of the server -------------------------------------------------------------------------------------------

    async def _read(self, pick: Pick, question: Form) -> KnownToken | None:
        """The answer to a question, with at most as many bytes as are left. None if thoughts were emitted instead."""
        try:
            said = await self._reader.read(pick.state.node, question, pick.left, pick.state.newest)
        except ModelError as error:
            fail_unfilled(self.op, error)
        return said and said.within(within(said.data, pick.left))

    async def _answer(self, pick: Pick, question: Form) -> KnownToken:
        """The answer to a question, after all thoughts."""
        said = None
        while said is None:
            said = await self._read(pick, question)
        return said

    def _choice(self, pick: Pick, said: KnownToken) -> TokenChoice:
        node = self._scheduler.byte_tree.walk(pick.state.node, said.data)
        return TokenChoice(
            NO_ID, said.data, said.logprob, self.record.ledger.source(pick.state.node, said.run), node=node
        )

    def _details(self, pick: Pick, said: KnownToken) -> Alternatives | None:
        """Alternatives that the server reported with a token; None if they are not known."""
        return self._scheduler.byte_tree.details(pick.state.node, said)[1]

    async def _alternatives(self, pick: Pick) -> Alternatives:
        """The most likely token at a pick, and its alternatives. Their scores do not depend on conditions and draws."""
        plain = await self._answer(pick, self._question.plain_token())
        return (plain.data, plain.logprob or 0.0), *(self._details(pick, plain) or ())

    def _fitting(self, pick: Pick, taken: bytes, others: Alternatives | None) -> list[TokenChoice]:
        """Alternatives to the bytes that were taken, as far as they fit, cut to the bytes that are left."""
        cut = ((within(data, pick.left), logprob) for data, logprob in others or ())
        fitting = ((data, logprob) for data, logprob in cut if data and data != taken and fits(data, pick.matcher))
        return [self._choice(pick, KnownToken(data, logprob, self.record.ledger.run)) for data, logprob in fitting]

    async def _instead(self, pick: Pick, said: KnownToken) -> TokenChoice:
        """The token that replaces one that does not fit, stored as the server's answer under the condition.

        It is the best alternative, or the part of the token that fits, or the answer to another question: at this
        place, if there was none; under the condition (S22).
        """
        matcher, others = pick.matcher, self._details(pick, said)
        is_drawn = self._question.draws and not said.inside and self._scheduler.capabilities.alternatives
        if others is None and is_drawn:  # stored draws have none
            others = await self._alternatives(pick)
        if fitting := self._fitting(pick, said.data, others):
            return self._decided(pick, fitting[0])
        begins = whole_characters(said.data[: matcher.longest_valid(said.data)])
        if begins and matcher.longest_valid(begins) == len(begins):
            return self._decided(pick, self._choice(pick, said.within(begins)), said.run)
        if said.inside or self._question.language:
            said = await self._answer(pick, self._question.under_condition())
            if fits(said.data, matcher):
                return self._decided(pick, self._choice(pick, said), said.run)
            if fitting := self._fitting(pick, said.data, self._details(pick, said)):
                return self._decided(pick, fitting[0])
        raise self._stuck(matcher, said)

    def _decided(self, pick: Pick, choice: TokenChoice, run: int | None = None) -> TokenChoice:
        key, run = self._question.held, self.record.ledger.run if run is None else run
        self._reader.depart(self._question)
        self._scheduler.byte_tree.write(pick.state.node, choice.data, choice.logprob, key, run)
        self._hold()
        return choice

    def _hold(self) -> None:
        """Sends the grammar from here on, because free text did not fit, now or in an earlier run. Known parts of the
        free answer no longer count."""
        if self._question.language is not None and self._question.pushed is None:
            self._question, self.is_held = self._question.under_condition(), True

    # Another value --------------------------------------------------------------------------------------------------

    async def go_back(self, state: State) -> State | None:
        """A state for another draw, else for the best untried alternative of all places, else for an answer under the
        grammar without the rejected values."""
        assert self.opened is not None, "a hole is opened first"
        if self._question.draws:
            self._question = self._question.again()
            return self.opened
        matcher = matcher_of(state)
        is_begun = matcher.ending in (None, "stop")
        text = matcher.text if is_begun else matcher.value + self._first.following
        self._rejected |= {(text, is_begun)}
        if other := await self._other():
            self._reader.depart(self._question)
            return self.take(*other, again=True)
        before = self._scheduler.text_to(self.opened.node) + data_of(self.opened.pending)
        anew = self._first.without(before, self._rejected)
        if anew is None:
            return None
        self._question = anew
        return self.opened

    async def _find_others(self, tried: Tried) -> None:
        """Asks for alternatives, one token, as answers under a grammar have none."""
        if self._scheduler.capabilities.alternatives and self._question.pushed:
            tried.others = self._fitting(tried.pick, tried.taken, await self._alternatives(tried.pick))
            tried.known = True

    def _stuck(self, matcher: Matcher, said: KnownToken) -> ConstraintError | ModelError:
        """The error of a dead end: a ModelError if the server can enforce no condition at all, and is only checked."""
        name, capabilities = self._scheduler.completer.name, self._scheduler.capabilities
        able = capabilities.takes_languages or capabilities.alternatives
        says = "ends the text" if said.ends else f"writes {said.data.decode('utf-8', 'replace')!r}"
        return (ConstraintError if able else ModelError)(
            f"[{self.op.name}] cannot go on after {shown(matcher)!r}: there {name} {says}, which its condition "
            "forbids, and the server reports no alternative that would fit",
            span=self.op.span,
            hint="a server that accepts grammars, or reports log-probabilities, can meet any condition",
        )


def fits(data: bytes, matcher: Matcher) -> bool:
    """True if a token of the server, b"" for end-of-text, meets the condition."""
    return matcher.longest_valid(data) == len(data) if data else matcher.may_end


def within(data: bytes, left: int) -> bytes:
    """The first whole characters of a token that fill `left` bytes; all of a shorter token."""
    while left < len(data) and not starts_character(data[left]):
        left += 1
    return data[:left]


def is_full(matcher: Matcher) -> bool:
    """True if almost nothing may be added: only the beginning of a phrase before which the value is cut (S13)."""
    return sum(matcher.longest_valid(bytes([byte])) for byte in PRINTABLE) <= len(PRINTABLE) // 10


def whole_characters(data: bytes) -> bytes:
    """The data without an incomplete character at its end."""
    return data.decode("utf-8", "ignore").encode()


def _counted(state: State) -> State:
    """The state with the tokens of its hole counted by their bytes."""
    return state._replace(used=-(-len(matcher_of(state).text) // TOKEN_BYTES))


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()


def _question(text: str) -> bytes:
    return hashlib.blake2b(b"score\0" + text.encode(), digest_size=16).digest()
