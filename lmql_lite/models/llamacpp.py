"""GGUF files run in this process by llama.cpp, through the package llama-cpp-python: `llamacpp:FILE.gguf`.

Sequences share llama.cpp's cells of keys and values: a fork copies nothing, and a token that several requests have in
common is computed once. The least recently used sequences make room for others.

The package is imported when a model is loaded, not with this module.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.errors import ModelError
from lmql_lite.models.base import ModelObject, ScoreRequest
from lmql_lite.models.chat import ChatFormat, chat_of_template
from lmql_lite.models.collector import PassCollector
from lmql_lite.models.kv_rows import Lane
from lmql_lite.models.model_files import digest
from lmql_lite.models.packed_rows import ScoreJob
from lmql_lite.models.pass_probe import NEAREST, PIECES, remembered
from lmql_lite.models.tokenizer import ByteSpeller
from lmql_lite.tokens import common_length

Row = NDArray[np.float32]

_SEQUENCES = 32
_TOGETHER = 16
"""Requests in one pass; the other sequences keep their keys and values meanwhile."""
_PASS_TOKENS = 512
_CELLS = 16384
"""Tokens whose keys and values are kept at most, of all sequences together."""
_REDO_TOKENS = 16
"""A sequence that leaves another at most this many tokens before its end replaces it."""


class GGUFTokenizer:
    """Tokenizer of a GGUF file, by llama.cpp. `adds_space` is that of its family: a space before each text."""

    def __init__(self, vocab: Any) -> None:
        library = _library()
        self._vocab = vocab
        count = int(library.llama_vocab_n_tokens(vocab))
        attributes = [int(library.llama_vocab_get_attr(vocab, token)) for token in range(count)]
        hidden = library.LLAMA_TOKEN_ATTR_CONTROL | library.LLAMA_TOKEN_ATTR_UNKNOWN | library.LLAMA_TOKEN_ATTR_UNUSED
        self.eos = frozenset(token for token in range(count) if library.llama_vocab_is_eog(vocab, token))
        self.bos: tuple[int, ...] = ()
        if library.llama_vocab_get_add_bos(vocab):
            self.bos = (int(library.llama_vocab_bos(vocab)),)
        self.vocabulary: tuple[bytes | None, ...] = tuple(
            None if attributes[token] & hidden or token in self.eos else self._piece(token) or None
            for token in range(count)
        )
        self.special = {
            (library.llama_vocab_get_text(vocab, token) or b"").decode("utf-8", "replace"): token
            for token in range(count)
            if attributes[token] & library.LLAMA_TOKEN_ATTR_CONTROL
        }
        has_bytes = any(each & library.LLAMA_TOKEN_ATTR_BYTE for each in attributes)
        single = {
            data[0]: token
            for token, data in enumerate(self.vocabulary)
            if data is not None
            and len(data) == 1
            and (not has_bytes or attributes[token] & library.LLAMA_TOKEN_ATTR_BYTE)
        }
        self._speller = ByteSpeller(self.vocabulary, single)
        self.chat: ChatFormat | None = None

    def encode(self, text: bytes) -> tuple[int, ...]:
        """See `Tokenizer.encode`."""
        return self._speller.encode(text, self._characters)

    def _characters(self, text: str) -> list[int]:
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 1))()
        count = _library().llama_tokenize(self._vocab, data, len(data), ids, len(ids), False, False)
        return list(ids[: max(count, 0)])

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        size = _library().llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = _library().llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[: max(size, 0)]


@dataclass(slots=True)
class _Cell:
    """Token of a pass: its place, the sequences that it belongs to, and who wants the scores after it."""

    token: int
    place: int
    sequences: list[int]
    wanted: list[tuple[ScoreJob, int]] = field(default_factory=list)


class LlamaCppModel(ModelObject):
    """A Scorer (S35). Threads and event loops share it; requests that arrive at about the same time are one pass."""

    sequences = _TOGETHER
    """Number of sequences that are worth asking about at the same time."""

    def __init__(self, path: str) -> None:
        """Model of a GGUF file, by its path. Raises ModelError for a file that llama.cpp cannot load."""
        library, file = _library(), Path(path).expanduser()
        self.name = f"llamacpp:{path}"
        if not file.is_file():
            raise ModelError(f"{self.name}: there is no such file", hint="check the spelling of the path")
        self._model, kept = _loaded(library, file)
        if not self._model:
            raise ModelError(
                f"{self.name} cannot be read as a GGUF file", hint="is it whole, and is there memory for it?"
            )
        trained = int(library.llama_model_n_ctx_train(self._model))
        self.context_length = min(trained, _CELLS) if trained > 0 else _CELLS
        self._context = _context(library, self._model)
        weakref.finalize(self, _freed, library, self._context, self._model, kept)
        if not self._context:
            raise ModelError(f"{self.name} does not fit into memory", hint="use a smaller model")
        self._memory = library.llama_get_memory(self._context)
        self._moves_on = bool(library.llama_model_is_recurrent(self._model)) or bool(
            library.llama_model_is_hybrid(self._model)
        )
        """A state that cannot be cut: a sequence only grows, and another beginning is computed again."""
        vocab = library.llama_model_get_vocab(self._model)
        self.tokenizer = GGUFTokenizer(vocab)
        self.tokenizer.chat = self._chat(vocab)
        self.fingerprint = f"llamacpp:{digest(file)[:32]}"
        self.forward_passes = self.tokens_fed = 0
        self._width = len(self.tokenizer.vocabulary)
        self._live: dict[int, tuple[int, ...]] = {}
        """Ids by sequence, the least recently used first."""
        self._lanes: dict[int, Lane] = {}
        """Lanes of sequences, also of those that are gone."""
        self._lock = threading.Lock()
        self._collector = PassCollector(self.name)
        self.epsilon = 2 * remembered(f"{self.fingerprint} llama.cpp {version('llama-cpp-python')}", self._noise)
        """See `NoisyScorer.epsilon`."""
        self.forward_passes = self.tokens_fed = 0

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """See `Scorer.score`. A thread of the model computes, so that the event loop stays free."""
        jobs = [
            ScoreJob(*request.checked(self.name, self.context_length), request.counts, scope=request.scope)
            for request in requests
        ]
        for job in jobs:
            if job.ids and not 0 <= min(job.ids) <= max(job.ids) < self._width:
                raise ModelError(f"{self.name} has {self._width} tokens, but the text contains token {max(job.ids)}")
        return await self._collector.score(jobs, self._answered, _nothing)

    def _answered(self, jobs: Sequence[ScoreJob]) -> list[list[Row]]:
        with self._lock:
            ordered = sorted(jobs, key=lambda job: job.ids)
            try:
                for at in range(0, len(ordered), _TOGETHER):
                    self._run(ordered[at : at + _TOGETHER])
            except BaseException:
                self._forget()
                raise
        return [[job.rows[end] for end in job.ends] for job in jobs]

    def _forget(self) -> None:
        self._live.clear()
        _library().llama_memory_clear(self._memory, True)

    def _run(self, jobs: Sequence[ScoreJob]) -> None:
        """Computes the rows of at most `_TOGETHER` jobs, what they share once."""
        cells = list[_Cell]()
        known_cells = dict[tuple[object, int], int]()
        busy = dict[int, tuple[int, ...]]()
        for job in jobs:
            lane = Lane.of(0, job.scope)
            sequence, known = self._resumed(job.ids, min(job.ends) - 1, busy, lane)
            busy[sequence], self._lanes[sequence] = job.ids, lane
            fed, after = len(cells), object() if self._moves_on else (lane, job.ids[:known])
            for place in range(known, len(job.ids)):
                key = (after, job.ids[place])
                at = known_cells.setdefault(key, len(cells))
                if at == len(cells):
                    cells.append(_Cell(job.ids[place], place, []))
                cells[at].sequences.append(sequence)
                if place + 1 in job.ends:
                    cells[at].wanted.append((job, place + 1))
                after = at
            self._count(job, len(cells) - fed, known)
        for at in range(0, len(cells), _PASS_TOKENS):
            self._decode(cells[at : at + _PASS_TOKENS], busy)
        self._live |= busy

    def _count(self, job: ScoreJob, fed: int, known: int) -> None:
        self.tokens_fed += fed
        if job.counts is not None:
            job.counts.fed += fed
            if known:
                job.counts.reused["memory"] = job.counts.reused.get("memory", 0) + known

    def _resumed(
        self, ids: tuple[int, ...], limit: int, busy: dict[int, tuple[int, ...]], lane: Lane
    ) -> tuple[int, int]:
        """Sequence for these ids, which holds the longest known beginning of at most `limit` tokens, and its length."""
        library, best, known = _library(), None, 0
        for sequence, live in self._live.items():
            shared = min(common_length(live, ids), limit)
            if self._lanes[sequence] == lane and shared > known and (not self._moves_on or shared == len(live)):
                best, known = sequence, shared
        if best is not None and len(self._live[best]) - known <= _REDO_TOKENS:
            del self._live[best]
            if library.llama_memory_seq_rm(self._memory, best, known, -1):
                return best, known
            library.llama_memory_seq_rm(self._memory, best, -1, -1)
            return best, 0
        free = next((one for one in range(_SEQUENCES) if one not in self._live and one not in busy), None)
        if free is None:
            others = [one for one in self._live if one != best]
            free = others[0]
            del self._live[free]
        library.llama_memory_seq_rm(self._memory, free, -1, -1)
        if best is not None:
            library.llama_memory_seq_cp(self._memory, best, free, 0, known)
            self._live[best] = self._live.pop(best)
        return free, known

    def _decode(self, cells: Sequence[_Cell], busy: dict[int, tuple[int, ...]]) -> None:
        """One pass. Sequences that nobody asks about make room where there is none."""
        library = _library()
        batch = library.llama_batch_init(len(cells), 0, _SEQUENCES)
        try:
            batch.n_tokens = len(cells)
            for at, cell in enumerate(cells):
                batch.token[at], batch.pos[at], batch.n_seq_id[at] = cell.token, cell.place, len(cell.sequences)
                for number, sequence in enumerate(cell.sequences):
                    batch.seq_id[at][number] = sequence
                batch.logits[at] = bool(cell.wanted)
            while (code := library.llama_decode(self._context, batch)) == 1 and self._live:
                oldest = next(iter(self._live))
                del self._live[oldest]
                library.llama_memory_seq_rm(self._memory, oldest, -1, -1)
            if code:
                longest = max(map(len, busy.values()))
                raise ModelError(
                    f"{self.name} has no room for a text of {longest} tokens beside {len(busy) - 1} others",
                    hint="shorten the prompt, or ask for less at the same time",
                )
            self.forward_passes += 1
            for at, cell in enumerate(cells):
                if cell.wanted:
                    row = self._row(library.llama_get_logits_ith(self._context, at))
                    for job, end in cell.wanted:
                        job.rows[end] = row
        finally:
            library.llama_batch_free(batch)

    def _row(self, logits: Any) -> Row:
        """Normalised scores; a copy, since llama.cpp writes its own again."""
        values = np.ctypeslib.as_array(logits, shape=(self._width,)).astype(np.float64)
        values -= values.max()
        values -= np.log(np.exp(values).sum())
        if np.isnan(values).any():
            raise ModelError(f"{self.name} returned scores that are not numbers", hint="check its weights")
        return values.astype(np.float32)

    def _noise(self) -> float:
        """Largest difference between a text fed at once and in pieces, of the log-probabilities of the best tokens."""
        ends = tuple(end for end in np.cumsum(PIECES).tolist() if end <= self.context_length)
        spelled = [token for token, data in enumerate(self.tokenizer.vocabulary) if data is not None]
        ids = tuple(spelled[(7 * place * place + 3 * place) % len(spelled)] for place in range(ends[-1]))
        (once,) = self._answered([ScoreJob(ids, ends)])
        with self._lock:
            self._forget()
        worst = 0.0
        for number, (end, row) in enumerate(zip(ends, once, strict=True)):
            other = ScoreJob(ids[5 : 8 + number], (3 + number,))
            (again,), *_ = self._answered([ScoreJob(ids[:end], (end,)), other][: 1 + number % 2])
            best = np.argsort(-row)[:NEAREST]
            worst = max(worst, float(np.abs(row[best] - again[best]).max()))
        return worst

    def _chat(self, vocab: Any) -> ChatFormat | None:
        library = _library()
        template = library.llama_model_chat_template(self._model, None)
        if not template:
            return None
        named = {"bos_token": library.llama_vocab_bos(vocab), "eos_token": library.llama_vocab_eos(vocab)}
        texts = {name: library.llama_vocab_get_text(vocab, token) for name, token in named.items() if token >= 0}
        spelled = {name: text.decode("utf-8", "replace") for name, text in texts.items() if text}
        is_spaced = library.llama_vocab_type(vocab) == library.LLAMA_VOCAB_TYPE_SPM
        return chat_of_template(template.decode(), spelled, self.tokenizer.special, adds_space=is_spaced)


def _nothing() -> None:
    """Nothing is left to do after a pass."""


def _library() -> Any:
    import llama_cpp

    return llama_cpp


def _loaded(library: Any, file: Path) -> tuple[Any, Any]:
    """Model, None if it cannot be loaded, and what has to live as long."""
    library.llama_log_set(_silence(library), ctypes.c_void_p(0))
    library.llama_backend_init()
    parameters = library.llama_model_default_params()
    override = (library.llama_model_kv_override * 2)()  # the second one, without a key, is the end
    override[0].tag = library.LLAMA_KV_OVERRIDE_TYPE_BOOL
    override[0].key = b"tokenizer.ggml.add_space_prefix"
    override[0].value.val_bool = False
    parameters.kv_overrides = override
    return library.llama_model_load_from_file(str(file).encode(), parameters), override


@cache
def _silence(library: Any) -> Any:
    """Receiver of llama.cpp's log lines. Kept for ever, since llama.cpp goes on calling it."""
    return library.llama_log_callback(lambda level, text, data: None)


def _context(library: Any, model: Any) -> Any:
    parameters = library.llama_context_default_params()
    parameters.n_ctx = _CELLS
    parameters.n_batch = parameters.n_ubatch = _PASS_TOKENS
    parameters.n_seq_max = _SEQUENCES
    parameters.kv_unified = True
    parameters.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED  # its sums depend on what else is in a pass
    parameters.swa_full = True  # windows drop nothing, so that sequences can be cut
    threads = int(os.environ.get("OMP_NUM_THREADS") or 0) or os.cpu_count() or 1
    parameters.n_threads = parameters.n_threads_batch = threads
    return library.llama_init_from_model(model, parameters)


def _freed(library: Any, context: Any, model: Any, kept: Any) -> None:
    if context:
        library.llama_free(context)
    library.llama_model_free(model)
