"""Ten things that somebody wants to know or do, as steps: each takes at most three clicks from the page as it opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Open, Server, Tab

QUERY = """"Pick a colour:[COLOUR]\\n" where COLOUR in ["teal", "zinc"]
"Because[WHY]" where len(TOKENS(WHY)) < 6
"""


class Person:
    """Counts the clicks."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.page = tab.page
        self.clicks = 0

    def click(self, selector: str, nth: int = 0) -> None:
        self.clicks += 1
        self.page.locator(selector).nth(nth).click(position={"x": 4, "y": 6})
        self.tab.settle()

    def sees(self, selector: str, text: str = "") -> None:
        found = self.page.locator(selector).filter(visible=True).all_text_contents()
        assert any(text in each for each in found), (selector, text, found)


def which_clause_forbade_a_token(person: Person) -> None:
    person.click("#output .hole[data-hole=COLOUR] .source")
    person.sees("#card .struck", "forbidden by")
    person.sees("#card .struck code", "COLOUR in")


def what_the_second_run_saved(person: Person) -> None:
    person.click("#run")
    person.tab.wait("done")
    cached = int(person.tab.count("tokens_from_cache"))
    assert cached > 0
    person.sees("#hero", f"{cached} from the cache")


def take_the_second_best_token_and_go_on(person: Person) -> None:
    person.click("#output .hole[data-hole=WHY] .source")
    person.click(".alternatives button")
    person.tab.wait("done")
    person.sees("#onward", "Continued from another run")


def say_what_a_value_is_and_go_on(person: Person) -> None:
    person.click("#output .hole[data-hole=WHY] .source")
    person.click(".onward summary")
    person.page.fill(".onward textarea", " it is")
    person.click(".onward button")
    person.tab.wait("done")
    person.sees("#output", "Because")
    assert " it is" in person.tab.text()


def how_likely_a_token_was(person: Person) -> None:
    person.click("#output .hole[data-hole=WHY] .source")
    person.sees("#card dd", "%")


def see_the_whole_tree(person: Person) -> None:
    person.click("#tab-trie")
    person.sees("#trie [role=treeitem]", "Pick")


def what_a_run_would_ask(person: Person) -> None:
    person.clicks += 2  # the menu, and what is chosen in it
    person.page.select_option("#more", "plan")
    person.page.wait_for_selector("#plan :text('COLOUR')")
    person.sees("#plan", "COLOUR")


def two_runs_beside_each_other(person: Person) -> None:
    person.click("#run")
    person.tab.wait("done")
    person.click("#tab-runs")
    person.sees("#runs-grid td", "Run 2")


def keep_the_run_as_a_page(person: Person) -> None:
    person.click("#share")
    with person.page.expect_download() as download:
        person.click("#download-report")
    assert download.value.suggested_filename.endswith(".html")
    page = Path(download.value.path()).read_text("utf-8")
    assert "Pick a colour" in page and "COLOUR in" in page


def another_example(person: Person) -> None:
    person.click("#examples")
    person.click("#gallery button:has-text('06_dates.lq')")
    person.tab.wait("recorded")
    person.sees("#recorded", "recording")


TASKS: list[Callable[[Person], None]] = [
    which_clause_forbade_a_token,
    what_the_second_run_saved,
    take_the_second_best_token_and_go_on,
    say_what_a_value_is_and_go_on,
    how_likely_a_token_was,
    see_the_whole_tree,
    what_a_run_would_ask,
    two_runs_beside_each_other,
    keep_the_run_as_a_page,
    another_example,
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_a_task_takes_at_most_three_clicks(open_tab: Open, server: Server, task: Callable[[Person], None]) -> None:
    tab = open_tab(server)
    tab.run(QUERY)
    person = Person(tab)
    task(person)
    assert person.clicks <= 3
