"""lmql_lite: a prompt-programming language whose runtime never pays for the same token twice.

    import lmql_lite as lq

    result = lq.run_sync("examples/01_packing_list.lq")
    print(result.prompt)

Names are loaded when they are first used: importing the package loads neither numpy nor a model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lmql_lite.errors import (
    AuthenticationError,
    BudgetError,
    CacheError,
    ConstraintError,
    InputError,
    LmqlLiteError,
    ModelError,
    QueryError,
    RateLimitError,
    Span,
)

if TYPE_CHECKING:
    from lmql_lite.api import Options, Query, compile, model, run, run_sync
    from lmql_lite.cache.kv.blocks import BlockPolicy, CBlock, block
    from lmql_lite.cache.responses.cache import CachePolicy, ResponseCache
    from lmql_lite.cache.responses.older import CachingModel, JsonlCache
    from lmql_lite.cache.responses.request import Reply, Request
    from lmql_lite.cache.tokens.trees import TokenCache
    from lmql_lite.data.request_model import RequestModel
    from lmql_lite.decorators import QueryFunction, query
    from lmql_lite.engine import events
    from lmql_lite.engine.hole_decorators import Decorator
    from lmql_lite.engine.result import OptionScores, Result, Usage
    from lmql_lite.engine.rows import FinishedRow
    from lmql_lite.engine.session import Session, configure
    from lmql_lite.engine.tools.toolbox import describe
    from lmql_lite.media import Media, audio, image, video
    from lmql_lite.models.scripted import ScriptedModel
    from lmql_lite.prompts import generate, generate_sync, score, score_sync
    from lmql_lite.tokens import Token

__version__ = "0.2.0"

_MODULES: dict[str, tuple[str, ...]] = {
    "api": ("Options", "Query", "compile", "model", "run", "run_sync"),
    "cache.kv.blocks": ("BlockPolicy", "CBlock", "block"),
    "cache.responses.older": ("CachingModel", "JsonlCache"),
    "cache.responses.request": ("Reply", "Request"),
    "cache.responses.cache": ("CachePolicy", "ResponseCache"),
    "cache.tokens.trees": ("TokenCache",),
    "data.request_model": ("RequestModel",),
    "decorators": ("QueryFunction", "query"),
    "engine.hole_decorators": ("Decorator",),
    "engine.result": ("OptionScores", "Result", "Usage"),
    "engine.rows": ("FinishedRow",),
    "engine.session": ("Session", "configure"),
    "engine.tools.toolbox": ("describe",),
    "media": ("Media", "audio", "image", "video"),
    "models.scripted": ("ScriptedModel",),
    "prompts": ("generate", "generate_sync", "score", "score_sync"),
    "tokens": ("Token",),
}
_HOMES = {name: f"lmql_lite.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "AuthenticationError",
    "BlockPolicy",
    "BudgetError",
    "CBlock",
    "CacheError",
    "CachePolicy",
    "CachingModel",
    "ConstraintError",
    "Decorator",
    "FinishedRow",
    "InputError",
    "JsonlCache",
    "LmqlLiteError",
    "Media",
    "ModelError",
    "OptionScores",
    "Options",
    "Query",
    "QueryError",
    "QueryFunction",
    "RateLimitError",
    "Reply",
    "Request",
    "RequestModel",
    "ResponseCache",
    "Result",
    "ScriptedModel",
    "Session",
    "Span",
    "Token",
    "TokenCache",
    "Usage",
    "audio",
    "block",
    "compile",
    "configure",
    "describe",
    "events",
    "generate",
    "generate_sync",
    "image",
    "model",
    "query",
    "run",
    "run_sync",
    "score",
    "score_sync",
    "video",
]


_INSTEAD = {
    "CacheHook": "a model with set_cache_hook() gets one from CachingModel",
    "CachingLM": "CachingModel(model, path) wraps a model",
    "CachingLMM": "CachingModel(model, path) wraps a model",
    "EncoderCache": "it is in lmql_lite.cache.encoder",
    "Instance": "a request to a ResponseCache is a Request",
    "KVCacheEngine": "it is in lmql_lite.cache.kv.engine",
    "LMCacheEngine": "KVCacheEngine in lmql_lite.cache.kv.engine does that job",
    "SimpleLRUCache": "it is in lmql_lite.cache.kv.block_reuse",
    "merge_dynamic_caches": "it is in lmql_lite.cache.kv.block_reuse",
    "merge_responses": "it is in lmql_lite.cache.responses.older",
}
"""Names of lmms-eval, LMCache and Mellea, and what to write instead."""


def __getattr__(name: str) -> Any:
    if name == "events":
        return import_module("lmql_lite.engine.events")
    if name in ("lib", "http"):  # of LMQL
        return import_module("lmql_lite.integrations.from_lmql").module(name)
    if name == "decorators":
        return import_module("lmql_lite.decorators")
    if name == "load_ipython_extension":
        return import_module("lmql_lite.apps.editors.notebook").load_ipython_extension
    home = _HOMES.get(name)
    if home is None:
        instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"module 'lmql_lite' has no attribute {name!r}{instead}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
