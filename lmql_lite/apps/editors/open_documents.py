"""Documents that an editor has open: their queries, examined once per version, and conversions between the two ways of
counting columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lsprotocol import types

from lmql_lite.apps.examination import Embedding, findings_of, queries_of
from lmql_lite.lang.source import Source

if TYPE_CHECKING:
    from pygls.lsp.server import LanguageServer
    from pygls.workspace import PositionCodec

SEVERITY = {"error": types.DiagnosticSeverity.Error, "warning": types.DiagnosticSeverity.Warning}


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a query of a document. `offset` counts from the start of the query."""

    query: Embedding
    offset: int


class OpenDocuments:
    def __init__(self, server: LanguageServer) -> None:
        self._server = server
        self._known: dict[str, tuple[str, Sequence[Embedding]]] = {}
        """Text of the examined version, and its queries, by URI."""

    def publish(self, uri: str) -> None:
        """Sends the findings of the present version."""
        text, queries = self._examined(uri)
        codec = self._server.workspace.position_codec
        diagnostics = []
        for finding in findings_of(queries, text):
            error, span = finding.error, finding.error.span
            start, end = (span.start, max(span.end, span.start)) if span else (0, 0)
            place = types.Range(position_of(text, start, codec), position_of(text, end, codec))
            sentence = f"{error.message}\nhint: {error.hint}" if error.hint else error.message
            severity, code = SEVERITY[finding.severity], type(error).__name__
            diagnostics.append(types.Diagnostic(place, sentence, severity=severity, code=code, source="lq"))
        document = self._server.workspace.get_text_document(uri)
        found = types.PublishDiagnosticsParams(uri, diagnostics, document.version)
        self._server.text_document_publish_diagnostics(found)

    def forget(self, uri: str) -> None:
        """Withdraws the findings of a document that was closed."""
        self._known.pop(uri, None)
        self._server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def at(self, document: types.TextDocumentIdentifier, position: types.Position) -> Cursor | None:
        """The query at a position; None where none is."""
        text, queries = self._examined(document.uri)
        codec = self._server.workspace.position_codec
        offset = offset_of(text, position, codec)
        for query in queries:
            if query.offset <= offset <= query.offset + len(query.examination.source.text):
                return Cursor(query, offset - query.offset)
        return None

    def _examined(self, uri: str) -> tuple[str, Sequence[Embedding]]:
        text = self._server.workspace.get_text_document(uri).source
        if uri not in self._known or self._known[uri][0] != text:
            name = unquote(urlsplit(uri).path) or uri
            self._known[uri] = text, tuple(queries_of(Source(name, text)))
        return self._known[uri]


def position_of(text: str, offset: int, codec: PositionCodec) -> types.Position:
    """Position that a client counts, for an offset in characters."""
    begin = text.rfind("\n", 0, offset) + 1
    return types.Position(text.count("\n", 0, offset), codec.client_num_units(text[begin:offset]))


def offset_of(text: str, position: types.Position, codec: PositionCodec) -> int:
    """Offset in characters of a client's position; at most the end of its line."""
    begin = 0
    for _ in range(position.line):
        begin = text.find("\n", begin) + 1
        if not begin:
            return len(text)
    end = text.find("\n", begin)
    line = text[begin : end if end >= 0 else len(text)]
    units = 0
    for at, character in enumerate(line):
        if units >= position.character:
            return begin + at
        units += codec.client_num_units(character)
    return begin + len(line)
