"""Policy of a response cache: reading and writing, expiry, and errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmql_lite.errors import CacheError, InputError

_UNITS = {"s": 1, "m": 60, "h": 3600, "D": 86_400, "W": 604_800}


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Policy of a response cache.

    `mode`: `rw` reads and writes, `ro` only reads, `refresh` asks again and replaces, `off` does nothing.
    `expiry`: age from which an answer is asked for again, in seconds or as `"7D"`, `"12h"`, `"30m"`.
    `on_error`: `warn` or `raise` a CacheError if an answer cannot be kept.
    `default_temperature`: temperature of the model for requests that name none. None is 1 for a model that a server
    runs (`openai/...`, or an argument `base_url`), as its API would do, and 0 for others.
    `minus_infinity`: True if a log-likelihood of minus infinity may be kept.

    >>> lq.CachePolicy(mode="ro", expiry="7D").on_error
    'warn'
    """

    mode: Literal["rw", "ro", "refresh", "off"] = "rw"
    expiry: float | str | None = None
    on_error: Literal["warn", "raise"] = "warn"
    default_temperature: float | None = None
    minus_infinity: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("rw", "ro", "refresh", "off"):
            raise InputError(
                f"mode={self.mode!r} is not a mode of a response cache", hint="write rw, ro, refresh or off"
            )
        if self.on_error not in ("warn", "raise"):
            raise InputError(f"on_error={self.on_error!r} is unknown", hint="write warn or raise")
        _ = self.seconds

    @property
    def seconds(self) -> float | None:
        """`expiry` in seconds."""
        given = self.expiry
        if isinstance(given, str):
            try:
                return float(given[:-1]) * _UNITS[given[-1:]]
            except (ValueError, KeyError):
                raise InputError(
                    f"expiry={given!r} is not a time", hint='write seconds, or "7D", "12h", "30m"'
                ) from None
        return given


class CacheNotices:
    """Sentences about failures of a cache, each emitted once: as a warning, or raised with `on_error="raise"`."""

    def __init__(self, log: Path, on_error: str) -> None:
        self._log, self._on_error = log, on_error
        self.sentences: list[str] = []
        self._unsaid: list[str] = []

    def note(self, sentence: str) -> None:
        """Adds a sentence for `speak`."""
        if sentence not in self.sentences:
            self.sentences.append(sentence)
            self._unsaid.append(sentence)

    def note_unkeyed(self, problems: Iterable[str]) -> None:
        """Adds the reasons why requests have no key."""
        for problem in problems:
            self.note(f"{self._log}: requests are sent each time, and not kept: {problem}")

    def note_rejected(self, problem: str) -> None:
        """Adds the reason why an answer must not be served again."""
        self.note(f"{self._log}: an answer is not kept, and is asked for again: {problem}")

    def speak(self, failed: BaseException | None = None) -> None:
        """Emits new sentences as warnings, once the answers are safe. Raises CacheError for a failure if the policy
        does."""
        if failed is not None:
            reason = failed.strerror if isinstance(failed, OSError) and failed.strerror else str(failed)
            sentence = f"{self._log}: an answer could not be kept ({reason})"
            if isinstance(failed, CacheError):
                sentence = failed.message
            self.note(sentence)
            if self._on_error == "raise":
                raise CacheError(sentence) from failed
        unsaid, self._unsaid = self._unsaid, []
        for each in unsaid:
            warnings.warn(each, RuntimeWarning, stacklevel=3)
