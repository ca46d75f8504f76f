"""Distance from a query's source to its result: functions and files of the package that run, frames at the model call.

    python benchmarks/calls.py [--list]

The query fills one hole with two tokens of the demo model. Counted by `sys.setprofile`, in a session that has run it
once before (warm) and in one that has not (cold); comprehensions count as part of their function. Exits with 1 if a
line is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import lmql_lite as lq  # noqa: E402

SOURCE = '"Things to pack for the beach:\\n-[THING]" where STOPS_AT(THING, "\\n")'
PACKAGE = str(ROOT / "lmql_lite")
INLINE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
MAX_FRAMES = 8


class Profile:
    """Functions of the package that are called while it is open."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.calls = 0

    def __enter__(self) -> Profile:
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *what: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _seen(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and is_ours(frame) and frame.f_code.co_name not in INLINE:
            self.codes.add(frame.f_code)
            self.calls += 1

    @property
    def files(self) -> set[str]:
        return {code.co_filename for code in self.codes}


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


class Stacks:
    """The deepest stacks of the package where the model is called: the task that calls it, and the one that waits."""

    def __init__(self, scorer: Any) -> None:
        self.at_call: list[str] = []
        self.at_question: list[str] = []
        self._score = scorer.score
        scorer.score = self._watched

    async def _watched(self, requests: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        here = []
        while frame is not None:
            if is_ours(frame):
                here.append(name_of(frame.f_code))
            frame = frame.f_back
        self.at_call = max(self.at_call, here[::-1], key=len)
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                self.at_question = max(self.at_question, awaiting(task.get_coro()), key=len)
        return await self._score(requests)


def awaiting(coroutine: Any) -> list[str]:
    """The package's coroutines and generators that wait for each other, the outermost first."""
    found: list[str] = []
    while coroutine is not None:
        for kind in ("cr", "ag", "gi"):
            code = getattr(coroutine, f"{kind}_code", None)
            if code is not None:
                if code.co_filename.startswith(PACKAGE):
                    found.append(name_of(code))
                coroutine = getattr(coroutine, f"{kind}_await", None) or getattr(coroutine, "gi_yieldfrom", None)
                break
        else:
            coroutine = generator_of(coroutine)
    return found


def generator_of(awaitable: Any) -> Any:
    """The async generator behind its `asend`, which Python shows to nobody but the garbage collector."""
    if type(awaitable).__name__ not in ("async_generator_asend", "async_generator_athrow", "coroutine_wrapper"):
        return None
    held = gc.get_referents(awaitable)
    return next((each for each in held if hasattr(each, "ag_code") or hasattr(each, "cr_code")), None)


def name_of(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_qualname}"


def profiled(work: Callable[[], object]) -> Profile:
    with Profile() as profile:
        work()
    return profile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also name files and frames")
    lists = parser.parse_args().list
    model = lq.model("demo")
    lq.run_sync(SOURCE, model=model, session=lq.Session())  # what is imported and built once
    warm, cold = lq.Session(), lq.Session()
    query = lq.compile(SOURCE)
    query.run_sync(model=model, session=warm)
    whole = profiled(lambda: lq.run_sync(SOURCE, model=model, session=warm))
    alone = profiled(lambda: query.run_sync(model=model, session=warm))
    first = profiled(lambda: lq.run_sync(SOURCE, model=model, session=cold))
    stacks = Stacks(model)
    lq.run_sync(SOURCE, model=model, session=lq.Session())
    missed = False
    for name, profile, functions, files in (
        ("source to result, warm", whole, 260, 55),
        ("compiled query alone, warm", alone, 140, 30),
        ("source to result, cold", first, 0, 0),
    ):
        many, spread = len(profile.codes), len(profile.files)
        is_missed = bool(functions) and (many > functions or spread > files)
        missed |= is_missed
        wanted = f"<= {functions} in {files}{' MISSED' if is_missed else ''}" if functions else ""
        print(f"{name:30}{many:>5} functions in {spread:>3} files, {profile.calls:>6} calls  {wanted}")
        if lists:
            for file in sorted(profile.files):
                own = sorted(code.co_qualname for code in profile.codes if code.co_filename == file)
                print(f"    {Path(file).relative_to(PACKAGE)}: {', '.join(own)}")
    # the frames below the coroutines are those of the door from sync to async: they stand on the stack as well
    door = ["run_sync", "blocking"]
    question = [*door, *stacks.at_question]
    for name, stack in (("the model is called", stacks.at_call), ("the question is put", question)):
        is_missed = len(stack) > MAX_FRAMES
        missed |= is_missed
        print(f"{'frames where ' + name:40}{len(stack):>3}  <= {MAX_FRAMES}{' MISSED' if is_missed else ''}")
        if lists:
            print("    " + " > ".join(stack))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
