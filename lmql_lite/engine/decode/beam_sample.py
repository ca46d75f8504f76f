"""beam_sample: beam, with continuations that are drawn."""

from __future__ import annotations

from lmql_lite.engine.decode.beam import BeamSearch

DECODING = BeamSearch
