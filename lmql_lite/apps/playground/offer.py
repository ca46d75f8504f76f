"""The models that the playground was started with: no run has others."""

from __future__ import annotations

from collections.abc import Mapping

from lmql_lite.apps.playground.memory import unlimited
from lmql_lite.errors import ModelError, did_you_mean
from lmql_lite.models.base import Model
from lmql_lite.models.registry import Access, load
from lmql_lite.runtime.session import Session


class Offered(Session):
    """Loads them by their ids. What a model takes is not counted as memory of the run."""

    def __init__(self, models: Mapping[str, Access], first: str, memory_bytes: int) -> None:
        super().__init__(first)
        self.memory_bytes = memory_bytes
        self._offered = models
        self._first = first
        self._ready: dict[str, Model] = {}

    def model(self, model: str | Model | None) -> Model:
        """Raises ModelError for a name that is not offered."""
        wanted = self._first if model is None else model
        if not isinstance(wanted, str):
            return wanted
        if wanted not in self._offered:
            hint = did_you_mean(wanted, self._offered) or f"start it with --model {wanted}"
            raise ModelError(f"this playground was started without the model {wanted!r}", hint=hint)
        if wanted not in self._ready:
            with unlimited(self.memory_bytes):
                self._ready[wanted] = load(wanted, **self._offered[wanted])
        return self._ready[wanted]
