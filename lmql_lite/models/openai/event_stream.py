"""Bytes of a response -> JSON objects: server-sent events as the standard has them, or one JSON text.

The standard: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6. Lines end with CR, LF or
both; unknown fields, comments and a byte order mark are skipped; an event without data is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.openai.address import SHOWN, Address

_LARGEST_EVENT = 1 << 26
_MARK = b"\xef\xbb\xbf"
DONE: dict[str, Any] = {"done": True}
"""Object for the end of a stream, `[DONE]`."""


class EventDecoder:
    """JSON objects of one response, as its bytes arrive: one for each event, or the whole body. Linear in the bytes."""

    def __init__(self, content_type: str, address: Address) -> None:
        """Raises ModelError for a web page."""
        kind = content_type.partition(";")[0].strip().lower()
        if kind == "text/html":
            raise address.no_api("answers with a web page")
        self.is_over = False
        """True after the end of the stream: what follows is not read."""
        self._is_whole = kind == "application/json"
        self._address = address
        self._rest: list[bytes] = []
        """Parts of the line that is not complete yet."""
        self._data: list[bytes] = []
        """Data of the event that is not complete yet."""
        self._size = 0
        self._skips_newline = False
        """The last chunk ended with CR, so an LF at the beginning of the next one belongs to it."""
        self._is_first = True
        self._strange: bytes | None = None
        self._found = 0

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Objects that these bytes complete. Raises ModelError, or BrokenOff after a good event, for anything else."""
        if self._skips_newline and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skips_newline = False
        self._size += len(chunk)
        if self._size > _LARGEST_EVENT:
            raise self._address.no_api(f"sends an {'answer' if self._is_whole else 'event'} without an end")
        if self._is_whole or not chunk:
            self._rest.append(chunk)
            return
        if b"\r" in chunk:
            self._skips_newline = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = chunk.split(b"\n")
        if not lines:
            self._rest.append(chunk)
            return
        lines[0] = b"".join((*self._rest, lines[0]))
        self._rest = [rest] if rest else []
        for line in lines:
            if (payload := self._line(line)) is not None:
                self._size = len(rest)
                if payload.strip() == b"[DONE]":
                    self.is_over = True
                    yield DONE
                    return
                yield self._object(payload)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Objects that the end of the body completes. Another incomplete line than `[DONE]` is dropped."""
        rest = b"".join(self._rest)
        if self._is_whole:
            yield self._whole(rest)
            yield DONE
        elif self._data and not self._rest and (payload := self._line(b"")) is not None:
            yield DONE if payload.strip() == b"[DONE]" else self._object(payload)
        elif rest.removeprefix(b"data:").strip() == b"[DONE]":  # a server that ends without a line end
            yield DONE
        elif not self._found and (self._data or (rest and b"data:".startswith(rest[:5]))):
            raise self._cut()
        elif not self._found and (line := self._strange or rest):
            raise self._address.no_api(f"sends {self._quoted(line)}, which is not part of an event stream")

    def _line(self, line: bytes) -> bytes | None:
        """Payload of the event that this line ends, if it ends one."""
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_MARK)
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line:
            data, self._data = self._data, []
            payload = data[0] if len(data) == 1 else b"\n".join(data)
            return payload if payload and not payload.isspace() else None
        elif self._strange is None and line.partition(b":")[0] not in (b"", b"event", b"id", b"retry", b"data"):
            self._strange = line
        return None

    def _whole(self, body: bytes) -> dict[str, Any]:
        """Object of a body that is one. Raises BrokenOff for the beginning of one."""
        if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
            raise self._cut()
        return self._object(body)

    def _cut(self) -> BrokenOff:
        return BrokenOff(f"{self._address.shown} closed the connection in the middle of an answer")

    def _object(self, payload: bytes) -> dict[str, Any]:
        try:
            found = json.loads(payload)
        except ValueError:
            raise self._unreadable(f"{self._quoted(payload)}, which is not JSON") from None
        if not isinstance(found, dict):
            raise self._unreadable(f"{self._quoted(payload)}, which is not a JSON object")
        self._found += 1
        return found

    def _unreadable(self, what: str) -> ModelError:
        if self._found:  # the server can speak the protocol: it may do so again
            return BrokenOff(f"{self._address.shown} sends {what}, in the middle of an answer")
        return self._address.no_api(f"sends {what}")

    def _quoted(self, data: bytes) -> str:
        return repr(self._address.clean(data[: 16 * SHOWN].decode("utf-8", "replace")))
