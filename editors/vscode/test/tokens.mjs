// Prints the scopes of every line of a text, as VS Code's own tokenizer gives them: node tokens.mjs LANGUAGE < TEXT
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);
const { INITIAL, Registry, parseRawGrammar } = require("vscode-textmate");
const oniguruma = require("vscode-oniguruma");

const here = dirname(fileURLToPath(import.meta.url));
const FILES = {
  "source.lq": join(here, "..", "..", "..", "grammar", "lq.tmLanguage.json"),
  "lq.docstring.injection": join(here, "..", "docstring.tmLanguage.json"),
  "source.python": join(here, "..", "node_modules", "tm-grammars", "grammars", "python.json"),
};

await oniguruma.loadWASM(readFileSync(require.resolve("vscode-oniguruma/release/onig.wasm")).buffer);
const registry = new Registry({
  onigLib: Promise.resolve({
    createOnigScanner: (patterns) => new oniguruma.OnigScanner(patterns),
    createOnigString: (text) => new oniguruma.OnigString(text),
  }),
  loadGrammar: async (scope) => (FILES[scope] ? parseRawGrammar(readFileSync(FILES[scope], "utf8"), FILES[scope]) : null),
  getInjections: (scope) => (scope === "source.python" ? ["lq.docstring.injection"] : []),
});
const grammar = await registry.loadGrammar(process.argv[2]);
let state = INITIAL;
const lines = readFileSync(0, "utf8").split("\n").map((line) => {
  const { tokens, ruleStack } = grammar.tokenizeLine(line, state);
  state = ruleStack;
  return tokens.map((token) => [line.slice(token.startIndex, token.endIndex), token.scopes]);
});
console.log(JSON.stringify(lines));
