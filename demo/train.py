"""Make the demo model: corpus, tokenizer, weights and model card, all from the code beside this file.

    python demo/train.py

Two idle cores need about 40 minutes. Everything is seeded; another machine should come to the same perplexity within
2 %, not to the same weights.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from batches import Batch, batches
from card import write_card
from corpus import TASKS, Document, documents, held_out_documents, islice_chars
from muon import Muon
from network import Network, Shape
from safetensors.torch import save_file
from subwords import BOS, EOS, learn
from tokenizers import Tokenizer
from torch import Tensor

VOCABULARY = 1536
TOKENIZER_CHARS = 8_000_000
BATCH_TOKENS = 6_144
MUON_RATE = 0.02
ADAM_RATE = 0.004
WARM_UP = 100
"""Steps over which the learning rate rises at the beginning of a phase."""
GRID = 2.0**-18
"""Shipped weights are multiples of this, so that the numpy forward can add them up without rounding."""
HELD_OUT_SEED, HELD_OUT_TEXTS = 7, 300


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the training with its own texts; the optimizers begin anew."""

    seed: int
    steps: int
    first_rate: float
    """The learning rate after the warm-up, as a share of the highest; it goes to the last one in a straight line."""
    last_rate: float
    shares: dict[str, float]
    """Every task's share of the characters."""
    opening: dict[str, float]
    """The shares at the beginning, for so many characters."""
    opening_chars: int

    def texts(self) -> Iterator[Document]:
        rng = Random(self.seed)
        yield from islice_chars(documents(rng, self.opening), self.opening_chars)
        yield from documents(rng, self.shares)


COPYING = {
    "lists": 0.06,
    "jokes": 0.05,
    "choices": 0.06,
    "dates": 0.05,
    "records": 0.14,
    "arithmetic": 0.12,
    "memory": 0.20,
    "drills": 0.28,
    "facts": 0.04,
}
FORMATS = {
    "lists": 0.09,
    "jokes": 0.12,
    "choices": 0.10,
    "dates": 0.09,
    "records": 0.12,
    "arithmetic": 0.14,
    "memory": 0.18,
    "drills": 0.10,
    "facts": 0.06,
}
LOOKING_UP = {
    "lists": 0.07,
    "jokes": 0.10,
    "choices": 0.08,
    "dates": 0.07,
    "records": 0.08,
    "arithmetic": 0.15,
    "memory": 0.20,
    "drills": 0.06,
    "facts": 0.05,
    "lookups": 0.14,
}
ACTING = {
    "lists": 0.07,
    "jokes": 0.10,
    "choices": 0.08,
    "dates": 0.07,
    "records": 0.07,
    "arithmetic": 0.14,
    "memory": 0.12,
    "drills": 0.04,
    "facts": 0.06,
    "lookups": 0.09,
    "stories": 0.16,
}
POLISH = {
    "packing": 0.22,
    "jokes": 0.12,
    "choices": 0.09,
    "dates": 0.08,
    "records": 0.07,
    "arithmetic": 0.13,
    "memory": 0.05,
    "drills": 0.03,
    "facts": 0.05,
    "lookups": 0.03,
    "stories": 0.13,
}
FIRST = Phase(1, 1_200, 1.0, 1.0, FORMATS, COPYING, 14_598_144)
SECOND = Phase(2, 700, 0.5, 0.23, LOOKING_UP, LOOKING_UP, 0)
THIRD = Phase(3, 750, 0.25, 0.0, ACTING, ACTING, 0)
FOURTH = Phase(4, 220, 0.15, 0.0, POLISH, POLISH, 0)
PHASES = (FIRST, SECOND, THIRD, FOURTH)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "model", help="the folder to write")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    torch.manual_seed(0)

    tokenizer = make_tokenizer()
    network = Network(Shape(VOCABULARY))
    write_settings(options.out, tokenizer, network.shape)
    for phase in PHASES:
        train(network, tokenizer, phase, options.out)
    finish(options.out, network, tokenizer)


def make_tokenizer() -> Tokenizer:
    sample = islice_chars(replace(FIRST, opening_chars=0).texts(), TOKENIZER_CHARS)
    return learn((document.text for document in sample), VOCABULARY)


def finish(out: Path, network: Network, tokenizer: Tokenizer) -> None:
    """Write weights and card. From here on the network has the weights that are shipped, rounded as they are."""
    write_weights(out, network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(shipped(parameter))
    perplexity = perplexities(network, tokenizer)
    print(json.dumps(perplexity, indent=1))
    steps = sum(phase.steps for phase in PHASES)
    write_card(out / "README.md", network, tokenizer, perplexity, steps=steps, batch=BATCH_TOKENS, texts=HELD_OUT_TEXTS)


def train(network: Network, tokenizer: Tokenizer, phase: Phase, out: Path) -> None:
    """Train for a phase; every 100 steps the weights so far are written to `out`."""
    matrices = [parameter for parameter in network.model.layers.parameters() if parameter.ndim == 2]
    inside = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in network.parameters() if id(parameter) not in inside]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
    started, running = time.monotonic(), 0.0
    for step, batch in enumerate(islice(batches(tokenizer, phase.texts(), BATCH_TOKENS), phase.steps)):
        loss = backward(network, batch)
        rate = phase.first_rate + (phase.last_rate - phase.first_rate) * step / phase.steps
        rate *= min(1.0, (step + 1) / WARM_UP)
        for group in adam.param_groups:
            group["lr"] = ADAM_RATE * rate
        adam.step()
        adam.zero_grad()
        muon.step(MUON_RATE * rate)
        running = loss if step == 0 else 0.98 * running + 0.02 * loss
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {running:.4f} minutes {(time.monotonic() - started) / 60:.1f}", flush=True)
        if (step + 1) % 100 == 0:
            write_weights(out, network)


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
    for task in TASKS:
        total, count = 0.0, 0
        for batch in batches(tokenizer, held_out_documents(task, HELD_OUT_SEED, texts), 16_384):
            for rows in batch:
                logits = network(rows.ids, rows.documents).flatten(0, 1)
                total += float(F.cross_entropy(logits, rows.targets.flatten(), reduction="sum"))
                count += int((rows.targets >= 0).sum())
        result[task] = round(float(torch.tensor(total / count).exp()), 4)
        overall += POLISH.get(task, 0.0) * total / count
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
