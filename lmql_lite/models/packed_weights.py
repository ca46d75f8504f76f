"""Weights of linear layers in oneDNN's order, on processors where multiplying them is then faster.

A step reads each weight once, in either order. Passes of a few rows then take as long as one row, and otherwise two to
four times as long. The functions of torch that do this are its compiler's own, so a probe decides.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LEAST_WEIGHTS = 1 << 19
"""Smaller matrices stay as they are: they gain nothing, and very small ones lose."""
_TOLERANCE = 1e-4
_TRIES = 4


def pack_weights(network: Any) -> int:
    """Packs the large float32 matrices of a network on the processor, and returns how many; 0 where that is not faster.

    A matrix that is not also the embedding exists in the new order only. The network is then good for passes alone.
    """
    import torch

    if network.device.type != "cpu":
        return 0
    linear = [
        (parent, name, module)
        for parent in network.modules()
        for name, module in parent.named_children()
        if type(module) is torch.nn.Linear
        and module.weight.dtype == torch.float32
        and module.weight.numel() >= _LEAST_WEIGHTS
    ]
    if not linear or not _is_faster([module for *_, module in linear]):
        return 0
    with torch.inference_mode():
        for parent, name, module in linear:
            setattr(parent, name, _packed_class()(module))
    return len(linear)


def is_packed(network: Any) -> bool:
    """True if `pack_weights` changed the network."""
    return any(type(module) is _packed_class() for module in network.modules())


@cache
def _packed_class() -> Any:
    import torch

    class PackedLinear(torch.nn.Module):
        def __init__(self, linear: Any) -> None:
            super().__init__()
            self.in_features, self.out_features = linear.in_features, linear.out_features
            self.bias = linear.bias
            self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            packed: Any = torch.ops.mkldnn._linear_pointwise
            flat = rows.reshape(-1, self.in_features)
            out: torch.Tensor = packed(flat, self._weight, self.bias, "none", [], "")
            return out.reshape(*rows.shape[:-1], self.out_features)

    return PackedLinear


def _is_faster(linear: Sequence[Any]) -> bool:
    """True if packed matrices give the results of these, and steps of one row and of eight rows take less time.

    One matrix of each shape is tried, after the others: in a step, too, weights come from memory and from no cache.
    """
    import torch

    times = Counter((layer.in_features, layer.out_features) for layer in linear)
    layers = list({(layer.in_features, layer.out_features): layer for layer in linear}.values())
    try:
        with torch.inference_mode():
            packed = [_packed_class()(layer) for layer in layers]
            rows = [torch.linspace(-1, 1, 8 * layer.in_features).reshape(8, -1) for layer in layers]
            for one, other, some in zip(layers, packed, rows, strict=True):
                if not torch.allclose(other(some), one(some), atol=_TOLERANCE, rtol=_TOLERANCE):
                    return False
            seconds = [
                sum(times[key] * least for key, least in zip(times, _seconds(each, rows), strict=True))
                for each in (packed, layers)
            ]
            return seconds[0] < seconds[1]
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False


def _seconds(layers: Sequence[Callable[[torch.Tensor], torch.Tensor]], rows: Sequence[torch.Tensor]) -> list[float]:
    """Least processor time of a step of one row, and of one of all rows, together, for each layer."""
    seconds = [0.0] * len(layers)
    for count in (1, len(rows[0])):
        least = [float("inf")] * len(layers)
        for _ in range(_TRIES):
            for at, (layer, some) in enumerate(zip(layers, rows, strict=True)):
                begin = time.thread_time()
                layer(some[:count])
                least[at] = min(least[at], time.thread_time() - begin)
        seconds = [sum(each) for each in zip(seconds, least, strict=True)]
    return seconds
