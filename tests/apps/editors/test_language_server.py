"""`lq lsp` as an editor speaks to it: a client in another process, over stdin and stdout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("pygls", reason="needs pygls: pip install 'lmql-lite[lsp]'")
from lsprotocol import types
from pygls.lsp.client import LanguageClient

QUERY = """\
sample(temperature=0.8)
    "🏖 Things for {place}: [THING]" where STOPS_AT(THING, "\\n") and len(THING) < 30
    if THING == "hat":
        "[@str.strip COUNT: int] of them" where COUNT < 9
    def shorter(THING):
        return THING[:3]
    return shorter(THING), COUNT
"""
PYTHON = '''\
import lmql_lite as lq

class Trips:
    @lq.query
    def packing(self, place: str) -> str:
        """lq
        "Things for {place}: [THING]" where STOPS_AT(THNG, "\\n")
        return shorter(THING)
        """
        raise NotImplementedError

def shorter(text: str) -> str:
    return text[:3]
'''


class Editor:
    """One document in a client, and what the server sends about it."""

    def __init__(self, client: LanguageClient, uri: str) -> None:
        self.client, self.uri, self.version = client, uri, 0
        self.text = ""
        self._published: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

        @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(found: types.PublishDiagnosticsParams) -> None:
            self._published.put_nowait(found)

    async def open(self, text: str) -> list[types.Diagnostic]:
        self.text = text
        item = types.TextDocumentItem(self.uri, types.LanguageKind.Python, self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return await self.diagnostics()

    def type(self, line: int, begin: int, end: int, text: str) -> None:
        """Replaces characters of a line, as a keystroke does."""
        self.version += 1
        place = types.Range(types.Position(line, begin), types.Position(line, end))
        document = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        change = types.TextDocumentContentChangePartial(place, text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    async def diagnostics(self) -> list[types.Diagnostic]:
        """Those of the present version."""
        while (found := await asyncio.wait_for(self._published.get(), 30)).version != self.version:
            pass
        return list(found.diagnostics)

    def at(self, line: int, word: str) -> tuple[types.TextDocumentIdentifier, types.Position]:
        """A place inside the last such word of a line, in UTF-16 units."""
        before = self.text.split("\n")[line].rpartition(word)[0]
        return types.TextDocumentIdentifier(self.uri), types.Position(line, len(before.encode("utf-16-le")) // 2 + 1)

    def under(self, place: types.Range) -> str:
        line = self.text.split("\n")[place.start.line].encode("utf-16-le")
        return line[place.start.character * 2 : place.end.character * 2].decode("utf-16-le")


@asynccontextmanager
async def editor(uri: str = "file:///trip/q.lq") -> AsyncIterator[Editor]:
    client = LanguageClient("test", "1")
    opened = Editor(client, uri)
    await client.start_io(sys.executable, "-m", "lmql_lite", "lsp")
    try:
        await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
        client.initialized(types.InitializedParams())
        yield opened
        await client.shutdown_async(None)
    finally:
        client.exit(None)
        await client.stop()


def session(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@session
async def test_a_mistake_is_reported_while_it_is_typed_and_goes_when_it_is_mended() -> None:
    async with editor() as open:
        assert await open.open(QUERY) == []
        begin = open.at(1, "THING, ")[1].character - 1
        open.type(1, begin, begin + len("THING"), "THNG")
        [found] = await open.diagnostics()
        assert found.message == "no hole is called 'THNG'\nhint: did you mean 'THING'?"
        assert (found.range.start, found.range.end) == (types.Position(1, begin), types.Position(1, begin + 4))
        assert (found.severity, found.code, found.source) == (types.DiagnosticSeverity.Error, "QueryError", "lq")
        open.type(1, begin, begin + 4, "THING")
        assert await open.diagnostics() == []


@session
async def test_conditions_that_cannot_be_met_and_hardly_meant_ones_are_reported() -> None:
    async with editor() as open:
        [never] = await open.open('"[X]" where X in []\n')
        assert never.message.startswith("nothing can fill [X]") and never.range.start == types.Position(0, 12)
        open.type(0, 12, 19, 'X == "a" or "b"')
        [warning] = await open.diagnostics()
        assert warning.severity == types.DiagnosticSeverity.Warning and "always true" in warning.message


@session
async def test_help_names_the_conditions_of_a_hole_options_constraints_and_inputs() -> None:
    async with editor() as open:
        await open.open(QUERY)

        async def help(line: int, word: str) -> str | None:
            found = await open.client.text_document_hover_async(types.HoverParams(*open.at(line, word)))
            assert found is None or isinstance(found.contents, types.MarkupContent)
            return found and found.contents.value

        hole = await help(6, "THING")
        assert hole is not None and "`[THING]`" in hole and "`len(THING) < 30`" in hole
        assert "Divides the scores" in (await help(0, "temperature") or "")
        assert "ends X with the phrase" in (await help(1, "STOPS_AT") or "")
        assert "`place` is an input" in (await help(1, "place") or "")
        assert await help(1, "Things") is None and await help(6, "shorter") is None


@session
async def test_completions_are_the_names_of_the_query_the_words_and_the_options() -> None:
    async with editor() as open:
        await open.open(QUERY)

        async def labels(line: int, character: int) -> set[str]:
            place = types.CompletionParams(types.TextDocumentIdentifier(open.uri), types.Position(line, character))
            found = await open.client.text_document_completion_async(place)
            assert isinstance(found, list)
            return {each.label for each in found}

        assert {"THING", "COUNT", "place", "STOPS_AT", "where", "beam", "Literal", "top_p"} <= await labels(6, 11)
        open.type(1, 5, 5, "{:")
        await open.diagnostics()
        assert await labels(1, 7) == {"system", "user", "assistant"}
        assert {"THING", "COUNT"} <= await labels(6, 11), "the text cannot be parsed"


@session
async def test_docstrings_of_a_python_file_are_queries_and_the_rest_is_left_alone() -> None:
    async with editor("file:///trip/app.py") as open:
        [found] = await open.open(PYTHON)
        assert found.message.startswith("no hole is called 'THNG'") and open.under(found.range) == "THNG"
        begin = found.range.start.character
        open.type(6, begin, begin + 4, "THING")
        assert await open.diagnostics() == [], "shorter is defined around the docstring"
        open.text = PYTHON.replace("THNG", "THING")
        assert await open.client.text_document_hover_async(types.HoverParams(*open.at(7, "THING")))
        assert await open.client.text_document_hover_async(types.HoverParams(*open.at(11, "shorter"))) is None
        open.type(0, 0, 0, "def (")
        assert await open.diagnostics() == [], "what Python cannot read is Python's to report"
