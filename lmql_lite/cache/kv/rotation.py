"""Rotation of a network's keys, where it depends on the length of a text.

Most rotations turn a key by its place alone. LongRoPE has one set of frequencies for texts up to a border and another
one beyond it. Dynamic NTK has a set of frequencies for each length beyond the border. Keys of one set are wrong in a
text of another set, so lengths are divided into bands, and keys and values are reused within a band only.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lmql_lite.cache.kv.layout import Unsupported

if TYPE_CHECKING:
    import torch

_STEPPED = ("longrope", "su")
"""Types of rotation with two sets of frequencies; the second name is an older one."""
_PROBED = 4
"""Tokens at the beginning of a text whose angles are compared."""


def rope_parameters(config: Any) -> list[Mapping[str, Any]]:
    """Parameters of the rotation of each kind of layer, from the config of a text model. Empty for a model without
    rotation."""
    found = getattr(config, "rope_parameters", None) or {}
    nested = [each for each in found.values() if isinstance(each, Mapping)]
    return nested or ([found] if found else [])


def rope_type(part: Mapping[str, Any]) -> str:
    """Type of a rotation: `default`, `linear`, `yarn` ..."""
    return str(part.get("rope_type") or part.get("type") or "default")


def original_length(config: Any, part: Mapping[str, Any]) -> int | None:
    """Length of the texts that the model was first trained on, before its rotation was scaled."""
    known = (getattr(config, "original_max_position_embeddings", None), part.get("original_max_position_embeddings"))
    return next((int(each) for each in (*known, getattr(config, "max_position_embeddings", None)) if each), None)


class Rotation:
    """Bands of lengths in which keys of one network can be reused.

    A band is a number: 0 for texts up to the first border, else the length of some text in it. Raises Unsupported for a
    network whose rotation changes at other lengths than its config says.
    """

    def __init__(self, network: Any) -> None:
        config = network.config.get_text_config()
        self._borders: list[int] = []
        self._varies_from: int | None = None
        for part in rope_parameters(config):
            kind = rope_type(part)
            if kind in _STEPPED and (border := original_length(config, part)):
                self._borders.append(border)
            elif "dynamic" in kind and (border := getattr(config, "max_position_embeddings", None)):
                self._varies_from = min(int(border), self._varies_from or int(border))
        self._modules = list(_rotations(network))
        self._require_known(getattr(config, "max_position_embeddings", None))

    @property
    def changes(self) -> bool:
        """True if the rotation depends on the length of a text at all."""
        return bool(self._borders) or self._varies_from is not None

    def band(self, length: int) -> int:
        """Band of a text of `length` tokens."""
        if self.is_single(length):
            return length
        return max((border + 1 for border in self._borders if border < length), default=0)

    def is_single(self, length: int) -> bool:
        """True if a text of this length shares its band with texts of the same length only."""
        return self._varies_from is not None and length > self._varies_from

    def reset(self) -> None:
        """Makes the network forget the longest text that it has seen, which some rotations go by."""
        if self._varies_from is not None:
            for module, kinds in self._modules:
                _angles(module, kinds, 1)

    def _require_known(self, stated: object) -> None:
        """Compares the angles of the first places in texts of several lengths."""
        borders = {*self._borders, *([] if self._varies_from is None else [self._varies_from])}
        if self._varies_from is not None and not self._modules:
            raise Unsupported("its rotation depends on the length of the text, and cannot be asked for its angles")
        most = {stated} if isinstance(stated, int) else set[int]()
        lengths = {length for each in borders | most for length in (each, each + 1, 2 * each) if length > _PROBED}
        for module, kinds in self._modules:
            _angles(module, kinds, 1)
            usual = _angles(module, kinds, _PROBED)
            for length in sorted(lengths):
                found = _angles(module, kinds, length)
                _angles(module, kinds, 1)
                if self.band(length) == self.band(_PROBED) and not _are_equal(found, usual):
                    raise Unsupported("its rotation depends on the length of the text, which its config does not say")


def _rotations(network: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Modules that compute angles from places, and the kinds of layers that each has angles for."""
    for module in network.modules():
        takes = inspect.signature(module.forward).parameters if "Rotary" in type(module).__name__ else {}
        if "position_ids" not in takes:
            continue
        named = getattr(module, "rope_type", None)
        kinds = tuple(named) if isinstance(named, Mapping) and "layer_type" in takes else ()
        try:
            _angles(module, kinds, 1)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            continue  # it takes something else than places
        yield module, kinds


def _angles(module: Any, kinds: tuple[str, ...], length: int) -> list[torch.Tensor]:
    """Angles of the first places in a text of `length` tokens."""
    import torch

    device = next((each.device for each in (*module.buffers(), *module.parameters())), torch.device("cpu"))
    places = torch.tensor([[*range(min(length, _PROBED)), length - 1]], device=device)
    found = list[torch.Tensor]()
    with torch.inference_mode():
        dummy = torch.zeros(1, 1, 1, device=device)
        for angles in [module(dummy, places, kind) for kind in kinds] or [module(dummy, places)]:
            parts = angles if isinstance(angles, tuple) else (angles,)
            found += [part[..., : min(length, _PROBED), :] for part in parts]
    return found


def _are_equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    import torch

    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
