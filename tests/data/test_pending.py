"""Attempts without an answer: keys are found, and settled once for each time that they are asked for."""

from __future__ import annotations

import random

from lmql_lite.data.pending import PendingAttempts


def test_keys_are_found_and_settled_as_in_a_dictionary() -> None:
    chance = random.Random(0)
    wanted = {chance.getrandbits(64): chance.getrandbits(63) - 2**62 for _ in range(500)}
    pending = PendingAttempts(wanted.items())
    strangers = [chance.getrandbits(64) for _ in range(100)]
    assert len(pending) == 500 and not any(key in pending for key in strangers)
    left = dict(wanted)
    for key in chance.sample([*wanted, *strangers], 400):
        assert pending.digest(key) == left.pop(key, None)
        pending.settle(key)
        assert len(pending) == len(left) and key not in pending
    assert all(pending.digest(key) == digest for key, digest in left.items())


def test_a_key_that_is_asked_for_twice_is_settled_twice() -> None:
    pending = PendingAttempts([(7, 1), (7, 2)])
    pending.settle(7)
    assert 7 in pending and len(pending) == 1
    pending.settle(7)
    assert not pending and 7 not in pending


def test_nothing_asked_for_is_nothing_left() -> None:
    assert not PendingAttempts([])
