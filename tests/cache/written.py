"""Files of given records."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lmql_lite.cache.framing import LogFrame
from lmql_lite.cache.log_file import LogFile, Payloads
from tests.cache.batches import Batch, recorded


def admit(frames: Sequence[LogFrame], is_other: bool) -> bool:
    """What others appended does not matter."""
    return True


def always(payloads: Iterable[bytes]) -> Payloads:
    """Appends these."""

    def generated() -> Generator[bytes, None, None]:
        yield from payloads

    return generated


@contextmanager
def opened(path: Path, *, durable: bool = False) -> Iterator[LogFile]:
    file = LogFile(path, durable=durable)
    file.open()
    try:
        yield file
    finally:
        file.close()


def write(path: Path, batches: Sequence[Batch]) -> Path:
    """A file of these batches."""
    with opened(path) as file:
        assert file.append(admit, always(recorded(batches))), file.notices
    return path
