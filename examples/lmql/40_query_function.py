"""A query as a Python function: its parameters and the names around it are what the query reads."""

import lmql_lite as lmql

UNITS = 4


@lmql.query
def plus(number):
    """lmql
    "Q: What is {number} plus {UNITS}?\nA: [SUM: int]\n"
    return SUM
    """


class Geography:
    def __init__(self, country):
        self.country = country

    @lmql.query(model="demo")
    def capital(self, greeting="Hello"):
        """lmql
        "Q: What is the capital of {self.country}?\nA:[CAPITAL]\n" where STOPS_BEFORE(CAPITAL, "\n")
        return f"{greeting},{CAPITAL}"
        """


@lmql.query
async def packing(place):
    """lmql
    "Things to pack for {place}:\n-[THING]\n" where STOPS_BEFORE(THING, "\n")
    """


if __name__ == "__main__":
    import asyncio

    print(plus(3))
    print(Geography("Sweden").capital(greeting="Good morning"))
    print(asyncio.run(packing("Rome")).variables)
