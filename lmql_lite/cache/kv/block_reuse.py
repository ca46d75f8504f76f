"""Reuse of blocks in a prompt: keys and values are moved to their places, partly recomputed, and measured.

A prompt is token ids and the spans of its blocks. The beginning up to the end of the first block is a true prefix, and
exact, if that block begins within the head. Every further block was prefilled after the head and is moved to its place.
Text between blocks is computed in place, and sees all text before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lmql_lite.cache.kv.block_policy import BlockPolicy
from lmql_lite.cache.kv.kv_blocks import Divergence, can_rotate, divergence, rotated_kv
from lmql_lite.cache.kv.kv_engine import KVCacheEngine
from lmql_lite.cache.kv.kv_layout import KV, Unsupported, cache_keyword, from_cache, to_cache
from lmql_lite.cache.kv.scattered_pass import KVSlots, LayerReached, scattered_pass

if TYPE_CHECKING:
    import torch

Span = tuple[int, int]
"""Begin and end of a block, in tokens of the prompt."""
Prefilled = Callable[[tuple[int, ...]], KV]
"""Function that returns keys and values of a whole sequence, computed or known."""
CHECK_LAYER = 1
"""Layer whose keys and values show which tokens deviate: the first that depends on the text before a token."""
_PROBE_TOKENS = 24
_TOLERANCE = 1e-3


def prefilled_by(network: Any) -> Prefilled:
    """Prefill by plain passes of the network. Raises Unsupported for a network without keys and values to keep."""
    return lambda tokens: _continued(network, tokens, (), 0)


class KeptBlocks:
    """Prefill of tokens that an engine does not know; the engine keeps the result.

    `fed` is the number of tokens computed so far, `found` that of the tokens that were known, by tier.
    """

    def __init__(self, engine: KVCacheEngine, network: Any) -> None:
        self._engine, self._network = engine, network
        self.fed = 0
        self.found = Counter[str]()

    def __call__(self, tokens: tuple[int, ...]) -> KV:
        kv, known = self._engine.longest(tokens)
        self.found += Counter(self._engine.requests[-1].by_tier)
        if known < len(tokens):
            self.fed += len(tokens) - known
            kv = _continued(self._network, tokens, kv, known)
            self._engine.store(tokens, kv, blocking=False)
        return tuple((keys.to(self._network.device), values.to(self._network.device)) for keys, values in kv)


def _continued(network: Any, tokens: tuple[int, ...], kv: KV, known: int) -> KV:
    """Keys and values of all tokens, given those of the first `known` ones."""
    import torch

    past = to_cache(kv, network.device)
    new = torch.tensor([tokens[known:]], device=network.device)
    with torch.inference_mode():
        network(input_ids=new, **{cache_keyword(network): past}, use_cache=True, logits_to_keep=1)
    return from_cache(past, len(tokens))


def unsupported_reason(network: Any) -> str | None:
    """The reason why blocks of this network cannot be moved; None if they can.

    This is tested on the network itself. Rotated keys are compared with computed ones, and a scattered pass over a
    whole text is compared with a plain pass.
    """
    import torch

    if not can_rotate(network):
        return "its keys cannot be moved by a rotation: it has learned positions, states, or keys of another form"
    tokens = tuple(range(3, 3 + _PROBE_TOKENS))
    with torch.inference_mode():
        plain = network(input_ids=torch.tensor([tokens], device=network.device), use_cache=False).logits[0]
    try:
        own = scattered_pass(network, KVSlots(), tokens, range(len(tokens)), range(len(tokens)))
    except (Unsupported, AttributeError, IndexError, TypeError, ValueError, RuntimeError, KeyError) as error:
        return f"its attention does not accept other keys ({type(error).__name__})"
    if own.shape != plain.shape or (own - plain).abs().max() > _TOLERANCE * max(1.0, float(plain.abs().max())):
        return "its attention computes other scores when its keys are replaced"
    return None


class BlockReuse:
    """Prompts with blocks, for one network under one policy. `prefilled` returns keys and values of a block.

    reuse = BlockReuse(network, BlockPolicy.parse("rotate"), prefilled_by(network))
    slots = reuse.slots(ids, spans)
    logits = reuse.ask(slots, ids + suffix, [len(ids)])    # after the first token of the suffix
    """

    def __init__(self, network: Any, policy: BlockPolicy, prefilled: Prefilled) -> None:
        self.network, self.policy = network, policy
        self._prefilled = prefilled
        self.fed = 0
        """Number of tokens fed to the network so far, without prefills and passes that stop after two layers."""

    def slots(self, tokens: Sequence[int], spans: Sequence[Span], alike: int | None = None) -> KVSlots:
        """Keys and values of a prompt that ends with its last block. Tokens to compute are in `missing`, among them
        always the last one, whose scores are needed. Other prompts have the same first `alike` tokens, None for all
        before the first block: blocks are prefilled after no others.
        """
        slots, place, moved = KVSlots(), 0, list[int]()
        missing: list[int] = []
        most = self.policy.head if alike is None else min(self.policy.head, alike)
        head = tuple(tokens[:most])
        for begin, end in spans:
            before = head[:begin]
            kv = self._prefilled((*before, *tokens[begin:end]))
            if not slots.length and len(before) == begin:
                slots.put(kv, 0, len(tokens))
            else:
                missing += range(place, begin)
                moved += range(begin, end)
                by = begin - len(before)
                own = tuple((keys[:, len(before) :], values[:, len(before) :]) for keys, values in kv)
                placed = rotated_kv(self.network, own, by) if by and self.policy.kind != "smash" else own
                slots.put(placed, begin, len(tokens))
            place = end
        chosen = self._recomputed(slots, tokens, moved, missing)
        slots.missing = tuple(sorted({*missing, *chosen, len(tokens) - 1}))
        return slots

    def ask(self, slots: KVSlots, tokens: Sequence[int], wanted: Sequence[int]) -> torch.Tensor:
        """Logits after the tokens at the places `wanted`. Computes missing tokens and those after `slots`."""
        places = (*slots.missing, *range(slots.length, len(tokens)))
        self.fed += len(places)
        numbers = {place: number for number, place in enumerate(places)}
        return scattered_pass(
            self.network, slots, [tokens[at] for at in places], places, [numbers[place] for place in wanted]
        )

    def measured(
        self, tokens: Sequence[int], spans: Sequence[Span], suffix: Sequence[int]
    ) -> tuple[Divergence, torch.Tensor]:
        """Divergence of the scores of `suffix` after the prompt from those of a full prefill, and the latter."""
        wanted = range(len(tokens), len(tokens) + len(suffix))
        reused = self.ask(self.slots(tokens, spans), (*tokens, *suffix), wanted)
        full = self.full(tokens, suffix)
        return divergence(full, reused), full

    def full(self, tokens: Sequence[int], suffix: Sequence[int]) -> torch.Tensor:
        """Logits after each token of `suffix`, by a full prefill."""
        import torch

        ids = torch.tensor([[*tokens, *suffix]], device=self.network.device)
        self.fed += ids.shape[1]
        keep = torch.arange(len(tokens), len(tokens) + len(suffix), device=self.network.device)
        with torch.inference_mode():
            logits: torch.Tensor = self.network(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[0]
        return logits

    def _recomputed(
        self, slots: KVSlots, tokens: Sequence[int], moved: Sequence[int], missing: Sequence[int]
    ) -> list[int]:
        """Places of the moved tokens to recompute."""
        import torch

        count = len(moved) if self.policy.kind == "exact" else int(self.policy.recomputed * len(moved))
        if not count:
            return []
        if self.policy.recompute == "near" or count == len(moved):
            return list(moved[-count:])
        places = sorted({*moved, *missing})
        try:
            scattered_pass(self.network, slots, [tokens[at] for at in places], places, stop_at=CHECK_LAYER)
        except LayerReached as fresh:
            at = torch.tensor(places, device=fresh.keys.device)
            distance = torch.zeros(len(places), device=fresh.keys.device)
            for new, old in zip((fresh.keys, fresh.values), slots.layers[CHECK_LAYER], strict=True):
                each = (new - old.index_select(1, at)).square().sum((0, 2))
                distance += each / each.mean().clamp_min(1e-30)
            of_blocks = torch.isin(at, torch.tensor(moved, device=at.device))
            best = distance.masked_fill(~of_blocks, -1.0).topk(count).indices
            return sorted(places[one] for one in best.tolist())
        raise Unsupported("the network has no second layer, which recompute=deviation needs")
