"""Context length of a model in Hugging Face format, from its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmql_lite.cache.kv.rotation import original_length, rope_parameters, rope_type

_UNLIMITED = 1 << 20
"""Context length of a model whose config names none: state-space models, for example, have no limit."""
_LENGTHS = (
    "max_position_embeddings",
    "max_target_positions",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)
"""Fields of a config that give a model's context length, in the order in which they are read."""


def context_length(config: Any) -> int:
    """Length of the longest text that a model reads, from its config.

    Configs give the length before its rotation was scaled, or after. With yarn, the length before is a parameter of its
    own; llama3 and longrope are given with the length after; linear and dynamic with the length before, unless only
    some layers are scaled, as in Gemma 3.
    """
    text = config.get_text_config()
    stated = (getattr(text, field, None) for field in _LENGTHS)
    length = next((each for each in stated if isinstance(each, int) and each > 0), _UNLIMITED)
    scaled = [_scaled_length(text, part) for part in rope_parameters(text)]
    return length if length == _UNLIMITED else max(length, min(scaled, default=0))


def _scaled_length(config: Any, part: Mapping[str, Any]) -> int:
    """Length of the longest text for which a rotation was scaled; 0 where its parameters do not say it."""
    factor, length = part.get("factor"), original_length(config, part)
    if rope_type(part) not in ("linear", "dynamic", "yarn") or not factor or not length:
        return 0
    return int(factor * length)
