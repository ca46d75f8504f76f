"""What the stub answers: each kind of server in its own form, event by event."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.servers.kinds import Config
from tests.servers.voice import Generated, Policy, Voice

Event = dict[str, Any]


def text_of(message: dict[str, Any]) -> str:
    """Text of a message, whose pictures say nothing here."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class Refused(Exception):
    """An error as a server tells it."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


@dataclass(slots=True)
class _Chunk:
    """What is sent at once."""

    text: str
    said: list[Generated]
    finish: str | None = None
    stop: str | None = None


class Answer:
    """A request, checked, and what is answered. Raises Refused for what the server does not take."""

    def __init__(self, config: Config, voice: Voice, path: str, body: dict[str, Any]) -> None:
        self.config = config
        self.voice = voice
        self.body = body
        self.chat = path == "v1/chat/completions"
        self.native = path == "completion" and config.kind == "llama.cpp"
        self.generated = 0
        if not (self.chat or self.native or path == "v1/completions"):
            raise Refused(404, "Not Found")
        self._check_route()
        self._check_fields()
        self.is_scoring = bool(body.get("echo")) or "prompt_logprobs" in body
        prompt = body.get("prompt")
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            self.prompts = [tuple(prompt)]
        elif isinstance(prompt, list) and all(isinstance(ids, list) for ids in prompt):
            self.prompts = [tuple(ids) for ids in prompt]
        else:
            self.prompts = [voice.encode(text) for text in self._texts()]
        self.limit: int = next(
            (body[name] for name in ("max_completion_tokens", "max_tokens", "n_predict") if name in body), 16
        )
        self._check_room()

    def _check_route(self) -> None:
        if self.body.get("model") != self.config.model:
            name = self.body.get("model")
            raise Refused(404, f"The model `{name}` does not exist", param="model", code="model_not_found")
        if self.chat and not self.config.chat:
            told = "This is not a chat model and thus not supported in the v1/chat/completions endpoint."
            raise Refused(404, told, param="model")
        if not self.chat and not self.native and not self.config.text:
            told = "This is a chat model and not supported in the v1/completions endpoint."
            raise Refused(404, told, param="model")

    def _check_room(self) -> None:
        size, context = len(self.prompts[0]), self.config.context
        if self.config.kind == "llama.cpp":
            if size >= context:
                told = (
                    f"request ({size} tokens) exceeds the available context size ({context} tokens), try increasing it"
                )
                raise Refused(400, told)
            self.limit = min(self.limit, context - size)
        elif self.config.kind == "vllm":
            if self.limit > context:
                told = f"max_tokens={self.limit} cannot be greater than max_model_len={context}. Please request fewer "
                raise Refused(400, f"{told}output tokens. (parameter=max_tokens, value=...)", param="max_tokens")
            if size >= context:
                told = f"This model's maximum context length is {context} tokens. However, your prompt contains at "
                told += f"least {size} input tokens, which exceeds this limit even without any output tokens."
                raise Refused(400, told, param="input_tokens")
            self.limit = min(self.limit, context - size)
        elif size + self.limit > context:
            raise Refused(
                400,
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{size + self.limit} tokens ({size} in the messages, {self.limit} in the completion).",
                code="context_length_exceeded",
            )

    def _check_fields(self) -> None:
        fields = self.config.fields(chat=self.chat, native=self.native)
        for name, value in self.body.items():
            if name not in fields:
                raise Refused(400, f"Unrecognized request argument supplied: {name}")
            if name in self.config.refuses:
                told = f"Unsupported parameter: '{name}' is not supported with this model."
                raise Refused(400, told, param=name, code="unsupported_parameter")
            if not isinstance(value, fields[name]) or (isinstance(value, bool) and bool not in fields[name]):
                raise Refused(400, f"Invalid type for '{name}': got {value!r}", param=name, code="invalid_type")
        needed = "messages" if self.chat else "prompt"
        if needed not in self.body:
            raise Refused(400, f"Missing required parameter: '{needed}'", param=needed)
        width = "top_logprobs" if self.chat else "logprobs"
        if self.body.get(width, 0) > self.config.width:
            told = f"Invalid value for '{width}': must be less than or equal to {self.config.width}"
            raise Refused(400, told, param=width)
        only = self.config.only_temperature
        if only is not None and self.body.get("temperature", only) != only:
            told = f"Unsupported value: 'temperature' does not support {self.body['temperature']} with this model."
            raise Refused(400, told, param="temperature")
        if self.config.kind == "openai" and len(self.body.get("stop", [])) > 4:
            raise Refused(400, "Invalid 'stop': at most 4", param="stop")
        if self.body.get("stream") is not True and "stream_options" in self.body:
            raise Refused(400, "The 'stream_options' parameter is only allowed when 'stream' is enabled.")

    def _texts(self) -> list[str]:
        if not self.chat:
            prompt = self.body["prompt"]
            if not prompt and self.config.kind == "vllm":
                raise Refused(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
            return [prompt] if isinstance(prompt, str) else list(prompt)
        for message in self.body["messages"]:
            if set(message) != {"role", "content"} or message["role"] not in ("system", "user", "assistant"):
                raise Refused(400, f"Invalid message: {message!r}", param="messages")
        continues = self.body.get("continue_final_message", False)
        if (self.body["messages"][-1]["role"] == "assistant") != continues:
            raise Refused(400, "the last message is not the user's", param="messages")
        if continues and self.config.kind != "sglang" and self.body.get("add_generation_prompt", True):
            raise Refused(400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return ["".join(text_of(message) for message in self.body["messages"])]

    async def events(self, cached: int) -> AsyncIterator[Event]:
        """The events of a stream, but for `[DONE]`."""
        if self.native:
            async for chunk in self._chunks():
                yield self._native(chunk, cached)
            return
        every = self.config.tells_usage and self.body.get("stream_options", {}).get("continuous_usage_stats")
        async for event in self._choices():
            yield event | ({"usage": self._usage(cached)} if every else {})
        if self.config.tells_usage and self.body.get("stream_options", {}).get("include_usage"):
            yield self._event(None) | {"usage": self._usage(cached)}

    async def _choices(self) -> AsyncIterator[Event]:
        if self.chat and self.config.kind in ("openai", "vllm", "sglang", "llama.cpp"):
            nothing = None if self.config.kind == "llama.cpp" else ""
            yield self._event({"delta": {"role": "assistant", "content": nothing}, "logprobs": None})
        if self.chat:
            for word in self.config.thoughts.split():
                self.generated += 1
                thought = "reasoning" if self.config.kind == "vllm" else "reasoning_content"
                yield self._event({"delta": {thought: f"{word} "}})
                if self.generated == self.limit:
                    yield self._event(self._choice(_Chunk("", [], "length")))
                    return
        async for chunk in self._chunks():
            if chunk.finish is None or self._ends_together:
                yield self._event(self._choice(chunk))
                continue
            if chunk.text:
                yield self._event(self._choice(_Chunk(chunk.text, chunk.said)))
            yield self._event(self._choice(_Chunk("", [], chunk.finish, chunk.stop)))

    @property
    def _ends_together(self) -> bool:
        """The last text and why it ends come in one event."""
        return self.config.kind == "vllm" or (self.config.kind == "sglang" and not self.chat)

    async def _chunks(self) -> AsyncIterator[_Chunk]:
        stop = self.body.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        whole, told = "", 0
        waiting: list[Generated] = []
        try:
            async for said in self.voice.speak(self.prompts[0], self._policy()):
                await asyncio.sleep(self.config.seconds_per_token)
                self.generated += 1
                waiting.append(said)
                whole += decoder.decode(said.data or b"")
                found = next((one for one in stops if one in whole), None)
                if said.data is None or found or self.generated >= self.limit:
                    keeps = self.body.get("include_stop_str_in_output") or self.body.get("no_stop_trim")
                    if found and not self.body.get("no_stop_trim"):
                        whole = whole[: whole.find(found) + (len(found) if keeps else 0)]
                    if self.native:  # the last token is told before the end is
                        if said.data is not None:
                            yield _Chunk(whole[told:], [said])
                            told = len(whole)
                        waiting = []
                    yield _Chunk(whole[told:], waiting, "stop" if said.data is None or found else "length", found)
                    return
                # a server that leaves stop strings out does not show their beginnings either
                shown = len(whole) - (0 if self.body.get("include_stop_str_in_output") else _begun(whole, stops))
                if self.native and not decoder.getstate()[0]:
                    yield _Chunk(whole[told:shown], [said])  # with nothing in it where all is held back
                    told, waiting = shown, []
                elif len(waiting) >= self.config.tokens_per_event and shown > told:
                    yield _Chunk(whole[told:shown], waiting)
                    told, waiting = shown, []
        except ValueError as error:
            raise Refused(400, str(error)) from None

    def _policy(self) -> Policy:
        body = self.body
        bias = body.get("logit_bias") or {}
        bias = {token: -100 for token, _ in bias} if isinstance(bias, list) else bias
        held = body.get("structured_outputs") or {}
        grammar = body.get("grammar") or body.get("ebnf") or held.get("grammar")
        schema = held.get("json") or body.get("json_schema")
        form = body.get("response_format") or {}
        schema = form["json_schema"]["schema"] if form.get("type") == "json_schema" else schema
        if schema is not None:
            grammar = schema if isinstance(schema, str) else json.dumps(schema)
        return Policy(
            float(body.get("temperature", 1.0)),
            body.get("seed", 0),
            max(body.get("top_k", 0), 0),
            body.get("top_p", 1.0),
            {int(token): float(value) for token, value in bias.items()},
            grammar,
            schema is not None,
            rows=any(body.get(name) not in (None, False) for name in ("logprobs", "n_probs")),
        )

    def _choice(self, chunk: _Chunk) -> Event:
        choice: Event = {"index": 0, "finish_reason": chunk.finish, "logprobs": None}
        if self.chat:
            choice["delta"] = {"content": chunk.text} if chunk.text or chunk.finish is None else {}
        else:
            choice["text"] = chunk.text
        said = [one for one in chunk.said if one.data is not None or self.config.kind == "vllm"]
        if (said or not self.chat) and self.body.get("logprobs") not in (None, False):
            choice["logprobs"] = self._chat_scores(said) if self.chat else self._scores(said)
        if self.body.get("return_token_ids"):
            choice["token_ids"] = [one.token for one in chunk.said]
        if self.config.kind == "vllm":
            choice["stop_reason"] = chunk.stop
        if self.config.kind == "sglang" and chunk.finish is not None:
            choice["matched_stop"] = chunk.stop if chunk.stop or chunk.finish == "length" else 1
        return choice

    def _scores(self, said: list[Generated]) -> Event:
        width = self.body["logprobs"]
        tops = [self.voice.best(one.row, width) if one.row is not None else [] for one in said]
        return {
            "tokens": [self._spelled(one.token) for one in said],
            "token_logprobs": [float(one.row[one.token]) if one.row is not None else None for one in said],
            "top_logprobs": [{self._spelled(token): score for token, score in top} for top in tops],
            "text_offset": [0 for _ in said],
        }

    def _chat_scores(self, said: list[Generated]) -> Event:
        width = self.body.get("top_logprobs", 0)
        return {"content": [self._entry(one, width) for one in said]}

    def _entry(self, said: Generated, width: int) -> Event:
        assert said.row is not None
        top = [self._named(token, score) for token, score in self.voice.best(said.row, width)]
        entry = self._named(said.token, float(said.row[said.token])) | {"top_logprobs": top}
        if self.config.kind == "vllm" and said.data is not None:  # of the others they are the bytes of the spelling
            entry["bytes"] = list(said.data.decode("utf-8", "replace").encode())
        return entry

    def _named(self, token: int, score: float) -> Event:
        data = self.voice.data(token)
        named: Event = {"token": self._spelled(token), "logprob": score, "bytes": list(data) if data else None}
        if self.config.kind in ("vllm", "sglang"):
            named["bytes"] = list(named["token"].encode())
        return named | ({"id": token} if self.config.kind == "llama.cpp" else {})

    def _spelled(self, token: int) -> str:
        if self.body.get("return_tokens_as_token_ids"):
            return f"token_id:{token}"
        data = self.voice.data(token)
        return f"<|{token}|>" if data is None else data.decode("utf-8", "replace")

    def _native(self, chunk: _Chunk, cached: int) -> Event:
        event: Event = {"index": 0, "content": chunk.text, "tokens": [], "stop": chunk.finish is not None}
        if chunk.said:
            last = chunk.said[-1]
            event["tokens"] = [last.token]
            if last.row is not None and self.body.get("n_probs"):
                # what it calls the bytes of the token is the text of the event
                entry = self._entry(last, self.body["n_probs"]) | {"bytes": list(chunk.text.encode())}
                event["completion_probabilities"] = [entry]
        prompt = len(self.prompts[0])
        event |= {"tokens_evaluated": prompt, "tokens_predicted": self.generated}
        if chunk.finish is None:
            return event | ({"timings": {"prompt_n": prompt - cached}} if self.body.get("timings_per_token") else {})
        kind = "word" if chunk.stop else {"stop": "eos", "length": "limit"}[chunk.finish]
        return event | {
            "stop_type": kind,
            "stopping_word": chunk.stop or "",
            "timings": {"prompt_n": prompt - cached},
        }

    def _event(self, choice: Event | None) -> Event:
        form = {True: "chat.completion.chunk", False: "text_completion"}[self.chat]
        event: Event = {"id": "1", "object": form, "created": 1, "model": f"{self.config.model}-{self.config.snapshot}"}
        return event | {"choices": [] if choice is None else [{"index": 0, "finish_reason": None, **choice}]}

    def _usage(self, cached: int) -> Event:
        prompt = len(self.prompts[0])
        usage: Event = {"prompt_tokens": prompt, "completion_tokens": self.generated}
        usage["total_tokens"] = prompt + self.generated
        return usage | {"prompt_tokens_details": {"cached_tokens": cached}}


def _begun(text: str, stops: list[str]) -> int:
    """How many characters at the end of a text may be the beginning of a stop string."""
    return max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)


async def scored(answer: Answer) -> Event:
    """Prompts with the log-probabilities of their own tokens, as vLLM and SGLang tell them, in one piece."""
    choices = []
    for place, ids in enumerate(answer.prompts):
        scores = await answer.voice.rows(ids)
        names = [(answer.voice.data(token) or b"<s>").decode("utf-8", "replace") for token in ids]
        choice: Event = {"index": place, "text": "", "finish_reason": "length"}
        if answer.config.kind == "vllm":
            told = [
                None if score is None else {str(token): {"logprob": score, "rank": 1, "decoded_token": name}}
                for token, score, name in zip(ids, scores, names, strict=True)
            ]
            choice["prompt_logprobs"] = told
        else:
            choice["logprobs"] = {"tokens": [*names, "x"], "token_logprobs": [*scores, -1.0], "top_logprobs": []}
        choices.append(choice)
    usage = {"prompt_tokens": sum(map(len, answer.prompts)), "completion_tokens": len(answer.prompts)}
    cost: Event = {"usage": usage} if answer.config.tells_usage else {}
    if answer.chat:
        return cost | {"choices": [{"index": 0, "message": {}}], "prompt_logprobs": choices[0]["prompt_logprobs"]}
    return cost | {"choices": choices}
