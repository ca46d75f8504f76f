"""What LMQL gave to output writers: the text as it comes, and the values of placeholders."""

import asyncio

import lmql_lite as lmql

QUERY = lmql.compile('"Q: What is the capital of Cuba?\\nA:[CAPITAL]\\n" where STOPS_BEFORE(CAPITAL, "\\n")')


async def main():
    async for event in QUERY.stream(model="demo"):
        match event:
            case lmql.events.Text(text):
                print(text, end="")
            case lmql.events.HoleClosed(name, value):
                print(f"<{name}={value!r}>", end="")


if __name__ == "__main__":
    asyncio.run(main())
