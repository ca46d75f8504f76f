"""Role tags with models in this process: turns are on the path, and no part of the prompt (S29, S30)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import lmql_lite as lq
from lmql_lite.models.chat import ChatFormat
from lmql_lite.models.scripted import Script, ScriptedModel, ScriptedTokenizer
from lmql_lite.tokens import Role
from tests.servers.scored import ScriptedCompleter

FIRST = len(ScriptedTokenizer().vocabulary)
BEGIN, END = FIRST, FIRST + 1
ROLES: tuple[Role, ...] = ("system", "user", "assistant")


def chat_format(said: bytes = b"", asked: bytes = b"", strips: frozenset[Role] = frozenset()) -> ChatFormat:
    """`<begin>role\\ntext<end>`, with more between the head of an answer and its text."""
    first = {(None, role): (BEGIN, f"{role}\n".encode()) for role in ROLES}
    later = {(last, role): (END, BEGIN, f"{role}\n".encode()) for last in ROLES for role in ROLES if last != role}
    rest = {"said": (said,) if said else (), "asked": (asked,) if asked else ()}
    return ChatFormat(opens={**first, **later}, ends=frozenset({END}), strips=strips, **rest)


class Turned(ScriptedTokenizer):
    """The scripts of such a model read `<begin>` and `<end>`."""

    def __init__(self, chat: ChatFormat) -> None:
        super().__init__()
        self.chat = chat
        self.vocabulary = (*self.vocabulary, None, None)
        self.eos = frozenset({1, *chat.ends})

    def decode(self, ids: Sequence[int]) -> bytes:
        spelled = {BEGIN: b"<begin>", END: b"<end>"}
        return b"".join(spelled.get(token) or self.vocabulary[token] or b"" for token in ids)


class Chatty(ScriptedModel):
    def __init__(self, script: str | Script, chat: ChatFormat | None = None) -> None:
        super().__init__(script)
        self.tokenizer: Turned = Turned(chat or chat_format())
        self.read: list[bytes] = []
        """What was on the path each time that it was asked: without what it guessed."""

    async def score(self, requests):  # type: ignore[no-untyped-def]
        self.read += [self.tokenizer.decode(request.prefix) for request in requests]
        return await super().score(requests)

    @property
    def longest(self) -> bytes:
        return max(self.read, key=len)


def says(*answers: str, head: str = "assistant\n") -> Script:
    """One answer after the other; an answer is over where the script has nothing more to say."""

    def script(read: bytes) -> bytes:
        *before, said = read.split(f"<begin>{head}".encode())
        answer = answers[len(before) - 1].encode() if before else b""
        return answer[len(said) :] if answer.startswith(said) else b""

    return script


TALK = """
"{:system}Be brief.{:user}What is 2+2?{:assistant}[A]{:user}And 3+3?[B]"
where STOPS_AT(A, ".") and STOPS_AT(B, ".")
"""


def test_the_end_of_a_turn_ends_a_hole(session: lq.Session) -> None:
    script = "<begin>user\nHi<end><begin>assistant\nHello, you."

    def says(said: bytes) -> bytes:
        return script.encode()[len(said) :]

    class Ends(Chatty):
        def _scores(self, ids):  # type: ignore[no-untyped-def]
            row = super()._scores(ids)
            if self.tokenizer.decode(ids) == script.encode():
                row[END] = 0.0
            return row

    result = lq.run_sync('"{:user}Hi[A]"', model=Ends(says), session=session)
    assert (result["A"], result.endings["A"]) == ("Hello, you.", "end-of-text")


def test_a_prompt_has_the_same_text_with_both_kinds_of_model(session: lq.Session) -> None:
    def by_server(said: bytes) -> bytes:
        wanted = b"6." if b"3+3" in said else b"4."
        return wanted.removeprefix(b"4" if said.endswith(b"?4") else b"6" if said.endswith(b"?6") else b"")

    here = lq.run_sync(TALK, model=Chatty(says("4.", "6.")), session=session)
    there = lq.run_sync(TALK, model=ScriptedCompleter(by_server), session=session)
    assert here.prompt == there.prompt
    assert dict(here.variables) == dict(there.variables)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("decoder", ["argmax", "sample"])
def test_a_conversation_is_the_same_with_and_without_a_cache(decoder: str, seed: int) -> None:
    class Random(Chatty):
        def _scores(self, ids):  # type: ignore[no-untyped-def]
            row = super()._scores(ids)
            row[END] = row[40:].max()
            return row

    body = TALK.strip().partition("\nwhere")[0]
    source = f"{decoder}(max_tokens=6)\n    {body}\nwhere len(A) < 9 and B in ['yes', 'yes, of course', 'no']"
    chat = chat_format(said=b" ", asked=b"\n", strips=frozenset(ROLES))
    model, session = Random(lambda said: b"", chat), lq.Session()
    model._certainty, model._seed = 0, seed
    runs = [
        lq.run_sync(source, model=model, session=session, seed=seed, cache=cache) for cache in (True, True, False, True)
    ]
    for result in runs:
        result.check_ledger()
    assert len({tuple((token.id, token.data) for token in result.tokens) for result in runs}) == 1
    assert runs[1].usage.forward_passes == 0
