"""Runs queries with LMQL 0.7.3, for the comparison in `scenarios.py`: started there with an interpreter that has LMQL.

Reads a JSON object a line: the query, where its model is served and in which tokens, the cache (true, false or a file).
Answers each with another one: the text, or the error. LMQL's own words go nowhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
import zlib
from typing import Any

os.environ.setdefault("OPENAI_API_KEY", "none")
answers = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
warnings.simplefilter("ignore")

import lmql  # type: ignore[import-not-found]  # noqa: E402
import lmql.runtime.tokenizer as tokenizers  # type: ignore[import-not-found]  # noqa: E402

os.dup2(1, 2)  # it has started, and talks too much
END_OF_TEXT = "<|endoftext|>"


class Words:
    """The tokenizer of the model behind the stub: the longest token that fits. In the form in which LMQL has its own.

    LMQL keeps masks by the name of a tokenizer, so each vocabulary has another one.
    """

    def __init__(self, vocabulary: list[str | None]) -> None:
        self.name = f"words-{zlib.crc32(repr(vocabulary).encode()):08x}"
        self._tokens = [END_OF_TEXT.encode() if data is None else data.encode("latin-1") for data in vocabulary]
        self._ids = {data: token for token, data in enumerate(self._tokens)}
        self._longest = max(map(len, self._tokens))
        self.bos_token_id = self.eos_token_id = self._ids[END_OF_TEXT.encode()]
        self.vocab_size = len(self._tokens)
        self.vocab = {data.decode("latin-1"): token for data, token in self._ids.items()}

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        data, ids = text.encode(), list[int]()
        while data:
            size = next(size for size in range(self._longest, 0, -1) if data[:size] in self._ids)
            ids.append(self._ids[data[:size]])
            data = data[size:]
        return {"input_ids": ids}

    def tokenize(self, text: str, asbytes: bool = False) -> list[Any]:
        tokens = self.decode_tokens_bytes(self(text)["input_ids"])
        return tokens if asbytes else [token.decode("latin-1") for token in tokens]

    def decode_tokens_bytes(self, ids: list[int]) -> list[bytes]:
        return [self._tokens[token] for token in ids]

    def decode(self, ids: list[int], clean_up_tokenization_spaces: bool = False) -> str:
        return b"".join(self.decode_tokens_bytes(ids)).decode("utf-8", "replace")

    def convert_bytes_to_string(self, tokens: list[bytes]) -> str:
        return b"".join(tokens).decode("utf-8", "replace")

    def convert_token_bytes_to_ids(self, tokens: list[bytes]) -> list[int]:
        return [self._ids[bytes(token)] for token in tokens]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)

    def backend(self) -> str:
        return self.name


async def run(asked: dict[str, Any]) -> dict[str, Any]:
    words = Words(asked["vocabulary"])
    tokenizer = tokenizers.LMQLTokenizer(words.name, tokenizer_impl=words)
    tokenizers.runtime_tokenizers[f"tiktoken__{words.name}"] = tokenizer
    model = lmql.model(f"openai/{asked['model']}", endpoint=asked["endpoint"], tokenizer=words.name, errors="raise")
    query = lmql.query(asked["query"], is_async=True)
    try:
        found = await asyncio.wait_for(query(model=model, cache=asked["cache"]), timeout=60)
    except BaseException as error:  # it says with assertions what it cannot do
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    found = found[0] if isinstance(found, list) else found
    return {"prompt": found.prompt if hasattr(found, "prompt") else str(found)}


async def main() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await run(json.loads(line))), file=answers, flush=True)


asyncio.run(main())
