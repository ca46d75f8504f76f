"""Dialects of the OpenAI protocol: capabilities and request formats of each kind of server.

Everything here is about kinds of servers, from their sources and documentation, never about a model. A field that a
server refuses anyway is left out from then on (`negotiation.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmql_lite.constraints.language import ANYTHING, Language
from lmql_lite.errors import ModelError
from lmql_lite.media import Media
from lmql_lite.models.base import Capabilities, CompletionRequest, JsonSchema, Prompt, PromptTurn
from lmql_lite.models.grammars import gbnf
from lmql_lite.options import Sampling
from lmql_lite.tokens import Tokenizer

Kind = Literal["openai", "vllm", "sglang", "llama.cpp", "ollama", "unknown"]
Body = dict[str, Any]

MAX_BYTES = 20 << 20
"""Largest item that is sent: the limit of most services."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_CLIPS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
LIMITS = ("max_completion_tokens", "max_tokens")
"""Names of the token limit in a chat: some models of OpenAI take only the first, most servers the second."""

CAN: Mapping[Kind, Capabilities] = {
    # xgrammar takes 20 to 60 ms for each rule that many tokens fit, llama.cpp next to nothing
    "vllm": Capabilities(
        takes_languages=True,
        most_rules=100,
        takes_schemas=True,
        alternatives=20,
        takes_seeds=True,
        scores=True,
        stops=16,
    ),
    "sglang": Capabilities(
        takes_languages=True, most_rules=100, takes_schemas=True, alternatives=20, scores=True, stops=16
    ),
    "llama.cpp": Capabilities(takes_languages=True, takes_schemas=True, alternatives=20, takes_seeds=True, stops=16),
    "ollama": Capabilities(
        chat_only=True, continues_turns=False, takes_schemas=True, alternatives=20, takes_seeds=True
    ),
    "openai": Capabilities(
        continues_turns=False, takes_schemas=True, alternatives=20, takes_seeds=True, bills_to_the_end=True
    ),
    "unknown": Capabilities(continues_turns=False, alternatives=20, takes_seeds=True, bills_to_the_end=True),
}
"""Capabilities of each kind, as far as they do not depend on its options. Ollama wraps every prompt in a chat template.
`stops` is 0 where the response does not name the stop string that it met."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Kind of a server, and what it can do."""

    kind: Kind
    can: Capabilities

    @property
    def is_known(self) -> bool:
        """False if a probe has to find out whether the server takes plain text."""
        return self.kind not in ("openai", "unknown")

    @property
    def takes_ids(self) -> bool:
        """True if prompts may be token ids. The server tokenises text itself, special tokens in it included."""
        return self.kind in ("vllm", "sglang", "llama.cpp")

    def is_native(self, chat: bool) -> bool:
        """True for llama.cpp's own route. It alone reports the stop string that ended a text, and all token ids."""
        return self.kind == "llama.cpp" and not chat

    def is_raw(self, request: CompletionRequest) -> bool:
        """True if log-probabilities are the model's own, before masks and temperature."""
        if request.pushed is not None:  # vLLM masks first, even where it reports values before temperature and bias
            return False
        # SGLang divides by the temperature first; for some others this is unknown
        return self.kind in ("vllm", "llama.cpp", "openai") or request.sampling.temperature in (0.0, 1.0)

    def route(self, body: Body, root: str) -> str:
        if "messages" in body:
            return "/chat/completions"
        return f"{root}/completion" if self.is_native(False) else "/completions"

    def body(self, model: str, prompt: Prompt, request: CompletionRequest, *, tokenizer: Tokenizer | None) -> Body:
        """Body of a request. With a tokenizer, tokens may be reported by id and the prompt is sent as ids (S12).

        Raises ModelError if the server has no form for the request.
        """
        chat, can = prompt[-1].role is not None, self.can
        body: Body = {"stream": True, **self.prompted(model, prompt, tokenizer), **self._sampling(request.sampling)}
        if request.sampling.effort is not None:
            if not chat:
                raise ModelError(f"effort= is for chats, and {model} takes plain text", hint="leave effort= out")
            body["reasoning_effort"] = request.sampling.effort
        # one more than requested, because the generated token is among them
        width = min(request.alternatives + 1, can.alternatives) if request.alternatives else 0
        most = min(
            request.max_tokens, can.context_length or request.max_tokens
        )  # vLLM refuses more in the answer alone
        if self.is_native(chat):
            body |= {"n_predict": most, "n_probs": width, "return_tokens": True, "timings_per_token": True}
        else:
            body[LIMITS[0] if chat and self.kind == "openai" else LIMITS[1]] = most
            if can.alternatives:
                body |= {"logprobs": True, "top_logprobs": width} if chat else {"logprobs": width}
            # with the second, an answer that is left early has told its usage so far
            every = {"continuous_usage_stats": True} if self.kind == "vllm" else {}
            body["stream_options"] = {"include_usage": True, **every}
        if self.kind == "vllm" or (self.kind == "sglang" and not chat):
            body["return_token_ids"] = True
            if tokenizer is not None and self.kind == "vllm" and not chat:  # in a chat, bytes come from the spelling
                body["return_tokens_as_token_ids"] = True
        if request.stops and can.stops and (self.kind != "llama.cpp" or not chat):
            body["stop"] = list(request.stops)
            including = {"vllm": "include_stop_str_in_output", "sglang": "no_stop_trim"}.get(self.kind)
            if including is not None:
                body[including] = True
        if request.begin:
            assert not isinstance(request.pushed, JsonSchema), "a schema speaks of the whole answer"
            body |= self._grammar((request.pushed or ANYTHING).begun_by(request.begin))
        elif isinstance(request.pushed, JsonSchema):
            body |= self._schema(request.pushed.text, chat)
        elif request.pushed is not None:
            body |= self._grammar(request.pushed)
        return body

    def prompted(self, model: str, prompt: Prompt, tokenizer: Tokenizer | None = None) -> Body:
        """Fields of a request that hold the prompt."""
        last = prompt[-1]
        if last.role is None:
            text: str | list[int] | list[str] = last.text
            if tokenizer is not None and self.takes_ids:
                text = [*tokenizer.bos, *tokenizer.encode(last.text.encode())]
            elif not text and self.kind == "vllm":
                text = [""]  # vLLM refuses "" as a missing prompt
            return {"model": model, "prompt": text} | ({"cache_prompt": True} if self.is_native(False) else {})
        turns = prompt if last.text or last.role != "assistant" else prompt[:-1]
        if not turns:
            raise ModelError(f"the prompt of {model} is empty", hint="begin it with a user's turn")
        body: Body = {"model": model, "messages": [{"role": turn.role, "content": content(turn)} for turn in turns]}
        if turns[-1].role == "assistant":
            if not self.can.continues_turns:
                raise ModelError(
                    f"the server of {model} cannot continue a turn of the assistant that has begun",
                    hint="let the assistant's turn begin with the hole",
                )
            body["continue_final_message"] = True
            if self.kind != "sglang":  # the default begins a new turn, and both together are refused
                body["add_generation_prompt"] = False
        return body

    def _sampling(self, sampling: Sampling) -> Body:
        """Sampling fields, complete for servers that would otherwise use the model's defaults, penalties included."""
        greedy = sampling.temperature == 0.0
        body: Body = {"temperature": sampling.temperature}
        known = {"top_p"}
        if self.can.takes_languages:  # these take all of them
            known |= {"top_k", "min_p"}
            is_llama = self.kind == "llama.cpp"
            body |= {"top_p": 1.0, "top_k": 0 if is_llama else -1, "min_p": 0.0}
            body["repeat_penalty" if is_llama else "repetition_penalty"] = 1.0
        for name, value in ({} if greedy else sampling.truncation).items():
            if name not in known:
                raise ModelError(f"this server does not support {name}=", hint="use temperature= and top_p=")
            body[name] = value
        if not greedy and self.can.takes_seeds:
            body["seed"] = (sampling.seed + sampling.index * 0x9E3779B1) % 2**31
        return body

    def _grammar(self, language: Language) -> Body:
        """Fields of a grammar, for a server that takes one."""
        grammar = gbnf(language)
        if self.kind == "vllm":
            return {"structured_outputs": {"grammar": grammar}}
        return {"ebnf" if self.kind == "sglang" else "grammar": grammar}

    def _schema(self, text: str, chat: bool) -> Body:
        schema = json.loads(text)
        if self.kind == "vllm":
            return {"structured_outputs": {"json": schema}}
        if not chat and self.takes_ids:
            return {"json_schema": text if self.kind == "sglang" else schema}
        form = {"name": "answer", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": form}}


def content(turn: PromptTurn) -> str | list[dict[str, Any]]:
    """Content of a turn: its text, or a list of parts where it has items. Raises InputError at the place of an item
    that is too large or of a format that the protocol does not know."""
    if not turn.media:
        return turn.text
    parts: list[dict[str, Any]] = []
    begin = 0
    for place, item in turn.media:
        parts += [{"type": "text", "text": turn.text[begin:place]}] if place > begin else []
        parts.append(_part(item))
        begin = place
    return parts + ([{"type": "text", "text": turn.text[begin:]}] if turn.text[begin:] else [])


def _part(item: Media) -> dict[str, Any]:
    if len(item.data) > MAX_BYTES:
        problem = f"has {len(item.data) / 2**20:.1f} MiB, and a server is sent {MAX_BYTES >> 20} at most"
        raise item.wrong(problem, "make it smaller")
    data = base64.b64encode(item.data).decode()
    if item.modality == "image" and item.mime in _PICTURES:
        return {"type": "image_url", "image_url": {"url": f"data:{item.mime};base64,{data}"}}
    if item.modality == "audio" and item.mime in _CLIPS:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _CLIPS[item.mime]}}
    if item.modality == "video" and item.mime is not None and item.mime.startswith("video/"):
        return {"type": "video_url", "video_url": {"url": f"data:{item.mime};base64,{data}"}}
    known = {"image": "PNG, JPEG, GIF or WebP", "audio": "WAV or MP3", "video": "MP4 or WebM"}[item.modality]
    raise item.wrong("is of a format that servers do not take", f"convert it to {known}")
