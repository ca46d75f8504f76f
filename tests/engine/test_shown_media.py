"""Items in prompts: what a server is sent, what a text-only model says, and what the path holds."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.models.openai.dialects import MAX_BYTES
from lmql_lite.models.openai.model import OpenAIModel
from tests.servers.kinds import OPENAI_CHAT, VLLM
from tests.servers.stub import serving

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(40))
WAV = b"RIFF\x00\x00\x00\x00WAVEfmt "
MP4 = b"\x00\x00\x00\x18ftypmp42"
ASKED = """
"{:user}Before {image(data)} after."
"{:assistant}[X]" where STOPS_BEFORE(X, ".")
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("config", [OPENAI_CHAT, VLLM], ids=["openai", "vllm"])
def test_a_server_gets_a_picture_as_a_part_and_the_same_one_costs_no_request(config: object, tmp_path: Path) -> None:
    with serving(config, "a cat. It sleeps.") as server:  # type: ignore[arg-type]
        model = OpenAIModel(server.config.model, base_url=server.base_url, api_key="k")
        first = lq.run_sync(ASKED, {"data": PNG}, model=model, cache=tmp_path / "a.tokens")
        sent = server.bodies[-1]["messages"][0]["content"]
        requests = server.requests
        again = lq.run_sync(ASKED, {"data": PNG}, model=model, cache=tmp_path / "a.tokens", session=lq.Session())
        assert server.requests == requests and again.variables == first.variables
        lq.run_sync(ASKED, {"data": PNG + b"!"}, model=model, cache=tmp_path / "a.tokens")
        assert server.requests == requests + 1
    url = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert sent == [
        {"type": "text", "text": "Before "},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": " after."},
    ]
    digest = lq.image(PNG).digest
    assert f"Before <image {digest[:12]}> after." in first.prompt
    assert PNG[8:] not in (tmp_path / "a.tokens").read_bytes()


def test_clips_and_videos_are_parts_of_their_own_kinds() -> None:
    source = '"{:user}{audio(clip)}{video(movie)}?{:assistant}[X]" where STOPS_BEFORE(X, ".")'
    with serving(VLLM, "yes.") as server:
        model = OpenAIModel(server.config.model, base_url=server.base_url, api_key="k")
        lq.run_sync(source, {"clip": WAV, "movie": MP4}, model=model)
        audio, video, text = server.bodies[-1]["messages"][0]["content"]
    assert audio["input_audio"] == {"data": base64.b64encode(WAV).decode(), "format": "wav"}
    assert video["video_url"]["url"].startswith("data:video/mp4;base64,") and text == {"type": "text", "text": "?"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (PNG + bytes(MAX_BYTES), "MiB, and a server is sent 20 at most"),
        (b"BM" + bytes(50), "is of a format that servers do not take"),
    ],
    ids=["too large", "unknown format"],
)
def test_what_a_server_cannot_be_sent_is_an_error_at_its_place(data: bytes, message: str) -> None:
    with serving(VLLM, "yes.") as server:
        model = OpenAIModel(server.config.model, base_url=server.base_url, api_key="k")
        with pytest.raises(lq.InputError, match=message) as raised:
            lq.run_sync(ASKED, {"data": data}, model=model)
        assert server.requests == 0
    assert raised.value.span is not None and raised.value.span.source == "{image(data)}"


def test_an_item_stands_in_a_users_turn_of_a_server() -> None:
    with serving(VLLM, "yes.") as server:
        model = OpenAIModel(server.config.model, base_url=server.base_url, api_key="k")
        for source in ('"{image(data)}[X]"', '"{:user}Hi{:assistant}{image(data)}[X]"'):
            with pytest.raises(lq.ModelError, match="only in a turn of the user"):
                lq.run_sync(source, {"data": PNG}, model=model)


def test_a_text_only_model_says_so_at_the_place_of_the_item() -> None:
    with pytest.raises(lq.ModelError, match="only reads text") as raised:
        lq.run_sync('"Look: {image(data)} [X]"', {"data": PNG}, model=lq.ScriptedModel("no"))
    assert raised.value.span is not None and raised.value.span.source == "{image(data)}"


def test_a_query_may_have_an_input_or_a_variable_of_that_name() -> None:
    model = lq.ScriptedModel("A cat.Yes")
    result = lq.run_sync('"A {image}.[X]" where len(TOKENS(X)) < 4', {"image": "cat"}, model=model)
    assert result.prompt.startswith("A cat.")
    result = lq.run_sync("image = str.upper\n\"A {image('cat')}.\"", model=model)
    assert result.prompt == "A CAT."
    with pytest.raises(lq.InputError, match="'image' is missing"):
        lq.run_sync('"A {image} and {image(3)}."', model=model)


def test_an_item_formatted_or_joined_is_text() -> None:
    item = lq.image(PNG)
    result = lq.run_sync("\"{'a ' + str(item)} {item!s}\"", {"item": item}, model=lq.ScriptedModel(""))
    assert result.prompt == f"a {item} {item}"


def test_addresses_are_refused_wherever_they_come_from() -> None:
    for address in ("http://localhost/a.png", "https://x.y/z", "file:///etc/passwd", "data:image/png;base64,AAAA"):
        with pytest.raises(lq.InputError, match="nothing is fetched") as raised:
            lq.run_sync('"{image(address)}"', {"address": address}, model=lq.ScriptedModel(""))
        assert raised.value.span is not None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    for path, message in ((tmp_path / "none.png", "cannot be read"), (tmp_path / "empty.png", "is empty")):
        with pytest.raises(lq.InputError, match=message):
            lq.image(path)
    with pytest.raises(lq.InputError, match="no bytes"):
        lq.audio(b"")
    with pytest.raises(lq.InputError, match="is not a picture"):
        lq.image(3)
    with pytest.raises(lq.InputError, match="num_frames is 0"):
        lq.video(MP4, 0)


def test_a_picture_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "growing.png"
    path.write_bytes(PNG)
    opened = Path.open

    class Growing:
        """A file to which somebody appends while it is read."""

        def __init__(self, file: object) -> None:
            self._file = file

        def __enter__(self) -> Growing:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()  # type: ignore[attr-defined]

        def fileno(self) -> int:
            return int(self._file.fileno())  # type: ignore[attr-defined]

        def read(self, size: int) -> bytes:
            data = self._file.read(size)  # type: ignore[attr-defined]
            with opened(path, "ab") as other:
                other.write(b"more")
            return bytes(data)

    monkeypatch.setattr(Path, "open", lambda self, mode: Growing(opened(self, mode)))
    with pytest.raises(lq.InputError, match="changed while it was read"):
        lq.image(path)
