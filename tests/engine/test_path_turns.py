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
READ = (
    b"<begin>system\nBe brief.<end><begin>user\nWhat is 2+2?<end><begin>assistant\n4.<end><begin>user\n"
    b"And 3+3?<end><begin>assistant\n6."
)


@pytest.fixture
def session() -> lq.Session:
    return lq.Session()


def test_role_tags_become_turns_of_the_template_S30(session: lq.Session) -> None:
    model = Chatty(says("4.", "6."))
    result = lq.run_sync(TALK, model=model, session=session)
    assert (result["A"], result["B"]) == ("4.", "6.")
    assert model.longest in (READ, READ[:-1])
    assert result.prompt == "Be brief.What is 2+2?4.And 3+3?6.", "the prompt is what was typed and said"
    result.check_ledger()
    again = lq.run_sync(TALK, model=model, session=session)
    assert again.prompt == result.prompt
    assert again.usage.forward_passes == 0
    uncached = lq.run_sync(TALK, model=model, session=session, cache=False)
    assert [token.id for token in uncached.tokens] == [token.id for token in result.tokens]


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


def test_what_the_model_begins_is_not_healed_into_the_template_S10(session: lq.Session) -> None:
    # "\n" could become "\n\n" or "\n-"; at the end of a head it is the template's
    model = Chatty(says("- x."))
    result = lq.run_sync('"{:user}Hi{:assistant}[A]" where STOPS_AT(A, ".")', model=model, session=session)
    assert result["A"] == "- x."
    assert b"<begin>user\nHi<end><begin>assistant\n" in model.read


def test_a_text_that_begins_an_answer_is_healed_and_read_with_what_older_answers_have(session: lq.Session) -> None:
    chat = chat_format(said=b"| ", asked=b"<think>\n")
    asked, said = Chatty(says("<think>\nso."), chat), Chatty(says("| It is the end."), chat)
    lq.run_sync('"{:user}Hi{:assistant}[A]" where STOPS_AT(A, ".")', model=asked, session=session)
    assert asked.read[0] == b"<begin>user\nHi<end><begin>assistant\n<think>\n"
    result = lq.run_sync('"{:user}Hi{:assistant}It is[A]" where STOPS_AT(A, ".")', model=said, session=lq.Session())
    assert said.longest.startswith(b"<begin>user\nHi<end><begin>assistant\n| It is")
    assert result["A"].startswith(" the")


def test_a_hole_in_a_turn_of_the_users_is_the_assistants_S29(session: lq.Session) -> None:
    tagged, untagged = Chatty(says("4.", "6.")), Chatty(says("4.", "6."))
    lq.run_sync(TALK, model=tagged, session=session)
    lq.run_sync(TALK.replace("{:assistant}", ""), model=untagged, session=lq.Session())
    assert tagged.read == untagged.read


def test_a_choice_that_is_forced_is_in_the_assistants_turn(session: lq.Session) -> None:
    model = Chatty(says("no", "yes."))
    source = '"{:user}Say no.[A]{:user}Sure?[B]" where A in ["no"] and STOPS_AT(B, ".")'
    result = lq.run_sync(source, model=model, session=session)
    assert model.longest.startswith(
        b"<begin>user\nSay no.<end><begin>assistant\nno<end><begin>user\nSure?<end><begin>assistant\n"
    )
    assert result.prompt == "Say no.noSure?yes."
    result.check_ledger()


def test_white_space_around_texts_is_not_read_where_the_template_takes_it_away(session: lq.Session) -> None:
    model = Chatty(says("4.", "6."), chat_format(strips=frozenset(ROLES)))
    source = '"{:system} Be brief.\\n"\n"{:user} 2+2?\\n{:assistant} [A]\\n{:user} \\n [B]\\n"'
    result = lq.run_sync(source + ' where STOPS_AT(A, ".") and STOPS_AT(B, ".")', model=model, session=session)
    assert model.longest.startswith(b"<begin>system\nBe brief.<end><begin>user\n2+2?<end><begin>assistant\n4.<end>")
    assert result.prompt == " Be brief.\n 2+2?\n 4.\n \n 6.\n"
    result.check_ledger()


def test_a_surplus_that_runs_past_an_answer_is_left_behind(session: lq.Session) -> None:
    model = Chatty(says("4.\n\n", "6.\n\n"))
    source = '"{:user}2+2?[A]{:user}3+3?[B]" where STOPS_AT(A, ".") and STOPS_AT(B, ".")'
    result = lq.run_sync(source, model=model, session=session)
    assert result.prompt == "2+2?4.3+3?6."
    assert any(token.fate == "cut" for token in result.tokens)
    result.check_ledger()


def test_turns_in_a_loop_with_a_distribution_and_a_score(session: lq.Session) -> None:
    model = Chatty(says("yes", "yes"))
    source = """
for question in ["a?", "b?"]:
    "{:user}{question}"
    seen = await context.score(["yes", "no"])
    "{:assistant}[X]" distribution X in ["yes", "no"]
return seen.best
"""
    result = lq.run_sync(source, model=model, session=session)
    assert (result.value, result["X"]) == ("yes", "yes")
    assert b"<begin>user\na?<end><begin>assistant\n" in model.read
    result.check_ledger()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        pytest.param('"Hello {:user}Hi[A]"', "text before the first role tag", id="text first"),
        pytest.param('"[A]{:user}Hi[B]" where len(A) < 3', "text before the first role tag", id="a hole first"),
        pytest.param('"{:user}Hi{:user}Ho[A]"', "does not allow {:user} after {:user}", id="no such turn"),
    ],
)
def test_turns_that_cannot_be_are_refused_where_they_stand(source: str, sentence: str, session: lq.Session) -> None:
    with pytest.raises(lq.ModelError) as caught:
        lq.run_sync(source, model=Chatty("no"), session=session)
    assert sentence in caught.value.message
    assert caught.value.span is not None
    assert caught.value.span.source == "{:user}"


def test_white_space_before_the_first_tag_is_nobodys(session: lq.Session) -> None:
    model = Chatty(says("4.", "6."))
    result = lq.run_sync('"\\n "\n' + TALK, model=model, session=session)
    assert READ.startswith(model.longest)
    assert result.prompt.startswith("\n Be brief.")
    result.check_ledger()


def test_a_text_without_tags_stays_a_text(session: lq.Session) -> None:
    model = Chatty("Hello? I am fine.\n")
    result = lq.run_sync('"Hello?[A]" where STOPS_AT(A, ".")', model=model, session=session)
    assert result["A"] == " I am fine."
    assert not any(b"<begin>" in read for read in model.read)


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
