// What is known of one token: of the one that was chosen in the grid or in the tree.
import { make, onOneLine, visible } from "../dom.js";
import { FATES, SOURCES, probability } from "../kinds.js";
import { percent } from "./tokens.js";

export function times(count) {
  return count === 0 ? "never" : count === 1 ? "once" : `${count} times`;
}

export class Card {
  constructor(root) {
    this._root = root;
    this._isOpen = false;
  }

  get isOpen() {
    return !this._root.hidden;
  }

  /** Whether the view that is shown has something to choose. */
  set isWanted(isWanted) {
    this._root.hidden = !isWanted || !this._isOpen;
  }

  close() {
    this._isOpen = false;
    this._root.hidden = true;
  }

  show(token, scene, run = null) {
    const share = probability(token);
    const facts = [
      ["text", make("code", {}, onOneLine(run ? run.tokens.map((each) => each.text).join("") : token.text))],
      ["from", `${token.source}: ${SOURCES[token.source]}`],
      ["became", FATES[run?.fate ?? token.fate]],
      ["hole", token.hole === null ? "none, the program's own text" : visible(token.hole)],
    ];
    if (run) facts.push(["tokens", String(run.tokens.length)], ["come by", times(run.passes)]);
    else {
      facts.push(
        ["bytes", hex(token)],
        ["number", String(token.id)],
        ["probability", share === null ? "the model was not asked" : `${percent(share)} (log ${token.logprob.toFixed(3)})`],
        ["told at", `${token.ms} ms`],
      );
      if (token.allowed !== undefined) facts.push(["allowed there", `${many(token.allowed)} of ${many(token.vocabulary)} tokens`]);
    }
    this._root.replaceChildren(
      make("div", { class: "card-head" }, make("h3", {}, run ? "Part of the tree" : "Token"),
        make("button", { type: "button", class: "quiet", "aria-label": "close", onclick: () => this.close() }, "✕")),
      make("div", { class: "card-body" },
        make("div", {}, ...inMind(run ? run.tokens[0] : token), ...alsoTried(run ? run.tokens[0] : token, scene)),
        make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))))),
    );
    this._isOpen = true;
    this._root.hidden = false;
  }
}

/** What the model had in mind at this place, and which clause forbade some of it. */
function* inMind(token) {
  yield make("h4", {}, "What the model had in mind");
  if (!token.alternatives) {
    yield make("p", { class: "empty" }, unasked(token));
    return;
  }
  const rows = token.alternatives.map((each) => {
    const share = Math.exp(Math.min(each.logprob, 0));
    const isTaken = each.id === token.id;
    return make("tr", { class: each.allowed ? "" : "struck" },
      make("td", {}, make("code", {}, each.text === null ? "end of the text" : onOneLine(each.text))),
      make("td", { class: "number" }, percent(share)),
      make("td", {}, make("meter", { value: String(share), "aria-hidden": "true" })),
      make("td", {}, isTaken ? "✓ taken" : each.allowed ? "" : forbidden(each)));
  });
  const head = ["token", "probability", "", ""].map((each) => make("th", { scope: "col" }, each));
  yield make("table", { class: "alternatives" }, make("thead", { class: "unseen" }, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

function forbidden({ clause }) {
  if (clause === null) return "✕ forbidden by the conditions together";
  return make("span", {}, "✕ forbidden by ", make("code", {}, visible(clause.split(/\s+/).join(" "))));
}

function unasked(token) {
  if (token.source === "forced") return "Nobody was asked: a condition left nothing else.";
  if (token.hole === null) return token.logprob === null ? "Nobody was asked: this is the program's own text." : "This is the program's own text; the model only decided where to cut it into tokens.";
  if (token.allowed !== undefined) return "Nothing else to speak of: it was nearly certain.";
  return "This run does not tell.";
}

/** What else was said at this place in the run, or guessed. */
function* alsoTried(token, scene) {
  const others = scene.trie.beside(token);
  if (!others.length) return;
  yield make("h4", {}, "Also tried here");
  const rows = others.slice(0, 10).map((node) => {
    const share = probability(node.token);
    const state = node.kept ? "in the text" : FATES[node.fate];
    return make("li", { class: node.kept ? "" : "struck" }, make("code", {}, onOneLine(node.token.text)),
      ` ${share === null ? "" : percent(share)} ${visible(state)}`);
  });
  yield make("ul", { class: "tried" }, ...rows);
}

function many(count) {
  return count.toLocaleString("en");
}

function hex(token) {
  const bytes = token.base64
    ? Uint8Array.from(atob(token.base64), (character) => character.charCodeAt(0))
    : new TextEncoder().encode(token.text);
  const shown = Array.from(bytes.slice(0, 24), (byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");
  return bytes.length > 24 ? `${shown} … (${bytes.length})` : shown;
}
