"""`lq lsp`: a language server on stdin and stdout. It parses and compiles queries, and never runs them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from lmql_lite import __version__
from lmql_lite.apps.completions import completions
from lmql_lite.apps.editors.query_names import meaning
from lmql_lite.apps.terminal import reporting
from lmql_lite.errors import InputError
from lmql_lite.lang.keywords import ROLES
from lmql_lite.options import IN_HEADER, OPTIONS

if TYPE_CHECKING:
    from pygls.lsp.server import LanguageServer


@click.command(short_help="Start a language server for editors.")
def lsp() -> None:
    """Serve an editor over stdin and stdout with the Language Server Protocol; no query is run.

    Works in .lq files, and in docstrings of Python files that begin with a line `lq`.
    """
    with reporting(as_json=False):
        try:
            import pygls  # noqa: F401
        except ImportError:
            hint = "pip install 'lmql-lite[lsp]'"
            raise InputError("lq lsp needs the package pygls, which is not installed", hint=hint) from None
        language_server().start_io()


def language_server() -> LanguageServer:
    from lsprotocol import types
    from pygls.lsp.server import LanguageServer

    from lmql_lite.apps.editors.open_documents import OpenDocuments

    server = LanguageServer("lq", __version__)
    documents = OpenDocuments(server)
    kinds = {
        "hole": types.CompletionItemKind.Variable,
        "input": types.CompletionItemKind.Variable,
        "clause": types.CompletionItemKind.Keyword,
        "python": types.CompletionItemKind.Keyword,
        "decoder": types.CompletionItemKind.Function,
        "constraint": types.CompletionItemKind.Function,
        "type": types.CompletionItemKind.Class,
    }

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        documents.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: types.DidChangeTextDocumentParams) -> None:
        await asyncio.sleep(0)  # further changes may have arrived; the last one is examined
        if server.workspace.get_text_document(params.text_document.uri).version == params.text_document.version:
            documents.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        documents.forget(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        found = documents.at(params.text_document, params.position)
        text = found and meaning(found.query.examination, found.offset)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text)) if text else None

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["[", ":", "("]))
    def complete(params: types.CompletionParams) -> list[types.CompletionItem]:
        found = documents.at(params.text_document, params.position)
        if found is None:
            return []
        source = found.query.examination.source
        before = source.text[: found.offset].rpartition("\n")[2]
        if before.rpartition("{")[2].startswith(":"):
            return [types.CompletionItem(role, kind=types.CompletionItemKind.EnumMember) for role in ROLES]
        if before.endswith(":"):
            return []
        items = [types.CompletionItem(label, kind=kinds[kind]) for label, kind in completions(found.query.examination)]
        options = [
            types.CompletionItem(
                name,
                kind=types.CompletionItemKind.Property,
                documentation=OPTIONS[name].help,
                insert_text=f"{name}=",
            )
            for name in IN_HEADER
        ]
        return items + options

    return server
