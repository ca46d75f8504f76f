"""Pictures, videos and clips in a prompt: `{image("cat.png")}`, `{video(...)}`, `{audio(...)}`.

An item holds the bytes of its file, undecoded. Its digest stands for it on paths of the token tree: another picture is
another path, and the same picture finds the entries that are known. Files are local: nothing is fetched from a URL.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lmql_lite.errors import InputError, Span

Modality = Literal["image", "video", "audio"]

DIGEST_BYTES = 32
MAX_BYTES = 1 << 29
"""Maximum size of an item: half a GiB."""
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:", re.ASCII)
_FORMATS = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"fLaC", 0, "audio/flac"),
    (b"OggS", 0, "audio/ogg"),
    (b"\x1aE\xdf\xa3", 0, "video/webm"),
    (b"ftyp", 4, "video/mp4"),
)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Media:
    """Picture, video or clip: a value that a prompt shows to the model.

    `digest` is 64 hexadecimal digits over the bytes, the modality and `num_frames`, the number of frames taken from a
    video. As text, an item is its modality and the beginning of the digest.

    >>> item = lq.image(b"not decoded before a model asks for it")
    >>> str(item)
    '<image dde5f793b1a6>'
    """

    modality: Modality
    data: bytes = field(repr=False)
    num_frames: int | None = None
    origin: str = field(default="", compare=False)
    """Path of the file, for messages; "" for an item from bytes."""
    span: Span | None = field(default=None, compare=False, repr=False)
    """Place of the item in the query."""
    digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parts = [self.modality, self.num_frames, hashlib.sha256(self.data).hexdigest()]
        object.__setattr__(self, "digest", hashlib.sha256(json.dumps(parts).encode()).hexdigest())

    def __str__(self) -> str:
        return f"<{self.modality} {self.digest[:12]}>"

    @property
    def mime(self) -> str | None:
        """Media type, from the first bytes; None for an uncommon format."""
        return next((mime for mark, at, mime in _FORMATS if self.data[at : at + len(mark)] == mark), None)

    def wrong(self, problem: str, hint: str | None = None) -> InputError:
        """Error about this item, at its place in the query."""
        name = f"the {self.modality} {self.origin}" if self.origin else str(self)
        return InputError(f"{name} {problem}", span=self.span, hint=hint)


def article(modality: Modality) -> str:
    """The modality with its article: `an image`, `a video`, `audio`."""
    return {"image": "an image", "video": "a video", "audio": "audio"}[modality]


def image(source: str | os.PathLike[str] | bytes | Any) -> Media:
    """Picture for a prompt, from a file, the bytes of a file, or a PIL image.

    It is decoded only when the model is asked. Raises InputError for a URL, and for a file that cannot be read, is
    empty, has more than half a GiB, or changes while it is read.

    >>> picture = lq.image(Path("cat.png"))                                         # doctest: +SKIP
    >>> result = lq.run_sync('"{picture}What is this?[X]"', {"picture": picture})   # doctest: +SKIP
    """
    if isinstance(source, str | bytes | os.PathLike):
        return _read("image", source)
    save: Callable[..., object] | None = getattr(source, "save", None)
    if save is None or not hasattr(source, "getbands"):
        raise InputError(f"{source!r} is not a picture", hint="give a path, bytes, or an image of PIL")
    file = io.BytesIO()
    save(file, "PNG")
    return Media("image", file.getvalue())


def video(source: str | os.PathLike[str] | bytes, num_frames: int = 16) -> Media:
    """Video for a prompt, from a file or the bytes of a file: `num_frames` frames at equal distances, or all frames of
    a shorter video. Raises as `image` does.

    >>> lq.video(b"...", num_frames=8).num_frames
    8
    """
    if num_frames < 1:
        raise InputError(f"num_frames is {num_frames}", hint="give 1 or more frames")
    return _read("video", source, num_frames)


def audio(source: str | os.PathLike[str] | bytes) -> Media:
    """Audio clip for a prompt, from a file or the bytes of a file. Raises as `image` does.

    >>> lq.audio(b"RIFF....WAVE").mime
    'audio/wav'
    """
    return _read("audio", source)


def _read(modality: Modality, source: str | os.PathLike[str] | bytes, num_frames: int | None = None) -> Media:
    if isinstance(source, bytes):
        if not source:
            raise InputError(f"the {modality} has no bytes")
        return Media(modality, source, num_frames)
    name = os.fspath(source)
    if _ADDRESS.match(name) and not re.match(r"[a-zA-Z]:[\\/]", name):
        shown = name if len(name) <= 60 else name[:60] + ".."
        raise InputError(
            f"{modality}({shown!r}) is a URL, and nothing is fetched from a URL",
            hint="download the file, and give its path",
        )
    path = Path(name).expanduser()
    try:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            if before.st_size > MAX_BYTES:
                raise InputError(f"the {modality} {name} has more than {MAX_BYTES >> 20} MiB", hint="make it smaller")
            data = file.read(before.st_size + 1)
            after = os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the {modality} {name} cannot be read: {reason}", hint="check the path") from error
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns) or len(data) != after.st_size:
        raise InputError(f"the {modality} {name} changed while it was read", hint="run again when the file is complete")
    if not data:
        raise InputError(f"the {modality} {name} is empty")
    return Media(modality, data, num_frames, name)
