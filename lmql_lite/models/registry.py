"""A model's id to a model. The one place where a backend is imported, late, with one sentence when it is missing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from lmql_lite.errors import ModelError
from lmql_lite.models.base import Scorer

KINDS = "`demo`, or `local:NAME_OR_PATH` for a causal language model in Hugging Face format"


def load(model: str) -> Scorer:
    """`demo` or `local:NAME_OR_PATH`. Raises ModelError for anything else and for a model that cannot be loaded."""
    if model == "demo":
        return _demo()
    kind, _, name = model.partition(":")
    if kind == "local" and name:
        return _local(name)
    if model.startswith("openai/"):
        raise ModelError(f"{model}: models behind an API are not available in this version", hint=f"there is {KINDS}")
    hint = f"did you mean local:{model}?" if Path(model).is_dir() else f"there is {KINDS}"
    raise ModelError(f"no model is called {model!r}", hint=hint)


def _demo() -> Scorer:
    from lmql_lite.models.demo import DemoModel

    return DemoModel.load()


def _local(name: str) -> Scorer:
    absent = [package for package in ("torch", "transformers") if find_spec(package) is None]
    if absent:
        raise ModelError(
            f"local:{name} needs {' and '.join(absent)}, which {'are' if len(absent) > 1 else 'is'} not installed",
            hint="pip install 'lmql-lite[local]'",
        )
    from lmql_lite.models.transformers import TransformersModel

    return TransformersModel.load(name)
