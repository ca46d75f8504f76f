"""Content of files, arrays, tensors and pictures as canonical JSON data. Their packages are not imported here."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any, TypeAlias

Exact: TypeAlias = Callable[[Any], Any]
"""Maker of canonical data of any value, such as the palette of a picture."""
MEDIA = (
    ".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v",
    ".wav", ".mp3", ".flac", ".ogg", ".m4a", ".pdf", ".npy", ".npz", ".pt", ".safetensors",
)  # fmt: skip
"""Endings of a text that is the path of a file, if there is such a file: then its content counts too."""


FAILURES = (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError, OSError, KeyError, IndexError)
"""Errors of objects that cannot say what they are made of."""


class Unkeyable(ValueError):
    """A request holds a value that cannot be part of a key. The sentence names the value."""


def tagged(kind: str, value: Any) -> dict[str, Any]:
    return {"$": kind, "v": value}


def text_data(value: str) -> Any:
    """A text. The path of a picture, a video and so on, by its ending, counts with the content of the file."""
    if value[-12:].lower().endswith(MEDIA) and len(value) < 4096 and "\0" not in value:
        file = value.removeprefix("file://")
        if os.path.isfile(file):
            return tagged("path", [value, file_digest(Path(file))])
    return value


def path_data(path: PurePath) -> Any:
    """A path: of a file, its name and the content; of anything else, the path itself."""
    if isinstance(path, Path) and path.is_file():
        return tagged("file", [path.name, file_digest(path)])
    return tagged("place", str(path))


def file_digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unkeyable(f"a request holds the file {str(path)!r}, which cannot be read ({error.strerror})") from None


def numpy_scalar(value: Any) -> Any:
    """The Python number or text of a numpy scalar; other values as they are."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic) or isinstance(value, numpy.void | numpy.datetime64):
        return value
    plain = value.item()
    return value if type(plain) is type(value) else plain


def media_data(value: Any, exact: Exact) -> Any:
    """Data of an array, a tensor or a picture; None for other values. Their packages are not imported here."""
    numpy, torch, pictures = (sys.modules.get(name) for name in ("numpy", "torch", "PIL.Image"))
    try:
        if numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            about = [repr(value.dtype), value.dtype.str, list(value.shape), type(value).__name__]
            if value.dtype.hasobject:
                return tagged("array", [*about, exact(value.tolist())])
            return tagged("array", [*about, hashlib.sha256(numpy.ascontiguousarray(value).tobytes()).hexdigest()])
        if torch is not None and isinstance(value, torch.Tensor):
            flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            about = [type(value).__name__, str(value.dtype), list(value.shape)]
            return tagged("tensor", [*about, hashlib.sha256(flat.view(torch.uint8).numpy()).hexdigest()])
        if pictures is not None and isinstance(value, pictures.Image):
            return tagged("picture", [_frame(value, exact) for _ in _frames(value)])
    except FAILURES as error:
        if isinstance(error, Unkeyable):
            raise
        name = type(value).__qualname__
        raise Unkeyable(f"a request holds a value of type {name}, which cannot be read ({error})") from None
    return None


def _frames(picture: Any) -> Iterator[None]:
    """Each frame of a picture in turn; the picture then shows the frame that it showed before."""
    count = getattr(picture, "n_frames", 1)
    if count == 1:
        yield
        return
    shown = picture.tell()
    try:
        for number in range(count):
            picture.seek(number)
            yield
    finally:
        picture.seek(shown)


def _frame(picture: Any, exact: Exact) -> Any:
    data = picture.tobytes()
    palette = picture.palette.getdata() if picture.palette is not None else None
    return [picture.mode, list(picture.size), hashlib.sha256(data).hexdigest(), exact(palette),
            exact(picture.info), exact(dict(picture.getexif()))]  # fmt: skip
