"""HFTokenizer: bytes in, the same bytes out, whatever they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from lmql_lite.assets import asset
from lmql_lite.errors import ModelError
from lmql_lite.models.tokenizer import HFTokenizer
from tests.models.templates import sentence_piece

DEMO = HFTokenizer.from_folder(asset("demo/model", "config.json").parent)


def joined(tokenizer: HFTokenizer, ids: tuple[int, ...]) -> bytes:
    return b"".join(tokenizer.vocabulary[number] or b"?" for number in ids)


SENTENCEPIECE = HFTokenizer(sentence_piece(), bos=(1,), eos=(2,))


@given(st.binary(max_size=200))
def test_any_bytes_come_back(data: bytes) -> None:
    assert joined(DEMO, DEMO.encode(data)) == data
    assert joined(SENTENCEPIECE, SENTENCEPIECE.encode(data)) == data


@given(st.text(max_size=100))
def test_any_text_comes_back(text: str) -> None:
    assert joined(DEMO, DEMO.encode(text.encode())) == text.encode()
    assert joined(SENTENCEPIECE, SENTENCEPIECE.encode(text.encode())) == text.encode()


@given(st.text(max_size=20), st.integers(0, 40), st.integers(0, 40))
def test_a_cut_inside_a_character_is_no_trouble(text: str, start: int, end: int) -> None:
    data = f"é{text}😀".encode()[start:end]
    assert joined(DEMO, DEMO.encode(data)) == data


def test_spellings_of_special_tokens_are_plain_text() -> None:
    ids = DEMO.encode(b"a <|eos|> and a <|bos|>")
    assert not {0, 1} & set(ids)
    assert joined(DEMO, ids) == b"a <|eos|> and a <|bos|>"
    assert joined(SENTENCEPIECE, SENTENCEPIECE.encode(b"</s>")) == b"</s>"
    assert not {1, 2} & set(SENTENCEPIECE.encode(b"<s></s>"))


def test_special_ids_have_no_bytes_and_every_byte_has_a_token() -> None:
    assert (DEMO.bos, DEMO.eos) == ((0,), frozenset({1}))
    assert DEMO.vocabulary[0] is None and DEMO.vocabulary[1] is None
    assert {data for data in DEMO.vocabulary if data is not None and len(data) == 1} == {
        bytes([byte]) for byte in range(256)
    }


def test_nothing_is_added_in_front() -> None:
    assert SENTENCEPIECE.encode(b"Hi") == (SENTENCEPIECE.vocabulary.index(b"Hi"),)
    assert SENTENCEPIECE.encode(b" Hi") == (SENTENCEPIECE.vocabulary.index(b" Hi"),)
    assert DEMO.encode(b"") == ()


def test_an_added_space_and_a_normaliser_are_taken_out_of_a_byte_level_tokenizer() -> None:
    folder = asset("demo/model", "config.json").parent
    state = json.loads((folder / "tokenizer.json").read_bytes())
    state["normalizer"] = {"type": "NFC"}
    state["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True
    changed = HFTokenizer(Tokenizer.from_str(json.dumps(state)), bos=(0,), eos=(1,))
    for text in ("the sea", "e\u0301te\u0301", "\u2126"):
        assert changed.encode(text.encode()) == DEMO.encode(text.encode())


def test_ids_beyond_the_tokenizer_have_no_bytes() -> None:
    padded = HFTokenizer(sentence_piece(), size=300)
    assert len(padded.vocabulary) == 300
    assert padded.vocabulary[299] is None


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ModelError, match="neither byte-level nor"):
        HFTokenizer(backend)


def test_a_text_with_a_character_that_no_token_spells_names_it() -> None:
    backend = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = HFTokenizer(backend)
    assert tokenizer.encode(b"abba") == (2, 1, 0)
    with pytest.raises(ModelError, match=r"no token for the character '\\x07' \(U\+0007\)") as caught:
        tokenizer.encode(b"ab\x07")
    assert caught.value.hint
    with pytest.raises(ModelError, match="'é'"):
        tokenizer.encode("aéa".encode())
    with pytest.raises(ModelError, match="the byte 0xC3"):
        tokenizer.encode(b"a\xc3")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        HFTokenizer.from_folder(tmp_path)


def test_special_ids_are_read_from_the_files_beside_the_tokenizer(tmp_path: Path) -> None:
    sentence_piece().save(str(tmp_path / "tokenizer.json"))
    settings = {"add_bos_token": True, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    read = HFTokenizer.from_folder(tmp_path)
    assert (read.bos, read.eos) == ((1,), frozenset({2, 5}))
