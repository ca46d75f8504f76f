"""One answer out of several: free choices among options, sentiment of reviews, kinds of animals, odd ones out."""

from __future__ import annotations

from random import Random

from corpus.draft import Draft
from corpus.words import COLOURS, FRUITS, NAMES, article, joined, table

_LMQL_OPTIONS = (
    "Option A with a whole lot of extra context",
    "Option B with context",
    "Another Option, also with a lot of additional text",
)
_OPTION_SETS = (
    _LMQL_OPTIONS,
    _LMQL_OPTIONS,
    _LMQL_OPTIONS,
    ("Option A", "Option B", "Option C"),
    ("Option 1", "Option 2", "Option 3"),
    ("Plan A", "Plan B"),
    ("Option A with context", "Option B with a lot of additional text", "Another Option"),
    ("the red door", "the blue door", "the green door"),
    ("tea", "coffee", "hot chocolate"),
    ("the sea", "the mountains"),
    ("the train", "the bus", "the bike"),
    ("pizza", "pasta", "salad"),
    ("Monday", "Tuesday", "Friday"),
    ("the first plan", "the second plan", "the third plan"),
    ("a cat", "a dog"),
    ("yes", "no"),
    ("left", "right"),
)

_POSITIVE = (
    ("The room was clean", "clean room"),
    ("The staff was friendly", "friendly staff"),
    ("The food was great", "great food"),
    ("The view was wonderful", "wonderful view"),
    ("The bed was comfortable", "comfortable bed"),
    ("The breakfast was delicious", "delicious breakfast"),
    ("The pool was lovely", "lovely pool"),
    ("The music was beautiful", "beautiful music"),
    ("The price was fair", "fair price"),
    ("The service was excellent", "excellent service"),
    ("We had a great stay", "great stay"),
    ("Hiking in the mountains was fabulous", "fabulous hiking"),
    ("The food is really good", "good food"),
    ("I love this phone", "good phone"),
    ("The book was exciting", "exciting book"),
    ("The film was funny", "funny film"),
)
_NEGATIVE = (
    ("The room was dirty", "dirty room"),
    ("The staff was rude", "rude staff"),
    ("The food was cold", "cold food"),
    ("The view was ugly", "ugly view"),
    ("The bed was hard", "hard bed"),
    ("The breakfast was awful", "awful breakfast"),
    ("The pool was closed", "closed pool"),
    ("The music was too loud", "loud music"),
    ("The price was too high", "high price"),
    ("The service was slow", "slow service"),
    ("We had a terrible stay", "terrible stay"),
    ("The shower was broken", "broken shower"),
    ("The food is really bad", "bad food"),
    ("I hate this phone", "bad phone"),
    ("The book was boring", "boring book"),
    ("The film was too long", "long film"),
)
_NEUTRAL = (
    ("The room was average", "average room"),
    ("The hotel is near the station", "plain facts"),
    ("The food was okay", "okay food"),
    ("The room has two windows", "plain facts"),
    ("The stay was nothing special", "plain stay"),
    ("The breakfast starts at eight", "plain facts"),
    ("The service was as expected", "expected service"),
    ("The phone is black", "plain facts"),
    ("The book has ten chapters", "plain facts"),
    ("The film was so-so", "so-so film"),
)
_SENTIMENTS = (("positive", _POSITIVE), ("negative", _NEGATIVE), ("neutral", _NEUTRAL))

_KINDS = {
    "bird": table("penguin eagle owl duck robin parrot swan raven sparrow chicken"),
    "fish": table("salmon trout shark tuna herring carp cod eel"),
    "mammal": table("dog cat whale horse bat mouse elephant dolphin lion rabbit"),
    "insect": table("bee ant beetle butterfly fly wasp moth"),
    "reptile": table("snake lizard turtle crocodile gecko"),
}
_GROUPS = {
    "fruit": FRUITS,
    "colour": COLOURS[:11],
    "animal": table("dog cat horse cow sheep goat lion tiger"),
    "tool": table("hammer saw drill screwdriver pliers wrench"),
    "furniture": table("table chair sofa shelf bed desk"),
    "clothing": table("shirt jacket trousers sock scarf hat"),
    "vehicle": table("car train bus ship bike truck"),
    "vegetable": table("carrot potato onion spinach cabbage leek"),
    "drink": table("water tea coffee milk juice cocoa"),
}
_KIND_NAMES = {
    "fruit": "a fruit",
    "colour": "a colour",
    "animal": "an animal",
    "tool": "a tool",
    "furniture": "furniture",
    "clothing": "clothing",
    "vehicle": "a vehicle",
    "vegetable": "a vegetable",
    "drink": "a drink",
}


def write(rng: Random) -> Draft:
    return rng.choice(_TASKS)(rng)


def _choice(rng: Random) -> Draft:
    options = rng.choice(_OPTION_SETS)
    chosen = rng.choice(options)
    gap = rng.choice(("", " "))
    if rng.random() < 0.6:
        text = f"If we have the choice we choose{gap}{chosen}"
    else:
        listed = "\n".join(f"- {option}" for option in rng.sample(options, len(options)))
        text = f"Our options:\n{listed}\nIf we have the choice we choose{gap or ' '}{chosen}"
    return Draft(f"{options[0]}|{chosen}|{len(text)}", text + rng.choice(("", ".", "\n", ".\n")))


def _pick(rng: Random) -> Draft:
    """A preference that is stated and has to be read again."""
    options = list(rng.choice(_OPTION_SETS))
    name, other, liked, disliked = *rng.sample(NAMES, 2), *rng.sample(options, 2)
    text = (
        f"{name} likes {liked}. {other} likes {disliked}.\n"
        f"Q: What does {name} choose: {' or '.join(rng.sample([liked, disliked], 2))}?\nA: {liked}\n"
    )
    return Draft(f"{name}|{liked}|{disliked}", text)


def _sentiment(rng: Random) -> Draft:
    reviews = [_review(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    text = "".join(f"Review: {review}\nSentiment: {sentiment}\n" for review, sentiment, _ in reviews)
    return Draft(";".join(review for review, _, _ in reviews), text + rng.choice(("", "\n")))


def _analysis(rng: Random) -> Draft:
    review, sentiment, reason = _review(rng)
    text = (
        f"Review: {review}\nQ: What is the underlying sentiment of this review and why?\n"
        f"A: The sentiment is {sentiment}, because the review speaks of {reason}.\n"
        f"Based on this, the overall sentiment of the message can be considered to be {sentiment}"
    )
    return Draft(review, text + rng.choice(("", ".", "\n", ".\n")))


def _review(rng: Random) -> tuple[str, str, str]:
    sentiment, phrases = rng.choice(_SENTIMENTS)
    chosen = rng.sample(phrases, rng.choice((1, 2, 2, 3)))
    sentences = [sentence for sentence, _ in chosen]
    if len(sentences) == 2 and rng.random() < 0.5:
        review = f"{sentences[0]} and {sentences[1][0].lower() if sentences[1][:2] != 'I ' else 'I'}{sentences[1][1:]}."
    else:
        review = ". ".join(sentences) + "."
    return review, sentiment, joined(list(dict.fromkeys(reason for _, reason in chosen)))


def _kind(rng: Random) -> Draft:
    lines, content = "", []
    for _ in range(rng.choice((1, 2, 3))):
        kind = rng.choice(tuple(_KINDS))
        others = rng.sample([other for other in _KINDS if other != kind], 2)
        animal = rng.choice(_KINDS[kind])
        first, second, third = rng.sample([kind, *others], 3)
        given = article(animal)
        articles = [article(word) for word in (first, second, third)]
        lines += f"Is {given} {articles[0]}, {articles[1]} or {articles[2]}?\nAnswer: {kind}\n"
        content.append(f"{animal}{first}{second}")
    return Draft(";".join(content), lines)


def _odd(rng: Random) -> Draft:
    group, other = rng.sample(tuple(_GROUPS), 2)
    odd = rng.choice(_GROUPS[other])
    words = [*rng.sample([word for word in _GROUPS[group] if word != odd], 3), odd]
    rng.shuffle(words)
    if rng.random() < 0.3:
        kinds = ", ".join(f"{word} is {_KIND_NAMES[other if word == odd else group]}" for word in words)
        text = f"Pick the odd word out: {', '.join(words)}.\n{kinds}. So the odd one is {odd}.\n"
        return Draft(f"{group}|{'|'.join(words)}", text)
    ending = (
        f" (the others are {group})" if group in ("fruit", "furniture", "clothing") else f" (the others are {group}s)"
    )
    text = f"Which word does not belong: {', '.join(words)}?\nAnswer: {odd}{rng.choice(('', ending))}\n"
    return Draft(f"{group}|{'|'.join(words)}", text)


_TASKS = (_choice, _choice, _pick, _sentiment, _sentiment, _analysis, _kind, _odd)
