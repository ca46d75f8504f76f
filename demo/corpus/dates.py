"""Dates of well-known events, holidays, the calendar."""

from __future__ import annotations

import datetime
from random import Random

from corpus.draft import Draft
from corpus.words import table

# day | question with the verb's tense; all days are in the calendar of their time and place.
_EVENTS = """
1969-07-20|When did the first moon landing take place?
1961-04-12|When did Yuri Gagarin fly to space?
1957-10-04|When was Sputnik launched?
1903-12-17|When did the Wright brothers fly for the first time?
1912-04-15|When did the Titanic sink?
1989-11-09|When did the Berlin Wall fall?
1961-08-13|When did the building of the Berlin Wall begin?
1990-10-03|When was Germany reunified?
1776-07-04|When was the Declaration of Independence of the United States adopted?
1789-07-14|When was the Bastille stormed?
1815-06-18|When was the battle of Waterloo?
1666-09-02|When did the Great Fire of London begin?
1492-10-12|When did Columbus reach America?
1865-04-14|When was Abraham Lincoln shot?
1963-11-22|When was John F. Kennedy shot?
1945-05-08|When did the Second World War end in Europe?
1945-09-02|When did Japan sign its surrender?
1939-09-01|When did the Second World War begin?
1918-11-11|When did the First World War end?
1914-06-28|When was Archduke Franz Ferdinand shot in Sarajevo?
1944-06-06|When was D-Day?
1941-12-07|When was Pearl Harbor attacked?
1927-05-20|When did Charles Lindbergh take off for Paris?
1953-05-29|When was Mount Everest climbed for the first time?
1911-12-14|When did Roald Amundsen reach the South Pole?
1889-03-31|When was the Eiffel Tower opened?
1886-10-28|When was the Statue of Liberty dedicated?
1883-05-24|When was the Brooklyn Bridge opened?
1937-05-27|When was the Golden Gate Bridge opened?
1914-08-15|When was the Panama Canal opened?
1869-11-17|When was the Suez Canal opened?
1994-05-06|When was the Channel Tunnel opened?
1896-04-06|When did the first modern Olympic Games begin?
1930-07-13|When did the first football World Cup begin?
1986-04-26|When did the Chernobyl disaster happen?
1986-01-28|When did the Challenger accident happen?
1990-04-24|When was the Hubble telescope launched?
1977-09-05|When was Voyager 1 launched?
1997-07-04|When did Pathfinder land on Mars?
2021-02-18|When did Perseverance land on Mars?
2015-07-14|When did New Horizons fly past Pluto?
2021-12-25|When was the James Webb telescope launched?
1998-11-20|When was the first part of the space station launched?
2007-06-29|When did the first iPhone go on sale?
1984-01-24|When was the first Macintosh presented?
2001-01-15|When was Wikipedia founded?
1879-03-14|When was Albert Einstein born?
1809-02-12|When was Charles Darwin born?
1867-11-07|When was Marie Curie born?
1815-12-10|When was Ada Lovelace born?
1912-06-23|When was Alan Turing born?
1906-12-09|When was Grace Hopper born?
1452-04-15|When was Leonardo da Vinci born?
1756-01-27|When was Mozart born?
1685-03-31|When was Bach born?
1564-02-15|When was Galileo Galilei born?
1918-07-18|When was Nelson Mandela born?
1869-10-02|When was Mahatma Gandhi born?
1990-02-11|When was Nelson Mandela set free?
1963-08-28|When did Martin Luther King speak of his dream?
1928-09-28|When did Alexander Fleming find penicillin?
1895-11-08|When did Wilhelm Röntgen find X-rays?
1846-09-23|When was Neptune discovered?
1781-03-13|When was Uranus discovered?
1930-02-18|When was Pluto discovered?
1999-01-01|When was the euro introduced?
2002-01-01|When did euro coins come into use?
1945-10-24|When were the United Nations founded?
1957-03-25|When was the Treaty of Rome signed?
1517-10-31|When did Martin Luther publish his theses?
1906-04-18|When did the great San Francisco earthquake happen?
1883-08-27|When did Krakatoa explode?
1980-05-18|When did Mount St. Helens erupt?
"""
EVENTS = [
    (line.split("|")[1], datetime.date.fromisoformat(line.split("|")[0])) for line in _EVENTS.strip().splitlines()
]

_HOLIDAYS = (
    ("Christmas Day", 12, 25),
    ("New Year's Day", 1, 1),
    ("Halloween", 10, 31),
    ("Valentine's Day", 2, 14),
    ("Saint Patrick's Day", 3, 17),
    ("Independence Day in the United States", 7, 4),
    ("Bastille Day", 7, 14),
    ("New Year's Eve", 12, 31),
    ("Saint Nicholas Day", 12, 6),
    ("Earth Day", 4, 22),
    ("Pi Day", 3, 14),
    ("Labour Day in Europe", 5, 1),
    ("All Saints' Day", 11, 1),
    ("the Day of German Unity", 10, 3),
    ("Leap Day", 2, 29),
)
MONTHS = table("January February March April May June July August September October November December")
_DAYS = table("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_LENGTHS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))


def write(rng: Random) -> Draft:
    task = rng.choice((_events, _events, _events, _events, _holidays, _next_day, _order))
    return task(rng)


def _events(rng: Random) -> Draft:
    """Questions about events, all answered in the form of the first."""
    form = rng.choice(("iso", "iso", "iso", "us", "sentence"))
    chosen = rng.sample(EVENTS, rng.choice((1, 1, 2, 3)))
    text = ""
    for question, day in chosen:
        if form == "iso":
            text += f"Q: {question}\nA: {day.isoformat()}\n"
        elif form == "us":
            text += f"Q: {question}\nA: on {_long(day)}\n"
        else:
            text += f"{question} It was on {_long(day)}.\n"
    return Draft(form + ";".join(question for question, _ in chosen), text)


def _long(day: datetime.date) -> str:
    return f"{MONTHS[day.month - 1]} {day.day}, {day.year}"


def _holidays(rng: Random) -> Draft:
    name, month, day = rng.choice(_HOLIDAYS)
    form = rng.choice(("when", "month", "day"))
    text = {
        "when": f"Q: When is {name}?\nA: {MONTHS[month - 1]} {day}\n",
        "month": f"Q: In which month is {name}?\nA: {MONTHS[month - 1]}\n",
        "day": f"{name} is on {MONTHS[month - 1]} {day}.\n",
    }[form]
    return Draft(name + form, text)


def _next_day(rng: Random) -> Draft:
    day = datetime.date(rng.randint(1950, 2030), 1, 1) + datetime.timedelta(rng.randint(0, 365))
    after = day + datetime.timedelta(1)
    return Draft(
        day.isoformat(), f"The day after {day.isoformat()} is {after.isoformat()}" + rng.choice(("", "\n", ".\n"))
    )


def _order(rng: Random) -> Draft:
    names, kind = (_DAYS, "day") if rng.random() < 0.5 else (MONTHS, "month")
    lines = []
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(names))
        name, after, before = names[place], names[(place + 1) % len(names)], names[place - 1]
        lines.append(
            rng.choice(
                (
                    f"Q: Which {kind} comes after {name}?\nA: {after}",
                    f"Q: Which {kind} comes before {name}?\nA: {before}",
                    f"The {kind} after {name} is {after}.",
                    f"{name}, {after}, {names[(place + 2) % len(names)]}",
                )
            )
        )
    if rng.random() < 0.2:
        month = rng.choice(MONTHS)
        lines = [f"Q: How many days does {month} have?\nA: {_LENGTHS[month]}"]
    return Draft(";".join(lines), "\n".join(lines) + "\n")
