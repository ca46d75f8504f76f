"""Documents into rows of token ids: whole documents, none cut, packed tightly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from random import Random

import torch
from corpus import Document
from subwords import BOS, EOS
from tokenizers import Tokenizer
from torch import Tensor

LONG_ROW = 512
"""Tokens in a row for long documents, the model's whole context."""
SHORT_ROW = 128
"""Most documents fit here, where attention costs a quarter."""
CUT_TEXTS = 0.2
"""The share of texts that are cut before they are encoded."""
_CUT_BEFORE = " \n.,:;?!\"'`()<>=#-{}"
_OPEN_ROWS = 48
"""So many rows are filled side by side; a document goes into the fullest one that still has room."""


@dataclass(slots=True)
class _Row:
    ids: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one length."""

    ids: Tensor
    """(rows, length)"""
    documents: Tensor
    """Number of the document in its row, -1 in the padding."""
    targets: Tensor
    """The next id of the same document, -100 where there is none."""


Batch = list[Rows]
"""What one training step sees: short rows and long rows."""


def batches(tokenizer: Tokenizer, documents: Iterable[Document | str], tokens: int) -> Iterator[Batch]:
    """Batches of about `tokens` tokens; rows still open at the end come in a last, smaller batch."""
    packers = (_Packer(SHORT_ROW), _Packer(LONG_ROW))
    for ids in encoded(tokenizer, documents):
        packers[len(ids) > SHORT_ROW].add(ids)
        if sum(len(packer.full) * packer.length for packer in packers) >= tokens:
            yield [rows for packer in packers if (rows := packer.take())]
    for packer in packers:
        packer.full += packer.open
        packer.open = []
    if last := [rows for packer in packers if (rows := packer.take())]:
        yield last


class _Packer:
    """Fills rows of one length."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.open: list[_Row] = []
        self.full: list[_Row] = []

    def add(self, ids: list[int]) -> None:
        fitting = [row for row in self.open if len(row.ids) + len(ids) <= self.length]
        if fitting:
            row = max(fitting, key=lambda row: len(row.ids))
        else:
            if len(self.open) >= _OPEN_ROWS:
                fullest = max(self.open, key=lambda row: len(row.ids))
                self.open.remove(fullest)
                self.full.append(fullest)
            row = _Row()
            self.open.append(row)
        row.ids += ids
        row.documents += [row.count] * len(ids)
        row.count += 1

    def take(self) -> Rows | None:
        """The full rows, which are then gone."""
        full, self.full = self.full, []
        if not full:
            return None
        ids = torch.zeros(len(full), self.length, dtype=torch.long)
        documents = torch.full((len(full), self.length), -1)
        for place, row in enumerate(full):
            ids[place, : len(row.ids)] = torch.tensor(row.ids)
            documents[place, : len(row.ids)] = torch.tensor(row.documents)
        targets = torch.full_like(ids, -100)
        same = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        targets[:, :-1] = torch.where(same, ids[:, 1:], -100)
        return Rows(ids, documents, targets)


def encoded(tokenizer: Tokenizer, documents: Iterable[Document | str], chunk: int = 2_000) -> Iterator[list[int]]:
    """The ids of each document between its begin and end token; longer than a row is left out."""
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    rng = Random(0)
    pending = iter(documents)
    while pieces := [_pieces(rng, document) for document in islice(pending, chunk)]:
        flat = [piece for document in pieces for piece in document]
        encodings = iter(tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        for document in pieces:
            ids = [bos, *(number for encoding in islice(encodings, len(document)) for number in encoding.ids), eos]
            if len(ids) <= LONG_ROW:
                yield ids


def _pieces(rng: Random, document: Document | str) -> list[str]:
    """The text in the pieces that are encoded one by one.

    A prompt may end anywhere, and so may what a tool writes, also inside what would be one token of the whole text.
    Some training texts are therefore cut in a few places, mostly beside punctuation. Held-out texts never are.
    """
    if isinstance(document, str):
        return [document]
    text = document.text
    if rng.random() > CUT_TEXTS:
        return [text]
    beside = [place for place in range(1, len(text)) if text[place] in _CUT_BEFORE or text[place - 1] in _CUT_BEFORE]
    cuts = {
        rng.choice(beside) if beside and rng.random() < 0.7 else rng.randrange(len(text) + 1)
        for _ in range(1 + len(text) // 120)
    }
    places = [0, *sorted(cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places) if start < end]
