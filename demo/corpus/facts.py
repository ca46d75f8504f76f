"""A few simple facts: capitals, colours of things, opposites, sounds, greetings."""

from __future__ import annotations

from random import Random

from corpus.draft import Draft
from corpus.words import NAMES, article, pairs

_CAPITALS = pairs("""
France=Paris Germany=Berlin Italy=Rome Spain=Madrid Portugal=Lisbon Norway=Oslo Sweden=Stockholm
Denmark=Copenhagen Finland=Helsinki Iceland=Reykjavik Ireland=Dublin England=London Scotland=Edinburgh Austria=Vienna
Switzerland=Bern Poland=Warsaw Hungary=Budapest Greece=Athens Turkey=Ankara Egypt=Cairo Kenya=Nairobi Morocco=Rabat
Nigeria=Abuja Japan=Tokyo China=Beijing India=Delhi Nepal=Kathmandu Thailand=Bangkok Vietnam=Hanoi Australia=Canberra
Canada=Ottawa Cuba=Havana Peru=Lima Chile=Santiago Colombia=Bogotá Russia=Moscow Ukraine=Kyiv Belgium=Brussels
Croatia=Zagreb Bulgaria=Sofia Estonia=Tallinn Latvia=Riga
""")
_COLOURS = pairs("""
grass=green snow=white blood=red coal=black gold=yellow chocolate=brown milk=white cherries=red spinach=green
lemons=yellow ink=blue tomatoes=red pumpkins=orange carrots=orange salt=white bananas=yellow
""")
_OPPOSITES = pairs("""
hot=cold big=small tall=short fast=slow old=new happy=sad light=dark open=closed early=late full=empty hard=soft
loud=quiet strong=weak wet=dry clean=dirty rich=poor high=low near=far thick=thin up=down left=right day=night
""")
_SOUNDS = pairs("""
cow=moo dog=woof cat=meow sheep=baa duck=quack pig=oink owl=hoot bee=buzz lion=roar snake=hiss mouse=squeak
""")
_LEGS = {
    "dog": 4,
    "cat": 4,
    "bird": 2,
    "spider": 8,
    "ant": 6,
    "bee": 6,
    "horse": 4,
    "fish": 0,
    "snake": 0,
    "octopus": 8,
}
_HELLO = {
    "English": "Hello",
    "French": "Bonjour",
    "German": "Guten Tag",
    "Spanish": "Hola",
    "Italian": "Ciao",
    "Portuguese": "Olá",
    "Swedish": "Hej",
    "Dutch": "Hallo",
}


def write(rng: Random) -> Draft:
    if rng.random() < 0.15:
        return _greeting(rng)
    facts = [rng.choice(_FACTS)(rng) for _ in range(rng.choice((1, 1, 2, 3, 4)))]
    lines = []
    for question, answer, sentence in facts:
        asked = f"Q: {question}\nA: {answer}{rng.choice(('', '', '.'))}"
        lines.append(asked if len(facts) > 1 or rng.random() < 0.6 else sentence)
    return Draft(";".join(lines), "\n".join(lines) + rng.choice(("", "\n", "\n")))


def _capital(rng: Random) -> tuple[str, str, str]:
    country, capital = rng.choice(tuple(_CAPITALS.items()))
    if rng.random() < 0.2:
        return f"Which country has the capital {capital}?", country, f"{capital} is the capital of {country}."
    return f"What is the capital of {country}?", capital, f"The capital of {country} is {capital}."


def _colour(rng: Random) -> tuple[str, str, str]:
    thing, colour = rng.choice(tuple(_COLOURS.items()))
    verb = "are" if thing.endswith("s") and thing != "grass" else "is"
    return f"What colour {verb} {thing}?", colour, f"{thing.capitalize()} {verb} {colour}."


def _opposite(rng: Random) -> tuple[str, str, str]:
    word, other = rng.sample(rng.choice(tuple(_OPPOSITES.items())), 2)
    return f"What is the opposite of {word}?", other, f"The opposite of {word} is {other}."


def _sound(rng: Random) -> tuple[str, str, str]:
    animal, sound = rng.choice(tuple(_SOUNDS.items()))
    given = article(animal)
    return f"What does {given} say?", sound, f"{given.capitalize()} says {sound}."


def _legs(rng: Random) -> tuple[str, str, str]:
    animal, count = rng.choice(tuple(_LEGS.items()))
    given = article(animal)
    return f"How many legs does {given} have?", str(count), f"{given.capitalize()} has {count} legs."


def _greeting(rng: Random) -> Draft:
    name, language = rng.choice(NAMES), rng.choice(tuple(_HELLO))
    text = rng.choice(
        (
            f"Greet {name}: Hello {name}, nice to meet you!",
            f"Say hello to {name} in {language}:\n{_HELLO[language]} {name}!",
            f"Q: How do you say hello in {language}?\nA: {_HELLO[language]}",
            f"Hello, my name is {name}.\nHello {name}, nice to meet you!",
            f"Greet {name} with a smile: Hello {name} 😀",
            f"Thank you, {name}! 😀\nYou are welcome!",
        )
    )
    return Draft(f"{name}|{language}|{text[:9]}", text + rng.choice(("", "\n", "\n")))


_FACTS = (_capital, _capital, _capital, _colour, _opposite, _sound, _legs)
