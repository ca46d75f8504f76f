"""Make the demo model: corpus, tokenizer, weights and model card, all from the code beside this file.

    python demo/train.py

Two cores need about an hour. Everything is seeded; another machine comes to the same perplexity within 2 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from batches import Batch, batches
from card import write_card
from corpus import TASKS, held_out_documents, islice_chars, training_documents
from muon import Muon
from network import Network, Shape
from safetensors.torch import save_file
from subwords import BOS, EOS, learn
from tokenizers import Tokenizer
from torch import Tensor

SEED = 1
VOCABULARY = 1536
TOKENIZER_CHARS = 8_000_000
BATCH_TOKENS = 6_144
CHARS_PER_TOKEN = 2.7
EARLY = 0.3
"""The share of the training that has more copying in it."""
MUON_RATE = 0.02
ADAM_RATE = 0.004
CONSTANT = 0.35
"""The learning rate stays up for this share of the steps, then falls to zero in a straight line."""
GRID = 2.0**-18
"""Shipped weights are multiples of this, so that the numpy forward can add them up without rounding."""
HELD_OUT_SEED, HELD_OUT_TEXTS = 7, 300


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=3_800, help="training steps of 6,144 tokens")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "model", help="the folder to write")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    torch.manual_seed(SEED)

    sample = islice_chars(training_documents(SEED, 0), TOKENIZER_CHARS)
    tokenizer = learn((document.text for document in sample), VOCABULARY)
    shape = Shape(VOCABULARY)
    write_settings(options.out, tokenizer, shape)
    network = train(tokenizer, shape, options.steps, options.out)
    finish(options.out, network, tokenizer, options.steps)


def finish(out: Path, network: Network, tokenizer: Tokenizer, steps: int) -> None:
    """Write weights and card. From here on the network has the weights that are shipped, rounded as they are."""
    write_weights(out, network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(shipped(parameter))
    perplexity = perplexities(network, tokenizer)
    print(json.dumps(perplexity, indent=1))
    write_card(out / "README.md", network, tokenizer, perplexity, steps=steps, batch=BATCH_TOKENS, texts=HELD_OUT_TEXTS)


def train(tokenizer: Tokenizer, shape: Shape, steps: int, out: Path) -> Network:
    """Train from scratch; every 400 steps the weights so far are written to `out`."""
    network = Network(shape)
    matrices = [parameter for parameter in network.model.layers.parameters() if parameter.ndim == 2]
    inside = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in network.parameters() if id(parameter) not in inside]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
    texts = training_documents(SEED, int(EARLY * steps * BATCH_TOKENS * CHARS_PER_TOKEN))
    started, running = time.monotonic(), 0.0
    for step, batch in enumerate(islice(batches(tokenizer, texts, BATCH_TOKENS), steps)):
        rate = learning_rate(step / steps) * min(1.0, (step + 1) / 100)
        loss = backward(network, batch)
        for group in adam.param_groups:
            group["lr"] = ADAM_RATE * rate
        adam.step()
        adam.zero_grad()
        muon.step(MUON_RATE * rate)
        running = loss if step == 0 else 0.98 * running + 0.02 * loss
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {running:.4f} minutes {(time.monotonic() - started) / 60:.1f}", flush=True)
        if (step + 1) % 400 == 0:
            write_weights(out, network)
            print(json.dumps(perplexities(network, tokenizer, 40)), flush=True)
    return network


def learning_rate(done: float) -> float:
    """The share of the highest rate after this share of the training."""
    return 1.0 if done < CONSTANT else (1.0 - done) / (1.0 - CONSTANT)


def backward(network: Network, batch: Batch) -> float:
    """Add up the gradients of the mean loss over the batch; returns that loss."""
    count = sum(int((rows.targets >= 0).sum()) for rows in batch)
    total = 0.0
    for rows in batch:
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(rows.ids, rows.documents)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), rows.targets.flatten(), reduction="sum") / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


@torch.no_grad()
def perplexities(network: Network, tokenizer: Tokenizer, texts: int = HELD_OUT_TEXTS) -> dict[str, float]:
    """Held-out perplexity per token of every task, and of all tasks together (each as heavy as its share)."""
    result = {}
    overall = 0.0
    for task, settings in TASKS.items():
        total, count = 0.0, 0
        for batch in batches(tokenizer, held_out_documents(task, HELD_OUT_SEED, texts), 16_384):
            for rows in batch:
                logits = network(rows.ids, rows.documents).flatten(0, 1)
                total += float(F.cross_entropy(logits, rows.targets.flatten(), reduction="sum"))
                count += int((rows.targets >= 0).sum())
        result[task] = round(float(torch.tensor(total / count).exp()), 4)
        overall += settings.share * total / count
    result["overall"] = round(float(torch.tensor(overall).exp()), 4)
    return result


def shipped(weight: Tensor) -> Tensor:
    """The weight as it is stored: float16, and a multiple of `GRID`."""
    return ((weight.detach().double() / GRID).round() * GRID).to(torch.float16).contiguous()


def write_weights(out: Path, network: Network) -> None:
    weights = {name: shipped(parameter) for name, parameter in network.named_parameters()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


def write_settings(out: Path, tokenizer: Tokenizer, shape: Shape) -> None:
    """Everything but the weights, as transformers expects it."""
    tokenizer.save(str(out / "tokenizer.json"))
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "dtype": "float16",
    }
    tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
    }
    generation = {"bos_token_id": bos, "eos_token_id": eos, "do_sample": False}
    for name, content in (("config", config), ("tokenizer_config", tokens), ("generation_config", generation)):
        (out / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
