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
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lmql_lite.errors import ModelError
from lmql_lite.models.base import Row, Scorer, ScoreRequest
from lmql_lite.models.chat import ChatFormat, chat_of_template
from lmql_lite.models.collector import PassCollector
from lmql_lite.models.live import Lane, Live, LiveSequences, ScoreJob
from lmql_lite.models.model_files import digest, remembered
from lmql_lite.models.tokenizer import ByteSpeller

_SEQUENCES = 32
_TOGETHER = 16
"""Requests in one pass; the other sequences keep their keys and values meanwhile."""
_PASS_TOKENS = 512
_CELLS = 16384
"""Tokens whose keys and values are kept at most, of all sequences together."""
_PIECES = (1, 4, 16, 256, 1, 4, 16)
"""Numbers of tokens in which the probe feeds a text."""
_NEAREST = 32
"""Number of the best tokens whose scores the probe compares."""


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


class LlamaCppModel(Scorer):
    """Model that llama.cpp runs. Threads and event loops share it; requests that arrive together are one pass."""

    sequences = _TOGETHER
    tokenizer: GGUFTokenizer

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
        self._live = LiveSequences[int](_SEQUENCES, can_cut=not self._moves_on)
        """Sequences of llama.cpp, by their numbers."""
        self._lock = threading.Lock()
        self._collector = PassCollector(self.name)
        probed = f"{self.fingerprint} llama.cpp {version('llama-cpp-python')}"
        self.epsilon = 2 * remembered(probed, lambda: {"noise": self._noise()})["noise"]
        self.forward_passes = self.tokens_fed = 0

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """See `Scorer.score`. A thread of the model computes, so that the event loop stays free."""
        jobs = [ScoreJob.of(request, self.name, self.context_length, self._width) for request in requests]
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
        self._live.all.clear()
        _library().llama_memory_clear(self._memory, True)

    def _run(self, jobs: Sequence[ScoreJob]) -> None:
        """Computes the rows of at most `_TOGETHER` jobs, what they share once."""
        cells = list[_Cell]()
        known_cells = dict[tuple[object, int], int]()
        busy = dict[int, tuple[ScoreJob, Lane]]()
        for job in jobs:
            lane = Lane.of(0, job.scope)
            sequence, known = self._resumed(job.ids, min(job.ends) - 1, busy, lane)
            busy[sequence] = job, lane
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
            self.tokens_fed += len(cells) - fed
            if job.counts is not None:
                job.counts.add(len(cells) - fed, known)
        for at in range(0, len(cells), _PASS_TOKENS):
            self._decode(cells[at : at + _PASS_TOKENS], [job for job, _ in busy.values()])
        for sequence, (job, lane) in busy.items():
            self._live.all.append(Live(job.ids, sequence, lane))

    def _resumed(self, ids: tuple[int, ...], limit: int, busy: Container[int], lane: Lane) -> tuple[int, int]:
        """Sequence for these ids, which holds the longest known beginning of at most `limit` tokens, and its length."""
        library = _library()
        live, known = self._live.longest(ids, limit, lane)
        if live is not None and self._live.take(live, known):
            if library.llama_memory_seq_rm(self._memory, live.state, known, -1):
                return live.state, known
            library.llama_memory_seq_rm(self._memory, live.state, -1, -1)
            return live.state, 0
        taken = {one.state for one in self._live.all}
        free = next((one for one in range(_SEQUENCES) if one not in taken and one not in busy), None)
        if free is None:
            oldest = next(one for one in self._live.all if one is not live)
            self._live.all.remove(oldest)
            free = oldest.state
        library.llama_memory_seq_rm(self._memory, free, -1, -1)
        if live is not None:
            library.llama_memory_seq_cp(self._memory, live.state, free, 0, known)
            self._live.all.remove(live)
            self._live.all.append(live)
        return free, known

    def _decode(self, cells: Sequence[_Cell], jobs: Sequence[ScoreJob]) -> None:
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
            while (code := library.llama_decode(self._context, batch)) == 1 and self._live.all:
                library.llama_memory_seq_rm(self._memory, self._live.all.pop(0).state, -1, -1)
            if code:
                longest = max(len(job.ids) for job in jobs)
                raise ModelError(
                    f"{self.name} has no room for a text of {longest} tokens beside {len(jobs) - 1} others",
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
        ends = tuple(end for end in np.cumsum(_PIECES).tolist() if end <= self.context_length)
        spelled = [token for token, data in enumerate(self.tokenizer.vocabulary) if data is not None]
        ids = tuple(spelled[(7 * place * place + 3 * place) % len(spelled)] for place in range(ends[-1]))
        (once,) = self._answered([ScoreJob(ids, ends)])
        with self._lock:
            self._forget()
        worst = 0.0
        for number, (end, row) in enumerate(zip(ends, once, strict=True)):
            other = ScoreJob(ids[5 : 8 + number], (3 + number,))
            (again,), *_ = self._answered([ScoreJob(ids[:end], (end,)), other][: 1 + number % 2])
            best = np.argsort(-row)[:_NEAREST]
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
