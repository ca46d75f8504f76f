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
    BudgetError,
    CacheError,
    ConstraintError,
    InputError,
    LmqlLiteError,
    ModelError,
    QueryError,
    Span,
)

if TYPE_CHECKING:
    from lmql_lite.cache.token_cache import TokenCache
    from lmql_lite.functions import QueryFunction, query
    from lmql_lite.models.scripted import ScriptedModel
    from lmql_lite.questions import generate, generate_sync, score, score_sync
    from lmql_lite.runtime import events
    from lmql_lite.runtime.decorated import Decorator
    from lmql_lite.runtime.result import OptionScores, Result, Usage
    from lmql_lite.runtime.session import Session
    from lmql_lite.runtime.tools.offered import describe
    from lmql_lite.tokens import Token
    from lmql_lite.verbs import Options, Query, compile, model, run, run_sync

__version__ = "0.1.0"

_HOMES = {
    "Decorator": "lmql_lite.runtime.decorated",
    "OptionScores": "lmql_lite.runtime.result",
    "Options": "lmql_lite.verbs",
    "Query": "lmql_lite.verbs",
    "QueryFunction": "lmql_lite.functions",
    "Result": "lmql_lite.runtime.result",
    "ScriptedModel": "lmql_lite.models.scripted",
    "Session": "lmql_lite.runtime.session",
    "Token": "lmql_lite.tokens",
    "TokenCache": "lmql_lite.cache.token_cache",
    "Usage": "lmql_lite.runtime.result",
    "compile": "lmql_lite.verbs",
    "describe": "lmql_lite.runtime.tools.offered",
    "generate": "lmql_lite.questions",
    "generate_sync": "lmql_lite.questions",
    "model": "lmql_lite.verbs",
    "query": "lmql_lite.functions",
    "run": "lmql_lite.verbs",
    "run_sync": "lmql_lite.verbs",
    "score": "lmql_lite.questions",
    "score_sync": "lmql_lite.questions",
}

__all__ = [
    "BudgetError",
    "CacheError",
    "ConstraintError",
    "Decorator",
    "InputError",
    "LmqlLiteError",
    "ModelError",
    "OptionScores",
    "Options",
    "Query",
    "QueryError",
    "QueryFunction",
    "Result",
    "ScriptedModel",
    "Session",
    "Span",
    "Token",
    "TokenCache",
    "Usage",
    "compile",
    "describe",
    "events",
    "generate",
    "generate_sync",
    "model",
    "query",
    "run",
    "run_sync",
    "score",
    "score_sync",
]


_INSTEAD = {
    "F": "compile(...) gives a query that is run as often as you like",
    "LLM": "model(...) gives a model; runs, generate() and score() take model=",
    "LMQLResult": "a run gives a Result",
    "QueryBuilder": "compile(...) takes any text",
    "ScoringResult": "score() gives OptionScores",
    "algorithms": "a query has map()",
    "certificate": 'a run takes trace="run.json"',
    "decorators": "any function decorates a hole: [@f X]; Decorator(pre=..., stream=..., post=...) has all stages",
    "headless": "stream() gives every event of a run",
    "inline_use": "a hole calls functions: [argmax(tools=[f, g]) X]",
    "inprocess": "model('local:NAME') runs in this process",
    "load": "compile(Path(...)) reads a file",
    "main": "compile(...) gives a query with run()",
    "printing": "stream() gives every event of a run",
    "run_file": "run(Path(...)) takes a file",
    "serve": "model('openai/NAME', base_url=...) talks to any compatible server",
    "set_default_model": "a run, @query and Session take model=",
    "silent": "nothing is printed; stream() gives every event of a run",
    "static_prompt": "compile(...) takes any text",
    "stream": "a query has stream(), which gives every event of a run",
    "tokenizer": "len(TOKENS(X)) counts tokens in `where`, and result.tokens has each",
    "traced": 'a run takes trace="run.json"',
}
"""What LMQL has under these names."""


def __getattr__(name: str) -> Any:
    if name == "events":
        return import_module("lmql_lite.runtime.events")
    home = _HOMES.get(name)
    if home is None:
        instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"module 'lmql_lite' has no attribute {name!r}{instead}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
