"""Files of given records."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

from lmql_lite.cache.framing import Frame
from lmql_lite.cache.log_file import LogFile, Payloads
from tests.cache.batches import Batch, recorded


def admit(frames: Sequence[Frame], is_other: bool) -> bool:
    """What others appended does not matter."""
    return True


def always(payloads: Iterable[bytes]) -> Payloads:
    """Appends these."""

    def generated() -> Generator[bytes, None, None]:
        yield from payloads

    return generated


def write(path: Path, batches: Sequence[Batch]) -> Path:
    """A file of these batches."""
    file = LogFile(path, durable=False)
    file.open()
    try:
        assert file.append(admit, always(recorded(batches))), file.notices
    finally:
        file.close()
    return path
