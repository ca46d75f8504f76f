"""Bills of servers that go on when their reader has closed the connection, beside those of servers that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lmql_lite as lq
from lmql_lite.models.openai.dialects import CAN
from lmql_lite.models.scripted import WORDS, ScriptedModel
from tests.models.api import model
from tests.servers.kinds import OPENAI_CHAT, OPENAI_TEXT, Config
from tests.servers.stub import serving

LIST = "A list of things not to forget when going to the sea (not travelling):\n"
ITEMS = "".join(f"- {name}\n" for name in ("Sun cream", "Towel", "Swimsuit", "Water", "Hat", "Snacks") * 40)
TEMPLATE = f'"{LIST[:-1]}\\n-[A]-[B]-[C]-[D]" where ' + " and ".join(f'STOPS_AT({name}, "\\n")' for name in "ABCD")
LOOP = f"""
"{LIST[:-1]}\\n"
for i in range(6):
    "-[THING]" where STOPS_AT(THING, "\\n")
"""
OPTION = """
"Which of these would you take to the sea, if you had to choose only one of them? I would take[X]" where X in [
    " a towel that is large enough for all of us",
    " an old book",
]
"""
TAKEN = " a towel that is large enough for all of us, and then some more of what nobody asked for" + " at all" * 300
MANY = 1.3


def bill(config: Config, source: str, text: str, *, cache: bool, runs: int = 1) -> tuple[int, str]:
    """Tokens of prompts and answers, without those of the probe; and the text of the last run."""

    def script(said: bytes) -> bytes:
        whole = text.encode()
        return whole[len(said) :] if whole.startswith(said) else b""

    with serving(config, ScriptedModel(script, words=(*WORDS, b"- "))) as server:
        asked = model(server)
        session = lq.Session()
        lq.run_sync('"A list[X]" where X in [" of"]', model=asked, session=session, cache=False)
        server.wait(lambda: not server.open)
        before = server.prompt_tokens + server.completion_tokens
        for _ in range(runs):
            result = lq.run_sync(source, model=asked, session=session, cache=cache)
        server.wait(lambda: not server.open)
        return server.prompt_tokens + server.completion_tokens - before, result.prompt


@pytest.mark.parametrize("cache", [True, False], ids=["cache on", "cache off"])
@pytest.mark.parametrize(
    ("source", "text"),
    [(TEMPLATE, LIST + ITEMS), (LOOP, LIST + ITEMS), (OPTION, OPTION.split('"')[1].replace("[X]", "") + TAKEN)],
    ids=["template", "loop", "options"],
)
def test_a_server_that_does_not_notice_a_closed_connection_bills_little_more(
    source: str, text: str, cache: bool
) -> None:
    """R6."""
    hearing, expected = bill(replace(OPENAI_TEXT, seconds_per_token=0.002), source, text, cache=cache)
    billed, told = bill(replace(OPENAI_TEXT, deaf=True), source, text, cache=cache)
    assert told == expected
    assert billed <= MANY * hearing, f"{billed} tokens instead of {hearing}"


def test_an_answer_of_a_chat_that_cannot_be_continued_is_not_cut_to_save_tokens() -> None:
    answer = "Take a towel, a hat and a book. " * 30 + "That is all.\n"
    with serving(replace(OPENAI_CHAT, deaf=True), answer) as server:
        result = lq.run_sync('"{:user}What?{:assistant}[X]" where STOPS_AT(X, "\\n")', model=model(server))
        assert result["X"] == answer
        assert sum("messages" in body for body in server.bodies) == 2, "the probe, and one answer"


def test_an_answer_of_a_chat_with_a_schema_ends_by_itself() -> None:
    with serving(replace(OPENAI_CHAT, deaf=True), "yes, " * 2000) as server:
        assert lq.run_sync('"{:user}Yes?{:assistant}[X]" where X in ["yes", "no"]', model=model(server))["X"] == "yes"
        server.wait(lambda: not server.open)
        assert server.completion_tokens < 40


def test_known_kinds_of_servers_notice_closed_connections() -> None:
    assert {kind for kind, can in CAN.items() if can.bills_to_the_end} == {"openai", "unknown"}


def test_a_character_of_more_tokens_than_the_last_answers_had_was_not_got() -> None:
    """The first answers are short, so that little is asked for; then comes a character of four tokens."""
    source = '"Say"\n' + "".join(f'":[H{n}]" where len(H{n}) == 1\n' for n in range(4))
    text = "Say:a:b:c:😀" + " and so on" * 20
    _, told = bill(replace(OPENAI_TEXT, deaf=True), source, text, cache=False)
    assert told == "Say:a:b:c:😀"
