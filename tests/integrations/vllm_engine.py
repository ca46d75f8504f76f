"""Program for an environment with vLLM: shows pictures to a model, one after the other, and counts encoder calls.

    python vllm_engine.py MODEL EC_TRANSFER_CONFIG PICTURES

The last two are JSON; a picture is `[seed, name]`, and vLLM identifies it by its name. The last line is JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    import numpy as np
    from PIL import Image
    from vllm import LLM, SamplingParams
    from vllm.config import ECTransferConfig
    from vllm.model_executor.models.llava import LlavaForConditionalGeneration as Model

    model, transfer, pictures = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    calls = [0]
    encode: Any = Model.embed_multimodal

    def counted(self: Any, **inputs: Any) -> Any:
        calls[0] += 1
        return encode(self, **inputs)

    Model.embed_multimodal = counted
    engine = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        distributed_executor_backend="uni",
        enable_prefix_caching=False,
        mm_processor_cache_gb=0,
        limit_mm_per_prompt={"image": 1},
        ec_transfer_config=ECTransferConfig(**transfer),
    )
    encodes_only = transfer["ec_role"] == "ec_producer"
    sampling = SamplingParams(max_tokens=1 if encodes_only else 4, temperature=0, logprobs=None if encodes_only else 0)
    found = []
    for seed, name in pictures:
        pixels = np.random.default_rng(seed).integers(0, 255, (60, 90, 3), dtype=np.uint8)
        prompt: Any = {
            "prompt": "Look <image> well",
            "multi_modal_data": {"image": Image.fromarray(pixels)},
            "multi_modal_uuids": {"image": [name]},
        }
        before = calls[0]
        (output,) = engine.generate(prompt, sampling, use_tqdm=False)
        steps = zip(output.outputs[0].token_ids, output.outputs[0].logprobs or (), strict=False)
        found.append({"calls": calls[0] - before, "tokens": [[token, row[token].logprob] for token, row in steps]})
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
