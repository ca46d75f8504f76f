"""Rows of token trees on a Redis or Valkey server: `cache="redis://host:port/name"`, shared by machines.

    lmql_lite:{name}:PLACE:MODEL   a hash: question -> row; PLACE in hexadecimal, MODEL a digest of the fingerprint
    lmql_lite:{name}:at            a hash: PLACE:MODEL -> the first run that wrote there, and the place in its list
    lmql_lite:{name}:run:N         a list: the rows that one run wrote, each as the key of its hash, in the run's order
    lmql_lite:{name}:model         a hash: digest -> fingerprint, name, vocabulary and the longest row of a model
    lmql_lite:{name}:state         a hash: generation, run, version, bytes, oldest

Rows are those of a `.tokens` file. A look-up returns the rows at a place, and those that the same run wrote after them,
so that a known text takes one round trip for many tokens. A failing server costs time, never a run.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any

from lmql_lite.cache.tokens.rows import ModelName, RowBatch, Rows, Stored, TreeRow
from lmql_lite.errors import CacheError
from lmql_lite.store.redis import RedisConnection

_URL = re.compile(r"((?:redis|rediss|valkey|valkeys)://(?:[^/@]*@)?[^/@:]+(?::\d+)?)/([A-Za-z0-9_.-]+)")
_TIMEOUT_SECONDS = 0.5
MAX_BYTES = 1 << 30
"""Maximum bytes of all rows; the oldest runs go, down to 90 %."""
AHEAD = 64
"""Number of rows after the one that was asked for, which come with it."""
KEPT_PLACES = 10_000
"""Number of places whose rows wait here for being asked for."""
_ROW = struct.Struct("<Q8xqIII")
"""Head of a row: parent, time of writing, bytes of the tokens and of the value, checksum."""
# KEYS: prefix. ARGV: number of rows ahead, then keys of hashes.
_FIND = """
local found = {}
for i = 2, #ARGV do
  local key = KEYS[1] .. ARGV[i]
  local rows = redis.call('HGETALL', key)
  if #rows > 0 then
    found[#found + 1] = ARGV[i]
    found[#found + 1] = rows
    local at = redis.call('HGET', KEYS[1] .. 'at', ARGV[i])
    if at and i == #ARGV then
      local run, number = string.match(at, '(%d+) (%d+)')
      for _, after in ipairs(redis.call('LRANGE', KEYS[1] .. 'run:' .. run, number + 1, number + ARGV[1])) do
        found[#found + 1] = after
        found[#found + 1] = redis.call('HGETALL', KEYS[1] .. after)
      end
    end
  end
end
return found
"""
# KEYS: prefix. ARGV: maximum bytes, digest of the model, the model, generation if the server has nothing yet, number of
# replaced keys, those keys, then key, question, row of each row.
_WRITE = """
local prefix, state = KEYS[1], KEYS[1] .. 'state'
local run = redis.call('HINCRBY', state, 'run', 1)
redis.call('HSET', prefix .. 'model', ARGV[2], ARGV[3])
redis.call('HSETNX', state, 'generation', ARGV[4])
local size, at = 0, 6 + ARGV[5]
for i = 6, at - 1 do
  redis.call('DEL', prefix .. ARGV[i])
  redis.call('HDEL', prefix .. 'at', ARGV[i])
end
if at > 6 then redis.call('HINCRBY', state, 'version', 1) end
for i = at, #ARGV, 3 do
  if redis.call('HSETNX', prefix .. ARGV[i], ARGV[i + 1], ARGV[i + 2]) == 1 then
    size = size + #ARGV[i + 2] + 60
    local number = redis.call('RPUSH', prefix .. 'run:' .. run, ARGV[i]) - 1
    redis.call('HSETNX', prefix .. 'at', ARGV[i], run .. ' ' .. number)
  end
end
redis.call('HSET', prefix .. 'sizes', run, size)
local total = redis.call('HINCRBY', state, 'bytes', size)
local most, oldest = tonumber(ARGV[1]), tonumber(redis.call('HGET', state, 'oldest') or '1')
if total > most then
  while total > 0.9 * most and oldest < run do
    for _, key in ipairs(redis.call('LRANGE', prefix .. 'run:' .. oldest, 0, -1)) do
      redis.call('DEL', prefix .. key)
      redis.call('HDEL', prefix .. 'at', key)
    end
    redis.call('DEL', prefix .. 'run:' .. oldest)
    total = redis.call('HINCRBY', state, 'bytes', -tonumber(redis.call('HGET', prefix .. 'sizes', oldest) or '0'))
    redis.call('HDEL', prefix .. 'sizes', oldest)
    oldest = oldest + 1
  end
  redis.call('HSET', state, 'oldest', oldest)
  redis.call('HINCRBY', state, 'version', 1)
end
return run
"""


def is_redis_url(path: object) -> bool:
    """True if `cache=` names a server, not a file."""
    return isinstance(path, str) and path.startswith(("redis://", "rediss://", "valkey://", "valkeys://"))


class TreeServer(Rows):
    """Reader and writer of the rows on a server, with the methods of `TreeFile`.

    Raises CacheError for a URL without a name of the rows, for `durable`, which a server cannot guarantee, and if the
    redis package is missing. Above `max_bytes` the oldest runs go.
    """

    def __init__(self, url: str, *, durable: bool = False, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        found = _URL.fullmatch(url)
        if found is None:
            raise CacheError(f"{url} names no rows on a server", hint="such as redis://localhost:6379/name")
        if durable:
            raise CacheError(f"{url} cannot be durable: a server may lose acknowledged data", hint="name a file")
        self._connection = RedisConnection(found[1], _TIMEOUT_SECONDS)
        self.notices: list[str] = self._connection.notices
        self._prefix = f"lmql_lite:{{{found[2]}}}:"
        self._name, self._max_bytes = found[2], max_bytes
        self._models: dict[str, tuple[ModelName, int]] = {}
        self._ahead: OrderedDict[str, list[TreeRow]] = OrderedDict()
        """Rows that came with others in this epoch, by the keys of their places."""
        self._version: tuple[object, ...] | None = None
        self._guard = Lock()

    def open(self) -> None:
        """Does nothing: the first command opens the connection."""

    def close(self) -> None:
        self._connection.close()

    def follow(self) -> None:
        """Begins an epoch, in which places are asked for again. Adds a notice if the server does not answer."""
        values, models = self._asked(
            lambda pipeline: (
                pipeline.hmget(f"{self._prefix}state", "generation", "version", "oldest"),
                pipeline.hgetall(f"{self._prefix}model"),
            ),
            2,
        )
        with self._guard:
            self._ahead.clear()
            if values is not None and models is not None:
                self._models = {model.fingerprint: (model, longest) for model, longest in map(_model, models.values())}
                before, self._version = self._version, tuple(values)
                self.begin(is_void=before not in (None, self._version))

    def longest(self, fingerprint: str) -> int:
        known = self._models.get(fingerprint)
        return 1 if known is None else known[1]

    def rows(self, fingerprint: str, places: Sequence[int]) -> list[TreeRow]:
        known = self._models.get(fingerprint)
        if known is None:
            return []
        keys = [_key(fingerprint, place) for place in places]
        with self._guard:
            missing = [key for key in keys if key not in self._ahead]
        if missing:
            (found,) = self._asked(lambda pipeline: pipeline.eval(_FIND, 1, self._prefix, AHEAD, *missing), 1)
            pairs = iter(found or ())
            with self._guard:
                if found is not None:
                    self._ahead.update((key, []) for key in missing)
                for key in pairs:
                    fields = next(pairs)
                    rows = [self._row(known[0], key, *each) for each in zip(fields[::2], fields[1::2], strict=True)]
                    self._ahead[key.decode()] = [row for row in rows if row is not None]
                while len(self._ahead) > KEPT_PLACES:
                    self._ahead.popitem(last=False)
        with self._guard:
            return [row for key in keys for row in self._ahead.get(key, ())]

    def write(self, model: ModelName, batch: Callable[[], RowBatch], *, clock: Callable[[], float] = time.time) -> bool:
        """Writes the rows of a batch. Returns True when the server has them; otherwise there may be a notice."""
        self.follow()
        rows, replaced, longest = batch()
        if not rows and not replaced:
            return True
        known = self._models.get(model.fingerprint)
        longest = max(longest, 1 if known is None else known[1])
        text = json.dumps([model.fingerprint, model.name, model.vocabulary_size, longest])
        gone = [_key(model.fingerprint, place) for place in replaced]
        parts = [
            part
            for row in rows
            for part in (_key(model.fingerprint, row.place), row.question, _packed(model, row, int(clock())))
        ]
        (run,) = self._asked(
            lambda pipeline: pipeline.eval(
                _WRITE,
                1,
                self._prefix,
                self._max_bytes,
                _digest(model.fingerprint),
                text,
                secrets.token_hex(8),
                len(gone),
                *gone,
                *parts,
            ),
            1,
        )
        if run is not None:
            self._models[model.fingerprint] = model, longest
            with self._guard:
                for key in [_key(model.fingerprint, row.place) for row in rows] + gone:
                    self._ahead.pop(key, None)
        return run is not None

    def stored(self) -> Iterator[Stored]:
        models, at = self._asked(
            lambda pipeline: (pipeline.hgetall(f"{self._prefix}model"), pipeline.hgetall(f"{self._prefix}at")), 2
        )
        if models is None or at is None:
            raise CacheError(f"{self._connection.url} does not answer", hint="check that the server is running")
        if not models:
            raise CacheError(
                f"{self._connection.url} has no rows {self._name!r}", hint="a run with this cache creates them"
            )
        names = {digest.decode(): _model(text)[0] for digest, text in models.items()}
        keys = sorted(at, key=lambda key: [int(number) for number in at[key].split()])
        for begin in range(0, len(keys), KEPT_PLACES):
            some = keys[begin : begin + KEPT_PLACES]
            hashes = self._asked(partial(_hashes, [self._prefix.encode() + key for key in some]), len(some))
            for key, fields in zip(some, hashes, strict=True):
                model = names[key.decode().partition(":")[2]]
                for question, value in (fields or {}).items():
                    row = self._row(model, key, question, value)
                    if row is not None:
                        yield model, _ROW.unpack_from(value)[1], row

    def _row(self, model: ModelName, key: bytes, question: bytes, value: bytes) -> TreeRow | None:
        if len(value) >= _ROW.size:
            parent, _, tokens, size, checksum = _ROW.unpack_from(value)
            place, end = int(key.partition(b":")[0], 16), _ROW.size + tokens
            tail = value[_ROW.size : end], value[end:]
            row = TreeRow(place, question, parent, *tail, model.vocabulary_size)
            if len(row.value) == size and row.checksum(model.checksum) == checksum:
                return row
        self._connection.notices.add(f"{self._connection.url} holds damaged rows, which are misses")
        return None

    def _asked(self, command: Callable[[Any], object], count: int) -> list[Any]:
        return self._connection.asked(command, [None] * count)


def _hashes(keys: Sequence[bytes], pipeline: Any) -> None:
    for key in keys:
        pipeline.hgetall(key)


def _digest(fingerprint: str) -> str:
    return hashlib.blake2b(fingerprint.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _key(fingerprint: str, place: int) -> str:
    return f"{place:016x}:{_digest(fingerprint)}"


def _packed(model: ModelName, row: TreeRow, written: int) -> bytes:
    head = _ROW.pack(row.parent, written, len(row.tokens), len(row.value), row.checksum(model.checksum))
    return head + row.tokens + row.value


def _model(text: bytes) -> tuple[ModelName, int]:
    fingerprint, name, vocabulary, longest = json.loads(text)
    return ModelName(fingerprint, name, vocabulary), longest
