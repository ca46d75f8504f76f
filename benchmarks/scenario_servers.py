"""The servers of `scenarios.py`: the strict stub of the tests in a process of its own, and what its models say.

    with House() as house, house.serving(packing(VLLM)) as near:
        near.base_url, near.counts()

Every count is the server's own, in the tokens of its model: those of the prompt with the one that begins a text, and
all that were generated, the end of the text and what nobody read included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.engine.streams import GO_ON
from lmql_lite.models.openai.model import OpenAIModel
from lmql_lite.models.scripted import Script, ScriptedModel
from tests.servers.kinds import Config
from tests.servers.stub import serving

SURE = 20.0
"""Nats by which the preferred text of a model exceeds all other tokens."""


def words(text: str, *parts: str) -> tuple[bytes, ...]:
    """The tokens of a text as most vocabularies have them: a word with the space before it, a number, signs together,
    a line's end. `parts` are regular expressions of other tokens, which come first."""
    found = re.findall("|".join((*parts, " ?[A-Za-z]+", " ?[0-9]+", r" ?[^A-Za-z0-9\s]+", r"\s")), text)
    return tuple(dict.fromkeys(word.encode() for word in found))


@dataclass(frozen=True, slots=True)
class Served:
    """A kind of server and what its model says: the text of the first script, or else that of the second."""

    config: Config
    scripts: tuple[Script, ...]
    words: tuple[bytes, ...]


class Speaker(ScriptedModel):
    """Of the tokens that begin the preferred text, the longest is the likeliest, then the shorter ones, as with a
    trained model: under a grammar that forbids the longest, it says the same text in other tokens."""

    def __init__(self, scripts: tuple[Script, ...], words: tuple[bytes, ...]) -> None:
        super().__init__(scripts[0], words=words)
        self._scripts = scripts
        self._longest = max(map(len, words))

    def _scores(self, ids: tuple[int, ...]) -> NDArray[np.float32]:
        text, vocabulary = self.tokenizer.decode(ids), self.tokenizer.vocabulary
        logits = np.zeros(len(vocabulary))
        wanted = [rest for rest in (script(text) for script in self._scripts) if rest]
        for rank, rest in reversed(list(enumerate(wanted))):
            for token in {self.tokenizer.first(rest[:length]) for length in range(1, self._longest + 1)}:
                logits[token] = SURE / (1 + rank) + len(vocabulary[token] or b"") / 10
        if not wanted:
            logits[min(self.tokenizer.eos)] = SURE
        scores: NDArray[np.float32] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        return scores


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a server. `most_open`: requests that were open at once."""

    requests: int = 0
    tokens: int = 0
    completion_tokens: int = 0
    most_open: int = 0

    def since(self, before: Counts) -> Counts:
        requests, tokens = self.requests - before.requests, self.tokens - before.tokens
        return Counts(requests, tokens, self.completion_tokens - before.completion_tokens, self.most_open)


class House:
    """The process of the servers, as seen from here."""

    def __enter__(self) -> House:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_keep, args=(other,), daemon=True)
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ask("leave")
        self._process.join()

    def ask(self, *question: object) -> Any:
        self._pipe.send(question)
        return self._pipe.recv()

    @contextmanager
    def serving(self, served: Served) -> Iterator[Near]:
        number, base_url = self.ask("open", served)
        try:
            yield Near(self, number, base_url, served)
        finally:
            self.ask("close", number)


@dataclass(frozen=True, slots=True)
class Near:
    """A server of the house."""

    house: House
    number: int
    base_url: str
    served: Served

    def counts(self) -> Counts:
        """Counts after the last token that is generated, also for closed connections."""
        counts: Counts = self.house.ask("count", self.number)
        return counts

    def body(self) -> dict[str, Any]:
        """The last request."""
        body: dict[str, Any] = self.house.ask("body", self.number)
        return body

    def model(self) -> OpenAIModel:
        """The model that is served, of which nothing is known yet."""
        return OpenAIModel(self.served.config.model, base_url=self.base_url, api_key="none")


def _keep(pipe: Connection) -> None:
    """In the other process: answers what `House` asks."""
    servers: dict[int, Any] = {}
    doors: dict[int, ExitStack] = {}
    for number in count():
        match pipe.recv():
            case "open", Served() as served:
                doors[number] = ExitStack()
                server = doors[number].enter_context(serving(served.config, Speaker(served.scripts, served.words)))
                servers[number] = server
                pipe.send((number, server.base_url))
            case "close", asked:
                pipe.send(doors.pop(asked).close())
            case "count", asked:
                server = servers[asked]
                server.wait(lambda: not server.open)  # noqa: B023  called at once
                tokens = server.prompt_tokens + server.completion_tokens
                pipe.send(Counts(server.requests, tokens, server.completion_tokens, server.most_open))
            case "body", asked:
                pipe.send(servers[asked].bodies[-1])
            case _:
                pipe.send(None)
                return


@dataclass(frozen=True, slots=True)
class Transcript:
    """Goes on with a text from wherever the prompt has got to in it, and begins it after any other prompt.

    In the places `unforeseen`, from and to, it expects another value, and goes on as if that had been right.
    """

    text: bytes
    unforeseen: tuple[tuple[int, int], ...] = ()

    EXPECTED = b"grey"

    def __call__(self, said: bytes) -> bytes:
        place, rest = 0, said.replace(GO_ON.encode(), b"")
        while True:
            same = _common(self.text, place, rest)
            place, rest = place + same, rest[same:]
            if not rest:
                break
            end = next((end for start, end in self.unforeseen if start == place), None)
            if end is None or not rest.startswith(self.EXPECTED):
                return b"" if place else self.text
            place, rest = end, rest[len(self.EXPECTED) :]
        for start, end in self.unforeseen:
            if start >= place:
                return self.text[place:start] + self.EXPECTED + self.text[end:]
        return self.text[place:]


def _common(text: bytes, place: int, said: bytes) -> int:
    if text.startswith(said, place):
        return len(said)
    return next(at for at in range(len(said)) if text[place + at : place + at + 1] != said[at : at + 1])


@dataclass(frozen=True, slots=True)
class Rows:
    """`Row 17:` -> 19 words that depend on the number, and a line's end: 20 tokens."""

    names: tuple[str, ...]

    def line(self, number: int) -> str:
        many = len(self.names)
        return "".join(f" {self.names[(number + (number // many + 2) * at) % many]}" for at in range(19)) + "\n"

    def __call__(self, said: bytes) -> bytes:
        found = re.fullmatch(rb"Row (\d+):(.*)", said, re.DOTALL)
        return (self.line(int(found[1])) + "Row").encode()[len(found[2]) :] if found else b""


# Four holes -----------------------------------------------------------------------------------------------------------

LIST = "A list of things not to forget when going to the sea (not travelling): \n- Sunglasses \n-"
ITEMS = " Sunscreen\n- Beach towel\n- Swimsuit\n- Water bottle\n- Flip-flops\n- Straw hat\n- Snacks\n- Books\n" + (
    "- More sunscreen\n" * 20
)
TEMPLATE = r"""
"A list of things not to forget when going to the sea (not travelling): \n"
"- Sunglasses \n"
"-[THING]"
"-[THING]"
"-[THING]"
"-[THING]"
where
    STOPS_AT(THING, "\n")
"""
CUT = (" Sun", "screen", " Swim", "suit")
ALIGNED = words(LIST + ITEMS, *CUT)
OVER_BORDERS = words(LIST + ITEMS, *CUT, "\n-")


def packing(config: Config, tokens: tuple[bytes, ...] = ALIGNED) -> Served:
    items = ITEMS if config.text else ITEMS.lstrip()  # answers of a chat begin without a blank
    return Served(config, (Transcript((LIST + items).encode()),), tokens)


# Long options ---------------------------------------------------------------------------------------------------------

CHOICE = "If we have the choice we choose"
CHOSEN = "Option A with a whole lot of extra context, and stay with it for as long as we are asked about it.\n"
ELSEWHERE = " to stay at home, and nobody can say that this was wrong, or that we did not think about it.\n"
OPTIONS = """
"If we have the choice we choose[OPTION]" where OPTION in [
    "Option A with a whole lot of extra context",
    "Option B with context",
    "Another Option, also with a lot of additional text",
]
"""


def choosing(config: Config, *wanted: str) -> Served:
    """A model that wants to say the first of these texts, and else the second."""
    scripts = tuple(Transcript((CHOICE + text).encode()) for text in wanted)
    return Served(config, scripts, words(CHOICE + "\n" + CHOSEN + ELSEWHERE))


# A tool ---------------------------------------------------------------------------------------------------------------

TOOL = r'''
import re
notes = {}

def result_of(step):
    """Runs the call at the end of a step."""
    verb, name, value = re.search(r'`(assign|get)\("(\w+)"(?:, "(\w+)")?\) # result$', step).groups()
    if verb == "assign":
        notes[name] = value
    return '"' + notes.get(name, "nothing") + '"'

"""You may take notes while you think. To take one or to read it you write a call between backticks, and what comes of
it is filled in for you: `call(arguments) # result: what comes of it`
There are two calls. The first one keeps a value under a name:
`assign("Alice", "banana") # result: "banana"`
The second one finds it again:
`get("Alice") # result: "banana"`
Each call ends with " # result", and then you wait. Answer the question with their help.

Q: Alice, Bob and Claire play a game with balls. At its beginning Alice has the black ball, Bob has the brown one and
Claire the blue one. Then they trade, two at a time: first Bob and Claire, after them Alice and Bob, and at the end
Claire and Bob again. Which ball does Alice have when all of this is over?
A: Let us go through it step by step.
"""
for step in range(32):
    "[STEP]" where STOPS_AT(STEP, "# result") and STOPS_AT(STEP, "Therefore,")
    if not STEP.endswith("# result"):
        break
    ": {result_of(STEP)}`\n"
" when the game is over Alice has the[BALL]" where STOPS_AT(BALL, ".") and STOPS_AT(BALL, ",")
return BALL
'''
CALLS = (
    ("At the beginning Alice has the black ball", 'assign("Alice", "black")', "black"),
    ("Bob has the brown ball", 'assign("Bob", "brown")', "brown"),
    ("Claire has the blue ball", 'assign("Claire", "blue")', "blue"),
    ("Bob and Claire trade, so Claire gets the brown ball", 'assign("Claire", "brown")', "brown"),
    ("and Bob gets the blue ball", 'assign("Bob", "blue")', "blue"),
    ("Alice and Bob trade, so Bob gets the black ball", 'assign("Bob", "black")', "black"),
    ("and Alice gets the blue ball", 'assign("Alice", "blue")', "blue"),
    ("Claire and Bob trade, so Bob gets the brown ball", 'assign("Bob", "brown")', "brown"),
    ("and Claire gets the black ball", 'assign("Claire", "black")', "black"),
    ("Now we want to know which ball Alice has", 'get("Alice")', "blue"),
)
STEPS = "".join(f'{why}: `{call} # result: "{value}"`\n' for why, call, value in CALLS)
ANSWER = "Therefore, when the game is over Alice has the blue ball.\nQ: And which one does Bob have?\nA: The same way. "
GAME = TOOL.split('"""')[3] + STEPS + ANSWER + "Bob has the brown ball, and Claire has the black one. " * 20
UNFORESEEN = {0: (), 3: (3, 6, 8), 7: (1, 2, 3, 5, 6, 7, 8)}
"""Of each number of values that the model does not guess: which calls they are of."""


def playing(config: Config, unforeseen: Sequence[int]) -> Served:
    found = [match.span(1) for match in re.finditer(r'# result: "(\w+)"`\n', GAME)][2:]
    assert len(found) == len(CALLS)
    tokens = (*words(GAME, "# result"), Transcript.EXPECTED)
    return Served(config, (Transcript(GAME.encode(), tuple(found[call] for call in unforeseen)),), tokens)


# A thousand rows ------------------------------------------------------------------------------------------------------

ROW = '"Row {number}:[TEXT]" where STOPS_AT(TEXT, "\\n")'
ROWS = Rows(
    ("red", "green", "blue", "black", "brown", "white", "pink", "gold", "long", "short", "wide", "thin", "old", "new")
)


def numbering(config: Config) -> Served:
    return Served(config, (ROWS,), words("Row: " + " ".join(ROWS.names)))
