"""The tree of a query to its program: statements become ops, control flow becomes jumps."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from types import CodeType

from lmql_lite.errors import ConstraintError, InputError, QueryError, Span, did_you_mean
from lmql_lite.lang import nodes
from lmql_lite.lang.scope import Scope, check
from lmql_lite.program.annotations import NotKnown, written
from lmql_lite.program.clauses import asked
from lmql_lite.program.conditions import All
from lmql_lite.program.lower import conjuncts, mentioned
from lmql_lite.program.ops import (
    ITEM,
    Distribution,
    Enter,
    Hole,
    HoleType,
    Input,
    Interpolated,
    Jump,
    JumpIf,
    Let,
    Next,
    Op,
    Option,
    Program,
    Return,
    Text,
    Turn,
)
from lmql_lite.program.options import texts_of
from lmql_lite.program.python import compile_expression, compile_statements
from lmql_lite.program.segments import segmented
from lmql_lite.program.types import NAMES, typed

DECODERS = ("argmax", "sample")
OPTIONS = (
    "n",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "cache",
    "cache_mode",
    "speculate",
    "max_requests",
    "max_total_tokens",
    "max_cost",
    "prices",
    "max_tokens",
    "max_backtracks",
)


def compile(tree: nodes.Query) -> Program:
    """Raises QueryError, with every problem found, for a query that cannot run."""
    scope = check(tree)
    return Compiler(tree, scope).program(tuple(Input(free.name, free.span) for free in scope.inputs))


@dataclass(slots=True)
class Loop:
    """Where `continue` and `break` of the innermost loop go; breaks are patched when its end is known."""

    head: int
    breaks: list[int] = field(default_factory=list)


class Compiler:
    def __init__(self, tree: nodes.Query, scope: Scope) -> None:
        self._tree = tree
        self._holes = scope.holes
        self._bound = scope.locals.union(scope.holes)
        self._own = self._bound.union(free.name for free in scope.inputs)
        self._ops: list[Op] = []
        self._loops: list[Loop] = []
        self._slots = 0
        self._problems: list[QueryError] = []
        self._clauses = conjuncts(tree.where) if tree.where else []

    def program(self, inputs: tuple[Input, ...]) -> Program:
        tree = self._tree
        decoder = tree.decoder
        if decoder is not None:
            self._check_header(decoder)
        if tree.distribution is not None:
            self._check_options(tree.distribution)
        prologue = tuple(self._let(code) for code in tree.prologue)
        self._block(tree.body)
        self._ops.append(Return(Span(tree.span.name, tree.span.text, tree.span.end, tree.span.end), None))
        if self._problems:
            raise QueryError.of(self._problems)
        return Program(
            span=tree.span,
            ops=segmented([self._with_following(at, op) for at, op in enumerate(self._ops)], prologue),
            prologue=prologue,
            decoder=decoder.name if decoder else None,
            options=tuple(self._option(argument) for argument in decoder.arguments) if decoder else (),
            model=Option(tree.model.span, "model", self._expression(tree.model)) if tree.model else None,
            holes=self._holes,
            inputs=inputs,
        )

    # Statements --------------------------------------------------------------------------------------------------

    def _block(self, statements: tuple[nodes.Statement, ...]) -> None:
        for statement in statements:
            try:
                self._statement(statement)
            except QueryError as problem:
                self._problems.append(problem)

    def _statement(self, statement: nodes.Statement) -> None:
        match statement:
            case nodes.Prompt():
                self._prompt(statement)
            case nodes.Code():
                self._ops.append(self._let(statement))
            case nodes.If():
                self._if(statement)
            case nodes.While():
                self._while(statement)
            case nodes.For():
                self._for(statement)
            case nodes.Break(span):
                self._loops[-1].breaks.append(self._jump(span))
            case nodes.Continue(span):
                self._ops.append(Jump(span, self._loops[-1].head))
            case nodes.Return(span, value):
                self._ops.append(Return(span, self._expression(value) if value else None))
            case nodes.Block(span, keyword):
                what = f"a prompt, `return` or a loop's `break` inside `{keyword}`"
                self._not_yet(span, what, hint=f"move it out of the `{keyword}` block")

    def _let(self, code: nodes.Code) -> Let:
        return Let(code.span, compile_statements(code.tree, code.span))

    def _expression(self, expression: nodes.Expression) -> CodeType:
        return compile_expression(expression.tree.body, expression.span)

    def _option(self, argument: nodes.Argument) -> Option:
        return Option(argument.span, argument.name, self._expression(argument.value))

    def _if(self, branch: nodes.If) -> None:
        over_body = self._jump_if(branch.test, when=False)
        self._block(branch.body)
        if not branch.orelse:
            self._land(over_body)
            return
        over_else = self._jump(branch.span)
        self._land(over_body)
        self._block(branch.orelse)
        self._land(over_else)

    def _while(self, loop: nodes.While) -> None:
        head = len(self._ops)
        out = self._jump_if(loop.test, when=False)
        self._loop(loop, head, out)

    def _for(self, loop: nodes.For) -> None:
        if loop.is_async:
            self._not_yet(loop.span, "a prompt inside `async for`", hint="collect the items first, then loop over them")
            return
        self._slots += 1
        slot = f"#{self._slots}"
        self._ops.append(Enter(loop.span, slot, self._expression(loop.iterable)))
        item = ast.copy_location(ast.Name(ITEM, ast.Load()), loop.target)
        assign = ast.copy_location(ast.Assign([loop.target], item), loop.target)
        head = len(self._ops)
        self._ops.append(Next(loop.span, slot, compile_statements(ast.Module([assign], []), loop.span), -1))
        self._loop(loop, head, head)

    def _loop(self, loop: nodes.For | nodes.While, head: int, out: int) -> None:
        """Body and `else` of a loop whose test, at `out`, leaves it; only `break` skips the `else`."""
        self._loops.append(Loop(head))
        self._block(loop.body)
        self._ops.append(Jump(loop.span, head))
        breaks = self._loops.pop().breaks
        self._land(out)
        self._block(loop.orelse)
        for jump in breaks:
            self._land(jump)

    def _jump(self, span: Span) -> int:
        self._ops.append(Jump(span, -1))
        return len(self._ops) - 1

    def _jump_if(self, test: nodes.Expression, *, when: bool) -> int:
        self._ops.append(JumpIf(test.span, self._expression(test), when, -1))
        return len(self._ops) - 1

    def _land(self, jump: int) -> None:
        """Lets the jump at that op come here."""
        op = self._ops[jump]
        assert isinstance(op, Jump | JumpIf | Next)
        self._ops[jump] = replace(op, target=len(self._ops))

    # Prompts -----------------------------------------------------------------------------------------------------

    def _prompt(self, prompt: nodes.Prompt) -> None:
        if prompt.distribution is not None:
            self._check_options(prompt.distribution)
        holes = [part.name for part in prompt.parts if isinstance(part, nodes.Hole)]
        inline = conjuncts(prompt.where) if prompt.where else []
        text: list[str | Interpolated] = []
        for place, part in enumerate(prompt.parts):
            match part:
                case nodes.Literal(_, literal):
                    text.append(literal)
                case nodes.Interpolation(span, value, conversion, format):
                    text.append(Interpolated(span, self._expression(value), conversion, format))
                case nodes.Tag(span, role):
                    self._flush(prompt.span, text)
                    self._ops.append(Turn(span, role))
                case nodes.Hole():
                    self._flush(prompt.span, text)
                    self._refuse_extras(part)
                    here = holes[: 1 + sum(isinstance(before, nodes.Hole) for before in prompt.parts[:place])]
                    op = self._hole(part, inline, here, holes)
                    self._ops.append(replace(op, distribution=self._distribution(part, prompt.distribution)))
        self._flush(prompt.span, text)

    def _flush(self, span: Span, text: list[str | Interpolated]) -> None:
        if text:
            self._ops.append(Text(span, tuple(text)))
            text.clear()

    def _hole(self, hole: nodes.Hole, inline: list[nodes.Expression], so_far: list[str], in_prompt: list[str]) -> Hole:
        """A hole and what the clauses say about it. One over several holes is enforced at the last of them (S20)."""
        clauses = [clause for clause in inline if _last(clause, in_prompt) == hole.name and hole.name == so_far[-1]]
        clauses += [clause for clause in self._clauses if _last(clause, self._holes) == hole.name]
        op = Hole(hole.span, hole.name, All(hole.span, ()))
        if hole.annotation is None:
            return asked(op, clauses)
        op = replace(op, type=self._type(hole.name, hole.annotation, tuple(clauses)))
        return asked(op, clauses) if op.type and op.type.spec else op

    def _distribution(self, hole: nodes.Hole, inline: nodes.Distribution | None) -> Distribution | None:
        """The options of a hole: those of its string, or of the clause at the end of the query."""
        own = [each for each in (inline, self._tree.distribution) if each is not None and each.name == hole.name]
        if len(own) > 1:
            problem = f"[{hole.name}] has two distributions: this one, and the one at the end of the query"
            self._problems.append(QueryError(problem, span=own[0].span, hint="keep one of them"))
        return Distribution(own[0].options.span, self._expression(own[0].options)) if own else None

    def _type(self, name: str, annotation: nodes.Expression, clauses: tuple[nodes.Expression, ...]) -> HoleType:
        """What the type is, where that is written out; else the run finds out, and reads the clauses then."""
        try:
            spec = typed(written(annotation.tree.body, self._own), name, annotation.span)
        except NotKnown:
            spec = None
        except ConstraintError as error:
            raise QueryError(error.message, span=error.span, hint=error.hint) from None
        offered = tuple(each for each in mentioned(annotation, NAMES) if each not in self._bound)
        return HoleType(annotation.span, self._expression(annotation), offered, clauses, spec)

    def _with_following(self, at: int, op: Op) -> Op:
        return replace(op, following=self._following(at + 1)) if isinstance(op, Hole) else op

    def _following(self, at: int) -> bytes:
        """The literal text that comes from op `at` on, whatever happens at run time."""
        said: list[str] = []
        seen: set[int] = set()
        while at not in seen:
            seen.add(at)
            op = self._ops[at]
            if isinstance(op, Jump):
                at = op.target
                continue
            if not isinstance(op, Text):
                break
            for part in op.parts:
                if not isinstance(part, str):
                    return "".join(said).encode("utf-8", "replace")
                said.append(part)
            at += 1
        return "".join(said).encode("utf-8", "replace")

    # Refusals ----------------------------------------------------------------------------------------------------

    def _check_header(self, decoder: nodes.Decoder) -> None:
        if decoder.name not in DECODERS:
            self._not_yet(decoder.span, f"the decoder {decoder.name}", hint="argmax and sample are")
        seen: set[str] = set()
        for argument in decoder.arguments:
            if argument.name not in OPTIONS:
                guess = did_you_mean(argument.name, OPTIONS)
                self._problems.append(
                    QueryError(
                        f"{decoder.name} has no option called {argument.name!r}",
                        span=argument.span,
                        hint=guess or f"the options are {', '.join(OPTIONS)}",
                    )
                )
            if argument.name in seen:
                self._problems.append(QueryError(f"{argument.name} is given twice", span=argument.span))
            seen.add(argument.name)

    def _check_options(self, distribution: nodes.Distribution) -> None:
        """Options that are written out are looked at before anything runs."""
        try:
            texts_of(ast.literal_eval(distribution.options.tree.body))
        except InputError as error:
            self._problems.append(QueryError(error.message, span=distribution.options.span, hint=error.hint))
        except (ValueError, TypeError):
            pass  # some Python: the run finds out

    def _refuse_extras(self, hole: nodes.Hole) -> None:
        for decorator in hole.decorators:
            self._not_yet(decorator.span, f"the decorator of [{hole.name}]")
        if hole.call is not None:
            self._not_yet(hole.call.span, f"the call in [{hole.name}]", hint="put the decoder at the head of the query")

    def _not_yet(self, span: Span, what: str, hint: str | None = None) -> None:
        self._problems.append(QueryError(f"{what} is not available in this version", span=span, hint=hint))


def _last(clause: nodes.Expression, holes: tuple[str, ...] | list[str]) -> str | None:
    """The hole of `holes`, in their order, at which all that the clause mentions is known."""
    names = mentioned(clause, holes)
    return next((name for name in reversed(holes) if name in names), None)
