// What comes from npm: the editor and the layout of trees. Where nothing was built this module cannot be loaded, and
// editor.js and trie.js have simpler ones.
import { acceptCompletion, autocompletion, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import {
  HighlightStyle,
  StreamLanguage,
  bracketMatching,
  indentUnit,
  syntaxHighlighting,
} from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { EditorView, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, keymap, lineNumbers } from "@codemirror/view";
import { Tag } from "@lezer/highlight";

import { visible } from "./dom.js";
import { lq } from "./highlight.js";

const NAMES = ["keyword", "constant", "clause", "decoder", "condition", "type", "comment", "string", "number"];
const TAGS = Object.fromEntries(
  [...NAMES, "prompt", "escape", "role", "brace", "hole", "decorator"].map((name) => [name, Tag.define()]),
);
const COLOURS = HighlightStyle.define(Object.entries(TAGS).map(([name, tag]) => ({ tag, class: `code-${name}` })));

/** An editor inside `parent`. `completions()` are those that fit by now; `nonce` lets its style through. */
export function richEditor({ parent, text, onChange, completions, nonce }) {
  const complete = (context) => {
    const word = context.matchBefore(/[\p{L}_][\p{L}\p{N}_]*/u);
    if (!word && !context.explicit) return null;
    return { from: word?.from ?? context.pos, options: completions(), validFor: /^[\p{L}\p{N}_]*$/u };
  };
  const extensions = [
    EditorView.cspNonce.of(nonce),
    EditorView.contentAttributes.of({ "aria-label": "query", spellcheck: "false" }),
    EditorView.lineWrapping,
    EditorView.updateListener.of((update) => update.docChanged && onChange()),
    lineNumbers(),
    lintGutter(),
    highlightActiveLine(),
    highlightActiveLineGutter(),
    highlightSelectionMatches(),
    highlightSpecialChars({ addSpecialChars: /[\u061c\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069]/g, render: marked }),
    history(),
    bracketMatching(),
    search({ top: true }),
    indentUnit.of("    "),
    StreamLanguage.define({ ...lq, tokenTable: TAGS }),
    syntaxHighlighting(COLOURS),
    EditorView.domEventHandlers({ beforeinput: typedOver }),
    autocompletion({ override: [complete], icons: false }),
    keymap.of([
      { key: "Tab", run: acceptCompletion },
      indentWithTab,
      ...completionKeymap,
      ...lintKeymap,
      ...searchKeymap,
      ...historyKeymap,
      ...defaultKeymap,
    ]),
  ];
  const state = (doc) => EditorState.create({ doc, extensions });
  const view = new EditorView({ parent, state: state(text) });
  return {
    text: () => view.state.doc.toString(),
    /** Another document, with an undo history of its own: a text, or what `document` gave. */
    open(document) {
      view.setState(typeof document === "string" ? state(document) : document);
      onChange();
    },
    document: () => view.state,
    setProblems: (problems) => view.dispatch(setDiagnostics(view.state, problems.map((each) => diagnostic(view, each)))),
    select(from, to) {
      const end = view.state.doc.length;
      const selection = { anchor: Math.min(from, end), head: Math.min(to, end) };
      view.dispatch({ selection, effects: EditorView.scrollIntoView(selection.anchor, { y: "center" }) });
      view.focus();
    },
    focus: () => view.focus(),
  };
}

/** A character that nobody would see. */
function marked(code) {
  const element = document.createElement("span");
  element.className = "cm-specialChar";
  element.textContent = visible(String.fromCodePoint(code));
  element.setAttribute("aria-label", element.textContent);
  return element;
}

/** Types over a selection. A browser that does so itself keeps the colours of what was there, by a `style` attribute,
 * which the page's own rules forbid. */
function typedOver(event, view) {
  const isTyped = event.inputType === "insertText" && event.data !== null && !view.composing;
  if (!isTyped || view.state.selection.main.empty) return false;
  event.preventDefault();
  view.dispatch({ ...view.state.replaceSelection(event.data), userEvent: "input.type", scrollIntoView: true });
  return true;
}

function diagnostic(view, problem) {
  const end = view.state.doc.length;
  const from = Math.min(problem.from, end);
  return {
    from,
    to: Math.min(Math.max(problem.to, from), end),
    severity: problem.severity ?? "error",
    message: problem.hint ? `${problem.message}\n${problem.hint}` : problem.message,
  };
}
