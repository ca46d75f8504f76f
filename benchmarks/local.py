"""Models in this process: what queries cost beside a bare loop, alone, together, and exact.

    python benchmarks/local.py [--model smol|qwen2.5-0.5b|tiny] [--tokens 200] [--runs 2] [--only alone exact]

`smol` is a trained model, the others have random weights: the time of a pass does not depend on them. Times are those
of the processor on one thread, the least of all runs; measurements take turns, each with a prompt that nobody has seen,
and without drafts, which would be a gift where a model repeats itself. Held to for the larger two models.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

import lmql_lite as lq
from lmql_lite.cache.kv.layout import cache_keyword
from lmql_lite.models.model_files import located, smol_file
from lmql_lite.models.tokenizer import HFTokenizer
from lmql_lite.models.transformers.scorer import TransformersModel

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4},
    "qwen2.5-0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
}
"""Shapes of Qwen2 models with two key and value heads and a vocabulary of 151,936: 20 and 494 million weights."""
QUERY = '"{prompt}[X]" where REGEX(X, r"[a-z ,.]+") and len(TOKENS(X)) == {tokens}'
SHORT = 16
HELD_TO = {
    "argmax / bare loop": 1.05,
    "argmax / generate": 1.03,
    "exact argmax / bare loop": 1.50,
    f"hole of {SHORT} tokens / bare loop": 1.25,
}
AT_LEAST = {
    "throughput of 8 / bare loop": 3.2,
}
PARTS = ("alone", "exact")
_NUMBERS = itertools.count(1)


def random_network(config: Any) -> Any:
    """Network with small random weights, filled quickly."""
    torch.manual_seed(7)
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    network = empty.to_empty(device="cpu").eval()
    some = torch.rand(1 << 16) * 0.07 - 0.035
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() < 2:
                weight.fill_(1.0 if "norm" in name else 0.0)
            else:
                weight.view(-1).copy_(some.repeat(-(-weight.numel() // len(some)))[: weight.numel()])
    network.model.rotary_emb = type(network.model.rotary_emb)(config=config)
    network.tie_weights()
    return network


def tokenizer_of(size: int) -> HFTokenizer:
    """Tokens of SmolLM2, for a network with scores for more of them."""
    folder, _ = located(str(smol_file()))
    return HFTokenizer(HFTokenizer.from_folder(folder)._backend, eos={2}, size=size)


def prompt() -> str:
    """Text that no run has seen."""
    return f"Note {next(_NUMBERS)}: words 0 words 1 then"


class LocalBenchmark:
    """Lines for one model."""

    def __init__(self, model: TransformersModel, plain: Any, runs: int) -> None:
        """`plain` is the network as transformers loads it, for the bare loop and `generate`."""
        self.model, self.plain, self.runs = model, plain, runs
        self.lines: dict[str, float] = {}
        self._ids = lambda text: torch.tensor([[*model.tokenizer.bos, *model.tokenizer.encode(text.encode())]])

    def seconds(self, *works: Callable[[], Any]) -> list[float]:
        """Least processor time of each; they take turns."""
        least = [float("inf")] * len(works)
        for _ in range(self.runs):
            for at, work in enumerate(works):
                begin = time.process_time()
                work()
                least[at] = min(least[at], time.process_time() - begin)
        return least

    @torch.inference_mode()
    def bare(self, tokens: int) -> None:
        ids, past = self._ids(prompt()), {cache_keyword(self.plain): transformers.DynamicCache()}
        for _ in range(tokens):
            out = self.plain(input_ids=ids, use_cache=True, logits_to_keep=1, **past)
            ids = out.logits[:, -1].argmax(-1, keepdim=True)

    @torch.inference_mode()
    def generate(self, tokens: int) -> None:
        ids = self._ids(prompt())
        self.plain.generate(
            ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, attention_mask=torch.ones_like(ids),
            pad_token_id=0,
        )  # fmt: skip

    def ours(self, tokens: int, together: int = 1) -> None:
        asked = lq.compile(QUERY.replace("{tokens}", str(tokens)))

        async def everyone() -> None:
            options: dict[str, Any] = {"model": self.model, "max_tokens": tokens, "speculate": False}
            runs = (asked.run({"prompt": prompt()}, cache=lq.TokenCache(), **options) for _ in range(together))
            await asyncio.gather(*runs)

        asyncio.run(everyone())

    def exact(self, tokens: int) -> None:
        """Lines of the same network with exact passes, none of which is there for others to reuse."""
        self.model = lq.model(self.model.network, self.model.tokenizer, exact=True)
        self.ours(2)
        bare, ours = self.seconds(lambda: self.bare(tokens), lambda: self.ours(tokens))
        self.lines["exact argmax / bare loop"] = ours / bare

    def alone(self, tokens: int) -> None:
        for part in (self.bare, self.ours, self.generate):
            part(2)
        bare, ours, generated = self.seconds(
            lambda: self.bare(tokens), lambda: self.ours(tokens), lambda: self.generate(tokens)
        )
        self.lines["argmax / bare loop"] = ours / bare
        self.lines["argmax / generate"] = ours / generated
        short, hole = self.seconds(lambda: self.bare(SHORT), lambda: self.ours(SHORT))
        self.lines[f"hole of {SHORT} tokens / bare loop"] = hole / short
        many = max(tokens // 4, SHORT)
        single, eight = self.seconds(lambda: self.bare(many), lambda: self.ours(many, 8))
        self.lines["throughput of 8 / bare loop"] = 8 * single / eight


def models_of(name: str) -> tuple[TransformersModel, Any]:
    """A model, and its network as transformers loads it."""
    if name == "smol":
        folder, _ = located(str(smol_file()))
        network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model = lq.model(network, HFTokenizer.from_folder(folder))
    else:
        config = transformers.Qwen2Config(
            vocab_size=151936, num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True,
            **SHAPES[name],
        )  # fmt: skip
        network = random_network(config)
        model = lq.model(network, tokenizer_of(151936))
    assert isinstance(model, TransformersModel)
    return model, network


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("smol", *SHAPES), default="qwen2.5-0.5b")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    benchmark = LocalBenchmark(*models_of(options.model), options.runs)
    print(f"{options.model}: {torch.backends.cpu.get_cpu_capability()}", flush=True)
    if "alone" in options.only:
        benchmark.alone(options.tokens)
    if "exact" in options.only:
        benchmark.exact(options.tokens)
    missed = []
    for name, value in benchmark.lines.items():
        most, least = HELD_TO.get(name), AT_LEAST.get(name)
        held = f"   held to {most}" if most else f"   at least {least}" if least else ""
        print(f"{name:60}{value:8.3f}{held}")
        if (most and value > most) or (least and value < least):
            missed.append(name)
    if missed:
        print("missed:", "; ".join(missed))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
