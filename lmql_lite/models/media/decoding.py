"""Pixels and samples of an item: pictures by Pillow, videos and clips by PyAV, imported when they are needed."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.errors import LmqlLiteError, ModelError
from lmql_lite.media import Media

MAX_PIXELS = 100_000_000
"""Largest picture or frame: a small file can claim any size."""
MAX_SECONDS = 4 * 3600
"""Longest clip."""
THUMBNAIL_SIDE = 96
"""Pixels of a thumbnail's longer side."""
_JPEG = "data:image/jpeg;base64,"
_MAX_LETTERS = 1 << 16


def decode_image(item: Media) -> Any:
    """Picture as an RGB image of PIL, upright. Raises InputError at the item's place for what is not a picture, is
    truncated or is larger than 100 megapixels."""
    with _package(item, "PIL"):
        from PIL import Image, ImageOps, UnidentifiedImageError
    try:
        with Image.open(io.BytesIO(item.data)) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise _too_large(item, opened.width, opened.height)
            opened.load()
            return ImageOps.exif_transpose(opened).convert("RGB")
    except UnidentifiedImageError:
        raise item.wrong("is not a picture of a known format", "PNG, JPEG, WebP and GIF are read everywhere") from None
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError, EOFError) as error:
        raise item.wrong(f"cannot be decoded: {_reason(error)}", "is the file complete?") from error


def thumbnail(item: Media) -> str:
    """Small JPEG of a picture, or of a video's first frame, as a `data:` address; empty for a clip, and where none can
    be made."""
    if item.modality == "audio":
        return ""
    try:
        picture = decode_image(item) if item.modality == "image" else _first_frame(item)
    except LmqlLiteError:
        return ""
    picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=70)
    return _JPEG + base64.b64encode(file.getvalue()).decode()


def is_thumbnail(text: str) -> bool:
    """True for what `thumbnail` returns: nothing that a page would ask anybody for."""
    return not text or (len(text) <= _MAX_LETTERS and re.fullmatch(_JPEG + "[A-Za-z0-9+/]+={0,2}", text) is not None)


def decode_video(item: Media) -> tuple[NDArray[np.uint8], tuple[float, ...]]:
    """Frames of a video, `[frames, height, width, 3]`, and their times in seconds.

    Of `num_frames` equal parts of the video, each gives its middle frame. Raises InputError at the item's place for
    what is not a video or has no frames.
    """
    count = len(list(_times(item)))
    wanted = item.num_frames or count
    if not count:
        raise item.wrong("has no frames", "is the file complete?")
    places = {int((part + 0.5) * count / wanted) for part in range(wanted)} if wanted < count else set(range(count))
    frames, times = [], []
    with _opened(item) as container:
        for place, frame in enumerate(container.decode(video=0)):
            if place in places:
                if frame.width * frame.height > MAX_PIXELS:
                    raise _too_large(item, frame.width, frame.height)
                frames.append(frame.to_ndarray(format="rgb24"))
                times.append(float(frame.time or 0.0))
    return np.stack(frames), tuple(times)


def decode_audio(item: Media, rate: int) -> NDArray[np.float32]:
    """Samples of a clip, mono, at `rate` in Hz. Raises InputError at the item's place for what is not a clip, has no
    samples or lasts more than four hours."""
    pieces: list[NDArray[np.float32]] = []
    count = 0
    with _opened(item) as container:
        import av

        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
        for frame in (*([] if not container.streams.audio else container.decode(audio=0)), None):
            for piece in resampler.resample(frame) if frame is not None or pieces or count else ():
                pieces.append(piece.to_ndarray().reshape(-1).astype(np.float32))
                count += len(pieces[-1])
                if count > MAX_SECONDS * rate:
                    raise item.wrong(f"lasts more than {MAX_SECONDS // 3600} hours", "cut it")
    if not count:
        raise item.wrong("lasts 0 seconds", "is the file complete?")
    return np.concatenate(pieces)


def _first_frame(item: Media) -> Any:
    with _opened(item) as container:
        for frame in container.decode(video=0):
            if frame.width * frame.height > MAX_PIXELS:
                raise _too_large(item, frame.width, frame.height)
            return frame.to_image()
    raise item.wrong("has no frames", "is the file complete?")


def _times(item: Media) -> Iterator[float]:
    """Time of each frame, by the packets, without decoding them."""
    with _opened(item) as container:
        if container.streams.video:
            for packet in container.demux(video=0):
                if packet.size:
                    yield float(packet.pts or 0)


@contextmanager
def _opened(item: Media) -> Iterator[Any]:
    """Container of a video or clip. Its errors are those of the item."""
    with _package(item, "av"):
        import av
    try:
        with av.open(io.BytesIO(item.data)) as container:
            yield container
    except (av.FFmpegError, OSError, ValueError, IndexError) as error:
        if hasattr(error, "span"):
            raise
        raise item.wrong(f"cannot be decoded: {_reason(error)}", "is the file complete?") from error


@contextmanager
def _package(item: Media, name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        hint = "pip install 'lmql-lite[media]'"
        raise ModelError(f"{item.modality}s need the package {name}", span=item.span, hint=hint) from error


def _too_large(item: Media, width: int, height: int) -> Exception:
    problem = f"has {width} x {height} pixels, more than the {MAX_PIXELS // 10**6} million that are decoded"
    return item.wrong(problem, "make it smaller")


def _reason(error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(reason).splitlines()[0].rstrip(".")
