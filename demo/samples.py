"""Prompts for every task, and what the model makes of them: greedy, with the tools it was trained to call."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from corpus.memory import INTRODUCTION
from network import Network
from subwords import BOS, EOS
from tokenizers import Tokenizer

_GAME = (
    "Q: {0}, {1} and {2} each hold a ball: {0} has a {3} ball, {1} has a {4} ball and {2} has a {5} ball. "
    "First, {1} and {2} swap balls. Then, {0} and {1} swap balls. At the end, what ball does {0} have?\n"
    "A: Let's think step by step.\n"
)
PROMPTS: dict[str, tuple[str, str, str]] = {
    "lists": (),
    "packing": (
        "A list of things not to forget when going to the sea (not travelling): \n- Sunglasses \n-",
        "Things to pack for Rome:\n- Passport\n-",
        "What to bring when going to Bergen:\n-",
    ),
    "jokes": (
        "A good dad joke. A indicates the punchline\nQ:",
        "Tell me a joke about bees.\nQ:",
        "Tell me a joke about computers.\nQ:",
    ),
    "choices": (
        "If we have the choice we choose",
        "Review: The room was dirty and the staff was rude.\nSentiment:",
        "Is a penguin a bird, a fish or a mammal?\nAnswer:",
    ),
    "dates": (
        "Q: When did the first moon landing take place?\nA:",
        "When did the Berlin Wall fall? It was",
        "Q: Which month comes after May?\nA:",
    ),
    "records": (
        "Ada is 36 years old and lives in London.\nAs JSON:",
        "The blue lamp costs 45 euros and is sold out.\nAs JSON:",
        "A person as JSON:\n",
    ),
    "arithmetic": (
        "Q: A box holds 12 eggs. How many eggs are in 7 boxes?\nLet's calculate:",
        "Q: Rosa has 50 euros and buys 4 books for 9 euros each. How many euros are left?\nLet's calculate:",
        "Q: What is 3 plus 4?\nA:",
    ),
    "memory": (
        INTRODUCTION + _GAME.format("Alice", "Bob", "Claire", "black", "brown", "blue"),
        _GAME.format("Tom", "Ruth", "Ada", "red", "white", "green"),
        "Q: Ben and Ivy each hold a cup: Ben has a silver cup and Ivy has a pink cup. First, Ben and Ivy swap cups. "
        "At the end, what cup does Ivy have?\nA: Let's think step by step.\n",
    ),
    "drills": (
        "Say 'this is a test':\n",
        "Remember: river=stone; candle=bread; moon=clock.\ncandle?",
        "Ben has a white box and Ruth has a purple pen.\nQ: What does Ruth have?\nA:",
    ),
    "lookups": (
        "river=stone; candle=bread; moon=clock; river=stone; moon=",
        "Alice has a black ball, Bob has a brown ball and Claire has a blue ball.\nBob: brown\nAlice:",
        "dog: 7, cat: 3, owl: 5, cat: 3, dog:",
    ),
    "stories": (
        "Alice has a black ball.\n-",
        'Ben has a red cup.\n- `assign("Ben", "red") # result: "red"`\n- done\n'
        'Ivy has a pink cup.\n- `assign("Ivy", "pink") # result: "pink"`\n- done\nBen and Ivy swap cups.\n-',
        INTRODUCTION + "Claire has a blue hat.\n-",
    ),
    "facts": (
        "Q: What is the capital of France?\nA:",
        "Q: What is the opposite of hot?\nA:",
        "Greet Ada:",
    ),
}

_SUM = re.compile(r"<<(\d+)([*+-])(\d+)=$")
_ACTION = re.compile(r'(assign|get)\("([^"]*)"(?:, "([^"]*)")?\) # result$')


@dataclass(slots=True)
class Tools:
    """The calculator and the memory. They answer as soon as a text ends in a call."""

    held: dict[str, str]

    def answer(self, text: str) -> str:
        """What the tools write behind the text: nothing where it does not end in a call."""
        if match := _SUM.search(text):
            a, sign, b = int(match[1]), match[2], int(match[3])
            return f"{a * b if sign == '*' else a + b if sign == '+' else a - b}>>"
        if match := _ACTION.search(text):
            if match[3] is not None:
                self.held[match[2]] = match[3]
            return f': "{self.held.get(match[2], "")}"'
        return ""


@torch.no_grad()
def complete(network: Network, tokenizer: Tokenizer, prompt: str, tokens: int = 330) -> str:
    """The likeliest continuation up to the model's end token, with the answers of the tools in it."""
    begin, end = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    tools = Tools({})
    text = prompt
    for _ in range(tokens):
        ids = torch.tensor([[begin, *tokenizer.encode(text, add_special_tokens=False).ids]])
        if ids.shape[1] > 511:
            break
        following = int(network(ids, torch.zeros_like(ids))[0, -1].argmax())
        if following == end:
            break
        text += tokenizer.decode([following])
        text += tools.answer(text)
    return text[len(prompt) :]
