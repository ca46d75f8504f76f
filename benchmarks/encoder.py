"""Time to the first token of a prompt with pictures: cold, warm, and with only the encoder's output cached, without
known keys and with them.

    python benchmarks/encoder.py [pictures ...]

A LLaVA-shaped model with random weights: a vision tower of CLIP ViT-B/32's shape and a small language model, so that
the ratio is one of this machine's processor. CPU seconds of this process, medians; nothing is asserted.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from lmql_lite.media import Media, image
from lmql_lite.models.media.decoding import decode_image
from lmql_lite.models.media.encoding import ItemEncoder
from lmql_lite.models.media.model import MultimodalModel

REPEATS = 3
SIZE = (480, 640)
DEMO = Path(__file__).parent.parent / "demo" / "model"


def made(folder: Path) -> Path:
    """Folder of the model."""
    words = transformers.PreTrainedTokenizerFast(tokenizer_file=str(DEMO / "tokenizer.json"))
    words.add_special_tokens({"additional_special_tokens": ["<image>"], "eos_token": "</s>", "pad_token": "</s>"})
    pictures = transformers.CLIPImageProcessor()
    processor = transformers.LlavaProcessor(
        image_processor=pictures,
        tokenizer=words,
        patch_size=32,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    vision = {"model_type": "clip_vision_model", "patch_size": 32, "image_size": 224, "hidden_size": 768}
    vision |= {"intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "projection_dim": 512}
    text = {"model_type": "llama", "vocab_size": len(words), "hidden_size": 384, "intermediate_size": 1024}
    text |= {
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "max_position_embeddings": 8192,
    }
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_seq_length=49,
    )
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def pictures(count: int, begin: int) -> list[Media]:
    """JPEG pictures that no call has seen."""
    items = []
    for seed in range(begin, begin + count):
        numbers = np.random.default_rng(seed)
        small = Image.fromarray(numbers.integers(0, 255, (12, 16, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((SIZE[1], SIZE[0])).save(file, "JPEG")
        items.append(image(file.getvalue()))
    return items


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def path(model: MultimodalModel, items: list[Media]) -> tuple[int, ...]:
    ids = (*model.tokenizer.bos, *model.tokenizer.encode(b"Look at these:"))
    for item in items:
        ids += model.show(item)
    return (*ids, *model.tokenizer.encode(b" What do they show?"))


def parts(model: MultimodalModel, items: list[Media]) -> dict[str, float]:
    """CPU seconds of each step of a cold run."""
    encoding: ItemEncoder = model.encoding
    decoded: list[Any] = []
    found = {"decode": seconds(lambda: decoded.extend(decode_image(item) for item in items))}
    found["preprocess"] = seconds(lambda: [encoding.picture_inputs([one]) for one in decoded])
    found["encode"] = seconds(lambda: [encoding.span([one]) for one in decoded]) - found["preprocess"]
    return found


def measured(model: MultimodalModel, count: int, begin: int) -> dict[str, float]:
    """CPU seconds to the first token."""
    items = pictures(count, begin)
    ids = path(model, items)
    model._rows.live.all.clear()
    found = {"cold": seconds(lambda: model.logits(ids, [len(ids)]))}
    model._rows.live.all.clear()
    found["prefill"] = seconds(lambda: model.logits(ids, [len(ids)]))  # entries are known, keys and values are not
    found["warm"] = seconds(lambda: model.logits(ids, [len(ids)]))
    encoding = model.encoding

    def encoder_only() -> None:
        for item in items:
            encoding.picture_inputs([decode_image(item)])
        model.logits(ids, [len(ids)])

    found["encoder and keys"] = seconds(encoder_only)
    model._rows.live.all.clear()
    found["encoder only"] = seconds(encoder_only)
    with torch.inference_mode():
        return found | parts(model, items)


def main() -> None:
    counts = [int(one) for one in sys.argv[1:]] or [8, 32]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = MultimodalModel.load(made(Path(folder)))
        measured(model, 2, 0)
        print(f"{'pictures':>9} {'step':>14} {'CPU s':>8} {'of cold':>8}")
        for count in counts:
            runs = [measured(model, count, 1000 * count + 100 * run) for run in range(REPEATS)]
            median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            for name, value in median.items():
                print(f"{count:>9} {name:>14} {value:8.3f} {value / median['cold']:8.3f}")
            print(
                f"{count:>9} cold / warm {median['cold'] / median['warm']:.1f}x, "
                f"encoder only / warm {median['encoder only'] / median['warm']:.1f}x, "
                f"encoder and keys / warm {median['encoder and keys'] / median['warm']:.1f}x, "
                f"encoder only / warm without known keys {median['encoder only'] / median['prefill']:.2f}x"
            )


if __name__ == "__main__":
    main()
