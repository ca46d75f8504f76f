"""Queries that call queries: a method, and one that calls itself."""

import lmql_lite as lmql


class Kinds:
    def __init__(self, *names):
        self.names = names

    @lmql.query
    def kind(self, animal):
        """lmql
        names = [f"a {name}" for name in self.names]
        "\nIs a {animal} {', '.join(names[:-1])} or {names[-1]}?\n"
        "Answer: [KIND]\n" where KIND in self.names
        return KIND
        """


@lmql.query
def table(kinds, animals):
    """lmql
    "{animals[0]}: [KIND: kinds.kind(animals[0])]\n"
    if len(animals) > 1:
        "[REST: table(kinds, animals[1:])]"
    """


if __name__ == "__main__":
    print(table(Kinds("bird", "fish", "mammal"), ["penguin", "trout", "whale"], model="demo").prompt)
