"""Redis tier: entries on a Redis or Valkey server, shared by machines.

An entry is a string in its envelope. For the entries of a name, a sorted set has the times of last use, and a hash the
sizes and their sum, from which a script on the server enforces the limit; it never reads them all. A group of entries
is a sorted set of its own. All keys have the hash tag `{name}`, so that a cluster keeps them in one slot. The server
may lose any of them at any time.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from lmql_lite.errors import CacheError
from lmql_lite.store.tier import (
    MAX_GROUP,
    Buffer,
    CorruptEntry,
    Notices,
    Store,
    TierCounts,
    envelope_size,
    seal,
    unseal,
)

_FIRST_PAUSE, _MAX_PAUSE = 0.5, 30.0


class RedisConnection:
    """Connection that answers, or reports that it cannot. Threads may share it.

    `url` is `redis://host:port`, `rediss://...`, `valkey://...` or `unix://path`. `timeout`, in seconds, applies to
    connecting and to each piece of an answer. Raises CacheError for an invalid URL, and if the redis package is
    missing. A server that does not answer is not an error.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url
        self.notices = Notices()
        self.errors = 0
        self._silent_until, self._pause = 0.0, _FIRST_PAUSE
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise CacheError(f"{url} needs the redis package", hint="pip install 'lmql-lite[redis]'") from error
        try:
            self._client: Any = redis.Redis.from_url(
                url.replace("valkey", "redis", 1) if url.startswith("valkey") else url,
                socket_timeout=timeout,
                socket_connect_timeout=timeout,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise CacheError(f"{url} is not a URL of a Redis server", hint="such as redis://localhost:6379") from error
        weakref.finalize(self, self._client.close).atexit = False  # the package leaves some sockets to the collector
        self._refusal: type[Exception] = redis.ResponseError
        self._failures = (redis.RedisError, OSError)

    def asked(self, command: Callable[[Any], object], otherwise: list[Any]) -> list[Any]:
        """Answers to the commands that `command` adds to a pipeline, in one round trip.

        Returns `otherwise` if the server fails or refuses one of them, and while the breaker is open.
        """
        if time.monotonic() < self._silent_until:
            return otherwise
        try:
            pipeline = self._client.pipeline(transaction=False)
            command(pipeline)
            answers: list[Any] = pipeline.execute()
        except self._failures as error:
            self.errors += 1
            if isinstance(error, self._refusal):  # an answer: the memory is full, or a key belongs to another program
                self.notices.add(f"{self.url} refuses a command ({error})")
                return otherwise
            self._silent_until = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _MAX_PAUSE)
            self.notices.add(f"{self.url} does not answer ({error}); its entries are misses until it does")
            return otherwise
        self._pause = _FIRST_PAUSE
        return answers

    def close(self) -> None:
        """Closes all sockets. A second call does nothing."""
        self._client.close()


_PIECE_BYTES = 1 << 18
"""Size of the pieces in which a value is sent. The time-out applies to each piece, not to the whole value."""
_USED = ":used"
"""Field of the hash of sizes with their sum."""
_GROUPS = """
local function group_of(key) return string.match(key, '^.*@after%%(.*)$') end
local function remove(key)
  local size = tonumber(redis.call('HGET', KEYS[2], key) or '0')
  redis.call('HDEL', KEYS[2], key)
  redis.call('ZREM', KEYS[1], key)
  if group_of(key) then redis.call('ZREM', base .. 'group:' .. group_of(key), key) end
  return redis.call('DEL', base .. 'entry:' .. key), size
end
"""
_PUT = (
    "local base, name, size, cap, now = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]\n"
    + _GROUPS
    + f"local total = '{_USED}'"
    + """
local used, evicted, kept = redis.call('HGET', KEYS[2], total), 0, 0
if not used then
  used = 0
  for _, each in ipairs(redis.call('HVALS', KEYS[2])) do used = used + tonumber(each) end
end
used = used - tonumber(redis.call('HGET', KEYS[2], name) or '0') + size
while used > cap do
  local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(inf', 'LIMIT', kept, 1)[1]
  if not old then break end
  if old == name then kept = 1 else
    local _, freed = remove(old)
    used, evicted = used - freed, evicted + 1
  end
end
local fits = used <= cap
if fits then
  redis.call('SET', KEYS[3], table.concat(ARGV, '', 6))
  redis.call('ZADD', KEYS[1], 'GT', now, name)
  redis.call('HSET', KEYS[2], name, size)
  if group_of(name) then redis.call('ZADD', base .. 'group:' .. group_of(name), now, name) end
else
  used = used - size + tonumber(redis.call('HGET', KEYS[2], name) or '0')
end
redis.call('HSET', KEYS[2], total, used)
return fits and evicted or -1
"""
)
_DELETE = (
    "local base, name = ARGV[1], ARGV[2]\n"
    + _GROUPS
    + f"local total = '{_USED}'"
    + """
local removed, size = remove(name)
if size > 0 and redis.call('HEXISTS', KEYS[2], total) == 1 then redis.call('HINCRBY', KEYS[2], total, -size) end
return removed
"""
)


class RedisTier(Store):
    """Entries on the server at `url`, at most `most_bytes` under the name `namespace`, from all writers.

    `url` and `timeout` are those of `RedisConnection`, which raises CacheError for a wrong URL. A server that does not
    answer is a tier without entries.

        tier = RedisTier("redis://localhost:6379", "kv", 2**30)
    """

    def __init__(self, url: str, namespace: str, most_bytes: int, timeout: float = 0.25) -> None:
        self._connection = RedisConnection(url, timeout)
        self.name, self.counts, self.notices = "redis", TierCounts(), self._connection.notices
        self._url, self._most = url, most_bytes
        base = f"lmql_lite:{{{namespace}}}:"
        self._base, self._order, self._sizes, self._entry = base, base + "order", base + "sizes", base + "entry:"

    def get(self, keys: Sequence[str]) -> list[Buffer | None]:
        def command(pipeline: Any) -> None:
            pipeline.mget([self._entry + key for key in keys])
            self._touched(pipeline, keys)

        found = self._asked(command, [[None] * len(keys)])[0] if keys else []
        values = [self._unsealed(key, data) for key, data in zip(keys, found, strict=True)]
        self.counts.add_read(values)
        return values

    def head(self, keys: Sequence[str], size: int) -> list[Buffer | None]:
        def command(pipeline: Any) -> None:
            for key in keys:
                pipeline.getrange(self._entry + key, envelope_size(key), envelope_size(key) + size - 1)

        return [data or None for data in self._asked(command, [None] * len(keys))]

    def contains(self, keys: Sequence[str]) -> list[bool]:
        def command(pipeline: Any) -> None:
            for key in keys:
                pipeline.exists(self._entry + key)

        return [bool(count) for count in self._asked(command, [0] * len(keys))]

    def put(self, key: str, value: Buffer) -> bool:
        view = memoryview(value)
        pieces = [view[at : at + _PIECE_BYTES] for at in range(0, len(value), _PIECE_BYTES)]
        names = (self._order, self._sizes, self._entry + key)
        fixed = (self._base, key, len(value), self._most, time.time_ns() // 1000, seal(key, value))
        if len(value) <= self._most:
            (evicted,) = self._asked(lambda pipeline: pipeline.eval(_PUT, 3, *names, *fixed, *pieces), [None])
        else:
            evicted = -1
        if evicted == -1:
            self.notices.add(f"{self._url}: an entry of {len(value)} bytes was not kept: the cap is {self._most} bytes")
        if evicted is None or evicted == -1:
            return False
        self.counts.evictions += evicted
        self.counts.written_bytes += len(value)
        return True

    def touch(self, keys: Sequence[str]) -> None:
        self._asked(lambda pipeline: self._touched(pipeline, keys), [])

    def delete(self, key: str) -> bool:
        names = (self._order, self._sizes, self._entry + key)
        return bool(self._asked(lambda pipeline: pipeline.eval(_DELETE, 3, *names, self._base, key), [0])[0])

    def pin(self, key: str, pinned: bool) -> bool:
        def command(pipeline: Any) -> None:
            pipeline.exists(self._entry + key)
            pipeline.zadd(self._order, {key: "inf" if pinned else time.time_ns() // 1000}, xx=True)

        return bool(self._asked(command, [0])[0])

    def sizes(self) -> dict[str, int]:
        found = self._asked(lambda pipeline: pipeline.hgetall(self._sizes), [{}])[0]
        return {key.decode(): int(size) for key, size in found.items() if key.decode() != _USED}

    def group(self, name: str) -> list[str]:
        place = f"{self._base}group:{name}"
        found = self._asked(lambda pipeline: pipeline.zrange(place, -MAX_GROUP, -1), [[]])[0]
        return [key.decode() for key in found]

    def close(self) -> None:
        self._connection.close()

    def _touched(self, pipeline: Any, keys: Sequence[str]) -> None:
        now = time.time_ns() // 1000
        if keys:
            pipeline.zadd(self._order, {key: now - place for place, key in enumerate(keys)}, xx=True, gt=True)

    def _unsealed(self, key: str, data: bytes | None) -> Buffer | None:
        """Value of an entry. A damaged or foreign entry is removed."""
        try:
            return None if data is None else unseal(key, data)
        except CorruptEntry as error:
            self.counts.corrupt += 1
            self.notices.add(f"{self._url}: the entry {key} is damaged ({error}) and was removed")
            self.delete(key)
            return None

    def _asked(self, command: Callable[[Any], object], otherwise: list[Any]) -> list[Any]:
        answers = self._connection.asked(command, otherwise)
        self.counts.errors = self._connection.errors
        return answers
