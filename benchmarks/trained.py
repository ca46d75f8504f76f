"""Vocabularies as large as those of today's models, without a download: byte-level BPE trained on what is installed.

Python's own sources and those of the packages in this environment are the corpus, so two machines differ in their
tokens, a little. Training takes minutes and is done once; the small vocabulary is the beginning of the large one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

LARGE = 2**17
SMALL = 2**12
CORPUS_BYTES = 70 * 10**6
FILE_BYTES = 300_000
"""Longer files are mostly tables."""
SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt", ".h"}
END_OF_TEXT = "<|end_of_text|>"
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Llama 3 cuts a text before it merges anything."""


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmql_lite" / "benchmarks"


def tokenizer(size: int, cache: Path) -> Tokenizer:
    """One with `size` tokens, end-of-text the first of them. Trained if the folder does not have it yet."""
    path = cache / f"bpe-{LARGE}.json"
    if not path.is_file():
        print(f"training a vocabulary of {LARGE:,} tokens, once; this takes minutes", file=sys.stderr)
        cache.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        _train().save(str(beside))
        beside.replace(path)
    state = json.loads(path.read_text("utf-8"))
    model = state["model"]
    model["vocab"] = {text: number for text, number in model["vocab"].items() if number < size}
    # end-of-text and the bytes come first, then every merge makes one token
    model["merges"] = model["merges"][: size - 1 - len(pre_tokenizers.ByteLevel.alphabet())]
    return Tokenizer.from_str(json.dumps(state))


def _train() -> Tokenizer:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LARGE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(_texts(), trainer)
    if learner.get_vocab_size() != LARGE:
        sys.exit(f"the texts on this machine gave only {learner.get_vocab_size():,} tokens; install the [local] extra")
    return learner


def _texts() -> Iterator[str]:
    """Files in an order that does not depend on where they lie, until there are enough of them."""
    left = CORPUS_BYTES
    for path in _files():
        text = path.read_text("utf-8", "ignore")
        yield text
        left -= len(text)
        if left < 0:
            return


def _files() -> list[Path]:
    found: dict[str, Path] = {}
    for name in ("stdlib", "purelib", "platlib"):
        top = Path(sysconfig.get_path(name))
        for path in top.rglob("*"):
            if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size <= FILE_BYTES:
                found.setdefault(hashlib.sha256(str(path.relative_to(top)).encode()).hexdigest(), path)
    return [found[key] for key in sorted(found)]
