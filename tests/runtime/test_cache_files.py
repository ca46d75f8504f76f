"""`cache="x.tokens"`: what a model said outlives the process, and only what is new is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import lmql_lite as lq

JOKE = """
argmax(cache="joke.tokens")
    "A good dad joke. A indicates the punchline\\nQ:[JOKE]\\nA:[PUNCHLINE]"
where
    len(JOKE) < 60 and STOPS_AT(JOKE, "?") and STOPS_AT(PUNCHLINE, "\\n") and len(PUNCHLINE) > 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(source: str, **options: object) -> lq.Result:
    """In a process of its own, as far as the cache can tell."""
    return lq.run_sync(source, session=lq.Session(), **options)  # type: ignore[arg-type]


def test_a_second_process_makes_no_call(folder: Path) -> None:
    first, second = run(JOKE), run(JOKE)
    assert first.usage.forward_passes and second.usage.forward_passes == 0
    assert second.prompt == first.prompt
    assert [token.logprob for token in second.tokens] == [token.logprob for token in first.tokens]
    assert second.usage.tokens_from_cache == first.usage.tokens_from_model


def test_an_edited_later_text_is_all_that_is_asked_for(folder: Path) -> None:
    whole = run(JOKE).usage.forward_passes or 0
    edited = run(JOKE.replace("\\nA:", "\\nAnswer:"))
    assert 0 < (edited.usage.forward_passes or 0) < whole
    assert (edited.usage.tokens_from_cache or 0) > 0
    assert edited.prompt == run(JOKE.replace("\\nA:", "\\nAnswer:"), cache=False).prompt


def test_a_longer_prompt_on_a_stored_path_is_known_S11(folder: Path) -> None:
    source = '"Things to pack for the beach:\\n-[THING]" where STOPS_AT(THING, "\\n")'
    first = run(source, cache="x.tokens")
    longer = source.replace("[THING]", first["THING"].replace("\n", "\\n") + "-[THING]")
    again = run(source, cache="x.tokens")
    assert again.usage.forward_passes == 0
    assert run(longer, cache="x.tokens").prompt == run(longer, cache=False).prompt


def test_other_conditions_and_decoders_reuse_what_is_stored_law_2(folder: Path) -> None:
    run('"Say:[A]" where len(A) < 30', cache="x.tokens")
    assert run('"Say:[B]" where len(B) < 9', cache="x.tokens").usage.forward_passes == 0
    sampled = run('sample(seed=1)\n    "Say:[C]"\nwhere len(C) < 9', cache="x.tokens")
    assert sampled.prompt == run('sample(seed=1)\n    "Say:[C]"\nwhere len(C) < 9', cache=False).prompt


def test_read_only_writes_nothing(folder: Path) -> None:
    run(JOKE)
    before = (folder / "joke.tokens").read_bytes()
    other = JOKE.replace("good", "bad")
    assert run(other, cache_mode="ro").usage.forward_passes
    assert (folder / "joke.tokens").read_bytes() == before


def test_a_replay_says_what_it_does_not_know(folder: Path) -> None:
    run(JOKE)
    assert run(JOKE, cache_mode="replay").usage.forward_passes == 0
    with pytest.raises(lq.CacheError, match=r'the replay does not know what demo says at token .* asked " b"'):
        run(JOKE.replace("good", "bad"), cache_mode="replay")
    with pytest.raises(lq.InputError, match="reads a file, and none is named"):
        run('"[X]"', cache_mode="replay")


def test_what_was_said_before_an_error_stays(folder: Path) -> None:
    source = '"Say:[A]" where len(A) < 9\nraise ValueError(A)'
    with pytest.raises(ValueError):
        run(source, cache="x.tokens")
    assert run('"Say:[A]" where len(A) < 9', cache="x.tokens").usage.forward_passes == 0


def test_a_file_that_is_no_cache_is_never_overwritten(folder: Path) -> None:
    (folder / "x.tokens").write_text("my notes, worth more than tokens")
    with pytest.raises(lq.CacheError):
        run('"[X]" where len(X) < 3', cache="x.tokens")
    assert (folder / "x.tokens").read_text() == "my notes, worth more than tokens"


def test_sessions_at_once_share_a_file_and_lose_nothing(folder: Path) -> None:
    texts = [f'"Say {number}:[A]" where len(A) < 12' for number in range(6)]

    async def crowd() -> list[lq.Result]:
        return await asyncio.gather(*(lq.run(text, cache="x.tokens", session=lq.Session()) for text in texts))

    results = asyncio.run(crowd())
    for text, result in zip(texts, results, strict=True):
        again = run(text, cache="x.tokens")
        assert again.prompt == result.prompt and again.usage.forward_passes == 0
