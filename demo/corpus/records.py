"""Small JSON records: made up, or copied out of a sentence."""

from __future__ import annotations

import json
from random import Random

from corpus.draft import Draft
from corpus.words import CITIES, COLOURS, NAMES, nonsense

_PRODUCTS = (
    "lamp",
    "chair",
    "table",
    "phone",
    "kettle",
    "bike",
    "tent",
    "jacket",
    "camera",
    "backpack",
    "watch",
    "radio",
)
_TITLES = (
    "The Quiet River",
    "A Winter Garden",
    "The Last Train",
    "Stars over Oslo",
    "The Paper Castle",
    "Nine Lost Letters",
    "The Silver Island",
    "Bread and Honey",
    "The Clock Maker",
    "A Map of Clouds",
    "Café at Midnight",
    "The Fox and the Moon",
)
_SURNAMES = (
    "Stone",
    "Rivers",
    "Novak",
    "Meyer",
    "Garcia",
    "Silva",
    "Young",
    "Okafor",
    "Tanaka",
    "Larsen",
    "Müller",
    "Brown",
)
_JOBS = ("teacher", "doctor", "pilot", "baker", "painter", "farmer", "nurse", "engineer", "singer", "gardener")
_HEADS = ("As JSON: ", "As JSON: ", "As JSON: ", "JSON: ", "As JSON:\n")


def write(rng: Random) -> Draft:
    drafts = [rng.choice(_KINDS)(rng) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    return Draft(";".join(draft.content for draft in drafts), "".join(draft.text for draft in drafts))


def _name(rng: Random) -> str:
    """Now and then a name nobody has, so that the record has to be copied from the sentence."""
    return nonsense(rng).capitalize() if rng.random() < 0.15 else rng.choice(NAMES)


def _person(rng: Random) -> Draft:
    name, age, city = _name(rng), rng.randint(1, 99), rng.choice(CITIES)
    record = _dump({"name": name, "age": age, "city": city})
    sentence = rng.choice(
        (
            f"{name} is {age} years old and lives in {city}.",
            f"{name} is {age} years old and lives in {city}.",
            f"{name} lives in {city} and is {age} years old.",
            f"My name is {name}, I am {age} and I come from {city}.",
        )
    )
    head = f"{sentence}\n{rng.choice(_HEADS)}" if rng.random() < 0.75 else _invented(rng, "person")
    return Draft(f"{name}|{age}|{city}", f"{head}{record}\n")


def _worker(rng: Random) -> Draft:
    name, job, city = _name(rng), rng.choice(_JOBS), rng.choice(CITIES)
    record = _dump({"name": name, "job": job, "city": city})
    sentence = rng.choice((f"{name} is a {job} in {city}.", f"{name} works as a {job} in {city}."))
    return Draft(f"{name}|{job}|{city}", f"{sentence}\n{rng.choice(_HEADS)}{record}\n")


def _product(rng: Random) -> Draft:
    product, colour, price = rng.choice(_PRODUCTS), rng.choice(COLOURS), rng.randint(2, 299)
    stock = rng.random() < 0.5
    record = {"product": product, "colour": colour, "price": price}
    sentence = f"The {colour} {product} costs {price} euros"
    if rng.random() < 0.5:
        record["in_stock"] = stock
        sentence += " and is in stock" if stock else " and is sold out"
    head = f"{sentence}.\n{rng.choice(_HEADS)}" if rng.random() < 0.75 else _invented(rng, "product")
    return Draft(f"{product}|{colour}|{price}", f"{head}{_dump(record)}\n")


def _book(rng: Random) -> Draft:
    title, author, year = rng.choice(_TITLES), f"{rng.choice(NAMES)} {rng.choice(_SURNAMES)}", rng.randint(1900, 2024)
    record = _dump({"title": title, "author": author, "year": year})
    head = f'"{title}" was written by {author} in {year}.\n{rng.choice(_HEADS)}'
    if rng.random() < 0.25:
        head = _invented(rng, "book")
    return Draft(f"{title}|{author}|{year}", f"{head}{record}\n")


def _invented(rng: Random, kind: str) -> str:
    return rng.choice(
        (f"A {kind} as JSON:\n", f"A {kind} as JSON:\n", f"A {kind} as JSON: ", f"Write a {kind} as JSON:\n")
    )


def _question(rng: Random) -> Draft:
    """The way back: a field read out of a record."""
    name, age, city = _name(rng), rng.randint(1, 99), rng.choice(CITIES)
    record = _dump({"name": name, "age": age, "city": city})
    asked, answer = rng.choice(
        (
            (f"Where does {name} live?", city),
            (f"How old is {name}?", str(age)),
            (f"Who lives in {city}?", name),
        )
    )
    return Draft(f"{name}|{age}|{city}", f"{record}\nQ: {asked}\nA: {answer}\n")


def _dump(record: dict[str, str | int]) -> str:
    return json.dumps(record, ensure_ascii=False)


_KINDS = (_person, _person, _person, _worker, _product, _book, _question)
