"""Connection to a Redis or Valkey server that may refuse, hang or be gone: one round trip at a time, or none.

After a failure a circuit breaker sends nothing for half a second, and for twice as long after each further failure, at
most 30 seconds. The redis package's own retries are off, because they turn a time-out of 0.2 seconds into seven.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

from lmql_lite.errors import CacheError
from lmql_lite.store.contract import Notices

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


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
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self.notices.add(f"{self.url} does not answer ({error}); its entries are misses until it does")
            return otherwise
        self._pause = _FIRST_PAUSE
        return answers

    def close(self) -> None:
        """Closes all sockets. A second call does nothing."""
        self._client.close()
