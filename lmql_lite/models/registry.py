"""A model's id to a model. The one place where a backend is imported, late, with one sentence when it is missing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from lmql_lite.errors import ModelError
from lmql_lite.models.base import Model, Scorer
from lmql_lite.tokens import Tokenizer

KINDS = (
    "`demo`, `local:NAME_OR_PATH` for a causal language model in Hugging Face format, "
    "or `openai/NAME` for one behind an OpenAI-compatible API"
)


def load(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    revision: str | None = None,
    tokenizer: str | Path | Tokenizer | None = None,
    timeout: float | None = None,
    concurrency: int | None = None,
) -> Model:
    """`demo`, `local:NAME_OR_PATH` or `openai/NAME`; what is named besides is for the last one (`OpenAIModel`).

    `tokenizer` may be a folder that holds a `tokenizer.json`. Raises ModelError for anything else and for a model that
    cannot be loaded. A server is asked nothing yet.
    """
    kind, _, name = model.partition("/")
    if kind == "openai" and name:
        return _behind_an_api(name, base_url, api_key, revision, tokenizer, timeout, concurrency)
    named = {
        "base_url": base_url,
        "api_key": api_key,
        "revision": revision,
        "tokenizer": tokenizer,
        "timeout": timeout,
        "concurrency": concurrency,
    }
    for option, value in named.items():
        if value is not None:
            raise ModelError(
                f"{option}= is for models behind an API, and {model!r} is none", hint=f"did you mean openai/{model}?"
            )
    if model == "demo":
        return _demo()
    kind, _, name = model.partition(":")
    if kind == "local" and name:
        return _local(name)
    hint = f"did you mean local:{model}?" if Path(model).is_dir() else f"there is {KINDS}"
    raise ModelError(f"no model is called {model!r}", hint=hint)


def _demo() -> Scorer:
    from lmql_lite.models.demo import DemoModel

    return DemoModel.load()


def _local(name: str) -> Scorer:
    _require(f"local:{name}", ("torch", "transformers"), "lmql-lite[local]")
    from lmql_lite.models.transformers import TransformersModel

    return TransformersModel.load(name)


def _behind_an_api(
    name: str,
    base_url: str | None,
    api_key: str | None,
    revision: str | None,
    tokenizer: str | Path | Tokenizer | None,
    timeout: float | None,
    concurrency: int | None,
) -> Model:
    _require(f"openai/{name}", ("openai",), "lmql-lite")
    from lmql_lite.models.openai import OpenAIModel
    from lmql_lite.models.openai_client import CONCURRENCY, TIMEOUT
    from lmql_lite.models.tokenizer import HFTokenizer

    return OpenAIModel(
        name,
        base_url=base_url,
        api_key=api_key,
        revision=revision,
        tokenizer=HFTokenizer.from_folder(Path(tokenizer)) if isinstance(tokenizer, str | Path) else tokenizer,
        timeout=TIMEOUT if timeout is None else timeout,
        concurrency=CONCURRENCY if concurrency is None else concurrency,
    )


def _require(model: str, packages: tuple[str, ...], distribution: str) -> None:
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        raise ModelError(
            f"{model} needs {' and '.join(absent)}, which {'are' if len(absent) > 1 else 'is'} not installed",
            hint=f"pip install '{distribution}'",
        )
