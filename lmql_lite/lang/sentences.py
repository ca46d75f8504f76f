"""Python's syntax errors in the words of a person who writes prompts, or in Python's own where no row knows more."""

from __future__ import annotations

import difflib
import keyword
import re
from typing import NamedTuple

from lmql_lite.lang.keywords import CLAUSES, INLINE_CLAUSES
from lmql_lite.lang.lines import Lexeme, Lexemes, are_apart
from lmql_lite.lang.terminals import is_assignment, strings_end


class Mistake(NamedTuple):
    """Part of a piece of Python that is wrong: offsets in its code, and what is said about it."""

    start: int
    end: int
    sentence: str
    hint: str | None = None


SAID_BETTER = (
    ("Perhaps you forgot a comma", "a comma or an operator is missing here", None),
    ("Maybe you meant '=='", "a single '=' does not compare", "write == to compare"),
    ("cannot assign to", "nothing can be assigned to this", None),
    ("codec can't decode", "an escape in this string is incomplete", r"write \\ for a plain backslash"),
    ("leading zeros", "a number cannot begin with 0", None),
    ("Exceeds the limit", "this number has too many digits", "write it in hexadecimal"),
    ("f-string", "this f-string cannot be read", "check what stands between its braces"),
    ("follows this number", "a word follows this number without a space", "write a space between them"),
    ("octal escape", "this octal escape is too large", r"the largest is \377; for others write \u, as in \u01ff"),
    ("use of tabs", "tabs and spaces are mixed in the indentation", "indent with spaces only"),
)
"""Part of Python's message, sentence, hint. Python's wording differs between its versions, these parts do not."""

MISTAKEN = {
    "&&": "write and",
    "||": "write or",
    "!": "write not",
    "=>": "write >=",
    "===": "write ==",
    "//": "a comment begins with #",
    **dict.fromkeys(
        ("where", "distribution"),
        "it follows a prompt; a string in a function is not a prompt, except in the docstring of a @query",
    ),
}
"""Operators of other languages, and what to write."""

FIRST_WORD = re.compile(r"[^\W\d]\w*|[\d.]+|[-+*/%@&|^<>=!:~]+|\S")
LAST_WORD = re.compile(r"(\w+|[^\w\s]+)\s*$")
DOUBLED = "&|=<>!"
CURLED = "\u201c\u201d\u201e\u2018\u2019"
"""Quotes that word processors write."""


def mistake(message: str, code: str, first: int, last: int) -> Mistake:
    """Mistake in a piece of Python; `first` and `last` are the offsets to which Python points."""
    size = len(code.rstrip())
    if first >= size:
        sentence, hint = _at_end(message, code)
        return Mistake(max(size - 1, 0), size, sentence, hint)
    while first and code[first - 1] in DOUBLED and code[first] in DOUBLED:
        first -= 1  # Python points to the second half of `&&`
    sentence, hint = _sentence(message, code[first:])
    if sentence.startswith("'"):
        last = first + len(sentence.split("'")[1])
    return Mistake(first, min(max(last, first + 1), len(code)), sentence, hint)


def lowered(sentence: str) -> str:
    """A sentence in our style: it begins in lower case and has no final period."""
    sentence = sentence.rstrip(".")
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def said_by_compiler(message: str) -> tuple[str, str | None]:
    """Sentence and hint for an error of Python's compiler. A query is not a function, so that its message for a `yield`
    would mislead."""
    if "statically nested" in message:
        return "more blocks stand inside one another here than Python's compiler allows", "move some into a function"
    word = message.split("'")[1] if message.count("'") > 1 else message.partition(" ")[0]
    if ("outside" in message and "function" in message) or "at module level" in message:
        return f"'{word}' can stand only inside a function, and a query is not a function", None
    return lowered(message), None


def _sentence(message: str, rest: str) -> tuple[str, str | None]:
    """Sentence and hint; `rest` is the code from the mistake on."""
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


def _at_end(message: str, code: str) -> tuple[str, str | None]:
    """Sentence and hint for an error that Python finds after the last character."""
    word = LAST_WORD.search(code)
    if word is None or not any(part in message for part in ("invalid syntax", "unexpected EOF", "Expected one or")):
        return _sentence(message, "")
    return f"something is missing after '{word.group(1)}'", MISTAKEN.get(word.group(1))


# Statements -----------------------------------------------------------------------------------------------------------


def simple_mistake(lexemes: Lexemes, at: int) -> Mistake | None:
    """Mistake at the beginning of a statement, or after its first string, at the offset `at`."""
    first, after = lexemes[0], strings_end(lexemes, 0)
    following = lexemes[after] if after < len(lexemes) else None
    if after and following and at == following.start:
        return _after_string(lexemes[after - 1], following)
    if len(lexemes) < 2 or first.kind != "name" or not are_apart(first, lexemes[1]):
        return None
    if close := difflib.get_close_matches(first.text.lower(), CLAUSES, 1, 0.7):
        sentence = f"there is no clause '{first.text}'"
        return Mistake(first.start, first.end, sentence, f"did you mean '{close[0]}'?")
    is_word_of_python = keyword.issoftkeyword(first.text) or keyword.iskeyword(lexemes[1].text)
    is_block = lexemes[-1].text in (":", "{")
    if lexemes[1].kind == "name" and not (is_word_of_python or is_block or is_assignment(lexemes)):
        sentence = "this is not Python; a prompt needs quotes around it"
        return Mistake(first.start, first.end, sentence, 'write "..." around it')
    return None


def _after_string(string: Lexeme, lexeme: Lexeme) -> Mistake:
    """Mistake of a lexeme that follows the string at the beginning of a line."""
    if string.end == lexeme.start and (string.text.count("{") > string.text.count("}") or "[" in string.text):
        other = "'" if string.text[-1] == '"' else '"'
        hint = f"inside a {string.text[-1]}...{string.text[-1]} string write {other}, or use triple quotes"
        return Mistake(string.start, string.end, "a quote inside {...} or [...] ends this string", hint)
    if lexeme.text in INLINE_CLAUSES:
        hint = "prompt outside of the function, or make it a query: @query, and the query as its docstring"
        return Mistake(lexeme.start, lexeme.end, f"'{lexeme.text}' is not expected here", hint)
    close = difflib.get_close_matches(lexeme.text.lower(), INLINE_CLAUSES, 1)
    hint = f"did you mean '{close[0]}'?" if close else "put other code on a line of its own"
    return Mistake(lexeme.start, lexeme.end, "only 'where' or 'distribution' can follow a prompt string", hint)
