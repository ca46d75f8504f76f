"""Loading of models by id. Imports model implementations when they are needed, and reports a missing package in one
sentence."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from lmql_lite.errors import ModelError, did_you_mean
from lmql_lite.models.base import Model, Scorer
from lmql_lite.tokens import Tokenizer

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from lmql_lite.cache.kv.config import KVCacheConfig

SERVERS = {
    "ollama": "http://localhost:11434/v1",
    "vllm": "http://localhost:8000/v1",
    "llamacpp": "http://localhost:8080/v1",
}
"""Servers that have a prefix of their own, and where they are unless `base_url` or LQ_BASE_URL says otherwise."""
KINDS = (
    "`demo`, `smol`, `local:NAME_OR_PATH` for a causal language model in Hugging Face format or a GGUF file, "
    "`llamacpp:FILE.gguf` for one that llama.cpp runs in this process, `openai/NAME` for one behind an "
    "OpenAI-compatible API, or `ollama/NAME`, `vllm/NAME`, `llamacpp/NAME` for such a server on this machine"
)


class Access(TypedDict, total=False):
    """Access options of a model behind an API; None is the default.

    `base_url` and `api_key` of an OpenAI-compatible server default to OPENAI_BASE_URL and OPENAI_API_KEY. `revision`
    states the version of the model, so that cache entries stay valid at another address (S4). `tokenizer` is a folder
    with a `tokenizer.json`, or a Tokenizer. `timeout` is the longest silence in seconds (300; 20 for the free requests
    of the probe). `concurrency` is the maximum number of simultaneous requests (32). `client` is an
    `openai.AsyncOpenAI` to send all requests with: it has an address, a key and headers of its own.

    The rest is for models in this process: `device` (`cuda`, `mps`, `cpu`), `dtype` (`float32`, `bfloat16`, `float16`),
    `kv`: a folder, a `redis://` URL or a KVCacheConfig, where attention keys and values of prompts are kept for later
    processes, and `exact`: True for scores that are the same bits in every pass, False for faster ones, "auto" for
    exact ones in half precision only. Load a model with other options yourself: `lq.model(network, tokenizer)`.

    `use_caches=False`, for any model, computes the prompt of every hole anew, as the option of a run does (S7).
    """

    base_url: str | None
    api_key: str | None
    revision: str | None
    tokenizer: str | Path | Tokenizer | None
    timeout: float | None
    concurrency: int | None
    client: AsyncOpenAI | None
    device: str | None
    dtype: str | None
    kv: str | KVCacheConfig | None
    exact: bool | Literal["auto"] | None
    use_caches: bool | None


_IN_PROCESS = ("device", "dtype", "kv", "exact")
"""Options of models in this process. Those of neither group are for any model; the others are for models behind an
API."""
_OF_ANY = ("use_caches",)
_NO_SERVER = "leave the option out, or name a model of a server: openai/NAME"


def load(model: str, **access: Unpack[Access]) -> Model:
    """Model by id: `demo`, `smol`, `local:NAME_OR_PATH`, `llamacpp:FILE.gguf`, `openai/NAME` or that of
    one of `SERVERS`; `access` says what an id cannot. A colon stands before what runs in this process, a slash before
    what a server has.

    Raises ModelError for any other id and for a model that cannot be loaded. Sends no request to a server.
    """
    return _marked(_loaded(model, access), access.get("use_caches"))


def _loaded(model: str, access: Access) -> Model:
    kind, _, name = model.partition("/")
    if kind in ("openai", *SERVERS) and name:
        _refuse(model, access, _IN_PROCESS, "is for models in this process", f"use {KINDS}")
        base_url = access.get("base_url") or os.environ.get("LQ_BASE_URL") or SERVERS.get(kind)
        return _behind_an_api(name, {**access, "base_url": base_url})
    api = tuple(option for option in Access.__annotations__ if option not in (*_IN_PROCESS, *_OF_ANY))
    _refuse(model, access, api, "is only for models behind an API", _NO_SERVER)
    kind, _, name = model.partition(":")
    if model == "demo":
        _refuse(model, access, _IN_PROCESS, "is for other models", "use smol or local:NAME")
        from lmql_lite.models.demo import DemoModel

        return DemoModel.load()
    if model == "smol":
        return _local("smol", access, "smol")
    if kind == "local" and name:
        return _local(name, access)
    if kind == "llamacpp" and name:
        _refuse(model, access, _IN_PROCESS, "is for models that torch runs", f"use local:{name}")
        _require(model, ("llama_cpp",), "lmql-lite[llamacpp]")
        from lmql_lite.models.llamacpp import LlamaCppModel

        return LlamaCppModel(name)
    raise ModelError(f"no model is called {model!r}", hint=_meant(model))


def here() -> tuple[str, ...]:
    """Ids of the models that run in this process and need no download: `demo`, and where torch is installed `smol` and
    those of the hub's folder on this machine."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return ("demo",)
    from lmql_lite.models.model_files import downloaded, smol_file

    try:
        smol_file()
    except ModelError:
        return ("demo", *(f"local:{name}" for name in downloaded()))
    return ("demo", "smol", *(f"local:{name}" for name in downloaded()))


async def listed(**access: Unpack[Access]) -> tuple[str, ...]:
    """Names of the models that a server lists, in its order. Raises ModelError."""
    from lmql_lite.models.openai.model import OpenAIModel

    found = _behind_an_api("", {**access, "base_url": access.get("base_url") or os.environ.get("LQ_BASE_URL")})
    assert isinstance(found, OpenAIModel), "it is behind an API"
    return await found.models()


def is_known(model: str) -> bool:
    """True if the id has one of the forms that `load` takes; what it names may still be missing."""
    kind, _, name = model.partition("/")
    return (
        model in ("demo", "smol")
        or (bool(name) and kind in ("openai", *SERVERS))
        or (model.startswith(("local:", "llamacpp:")))
    )


def _meant(model: str) -> str:
    """Hint at the id that most likely was meant: of a path, of a slip, or of a model of a server."""
    kind, colon, tag = model.partition(":")
    if Path(model).is_dir() or (model.endswith(".gguf") and Path(model).is_file()):
        return f"did you mean local:{model}?"
    if similar := did_you_mean(model, ("demo", "smol")):
        return similar
    if {"/", "\\"} & {*model} or kind in ("local", "llamacpp", "openai", *SERVERS) or (colon and not tag):
        return f"use {KINDS}"
    if re.match(r"gpt|chatgpt|o\d", model):
        return f"did you mean openai/{model}?"
    return f"did you mean ollama/{model}? On another server it is openai/{model}, with --base-url"


def of_network(
    network: Any,
    tokenizer: Any,
    kv: str | KVCacheConfig | None = None,
    exact: bool | Literal["auto"] | None = None,
    use_caches: bool | None = None,
) -> Model:
    """Model from a causal language model of transformers that the caller has loaded, and its tokenizer."""
    _require("a loaded network", ("torch", "transformers"), "lmql-lite[local]")
    from lmql_lite.models.transformers.scorer import TransformersModel

    return _marked(TransformersModel.of(network, tokenizer, kv, _exact(exact)), use_caches)


def _marked(model: Model, use_caches: object) -> Model:
    """The model, with the option that any model takes."""
    if use_caches is None:
        return model
    if not isinstance(use_caches, bool):
        raise ModelError(f"use_caches={use_caches!r} is not a choice", hint="use_caches= True or False")
    model.use_caches = use_caches
    return model


def _refuse(model: str, access: Access, options: tuple[str, ...], why: str, hint: str) -> None:
    for option, value in access.items():
        if value is not None and option in options:
            raise ModelError(f"{option}= {why}, which {model!r} is not", hint=hint)


def _local(name: str, access: Access, label: str = "") -> Scorer:
    _require(label or f"local:{name}", ("torch", "transformers"), "lmql-lite[local]")
    from lmql_lite.models.model_files import smol_file
    from lmql_lite.models.transformers.scorer import TransformersModel

    device, dtype = access.get("device"), access.get("dtype")
    if label != "smol" and _is_multimodal(name):
        from lmql_lite.models.media.model import MultimodalModel

        if access.get("exact") is True:
            raise ModelError(f"local:{name} cannot be exact: it is shown items too", hint="leave exact= out")
        return MultimodalModel.load(name, device, dtype, access.get("kv"))
    file, exact = smol_file() if label == "smol" else name, _exact(access.get("exact"))
    return TransformersModel.load(file, device, dtype, label, access.get("kv"), exact)


def _exact(wanted: object) -> bool | Literal["auto"]:
    if wanted is None or wanted == "auto":
        return "auto"
    if not isinstance(wanted, bool):
        raise ModelError(f"exact={wanted!r} says nothing", hint='exact= True, False or "auto"')
    return wanted


def _is_multimodal(name: str) -> bool:
    """True for a model that takes pictures or clips, by its config alone."""
    from lmql_lite.models.model_files import located
    from lmql_lite.models.transformers.checkpoint import multimodal_class

    folder, _ = located(name)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and (
        multimodal_class(str(config.get("model_type")), config.get("architectures")) is not None
    )


def _behind_an_api(name: str, access: Access) -> Model:
    from lmql_lite.models.openai.model import CONCURRENCY, OpenAIModel
    from lmql_lite.models.tokenizer import HFTokenizer

    tokenizer, concurrency = access.get("tokenizer"), access.get("concurrency")
    return OpenAIModel(
        name,
        base_url=access.get("base_url"),
        api_key=access.get("api_key"),
        revision=access.get("revision"),
        tokenizer=HFTokenizer.from_folder(Path(tokenizer)) if isinstance(tokenizer, str | Path) else tokenizer,
        timeout=access.get("timeout"),
        concurrency=CONCURRENCY if concurrency is None else concurrency,
        client=access.get("client"),
    )


def _require(model: str, packages: tuple[str, ...], distribution: str) -> None:
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        raise ModelError(
            f"{model} needs {' and '.join(absent)}, which {'are' if len(absent) > 1 else 'is'} not installed",
            hint=f"pip install '{distribution}'",
        )
