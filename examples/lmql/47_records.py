"""A dataclass as the type of a placeholder: what LMQL wrote as `type(WHO) is Person`."""

from dataclasses import dataclass

import lmql_lite as lmql


@dataclass
class Person:
    name: str
    age: int
    city: str


@lmql.query(model="demo")
def person(sentence):
    """lmql
    "{sentence}\nAs JSON: [WHO: Person]\n"
    return WHO
    """


if __name__ == "__main__":
    print(person("Tom is 41 years old and lives in Paris."))
