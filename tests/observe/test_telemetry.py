"""Logs and spans of runs: nothing unless a program asks, no text of prompts in a span, and failures told."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

import lmql_lite as lq

MODEL = lq.ScriptedModel("Say: hi.")
QUERY = lq.compile('"Say:[X]" where STOPS_AT(X, ".")')


class Span:
    def __init__(self, name: str, attributes: Mapping[str, Any]) -> None:
        self.name, self.attributes, self.events, self.status = name, dict(attributes), list[Any](), ""
        self.exceptions, self.ends = list[BaseException](), 0

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.attributes |= attributes

    def add_event(self, name: str, attributes: Mapping[str, Any]) -> None:
        self.events.append((name, dict(attributes)))

    def record_exception(self, exception: BaseException) -> None:
        self.exceptions.append(exception)

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = f"{status.name}: {description}"

    def end(self) -> None:
        self.ends += 1


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    """Spans that runs open, as a provider gets them."""
    trace = pytest.importorskip("opentelemetry.trace")
    opened: list[Span] = []

    class Tracer:
        def start_span(self, name: str, attributes: Mapping[str, Any]) -> Span:
            opened.append(Span(name, attributes))
            return opened[-1]

    monkeypatch.setattr(trace, "get_tracer", lambda name: Tracer())
    return opened


def test_a_run_is_a_span_with_the_attributes_of_the_conventions_and_no_text(spans: list[Span]) -> None:
    result = QUERY.run_sync(model=MODEL, seed=7, cache=False)
    (span,) = spans
    assert (span.name, span.ends, span.exceptions) == ("text_completion scripted", 1, [])
    usage = result.usage
    assert span.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "lmql_lite",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.model": "scripted",
        "gen_ai.response.finish_reasons": (result.endings["X"],),
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "lmql_lite.decoder": "argmax",
        "lmql_lite.usage.requests": 0,
        "lmql_lite.usage.forward_passes": usage.forward_passes,
        "lmql_lite.usage.tokens_from_cache": 0,
    }
    assert span.events == [
        ("lmql_lite.hole", {"lmql_lite.hole.name": "X", "lmql_lite.hole.ending": result.endings["X"]})
    ]
    assert "hi" not in str(span.events) and "Say" not in str(span.attributes)


def test_a_run_that_fails_ends_its_span_with_the_error(spans: list[Span]) -> None:
    with pytest.raises(ZeroDivisionError):
        lq.run_sync('"Say:[X]" where STOPS_AT(X, ".")\n1 / 0', model=MODEL)
    (span,) = spans
    assert span.ends == 1 and span.attributes["error.type"] == "ZeroDivisionError"
    assert span.status.startswith("ERROR: ") and isinstance(span.exceptions[0], ZeroDivisionError)


def test_the_attributes_are_what_opentelemetry_takes(spans: list[Span]) -> None:
    attributes = pytest.importorskip("opentelemetry.attributes")
    QUERY.run_sync(model=MODEL)
    kept = attributes.BoundedAttributes(attributes=spans[0].attributes)
    assert dict(kept) == spans[0].attributes


def test_the_logger_tells_of_runs_where_its_level_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "lmql_lite"):
        lq.run_sync('argmax(verbose=True)\n    "Say:[X]"\nwhere STOPS_AT(X, ".")', model=MODEL, seed=1)
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "lmql_lite"]
    assert told[0] == ("INFO", "run on scripted began: decoder argmax, seed 1")
    assert ("DEBUG", "run on scripted: [X] is ' hi.', ended by stop") in told
    assert any(level == "INFO" and "the option verbose is ignored" in text for level, text in told)
    assert told[-1][0] == "INFO" and "run on scripted ended in" in told[-1][1]


def test_a_failure_is_told_and_a_key_in_it_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lmql_lite"), pytest.raises(ValueError):
        lq.run_sync('raise ValueError("sk-abcdefghijklmnopqrstuvwxyz012345")', model=MODEL)
    told = caplog.records[-1].getMessage()
    assert told.startswith("run on scripted failed: ValueError") and "abcdefghijklmnop" not in told


def test_a_program_that_sets_up_nothing_reads_nothing_and_imports_nothing() -> None:
    source = (
        "import sys, lmql_lite as lq\n"
        "lq.run_sync('argmax(verbose=True)\\n    \"Say:[X]\"', model=lq.ScriptedModel('Say: hi'))\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
