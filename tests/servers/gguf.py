"""The demo model's folder as a GGUF file, for llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

_SPLIT = "qwen2"
"""Of the ways of cutting a text into words that llama.cpp knows, the one that leads to the demo model's tokens. Its
words are larger here and there, but no token of the demo model reaches over such a border. Two things come out
differently: an apostrophe before a capital (`'Tom` is cut into `'T` and `om`), and one behind an accent that is
a character of its own."""
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def convert(folder: Path, out: Path) -> Path:
    """Write the model in `folder` (Hugging Face format, the demo model's shape) to `out`: float32, every weight the
    same number, the same bytes each time. Returns `out`.

    Raises KeyError or ValueError where the folder holds anything that the demo model has not.
    """
    config = json.loads((folder / "config.json").read_bytes())
    if config["architectures"] != ["LlamaForCausalLM"] or not config["tie_word_embeddings"]:
        raise ValueError(f"{folder} is not shaped as the demo model is: {config}")
    writer = gguf.GGUFWriter(out, "llama")
    _describe(writer, config)
    _add_tokenizer(writer, folder, config)
    for name, weight in sorted(load_file(folder / "model.safetensors").items()):
        writer.add_tensor(_renamed(name), _rearranged(name, weight.astype(np.float32), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_name("demo")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    numbers: dict[str, int] = tokenizer["model"]["vocab"]
    special = {added["content"] for added in tokenizer["added_tokens"] if added["special"]}
    spelled = sorted(numbers, key=lambda spelling: numbers[spelling])
    if [numbers[spelling] for spelling in spelled] != list(range(config["vocab_size"])):
        raise ValueError(f"the ids in {folder / 'tokenizer.json'} are not those from 0 to {config['vocab_size'] - 1}")
    kinds = [gguf.TokenType.CONTROL if spelling in special else gguf.TokenType.NORMAL for spelling in spelled]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_SPLIT)
    writer.add_token_list(spelled)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(numbers[settings["bos_token"]])
    writer.add_eos_token_id(numbers[settings["eos_token"]])
    writer.add_add_bos_token(settings["add_bos_token"])
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def _renamed(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"  # the output layer too, as there is no output.weight
    if name == "model.norm.weight":
        return "output_norm.weight"
    number, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{number}.{_NAMES[part]}.weight"


def _rearranged(name: str, weight: NDArray[np.float32], config: dict[str, Any]) -> NDArray[np.float32]:
    """Hugging Face rotates the two halves of a head against each other, llama.cpp neighbours: the rows of q and k,
    (heads * size, width), change places accordingly."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, count in heads.items():
        if f".{part}." in name:
            halves = weight.reshape(count, 2, -1, weight.shape[1])
            return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
    return weight
