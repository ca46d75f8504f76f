"""Loading of models by id. Imports the model implementations late, and reports a missing package in one sentence."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict, Unpack

from lmql_lite.errors import ModelError
from lmql_lite.models.base import Model, Scorer
from lmql_lite.tokens import Tokenizer

KINDS = (
    "`demo`, `local:NAME_OR_PATH` for a causal language model in Hugging Face format, "
    "or `openai/NAME` for one behind an OpenAI-compatible API"
)


class Access(TypedDict, total=False):
    """Access options of a model behind an API; None is the default.

    `base_url` and `api_key` of an OpenAI-compatible server default to OPENAI_BASE_URL and OPENAI_API_KEY. `revision`
    vouches for the version of the model, so that cache entries are found again at another address (S4). `tokenizer` is
    a folder with a `tokenizer.json`, or a Tokenizer. `timeout` is the permitted silence in seconds (300).
    `concurrency` is the maximum number of simultaneous requests (32).
    """

    base_url: str | None
    api_key: str | None
    revision: str | None
    tokenizer: str | Path | Tokenizer | None
    timeout: float | None
    concurrency: int | None


def load(model: str, **access: Unpack[Access]) -> Model:
    """Model by id: `demo`, `local:NAME_OR_PATH` or `openai/NAME`; `access` is for the last one.

    Raises ModelError for any other id and for a model that cannot be loaded. Sends no request to a server.
    """
    kind, _, name = model.partition("/")
    if kind == "openai" and name:
        return _behind_an_api(name, access)
    for option, value in access.items():
        if value is not None:
            raise ModelError(
                f"{option}= is for models behind an API, and {model!r} is none", hint=f"did you mean openai/{model}?"
            )
    if model == "demo":
        return _demo()
    kind, _, name = model.partition(":")
    if kind == "local" and name:
        return _local(name)
    if Path(model).is_dir():
        hint = f"did you mean local:{model}?"
    elif model.startswith("llama.cpp:"):
        hint = "start llama-server with that file, and name openai/NAME with its base_url"
    else:
        hint = f"there is {KINDS}"
    raise ModelError(f"no model is called {model!r}", hint=hint)


def _demo() -> Scorer:
    from lmql_lite.models.demo import DemoModel

    return DemoModel.load()


def _local(name: str) -> Scorer:
    _require(f"local:{name}", ("torch", "transformers"), "lmql-lite[local]")
    from lmql_lite.models.transformers import TransformersModel

    return TransformersModel.load(name)


def _behind_an_api(name: str, access: Access) -> Model:
    _require(f"openai/{name}", ("openai",), "lmql-lite")
    from lmql_lite.models.openai.client import CONCURRENCY, TIMEOUT
    from lmql_lite.models.openai.endpoint import OpenAIModel
    from lmql_lite.models.tokenizer import HFTokenizer

    tokenizer, timeout, concurrency = access.get("tokenizer"), access.get("timeout"), access.get("concurrency")
    return OpenAIModel(
        name,
        base_url=access.get("base_url"),
        api_key=access.get("api_key"),
        revision=access.get("revision"),
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
