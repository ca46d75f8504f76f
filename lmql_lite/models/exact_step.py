"""Step of exact passes: the multiple of which a pass has rows, so that the bits of each depend on no other row (S5).

Libraries take other ways through a product of few rows than through one of many, and the ways differ by processor. So
each kind of layer is asked about: the fewer rows a pass is filled up to, the less it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd
from typing import TYPE_CHECKING, Any

from lmql_lite.models.kv_rows import PAGE

if TYPE_CHECKING:
    import torch

MOST_ROWS = 16
"""Step where fewer rows are not known to do. From so many on, all products take one way on the processors tried."""
_FEWER = (1, 4, 8)
_COUNTS = (1, 2, 3, 4, 5, 8, 13)
"""Multiples of a step that are compared with a product of many rows."""
_ROWS = 64
_MOST_WORK = 1 << 31
"""Products of rows and weights of a layer in the largest of these comparisons."""
_VECTOR = 64
"""Elements after which no vector of a processor is half full: what is left over takes another way."""


def exact_step(network: Any) -> int:
    """Multiple of which an exact pass over the network has rows, padding included."""
    import torch

    layers = _layers(network)
    least = 1
    if network.dtype.itemsize > 2:  # half precisions are summed in float32, row by row
        with torch.inference_mode():
            products = [*((layer, _rows(width, network)) for layer, width, _ in layers), *_sums_of_attention(network)]
            least = next((few for few in _FEWER if all(_is_alone(*each, few) for each in products)), MOST_ROWS)
    elif any(type(layer).__name__ == "Conv1D" for layer, *_ in layers):
        least = MOST_ROWS
    outputs = (size for _, _, size in layers if size != network.config.get_text_config().vocab_size)
    return max(least, *(_VECTOR // gcd(_VECTOR, size) for size in (_head_size(network), *outputs)))


def _layers(network: Any) -> list[tuple[Any, int, int]]:
    """One layer of each shape, with the sizes of its input and of its output."""
    import torch

    found = dict[tuple[str, int, int], Any]()
    for module in network.modules():
        if type(module).__name__ == "Conv1D":  # weights of GPT-2, the other way round
            sizes = tuple(module.weight.shape)
        elif type(module) is torch.nn.Linear or type(module).__name__ == "PackedLinear":
            sizes = (module.in_features, module.out_features)
        else:
            continue
        found.setdefault((type(module).__name__, *sizes), module)
    return [(layer, width, size) for (_, width, size), layer in found.items()]


def _rows(width: int, network: Any) -> torch.Tensor:
    return _numbers((_ROWS, width), network)


def _numbers(shape: tuple[int, ...], network: Any) -> torch.Tensor:
    """Numbers of both signs and many sizes, the same every time."""
    import torch

    count = torch.Size(shape).numel()
    numbers = torch.sin(torch.arange(count, dtype=torch.float64) ** 1.5).to(network.dtype)
    return numbers.reshape(shape).to(network.device)


def _sums_of_attention(network: Any) -> Iterator[tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]]:
    """The two products of attention over a page, as functions of rows, and rows."""
    import torch

    size = _head_size(network)
    for width, out in ((size, PAGE), (PAGE, size)):
        page = _numbers((2, out, width), network).transpose(1, 2)
        page = page if out == PAGE else page.contiguous()  # keys lie the other way round

        def product(rows: torch.Tensor, page: torch.Tensor = page) -> torch.Tensor:
            return torch.matmul(torch.stack((rows, rows)), page)[0]

        yield product, _rows(width, network)


def _is_alone(layer: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, few: int) -> bool:
    """True if rows of products of few rows have the bits that they have among many, wherever they stand."""
    import torch

    most = max(min(_ROWS, _MOST_WORK // (rows.shape[1] * layer(rows[:1]).shape[1])), 2 * few)
    rows = rows[:most]
    whole = layer(rows)
    counts = [few * count for count in _COUNTS if few * count < most]
    return all(torch.equal(layer(rows[-count:]), whole[-count:]) for count in counts)


def _head_size(network: Any) -> int:
    config = network.config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
