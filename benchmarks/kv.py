"""The attention-KV engine: what a hit saves, what it costs, and what it costs where nothing is reused.

    python benchmarks/kv.py [--shape small] [--tokens 2000] [--runs 3]

Models have random weights: the time of a pass does not depend on them. A new engine on the same folder stands for a new
process; the operating system has the files in its memory, as after a restart of a server. Times are those of the
processor, the least of all runs, on one thread; measurements take turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from lmql_lite.cache.kv.config import KVCacheConfig, KVCacheMetadata
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.cache.kv.layout import cache_keyword, from_cache, to_cache

SHAPES = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4},
    "small": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
    "qwen2.5-0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
}
"""Shapes of Qwen2 models with two key and value heads and a small vocabulary: 3, 114 and 373 million weights."""
VOCABULARY = 8192
HELD_TO = {
    "warm, from memory": 0.03,
    "warm, from disk": 0.05,
    "warm but for the last token, from memory": 0.03,
    "overhead where nothing is reused": 0.01,
}
"""Largest shares of the cold time. Not held to with the shape `tiny`, whose pass costs next to nothing."""
PAGE_SECONDS = 0.005
"""A page from disk may cost this, and its bytes at the bandwidth of plain reads into new memory."""


def network_of(shape: str) -> Any:
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=8192, **SHAPES[shape]
    )
    torch.manual_seed(7)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@torch.inference_mode()
def first_token(network: Any, tokens: Any, past: Any) -> Any:
    """Scores of the next token, as after a prompt."""
    given = {cache_keyword(network): past}
    return network(input_ids=tokens[None], use_cache=True, logits_to_keep=1, **given).logits[0, -1]


def plainly_read(paths: list[Path]) -> Any:
    """Bytes of all files in one new tensor, unchecked: the bandwidth that the disk and new memory allow."""
    whole, at = torch.empty(sum(path.stat().st_size for path in paths), dtype=torch.uint8), 0
    view = memoryview(whole.numpy())
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            at += file.readinto(view[at : at + path.stat().st_size])
    return whole


class Measured:
    """Least processor time of each line, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        begin = time.process_time()
        value = work()
        self.seconds[name] = min(time.process_time() - begin, self.seconds.get(name, float("inf")))
        return value


def measure(network: Any, tokens: Any, folder: Path, measured: Measured) -> int:
    """One round of all lines. Returns the bytes of all pages."""
    config = KVCacheConfig(local_disk=str(folder))
    metadata = KVCacheMetadata("benchmark", fingerprint=network.config.model_type)
    count = len(tokens)

    def warm(engine: KVCacheEngine, asked: Any) -> Any:
        kv, known = engine.longest(asked)
        known = min(known, len(asked) - 1)
        return first_token(network, asked[known:], to_cache(tuple((k[:, :known], v[:, :known]) for k, v in kv)))

    engine = KVCacheEngine(config, metadata)
    past = transformers.DynamicCache()
    cold = measured("cold", lambda: first_token(network, tokens, past))
    assert measured("miss", lambda: engine.longest(tokens))[1] == 0
    measured("store", lambda: engine.store(tokens, from_cache(past, count)))
    other = torch.cat([tokens[:-1], tokens[-1:] ^ 1])
    for asked, line in ((tokens, "warm, from memory"), (other, "warm but for the last token, from memory")):
        answer = measured(line, lambda asked=asked: warm(engine, asked))
        assert line != "warm, from memory" or (answer - cold).abs().max() <= 1e-3
    measured("lookup", lambda: engine.lookup(tokens))
    measured("hit in memory", lambda: engine.longest(tokens))
    engine.close()
    engine = KVCacheEngine(config, metadata)
    answer = measured("warm, from disk", lambda: warm(engine, tokens))
    assert (answer - cold).abs().max() <= 1e-3
    engine.close()
    engine = KVCacheEngine(KVCacheConfig(local_cpu=False, local_disk=str(folder)), metadata)
    measured("hit on disk", lambda: engine.longest(tokens))
    assert engine.report().by_tier["disk"] == count
    paths = list(folder.rglob("*.pt"))
    size = sum(path.stat().st_size for path in paths)
    measured("plain reads", lambda: plainly_read(paths))
    engine.close()
    for path in paths:
        path.unlink()
    return size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    network, measured, size = network_of(options.shape), Measured(), 0
    tokens = torch.randint(2, VOCABULARY, (options.tokens,), generator=torch.Generator().manual_seed(5))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.runs):
            size = measure(network, tokens, Path(folder), measured)
    seconds = measured.seconds
    seconds["overhead where nothing is reused"] = seconds["miss"] + seconds["store"]
    missed = []
    print(f"{options.shape}: {options.tokens} tokens, {size / 1e6:.1f} MB of pages, least of {options.runs}")
    for name, value in seconds.items():
        share, at_most = value / seconds["cold"], HELD_TO.get(name) if options.shape != "tiny" else None
        held = "" if at_most is None else f"   held to {at_most}"
        print(f"{name:42} {1000 * value:9.1f} ms {share:9.4f} of cold{held}")
        if at_most is not None and share > at_most:
            missed.append(name)
    pages = -(-options.tokens // 256)
    each, plain = seconds["hit on disk"] / pages, seconds["plain reads"] / pages
    print(f"a page from disk: {1000 * each:.1f} ms   held to {1000 * (PAGE_SECONDS + plain):.1f} ms")
    if each > PAGE_SECONDS + plain:
        missed.append("a page from disk")
    if missed:
        print("missed:", ", ".join(missed))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
