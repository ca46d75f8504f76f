"""`lq cache audit` and `lq cache kv`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmql_lite.apps.cli import lq as command

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.cache.encoder import EncoderCache  # noqa: E402
from lmql_lite.cache.kv.kv_config import KVCacheConfig, KVCacheMetadata  # noqa: E402
from lmql_lite.cache.kv.kv_engine import KVCacheEngine  # noqa: E402
from tests.models.test_transformers import HEADS, LAYERS, SHAPE, save  # noqa: E402


def lq(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(command, [str(one) for one in ("cache", *arguments)])
    return done.exit_code, done.output


def filled(folder: Path, model: str = "org/m", count: int = 40) -> KVCacheEngine:
    config = KVCacheConfig(local_cpu=False, local_disk=str(folder), chunk_size=16)
    engine = KVCacheEngine(config, KVCacheMetadata(model, fingerprint="f"))
    engine.store(list(range(count)), ((torch.ones(2, count, 8), torch.ones(2, count, 8)),))
    return engine


def test_pages_of_a_folder_are_counted_listed_pinned_and_moved(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    engine = filled(here)
    filled(here, "other", 16).close()
    code, said = lq("kv", "stats", here)
    assert code == 0 and "org/m (float): 3 pages" in said and "other (float): 1 page," in said
    pages = json.loads(lq("kv", "inspect", here, "--json")[1])["pages"]
    assert sorted(page["tokens"] for page in pages if page["model"] == "org/m") == [8, 16, 16]
    assert lq("kv", "pin", here, "org/m") == (0, "3 pages pinned\n")
    assert lq("kv", "pin", here, pages[0]["page"][:12], "--off") == (0, "1 page may be evicted\n")
    code, said = lq("kv", "move", here, "org/m", there)
    assert (code, said) == (0, f"3 pages moved to {there}\n")
    assert engine.lookup(list(range(40))) == 0 and filled(there).lookup(list(range(40))) == 40
    engine.close()


def test_encoder_entries_beside_pages_are_counted_of_their_own(tmp_path: Path) -> None:
    filled(tmp_path).close()
    config = KVCacheConfig(local_disk=str(tmp_path))
    with_pictures = EncoderCache(config, "org/m", "bfloat16")
    for item in ("a", "b"):
        assert with_pictures.put(item, torch.ones(4, 8, dtype=torch.bfloat16))
    with_pictures.close()
    lines = lq("stats", tmp_path)[1].splitlines()
    assert lines == lq("kv", "stats", tmp_path)[1].splitlines()
    assert lines[0].startswith("org/m (float): 3 pages, ")
    assert lines[1].startswith("org/m (bfloat16): 2 encoder entries, ")
    stored = json.loads(lq("stats", tmp_path, "--json")[1])
    files = sum(path.stat().st_size for path in tmp_path.rglob("*.pt"))
    assert stored["models"][0]["bytes"] + stored["encoder"][0]["bytes"] == files
    assert (stored["models"][0]["pages"], stored["encoder"][0]["entries"]) == (3, 2)


def test_a_place_without_pages_and_a_page_that_is_not_there(tmp_path: Path) -> None:
    code, said = lq("kv", "stats", tmp_path / "none")
    assert code == 6 and "there is no folder" in said
    code, said = lq("kv", "stats", "redis://127.0.0.1:1")
    assert code == 6 and "does not answer" in said
    code, said = lq("kv", "stats", "http://x")
    assert code == 6 and "http://x" in said
    assert lq("kv", "inspect", tmp_path) == (0, "no pages\n")
    code, said = lq("kv", "pin", tmp_path, "abc")
    assert code == 6 and "has no page 'abc'" in said


def test_an_audit_shows_the_ladder_and_refuses_what_cannot_be_measured(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m", transformers.LlamaConfig(**{**SHAPE, "max_position_embeddings": 512}, **LAYERS, **HEADS)
    )
    for name, text in (("a", "Pack the brown stick at last. " * 5), ("b", "A week at the sea, a dad joke. " * 5)):
        (tmp_path / name).write_text(text)
    files = (tmp_path / "a", tmp_path / "b")
    code, said = lq("audit", *files, "-m", f"local:{model}", "--ask", "What is it at last?")
    assert code == 0 and [line.split()[0] for line in said.splitlines()][:2] == ["policy", "smash"]
    asked = ("audit", *files, "-m", f"local:{model}", "--ask", "What is it?", "--json")
    lines = json.loads(lq(*asked, "--blocks", "blend(1.0)", "--blocks", "rotate(behind=0)", "--blocks", "exact")[1])
    blend, rotate, exact = lines["policies"]
    assert blend["largest"] <= 1e-4 and blend["top1"] == 1.0 and exact["mean_kl"] <= 1e-6
    assert rotate["mean_kl"] > 1e-6 and rotate["p95_kl"] >= rotate["mean_kl"] / 2
    assert "cannot move blocks" in lq("audit", *files, "-m", "demo", "--ask", "x")[1]
    assert "reads 1 to 512" in lq("audit", *files, "-m", f"local:{model}", "--ask", "x " * 600)[1]
    (tmp_path / "c").write_text("short")
    assert "long enough" in lq("audit", tmp_path / "c", "-m", f"local:{model}", "--ask", "x")[1]
    assert "no policy for blocks" in lq(*asked, "--blocks", "rotat")[1]
