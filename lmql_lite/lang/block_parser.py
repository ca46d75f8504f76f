"""Python's compound statements with prompts inside, and the lines below a line that cannot be read."""

from __future__ import annotations

import ast

from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.lang import soft_keywords as soft
from lmql_lite.lang.line_parser import LineParser
from lmql_lite.lang.names import every_statement
from lmql_lite.lang.scanner import Indent, Lexeme, LogicalLine

LONGEST_ELIF = 60
"""Each `elif` is one level deeper in the tree."""

ORPHANS = {
    "elif": "this 'elif' has no 'if' above it",
    "else": "this 'else' has no 'if', 'for', 'while' or 'try' above it",
    "except": "this 'except' has no 'try' above it",
    "finally": "this 'finally' has no 'try' above it",
    "case": "this 'case' has no 'match' above it",
}

Block = tuple[nodes.Statement, ...]


class BlockParser(LineParser):
    """Reader of lines that open blocks. The statements inside are read by the parser of the whole query."""

    def statements(self, level: Indent) -> list[nodes.Statement]:
        """Read lines up to the first one that is less indented than `level`."""
        raise NotImplementedError

    def statement(self, line: LogicalLine) -> list[nodes.Statement]:
        """The statements of a line, with the block below it."""
        raise NotImplementedError

    def unexpected_indent(self, line: LogicalLine) -> list[nodes.Statement]:
        above = self.lines[self.at - 1] if self.at else line
        if above.indent.columns > line.indent.columns:
            message, hint = "this indentation fits no line above", "align it with the block it belongs to"
        else:
            message = "this line is indented, but nothing above it opens a block"
            hint = "begin it where the line above begins"
        self.problem(line.lexemes[0], message, hint)
        return self.statements(line.indent)

    def broken_block(self, line: LogicalLine) -> list[nodes.Statement]:
        """Statements below a line that cannot be read."""
        self.at += 1
        statements = self.flat_block(line)
        while (after := self.line) and after.indent == line.indent:
            if not soft.is_word(after.lexemes, 0, *soft.CONTINUATIONS):
                break
            self.at += 1
            statements += self.flat_block(after)
        return statements

    def flat_block(self, line: LogicalLine) -> list[nodes.Statement]:
        """Read the block below a line that could not be read, as if it were not indented."""
        statements: list[nodes.Statement] = []
        while below := self.below(line):
            statements += self.statements(below.indent)
        return statements

    # Compound statements ---------------------------------------------------------------------------------------------

    def definition(self, line: LogicalLine) -> list[nodes.Statement]:
        end = self.at
        while end + 1 < len(self.lines) and soft.is_op(self.lines[end].lexemes, 0, "@"):
            if self.lines[end + 1].indent != line.indent:
                break
            end += 1
        end = self._extent(end)
        code = None
        if not any(inner.broken for inner in self.lines[self.at : end]):
            code = self.python.block(line.begin, line.start, self.lines[end - 1].end)
        self.at = end
        return self._kept(code) if code else []

    def _extent(self, first: int, continuations: frozenset[str] = frozenset()) -> int:
        """Index after the block that begins at line `first`."""
        level = self.lines[first].indent.columns
        end = first + 1
        while end < len(self.lines):
            line = self.lines[end]
            continued = line.indent.columns == level and soft.is_word(line.lexemes, 0, *continuations)
            if line.indent.columns <= level and not continued:
                break
            end += 1
        return end

    def _kept(self, code: nodes.Code) -> list[nodes.Statement]:
        self.end = code.span.end
        return [self.python.keep(code)]

    def compound(self, line: LogicalLine, word: str) -> list[nodes.Statement]:
        """Python as a whole where no prompt is inside; else head and suite, so that prompts inside are found."""
        if word in ORPHANS:
            _, at = self._head(line, word)
            self._loop(line, word, at)
            self.problem(line.lexemes[0], ORPHANS[word], "check its indentation")
            return []
        end = self._extent(self.at, soft.CONTINUATIONS)
        lines = self.lines[self.at : end]
        extent = (line.begin, line.start, lines[-1].end)
        is_python = not any(each.broken for each in lines) and not _has_prompt(lines)
        code = self.python.block(*extent, quiet=True) if is_python else None
        if code and not speaks(code.tree):
            self.at = end
            return self._kept(code)
        known = len(self.problems)
        parse = {"if": self._if, "while": self._while, "for": self._for, "with": self._with, "try": self._try}
        statement = parse.get(word, self._match)(line)
        built: list[nodes.Statement] = [statement] if statement else []
        if is_python and code is None and len(self.problems) == known and not _prompts(built):
            # Each part is sound alone; only Python itself can name the mistake in the whole.
            self.python.block(*extent)
        return built

    def _head(self, line: LogicalLine, word: str) -> tuple[list[Lexeme], int | None]:
        """The lexemes before the colon of a line that opens a block, and the index of the colon; None where it is
        missing."""
        lexemes = line.lexemes
        at = soft.colon(lexemes)
        if at is not None:
            return lexemes[:at], at
        braces = [each for each in lexemes if each.text == "{" and not each.depth]
        if braces and lexemes[-1].text == "}":
            hint = "write ':' instead of '{', and remove the '}'"
            self.problem(braces[0], f"the block of this '{word}' stands in braces", hint)
        else:
            self.problem(lexemes[-1], f"the ':' after this '{word}' is missing", "end the line with ':'")
        return lexemes, None

    def _suite(self, line: LogicalLine, word: str, at: int | None) -> Block:
        """Statements of a head whose colon is at `at`: the rest of its line, or the block below."""
        if at is not None and at + 1 < len(line.lexemes):
            return tuple(self.simple(line, at + 1))
        self.at += 1
        if below := self.below(line):
            return tuple(self.statements(below.indent))
        if at is not None:
            hint = "indent the lines that belong to it"
            self.problem(line.lexemes[at], f"nothing stands inside this '{word}'", hint)
        return ()

    def _continues(self, line: LogicalLine, word: str) -> LogicalLine | None:
        """The next line, if it continues the statement that began at `line` with this word."""
        after = self.line
        if after is None or after.broken or after.indent.columns != line.indent.columns:
            return None
        return after if soft.compound_word(after.lexemes) == word else None

    def _plain(self, line: LogicalLine, word: str) -> Block:
        """The suite of `else`, `try` or `finally`."""
        lexemes, at = self._head(line, word)
        if len(lexemes) > 1:
            hint = "write elif for another condition" if word == "else" else None
            self.problem(lexemes[1], f"nothing can stand between '{word}' and ':'", hint)
        return self._suite(line, word, at)

    def _else(self, line: LogicalLine) -> Block:
        after = self._continues(line, "else")
        return self._plain(after, "else") if after else ()

    def _test(self, lexemes: list[Lexeme], empty: str) -> nodes.Expression | None:
        """The expression after the first lexeme, which is a keyword."""
        if len(lexemes) > 1:
            return self.expression(lexemes[1:])
        self.problem(lexemes[0], empty)
        return None

    def _if(self, line: LogicalLine) -> nodes.IfNode | None:
        tests: list[tuple[int, nodes.Expression | None, Block]] = []
        each: LogicalLine | None = line
        word = "if"
        while each:
            lexemes, at = self._head(each, word)
            test = self._test(lexemes, f"no condition follows this '{word}'")
            tests.append((each.start, test, self._suite(each, word, at)))
            word = "elif"
            each = self._continues(line, word)
        orelse = self._else(line)
        if len(tests) > LONGEST_ELIF:
            place = self.span_from(tests[0][0])
            self.problems.add("this 'if' has too many branches", place, "put the choices into a dict")
            return None
        built: nodes.IfNode | None = None
        for start, condition, body in reversed(tests):
            if condition is None:
                return None
            built = nodes.IfNode(self.span_from(start), condition, body, (built,) if built else orelse)
        return built

    def _while(self, line: LogicalLine) -> nodes.WhileNode | None:
        lexemes, at = self._head(line, "while")
        test = self._test(lexemes, "no condition follows this 'while'")
        body = self._loop(line, "while", at)
        orelse = self._else(line)
        return nodes.WhileNode(self.span_from(line.start), test, body, orelse) if test else None

    def _for(self, line: LogicalLine) -> nodes.ForNode | None:
        head, at = self._head(line, "for")
        is_async = head[0].text == "async"
        head = head[is_async:]
        inside = next((i for i, each in enumerate(head) if each.text == "in" and each.depth == 0), None)
        target, values = None, None
        if inside is None or inside == 1:
            self.problem(head[0], "this 'for' has no 'in'", "write: for NAME in VALUES:")
        else:
            target = self.python.target(head[1].start, head[inside - 1].end)
            values = self._test(head[inside:], "nothing follows this 'in'")
        body = self._loop(line, "for", at)
        orelse = self._else(line)
        if target is None or values is None:
            return None
        return nodes.ForNode(self.span_from(line.start), target, values, body, orelse, is_async)

    def _loop(self, line: LogicalLine, word: str, at: int | None) -> Block:
        self.loops += 1
        body = self._suite(line, word, at)
        self.loops -= 1
        return body

    def _with(self, line: LogicalLine) -> nodes.WithNode | None:
        head, at = self._head(line, "with")
        statement = self.python.head(self._extent_of(head), "", ": pass")
        body = self._suite(line, "with", at)
        if not isinstance(statement, ast.With | ast.AsyncWith):
            return None
        items = []
        for item in statement.items:
            manager, target = self._placed(item.context_expr), item.optional_vars
            span = manager.span.to(self.python.span(target)) if target else manager.span
            items.append(nodes.ItemNode(span, manager, target))
        is_async = isinstance(statement, ast.AsyncWith)
        return nodes.WithNode(self.span_from(line.start), tuple(items), body, is_async)

    def _try(self, line: LogicalLine) -> nodes.TryNode | None:
        body = self._plain(line, "try")
        handlers: list[nodes.HandlerNode] = []
        of_groups: list[bool] = []
        sound, several = True, False
        while each := self._continues(line, "except"):
            several = True
            head, at = self._head(each, "except")
            statement = self.python.head(self._extent_of(head), "try: pass\n", ": pass")
            below = self._suite(each, "except", at)
            if not isinstance(statement, ast.Try | ast.TryStar):
                sound = False
                continue
            (read,) = statement.handlers
            type = self._placed(read.type) if read.type else None
            handlers.append(nodes.HandlerNode(self.span_from(each.start), type, read.name, below))
            of_groups.append(isinstance(statement, ast.TryStar))
        orelse = self._else(line) if several else ()
        after = self._continues(line, "finally")
        final = self._plain(after, "finally") if after else ()
        if not several and not after:
            self.problem(line.lexemes[0], "this 'try' has neither 'except' nor 'finally'")
        for handler in handlers[:-1]:
            if handler.type is None:
                self.problems.add("an 'except' without a type is the last one", self._word(handler.span, "except"))
        if len(set(of_groups)) > 1:
            place = self._word(handlers[of_groups.index(not of_groups[0])].span, "except")
            self.problems.add("'except' and 'except*' cannot be used in one 'try'", place)
        if not sound:
            return None
        return nodes.TryNode(self.span_from(line.start), body, tuple(handlers), orelse, final, any(of_groups))

    def _match(self, line: LogicalLine) -> nodes.MatchNode | None:
        head, at = self._head(line, "match")
        statement = self.python.head(self._extent_of(head), "", ":\n case _: pass")
        self.at += 1
        cases: list[nodes.CaseNode | None] = []
        block = self.below(line)
        if block is None:
            hint = "indent the lines that belong to it"
            self.problem(line.lexemes[at or 0], "nothing stands inside this 'match'", hint)
        while block and (each := self.below(line)):
            if each.indent.columns != block.indent.columns:
                self.unexpected_indent(each)
            elif not each.broken and soft.compound_word(each.lexemes) == "case":
                cases.append(self._case(each))
            else:
                self.statement(each)
                if not each.broken:
                    self.problem(each.lexemes[0], "only 'case' can stand directly inside 'match'")
        read = tuple(case for case in cases if case)
        for case in read[:-1]:
            if case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                message = "this 'case' matches everything, so that no case after it is reached"
                self.problems.add(message, self._word(case.span, "case"), "put it last")
        if not isinstance(statement, ast.Match) or len(read) < len(cases):
            return None
        return nodes.MatchNode(self.span_from(line.start), self._placed(statement.subject), read)

    def _case(self, line: LogicalLine) -> nodes.CaseNode | None:
        head, at = self._head(line, "case")
        statement = None
        if at == 1:
            self.problem(head[0], "this 'case' has no pattern", "write case VALUE: or, for all else, case _:")
        else:
            statement = self.python.head(self._extent_of(head), "match x:\n ", ": pass")
        body = self._suite(line, "case", at)
        if not isinstance(statement, ast.Match):
            return None
        (read,) = statement.cases
        guard = self._placed(read.guard) if read.guard else None
        return nodes.CaseNode(self.span_from(line.start), read.pattern, guard, body)

    def _extent_of(self, lexemes: list[Lexeme]) -> Span:
        return self.source.span(lexemes[0].start, lexemes[-1].end)

    def _placed(self, node: ast.expr) -> nodes.Expression:
        return nodes.Expression(self.python.span(node), ast.Expression(node))

    def _word(self, span: Span, word: str) -> Span:
        """The word with which this begins."""
        return self.source.span(span.start, span.start + len(word))


def _has_prompt(lines: list[LogicalLine]) -> bool:
    """True if there is certainly a prompt in these lines. A string in a function may be its docstring."""
    if any(soft.is_definition(line.lexemes) for line in lines):
        return False
    return any(line.lexemes[0].kind == "string" and soft.is_prompt(line.lexemes) for line in lines)


def _prompts(statements: list[nodes.Statement]) -> bool:
    return any(isinstance(each, nodes.PromptNode) for each in every_statement(statements))


def speaks(tree: ast.Module) -> bool:
    """True if a statement prompts, returns from the query, or leaves a loop that stands around it."""
    stack: list[tuple[ast.AST, bool]] = [(statement, False) for statement in tree.body]
    while stack:
        node, looped = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, (ast.Break, ast.Continue)) and not looped:
            return True
        if isinstance(node, ast.Expr):
            value = node.value
            while isinstance(value, ast.Call):  # `"a" ("b")` are two strings
                value = value.func
            if isinstance(value, ast.JoinedStr) or (
                isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes))
            ):
                return True
            continue
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            stack.extend((child, True) for child in node.body)
            stack.extend((child, looped) for child in node.orelse)
        elif isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            children = ast.iter_child_nodes(node)
            stack.extend((child, looped) for child in children if not isinstance(child, (ast.expr, ast.pattern)))
    return False
