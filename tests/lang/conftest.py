"""Queries that are right, with their trees, for every test of the language."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest

from lmql_lite.lang import nodes


@dataclass(frozen=True)
class Good:
    """A query and the outline of its tree."""

    name: str
    text: str
    outline: str


def outline(query: nodes.Query) -> str:
    """The tree in short lines: strings with their text decoded, Python as `ast.unparse` writes it."""
    lines = [f"prologue {_code(code.tree)}" for code in query.prologue]
    if query.decoder:
        arguments = ", ".join(f"{each.name}={_code(each.value.tree)}" for each in query.decoder.arguments)
        lines.append(f"{query.decoder.name}({arguments})")
    lines.extend(line for statement in query.body for line in _statement(statement, ""))
    lines.extend(
        f"{word} {_code(clause.tree)}" for word, clause in (("from", query.model), ("where", query.where)) if clause
    )
    if query.distribution:
        lines.append(f"distribution {query.distribution.name} in {_code(query.distribution.options.tree)}")
    return "\n".join(lines) + "\n"


def _code(tree: ast.AST) -> str:
    return ast.unparse(tree).replace("\n", " | ")


def _statement(statement: nodes.Statement, pad: str) -> list[str]:
    match statement:
        case nodes.Prompt():
            clauses = f" where {_code(statement.where.tree)}" if statement.where else ""
            if statement.distribution:
                clauses += (
                    f" distribution {statement.distribution.name} in {_code(statement.distribution.options.tree)}"
                )
            return [pad + " ".join(_part(part) for part in statement.parts) + clauses]
        case nodes.Code():
            return [f"{pad}code {_code(statement.tree)}"]
        case nodes.If():
            return [f"{pad}if {_code(statement.test.tree)}", *_suites(statement.body, statement.orelse, pad)]
        case nodes.While():
            return [f"{pad}while {_code(statement.test.tree)}", *_suites(statement.body, statement.orelse, pad)]
        case nodes.For():
            word = "async for" if statement.is_async else "for"
            head = f"{pad}{word} {_code(statement.target)} in {_code(statement.iterable.tree)}"
            return [head, *_suites(statement.body, statement.orelse, pad)]
        case nodes.Block():
            return [f"{pad}block {statement.keyword}: {statement.head}", *_suites(statement.body, (), pad)]
        case nodes.Return():
            return [f"{pad}return {_code(statement.value.tree)}" if statement.value else f"{pad}return"]
    return [pad + type(statement).__name__.lower()]


def _suites(body: tuple[nodes.Statement, ...], orelse: tuple[nodes.Statement, ...], pad: str) -> list[str]:
    lines = [line for statement in body for line in _statement(statement, pad + "  ")]
    if orelse:
        lines.append(f"{pad}else")
        lines.extend(line for statement in orelse for line in _statement(statement, pad + "  "))
    return lines


def _part(part: nodes.Part) -> str:
    match part:
        case nodes.Literal():
            return repr(part.text)
        case nodes.Tag():
            return f"<{part.role}>"
        case nodes.Interpolation():
            conversion = f"!{part.conversion}" if part.conversion else ""
            return "{" + _code(part.value.tree) + conversion + (f":{part.format}" if part.format else "") + "}"
        case nodes.Hole():
            decorators = "".join(f"@{_code(each.tree)} " for each in part.decorators)
            call = f"{_code(part.call.tree)} -> " if part.call else ""
            annotation = f": {_code(part.annotation.tree)}" if part.annotation else ""
            return f"[{decorators}{call}{part.name}{annotation}]"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `good` runs once for every query."""
    if "good" in metafunc.fixturenames:
        metafunc.parametrize("good", GOOD, ids=lambda good: good.name)


@pytest.fixture(name="outline")
def outline_fixture():
    return outline


@pytest.fixture(scope="session")
def good_texts() -> list[str]:
    return [good.text for good in GOOD]


GOOD = [
    Good(
        "joke",
        r'''
argmax(cache="joke.tokens")
    """A good dad joke. A indicates the punchline
    Q:[JOKE]
    A:[PUNCHLINE]"""
where
    len(JOKE) < 120 and STOPS_AT(JOKE, "?") and
    STOPS_AT(PUNCHLINE, "\n") and len(PUNCHLINE) > 1
'''[1:],
        r"""
argmax(cache='joke.tokens')
'A good dad joke. A indicates the punchline\nQ:' [JOKE] '\nA:' [PUNCHLINE]
where len(JOKE) < 120 and STOPS_AT(JOKE, '?') and STOPS_AT(PUNCHLINE, '\n') and (len(PUNCHLINE) > 1)
"""[1:],
    ),
    Good(
        "sea",
        r"""
argmax
"A list of things not to forget when going to the sea (not travelling): \n"
"- Sunglasses \n"
"-[THING]"
"-[THING]"
from
'openai/text-ada-001'
where
STOPS_AT(THING, "\n")
"""[1:],
        r"""
argmax()
'A list of things not to forget when going to the sea (not travelling): \n'
'- Sunglasses \n'
'-' [THING]
'-' [THING]
from 'openai/text-ada-001'
where STOPS_AT(THING, '\n')
"""[1:],
    ),
    Good(
        "packing",
        r"""
"Things to pack for {place}:\n-[THING]" where STOPS_AT(THING, "\n")
items = [THING.strip()]
for i in range(3):
    "-[THING]" where STOPS_AT(THING, "\n") and not THING in items
    items.append(THING.strip())
return items
"""[1:],
        r"""
'Things to pack for ' {place} ':\n-' [THING] where STOPS_AT(THING, '\n')
code items = [THING.strip()]
for i in range(3)
  '-' [THING] where STOPS_AT(THING, '\n') and (not THING in items)
  code items.append(THING.strip())
return items
"""[1:],
    ),
    Good(
        "choices_at_column_zero",
        r"""
argmax
"If we have the choice we choose[OPTION]"
from
"openai/text-ada-001"
where
OPTION in ["Option A with a whole lot of extra context",
"Option B with context",
"Another Option, also with a lot of additional text"
]
"""[1:],
        r"""
argmax()
'If we have the choice we choose' [OPTION]
from 'openai/text-ada-001'
where OPTION in ['Option A with a whole lot of extra context', 'Option B with context', 'Another Option, also with a lot of additional text']
"""[1:],
    ),
    Good(
        "clause_lines_joined_by_and",
        r'''
argmax(cache="joke.tokens")
"""Q:[JOKE]
A:[PUNCHLINE]"""
from
"openai/text-davinci-003"
where
len(JOKE) < 120 and
STOPS_AT(JOKE, "?") and
STOPS_AT(PUNCHLINE, "\n")
and len(PUNCHLINE) > 1
'''[1:],
        r"""
argmax(cache='joke.tokens')
'Q:' [JOKE] '\nA:' [PUNCHLINE]
from 'openai/text-davinci-003'
where len(JOKE) < 120 and STOPS_AT(JOKE, '?') and STOPS_AT(PUNCHLINE, '\n') and (len(PUNCHLINE) > 1)
"""[1:],
    ),
    Good(
        "header_in_capitals_with_string",
        r"""
ARGMAX "What is the capital of {country}?\n"
       "[CAPITAL]"
FROM "demo"
WHERE len(CAPITAL) < 20
"""[1:],
        r"""
argmax()
'What is the capital of ' {country} '?\n'
[CAPITAL]
from 'demo'
where len(CAPITAL) < 20
"""[1:],
    ),
    Good(
        "header_string_then_lines_at_column_zero",
        r"""
beam(n=2) "one [A]"
"two [B]"
from "demo"
"""[1:],
        r"""
beam(n=2)
'one ' [A]
'two ' [B]
from 'demo'
"""[1:],
    ),
    Good(
        "prologue",
        r'''
"""What this query is for: [nothing] {in here} is filled in."""
import re
from collections import Counter

@decorated(1)
def clean(text):
    "doc [not a hole]"
    return text.strip()

class Box:
    """[no hole]"""
    size = 3

sample(n=2, temperature=0.8)
    "[X]"
'''[1:],
        r'''
prologue """What this query is for: [nothing] {in here} is filled in."""
prologue import re
prologue from collections import Counter
prologue @decorated(1) | def clean(text): |     """doc [not a hole]""" |     return text.strip()
prologue class Box: |     """[no hole]""" |     size = 3
sample(n=2, temperature=0.8)
[X]
'''[1:],
    ),
    Good(
        "all_on_one_line",
        r"""
sample(temperature=0.5) "[X]"
from "demo" where len(X) < 5 distribution X in ["a", "b"]
"""[1:],
        r"""
sample(temperature=0.5)
[X]
from 'demo'
where len(X) < 5
distribution X in ['a', 'b']
"""[1:],
    ),
    Good(
        "clauses_in_another_order",
        r"""
argmax
    "[X]"
distribution X in [
    "a",
    "b",
]
where
    len(X) < 9
from
    "demo"
"""[1:],
        r"""
argmax()
[X]
from 'demo'
where len(X) < 9
distribution X in ['a', 'b']
"""[1:],
    ),
    Good(
        "clauses_indented",
        r"""
argmax
      "[X]"
   from "demo"
   where len(X) < 9
"""[1:],
        r"""
argmax()
[X]
from 'demo'
where len(X) < 9
"""[1:],
    ),
    Good(
        "body_form_with_clauses",
        r"""
"[X]"
"[Y]"
where len(X) < 3 and len(Y) < 4
"""[1:],
        r"""
[X]
[Y]
where len(X) < 3 and len(Y) < 4
"""[1:],
    ),
    Good(
        "inline_where_below",
        r"""
"..[X]" where
    len(X) < 5 and
    STOPS_AT(X, "\n")
"next [Y]"
    where len(Y) < 5
    distribution Y in ["a"]
x = 1
"""[1:],
        r"""
'..' [X] where len(X) < 5 and STOPS_AT(X, '\n')
'next ' [Y] where len(Y) < 5 distribution Y in ['a']
code x = 1
"""[1:],
    ),
    Good(
        "inline_where_before_semicolon",
        r"""
"[X]" where len(X) < 3; y = 4; "[Z]"
"""[1:],
        r"""
[X] where len(X) < 3
code y = 4
[Z]
"""[1:],
    ),
    Good(
        "where_over_brackets",
        r"""
"[X]" where X in [
"a",  # not the end
"b"
]
"[Y]" where (len(Y) < 4
  or Y == "long")
"""[1:],
        r"""
[X] where X in ['a', 'b']
[Y] where len(Y) < 4 or Y == 'long'
"""[1:],
    ),
    Good(
        "where_with_backslash",
        r"""
"[X]" where len(X) < 5 and \
   STOPS_AT(X, ";")
"""[1:],
        r"""
[X] where len(X) < 5 and STOPS_AT(X, ';')
"""[1:],
    ),
    Good(
        "concatenation",
        r"""
"a" 'b[X]' r"\c"
("d"
 "e[Y]") where len(Y) < 3
(("f"))
"g" \
    "h"
"""[1:],
        r"""
'a' 'b' [X] '\\c'
'd' 'e' [Y] where len(Y) < 3
'f'
'g' 'h'
"""[1:],
    ),
    Good(
        "escapes",
        r"""
"tab\t quote\" nl\n \x41\101\u00e9\U0001F600 \N{BULLET} \d \
joined [[not a hole]] {{not a value}} ] lone ]] pair [X]"
"""[1:],
        r"""
'tab\t quote" nl\n AAé😀 • \\d joined [not a hole] {not a value} ] lone ] pair ' [X]
"""[1:],
    ),
    Good(
        "raw",
        r"""
r"\n [X: r'\]+'] \[[ {y}"
"""[1:],
        r"""
'\\n ' [X: '\\]+'] ' \\[ ' {y}
"""[1:],
    ),
    Good(
        "escaped_quotes_in_code",
        r"""
"[X: r\"a\\d]\"] {d[\"k\"]} {'\n'.join(xs)} {'\\'}"
"""[1:],
        r"""
[X: 'a\\d]'] ' ' {d['k']} ' ' {'\n'.join(xs)} ' ' {'\\'}
"""[1:],
    ),
    Good(
        "triple_brackets",
        r"""
"[[[A]]] {{{b}}} [[x] "
"""[1:],
        r"""
'[' [A] '] {' {b} '} [x] '
"""[1:],
    ),
    Good(
        "holes",
        r"""
"[A][B: int] [C: list[str]] [D: r'[a-z]\]'] [E: f(x, 'q]')] [ F ] [G :Literal['a', 'b']]"
"""[1:],
        r"""
[A] [B: int] ' ' [C: list[str]] ' ' [D: '[a-z]\\]'] ' ' [E: f(x, 'q]')] ' ' [F] ' ' [G: Literal['a', 'b']]
"""[1:],
    ),
    Good(
        "decorated_holes",
        r"""
"[@deco A] [@a.b(1, ']') @c B: str] [sample(temperature=0.8) C] [f(D, 3)] [argmax E] [@x sample(n=2) F: int]"
"""[1:],
        r"""
[@deco A] ' ' [@a.b(1, ']') @c B: str] ' ' [sample(temperature=0.8) -> C] ' ' [f(D, 3) -> D] ' ' [argmax -> E] ' ' [@x sample(n=2) -> F: int]
"""[1:],
    ),
    Good(
        "values",
        r"""
"{x} {x!r} {x:>8} {x!s:.2f} {d['k'][0]} {f(a, b=1)} { {'a': 1}['a'] } {a != b} {[i for i in y if i]} {x if y else z}"
"""[1:],
        r"""
{x} ' ' {x!r} ' ' {x:>8} ' ' {x!s:.2f} ' ' {d['k'][0]} ' ' {f(a, b=1)} ' ' {{'a': 1}['a']} ' ' {a != b} ' ' {[i for i in y if i]} ' ' {x if y else z}
"""[1:],
    ),
    Good(
        "tags",
        r"""
"{:system}Be brief.{:user}{question}{: assistant }[ANSWER]"
"""[1:],
        r"""
<system> 'Be brief.' <user> {question} <assistant> [ANSWER]
"""[1:],
    ),
    Good(
        "control",
        r"""
if mood == "sad":
    "a[A]"
elif mood:
    "b[B]"; count = 1
else:
    pass
while True:
    "c[C]"
    if C == "x": break
    if C == "y":
        continue
else:
    return
for i, (j, *k) in enumerate(xs):
    "d[D]"
else: "e[E]"
"""[1:],
        r"""
if mood == 'sad'
  'a' [A]
else
  if mood
    'b' [B]
    code count = 1
  else
    code pass
while True
  'c' [C]
  if C == 'x'
    break
  if C == 'y'
    continue
else
  return
for (i, (j, *k)) in enumerate(xs)
  'd' [D]
else
  'e' [E]
"""[1:],
    ),
    Good(
        "one_line_suites",
        r"""
if x: "text [A]" where len(A) < 3; y = 2
for i in range(2): "[B]"
while x: x -= 1
"""[1:],
        r"""
if x
  'text ' [A] where len(A) < 3
  code y = 2
for i in range(2)
  [B]
code while x: |     x -= 1
"""[1:],
    ),
    Good(
        "async_for",
        r"""
async for chunk in stream():
    "{chunk}[A]"
async with lock:
    n = await f()
async for c in s(): n += 1
"""[1:],
        r"""
async for chunk in stream()
  {chunk} [A]
code async with lock: |     n = await f()
code async for c in s(): |     n += 1
"""[1:],
    ),
    Good(
        "plain_python_stays_whole",
        r"""
for i in range(3):
    if i: break
    while i:
        i -= 1
try:
    x = 1
except ValueError as e:
    x = 2
else:
    x = 3
finally:
    y = 4
with open(f) as g, h: z = g.read()
match x:
    case [1, *rest]: z = rest
    case _:
        z = 5
if x: y = 5
"[A]"
"""[1:],
        r"""
code for i in range(3): |     if i: |         break |     while i: |         i -= 1
code try: |     x = 1 | except ValueError as e: |     x = 2 | else: |     x = 3 | finally: |     y = 4
code with open(f) as g, h: |     z = g.read()
code match x: |     case [1, *rest]: |         z = rest |     case _: |         z = 5
code if x: |     y = 5
[A]
"""[1:],
    ),
    Good(
        "return_and_break_split_a_block",
        r"""
for i in xs:
    if i > 3:
        break
if done:
    return i
while x:
    for y in x: pass
    else: break
"""[1:],
        r"""
code for i in xs: |     if i > 3: |         break
if done
  return i
code while x: |     for y in x: |         pass |     else: |         break
"""[1:],
    ),
    Good(
        "prompts_in_other_blocks",
        r"""
try:
    "[A]"
except ValueError as e:
    pass
finally:
    "x"
with open(f) as g:
    "[B]"
match x:
    case 1: "[C]"
    case _:
        pass
"""[1:],
        r"""
block try: try
  [A]
block except: except ValueError as e
  code pass
block finally: finally
  'x'
block with: with open(f) as g
  [B]
block match: match x
  block case: case 1
    [C]
  block case: case _
    code pass
"""[1:],
    ),
    Good(
        "return_in_try",
        r"""
try:
    return f()
except ValueError:
    pass
"""[1:],
        r"""
block try: try
  return f()
block except: except ValueError
  code pass
"""[1:],
    ),
    Good(
        "functions_are_python",
        r'''
def f(x):
    """doc [x]"""
    "also {plain}"
    for i in x:
        return i

async def g(): yield 1
@a
@b(2)
class C: "doc"
lambda: "[x]"
"[A]"
'''[1:],
        r'''
code def f(x): |     """doc [x]""" |     'also {plain}' |     for i in x: |         return i
code async def g(): |     yield 1
code @a | @b(2) | class C: |     """doc"""
code lambda: '[x]'
[A]
'''[1:],
    ),
    Good(
        "soft_words_as_names",
        r"""
where = 3
from_ = where
distribution = {"a": 1}
argmax = max
match = argmax
case = match(1)
sample: int = 5
where[0] = 1
where.x = 2
print(where, distribution)
distribution.update(match)
"[A]"
"""[1:],
        r"""
code where = 3
code from_ = where
code distribution = {'a': 1}
code argmax = max
code match = argmax
code case = match(1)
code sample: int = 5
code where[0] = 1
code where.x = 2
code print(where, distribution)
code distribution.update(match)
[A]
"""[1:],
    ),
    Good(
        "sample_called_after_the_first_prompt",
        r"""
"[A]"
sample(A)
"""[1:],
        r"""
[A]
code sample(A)
"""[1:],
    ),
    Good(
        "strings_that_are_python",
        r"""
x = "[no hole]"
print("{not filled}", '[x]')
"a".join(x)
"%s" % "a" in x
("a", 1)
["b"]
"c" if x else "d"
f("[A]")
"[A]"
"""[1:],
        r"""
code x = '[no hole]'
code print('{not filled}', '[x]')
code 'a'.join(x)
code '%s' % 'a' in x
code ('a', 1)
code ['b']
code 'c' if x else 'd'
code f('[A]')
[A]
"""[1:],
    ),
    Good(
        "comments_and_blank_lines",
        r"""

# first
"a[A]"  # after, with a "quote" and a [bracket]

    # oddly indented comment
if x:  # why

    "b[B]"
# between
    "c[C]"

# last
"""[1:],
        r"""
'a' [A]
if x
  'b' [B]
  'c' [C]
"""[1:],
    ),
    Good(
        "indented_text",
        r'''

    argmax
        """one
        two

          three[A]
    less"""
    where
        len(A) < 3
'''[1:],
        r"""
argmax()
'one\ntwo\n\n  three' [A] '\nless'
where len(A) < 3
"""[1:],
    ),
    Good(
        "triple_quotes_in_a_block",
        r'''
if x:
    """a
    b [A] "quoted" {y}
        c\n    d
	tab
    """
'''[1:],
        r"""
if x
  'a\nb ' [A] ' "quoted" ' {y} '\n    c\n    d\n\ttab\n'
"""[1:],
    ),
    Good(
        "walrus_lambda_and_slices",
        r"""
if (n := len(xs)) > 3 and (lambda a: a)(n):
    "[A]"
for x in xs[1:2]: "{x}"
while (lambda: True)(): "[B]"; break
"""[1:],
        r"""
if (n := len(xs)) > 3 and (lambda a: a)(n)
  [A]
for x in xs[1:2]
  {x}
while (lambda: True)()
  [B]
  break
"""[1:],
    ),
    Good(
        "comprehensions_and_await",
        r"""
xs = [await f(x) async for x in y if x]
zs = {k: v for k, v in d.items()}
"{await g(xs)} [A: int]" where A in [z for z in zs]
"""[1:],
        r"""
code xs = [await f(x) async for x in y if x]
code zs = {k: v for k, v in d.items()}
{await g(xs)} ' ' [A: int] where A in [z for z in zs]
"""[1:],
    ),
    Good(
        "starred_and_annotated",
        r"""
a, *b = xs
n: int = 3
n += 1
del a; global c; assert n, "why"
"[A]"
"""[1:],
        r"""
code a, *b = xs
code n: int = 3
code n += 1
code del a
code global c
code assert n, 'why'
[A]
"""[1:],
    ),
    Good(
        "regex_and_nested_types",
        r"""
"[A: r'(a|b)+[0-9]{2}'] [B: dict[str, list[int]]] [C: Optional[int]]"
"""[1:],
        r"""
[A: '(a|b)+[0-9]{2}'] ' ' [B: dict[str, list[int]]] ' ' [C: Optional[int]]
"""[1:],
    ),
    Good(
        "where_of_every_kind",
        r"""
"[A]" where 0 < int(A) <= 5 and A not in ["x"] or not A.startswith("y") and len(TOKENS(A)) != 3 if z else True
"""[1:],
        r"""
[A] where 0 < int(A) <= 5 and A not in ['x'] or (not A.startswith('y') and len(TOKENS(A)) != 3) if z else True
"""[1:],
    ),
    Good(
        "distribution_over_lines",
        r"""
"[A]" distribution A in
    ["x",
     "y"]
"[B]" where len(B) < 4 distribution B in opts
"""[1:],
        r"""
[A] distribution A in ['x', 'y']
[B] where len(B) < 4 distribution B in opts
"""[1:],
    ),
    Good(
        "long_header",
        r"""
argmax(
    cache="a.tokens",  # kept
    max_tokens=5 * 20,
    stops=[1, 2],
)
    "[A]"
"""[1:],
        r"""
argmax(cache='a.tokens', max_tokens=5 * 20, stops=[1, 2])
[A]
"""[1:],
    ),
    Good(
        "unicode",
        r"""
größe = "ü"
"日本語 {größe}: [ΑΒΓ: str] 😀[X]" where len(ΑΒΓ) < 3 and X in ["😀"]
"""[1:],
        r"""
code größe = 'ü'
'日本語 ' {größe} ': ' [ΑΒΓ: str] ' 😀' [X] where len(ΑΒΓ) < 3 and X in ['😀']
"""[1:],
    ),
    Good(
        "tabs",
        r"""
if x:
	"a[A]"
	if y:
		"b[B]"
		z = 1
"""[1:],
        r"""
if x
  'a' [A]
  if y
    'b' [B]
    code z = 1
"""[1:],
    ),
]
