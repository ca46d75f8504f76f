// Colours for a query, line by line: which strings are prompts, and what stands in them. The words are those of words.js.
import { WORDS } from "./words.js";

const KINDS_OF_WORDS = new Map([
  ...WORDS.types.map((word) => [word, "type"]),
  ...WORDS.python.map((word) => [word, "keyword"]),
  ...WORDS.constants.map((word) => [word, "constant"]),
  ...WORDS.constraints.map((word) => [word, "condition"]),
  ...WORDS.clauses.map((word) => [word, "clause"]),
  ...WORDS.decoders.map((word) => [word, "decoder"]),
]);
KINDS_OF_WORDS.set("from", "keyword");
const ROLE = new RegExp(`^\\{:(?:${WORDS.roles.join("|")})\\}`);
const WORD = /^[\p{L}_][\p{L}\p{N}_]*/u;
const NUMBER = /^(?:0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?)/;
const QUOTES = /^(?:"""|'''|"|')/;
const ESCAPE = /^\\(?:N\{[^}]*\}|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|[0-7]{1,3}|.|$)/;
const OPENING = "([{";
const CLOSING = ")]}";

/** What CodeMirror's StreamLanguage wants: a state, and one token at a time. */
export const lq = {
  name: "lq",
  languageData: { commentTokens: { line: "#" }, closeBrackets: { brackets: ["(", "[", "{", "'", '"', '"""', "'''"] } },
  startState: () => ({ within: [], depth: 0, begins: true, isContinued: false }),
  copyState: (state) => ({ ...state, within: state.within.map((each) => ({ ...each })) }),
  token(stream, state) {
    if (stream.sol()) atLineStart(state);
    const inside = state.within.at(-1);
    switch (inside?.kind) {
      case "prompt":
        return prompt(stream, state, inside);
      case "string":
        return string(stream, state, inside);
      case "hole":
        return hole(stream, state, inside);
      default:
        return code(stream, state, inside);
    }
  },
};

function code(stream, state, inside) {
  if (stream.eatSpace()) return null;
  if (stream.match(/^#.*/)) return "comment";
  const quotes = stream.match(QUOTES, false)?.[0];
  if (quotes) {
    stream.match(QUOTES);
    state.within.push({ kind: !inside && state.begins ? "prompt" : "string", quotes });
    return !inside && state.begins ? "prompt" : "string";
  }
  if (stream.match(/^[rRbBfFuU]{1,2}(?=["'])/)) {
    state.begins = false;
    return "string";
  }
  const word = stream.match(WORD)?.[0];
  if (word) {
    const kind = KINDS_OF_WORDS.get(word) ?? null;
    const begins = state.begins;
    state.begins = false;
    if (kind === "decoder" && !begins) return null;
    if (begins && WORDS.soft.includes(word) && stream.match(/^\s+[^\s=.,)].*:/, false)) return "keyword";
    return kind;
  }
  if (stream.match(NUMBER)) {
    state.begins = false;
    return "number";
  }
  return bracket(stream, state, inside);
}

function bracket(stream, state, inside) {
  const character = stream.next();
  if (inside) {
    if (OPENING.includes(character)) inside.depth += 1;
    else if (CLOSING.includes(character) && (inside.depth -= 1) < 0) {
      state.within.pop();
      return "brace";
    }
    return null;
  }
  if (OPENING.includes(character)) {
    // a prompt may stand in parentheses, over several lines
    state.depth += 1;
    state.begins &&= character === "(";
  } else if (CLOSING.includes(character)) state.depth = Math.max(0, state.depth - 1);
  else state.begins = state.depth === 0 && (character === ";" || character === ":");
  return null;
}

/** Whether the string ends here. */
function ended(stream, state, inside) {
  if (stream.match(inside.quotes)) {
    state.within.pop();
    return true;
  }
  return false;
}

/** A string without three quotes ends with its line, unless a backslash stands there. */
function atLineStart(state) {
  const at = state.within.findIndex((each) => each.quotes?.length === 1);
  if (at >= 0 && !state.isContinued) state.within.length = at;
  state.isContinued = false;
  if (!state.within.length && state.depth === 0) state.begins = true;
}

function escape(stream, state) {
  if (!stream.match(ESCAPE)) return false;
  state.isContinued = stream.eol();
  return true;
}

function string(stream, state, inside) {
  if (ended(stream, state, inside)) return "string";
  if (escape(stream, state)) return "escape";
  stream.next();
  while (!stream.eol() && !stream.match(inside.quotes, false) && stream.peek() !== "\\") stream.next();
  return "string";
}

function prompt(stream, state, inside) {
  if (ended(stream, state, inside)) return "prompt";
  if (escape(stream, state) || stream.match(/^(?:\[\[|\]\]|\{\{|\}\})/)) return "escape";
  if (stream.match(ROLE)) return "role";
  if (stream.match("[")) {
    state.within.push({ kind: "hole", depth: 0, isAfterName: false });
    return "brace";
  }
  if (stream.match("{")) {
    state.within.push({ kind: "value", depth: 0 });
    return "brace";
  }
  stream.next();
  while (!stream.eol() && !stream.match(inside.quotes, false) && !/[\\[\]{}]/.test(stream.peek())) stream.next();
  return "prompt";
}

function hole(stream, state, inside) {
  if (stream.eatSpace()) return null;
  if (stream.match(/^@\s*[\p{L}_][\p{L}\p{N}_.]*/u)) return "decorator";
  if (stream.match(/^[\p{L}_][\p{L}\p{N}_]*(?=\s*[\]:])/u, false) && !inside.isAfterName && inside.depth === 0) {
    stream.match(WORD);
    inside.isAfterName = true;
    return "hole";
  }
  const word = stream.match(WORD)?.[0];
  if (word) {
    const kind = KINDS_OF_WORDS.get(word);
    if (kind) return kind;
    return inside.isAfterName ? "type" : null;
  }
  const quotes = stream.match(QUOTES)?.[0];
  if (quotes) {
    state.within.push({ kind: "string", quotes });
    return "string";
  }
  if (stream.match(NUMBER)) return "number";
  return bracket(stream, state, inside);
}
