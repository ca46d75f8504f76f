"""What the server answers, in JSON of ASCII: half a character, which is no UTF-8, can be said there too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


def reply(found: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(found), status, media_type="application/json")


class Refused(Exception):
    """It does not do what it is asked: a status of HTTP, one sentence, and a hint."""

    def __init__(self, status: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint

    def response(self) -> Response:
        return reply({"error": {"message": self.message, "hint": self.hint}}, self.status)
