// Made by playground/words.py from lmql_lite/lang/keywords.py.
export const WORDS = {
  "clauses": [
    "from",
    "where",
    "distribution"
  ],
  "decoders": [
    "argmax",
    "sample",
    "beam",
    "beam_search",
    "beam_sample",
    "best_k",
    "var",
    "beam_var",
    "smc"
  ],
  "roles": [
    "system",
    "user",
    "assistant"
  ],
  "constraints": [
    "STOPS_AT",
    "STOPS_BEFORE",
    "STARTS_WITH",
    "ENDS_WITH",
    "TOKENS",
    "CHARS",
    "WORDS",
    "SENTENCES",
    "LINES",
    "INT",
    "FLOAT",
    "REGEX",
    "DATE"
  ],
  "types": [
    "Literal",
    "Optional",
    "Union",
    "Annotated",
    "Any",
    "Enum",
    "date",
    "datetime"
  ],
  "provided": [
    "context",
    "block",
    "re",
    "lq",
    "lmql"
  ],
  "python": [
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "return",
    "try",
    "while",
    "with",
    "yield"
  ],
  "soft": [
    "match",
    "case"
  ],
  "constants": [
    "True",
    "False",
    "None"
  ]
};
