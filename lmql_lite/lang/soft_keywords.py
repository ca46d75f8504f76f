"""Soft keywords: tests on the lexemes of a line, by which the parser tells keywords from names.

No function here changes a line. A line that is valid Python and could be a clause stays Python.
"""

from __future__ import annotations

import difflib
import keyword

from lmql_lite.lang.keywords import CLAUSES, DECODERS, DECODERS_NOT_YET, INLINE_CLAUSES
from lmql_lite.lang.scanner import INFIX_WORDS, UNBRACKETED_WORDS, Indent, Lexeme, LogicalLine

COMPOUND = frozenset({"if", "for", "while", "with", "try"})
CONTINUATIONS = frozenset({"elif", "else", "except", "finally"})
DEFINITIONS = frozenset({"def", "class"})

# Words that cannot begin an expression.
STATEMENT_WORDS = UNBRACKETED_WORDS | {"if", "for", "else", "async"}

FOREIGN = {
    **dict.fromkeys(("let", "const", "var", "auto", "my"), "write NAME = VALUE"),
    **dict.fromkeys(("elseif", "elsif"), "write elif CONDITION:"),
    "unless": "write if not CONDITION:",
    **dict.fromkeys(("foreach", "loop"), "write for NAME in VALUES:"),
    **dict.fromkeys(("until", "repeat"), "write while not CONDITION:"),
    "switch": "write match VALUE:",
    **dict.fromkeys(("function", "func", "fn"), "write def NAME():"),
    **dict.fromkeys(("echo", "puts", "say"), "write the text in quotes: a string that stands alone is a prompt"),
    **dict.fromkeys(("throw",), "write raise"),
    **dict.fromkeys(("require", "include", "using"), "write import NAME"),
}
"""First words of statements in other languages, and the Python to write."""

OPERAND_OPENERS = frozenset({"(", "[", "{", "-", "+", "~", "..."})


def is_word(lexemes: list[Lexeme], index: int, *words: str) -> bool:
    return index < len(lexemes) and lexemes[index].kind == "name" and lexemes[index].text in words


def is_op(lexemes: list[Lexeme], index: int, text: str) -> bool:
    return index < len(lexemes) and lexemes[index].kind == "op" and lexemes[index].text == text


def is_assignment(lexemes: list[Lexeme]) -> bool:
    return any(
        lexeme.depth == 0 and lexeme.kind == "op" and lexeme.text.endswith("=")
        for lexeme in lexemes
        if lexeme.text not in ("==", "!=", "<=", ">=", ":=")
    )


def clause_word(lexeme: Lexeme, words: tuple[str, ...] = CLAUSES) -> str | None:
    """The clause that this word would begin. `where` and `WHERE`, as in LMQL, but not `Where`."""
    if lexeme.kind != "name" or not (lexeme.text.islower() or lexeme.text.isupper()):
        return None
    word = lexeme.text.lower()
    return word if word in words else None


def begins_clause(lexemes: list[Lexeme]) -> bool:
    """True if this line is a clause, and not Python."""
    word = clause_word(lexemes[0])
    if word is None:
        return False
    if len(lexemes) == 1:
        return True
    following = lexemes[1]
    if word == "from":
        return following.text != "." and not any(is_word(lexemes, index, "import") for index in range(1, len(lexemes)))
    if following.kind == "op":
        return word == "where" and following.text in OPERAND_OPENERS and not is_assignment(lexemes)
    if following.kind == "name" and following.text in INFIX_WORDS:
        return following.text == "not" and not is_word(lexemes, 2, "in")
    return True


def begins_inline_clause(lexemes: list[Lexeme]) -> bool:
    return begins_clause(lexemes) and clause_word(lexemes[0]) in INLINE_CLAUSES


def strings_end(lexemes: list[Lexeme], start: int) -> int:
    """Index after the string literals, perhaps in parentheses, that stand at `start`; `start` when there are none."""
    index = start
    opened: list[int] = []
    last_whole = start
    while index < len(lexemes):
        lexeme = lexemes[index]
        if lexeme.kind == "string":
            pass
        elif lexeme.text == "(" and lexeme.kind == "op":
            opened.append(index)
        elif lexeme.text == ")" and opened and lexemes[index - 1].text != "(":
            opened.pop()
        else:
            break
        index += 1
        if not opened:
            last_whole = index
    return last_whole


def is_prompt(lexemes: list[Lexeme], start: int = 0) -> bool:
    """A string that stands alone, or before one of its clauses or the end of the statement."""
    end = strings_end(lexemes, start)
    if end == start:
        return False
    return end == len(lexemes) or is_op(lexemes, end, ";") or clause_word(lexemes[end], INLINE_CLAUSES) is not None


def is_docstring(lexemes: list[Lexeme]) -> bool:
    """True if this is one string in triple quotes; above a decoder header it is the query's docstring."""
    return len(lexemes) == 1 and lexemes[0].kind == "string" and lexemes[0].text.endswith(('"""', "'''"))


def is_statement(lexemes: list[Lexeme]) -> bool:
    """True if this line must be a statement, and cannot continue an expression begun above."""
    first = lexemes[0]
    if first.kind == "name" and first.text in STATEMENT_WORDS:
        return True
    return first.text == "@" or is_assignment(lexemes) or begins_clause(lexemes)


def closing(lexemes: list[Lexeme], opener: int) -> int:
    """Index of the bracket that closes the one at `opener`."""
    depth = lexemes[opener].depth
    for index in range(opener + 1, len(lexemes)):
        if lexemes[index].depth == depth and lexemes[index].text in (")", "]", "}"):
            return index
    return len(lexemes)


def colon(lexemes: list[Lexeme]) -> int | None:
    """Index of the colon that ends the head of a compound statement."""
    lambdas = 0
    for index, lexeme in enumerate(lexemes):
        if lexeme.depth:
            continue
        if lexeme.kind == "name" and lexeme.text == "lambda":
            lambdas += 1
        elif lexeme.kind == "op" and lexeme.text == ":":
            if not lambdas:
                return index
            lambdas -= 1
    return None


def compound_word(lexemes: list[Lexeme]) -> str | None:
    """The keyword of a compound statement other than a definition. `match` only where the line ends in a colon."""
    first = lexemes[0]
    if first.kind != "name":
        return None
    if first.text in COMPOUND or first.text in CONTINUATIONS:
        return first.text
    if first.text == "async" and is_word(lexemes, 1, "for", "with"):
        return lexemes[1].text
    if first.text == "case" and is_op(lexemes, 1, ":"):
        return "case"
    if first.text in ("match", "case") and len(lexemes) > 2:
        following = lexemes[1]
        named = following.kind != "op" or following.text in OPERAND_OPENERS or following.text == "*"
        if named and not (following.kind == "name" and following.text in INFIX_WORDS - {"not"}):
            at = colon(lexemes)
            if at is not None and (first.text == "case" or at == len(lexemes) - 1):
                return first.text
    return None


def is_definition(lexemes: list[Lexeme]) -> bool:
    first = lexemes[0]
    if first.text == "@" and first.kind == "op":
        return True
    return is_word(lexemes, 0, *DEFINITIONS) or (is_word(lexemes, 0, "async") and is_word(lexemes, 1, "def"))


def header_end(lexemes: list[Lexeme]) -> int | None:
    """Index after the name and the arguments of a line with the shape of a decoder header, whether or not the name is
    known.

    A header stands alone, or before the first string.
    """
    first = lexemes[0]
    if first.kind != "name" or keyword.iskeyword(first.text):
        return None
    end = 1
    if is_op(lexemes, 1, "("):
        end = closing(lexemes, 1) + 1
        if end > len(lexemes):
            return None  # a broken line
    if end >= len(lexemes) or is_prompt(lexemes, end) or (is_op(lexemes, end, ":") and end == len(lexemes) - 1):
        return end
    return None


def is_decoder(name: str) -> bool:
    return name.lower() in DECODERS or name.lower() in DECODERS_NOT_YET


def find_header(lines: list[LogicalLine]) -> int | None:
    """Index of the line with the decoder header, also of one whose name is misspelt.

    After the first prompt, `sample(3)` is a call like any other; a string as the very first line may be a docstring.
    """
    base = lines[0].indent
    prompted = False
    for index, line in enumerate(lines):
        if line.indent.columns != base.columns:
            continue
        lexemes = line.lexemes
        if begins_clause(lexemes):
            return None
        if is_prompt(lexemes):
            prompted = prompted or index > 0
        elif (end := header_end(lexemes)) is not None or (line.broken and is_decoder(lexemes[0].text)):
            if is_decoder(lexemes[0].text):
                call = end is not None and end > 1 and end == len(lexemes)
                if not call or not (prompted or (is_prompt(lines[0].lexemes) and not _opens_body(lines, index))):
                    return index
            elif end is not None and not prompted and _misspelt(lines, index, end):
                return index
    return None


def _opens_body(lines: list[LogicalLine], index: int) -> bool:
    """True if a block or a prompt follows."""
    following = lines[index + 1] if index + 1 < len(lines) else None
    return following is not None and (
        following.indent.columns > lines[index].indent.columns or is_prompt(following.lexemes)
    )


def _misspelt(lines: list[LogicalLine], index: int, end: int) -> bool:
    """True if the rest of the query treats this line as a header with a misspelt decoder."""
    line = lines[index]
    claused = any(begins_clause(other.lexemes) for other in lines if other.indent.columns <= line.indent.columns)
    if end < len(line.lexemes):
        close = difflib.get_close_matches(line.lexemes[0].text.lower(), DECODERS + DECODERS_NOT_YET, 1)
        return (claused or bool(close)) and not is_op(line.lexemes, end, ":")
    deeper = index + 1 < len(lines) and lines[index + 1].indent.columns > line.indent.columns
    return _opens_body(lines, index) and (deeper or claused or end == 1)


def model_apart(line: LogicalLine, top: Indent) -> list[LogicalLine]:
    """The line, or two if a `from` follows the prompt or its inline clauses on the same line.

    `argmax "Hello[WHO]" from "demo" where ...` is one line, as LMQL has it: from `from` on it is the clauses.
    """
    lexemes = line.lexemes
    start = next((index for index, lexeme in enumerate(lexemes) if lexeme.kind == "string" and not lexeme.depth), 0)
    end = strings_end(lexemes, start)
    if line.broken or end in (start, len(lexemes)) or clause_word(lexemes[end]) is None:
        return [line]
    if start and header_end(lexemes[:start]) != start:
        return [line]
    for at in range(end, len(lexemes)):
        if not lexemes[at].depth and clause_word(lexemes[at], ("from",)):
            rest = LogicalLine(lexemes[at].start, top, lexemes[at:])
            return [LogicalLine(line.begin, line.indent, lexemes[:at]), rest]
    return [line]
