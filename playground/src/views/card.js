// What is known of one token: of the one that was chosen in the grid or in the tree.
import { make, onOneLine, visible } from "../dom.js";
import { FATES, SOURCES, probability } from "../kinds.js";
import { percent } from "./tokens.js";

export function times(count) {
  return count === 1 ? "once" : `${count} times`;
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
      ["hole", token.hole ?? "none, the program's own text"],
    ];
    if (run) facts.push(["tokens", String(run.tokens.length)], ["come by", times(run.passes)]);
    else {
      facts.push(
        ["bytes", hex(token)],
        ["number", String(token.id)],
        ["probability", share === null ? "the model was not asked" : `${percent(share)} (log ${token.logprob.toFixed(3)})`],
        ["told at", `${token.ms} ms`],
      );
    }
    this._root.replaceChildren(
      make("div", { class: "card-head" }, make("h3", {}, run ? "Part of the tree" : "Token"),
        make("button", { type: "button", class: "quiet", "aria-label": "close", onclick: () => this.close() }, "✕")),
      make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      ...alternatives(run ? run.tokens[0] : token, scene),
    );
    this._isOpen = true;
    this._root.hidden = false;
  }
}

/** What else was said at this place in the run. */
function* alternatives(token, scene) {
  const others = scene.trie.beside(token);
  yield make("h4", {}, "Also tried here");
  if (!others.length) {
    yield make("p", { class: "empty" }, "Nothing else. Which tokens were not tried, the run does not tell.");
    return;
  }
  const rows = others.slice(0, 10).map((node) => {
    const share = probability(node.token);
    const state = node.kept ? "in the text" : FATES[node.fate];
    return make("li", { class: node.kept ? "" : "struck" }, make("code", {}, onOneLine(node.token.text)),
      ` ${share === null ? "" : percent(share)} ${visible(state)}`);
  });
  yield make("ul", { class: "alternatives" }, ...rows);
}

function hex(token) {
  const bytes = token.base64
    ? Uint8Array.from(atob(token.base64), (character) => character.charCodeAt(0))
    : new TextEncoder().encode(token.text);
  const shown = Array.from(bytes.slice(0, 24), (byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");
  return bytes.length > 24 ? `${shown} … (${bytes.length})` : shown;
}
