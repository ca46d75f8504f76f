"""How many tokens to guess ahead: about as many as came true lately. Where none do, guessing all but stops."""

from __future__ import annotations

MOST = 16
"""A draft has at most so many tokens."""
LONGEST_PAUSE = 64


class Drafts:
    """The luck of one model's drafts. It decides what is asked together, never what is answered."""

    def __init__(self) -> None:
        self._right = 4.0
        """How many tokens of a draft came true, lately and on average."""
        self._pause = 1
        self._wait = 0

    def length(self) -> int:
        """How many tokens to guess now; 0 for a while after guesses that did not come true."""
        if self._wait:
            self._wait -= 1
            return 0
        return min(round(2 * self._right) + 1, MOST)

    @property
    def are_lucky(self) -> bool:
        return self._right >= 1

    def learn(self, guessed: int, right: int) -> None:
        """Of the last draft so many tokens were taken. One that was taken whole might have been longer."""
        self._right = (self._right + (2 * right if right == guessed else right)) / 2
        if right:
            self._pause = 1
        elif self._right < 1:
            self._wait = self._pause = min(2 * self._pause, LONGEST_PAUSE)
