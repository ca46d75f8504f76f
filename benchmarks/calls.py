"""Distance from a query's source to its result: functions and files of the package that run on the way.

    python benchmarks/calls.py [--list]

The query fills one hole with two tokens of the demo model. Counted by `sys.setprofile`, in a session that has run it
once before (warm) and in one that has not (cold); comprehensions count as part of their function. Exits with 1 if a
line is missed.
"""

from __future__ import annotations

import argparse
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


def functions(work: Callable[[], object]) -> set[CodeType]:
    """Functions of the package that are called."""
    found = set()

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in INLINE:
            found.add(code)

    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also print their names")
    lists = parser.parse_args().list
    model, query = lq.model("demo"), lq.compile(SOURCE)
    lq.run_sync(SOURCE, model=model, session=lq.Session())  # what is imported and built once
    warm = lq.Session()
    query.run_sync(model=model, session=warm)
    missed = False
    for name, work, limit in (
        ("source to result, warm", lambda: lq.run_sync(SOURCE, model=model, session=warm), 260),
        ("compiled query alone, warm", lambda: query.run_sync(model=model, session=warm), 150),
        ("source to result, cold", lambda: lq.run_sync(SOURCE, model=model, session=lq.Session()), None),
    ):
        called = functions(work)
        files = sorted({code.co_filename for code in called})
        is_missed = limit is not None and len(called) > limit
        missed |= is_missed
        held = "" if limit is None else f"at most {limit}{', missed' if is_missed else ''}"
        print(f"{name:30}{len(called):>5} functions in {len(files):>3} files   {held}")
        for file in files if lists else ():
            own = sorted(code.co_qualname for code in called if code.co_filename == file)
            print(f"    {Path(file).relative_to(PACKAGE)}: {', '.join(own)}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
