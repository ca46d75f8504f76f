"""Names under which a network of transformers takes its cache and returns it: they changed with version 5.24."""

from __future__ import annotations

import inspect
from typing import Any

NAMES = ("cache", "cache_params", "past_key_values")
"""Of 5.24 and newer; of state-space models before; of attention before."""


def cache_parameter(network: Any) -> str:
    """Parameter of the network's forward pass that takes the cache."""
    parameters = inspect.signature(network.forward).parameters
    return next((name for name in NAMES if name in parameters), "past_key_values")


def cache_of(output: Any) -> Any:
    """Cache in the output of a forward pass; None if there is none."""
    if hasattr(output, "cache"):  # 5.24 warns of the other names
        return output.cache
    return next((found for name in NAMES if (found := getattr(output, name, None)) is not None), None)
