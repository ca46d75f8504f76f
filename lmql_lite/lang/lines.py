"""One logical line to terminals: its small statements, its prompts, and the clauses of both prompt and query.

A clause may go on in the lines below; these are taken from the cursor.
"""

from __future__ import annotations

import difflib
import keyword

from lmql_lite.lang import shapes
from lmql_lite.lang.cursor import Cursor
from lmql_lite.lang.keywords import CLAUSES, INLINE_CLAUSES
from lmql_lite.lang.scanner import INFIX_WORDS, Lexeme, Line, ends_operand


class Lines:
    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.spoilt = False
        """Does the clause at hand go on in a line that could not be read?"""

    def simple(self, line: Line, index: int, *, header: bool = False) -> None:
        """Statements between semicolons, from the lexeme at `index` to the end of the line.

        A `where` at the end of the line takes the lines below that continue it.
        """
        lexemes = list(line.lexemes)
        self.cursor.at += 1
        size = 0
        while index < len(lexemes):
            if size:
                self.cursor.emit("_SEMICOLON", lexemes[index - 1])
            size += 1
            index = self._small(lexemes, index, line, header) + 1  # over the semicolon
        self.cursor.mark("_NEWLINE")

    def _small(self, lexemes: list[Lexeme], index: int, line: Line, header: bool) -> int:
        """Lay out one small statement; the index of the semicolon or the end behind it."""
        first = lexemes[index]
        if first.text == ";" and first.kind == "op":
            self.cursor.problem(first, "nothing stands before this ';'", "remove it")
            self.cursor.emit("BROKEN", first)
            return index
        if shapes.is_prompt(lexemes, index):
            return self._prompt(lexemes, index, line, header)
        end = next((i for i in range(index, len(lexemes)) if lexemes[i].depth == 0 and lexemes[i].text == ";"), None)
        end = len(lexemes) if end is None else end
        after = shapes.strings_end(lexemes, index)
        if after > index and self._no_operator(lexemes, after, end):
            self.cursor.problem(*self._after_string(lexemes, after))
            self.cursor.emit("BROKEN", first, lexemes[end - 1])
        elif clause := self._misspelt_clause(lexemes, index, end):
            self.cursor.problem(first, f"there is no clause '{first.text}'", f"did you mean '{clause}'?")
            self.cursor.emit("BROKEN", first, lexemes[end - 1])
        elif first.text == "{" and shapes.is_op(lexemes, index + 1, ":"):
            role = lexemes[index + 2].text if index + 2 < end and lexemes[index + 2].kind == "name" else "user"
            hint = f'write it at the beginning of the string: "{{:{role}}}..."'
            self.cursor.problem(first, "a role tag stands inside a prompt string", hint)
            self.cursor.emit("BROKEN", first, lexemes[end - 1])
        elif first.kind == "name" and first.text in shapes.FOREIGN and self._no_operator(lexemes, index + 1, end):
            self.cursor.problem(first, f"'{first.text}' is no word of Python", shapes.FOREIGN[first.text])
            self.cursor.emit("BROKEN", first, lexemes[end - 1])
        elif self._is_prose(lexemes[index:end]):
            self.cursor.problem(first, "this is no Python, and a prompt stands in quotes", 'write "..." around it')
            self.cursor.emit("BROKEN", first, lexemes[end - 1])
        elif end == index + 1 and first.text in ("break", "continue"):
            self.cursor.emit(first.text.upper(), first)
        elif first.kind == "name" and first.text == "return":
            self.cursor.emit("RETURN", first)
            if end > index + 1:
                self.cursor.emit("EXPRESSION", lexemes[index + 1], lexemes[end - 1])
        else:
            self.cursor.emit("CODE", first, lexemes[end - 1])
        return end

    def _misspelt_clause(self, lexemes: list[Lexeme], index: int, end: int) -> str | None:
        """`were len(X) < 3`: no Python begins with two operands."""
        first = lexemes[index]
        if first.kind != "name" or keyword.iskeyword(first.text) or not self._no_operator(lexemes, index + 1, end):
            return None
        close = difflib.get_close_matches(first.text.lower(), CLAUSES, 1, 0.7)
        return close[0] if close else None

    @staticmethod
    def _is_prose(lexemes: list[Lexeme]) -> bool:
        """`Say hello: [GREETING]`: two words that Python would not put beside one another."""
        words = [lexeme.text for lexeme in lexemes[:2] if lexeme.kind == "name"]
        if len(words) < 2 or words[0] == "print" or shapes.is_assignment(lexemes):
            return False
        return not any(keyword.iskeyword(word) or keyword.issoftkeyword(word) for word in words)

    @staticmethod
    def _no_operator(lexemes: list[Lexeme], after: int, end: int) -> bool:
        if after >= end:
            return False
        lexeme = lexemes[after]
        return lexeme.kind in ("number", "string") or (lexeme.kind == "name" and lexeme.text not in INFIX_WORDS)

    def _after_string(self, lexemes: list[Lexeme], after: int) -> tuple[Lexeme, str, str | None]:
        string, lexeme = lexemes[after - 1], lexemes[after]
        if string.end == lexeme.start and (string.text.count("{") > string.text.count("}") or "[" in string.text):
            other = "'" if string.text[-1] == '"' else '"'
            hint = f"inside a {string.text[-1]}...{string.text[-1]} string write {other}, or use triple quotes"
            return string, "a quote inside {...} or [...] ends this string", hint
        close = difflib.get_close_matches(lexeme.text.lower(), INLINE_CLAUSES, 1)
        hint = f"did you mean '{close[0]}'?" if close else "put other code on a line of its own"
        return lexeme, "only 'where' or 'distribution' can follow a prompt string", hint

    def _prompt(self, lexemes: list[Lexeme], index: int, line: Line, header: bool) -> int:
        after = shapes.strings_end(lexemes, index)
        for lexeme in lexemes[index:after]:
            self.cursor.emit({"(": "OPEN", ")": "CLOSE"}.get(lexeme.text, "STRING"), lexeme)
        index = after
        while True:
            below = self.cursor.below(line)
            if below and index == len(lexemes) and not header and shapes.begins_inline_clause(below.lexemes):
                # On a line of its own a clause belongs to the string above when it is deeper than that.
                self.cursor.at += 1
                lexemes.extend(below.lexemes)
            if index >= len(lexemes) or not shapes.clause_word(lexemes[index], INLINE_CLAUSES):
                return index
            index = self._clause(lexemes, index, line, INLINE_CLAUSES, newline=False)

    # Clauses -----------------------------------------------------------------------------------------------------

    def clauses(self, line: Line) -> None:
        """The clauses of the query that begin on this line."""
        lexemes = list(line.lexemes)
        self.cursor.at += 1
        index = 0
        while index < len(lexemes):
            if not shapes.clause_word(lexemes[index]):
                self.cursor.problem(
                    lexemes[index], "a clause of the query cannot be followed by this", "begin a new line"
                )
                return
            index = self._clause(lexemes, index, line, CLAUSES, newline=True)

    def misplaced_clause(self, line: Line) -> None:
        word = line.lexemes[0]
        self.cursor.problem(
            word,
            f"'{word.text}' stands inside the body of the query",
            "write it behind the string it belongs to, or outside the body for the whole query",
        )
        begin = len(self.cursor.terminals)
        self.clauses(line)
        del self.cursor.terminals[begin:]
        self.cursor.broken(word)

    def _clause(self, lexemes: list[Lexeme], index: int, line: Line, words: tuple[str, ...], *, newline: bool) -> int:
        """Lay out the clause at `index`; lines below that continue it are added to `lexemes`."""
        keyword = lexemes[index]
        kind = keyword.text.lower()
        name = None
        index += 1
        begin = len(self.cursor.terminals)
        self.cursor.emit(kind.upper(), keyword)
        sound, self.spoilt = True, False
        if kind == "distribution":
            self._extend(lexemes, index, index, line, kind)  # the name may stand in the next line
            if index < len(lexemes) and lexemes[index].kind == "name":
                name = lexemes[index]
                index += 1
            if name is not None and shapes.is_word(lexemes, index, "in"):
                self.cursor.emit("NAME", name)
                self.cursor.emit("_IN", lexemes[index])
                keyword = lexemes[index]
                index += 1
            else:
                sound = False
                self.cursor.problem(keyword, "this 'distribution' is incomplete", "write: distribution NAME in [...]")
        start, index = index, self._extend(lexemes, index, index, line, kind, words)
        expression = lexemes[start:index]
        sound = sound and not self.spoilt
        if sound and not expression:
            self.cursor.problem(keyword, f"nothing stands after '{keyword.text}'", None)
        elif sound and not ends_operand(expression[-1]):
            self.cursor.problem(expression[-1], f"nothing stands after '{expression[-1].text}'", None)
            sound = False
        if sound and expression:
            self.cursor.emit("EXPRESSION", expression[0], expression[-1])
        else:
            del self.cursor.terminals[begin:]
            if newline:
                self.cursor.emit("BROKEN_CLAUSE", keyword)
        if newline:
            self.cursor.mark("_NEWLINE")
        return index

    def _extend(
        self,
        lexemes: list[Lexeme],
        start: int,
        index: int,
        line: Line,
        kind: str,
        words: tuple[str, ...] = (),
    ) -> int:
        """Where the expression that begins at `start` ends, after adding the lines below that continue it."""
        while True:
            while index < len(lexemes):
                lexeme = lexemes[index]
                if lexeme.depth == 0:
                    complete = ends_operand(lexemes[index - 1]) if index > start else lexeme.text == "from"
                    if lexeme.text == ";" or (complete and shapes.clause_word(lexeme, words)):
                        return index
                index += 1
            following = self.cursor.line
            if following is None or not self._continues(lexemes[start:], following, line, kind):
                return index
            self.cursor.at += 1
            if index > start and self._is_apart(lexemes[index - 1], following):
                hint = "join the two with 'and', or begin the line where the clause begins"
                self.cursor.problem(following.lexemes[0], "nothing joins this line to the condition above it", hint)
                self.spoilt = True
            self.spoilt = self.spoilt or following.broken
            lexemes.extend(following.lexemes)
            if not words:
                return index

    @staticmethod
    def _is_apart(last: Lexeme, following: Line) -> bool:
        """Two operands without an operator between them; a string goes on with a string."""
        first = following.lexemes[0]
        is_operand = first.kind in ("number", "string") or (first.kind == "name" and first.text not in INFIX_WORDS)
        return ends_operand(last) and is_operand and not last.kind == first.kind == "string"

    def _continues(self, expression: list[Lexeme], following: Line, line: Line, kind: str) -> bool:
        """Does the expression of a clause go on in the next line?"""
        lexemes = following.lexemes
        if shapes.begins_clause(following.lexemes):
            return False
        if following.indent.columns > line.indent.columns:
            # below a condition that is complete, a statement is one that is indented for no reason
            is_apart = bool(expression) and self._is_apart(expression[-1], following)
            return not (is_apart and (shapes.is_prompt(lexemes) or shapes.is_statement(lexemes)))
        if following.indent.columns < line.indent.columns:
            return False
        if shapes.is_word(lexemes, 0, "and", "or", "in", "is"):
            return True
        if shapes.is_statement(lexemes) or (shapes.is_prompt(lexemes) and (kind != "from" or bool(expression))):
            return False
        return not expression or not ends_operand(expression[-1])
