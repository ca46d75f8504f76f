"""`lq cache audit` and `lq cache kv`: measuring reused prompt blocks, and managing pages of attention keys and
values."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.terminal import counted, note, reporting, write, write_object
from lmql_lite.errors import CacheError, InputError

if TYPE_CHECKING:
    from lmql_lite.cache.kv.kv_page import KVKey
    from lmql_lite.store.contract import Store

LADDER = ("smash", "rotate(behind=0)", "rotate", "blend(0.05)", "blend(0.15)", "blend(0.3)", "blend(1.0)")
"""Policies that are measured where none is named."""
_UNBOUNDED = 1 << 62

Counted = defaultdict[tuple[str, str], list[int]]
"""Number and bytes of entries, by model and dtype."""
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
PLACE = click.argument("place")


@click.command(short_help="Measure what reusing prompt blocks would cost in quality.")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-m", "--model", required=True, metavar="MODEL", help="A model in this process, such as local:NAME or smol."
)
@click.option("--ask", required=True, metavar="TEXT", help="The text after the blocks, on which they are compared.")
@click.option(
    "--blocks", "policies", multiple=True, metavar="POLICY", help="A policy; may be repeated. Default: all of them."
)
@JSON
def audit(files: tuple[Path, ...], model: str, ask: str, policies: tuple[str, ...], as_json: bool) -> None:
    """Compare reused blocks with a full prefill, on TEXT.

    FILES are the blocks of one prompt, in this order, with a blank line between them. The distance is the KL divergence
    of the scores of each token of TEXT, in nats: its mean and 95th percentile. Top-1 is the share of tokens with the
    same most likely token. Time is a share of the full prefill's, when the blocks are known. All figures hold for this
    text only.
    """
    with reporting(as_json):
        try:
            texts = [path.read_text("utf-8") for path in files]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"a block cannot be read ({error})", hint="blocks are files of text in UTF-8") from error
        lines = _audited(model, texts, ask, policies or LADDER)
        if as_json:
            write_object({"model": model, "policies": lines})
            return
        write(f"{'policy':44} {'KL':>9} {'p95':>9} {'top-1':>6} {'time':>6}")
        for line in lines:
            share = f"{line['time']:6.2f}"
            write(f"{line['policy']:44} {line['mean_kl']:9.2g} {line['p95_kl']:9.2g} {line['top1']:6.2f} {share}")


def _audited(name: str, texts: list[str], ask: str, policies: tuple[str, ...]) -> list[dict[str, Any]]:
    """Divergence and share of the time of each policy. Raises ModelError, InputError, CacheError."""
    from functools import cache

    from lmql_lite.cache.kv.block_policy import BlockPolicy
    from lmql_lite.cache.kv.block_reuse import BlockReuse, prefilled_by
    from lmql_lite.cache.kv.kv_blocks import divergence
    from lmql_lite.engine.state import Piece, block_marks
    from lmql_lite.models.registry import load

    chosen = [BlockPolicy.parse(policy) for policy in policies]
    found = load(name)
    found.with_blocks(chosen[0])  # raises where it cannot
    model: Any = found
    tokenizer, gap = model.tokenizer, Piece(b"\n\n", None, "prompt")
    pieces = [piece for at, text in enumerate(texts) for piece in (Piece(text.encode(), None, "prompt", block=at), gap)]
    ids = tokenizer.encode(b"".join(piece.data for piece in pieces))
    marks = block_marks([len(tokenizer.vocabulary[token] or b"") for token in ids], tuple(pieces))
    shift = len(tokenizer.bos)
    spans = [(shift + first, shift + first + count) for first, count in sorted(marks.items())]
    if not spans:
        raise InputError("no file is long enough to be a block", hint="a block has at least 16 tokens")
    prompt, suffix = (*tokenizer.bos, *ids), tokenizer.encode(ask.encode())
    if not suffix or len(prompt) + len(suffix) > model.context_length:
        raise InputError(
            f"blocks and text have {len(prompt) + len(suffix):,} tokens; {name} reads 1 to {model.context_length:,}",
            hint="use shorter blocks, and some text to judge them by",
        )
    end, lines = spans[-1][1], []
    with model.exclusively():
        known = cache(prefilled_by(model.network))
        begin = time.process_time()
        full = BlockReuse(model.network, BlockPolicy(), known).full(prompt, suffix)
        whole = time.process_time() - begin
        for policy in chosen:
            reuse = BlockReuse(model.network, policy, known)
            reuse.slots(prompt[:end], spans)
            begin = time.process_time()
            slots = reuse.slots(prompt[:end], spans)
            logits = reuse.ask(slots, (*prompt, *suffix), range(len(prompt), len(prompt) + len(suffix)))
            share = (time.process_time() - begin) / whole
            lines.append({"policy": str(policy), **asdict(divergence(full, logits)), "time": share})
    return lines


@click.group(short_help="Look after pages of attention keys and values.")
def kv() -> None:
    """Inspect and maintain pages of attention keys and values. PLACE is a folder, or the URL of a server
    (redis://host:port)."""


@kv.command("stats")
@PLACE
@JSON
def stats_of_place(place: str, as_json: bool) -> None:
    """Count pages and bytes in PLACE by model, and entries of the encoder cache, which may share PLACE."""
    with reporting(as_json):
        write_totals(place, as_json)


def write_totals(place: str, as_json: bool) -> None:
    """Writes how much attention KV and the encoder cache have in a place. Raises CacheError where it is none."""
    from lmql_lite.cache.encoder import model_of

    pages: Counted = defaultdict(lambda: [0, 0])
    encoded: Counted = defaultdict(lambda: [0, 0])
    tier, found = _pages(place)
    for key, size in found:
        _add(pages[key.model, key.dtype], size)
    tier.close()
    tier = _tier(place, "ec")
    for text, size in tier.sizes().items():
        if model := model_of(text):
            _add(encoded[model], size)
    tier.close()
    if as_json:
        write_object({"models": _objects(pages, "pages"), "encoder": _objects(encoded, "entries")})
    else:
        for totals, what in ((pages, "page"), (encoded, "encoder entry")):
            for (name, dtype), (count, size) in sorted(totals.items()):
                write(f"{name} ({dtype}): {counted(count, what)}, {size:,} bytes")
        if not pages and not encoded:
            write("no pages, and no encoder entries")


def _add(total: list[int], size: int) -> None:
    total[0], total[1] = total[0] + 1, total[1] + size


def _objects(totals: Counted, what: str) -> list[dict[str, object]]:
    names = ("model", "dtype", what, "bytes")
    return [dict(zip(names, (*of, *total), strict=True)) for of, total in sorted(totals.items())]


@kv.command("inspect")
@PLACE
@JSON
def inspect_pages(place: str, as_json: bool) -> None:
    """List the pages in PLACE: the beginning of the hash, the model, the tokens, the bytes."""
    from lmql_lite.cache.kv.kv_page import page_tokens

    with reporting(as_json):
        tier, pages = _pages(place)
        found = []
        for key, size in sorted(pages, key=str):
            (beginning,) = tier.head([str(key)], 1 << 16)
            tokens = None if beginning is None else page_tokens(beginning)
            count = None if tokens is None else len(tokens)
            found.append({"page": key.chunk_hash, "model": key.model, "tokens": count, "bytes": size})
        tier.close()
        if as_json:
            write_object({"pages": found})
            return
        for one in found:
            write(
                f"{str(one['page'])[:12]}  {one['tokens'] or '?':>6} tokens  {one['bytes']:>12,} bytes  {one['model']}"
            )
        if not found:
            write("no pages")


@kv.command()
@PLACE
@click.argument("page")
@click.option("--off", is_flag=True, help="Allow eviction again.")
def pin(place: str, page: str, off: bool) -> None:
    """Exempt pages from eviction, in all processes. PAGE is the beginning of a hash, or the name of a model."""
    with reporting(as_json=False):
        tier, keys = _chosen(place, page)
        done = sum(tier.pin(str(key), not off) for key in keys)
        tier.close()
        write(f"{counted(done, 'page')} {'may be evicted' if off else 'pinned'}")


@kv.command()
@PLACE
@click.argument("page")
@click.argument("target")
def move(place: str, page: str, target: str) -> None:
    """Move pages from PLACE to TARGET, which is also a folder or a URL. PAGE is the beginning of a hash, or the name of
    a model."""
    with reporting(as_json=False):
        tier, keys = _chosen(place, page)
        other = _tier(target)
        moved = 0
        for key in map(str, keys):
            (value,) = tier.get([key])
            if value is not None and other.put(key, value):
                moved += tier.delete(key)
        for notice in (*tier.notices, *other.notices):
            note(notice)
        tier.close()
        other.close()
        write(f"{counted(moved, 'page')} moved to {target}")
        if moved < len(keys):
            raise CacheError(f"{counted(len(keys) - moved, 'page')} stayed in {place}")


def _tier(place: str, namespace: str = "kv") -> Store:
    """Tier of a folder or a server. Raises CacheError for a wrong URL."""
    from lmql_lite.store.disk_tier import DiskTier
    from lmql_lite.store.redis_tier import RedisTier

    if "://" in place and not place.startswith("file://"):
        return RedisTier(place, namespace, _UNBOUNDED, timeout=1.0)
    return DiskTier(Path(place.removeprefix("file://")).expanduser(), _UNBOUNDED, ".pt")


def _pages(place: str) -> tuple[Store, list[tuple[KVKey, int]]]:
    """Pages of a place, with their bytes. Raises CacheError where there is no such place."""
    from lmql_lite.cache.kv.kv_page import KVError, KVKey

    if "://" not in place and not Path(place).expanduser().is_dir():
        raise CacheError(f"there is no folder {place}", hint="name the folder of local_disk, or a server's URL")
    tier, pages = _tier(place), []
    for key, size in tier.sizes().items():
        try:
            pages.append((KVKey.parse(key), size))
        except KVError:
            continue  # an entry of something else
    if not pages and tier.notices:
        raise CacheError(tier.notices[0])
    return tier, pages


def _chosen(place: str, page: str) -> tuple[Store, list[KVKey]]:
    tier, pages = _pages(place)
    keys = [key for key, _ in pages if key.chunk_hash.startswith(page.lower()) or key.model == page]
    if not keys or not page:
        raise CacheError(f"{place} has no page {page!r}", hint=f"lq cache kv inspect {place} lists them")
    return tier, keys
