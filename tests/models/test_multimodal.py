"""Local models that take pictures, videos and clips: what a warm run costs, and that it says the same."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.cache.kv.config import KVCacheConfig
from lmql_lite.models.base import PassCounts
from lmql_lite.models.media.decoding import decode_audio, decode_image, thumbnail
from lmql_lite.models.media.path import span_chain
from lmql_lite.observe.lines import Lines, read, written
from lmql_lite.observe.report import report as page_of
from lmql_lite.plain import plain
from tests.models.tiny_multimodal import FOLDERS, Image, clip, llava, movie, paligemma, picture, torch
from tests.models.tiny_multimodal import TEXT as TEXT_CONFIG
from tests.tables import cases

TEXT = "Look "
LIMIT = "where len(TOKENS(X)) < 6"
SEEN = {
    "llava": ("image", [picture(0), picture(1, (40, 40))]),
    "qwen2_vl": ("image", [picture(0), picture(1, (112, 40))]),
    "qwen2_audio": ("audio", [clip(0), clip(1, 0.5)]),
    "gemma3": ("image", [picture(0), picture(1, (40, 40))]),
    "qwen2_5_omni": ("image", [picture(0), picture(1, (112, 40))]),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make(root / name) for name, make in FOLDERS.items()}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder")


@pytest.fixture(autouse=True)
def configured(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_EC_LOCAL_DISK", str(disk))


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> Iterator[dict[str, Any]]:
    patch = pytest.MonkeyPatch()
    patch.delenv("LMCACHE_EC_LOCAL_DISK", raising=False)
    yield {name: lq.model(f"local:{folder}") for name, folder in folders.items()}
    patch.undo()


def query(name: str) -> tuple[str, dict[str, Any]]:
    modality, items = SEEN[name]
    holes = " and ".join(f"{{{modality}(item{number})}}" for number in range(len(items)))
    return f'"{TEXT}{holes}:[X]" {LIMIT}', {f"item{number}": data for number, data in enumerate(items)}


def shown(model: Any, items: list[Any]) -> tuple[int, ...]:
    """Path of a text with items in it."""
    encode = model.tokenizer.encode
    ids: tuple[int, ...] = (*model.tokenizer.bos, *encode(b"See"))
    for item in items:
        ids += (*model.show(item), *encode(b" and"))
    return ids


@torch.inference_mode()
def own_logits(model: Any, ids: tuple[int, ...], items: list[Any]) -> Any:
    """Logits after the whole path by the network's own forward, with pixels or samples and no cache."""
    network, encoding = model._network, model.encoding
    entries = model._entries(items)
    tokens = torch.from_numpy(model._unfolded(ids, entries).tokens)[None]
    last = {"logits_to_keep": torch.tensor([tokens.shape[1] - 1])} if "logits_to_keep" in model._takes else {}
    if items[0].modality == "audio":
        sounds = [decode_audio(item, 16000) for item in items]
        text = [encoding._processor.audio_token] * len(items)
        inputs = encoding._processor(text=text, audio=sounds, sampling_rate=16000, return_tensors="pt", padding=True)
        features = {"input_features": inputs["input_features"]}
        features["feature_attention_mask"] = inputs["feature_attention_mask"]
        return network(input_ids=tokens, attention_mask=torch.ones_like(tokens), **features, **last).logits[0, -1]
    pictures = [decode_image(item) for item in items if item.modality == "image"]
    inputs = dict(encoding._images(images=pictures, return_tensors="pt"))
    for clip_ in (item for item in items if item.modality == "audio"):
        inputs |= encoding.sound_inputs(decode_audio(clip_, 16000))[1]
    inputs |= dict.fromkeys(("mm_token_type_ids", "token_type_ids"), (tokens == encoding.image_token).int())
    inputs = {name: value for name, value in inputs.items() if name in model._takes}
    return network(input_ids=tokens, attention_mask=torch.ones_like(tokens), **inputs, **last).logits[0, -1]


def media(name: str) -> list[Any]:
    modality, items = SEEN[name]
    return [getattr(lq, modality)(data) for data in items]


@pytest.mark.parametrize("name", SEEN)
def test_a_warm_run_encodes_and_decodes_nothing_and_its_logits_are_bit_equal(
    name: str, folders: dict[str, Path], models: dict[str, Any]
) -> None:
    items = media(name)
    cold = lq.model(f"local:{folders[name]}")
    ids = shown(cold, items)
    first = cold.logits(ids, [len(ids)])
    counts = cold.encoder_calls, cold.decodes
    again = lq.model(f"local:{folders[name]}")  # as in a new process: entries come from disk
    assert shown(again, items) == ids
    second = again.logits(ids, [len(ids)])
    assert (again.encoder_calls, again.decodes) == (0, 0) and max(counts) <= len(items)
    assert torch.equal(first, second)
    assert float((first[0] - own_logits(again, ids, items)).abs().max()) <= 1e-5  # of a batch, encoders round otherwise
    again._rows.live.all.clear()
    alone = shown(again, items[:1])
    assert torch.equal(again.logits(alone, [len(alone)])[0], own_logits(again, alone, items[:1]))


@pytest.mark.parametrize("name", SEEN)
def test_the_same_item_warm_costs_no_call(name: str, models: dict[str, Any], tmp_path: Path) -> None:
    source, inputs = query(name)
    model, file = models[name], tmp_path / "seen.tokens"
    cold = lq.run_sync(source, inputs, model=model, cache=file)
    before = model.decodes
    warm = lq.run_sync(source, inputs, model=model, cache=file, session=lq.Session(), cache_mode="replay")
    assert warm.prompt == cold.prompt and warm.usage.forward_passes == 0 and model.decodes == before
    assert b"".join(token.data for token in warm.tokens if token.fate == "kept").decode() == warm.prompt


def test_another_picture_is_another_path(models: dict[str, Any], tmp_path: Path) -> None:
    source, file = f'"{{image(item)}} shows:[X]" {LIMIT}', tmp_path / "seen.tokens"
    lq.run_sync(source, {"item": picture(0)}, model=models["llava"], cache=file)
    with pytest.raises(lq.CacheError, match="the recording has no answer of"):
        lq.run_sync(source, {"item": picture(1)}, model=models["llava"], cache=file, cache_mode="replay")


def test_recordings_and_reports_show_a_thumbnail_and_never_the_picture(models: dict[str, Any], tmp_path: Path) -> None:
    data, file = picture(6, (300, 200)), tmp_path / "seen.tokens"
    query = lq.compile(f'"A {{image(item)}}, a {{video(frames)}} and a {{image(item)}}:[X]" {LIMIT}')
    inputs = {"item": data, "frames": movie()}

    async def recording() -> bytes:
        lines = Lines()
        stream = query.stream(inputs, model=models["qwen2_vl"], cache=file)
        return "".join([written(lines.line(event)) async for event in stream]).encode()

    recorded = asyncio.run(recording())
    lines = list(read(io.BytesIO(recorded), "run"))
    seen = [line for line in lines if line["type"] == "media"]
    assert [one["name"].split()[0] for one in seen] == ["<image", "<video", "<image"]
    for one in seen:
        small = Image.open(io.BytesIO(base64.b64decode(one["thumbnail"].partition(",")[2])))
        assert small.format == "JPEG" and max(small.size) <= 96
    page, stored = page_of(lines), file.read_bytes()
    assert page.count('<img src="data:image/jpeg') == 3 and "img-src data:" in page
    for other in (recorded, page.encode(), stored):
        assert data[200:260] not in other and base64.b64encode(data[198:258]) not in other
    assert b"data:image" in recorded and b"data:image" not in stored and len(stored) < len(data) / 2


def test_what_nobody_can_decode_has_no_thumbnail() -> None:
    unseen = (lq.audio(clip()), lq.image(b"nonsense"), lq.video(movie()[:300]))
    assert [thumbnail(one) for one in unseen] == ["", "", ""]


def test_a_returned_item_is_its_digest_in_json() -> None:
    assert plain({"item": lq.image(b"bytes")}) == {"item": str(lq.image(b"bytes"))}


LONG_ROPE = {"factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [9.0, 7.0, 5.0, 3.0], "rope_theta": 100.0}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0},
        {"rope_type": "longrope", "original_max_position_embeddings": 24, **LONG_ROPE},
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_a_rotation_that_changes_with_the_length_of_a_text_with_pictures(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    length = 24 if scaling["rope_type"] == "dynamic" else 96
    config = {**TEXT_CONFIG, "max_position_embeddings": length, "rope_parameters": scaling}
    folder = llava(tmp_path / "model", config)
    model, items = lq.model(f"local:{folder}", kv=str(tmp_path / "kv")), media("llava")
    assert model.context_length == 96
    ids = (*shown(model, items), *range(40, 60))
    ends = [len(ids) - back for back in (0, 9, 12, 19)]
    sizes = [len(model._unfolded(ids[:end], model._entries(items)).tokens) for end in ends]
    assert min(sizes) < 24 < max(sizes)
    for end in ends:
        fresh = lq.model(f"local:{folder}")
        shown(fresh, items)
        own = own_logits(fresh, ids[:end], items)
        assert torch.allclose(model.logits(ids[:end], [end])[0], own, atol=1e-4)
    apart = [model.logits(ids[:end], [end])[0] for end in sorted(ends)]
    assert torch.allclose(model.logits(ids, sorted(ends)), torch.stack(apart), atol=1e-4)


def test_an_entry_without_positions_is_refused_where_the_model_needs_them(models: dict[str, Any]) -> None:
    model, item = models["qwen2_vl"], lq.image(picture(9))
    ids = shown(model, [item])
    entry = model._entries([item])[item.digest]
    tensors = {name: tensor for name, tensor in entry.tensors.items() if name != "positions"}
    with pytest.raises(lq.ModelError, match="needs positions"):
        model._unfolded(ids, {item.digest: type(entry)(tensors, entry.facts)})


@pytest.mark.parametrize("name", SEEN)
def test_a_prefix_hit_never_ends_inside_an_item(name: str, folders: dict[str, Path], models: dict[str, Any]) -> None:
    items = media(name)
    chunked, fresh = models[name], lq.model(f"local:{folders[name]}")
    ids = shown(chunked, items)
    ends = range(3, len(ids) + 1, 9)
    for end in ends:  # also ones inside of an item, whose hit is rounded down to its beginning
        chunked._rows.live.all.clear()
        chunked.logits(ids[: 1 + len(ids) // 2], [1])
        inside = end if not _is_inside(ids, end, chunked._mark) else len(ids)
        starts, counts = chunked._unfolded(ids, chunked._entries(items)).starts.tolist(), PassCounts()
        found = chunked.logits(ids[:inside], [inside], None, counts)
        assert sum(counts.reused.values()) in starts
        fresh._rows.live.all.clear()
        assert float((found - fresh.logits(shown(fresh, items)[:inside], [inside])).abs().max()) <= 1e-5


def _is_inside(ids: tuple[int, ...], end: int, mark: int) -> bool:
    return any(ids[at] == mark and at < end <= at + 32 for at in range(len(ids)))


def test_pictures_whose_attention_runs_both_ways_are_read_in_one_piece(models: dict[str, Any]) -> None:
    """A second picture behind a known prefix: the library loses the mask of a picture as soon as there is a past."""
    assert {name for name, model in models.items() if model._in_one_piece} == {"gemma3"}
    model, items = models["gemma3"], media("gemma3")
    model._rows.live.all.clear()
    alone, both = shown(model, items[:1]), shown(model, items)
    model.logits(alone, [len(alone)])
    counts = PassCounts()
    found = model.logits(both, [len(both)], None, counts)
    assert not counts.reused and float((found[0] - own_logits(model, both, items)).abs().max()) <= 1e-5
    longer = both + model.tokenizer.encode(b" then")
    counts = PassCounts()
    found = model.logits(longer, [len(longer)], None, counts)  # text behind pictures goes on from what is known
    assert counts.reused == {"memory": counts.reused["memory"]} and counts.fed == len(longer) - len(both)
    assert float((found[0] - own_logits(model, longer, items)).abs().max()) <= 1e-5


def test_a_picture_and_a_clip_in_one_prompt_are_two_entries(models: dict[str, Any], folders: dict[str, Path]) -> None:
    model = models["qwen2_5_omni"]
    assert model.encoding.modalities == {"image", "video", "audio"}
    items = [lq.image(picture(50)), lq.audio(clip(51, 0.7))]
    ids = shown(model, items)
    before = model.encoder_calls
    found = model.logits(ids, [len(ids)])
    assert model.encoder_calls == before + 2
    assert float((found[0] - own_logits(model, ids, items)).abs().max()) <= 1e-5
    more = [items[1], lq.image(picture(52)), items[0]]
    ids = shown(model, more)
    model.logits(ids, [len(ids)])
    assert model.encoder_calls == before + 3  # of three items, one was new


def test_a_model_that_reads_its_text_both_ways_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lq.ModelError, match="needs more of a picture than embeddings in its place"):
        lq.model(f"local:{paligemma(tmp_path)}")


@pytest.mark.parametrize("name", SEEN)
def test_check_12_kv_is_found_by_another_process_and_never_that_of_another_item(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Behind the same text, an item of the same size."""
    kv = KVCacheConfig(local_disk=str(tmp_path), chunk_size=8)
    first = lq.model(f"local:{folders[name]}", kv=kv)
    make = clip if SEEN[name][0] == "audio" else picture
    one, other = (getattr(lq, SEEN[name][0])(make(seed)) for seed in (20, 21))
    tail = first.tokenizer.encode(b" this text is long enough for it to be worth a page of its own")
    ids = {item.digest: shown(first, [item]) + tail for item in (one, other)}
    expected = {
        item.digest: first.logits(ids[item.digest], [len(ids[item.digest])], {item.digest: item})
        for item in (one, other)
    }
    assert float((expected[one.digest] - expected[other.digest]).abs().max()) > 1e-3
    first.kv.tiers.flush()
    second = lq.model(f"local:{folders[name]}", kv=kv)
    for item in (one, other):
        counts, path = PassCounts(), ids[item.digest]
        found = second.logits(path, [len(path)], {item.digest: item}, counts)
        assert float((found - expected[item.digest]).abs().max()) <= 1e-5
        assert list(counts.reused) == ["disk"] and counts.fed <= 8  # less than a page
    unseen = getattr(lq, SEEN[name][0])(make(22))
    counts, path = PassCounts(), shown(second, [unseen])
    second.logits(path, [len(path)], {unseen.digest: unseen}, counts)
    assert sum(counts.reused.values()) <= len(second.tokenizer.bos) + len(second.tokenizer.encode(b"See"))


def test_live_keys_and_values_stay_within_the_stated_memory(folders: dict[str, Path]) -> None:
    model = lq.model(f"local:{folders['llava']}", kv=KVCacheConfig(max_local_cpu_size=0.0))
    texts = [shown(model, []) + model.tokenizer.encode(text) for text in (b"some text of some tokens", b"another one")]
    for ids in 2 * texts:  # the latest one stays in any case, as in every model in this process
        counts = PassCounts()
        model.logits(ids, [len(ids)], None, counts)
        assert counts.fed >= len(ids) - len(shown(model, []))


def test_every_token_of_a_span_has_a_number_of_its_own_in_the_chain() -> None:
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(20_000)]
    numbers = {number for digest in digests for number in span_chain(digest, 5)}
    assert len(numbers) == 100_000 and max(numbers) < 0 and min(numbers) >= -(2**63)


def test_a_video_is_shown_as_the_frames_that_are_asked_for(models: dict[str, Any]) -> None:
    model, data = models["qwen2_vl"], movie(6)
    spans = {}
    for count in (2, 3, 50):
        item = lq.video(data, num_frames=count)
        spans[count] = model._entries([item])[item.digest].tensors["tokens"].tolist()
    begin = model._network.config.vision_start_token_id
    assert {count: span.count(begin) for count, span in spans.items()} == {2: 2, 3: 3, 50: 6}
    assert lq.video(data, num_frames=2).digest != lq.video(data, num_frames=3).digest


def test_an_item_in_a_turn_of_a_chat_and_in_a_nested_query(models: dict[str, Any]) -> None:
    source = """
@lq.query
def describe(item):
    '''lq
    "Here is {item}, which shows [WORD]" where len(TOKENS(WORD)) < 3
    return WORD
    '''

"First.[X: describe(image(data))]"
"Then {image(data)} again:[Y]" where len(TOKENS(Y)) < 3
"""
    result = lq.run_sync(source, {"data": picture(0)}, model=models["llava"])
    assert result.prompt.count("<image ") == 1 and result.variables["X"]


def bomb() -> bytes:
    """A picture of 3.6 thousand million pixels in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"0" * 1000))


@cases("models/multimodal", "a bad item is an error at its place and nothing is cached", globals())
def test_a_bad_item_is_an_error_at_its_place_and_nothing_is_cached(
    model: str, item: str, data: bytes, message: str, models: dict[str, Any]
) -> None:
    with pytest.raises((lq.InputError, lq.ModelError), match=message) as raised:
        lq.run_sync(f'"See {{{item}}}:[X]" {LIMIT}', {"data": data}, model=models[model])
    assert raised.value.span is not None and raised.value.span.source == f"{{{item}}}"
    asked = models[model]
    assert not asked.encoder.contains(asked.encoding.key(getattr(lq, item.partition("(")[0])(data)))


def test_an_item_is_not_kept_after_its_run(models: dict[str, Any]) -> None:
    model = models["llava"]
    lq.run_sync(f'"{{image(data)}}:[X]" {LIMIT}', {"data": picture(77)}, model=model)
    gc.collect()
    assert lq.image(picture(77)).digest not in model._items


def test_a_picture_of_pil_is_the_same_path_as_itself(models: dict[str, Any]) -> None:
    pixels = Image.new("RGB", (30, 30), (200, 10, 10))
    assert lq.image(pixels).digest == lq.image(pixels.copy()).digest
    result = lq.run_sync(f'"{{image(item)}}:[X]" {LIMIT}', {"item": pixels}, model=models["llava"])
    assert result.prompt.startswith(f"<image {lq.image(pixels).digest[:12]}>:")
