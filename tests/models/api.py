"""What the tests of models behind an API share: the kinds of server, and how they are asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from lmql_lite.errors import ModelError
from lmql_lite.models.base import CompletionRequest, Prompt, PromptTurn, StreamPiece
from lmql_lite.models.openai.model import OpenAIModel
from lmql_lite.models.scripted import WORDS
from lmql_lite.options import Sampling
from tests.servers.kinds import (
    LLAMA_CPP,
    OLLAMA,
    OPENAI_CHAT,
    OPENAI_REASONING,
    OPENAI_TEXT,
    SGLANG,
    VLLM,
)
from tests.servers.stub import Server

KEY = "sk-secret-0123456789"
TEXT: Prompt = (PromptTurn(None, ""),)
CHAT: Prompt = (PromptTurn("user", ""),)
NO_MERGED = tuple(word for word in WORDS if word.isascii())
"""With these every character beyond ASCII is several tokens."""
SPOKEN = "Ein naïver Gruß: 😀!\n- Option A\n"
DRAWN = Sampling(temperature=1.0, seed=3)
CONFIGS = [OPENAI_TEXT, OPENAI_CHAT, OPENAI_REASONING, VLLM, SGLANG, LLAMA_CPP, OLLAMA]
NAMES = ["openai-text", "openai-chat", "reasoning", "vllm", "sglang", "llama.cpp", "ollama"]
TELLING = [VLLM, SGLANG, LLAMA_CPP]
"""Those that say which stop string has ended an answer."""
Answer = TypeVar("Answer")


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    return asyncio.run(work)


def model(server: Server, **options: Any) -> OpenAIModel:
    return OpenAIModel(server.config.model, **{"base_url": server.base_url, "api_key": KEY} | options)


async def pieces_of(asked: OpenAIModel, prompt: Prompt, request: CompletionRequest) -> list[StreamPiece]:
    return [piece async for piece in asked.stream(prompt, request)]


def ask(
    server: Server, request: CompletionRequest | None = None, prompt: Prompt | None = None, **options: Any
) -> list[StreamPiece]:
    prompt = prompt or (CHAT if not server.config.text or server.config.kind == "ollama" else TEXT)
    temperature = server.config.only_temperature or 0.0
    return run(
        pieces_of(model(server, **options), prompt, request or CompletionRequest(60, sampling=Sampling(temperature)))
    )


def text(pieces: Sequence[StreamPiece]) -> str:
    return b"".join(piece.data for piece in pieces).decode()


def failing(
    server: Server, request: CompletionRequest | None = None, prompt: Prompt | None = None, **options: Any
) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(server, request, prompt, **options)
    return caught.value


def counted(server: Server) -> tuple[int, int, int]:
    return server.requests, server.prompt_tokens, server.completion_tokens


def sse(*events: object) -> str:
    return "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)


def choice(**parts: object) -> dict[str, object]:
    return {"choices": [{"index": 0, **parts}]}
