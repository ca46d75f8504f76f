"""Wait of an editor for the mistakes of a query after a keystroke, in a real language server.

    python benchmarks/editor.py [--keystrokes 40]

A client in this process types into a query of 300 lines, made of the examples, in `lq lsp` in another process. A row
says how long after a change was sent its diagnostics had arrived, and how much processor time the server took for it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

from lsprotocol import types
from pygls.lsp.client import LanguageClient

LINES = 300
HELD_MS = 50.0
URI = "file:///q.lq"
PARTS = (
    '"A list of things not to forget when going to {place}: \\n"\n"- Sunglasses \\n"\nfor i in range(4):\n'
    '    "-[THING_{n}]" where STOPS_AT(THING_{n}, "\\n")\n',
    '# what the customer wrote, and how it was meant\n"Review: {review}\\n"\n"Q: Is it positive or negative?\\n"\n'
    '"A:[MOOD_{n}]\\n" where MOOD_{n} in [" positive", " negative"]\n'
    'if MOOD_{n} == " positive":\n    score = score_of(MOOD_{n})\nelse:\n    score = 0\n',
    "def shorter_{n}(text):\n    text = text.strip()\n    return text[:40]\n\n"
    '"How many? [COUNT_{n}: int]\\n" where 0 < COUNT_{n} < 120\nnumbers = [COUNT_{n} * i for i in range(3)]\n',
)


def query() -> str:
    made = "score_of = len\n"
    for n in range(LINES):
        part = PARTS[n % len(PARTS)].replace("{n}", str(n))
        if made.count("\n") + part.count("\n") > LINES:
            break
        made += part
    return made + "# the end\n" * (LINES - made.count("\n"))


async def measured(keystrokes: int) -> tuple[list[float], list[float]]:
    """Milliseconds to the diagnostics of each keystroke, and of the server's processor."""
    client = LanguageClient("benchmark", "1")
    arrived: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def published(found: types.PublishDiagnosticsParams) -> None:
        arrived.put_nowait(found)

    await client.start_io(sys.executable, "-m", "lmql_lite", "lsp")
    server = client._server
    assert server is not None
    await client.initialize_async(types.InitializeParams(types.ClientCapabilities()))
    client.initialized(types.InitializedParams())
    text = query()
    client.text_document_did_open(types.DidOpenTextDocumentParams(types.TextDocumentItem(URI, "lq", 0, text)))
    first = await arrived.get()
    assert not first.diagnostics, first.diagnostics[0].message
    line = next(at for at, each in enumerate(text.split("\n")) if at > LINES // 2 and each.startswith('"'))
    waits, works = [], []
    for version in range(1, keystrokes + 1):
        place = types.Range(types.Position(line, version), types.Position(line, version))
        change = types.TextDocumentContentChangePartial(place, "x")
        document = types.VersionedTextDocumentIdentifier(version, URI)
        work, began = processor_s(server.pid), time.perf_counter()
        client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))
        while (await arrived.get()).version != version:
            pass
        waits.append((time.perf_counter() - began) * 1000)
        works.append((processor_s(server.pid) - work) * 1000)
        await asyncio.sleep(0.02)
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return waits, works


def processor_s(pid: int) -> float:
    """Processor time of a process in nanosecond steps where the kernel tells it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from a keystroke to the diagnostics of a query of 300 lines.")
    parser.add_argument("--keystrokes", type=int, default=40)
    waits, works = asyncio.run(measured(max(parser.parse_args().keystrokes, 2)))
    print(f"{LINES} lines, {len(waits)} keystrokes, milliseconds: least, median, most; held to {HELD_MS:.0f}")
    for name, each in (("until the diagnostics are there", waits), ("processor time of the server", works)):
        print(f"{name:34}{min(each):7.1f}{statistics.median(each):7.1f}{max(each):7.1f}")
    sys.exit(statistics.median(works) > HELD_MS)


if __name__ == "__main__":
    main()
