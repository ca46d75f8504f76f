"""Loading of a model in Hugging Face format to a network that can be run: from a folder, a GGUF file, a name.

Weights are read from safetensors and GGUF files only, because the older format executes code while it is read (law 5).
For the same reason a model that needs Python code of its own is refused. The device is the first CUDA one, else Apple's
(MPS), else the CPU. The precision is the one in the config, except that the CPU computes in float32 where it has no
instructions for the stated one: emulated bfloat16 is several times slower.

torch is imported when a model is loaded, not with this module.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmql_lite.cache.kv.layout import Unsupported, model_fingerprint
from lmql_lite.cache.kv.rotation import Rotation, original_length, rope_parameters, rope_type
from lmql_lite.errors import LmqlLiteError, ModelError
from lmql_lite.models.base import Row
from lmql_lite.models.model_files import files_fingerprint, located, quiet
from lmql_lite.models.tokenizer import HFTokenizer, ids_in

if TYPE_CHECKING:
    import torch

_MULTIMODAL_CLASSES = {
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES": "AutoModelForImageTextToText",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES": "AutoModelForMultimodalLM",
}
_UNLIMITED = 1 << 20
"""Context length of a model whose config names none: state-space models, for example, have no limit."""
_LENGTHS = (
    "max_position_embeddings",
    "max_target_positions",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)
"""Fields of a config that give a model's context length, in the order in which they are read."""
_LOADING = threading.Lock()
"""Lock around loading: torch's default precision and the library's log levels are process-wide while a model loads."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Loaded model. `network` is a model of the library, in evaluation mode, on its device. `folder` has its files,
    where it was loaded from some."""

    name: str
    fingerprint: str
    tokenizer: HFTokenizer
    context_length: int
    network: Any
    folder: str = ""

    def __post_init__(self) -> None:
        """Raises ModelError for a network whose positions are rotated in an unknown way."""
        try:
            Rotation(self.network)
        except Unsupported as error:
            hint = "use a model whose rope_type is one of those of transformers"
            raise ModelError(f"{self.name} cannot be scored: {error.message}", hint=hint) from error

    @classmethod
    def load(
        cls, name: str, device: str | None = None, dtype: str | None = None, *, multimodal: bool = False
    ) -> Checkpoint:
        """Checkpoint from a folder, a GGUF file or a name: a causal language model, or one that takes pictures or
        clips. Call it inside `loading`. `device` and `dtype` are those of torch, None for the default."""
        import torch
        import transformers

        library: Any = transformers
        folder, commit = located(name)
        place = _device(name, device)
        with _telling(name, "its config.json cannot be used"):
            config = library.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        if not multimodal:
            _require_causal(name, config)
        kind = multimodal_class(config.model_type, config.architectures) if multimodal else "AutoModelForCausalLM"
        precision = _precision(name, dtype, config.dtype or torch.float32, place)
        with _telling(name, "its tokenizer cannot be read"):
            tokenizer = _tokenizer(folder, config)
        with _telling(name, "its weights cannot be loaded (safetensors and GGUF are read)"):
            network, report = getattr(library, str(kind)).from_pretrained(
                folder,
                config=config,
                dtype=precision,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
            network = network.to(place)
        if report["missing_keys"]:
            some = ", ".join(sorted(report["missing_keys"])[:3])
            raise ModelError(
                f"local:{name}: its weights lack {len(report['missing_keys'])} tensors ({some}, ...)",
                hint="is the folder complete, and does config.json belong to these weights?",
            )
        fingerprint = files_fingerprint(name, folder, commit, str(precision))
        return cls(f"local:{name}", fingerprint, tokenizer, context_length(config), network.eval(), str(folder))

    @classmethod
    def of(cls, network: Any, tokenizer: Any) -> Checkpoint:
        """Checkpoint of a loaded network and its tokenizer (of transformers, or ours). Call it inside `loading`.

        The network is put into evaluation mode. Reads all weights once, at memory speed, for the fingerprint.
        """
        config = getattr(network, "config", None)
        if not (hasattr(network, "forward") and hasattr(config, "get_text_config")):
            raise ModelError(
                f"{type(network).__name__} is not a causal language model of transformers",
                hint="give model(network, tokenizer) what AutoModelForCausalLM.from_pretrained returned",
            )
        name = Path(str(getattr(config, "_name_or_path", "") or type(network).__name__)).name
        _require_causal(name, config)
        if tokenizer is None:
            raise ModelError(
                "a loaded network needs its tokenizer", hint="model(network, AutoTokenizer.from_pretrained(NAME))"
            )
        fingerprint = model_fingerprint(network, extra=_spelling(tokenizer))
        if not isinstance(tokenizer, HFTokenizer):
            with _telling(name, "its tokenizer cannot be read"):
                tokenizer = _saved(tokenizer, config, network.generation_config)
        length = context_length(config)
        return cls(f"local:{name}", f"local:{fingerprint[:32]}", tokenizer, length, network.eval())


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Context for loading a model and running it first: prints nothing, and turns failures into ModelError."""
    with _LOADING, quiet(), _telling(name, "it cannot be loaded"):
        yield


@contextmanager
def within_memory(name: str, tokens: int) -> Iterator[None]:
    """Context for a pass: exhausted memory is a ModelError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        hint = "shorten the prompt, show fewer or smaller items, or use a smaller model"
        raise ModelError(f"{name} ran out of memory on a text of {tokens} tokens", hint=hint) from error


def rows_of(logits: torch.Tensor, name: str, size: int) -> list[Row]:
    """Normalised scores of a model from logits `[places, width]`, one for each of `size` tokens."""
    import torch

    scores = torch.log_softmax(logits.float(), dim=-1).cpu().numpy()
    if np.isnan(scores.sum()):  # a sum of numbers, minus infinity among them, is none
        hint = "check its weights, and its precision on this device"
        raise ModelError(f"{name} returned scores that are not numbers", hint=hint)
    if len(scores) == 1 and scores.shape[1] == size:
        return [scores[0]]
    absent = np.full(max(size - scores.shape[1], 0), -np.inf, dtype=np.float32)
    return [np.concatenate([row[:size], absent]) for row in scores]  # a view would keep other rows alive


def _is_out_of_memory(error: BaseException) -> bool:
    """True for each error with which torch reports exhausted memory; on the CPU that is a RuntimeError."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "enough memory" in str(error)


def _device(name: str, wanted: str | None) -> torch.device:
    import torch

    if wanted is None:
        has_mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu")
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f"local:{name}: the device {wanted!r} cannot be used here", hint="device='cpu' works everywhere"
        ) from error
    return device


def _precision(name: str, wanted: str | None, stated: torch.dtype, device: torch.device) -> torch.dtype:
    """Precision that the caller names, else the stated one, or float32 where the processor would emulate it."""
    import torch

    if wanted is not None:
        known = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
        found = known.get(str(wanted).removeprefix("torch."))
        if found is None:
            raise ModelError(f"local:{name}: {wanted!r} is not a precision", hint="dtype= float32, bfloat16 or float16")
        return found
    if device.type != "cpu" or stated.itemsize > 2:
        return stated
    return stated if stated == torch.bfloat16 and has_native_bfloat16() else torch.float32


def has_native_bfloat16() -> bool:
    """True if the processor has instructions for bfloat16. oneDNN's own answer includes emulation."""
    import torch

    probes = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile", "arm_bf16"))
    return any(probe is not None and probe() for probe in probes)


def multimodal_class(model_type: str, architectures: Sequence[str] | None) -> str | None:
    """Class of the library that loads a model which takes pictures or clips; None for other models."""
    from transformers.models.auto import modeling_auto

    library: Any = modeling_auto
    for table, kind in _MULTIMODAL_CLASSES.items():
        classes = getattr(library, table, {}).get(model_type, ())
        if architectures and architectures[0] in ((classes,) if isinstance(classes, str) else classes):
            return kind
    return None


def _require_causal(name: str, config: Any) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    known = {one for names in CAUSAL.values() for one in ((names,) if isinstance(names, str) else names)}
    stated = tuple(config.architectures or ())
    if config.model_type in CAUSAL and not config.is_encoder_decoder and (not stated or known & set(stated)):
        return
    raise ModelError(
        f"local:{name} is not a causal language model, but {' or '.join(stated) or config.model_type}",
        hint="use a model whose architecture ends in ForCausalLM or LMHeadModel",
    )


def free_bytes(device: torch.device) -> int | None:
    """Free memory in bytes; None if the system does not report it."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def context_length(config: Any) -> int:
    """Length of the longest text that a model reads, from its config.

    Configs give the length before its rotation was scaled, or after. With yarn, the length before is a parameter of its
    own; llama3 and longrope are given with the length after; linear and dynamic with the length before, unless only
    some layers are scaled, as in Gemma 3.
    """
    text = config.get_text_config()
    stated = (getattr(text, field, None) for field in _LENGTHS)
    length = next((each for each in stated if isinstance(each, int) and each > 0), _UNLIMITED)
    scaled = [_scaled_length(text, part) for part in rope_parameters(text)]
    return length if length == _UNLIMITED else max(length, min(scaled, default=0))


def _scaled_length(config: Any, part: Mapping[str, Any]) -> int:
    """Length of the longest text for which a rotation was scaled; 0 where its parameters do not say it."""
    factor, length = part.get("factor"), original_length(config, part)
    if rope_type(part) not in ("linear", "dynamic", "yarn") or not factor or not length:
        return 0
    return int(factor * length)


def _tokenizer(folder: Path, config: Any) -> HFTokenizer:
    """Tokenizer in a model's folder. Without a `tokenizer.json`, the library makes one of the files that there are."""
    if (folder / "tokenizer.json").is_file():
        return HFTokenizer.from_folder(folder, eos=ids_in(getattr(config, "eos_token_id", None)), size=_size(config))
    import transformers

    library: Any = transformers
    made = library.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    return _saved(made, config, None)


def _saved(tokenizer: Any, config: Any, generation: Any) -> HFTokenizer:
    """Tokenizer of one of the library, by the files that it saves: the one form that all releases write alike."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        eos = ids_in(getattr(config, "eos_token_id", None)) | ids_in(getattr(generation, "eos_token_id", None))
        return HFTokenizer.from_folder(Path(folder), eos=eos, size=_size(config))


def _size(config: Any) -> int:
    return int(config.get_text_config().vocab_size)


def _spelling(tokenizer: Any) -> str:
    """Digest of a tokenizer: its vocabulary, its rules, its template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else repr(getattr(tokenizer, "vocabulary", tokenizer))
    return hashlib.sha256(f"{text}{getattr(tokenizer, 'chat_template', None)}".encode()).hexdigest()


@contextmanager
def _telling(name: str, what: str) -> Iterator[None]:
    """Turns any exception of the library into one sentence."""
    try:
        yield
    except LmqlLiteError:
        raise
    except Exception as error:
        if _is_out_of_memory(error):
            raise ModelError(f"local:{name} does not fit into memory", hint="use a smaller model") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(":. ")
        raise ModelError(f"local:{name}: {what}: {reason}") from error
