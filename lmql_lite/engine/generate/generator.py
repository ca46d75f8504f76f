"""Generator: what a branch asks of its model, which runs in this process or on a server."""

from __future__ import annotations

from lmql_lite.engine.generate.local import LocalGenerator, LocalModel
from lmql_lite.engine.generate.remote import RemoteGenerator, RemoteModel

Generator = LocalGenerator | RemoteGenerator
SharedModel = LocalModel | RemoteModel
"""A model with everything that its runs share."""
