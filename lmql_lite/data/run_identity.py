"""Identity of a data-set run: everything that its answers depend on, except the rows. Settings that only change its
cost are left out: cache, prices, limits, concurrency."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from lmql_lite.decorators import QueryFunction
from lmql_lite.engine.blocking import blocking
from lmql_lite.engine.rows import constant_model
from lmql_lite.engine.session import Session
from lmql_lite.engine.settings import checked
from lmql_lite.errors import InputError, ModelError
from lmql_lite.models.base import Completer, Model

Identity = dict[str, Any]
"""`query` (digest), `model` (name, or address and name), `fingerprint`, `data` (name) and `settings`."""
WORDS = {"fingerprint": "version of the model"}
"""Names of fields in a sentence, where they differ from the field's own."""


def run_identity(
    query: Any, source: str, model: str | Model | None, session: Session, data: Path, settings: Mapping[str, Any]
) -> Identity:
    """Identity of a run. `source` is the query's text; `model` overrules the query's own. Raises ModelError."""
    given = query.options.get("model") if model is None and isinstance(query, QueryFunction) else model
    found = constant_model(given, query.program, session)
    return {
        "query": text_digest(source),
        "model": "of the query" if found is None else found.place if isinstance(found, Completer) else found.name,
        "fingerprint": None if found is None else fingerprint_of(found, session),
        "data": data.name,
        "settings": dict(settings),
    }


def fingerprint_of(model: Model, session: Session) -> str | None:
    """Digest of weights and tokenizer, or of what a server reports; None where that would cost a request, and where
    the server does not answer."""
    if not isinstance(model, Completer):
        return model.fingerprint
    try:
        found = blocking(session.capabilities(model, checked({})))
    except ModelError:  # scores and reports of finished rows need no server; rows that are missing say what is wrong
        return None
    return None if found is None or found.probe_costs else found.fingerprint


def continued(identity: Identity, there: Mapping[str, Any], folder: Path) -> Identity:
    """Identity of a run that goes on with a folder. An unknown fingerprint counts as the folder's.

    Raises InputError where the folder is that of another run.
    """
    if identity["fingerprint"] is None:
        identity = identity | {"fingerprint": there.get("fingerprint")}
    differences = [name for name in identity if there.get(name) != identity[name]]
    if differences:
        first = differences[0]
        raise InputError(
            f"{folder} is a run with another {', '.join(WORDS.get(name, name) for name in differences)}: "
            f"{first} is {there.get(first)!r} there, {identity[first]!r} here",
            hint="name another folder with -o, or begin this one anew with --fresh",
        )
    return identity


def default_folder(query: str, identity: Identity) -> Path:
    """Folder of a run that names none. The same command has the same one, whatever became of its model."""
    stem = Path(query).stem if query.endswith((".lq", ".lmql", ".yaml", ".yml")) else query.replace(":", ".")
    name = re.sub(r"[^\w.-]+", "-", f"{stem}-{identity['model']}").strip("-")[:80]
    own = {field: value for field, value in identity.items() if field != "fingerprint"}
    return Path("runs") / f"{name}-{text_digest(json.dumps(own, sort_keys=True, default=str))[:6]}"


def text_digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
