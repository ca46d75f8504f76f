"""Encoders of a local model: from a picture, video or clip to an entry of the encoder cache.

An entry has the tokens of the item's span, the encoder's output for its placeholders, and where the model counts
positions in three dimensions, the positions of the span: everything that a prompt needs of the item.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmql_lite.cache.encoder import EncoderEntry, mm_hash
from lmql_lite.errors import ModelError
from lmql_lite.media import Media, Modality, article
from lmql_lite.models.media.decoding import decode_audio, decode_image, decode_video

EMBEDDINGS, TOKENS, POSITIONS = "embeddings", "tokens", "positions"
ADVANCE = "advance"
"""Fact of an entry: the position of what follows the item, counted from its own."""
_TYPES = {"image": 1, "video": 2, "audio": 3}
_PASSES = ("attention_mask", "labels")
"""Inputs that are of a whole pass."""
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "tokenizer.json")


class ItemEncoder:
    """Encoders of one network, with the processor in its folder. Not for several threads at once."""

    def __init__(self, name: str, network: Any, folder: Path, weights: str) -> None:
        import transformers

        library: Any = transformers
        self.name, self.encoder_calls, self.decodes = name, 0, 0
        self._network, self._library, self._folder, self._weights = network, library, folder, weights
        self._config = network.config
        self._processor: Any = self._loaded("AutoProcessor")
        self._images: Any = getattr(self._processor, "image_processor", None)
        self._sounds: Any = getattr(self._processor, "feature_extractor", None)
        if self._processor is None or not hasattr(self._processor, "tokenizer"):
            self._processor = None
            self._images = self._loaded("AutoImageProcessor") if hasattr(network, "get_image_features") else None
            self._sounds = self._loaded("AutoFeatureExtractor") if hasattr(network, "get_audio_features") else None
        self.image_token = self._token("image")
        self.audio_token = self._token("audio")
        self._configuration = self._digest()
        if not self.modalities:
            raise ModelError(
                f"{name} has no processor that can be used", hint="some need more packages: pip install torchvision"
            )

    @property
    def modalities(self) -> frozenset[Modality]:
        """Kinds of items that the model takes. A video is shown as the pictures that are taken from it."""
        pictures = self._images is not None and self.image_token is not None
        sounds = self._sounds is not None and self.audio_token is not None
        kinds: list[Modality] = [*(("image", "video") if pictures else ()), *(("audio",) if sounds else ())]
        return frozenset(kinds)

    def key(self, item: Media) -> str:
        """Hash of an item in the encoder cache."""
        return mm_hash(item.digest, item.modality, self._configuration, self._weights)

    def encode(self, items: Sequence[Media]) -> list[EncoderEntry]:
        """Entries of items that are in no cache. Raises InputError at the place of an item that cannot be decoded."""
        return [self._entry(item) for item in items]

    def picture_inputs(self, pictures: Sequence[Any]) -> tuple[list[int], dict[str, Any]]:
        """Tokens of a span of pictures, without placeholders where only the encoder tells their number, and the
        inputs of the network for them."""
        if self._processor is None:
            return [], dict(self._images(images=list(pictures), return_tensors="pt"))
        text = self._processor.image_token * len(pictures)
        inputs = dict(
            self._processor(text=[text], images=list(pictures), return_tensors="pt", add_special_tokens=False)
        )
        tokens = inputs.pop("input_ids")[0].tolist()
        return tokens, {name: value for name, value in inputs.items() if name not in _PASSES}

    def span(self, pictures: Sequence[Any], modality: Modality = "image") -> EncoderEntry:
        """Entry of pictures that follow one another. One call of the encoder."""
        import torch

        tokens, inputs = self.picture_inputs(pictures)
        taken = inspect.signature(self._network.get_image_features).parameters
        given = {name: value.to(self._network.device) for name, value in inputs.items() if name in taken}
        self.encoder_calls += 1
        output = self._network.get_image_features(**given)
        pooled = getattr(output, "pooler_output", output)
        rows = list(pooled) if isinstance(pooled, list | tuple) or pooled.ndim == 3 else [pooled]
        assert self.image_token is not None, "the model takes pictures"
        if not tokens:
            tokens = [token for one in rows for token in self._around([self.image_token] * len(one), "vision")]
        elif len(pictures) == 1:
            tokens = self._around(tokens, "vision")
        embeddings = torch.cat([one.reshape(-1, one.shape[-1]) for one in rows])
        return self._placed(tokens, embeddings, self.image_token, {"image_grid_thw": inputs.get("image_grid_thw")})

    def _entry(self, item: Media) -> EncoderEntry:
        if item.modality not in self.modalities:
            raise ModelError(f"{self.name} cannot be shown {article(item.modality)}", span=item.span)
        self.decodes += 1
        if item.modality == "audio":
            return self.sound(decode_audio(item, self.rate))
        if item.modality == "image":
            return self.span([decode_image(item)])
        from PIL import Image

        frames, _ = decode_video(item)
        return self.span([Image.fromarray(frame) for frame in frames], "video")

    @property
    def rate(self) -> int:
        """Samples a second that the model hears."""
        return int(self._sounds.sampling_rate)

    def sound_inputs(self, samples: Any) -> tuple[list[int], dict[str, Any]]:
        """Tokens of a clip's span, without placeholders where only the encoder tells their number, and the inputs of
        the network for it."""
        if self._processor is None:
            more = {"padding": "max_length", "return_attention_mask": True, "return_tensors": "pt"}
            inputs = dict(self._sounds(samples, sampling_rate=self.rate, **more))
            inputs["feature_attention_mask"] = inputs.pop("attention_mask")
            return [], inputs
        text = [self._processor.audio_token]
        more = {"sampling_rate": self.rate, "return_tensors": "pt", "add_special_tokens": False}
        inputs = dict(self._processor(text=text, audio=[samples], **more))
        tokens = inputs.pop("input_ids")[0].tolist()
        return tokens, {name: value for name, value in inputs.items() if name not in _PASSES}

    def sound(self, samples: Any) -> EncoderEntry:
        """Entry of a clip, given as samples at `rate`. One call of the encoder."""
        tokens, inputs = self.sound_inputs(samples)
        device = self._network.device
        self.encoder_calls += 1
        assert self.audio_token is not None, "the model takes clips"
        encode = getattr(self._network, "get_audio_features", None)
        if encode is None:
            embeddings = self._projected(tokens, inputs)[: tokens.count(self.audio_token)]
        else:
            taken = inspect.signature(encode).parameters
            output = encode(**{name: value.to(device) for name, value in inputs.items() if name in taken})
            pooled = getattr(output, "pooler_output", None)
            rows = output.last_hidden_state if pooled is None else pooled
            embeddings = rows.reshape(-1, rows.shape[-1])
        tokens = self._around(tokens or [self.audio_token] * len(embeddings), "audio")
        mask = inputs.get("feature_attention_mask")
        return self._placed(
            tokens, embeddings, self.audio_token, {"audio_seqlens": None if mask is None else mask.sum(-1)}
        )

    def _projected(self, tokens: list[int], inputs: dict[str, Any]) -> Any:
        """Outputs of the projector of a network that has no method for them, taken from a pass."""
        import torch

        kept: list[torch.Tensor] = []
        projector = next(part for name, part in self._network.named_modules() if name.endswith("multi_modal_projector"))
        hook = projector.register_forward_hook(lambda _module, _inputs, output: kept.append(output))
        ids = torch.tensor([tokens])
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **inputs}
        try:
            self._network(**{name: value.to(self._network.device) for name, value in given.items()})
        finally:
            hook.remove()
        return kept[0].reshape(-1, kept[0].shape[-1])

    def _placed(self, tokens: list[int], embeddings: Any, mark: int, sizes: dict[str, Any]) -> EncoderEntry:
        """Entry with positions, where the model counts them in three dimensions by `sizes`. Raises ModelError where the
        numbers of placeholders and of embeddings differ: the answer would be silently wrong."""
        import torch

        if tokens.count(mark) != len(embeddings):
            raise ModelError(
                f"{self.name} cannot be shown this item: its span has {tokens.count(mark)} placeholders, its encoder "
                f"{len(embeddings)} outputs",
                hint="this architecture is not supported; use a LLaVA- or Qwen-VL-like model",
            )
        tensors = {EMBEDDINGS: embeddings, TOKENS: torch.tensor(tokens)}
        count = getattr(getattr(self._network, "model", self._network), "get_rope_index", None)
        if count is None:
            return EncoderEntry(tensors, {ADVANCE: len(tokens)})
        ids = torch.tensor([[0, *tokens, 0]])
        given = {
            "input_ids": ids,
            "mm_token_type_ids": (ids == mark).int() * _TYPES["image"],
            "attention_mask": torch.ones_like(ids),
            **sizes,
        }
        positions, _ = count(**{name: given[name] for name in given if name in inspect.signature(count).parameters})
        tensors[POSITIONS] = (positions[:, 0, 1:-1] - 1).cpu().long().contiguous()
        return EncoderEntry(tensors, {ADVANCE: int(positions[:, 0, -1].max()) - 1})

    def _around(self, tokens: list[int], kind: str) -> list[int]:
        """Tokens of one item, between those by which the model knows its beginning and end."""
        begin, end = (getattr(self._config, f"{kind}_{side}_token_id", None) for side in ("start", "end"))
        return tokens if begin is None or end is None or begin in tokens else [begin, *tokens, end]

    def _token(self, modality: str) -> int | None:
        names = (f"{modality}_token_id", f"{modality}_token_index")
        return next((token for name in names if (token := getattr(self._config, name, None)) is not None), None)

    def _loaded(self, kind: str) -> Any:
        """Part of the processor; None where the folder has none, or a package for it is missing."""
        try:
            return getattr(self._library, kind).from_pretrained(
                self._folder, trust_remote_code=False, local_files_only=True
            )
        except (OSError, ValueError, ImportError, AttributeError, TypeError):
            return None

    def _digest(self) -> str:
        """Digest of the processor's configuration and of the library that implements it."""
        files = [self._folder / name for name in _PROCESSOR_FILES]
        parts = [self._library.__version__, type(self._images).__name__, type(self._sounds).__name__, np.__version__]
        parts += [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
