"""Content of a message: text, and pictures, videos and clips as data in parts between it."""

from __future__ import annotations

import base64
from typing import Any

from lmql_lite.media import Media
from lmql_lite.models.base import PromptTurn

MOST_BYTES = 20 << 20
"""Largest item that is sent: the limit of most services."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_CLIPS = {"audio/wav": "wav", "audio/mpeg": "mp3"}


def content(turn: PromptTurn) -> str | list[dict[str, Any]]:
    """Content of a turn: its text, or a list of parts where it has items. Raises InputError at the place of an item
    that is too large or of a format that the protocol does not know."""
    if not turn.media:
        return turn.text
    parts: list[dict[str, Any]] = []
    begin = 0
    for place, item in turn.media:
        parts += [{"type": "text", "text": turn.text[begin:place]}] if place > begin else []
        parts.append(_part(item))
        begin = place
    return parts + ([{"type": "text", "text": turn.text[begin:]}] if turn.text[begin:] else [])


def _part(item: Media) -> dict[str, Any]:
    if len(item.data) > MOST_BYTES:
        problem = f"has {len(item.data) / 2**20:.1f} MiB, and a server is sent {MOST_BYTES >> 20} at most"
        raise item.wrong(problem, "make it smaller")
    data = base64.b64encode(item.data).decode()
    if item.modality == "image" and item.mime in _PICTURES:
        return {"type": "image_url", "image_url": {"url": f"data:{item.mime};base64,{data}"}}
    if item.modality == "audio" and item.mime in _CLIPS:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _CLIPS[item.mime]}}
    if item.modality == "video" and item.mime is not None and item.mime.startswith("video/"):
        return {"type": "video_url", "video_url": {"url": f"data:{item.mime};base64,{data}"}}
    known = {"image": "PNG, JPEG, GIF or WebP", "audio": "WAV or MP3", "video": "MP4 or WebM"}[item.modality]
    raise item.wrong("is of a format that servers do not take", f"convert it to {known}")
