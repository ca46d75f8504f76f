"""Python's syntax messages, rewritten for people who write prompts."""

from __future__ import annotations

import re

from lmql_lite.lang.keywords import CONSTRAINTS

FIRST_WORD = re.compile(r"[^\W\d]\w*|[\d.]+|[-+*/%@&|^<>=!:~]+|\S")

LAST_WORD = re.compile(r"(\w+|[^\w\s]+)\s*$")

TORN_ESCAPE = re.compile(
    r"(?<!\\)(?:\\\\)*(\\(?:x(?![0-9a-fA-F]{2})|u(?![0-9a-fA-F]{4})|U(?![0-9a-fA-F]{8})|N(?!\{[^}]+\})))"
)
"""Python names the string, not the place in it."""

SAID_BETTER = (
    ("Perhaps you forgot a comma", "a comma or an operator is missing here", None),
    ("Maybe you meant '=='", "a single '=' does not compare", "write == to compare"),
    ("Missing parentheses in call to", "the call has no parentheses", "write print(...)"),
    ("cannot assign to", "nothing can be assigned to this", None),
    ("unterminated string", "this string is never closed", "end it with the quote it began with"),
    ("codec can't decode", "an escape in this string is incomplete", r"write \\ for a plain backslash"),
    (
        "after line continuation",
        "something follows the backslash",
        r"a backslash joins lines only as the last character",
    ),
    ("leading zeros", "a number cannot begin with 0", None),
    ("Exceeds the limit", "this number has too many digits", "write it in hexadecimal"),
    ("f-string", "this f-string cannot be read", "check what stands between its braces"),
)
"""Part of Python's message, sentence, hint. Python's wording differs between its versions, these parts do not."""

MISTAKEN = {
    "&&": "write and",
    "&": "write and",
    "||": "write or",
    "|": "write or",
    "!": "write not",
    "=>": "write >=",
    "=<": "write <=",
    "===": "write ==",
    "<>": "write !=",
    "//": "a comment begins with #",
    "/*": "a comment begins with #",
    "++": "write += 1",
    "--": "write -= 1",
    "from": "write: from MODULE import NAME",
    **dict.fromkeys(
        ("where", "distribution"),
        "it follows a prompt; a string in a function is not a prompt, except in the docstring of a @query",
    ),
}


WORDED = {
    **dict.fromkeys(("contains", "includes", "has", "include", "contain"), 'write ".." in X'),
    **dict.fromkeys(("matches", "like", "match"), 'write REGEX(X, r"..")'),
    **dict.fromkeys(("equals", "equal", "eq"), "write =="),
    **dict.fromkeys(("startswith", "starts", "begins"), 'write X.startswith("..")'),
    **dict.fromkeys(("endswith", "ends"), 'write X.endswith("..")'),
    "between": "write 3 < len(X) < 9",
    **dict.fromkeys(("AND", "then", "plus"), "write and"),
    "OR": "write or",
    "NOT": "write not",
    "unless": "write or",
    "xor": "write !=",
}
"""Words that are operators elsewhere, or in speech."""
AN_OPERATOR = re.compile(r"""(?<=[\w)\]"'])\s+(\w+)(?=\s+[\w("'\[{-])""")
EMPTY_INDEX = re.compile(r"(?<=\w)\[\s*\]")
FUNCTION_ALONE = re.compile(rf"\b(len|{'|'.join(CONSTRAINTS)})\s+(\w+)")

CURLED = "\u201c\u201d\u201e\u2018\u2019"
"""Quotes that word processors write."""


def lowered(sentence: str) -> str:
    """A sentence in our style: it begins in lower case and has no final period."""
    sentence = sentence.rstrip(".")
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def missing_operator(rest: str) -> tuple[int, str, str] | None:
    """Error where two operands meet: the offset of the word to blame, the sentence and the hint; None where it is
    none that is known."""
    for word in AN_OPERATOR.finditer(rest):
        if word.group(1) in WORDED:
            return word.start(1), f"'{word.group(1)}' is not an operator", WORDED[word.group(1)]
    if empty := EMPTY_INDEX.search(rest):
        return (
            empty.start(),
            "nothing stands between these brackets",
            'write what belongs there: Literal["a", "b"]',
        )
    if function := FUNCTION_ALONE.search(rest):
        name, given = function.groups()
        return function.start(1), f"'{name}' is a function and takes parentheses", f"write {name}({given})"
    return None


def sentence(message: str, rest: str) -> tuple[str, str | None]:
    """Sentence and hint for an error of Python's. `rest` is the code from its place on."""
    for part, better, hint in SAID_BETTER:
        if part in message:
            return better, hint
    if any(quote in message for quote in CURLED):
        return "Python does not accept curly quotes", 'write straight ones: "..."'
    if "invalid syntax" not in message:
        return lowered(message), None
    if rest[:1] in ('"', "'"):
        return "a string is not expected here", None
    word = FIRST_WORD.match(rest)
    found = word.group() if word else rest[:1]
    return f"'{found}' is not expected here", MISTAKEN.get(found)


def said_at_end(message: str, code: str) -> tuple[str, str | None]:
    """Sentence and hint for an error that Python finds after the last character."""
    if "invalid syntax" not in message and "unexpected EOF" not in message:
        return sentence(message, "")
    word = LAST_WORD.search(code)
    if word is None:
        return "something is missing here", None
    hint = MISTAKEN[word.group(1)] if word.group(1) in ("++", "--") else None
    return f"something is missing after '{word.group(1)}'", hint


def said_by_compiler(message: str) -> str:
    """Message of Python's compiler. A query is not a function, so its message for a `yield` would mislead."""
    word = message.split("'")[1] if message.count("'") > 1 else message.partition(" ")[0]
    if ("outside" in message and "function" in message) or "at module level" in message:
        return f"'{word}' can stand only inside a function, and a query is not a function"
    return lowered(message)
