"""Tiny random models that take pictures or clips, as folders, and items to show them. Needs torch and pillow."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'lmql-lite[local]'")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
PIL = pytest.importorskip("PIL", reason="pillow is not installed: pip install 'lmql-lite[media]'")
from PIL import Image  # noqa: E402

DEMO = Path(__file__).parents[2] / "demo" / "model" / "tokenizer.json"
LAYERS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
TEXT = {**LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
VISION = {**LAYERS, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
ENCODER = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
AUDIO = {"num_mel_bins": 16, "d_model": 32, "max_source_positions": 100, **ENCODER}
ROTATION = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
CROP = {"height": 28, "width": 28}


def tokenizer(special: list[str]) -> Any:
    backend = tokenizers.Tokenizer.from_file(str(DEMO))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    fast.add_special_tokens({"additional_special_tokens": special})
    fast.add_special_tokens({"eos_token": "</s>", "pad_token": "</s>"})
    return fast


def saved(folder: Path, network: Any, *parts: Any) -> Path:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.1)
    network.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
    return folder


def llava(folder: Path, text: Mapping[str, int] = TEXT) -> Path:
    words = tokenizer(["<image>"])
    processor = transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=CROP),
        tokenizer=words,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 32, **VISION},
        text_config={"model_type": "llama", "vocab_size": len(words), **text},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=4,
    )
    return saved(folder, transformers.LlavaForConditionalGeneration(config), processor)


def qwen_text(words: Any, **more: Any) -> dict[str, Any]:
    return {"vocab_size": len(words), "bos_token_id": None, "eos_token_id": words.eos_token_id, **more, **TEXT}


def qwen2_vl(folder: Path) -> Path:
    words = tokenizer(["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"])
    pictures = transformers.Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 16)
    ids = words.convert_tokens_to_ids
    vision = {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "mlp_ratio": 2, "patch_size": 14}
    config = transformers.Qwen2VLConfig(
        vision_config={**vision, "spatial_merge_size": 2, "temporal_patch_size": 2},
        text_config=qwen_text(words, rope_parameters=ROTATION),
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
    )
    return saved(folder, transformers.Qwen2VLForConditionalGeneration(config), words, pictures)


def qwen2_audio(folder: Path) -> Path:
    words = tokenizer(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    sounds = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    processor = transformers.Qwen2AudioProcessor(feature_extractor=sounds, tokenizer=words)
    config = transformers.Qwen2AudioConfig(
        audio_config=AUDIO,
        text_config=qwen_text(words, model_type="qwen2"),
        audio_token_index=words.convert_tokens_to_ids("<|AUDIO|>"),
    )
    return saved(folder, transformers.Qwen2AudioForConditionalGeneration(config), processor)


def gemma3(folder: Path) -> Path:
    """Attention inside a picture runs both ways."""
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    plain = tokenizer(list(names.values()))
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer, eos_token="</s>", pad_token="</s>", extra_special_tokens=names
    )
    pictures = transformers.Gemma3ImageProcessor(size=CROP)
    processor = transformers.Gemma3Processor(image_processor=pictures, tokenizer=words, image_seq_length=4)
    text = {"head_dim": 8, "sliding_window": 64, "query_pre_attn_scalar": 8, **TEXT}
    config = transformers.Gemma3Config(
        vision_config={**VISION, "model_type": "siglip_vision_model", "patch_size": 7},
        text_config={"model_type": "gemma3_text", "vocab_size": len(words), **text},
        mm_tokens_per_image=4,
        boi_token_index=words.convert_tokens_to_ids(names["boi_token"]),
        eoi_token_index=words.convert_tokens_to_ids(names["eoi_token"]),
        image_token_index=words.convert_tokens_to_ids(names["image_token"]),
    )
    return saved(folder, transformers.Gemma3ForConditionalGeneration(config), processor)


def qwen2_5_omni(folder: Path) -> Path:
    """An encoder for pictures and one for clips."""
    kinds = ("vision_bos", "vision_eos", "IMAGE", "VIDEO", "audio_bos", "audio_eos", "AUDIO")
    marks = [f"<|{kind}|>" for kind in kinds]
    words = tokenizer(marks)
    ids = dict(zip(kinds, words.convert_tokens_to_ids(marks), strict=True))
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 14}
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config={**AUDIO, "output_dim": 32, "n_window": 50},
        vision_config={**vision, "out_hidden_size": 32, "window_size": 112, "fullatt_block_indexes": [1]},
        text_config=qwen_text(words, rope_parameters=ROTATION),
        audio_token_index=ids["AUDIO"],
        image_token_index=ids["IMAGE"],
        video_token_index=ids["VIDEO"],
        audio_start_token_id=ids["audio_bos"],
        audio_end_token_id=ids["audio_eos"],
        vision_start_token_id=ids["vision_bos"],
        vision_end_token_id=ids["vision_eos"],
    )
    saved(folder, transformers.Qwen2_5OmniThinkerForConditionalGeneration(config), words)
    pictures = transformers.Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 16)
    sounds = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    both = json.loads(sounds.to_json_string()) | json.loads(pictures.to_json_string())
    (folder / "preprocessor_config.json").write_text(json.dumps(both))
    return folder


def paligemma(folder: Path) -> Path:
    """Attention runs both ways in the whole prompt."""
    words = tokenizer(["<image>"])
    words.add_special_tokens({"bos_token": "<s>"})
    pictures = transformers.SiglipImageProcessor(size=CROP)
    pictures.image_seq_length = 4
    config = transformers.PaliGemmaConfig(
        vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
        text_config={"model_type": "gemma", "vocab_size": len(words), "head_dim": 8, **TEXT},
        projection_dim=32,
        hidden_size=32,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    processor = transformers.PaliGemmaProcessor(image_processor=pictures, tokenizer=words)
    return saved(folder, transformers.PaliGemmaForConditionalGeneration(config), processor)


FOLDERS: dict[str, Callable[[Path], Path]] = {
    each.__name__: each for each in (llava, qwen2_vl, qwen2_audio, gemma3, qwen2_5_omni)
}


def picture(seed: int = 0, size: tuple[int, int] = (60, 90), kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def clip(seed: int = 0, seconds: float = 1.0, rate: int = 16000) -> bytes:
    samples = np.random.default_rng(seed).integers(-9000, 9000, int(seconds * rate), dtype=np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.tobytes())
    return file.getvalue()


def movie(frames: int = 6, size: int = 64) -> bytes:
    av = pytest.importorskip("av", reason="av is not installed: pip install 'lmql-lite[media]'")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width = stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            pixels = np.full((size, size, 3), 40 * number % 256, dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file.getvalue()
