"""Queries from text and from files, with options at the call; several at once in an event loop."""

import asyncio
from pathlib import Path

import lmql_lite as lmql

SOURCE = '"Q: What is the capital of {country}?\\nA:[CAPITAL]" where STOPS_BEFORE(CAPITAL, "\\n")'


async def main():
    results = await asyncio.gather(
        lmql.run(SOURCE, {"country": "Peru"}),
        lmql.run(SOURCE, {"country": "Cuba"}, decoder="sample", temperature=0.3, seed=1),
    )
    print([result.variables["CAPITAL"] for result in results])


if __name__ == "__main__":
    print(lmql.run_sync(SOURCE, {"country": "Chile"}, model="demo").prompt)
    print(lmql.run_sync(Path(__file__).parent / "10_integers.lmql").value)
    asyncio.run(main())
