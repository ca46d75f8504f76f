"""Which of the server's environment is a secret: no run sees it, and no line that leaves the server holds it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from lmql_lite.runtime.shown.redaction import HIDDEN

SHORTEST = 8
"""Characters of a secret that is looked for in texts: "1234" stands in many of them."""

_NAME = re.compile(r"(?:^|_)\w*(?:KEY|TOKEN|SECRET|PASS(?:WORD|WD|PHRASE)?|CREDENTIALS?)(?:_|$)", re.I)


def secrets_of(environment: Mapping[str, str]) -> Mapping[str, str]:
    return {name: value for name, value in environment.items() if _NAME.search(name)}


class Scrub:
    """Takes secrets out of lines of JSON."""

    def __init__(self, values: Iterable[str]) -> None:
        written = sorted({json.dumps(value)[1:-1] for value in values if len(value) >= SHORTEST}, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, written))) if written else None

    def __call__(self, line: str) -> str:
        return line if self._any is None else self._any.sub(HIDDEN, line)
