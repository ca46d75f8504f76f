"""Hugging Face tokenizers in bytes: the bytes of every token, and the tokens of any bytes.

Supports byte-level BPE (GPT-2, Llama 3, Qwen, ...) and SentencePiece vocabularies with byte fallback (Llama 2, Gemma,
...). Everything that would change a text on its way to tokens (normalisers, an added space) is removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import tokenizers

from lmql_lite.errors import ModelError
from lmql_lite.models.chat import ChatFormat, read_chat, settings_in, spelling_of

_SPACE = "\u2581"
"""SentencePiece writes a space as this character."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class HFTokenizer:
    """Implementation of `lmql_lite.tokens.Tokenizer` over a `tokenizers.Tokenizer`, which this object takes over.

    `encode` raises ModelError for a text with a character that the vocabulary cannot spell, and names it.

    `size` is the number of scores per position, if the model has more than the tokenizer has tokens. Tokens that end an
    answer in a `chat` are end-of-text here.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos: Iterable[int] = (),
        eos: Iterable[int] = (),
        size: int = 0,
        chat: ChatFormat | None = None,
    ) -> None:
        self.chat = chat
        byte_level = _is_byte_level(backend)
        self._backend = _plain(backend, byte_level)
        self._backend.encode_special_tokens = True
        self.bos = tuple(bos)
        self.eos = frozenset(eos) | (chat.ends if chat else frozenset())
        self.vocabulary = _vocabulary(self._backend, byte_level, size, self.eos.union(self.bos))
        self._speller = ByteSpeller(self.vocabulary, _single_bytes(self._backend, self.vocabulary, byte_level))

    @classmethod
    def from_folder(cls, folder: Path, *, eos: Iterable[int] = (), size: int = 0) -> HFTokenizer:
        """Tokenizer from `tokenizer.json` and the special ids in the files beside it, in addition to `eos`."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder} has no tokenizer.json", hint="use the folder of a model")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the only class that the library raises
            raise ModelError(f"{path} cannot be read: {error}") from error
        if not backend.get_vocab_size():
            raise ModelError(f"{path} has no tokens", hint="is the folder complete?")
        backend.no_truncation()
        backend.no_padding()
        config, generation = settings_in(folder / "config.json"), settings_in(folder / "generation_config.json")
        named = settings_in(folder / "special_tokens_map.json") | settings_in(folder / "tokenizer_config.json")
        ends = {*eos, *ids_in(config.get("eos_token_id")), *ids_in(generation.get("eos_token_id"))}
        ends.update(_named(backend, named.get("eos_token")))
        text = backend.encode("a", add_special_tokens=True)
        before = takewhile(lambda pair: pair[1], zip(text.ids, text.special_tokens_mask, strict=True))
        bos = tuple(number for number, _ in before)
        if named.get("add_bos_token") is False:
            bos = ()
        elif not bos and named.get("add_bos_token"):
            bos = tuple(_named(backend, named.get("bos_token")))
        size = size or int(config.get("vocab_size") or 0)
        return cls(backend, bos=bos, eos=ends, size=size, chat=read_chat(folder, backend))

    def encode(self, text: bytes) -> tuple[int, ...]:
        return self._speller.encode(text, self._characters)

    def _characters(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


class ByteSpeller:
    """Encoder of any bytes, given the tokens of characters: what these do not spell is spelled byte by byte."""

    def __init__(self, vocabulary: Sequence[bytes | None], single: Mapping[int, int]) -> None:
        """`single` has the token of each single byte that has one."""
        self._vocabulary, self._bytes = vocabulary, single

    def encode(self, text: bytes, characters: Callable[[str], list[int]]) -> tuple[int, ...]:
        """Tokens that spell the text; `characters` gives those of valid text. Raises ModelError where none do."""
        with suppress(UnicodeDecodeError):
            return tuple(self._encode_characters(text.decode(), characters))
        ids: list[int] = []
        for piece in _decodable(text):
            if isinstance(piece, str):
                ids += self._encode_characters(piece, characters)
            else:
                ids += self._encode_bytes(piece, f"the byte 0x{piece[0]:02X}")
        return tuple(ids)

    def _encode_characters(self, text: str, characters: Callable[[str], list[int]]) -> list[int]:
        """Tokens of the whole text, or those of its two halves if they do not spell the text."""
        ids, data = characters(text), text.encode()
        if b"".join([self._vocabulary[number] or b"" for number in ids]) == data:
            return ids
        if len(text) == 1:
            return self._encode_bytes(data, f"the character {text!r} (U+{ord(text):04X})")
        middle = len(text) // 2
        return self._encode_characters(text[:middle], characters) + self._encode_characters(text[middle:], characters)

    def _encode_bytes(self, data: bytes, name: str) -> list[int]:
        """One token for each byte. Raises ModelError, with this name for the bytes, where the vocabulary has none."""
        if any(byte not in self._bytes for byte in data):
            raise ModelError(
                f"this model's tokenizer has no token for {name}, which the text contains",
                hint="leave it out of the text, or use a model that knows it",
            )
        return [self._bytes[byte] for byte in data]


def _decodable(text: bytes) -> Iterator[str | bytes]:
    """Text cut into valid UTF-8 and bytes that belong to no character."""
    while text:
        try:
            yield text.decode()
            return
        except UnicodeDecodeError as error:
            if error.start:
                yield text[: error.start].decode()
            yield text[error.start : error.end]
            text = text[error.end :]


def _state(component: Any) -> str:
    """Part of the tokenizer as JSON text, "null" if the tokenizer has no such part."""
    return "null" if component is None else cast(bytes, component.__getstate__()).decode()


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    if '"ByteLevel"' in _state(backend.pre_tokenizer) + _state(backend.decoder):
        return True
    if _SPACE in _state(backend.decoder) + _state(backend.pre_tokenizer) + _state(backend.normalizer):
        return False
    raise ModelError(
        "this tokenizer is neither byte-level nor SentencePiece, so the bytes of its tokens are not known",
        hint="use a model with a byte-level BPE tokenizer, such as nearly every recent one",
    )


def _plain(backend: tokenizers.Tokenizer, byte_level: bool) -> tokenizers.Tokenizer:
    """The same tokenizer without parts that change a text; a rebuilt copy only if there is something to remove."""
    normalizer, splitter = json.loads(_state(backend.normalizer)), json.loads(_state(backend.pre_tokenizer))
    kept = None if byte_level else _only_spaces(normalizer)
    unchanged = normalizer == kept
    for part in _parts(splitter, "pretokenizers"):
        if part.get("add_prefix_space"):
            part["add_prefix_space"], unchanged = False, False
        if part.get("prepend_scheme", "never") != "never":
            part["prepend_scheme"], unchanged = "never", False
    if unchanged:
        return backend
    state = json.loads(backend.to_str()) | {"normalizer": kept, "pre_tokenizer": splitter}
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def _only_spaces(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The step of a SentencePiece normaliser that writes spaces as `▁`."""
    for part in _parts(normalizer, "normalizers"):
        if part.get("type") == "Replace" and part.get("content") == _SPACE:
            return part
    return None


def _parts(component: dict[str, Any] | None, inside: str) -> list[dict[str, Any]]:
    if component is None:
        return []
    return cast(list[dict[str, Any]], component[inside]) if component["type"] == "Sequence" else [component]


def _vocabulary(
    backend: tokenizers.Tokenizer, byte_level: bool, size: int, ends: frozenset[int]
) -> tuple[bytes | None, ...]:
    spelled = backend.get_vocab(with_added_tokens=True)
    table: list[bytes | None] = [None] * max(size, *(number + 1 for number in spelled.values()))
    character_bytes = _gpt2_bytes()
    for spelling, number in spelled.items():
        if byte_level:
            known = [character_bytes.get(character) for character in spelling]
            table[number] = None if None in known else bytes(cast(list[int], known))
        elif match := _BYTE_TOKEN.fullmatch(spelling):
            table[number] = bytes.fromhex(match[1])
        else:
            table[number] = spelling.replace(_SPACE, " ").encode()
    for number, added in backend.get_added_tokens_decoder().items():
        table[number] = None if added.special else added.content.encode()
    for number in ends:
        table[number] = None
    return tuple(table)


def _gpt2_bytes() -> dict[str, int]:
    """Byte of each character in a byte-level vocabulary: printable Latin-1 for itself, the others in order from U+0100
    on (the table of GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def _single_bytes(
    backend: tokenizers.Tokenizer, vocabulary: tuple[bytes | None, ...], byte_level: bool
) -> dict[int, int]:
    """Token of each single byte that has one. SentencePiece has `A` beside `<0x41>`; a byte outside a character uses
    the latter.

    Some vocabularies lack bytes that their training text did not contain, such as control characters.
    """
    if byte_level:
        return {data[0]: number for number, data in enumerate(vocabulary) if data is not None and len(data) == 1}
    spelled = ((byte, backend.token_to_id(f"<0x{byte:02X}>")) for byte in range(256))
    return {byte: number for byte, number in spelled if number is not None}


def ids_in(value: Any) -> set[int]:
    """Ids from an id, a list of ids or None, as the files of a model have them."""
    if value is None:
        return set()
    return {int(number) for number in value} if isinstance(value, list | tuple) else {int(value)}


def _named(backend: tokenizers.Tokenizer, token: Any) -> list[int]:
    """The id of a token that is given by its spelling, bare or as `{"content": ...}`."""
    spelled = spelling_of(token)
    number = None if spelled is None else backend.token_to_id(spelled)
    return [] if number is None else [number]
