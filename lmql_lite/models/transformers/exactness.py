"""Probe of a network: whether it can be fed rows, whether its scores then equal those of its own pass, and how much
they depend on what else is in a pass (S5).

Libraries take other ways through a product of few rows than through one of many, and the ways differ by processor. So
an exact pass is filled up to a multiple of rows, its step. The probe takes the first of a few steps with which a text
has the same bits however it is fed: the fewer rows a pass is filled up to, the less it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import accumulate
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from lmql_lite.cache.kv.layout import cache_of
from lmql_lite.models.live import ScoreJob
from lmql_lite.models.model_files import remembered
from lmql_lite.models.transformers.passes import PAGE
from lmql_lite.models.transformers.rows import CacheKind, PackedRows, SingleRows, is_whole

if TYPE_CHECKING:
    import torch

STEPS = (1, 4, 8, 16)
"""Steps that are tried. From 16 rows on, all products take one way on the processors tried."""
_VECTOR = 64
"""Elements after which no vector of a processor is half full: what is left over takes another way."""
_PROBE = 4
"""Number of this probe: findings of other ones are not used."""
_ATTENTION = {"full_attention", "sliding_attention"}
_TOLERANCE, _COARSE = 1e-3, 0.5
"""Largest difference from the network's own pass, of log-probabilities of the best tokens: of float32, and of half
precision."""
PIECES = (1, 4, 2)
"""Numbers of tokens in which a text is fed to a model that is not exact. Most noise is that of the first tokens, so a
longer text costs time alone."""
_MIN_NOISE = 16
"""Units in the last place of a number that scores of passes which are not exact may differ by at least."""
NEAREST = 32
"""Number of the best tokens whose scores are compared."""


class Facts(NamedTuple):
    """Findings of a probe. `width` is the number of scores per place. `is_fed_rows` is False where passes of rows do
    not give the network's own scores, and `kind` is then that of its cache. `step` is that of exact passes, 0 for
    others. `noise` is the largest difference between passes in nats, 0 where all bits are equal."""

    width: int
    is_fed_rows: bool
    kind: CacheKind
    step: int
    noise: float


def facts_of(network: Any, identity: str, *, exact: bool) -> Facts:
    """Facts of a network, with an exact step if it is wanted and can be had. `identity` is that of the model, for which
    they are remembered."""
    key = f"{_PROBE} {identity} {kernel(network, exact=exact)}"
    return Facts(**remembered(key, lambda: _probed(network, exact)._asdict()))


def kernel(network: Any, *, exact: bool) -> str:
    """Everything that the last bits of scores, keys and values depend on beside the model: libraries, processor,
    precision, and how sums are made."""
    import torch

    device = network.device
    unit = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    way = "exact" if exact else "fast"
    return f"torch {version('torch')} transformers {version('transformers')} {device.type} {unit} {network.dtype} {way}"


def _probed(network: Any, exact: bool) -> Facts:
    import torch

    config = network.config.get_text_config()
    most = int(getattr(config, "max_position_embeddings", None) or 1 << 20)
    with torch.inference_mode():
        tokens = torch.tensor([_text(PIECES, most, config)], device=network.device)
        own = network(input_ids=tokens, use_cache=False).logits[0]
        width = int(own.shape[-1])
        if not _may_take_rows(network):
            return _of_single(network, width, most)
        try:
            noise = _noise(PackedRows(network, 1 << 30), PIECES, most, config, own)
        except Exception:  # of any class: the model's own code says no
            return _of_single(network, width, most)
        if noise is None:
            return _of_single(network, width, most)
        noise = max(noise, _MIN_NOISE * torch.finfo(network.dtype).eps)  # equal bits of a short text prove nothing
        for step in _steps(network) if exact else ():
            left = _noise(PackedRows(network, 1 << 30, step=step), _pieces(step), most, config)
            if not left:
                return Facts(width, True, "none", step, 0.0)
            noise = max(noise, left)
        return Facts(width, True, "none", 0, noise)


def _of_single(network: Any, width: int, most: int) -> Facts:
    """Facts of a network that is fed one sequence after the other. A state is kept where a text that goes on from it
    has the scores of one that was read anew, behind a token and behind more than a convolution reads back."""
    import torch

    config = network.config.get_text_config()
    past = cache_of(network(input_ids=torch.tensor([_text((2,), most, config)], device=network.device), use_cache=True))
    if is_whole(past, 2):
        return Facts(width, False, "cache", 0, _noise(SingleRows(network, "cache"), PIECES, most, config) or 0.0)
    if past is None or isinstance(past, tuple):
        return Facts(width, False, "none", 0, 0.0)
    try:
        found = [_noise(SingleRows(network, "state"), pieces, most, config) or 0.0 for pieces in (PIECES, (5, 1, 3))]
    except Exception:  # of any class: the model's own code says no
        return Facts(width, False, "none", 0, 0.0)
    is_kept = max(found) <= (_TOLERANCE if network.dtype.itemsize > 2 else _COARSE)
    return Facts(width, False, "state", 0, max(found)) if is_kept else Facts(width, False, "none", 0, 0.0)


def _may_take_rows(network: Any) -> bool:
    """True if the library says that the network's attention can be replaced, and it is of kinds that passes know."""
    config = network.config.get_text_config()
    is_known = set(getattr(config, "layer_types", None) or _ATTENTION) <= _ATTENTION
    is_chunked = bool(getattr(config, "attention_chunk_size", None))
    return is_known and not is_chunked and bool(getattr(network, "_supports_attention_backend", False))


def _text(pieces: Sequence[int], most: int, config: Any) -> tuple[int, ...]:
    """Tokens for pieces of a text, as many as the model reads."""
    count = min(sum(pieces), most)
    return tuple((7 * place * place + 3 * place) % config.vocab_size for place in range(count))


def _noise(
    rows: PackedRows | SingleRows, pieces: Sequence[int], most: int, config: Any, own: torch.Tensor | None = None
) -> float | None:
    """Largest difference between a text fed at once and in pieces, alone and beside others, of the log-probabilities of
    the best tokens; 0 where all bits are equal. None where the text has other scores than `own`."""
    ids = _text(pieces, most, config)
    ends = [end for end in accumulate(pieces) if end <= len(ids)]
    wanted = [tuple(range(max(end - count, end - 16) + 1, end + 1)) for count, end in zip(pieces, ends, strict=False)]
    once = dict[int, Any]()
    if isinstance(rows, SingleRows):  # these go on token by token behind the first place that is asked for
        wanted = [places[-1:] for places in wanted]
        jobs = [ScoreJob(ids[: places[0]], places) for places in wanted]
    else:
        jobs = [ScoreJob(ids[: ends[-1]], tuple(place for places in wanted for place in places))]
    for job in jobs:
        rows.run([job])
        rows.forget()
        once |= job.rows
    if own is not None:
        limit = _TOLERANCE if own.dtype.itemsize > 2 else _COARSE
        if any(_distance(own[end - 1], logits) > limit for end, logits in once.items()):
            return None
    largest = 0.0
    for number, places in enumerate(wanted):
        job = ScoreJob(ids[: places[-1]], places)
        other = ScoreJob((*ids[:2], *ids[: 3 + number]), (5 + number,))
        rows.run([job, other] if number % 2 else [job])
        largest = max(largest, *(_distance(once[end], job.rows[end]) for end in places))
    return largest


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference of the log-probabilities of the best tokens."""
    import torch

    one, other = (torch.log_softmax(each.float(), -1) for each in (one, other))
    best = one.topk(min(NEAREST, one.shape[-1])).indices
    return float((one[best] - other[best]).abs().max())


def _steps(network: Any) -> list[int]:
    """Steps to try, at which no vector of activations is left half full: that of the last few elements is not seen in
    every text."""
    import torch

    config = network.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = [layer for layer in network.modules() if not isinstance(layer, torch.nn.Embedding)]
    weights = [weight for layer in layers for weight in layer.parameters(recurse=False) if weight.ndim > 1]
    sizes = {int(size), *(size for weight in weights for size in weight.shape[-2:])} - {config.vocab_size}
    least = max(_VECTOR // gcd(_VECTOR, size) for size in sizes)
    return list(dict.fromkeys(max(step, least) for step in STEPS))


def _pieces(step: int) -> tuple[int, ...]:
    """Numbers of tokens in which a text is fed to a model that may be exact: many multiples of a step, before and after
    the border of a page."""
    return (1, step + 1, 2 * step + 1, 4 * step + 1, PAGE, 3 * step + 1, 1, 7 * step + 1, 12 * step + 1)
