"""Probes of a network: whether it can be fed rows, whether its scores then equal those of its own pass, and how much
they depend on what else is in a pass (S5)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from lmql_lite.models.exact_step import exact_step
from lmql_lite.models.model_files import home
from lmql_lite.models.packed_rows import PackedRows, ScoreJob
from lmql_lite.models.packed_weights import is_packed
from lmql_lite.models.single_rows import SingleRows
from lmql_lite.store.atomic_file import replace_file

if TYPE_CHECKING:
    import torch

_TEXT = 12
_TOLERANCE = {"float32": 1e-3, "float64": 1e-3}
_COARSE = 0.5
"""Largest difference of log-probabilities among the best tokens, by precision; of half precisions the last."""
_BEST = 16
PIECES = (1, 4, 16, 256, 1, 4, 16)
"""Numbers of tokens in which a text is fed: the later ones stand behind the border of a page."""
_FEW_PIECES = PIECES[:3]
NEAREST = 32
"""Number of the best tokens whose scores are compared."""
_LONG = 1.0
"""Seconds from which on the result of a probe is remembered."""
_ATTENTION = {"full_attention", "sliding_attention"}


def can_pack(network: Any) -> tuple[int, bool]:
    """Number of scores per place, and whether passes of rows give the scores of the network's own pass."""
    import torch

    config = network.config.get_text_config()
    ids = tuple(number % 17 + 1 for number in range(_TEXT))
    ids = tuple(number % config.vocab_size for number in ids)
    with torch.inference_mode():
        own = network(input_ids=torch.tensor([ids], device=network.device), use_cache=False).logits[0]
        own = torch.log_softmax(own.float(), -1)
        width = int(own.shape[-1])
        if not set(getattr(config, "layer_types", None) or _ATTENTION) <= _ATTENTION:
            return width, False
        if getattr(config, "attention_chunk_size", None) or not _has_interface(network):
            return width, False
        try:
            return width, _agrees(network, ids, own)
        except Exception:  # of any class: the model's own code says no
            return width, False


def _has_interface(network: Any) -> bool:
    """True if the library says that the network's attention can be replaced."""
    return bool(getattr(network, "_supports_attention_backend", False))


def _agrees(network: Any, ids: tuple[int, ...], own: torch.Tensor) -> bool:
    """Compares one shot, a piece behind another, single steps and two rows with one beginning."""
    rows = PackedRows(network, 1 << 30)
    ends = tuple(range(1, _TEXT + 1))
    other = (*ids[:5], *ids[:3])
    for jobs in (
        [ScoreJob(ids[:4], ends[:4])],
        [ScoreJob(ids[:9], ends[4:9]), ScoreJob(other, (8,))],
        [ScoreJob(ids[:10], (10,))],
        [ScoreJob(ids, (11, 12))],
    ):
        rows.run(jobs)
        if not all(_is_near(logits, own[end - 1], network) for end, logits in jobs[0].rows.items()):
            return False
    return rows.fed == _TEXT + 3


def _is_near(logits: torch.Tensor, own: torch.Tensor, network: Any) -> bool:
    import torch

    scores = torch.log_softmax(logits.float(), -1)
    best = own.topk(min(_BEST, own.shape[-1])).indices
    most = _TOLERANCE.get(str(network.dtype).removeprefix("torch."), _COARSE)
    return bool((scores[best] - own[best]).abs().max() <= most)


def kernel(network: Any, *, exact: bool) -> str:
    """Everything that the last bits of scores, keys and values depend on beside the model: libraries, processor,
    precision, and how sums are made."""
    import torch

    device = network.device
    unit = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    way = ("exact" if exact else "fast") + " packed" * is_packed(network)
    return f"torch {version('torch')} transformers {version('transformers')} {device.type} {unit} {network.dtype} {way}"


def noise(rows: PackedRows | SingleRows, network: Any, identity: str) -> float:
    """Largest difference between a text fed at once and in pieces, of the log-probabilities of the best tokens; 0 where
    all bits are equal. `identity` is that of the model: what took long is remembered for it, in the folder `home()`.
    """
    step = rows.step if isinstance(rows, PackedRows) else 0
    key = f"{identity} {kernel(network, exact=bool(step))} {type(rows).__name__} {step}"
    return remembered(key, lambda: _measured(rows, network.config.get_text_config()))


def remembered(key: str, measured: Callable[[], float]) -> float:
    """Figure of a probe, from the folder `home()` if it took long before."""
    place = home() / "probes" / hashlib.sha256(key.encode()).hexdigest()[:32]
    with suppress(OSError, ValueError):
        return float(place.read_text("ascii"))
    begin = time.process_time()
    found = measured()
    if time.process_time() - begin > _LONG:
        with suppress(OSError):  # a home that cannot be written costs time alone
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(place, [repr(found).encode()])
    return found


def price(network: Any) -> tuple[float, float]:
    """Processor time of exact passes as a multiple of that of others: for a prompt of 256 tokens, and for a step."""
    import torch

    ids = tuple(place % network.config.get_text_config().vocab_size for place in range(264))
    seconds = dict[bool, tuple[float, float]]()
    step = exact_step(network)
    for _ in range(2):
        for exact in (False, True):
            rows, took = PackedRows(network, 1 << 30, step=step if exact else 0), list[float]()
            for end in (256, *range(257, 265)):
                begin = time.process_time()
                with torch.inference_mode():
                    rows.run([ScoreJob(ids[:end], (end,))])
                took.append(time.process_time() - begin)
            now = (took[0], min(took[1:]))
            seconds[exact] = tuple(map(min, now, seconds.get(exact, now)))  # type: ignore[assignment]
    return seconds[True][0] / seconds[False][0], seconds[True][1] / seconds[False][1]


def _measured(rows: PackedRows | SingleRows, config: Any) -> float:
    import torch

    most = int(getattr(config, "max_position_embeddings", None) or 1 << 20)
    pieces, end = list[range](), 0
    is_packed = isinstance(rows, PackedRows)
    for count in PIECES if is_packed else _FEW_PIECES:
        if end + count <= most:
            pieces.append(range(max(end, end + count - (16 if is_packed else 1)) + 1, end + count + 1))
            end += count
    ids = tuple((7 * place * place + 3 * place) % config.vocab_size for place in range(end))
    ends = tuple(place for piece in pieces for place in piece)
    with torch.inference_mode():
        once = dict[int, Any]()
        # rows of one sequence go on token by token behind the first place that is asked for
        for job in [ScoreJob(ids, ends)] if is_packed else [ScoreJob(ids[:end], (end,)) for end in ends]:
            rows.run([job])
            rows.forget()
            once |= job.rows
        worst = 0.0
        for number, piece in enumerate(pieces):
            job, other = ScoreJob(ids[: piece[-1]], tuple(piece)), ScoreJob(ids[5 : 8 + number], (3 + number,))
            rows.run([job, other] if number % 2 else [job])  # alone, and beside another row
            for end in piece:
                one, other_one = (torch.log_softmax(each[end].float(), -1) for each in (once, job.rows))
                best = one.topk(min(NEAREST, one.shape[-1])).indices
                worst = max(worst, float((one[best] - other_one[best]).abs().max()))
        return worst
