"""The two grammars in grammar/, loaded when something is first parsed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from lmql_lite.assets import asset

if TYPE_CHECKING:
    from lark import Lark, Token, Tree


class Terminal(NamedTuple):
    """A terminal of one of the grammars, and the stretch of the source that it stands for."""

    type: str
    start: int
    end: int


@cache
def grammar(name: str, *, strict: bool = False) -> Lark:
    """`lq` or `prompt`; the start rule of prompt.lark is `prompt`, of lq.lark `query`. Built once, in about 50 ms.

    `strict` refuses a grammar with conflicts, which Lark would otherwise settle silently.
    """
    from lark import Lark
    from lark.lexer import Lexer

    class Terminals(Lexer):
        """The text was cut into terminals before Lark sees it: `data` is these, not a text."""

        def __init__(self, lexer_conf: object) -> None:
            pass

        def lex(self, data: Any) -> Iterator[Token]:  # type: ignore[override]
            return iter(data)

    return Lark(
        asset("grammar", f"{name}.lark").read_text("utf-8"),
        parser="lalr",
        lexer=Terminals,
        start={"lq": "query"}.get(name, name),
        maybe_placeholders=True,
        strict=strict,
    )


def read(name: str, terminals: Sequence[Terminal], text: str) -> Tree[Token]:
    """Raises Lark's UnexpectedToken; its `token.line` is the index of the terminal that does not fit."""
    from lark import Token

    tokens: Any = [
        Token(type, text[start:end], start, index, None, None, None, end)
        for index, (type, start, end) in enumerate(terminals)
    ]
    return grammar(name).parse(tokens)


def extent(child: Tree[Token] | Token | None) -> tuple[int, int]:
    """From the first to the last terminal that the grammar keeps. Much cheaper than Lark's `propagate_positions`."""
    return _edge(child, 0)[0], _edge(child, -1)[1]


def _edge(child: Tree[Token] | Token | None, side: int) -> tuple[int, int]:
    while child is not None and not isinstance(child, str):
        children = child.children
        index = side
        while children[index] is None:  # an optional part that is not there
            index += 1 if side == 0 else -1
        child = children[index]
    assert child is not None and child.start_pos is not None and child.end_pos is not None
    return child.start_pos, child.end_pos
