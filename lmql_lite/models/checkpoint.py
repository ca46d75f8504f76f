"""Loading of a model in Hugging Face format, from its folder or its name to a network that can be run.

Weights are read from safetensors files only, because the older format executes code while it is read (law 5). For the
same reason a model that needs Python code of its own is refused. The device is the first CUDA one, else the CPU. The
precision is the one in the config, except that the CPU computes float16 models in float32: it is slow at float16, but
good at bfloat16, in half the memory.

torch is imported when a model is loaded, not with this module.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmql_lite.errors import ModelError
from lmql_lite.models.chat import read_chat
from lmql_lite.models.tokenizer import HFTokenizer

if TYPE_CHECKING:
    import torch

_UNLIMITED = 1 << 20
"""Context length of a model whose config names none: state-space models, for example, have no limit."""
_PARTS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
"""Patterns of the files in a model's folder that its scores depend on."""
_LOADING = threading.Lock()
"""Lock around loading: torch's default precision and the library's log levels are process-wide while a model loads."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Loaded model. `network` is a causal language model of the library, in evaluation mode, on its device."""

    name: str
    fingerprint: str
    tokenizer: HFTokenizer
    context_length: int
    network: Any

    @classmethod
    def load(cls, name: str) -> Checkpoint:
        """Checkpoint from a folder or by name. Call it inside `loading`."""
        return _load(name, *_located(name))


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Context for loading a model and running it first: prints nothing, and turns failures into ModelError."""
    with _LOADING, _quiet(), _telling(name, "it cannot be loaded"):
        yield


def is_out_of_memory(error: BaseException) -> bool:
    """True for each error with which torch reports exhausted memory; on the CPU that is a RuntimeError."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "enough memory" in str(error)


def _load(name: str, folder: Path, commit: str | None) -> Checkpoint:
    import torch
    import transformers

    library: Any = transformers
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with _telling(name, "its config.json cannot be used"):
        config = library.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    _require_causal(name, config)
    stated = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
    stated = getattr(torch, stated) if isinstance(stated, str) else stated
    precision = torch.float32 if device.type == "cpu" and stated == torch.float16 else stated
    _require_memory(name, folder, precision.itemsize / stated.itemsize, device)
    backend, bos, eos = _tokenizer(name, folder)
    with _telling(name, "its weights cannot be loaded"):
        network, report = library.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            torch_dtype=precision,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        network = network.to(device).eval()
    if report["missing_keys"]:
        some = ", ".join(sorted(report["missing_keys"])[:3])
        raise ModelError(
            f"local:{name}: tensors are missing from its weights ({len(report['missing_keys'])}: {some}, ...)",
            hint="was the folder copied as a whole, and does config.json belong to these weights?",
        )
    eos |= _ids(config.eos_token_id) | _ids(getattr(network.generation_config, "eos_token_id", None))
    return Checkpoint(
        name=f"local:{name}",
        fingerprint=_fingerprint(name, folder, commit, str(precision)),
        tokenizer=HFTokenizer(
            backend, bos=bos, eos=eos, size=int(config.get_text_config().vocab_size), chat=read_chat(folder, backend)
        ),
        context_length=_context_length(config),
        network=network,
    )


def _located(name: str) -> tuple[Path, str | None]:
    """Folder of a model, and its commit if it came from the hub."""
    from huggingface_hub import snapshot_download

    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"local:{name}: the folder holds no config.json", hint="name the folder that config.json stands in"
            )
        return folder, None
    if name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:
        raise ModelError(f"local:{name}: there is no such folder", hint="is the path spelled as it is on disk?")
    try:
        found = Path(snapshot_download(name, allow_patterns=list(_PARTS), ignore_patterns=["*/*", "consolidated*"]))
    except Exception as error:  # of many classes: connection, name, permission, disk
        raise ModelError(
            f"local:{name} is no folder here, and no model of that name is on this machine or could be fetched",
            hint="name a folder, or a model of the hub while there is a network connection",
        ) from error
    if not (found / "config.json").is_file():
        raise ModelError(f"local:{name} is on the hub but has no config.json", hint="is it a model for this library?")
    return found, found.name


def _require_causal(name: str, config: Any) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    known = {one for names in CAUSAL.values() for one in ((names,) if isinstance(names, str) else names)}
    stated = tuple(config.architectures or ())
    if config.model_type in CAUSAL and not config.is_encoder_decoder and (not stated or known & set(stated)):
        return
    raise ModelError(
        f"local:{name} is no causal language model: it is {' or '.join(stated) or config.model_type}",
        hint="name a model whose architecture ends in ForCausalLM or LMHeadModel",
    )


def _require_memory(name: str, folder: Path, growth: float, device: torch.device) -> None:
    """Refuses a model that cannot fit, by the size of its files, before minutes are spent on loading."""
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"local:{name} has no weights in safetensors format",
            hint="save the model with `save_pretrained(folder, safe_serialization=True)`",
        )
    needed, free = growth * sum(path.stat().st_size for path in folder.glob("*.safetensors")), _free_bytes(device)
    if free is not None and needed > free:
        raise ModelError(
            f"local:{name} needs {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free on {device.type}",
            hint="name a smaller model",
        )


def _free_bytes(device: torch.device) -> int | None:
    """Free memory in bytes; None if the system does not report it."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _tokenizer(name: str, folder: Path) -> tuple[Any, tuple[int, ...], set[int]]:
    """Backend of the fast tokenizer, the ids that it puts before a text, and its end-of-text ids."""
    import transformers

    library: Any = transformers
    with _telling(name, "its tokenizer cannot be read"):
        tokenizer = library.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "to_str") or not backend.get_vocab_size():
        raise ModelError(f"local:{name} has no fast tokenizer", hint="is there a tokenizer.json in its folder?")
    text = backend.encode("a", add_special_tokens=True)
    before = takewhile(lambda pair: pair[1], zip(text.ids, text.special_tokens_mask, strict=True))
    bos = tuple(number for number, _ in before)
    if not bos and getattr(tokenizer, "add_bos_token", False) is True and tokenizer.bos_token_id is not None:
        bos = (int(tokenizer.bos_token_id),)
    return backend, bos, _ids(tokenizer.eos_token_id)


def _ids(value: Any) -> set[int]:
    """Ids from an id, a list of ids or None, the forms in these files."""
    if value is None:
        return set()
    return {int(number) for number in value} if isinstance(value, list | tuple) else {int(value)}


def _context_length(config: Any) -> int:
    text = config.get_text_config()
    for field in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        length = getattr(text, field, None)
        if isinstance(length, int) and length > 0:
            return length
    return _UNLIMITED


def _fingerprint(name: str, folder: Path, commit: str | None, precision: str) -> str:
    """Fingerprint from the content of the files, never their location. For files from the hub, the commit suffices."""
    if commit is not None:
        parts: Any = [name, commit, (folder / "config.json").read_text("utf-8")]
    else:
        paths = sorted({path for pattern in _PARTS for path in folder.glob(pattern) if path.is_file()})
        parts = [(path.name, _digest(path)) for path in paths]
    return f"local:{hashlib.sha256(json.dumps([precision, parts]).encode()).hexdigest()[:32]}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _telling(name: str, what: str) -> Iterator[None]:
    """Turns any exception of the library into one sentence."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelError(f"local:{name} does not fit into memory", hint="name a smaller model") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(":. ")
        raise ModelError(f"local:{name}: {what}: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses warnings, log lines and progress bars, and restores the user's settings afterwards."""
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
