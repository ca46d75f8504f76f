"""The pytest plugin: the fixture `lq_recording`, and a summary of the tokens that its tests asked for
(docs/testing.md).

pytest loads this module in every session of an environment that has the package, so it imports as little as possible.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lmql_lite.engine.recording import Recording

FOLDER = "recordings"
MAX_NAME_LENGTH = 120
SHARED = pytest.StashKey[str]()
"""Of a test: the sentence about another one with the same file."""
PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lmql_lite", "recordings of prompts")
    group.addoption(
        "--lq-record",
        choices=("none", "new", "all"),
        default="none",
        help="What tests with lq_recording ask a model for: none, only what their recordings lack (new), or everything "
        "(all), which replaces them. Default: none.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lq_recording(file): the recording of a test, beside its own file.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first: dict[str, pytest.Item] = {}
    for item in items:
        if "lq_recording" in getattr(item, "fixturenames", ()):
            path = recording_of(item)
            other = first.setdefault(str(path).casefold(), item)
            if other is not item:
                shown = _relative(path, item.config)
                sentence = f"{shown} is the recording of two tests, {other.nodeid} and {item.nodeid}"
                hint = "give each a file of its own; --lq-record=all would drop what the other one needs"
                other.stash[SHARED] = item.stash[SHARED] = f"{sentence}: {hint}"


def recording_of(item: pytest.Item) -> Path:
    """`recordings/test_module/test_name.jsonl` beside the test's file, or what its mark says."""
    folder, marker = item.path.parent, item.get_closest_marker("lq_recording")
    if marker is not None:
        if len(marker.args) != 1 or marker.kwargs or not str(marker.args[0]).endswith(".jsonl"):
            raise pytest.UsageError(f'{item.nodeid}: the mark takes one file, such as lq_recording("joke.jsonl")')
        return Path(folder, marker.args[0])
    name = ".".join(item.nodeid.split("::")[1:])
    safe = re.sub(r"[^\w.\[\]-]", "_", name)[:MAX_NAME_LENGTH]
    if safe != name:
        safe += f"-{blake2b(name.encode('utf-8', 'backslashreplace'), digest_size=3).hexdigest()}"
    return folder / FOLDER / item.path.stem / f"{safe}.jsonl"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture
def lq_recording(request: pytest.FixtureRequest) -> Iterator[Recording]:
    """Recording of this test: all its runs read it, and ask a model as `--lq-record` says.

    It has `path`, `mode`, and the counts `kept` and `asked`.
    """
    from lmql_lite.engine.blocking import blocking
    from lmql_lite.engine.recording import Recording
    from lmql_lite.engine.session import default_session

    item: pytest.Item = request.node
    if SHARED in item.stash:
        pytest.fail(item.stash[SHARED], pytrace=False)
    path, config = recording_of(item), request.config
    command = f'pytest "{item.nodeid}" --lq-record=new'
    remedy = f"{command} asks the model for what is missing"
    recording = Recording(path, config.getoption("--lq-record"), name=_relative(path, config), remedy=remedy)
    session = default_session()
    before, session.recording = session.recording, recording
    try:
        yield recording
    finally:
        session.recording = before
        if not recording.replays:
            blocking(recording.close(keep=item.stash.get(PASSED, False)))
        if recording.asked or recording.kept:
            item.user_properties += [
                ("lq_recording", recording.name),
                ("lq_tokens_recorded", recording.kept),
                ("lq_tokens_asked", recording.asked),
            ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    asked: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if getattr(report, "when", "") == "teardown" and properties.get("lq_tokens_asked"):
                number = properties["lq_tokens_asked"]
                tokens = f"{number} token{'' if number == 1 else 's'}"
                asked.append(f"{properties['lq_recording']}: {tokens} asked, {properties['lq_tokens_recorded']} known")
    if asked:
        terminalreporter.section("lq recordings")
        for line in asked:
            terminalreporter.write_line(line)


def _relative(path: Path, config: pytest.Config) -> str:
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return str(path)
