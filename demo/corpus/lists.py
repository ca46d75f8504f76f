"""Packing lists: a place or an occasion, and things that fit it, none twice."""

from __future__ import annotations

from random import Random

from corpus.draft import Draft

_ALWAYS = ("Toothbrush", "Phone charger", "Socks", "Underwear", "Water bottle", "Medicine", "Wallet", "Keys")
_CITY = ("Passport", "Camera", "Comfortable shoes", "City map", "Travel guide", "Power adapter", "Train tickets")
_WARM = ("Sun hat", "Sunscreen", "Sunglasses", "Light shirt", "Sandals", "Shorts")
_COLD = ("Warm sweater", "Gloves", "Scarf", "Winter coat", "Wool socks", "Thermos")
_WET = ("Rain jacket", "Umbrella", "Waterproof boots", "Warm sweater")
_MILD = ("Light jacket", "Umbrella", "Sunglasses")
_SEA = (
    "Sunscreen",
    "Beach towel",
    "Sunglasses",
    "Swimsuit",
    "Sun hat",
    "Flip-flops",
    "Water bottle",
    "Book",
    "Snacks",
    "Beach ball",
    "Umbrella",
    "Snorkel",
    "Bucket and spade",
    "Picnic blanket",
)
_MOUNTAINS = (
    "Hiking boots",
    "Rain jacket",
    "Map",
    "Compass",
    "Warm sweater",
    "Water bottle",
    "First aid kit",
    "Trail mix",
    "Backpack",
    "Flashlight",
    "Wool socks",
    "Sun hat",
)
_CAMPING = (
    "Tent",
    "Sleeping bag",
    "Flashlight",
    "Matches",
    "Camping stove",
    "Insect repellent",
    "Pocket knife",
    "Water bottle",
    "First aid kit",
    "Blanket",
    "Rope",
    "Marshmallows",
)
_BUSINESS = (
    "Laptop",
    "Business cards",
    "Suit",
    "Phone charger",
    "Notebook",
    "Pen",
    "Tie",
    "Train tickets",
    "Dress shoes",
    "Headphones",
)
_PICNIC = ("Blanket", "Sandwiches", "Lemonade", "Fruit", "Napkins", "Cheese", "Cups", "Cake", "Sun hat", "Bread")
_SKIING = (
    "Skis",
    "Helmet",
    "Ski goggles",
    "Gloves",
    "Warm jacket",
    "Lip balm",
    "Wool socks",
    "Sunscreen",
    "Ski pass",
    "Hot tea",
)
_GYM = ("Towel", "Water bottle", "Running shoes", "Shorts", "T-shirt", "Headphones", "Shampoo", "Lock")
_SCHOOL = ("Pencil case", "Notebook", "Lunch box", "Water bottle", "Ruler", "Calculator", "Books", "Eraser")
_FESTIVAL = (
    "Tickets",
    "Tent",
    "Earplugs",
    "Rain jacket",
    "Sunscreen",
    "Snacks",
    "Water bottle",
    "Wet wipes",
    "Sleeping bag",
)

_WARM_CITIES = ("Rome", "Cairo", "Athens", "Madrid", "Lisbon", "Delhi", "Lima", "Sydney", "Seville")
_COLD_CITIES = ("Oslo", "Helsinki", "Reykjavik", "Moscow", "Stockholm", "Toronto")
_WET_CITIES = ("Bergen", "London", "Dublin", "Hamburg", "Seattle", "Amsterdam")
_MILD_CITIES = ("Paris", "Berlin", "Vienna", "Prague", "Tokyo", "Boston", "Venice", "Zurich")

PLACES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_WARM_CITIES, _CITY + _WARM),
    **dict.fromkeys(_COLD_CITIES, _CITY + _COLD),
    **dict.fromkeys(_WET_CITIES, _CITY + _WET),
    **dict.fromkeys(_MILD_CITIES, _CITY + _MILD),
    "the sea": _SEA,
    "the beach": _SEA,
    "the mountains": _MOUNTAINS,
    "a hiking trip": _MOUNTAINS,
    "a camping weekend": _CAMPING,
    "a camping trip": _CAMPING,
    "a business trip": _BUSINESS,
    "a picnic": _PICNIC,
    "a skiing holiday": _SKIING,
    "the gym": _GYM,
    "school": _SCHOOL,
    "a music festival": _FESTIVAL,
}
_OCCASIONS = ("a ", "school")
_TRAVELLED = (*_WARM_CITIES, *_COLD_CITIES, *_WET_CITIES, *_MILD_CITIES)


def write(rng: Random) -> Draft:
    return _list(rng, in_order=False)


def write_in_order(rng: Random) -> Draft:
    """Lists that follow the order of the tables: whoever knows the last item knows what has not been said yet."""
    return _list(rng, in_order=True)


def _list(rng: Random, in_order: bool) -> Draft:
    place = rng.choice(("the sea", "the beach")) if rng.random() < 0.12 else rng.choice(tuple(PLACES))
    items = _items(rng, place)
    if in_order:
        items.sort(key=[*PLACES[place], *_ALWAYS].index)
    going = f"going to {place}" if not place.startswith(_OCCASIONS) else f"going on {place}"
    if place in ("a picnic", "a music festival"):
        going = f"going to {place}"
    heading, mark, end = rng.choice(
        (
            (f"A list of things not to forget when {going} (not travelling): ", "- ", " "),
            (f"A list of things not to forget when {going} (not travelling): ", "- ", " "),
            (f"A list of things not to forget when {going}:", "- ", ""),
            (f"Things to pack for {place}:", "- ", ""),
            (f"Things to pack for {place}:", "- ", ""),
            (f"Packing list for {place}:", "- ", ""),
            (f"My packing list for {place}:", "* ", ""),
            (f"What to bring when {going}:", "- ", ""),
            (f"What should I pack for {place}?", "- ", ""),
        )
    )
    if rng.random() < 0.1:
        listed = ", ".join(item.lower() for item in items)
        text = f"{heading.strip()} {listed}" + ("" if heading.endswith("?") else ".")
    elif rng.random() < 0.1:
        text = heading + "\n" + "\n".join(f"{n}. {item}{end}" for n, item in enumerate(items, 1))
    else:
        text = heading + "\n" + "\n".join(f"{mark}{item}{end}" for item in items)
    return Draft(f"{place}|{items[:2]}", text + rng.choice(("", "\n", "\n")))


def _items(rng: Random, place: str) -> list[str]:
    fitting = PLACES[place]
    count = rng.randint(4, 8)
    items = rng.sample(fitting, min(count, len(fitting)))
    if "Passport" in fitting and rng.random() < 0.5:
        items = ["Passport", *(item for item in items if item != "Passport")][:count]
    if rng.random() < 0.3:
        extra = rng.choice([item for item in _ALWAYS if item not in items])
        items[-1] = extra
    return items
