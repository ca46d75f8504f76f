"""Tokenizer for tiny networks with random weights, `tests/cache/kv/tiny_models.py`."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmql_lite.models.tokenizer import HFTokenizer


@cache
def byte_tokenizer() -> HFTokenizer:
    """Tokens of one byte each, 256 of them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return HFTokenizer(backend, size=256)
