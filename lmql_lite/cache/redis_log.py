"""Log of token trees in a stream on a Redis or Valkey server: `cache="redis://host:port/name"`, shared by machines.

The stream has the frames of a `.tokens` file, one per stream entry. Records refer to each other by content, so that
writers need no lock: facts that two of them learn at once are stored twice. Each stream entry names the one before it,
and a generation names the stream. A server that returns without its latest entries, or with another stream, is thus
detected and read from the start.

A failing server costs time, never a run: new entries wait here, and are appended once it answers.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from contextlib import closing
from functools import partial
from threading import Lock
from typing import Any

from lmql_lite.cache.framing import FrameError, LogFrame, frame_bytes, scan
from lmql_lite.cache.log_file import Admit, Payloads
from lmql_lite.errors import CacheError
from lmql_lite.store.redis_connection import RedisConnection

_URL = re.compile(r"((?:redis|rediss|valkey|valkeys)://(?:[^/@]*@)?[^/@:]+(?::\d+)?)/([A-Za-z0-9_.-]+)")
_TIMEOUT_SECONDS = 0.5
_BATCH = 1000
_MOST_WAITING_BYTES = 64 << 20
"""Maximum bytes of frames that wait for the server; beyond it the oldest are dropped."""
MOST_STREAM_BYTES = 1 << 30
"""Maximum bytes of frames in a stream; the first writer that finds more starts it over. Records hang on older ones, so
none can be dropped alone."""
_NOTHING = b"0-0"
# KEYS: stream, generation, bytes. ARGV: id of the last entry read, maximum number of entries.
_READ = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
local size = tonumber(redis.call('GET', KEYS[3]) or '0')
return {#last > 0 and redis.call('GET', KEYS[2]) or '', #last > 0 and last[1][1] or '0-0', found, size}
"""
# KEYS: the same. ARGV: generation to remove.
_START_OVER = "if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', unpack(KEYS)) end return 1"
# KEYS: the same. ARGV: generation known to the writer, generation for a new stream, frames.
_APPEND = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local before, generation = #last == 0 and '0-0' or last[1][1], redis.call('GET', KEYS[2]) or ''
if #last == 0 then generation = '' end
if generation ~= ARGV[1] then return {} end
if generation == '' then
  redis.call('SET', KEYS[2], ARGV[2])
  redis.call('DEL', KEYS[3])
end
local ids, size = {}, 0
for i = 3, #ARGV do
  size = size + #ARGV[i]
  before = redis.call('XADD', KEYS[1], '*', 'before', before, 'frame', ARGV[i])
  ids[#ids + 1] = before
end
redis.call('INCRBY', KEYS[3], size)
return ids
"""


def is_redis_url(path: object) -> bool:
    """True if `cache=` names a server, not a file."""
    return isinstance(path, str) and path.startswith(("redis://", "rediss://", "valkey://", "valkeys://"))


class RedisLog:
    """Reader and writer of a stream, with the methods of `LogFile`. Safe for threads.

    Raises CacheError for a URL without a name of the stream, for `durable`, which a server cannot guarantee, and if the
    redis package is missing.

    A stream of more than `most_bytes` starts over, with a notice and the entries that runs still use.
    """

    def __init__(self, url: str, *, durable: bool, most_bytes: int = MOST_STREAM_BYTES) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise CacheError(f"{url} names no stream on a server", hint="such as redis://localhost:6379/name")
        if durable:
            raise CacheError(f"{url} cannot be durable: a server may lose acknowledged data", hint="name a file")
        self._connection = RedisConnection(found[1], _TIMEOUT_SECONDS)
        self.notices: list[str] = self._connection.notices
        name = f"lmql_lite:{{{found[2]}}}:"
        self._keys = (f"{name}log", f"{name}generation", f"{name}bytes")
        self._most, self._size = most_bytes, 0
        self._guard = Lock()
        self._last, self._generation = _NOTHING, b""
        self._own: set[bytes] = set()
        """Ids after `_last` of entries that this object wrote."""
        self._waiting: deque[bytes] = deque()

    def open(self) -> None:
        """Does nothing: the first command opens the connection."""

    def follow(self, admit: Admit) -> None:
        """Reads frames that others appended, and appends waiting ones. Adds a notice if the server does not answer."""
        with self._guard:
            if self._look(admit):
                self._send()

    def append(self, admit: Admit, payloads: Payloads) -> bool:
        """Reads frames that others appended, then appends frames. False if they wait for the server or are lost."""
        with self._guard:
            answers = self._look(admit)
            if answers and self._size > self._most:
                self._connection.notices.add(f"{self._connection.url} has {self._size:,} bytes and starts over")
                self._connection.asked(
                    lambda pipeline: pipeline.eval(_START_OVER, 3, *self._keys, self._generation), [None]
                )
                answers = self._look(admit)
            with closing(payloads()) as generated:
                for payload in generated:
                    try:
                        self._waiting.append(frame_bytes(payload))
                    except FrameError as error:
                        self._connection.notices.add(f"{self._connection.url} cannot hold a record ({error.message})")
            while sum(map(len, self._waiting)) > _MOST_WAITING_BYTES:
                self._waiting.popleft()
            if not answers or self._send():
                return answers
            # the stream began or was replaced after the read: waiting frames stay unless they hang on lost records
            return self._look(admit) and bool(self._waiting) and self._send()

    def read_all(self) -> bytes:
        """Frames of the whole stream, as in a file. Raises CacheError if the server does not answer or has no such
        stream."""
        frames, last = list[bytes](), b"-"
        while True:
            (found,) = self._connection.asked(partial(self._batch, last), [None])
            if found is None:
                raise CacheError(f"{self._connection.url} does not answer", hint="check that the server is running")
            frames += [fields.get(b"frame", b"") for _, fields in found]
            if len(found) < _BATCH:
                break
            last = b"(" + found[-1][0]
        if not frames:
            name = self._keys[0].split("{")[1].split("}")[0]
            raise CacheError(f"{self._connection.url} has no stream {name!r}", hint="a run with this cache creates it")
        return b"".join(frames)

    def _batch(self, begin: bytes, pipeline: Any) -> None:
        pipeline.xrange(self._keys[0], begin, count=_BATCH)

    def close(self) -> None:
        """Appends waiting frames, if the server answers, and closes the connection."""
        with self._guard:
            self._send()
            self._connection.close()

    def _look(self, admit: Admit) -> bool:
        """Passes all new entries to `admit`. False if the server does not answer."""
        while True:
            (answer,) = self._connection.asked(
                lambda pipeline: pipeline.eval(_READ, 3, *self._keys, self._last, _BATCH), [None]
            )
            if answer is None:
                return False
            generation, last, found, self._size = answer
            entries = [(place, dict(zip(fields[::2], fields[1::2], strict=True))) for place, fields in found]
            follows = entries[0][1].get(b"before") == self._last if entries else last == self._last
            is_known = self._last != _NOTHING or self._generation
            if is_known and (generation != self._generation or not follows):
                self._last, self._generation = _NOTHING, b""
                self._own.clear()
                self._waiting.clear()  # they hang on lost records; runs write again what they use
                admit([], True)
                continue
            self._generation = generation
            frames = [frame for place, fields in entries if place not in self._own for frame in self._frames(fields)]
            if entries:
                self._last = entries[-1][0]
                self._own -= {place for place, _ in entries}
                if frames and not admit(frames, False):
                    self._connection.notices.add(f"{self._connection.url} holds damaged records, which are misses")
            if len(entries) < _BATCH:
                return True

    def _frames(self, fields: dict[bytes, Any]) -> list[LogFrame]:
        found = scan(fields.get(b"frame", b""), 0)
        if found.torn or found.gaps or len(found.places) != 1:
            self._connection.notices.add(f"{self._connection.url} holds damaged records, which are misses")
        return [place.frame for place in found.places]

    def _send(self) -> bool:
        """Appends waiting frames. False if the server did not take them: they still wait, or belong to another
        stream."""
        if not self._waiting:
            return True
        frames, fresh = list(self._waiting), secrets.token_hex(8).encode()
        (ids,) = self._connection.asked(
            lambda pipeline: pipeline.eval(_APPEND, 3, *self._keys, self._generation, fresh, *frames), [None]
        )
        if not ids:
            return False
        self._waiting.clear()
        self._generation = self._generation or fresh
        self._own.update(ids)
        return True
