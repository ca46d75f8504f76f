"""Word tables that several tasks share: people, places, colours, things."""

from __future__ import annotations

from random import Random


def table(words: str) -> list[str]:
    """The words of a text, between blanks."""
    return words.split()


def pairs(text: str) -> dict[str, str]:
    """`a=b c=d` as a table."""
    return dict(pair.split("=") for pair in text.split())


NAMES = table(
    "Alice Bob Claire Dave Ada Ben Carla David Emma Felix Grace Hugo Ivy Jack Kate Leo Mia Noah Olga Paul Rosa Sam "
    "Tina Victor Wendy Anna Omar Lena Tom Ruth Max Nina Oscar Peter Sara Theo Eva Frank Gina Henry Ines Jonas Lucy "
    "Marie Ravi Yuki José Zoë Chloé Amir Luca Elif"
)

CITIES = table(
    "London Paris Berlin Rome Madrid Vienna Oslo Cairo Tokyo Lisbon Dublin Prague Athens Zurich Bergen Boston Chicago "
    "Lima Delhi Seoul Sydney Toronto Venice Warsaw Zürich"
)

COLOURS = table(
    "black brown blue red green yellow white pink purple orange grey silver golden violet turquoise crimson"
)

THINGS = table("ball book hat cup coin card ring key box flag scarf balloon pen stone bag present marble kite lamp toy")

FRUITS = table("apple banana cherry lemon mango peach pear plum orange grape melon kiwi")

ANIMALS = table("cat dog horse cow sheep goat rabbit duck fox bear wolf lion tiger mouse owl frog")

COMMON = table(
    "river stone window garden paper silver music winter summer letter bridge market forest island candle mirror "
    "basket pocket button engine rocket planet ticket castle dragon pencil hammer ladder blanket cloud thunder shadow "
    "coffee sugar pepper butter bread cheese honey water table chair clock phone wheel train ship road hill lake moon "
    "star sun rain snow wind fire sand leaf tree rose"
)

_ONSETS = table("b c d f g h j k l m n p r s t v w z br st tr pl")
_VOWELS = table("a e i o u")
_CODAS = ["", "", "", "n", "r", "s", "l", "m", "x"]


def nonsense(rng: Random) -> str:
    """A pronounceable word that means nothing, so that it can only be copied, never recalled."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(1, 3)))


def article(word: str) -> str:
    """The word with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def plural(word: str) -> str:
    """The word's plural, for the words in these tables."""
    return f"{word}es" if word.endswith("x") else f"{word}s"


def joined(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
