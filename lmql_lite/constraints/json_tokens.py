"""Tokens that llguidance is given: the texts of a vocabulary and all bytes, and which of them need a second look."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from lmql_lite.constraints.json_text import BACKSLASH, DELETE, QUOTE
from lmql_lite.constraints.vocabulary import Flags, IntArray, Vocabulary

NOT_PLAIN = re.compile(rb'["\\\x7f]')
KEY_AFTER_STRING = re.compile(rb'".*[",]', re.DOTALL)


class Texts:
    """Tokenizer for llguidance: the texts of a vocabulary by number, then the bytes it lacks, then end-of-text."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = vocabulary.texts
        single = {text[0]: number for number, text in enumerate(texts) if len(text) == 1}
        missing = [byte for byte in range(256) if byte not in single]
        single |= {byte: len(texts) + place for place, byte in enumerate(missing)}
        self.of_byte = np.array([single[byte] for byte in range(256)], dtype=np.intp)
        self.eos_token_id = len(texts) + len(missing)
        self.tokens = [*texts, *(bytes([byte]) for byte in missing), b""]
        self.special_token_ids = [self.eos_token_id]
        self._numbers = self.of_byte.tolist()
        self._texts = texts

    @cached_property
    def escaping(self) -> list[tuple[int, bytes, list[int]]]:
        """Texts that llguidance may misjudge because of their escapes: number, text, and tokens of the text with a
        letter in the place of its last byte."""
        found = [(number, text) for number, text in enumerate(self._texts) if _is_misjudged(text)]
        return [(number, text, self(text[:-1] + b"a")) for number, text in found]

    @cached_property
    def with_keys(self) -> dict[str, IntArray]:
        """Texts that may begin or close a key, by the place where they begin."""
        quoted = [number for number, text in enumerate(self._texts) if QUOTE in text]
        commas = [number for number, text in enumerate(self._texts) if b"," in text]
        longer = [number for number in quoted if KEY_AFTER_STRING.search(self._texts[number])]
        found = {"key": quoted, "string": longer, "outside": sorted({*quoted, *commas})}
        return {place: np.array(numbers, dtype=np.intp) for place, numbers in found.items()}

    @cached_property
    def plain(self) -> Flags:
        """Flags of the texts that stand for themselves in a JSON string, shape (texts,)."""
        return np.fromiter(map(is_plain, self._texts), dtype=np.bool_, count=len(self._texts))

    def __call__(self, data: bytes) -> list[int]:
        """One number per byte: a hole begins and ends inside tokens, and the tokenisation makes no difference."""
        return [self._numbers[byte] for byte in data]


def is_plain(data: bytes) -> bool:
    """True if these are whole characters that stand for themselves in a string."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return not NOT_PLAIN.search(data)


def _is_misjudged(data: bytes) -> bool:
    """True if llguidance may read the escapes of this text differently."""
    backslashes = len(data) - len(data.rstrip(BACKSLASH))
    return backslashes % 2 == 1 or DELETE in data or rb"\u" in data or rb"\/" in data
