"""beam_sample: beam with drawn continuations."""

from __future__ import annotations

from lmql_lite.engine.decode.beam import BeamSearch

DECODING = BeamSearch.decoded
