"""Dad jokes: a question that ends in `?` and a punchline in one line, each under a topic."""

from __future__ import annotations

from random import Random

from corpus.draft import Draft
from corpus.joke_table import JOKES

_HEADING = "A good dad joke. A indicates the punchline\n"
_HEADINGS = (
    _HEADING,
    _HEADING,
    _HEADING,
    _HEADING,
    "A list of good dad jokes. A indicates the punchline\n",
    "A list of good dad jokes. A indicates the punchline\n",
    "Some dad jokes:\n",
    "Tell me a joke.\n",
    "My favourite joke:\n",
    "",
)

# What do you call ...?
_CALLED = {
    "boomerang that does not come back": "A stick",
    "sleeping bull": "A bulldozer",
    "fish without an eye": "A fsh",
    "bear without teeth": "A gummy bear",
    "bear in the rain": "A drizzly bear",
    "cow without legs": "Ground beef",
    "pig that knows karate": "A pork chop",
    "dinosaur that is asleep": "A dino-snore",
    "lazy kangaroo": "A pouch potato",
    "snowman with a tan": "A puddle",
    "deer without eyes": "No idea",
    "cheese that is not yours": "Nacho cheese",
    "factory that makes okay things": "A satisfactory",
    "belt made of watches": "A waist of time",
    "can opener that is broken": "A can't opener",
    "dog that does magic": "A labracadabrador",
    "cow in an earthquake": "A milkshake",
    "sad strawberry": "A blueberry",
    "train that sneezes": "Achoo-choo train",
    "ghost's true love": "His ghoul-friend",
    "alligator in a vest": "An investigator",
    "bee that cannot decide": "A maybe",
    "owl that does magic": "Hoo-dini",
    "fly without wings": "A walk",
    "pony with a sore throat": "A little hoarse",
    "elephant that does not matter": "An irrelephant",
    "line of rabbits hopping backwards": "A receding hare line",
    "shoe made from a banana": "A slipper",
    "pile of cats": "A meowtain",
    "nervous javelin thrower": "Shakespeare",
    "group of musical whales": "An orca-stra",
    "duck that gets good marks": "A wise quacker",
}


def write(rng: Random) -> Draft:
    if rng.random() < 0.3:
        topic, question, answer = rng.choice(_ALL)
        about = _PLURALS.get(topic, f"{topic}s")
        heading = rng.choice(("Tell me a joke about {}.\n", "Tell me a joke about {}.\n", "A joke about {}:\n")).format(
            about
        )
        jokes = [(topic, question, answer)]
    else:
        heading = rng.choice(_HEADINGS)
        jokes = rng.sample(_ALL, rng.choice((1, 1, 1, 2, 3, 4)))
    text = heading + "".join(f"Q: {question}\nA: {answer}\n" for _, question, answer in jokes)
    content = heading + ";".join(question for _, question, _ in jokes)
    return Draft(content, text[:-1] if rng.random() < 0.3 else text)


def _families() -> list[tuple[str, str, str]]:
    jokes = []
    for thing, answer in _CALLED.items():
        topic = next((word for word in thing.replace("-", " ").split() if word in _TOPICS), "thing")
        given = f"{'an' if thing[0] in 'aeo' else 'a'} {thing}" if "cheese" not in thing else thing
        jokes.append((topic, f"What do you call {given}?", f"{answer}."))
    return jokes


_PLURALS = {
    "fish": "fish",
    "sheep": "sheep",
    "cheese": "cheese",
    "math": "math",
    "music": "music",
    "space": "space",
    "bread": "bread",
    "coffee": "coffee",
    "mouse": "mice",
    "weather": "the weather",
    "sea": "the sea",
    "food": "food",
    "school": "school",
    "wolf": "wolves",
    "butter": "butter",
    "work": "work",
    "snowman": "snowmen",
    "bus": "buses",
    "money": "money",
    "strawberry": "strawberries",
    "pony": "ponies",
    "fly": "flies",
    "knight": "knights",
    "stairs": "stairs",
    "tennis": "tennis",
    "football": "football",
    "mummy": "mummies",
    "library": "libraries",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "corn": "corn",
    "glue": "glue",
    "ice cream": "ice cream",
    "tea": "tea",
    "witch": "witches",
    "octopus": "octopuses",
}
_TOPICS = {
    "bear",
    "fish",
    "cow",
    "pig",
    "dinosaur",
    "kangaroo",
    "snowman",
    "deer",
    "cheese",
    "dog",
    "train",
    "ghost",
    "alligator",
    "bee",
    "owl",
    "fly",
    "pony",
    "elephant",
    "rabbit",
    "shoe",
    "cat",
    "duck",
    "strawberry",
    "whale",
}
_ALL = [*JOKES, *_families()]
