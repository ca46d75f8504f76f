"""beam: of all continuations of all branches the `n` most likely ones go on."""

from __future__ import annotations

from lmql_lite.engine.decode.contest import Contest, Continuation


class BeamSearch(Contest):
    def kept(self, continuations: list[Continuation]) -> list[Continuation]:
        return self.best(continuations, self.width)


DECODING = BeamSearch
