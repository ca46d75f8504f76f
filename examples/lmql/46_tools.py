"""What LMQL called actions: functions that the model may call while it fills a placeholder."""

import lmql_lite as lmql

memory = {}


def assign(key: str, value: str) -> str:
    """stores a value"""
    memory[key] = value
    return value


def get(key: str) -> str:
    """reads it again"""
    return memory.get(key, "nothing")


@lmql.query(model="demo")
def game(sentences):
    """lmql
    for sentence in sentences:
        "{sentence}\n-[argmax(tools=[assign, get]) STEPS]\n" where STOPS_AT(STEPS, "done")
    "Therefore, Bob has the[OBJECT]" where STOPS_AT(OBJECT, ".")
    return OBJECT.strip()
    """


if __name__ == "__main__":
    story = ["Alice has a red hat.", "Bob has a green hat.", "Alice and Bob swap hats.", "What hat does Bob have?"]
    print(game(story))
    print(memory)
