"""beam: keeps the `n` most likely continuations of all branches."""

from __future__ import annotations

from lmql_lite.engine.decode.contest import Contest, Continuation


class BeamSearch(Contest):
    def kept(self, continuations: list[Continuation]) -> list[Continuation]:
        return self.best(continuations, self.width)


DECODING = BeamSearch
