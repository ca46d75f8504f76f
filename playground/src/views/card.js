// What is known of one token, the one that was chosen in the text, the grid or the tree; and another run from there on.
import { make, onOneLine, visible } from "../dom.js";
import { FATES, SOURCES, probability } from "../kinds.js";
import { withAlternative, withBeginning, withValue } from "../onward.js";
import { percent } from "./tokens.js";

export function times(count) {
  return count === 0 ? "never" : count === 1 ? "once" : `${count} times`;
}

export class Card {
  /** `onGoOn(prefill)`: a run with these texts is wanted. */
  constructor(root, onGoOn) {
    this._root = root;
    this._onGoOn = onGoOn;
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

  /** `place` is where another run may go on from, null where none can. */
  show(token, scene, run = null, place = null) {
    const goOn = place && ((prefill) => this._onGoOn(prefill));
    const share = probability(token);
    const facts = [
      ["text", make("code", {}, onOneLine(run ? run.tokens.map((each) => each.text).join("") : token.text))],
      ["from", `${token.source}: ${SOURCES[token.source]}`],
      ["became", FATES[run?.fate ?? token.fate]],
      ["hole", token.hole === null ? "none, the program's own text" : visible(token.hole)],
    ];
    if (run) facts.push(["tokens", String(run.tokens.length)], ["reached", times(run.passes)]);
    else {
      facts.push(
        ["bytes", hex(token)],
        ["number", String(token.id)],
        ["probability", share === null ? "the model was not asked" : `${percent(share)} (log ${token.logprob.toFixed(3)})`],
        ["emitted at", `${token.ms} ms`],
      );
      if (token.allowed !== undefined) facts.push(["allowed there", `${many(token.allowed)} of ${many(token.vocabulary)} tokens`]);
    }
    this._root.replaceChildren(
      make("div", { class: "card-head" }, make("h3", {}, run ? "Part of the tree" : "Token"),
        make("button", { type: "button", class: "quiet", "aria-label": "close", onclick: () => this.close() }, "✕")),
      make("div", { class: "card-body" },
        make("div", {}, ...inMind(run ? run.tokens[0] : token, place, goOn), ...(goOn ? onward(place, goOn) : []), ...alsoTried(run ? run.tokens[0] : token, scene)),
        make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))))),
    );
    this._isOpen = true;
    this._root.hidden = false;
  }
}

/** What the model had in mind at this place, and which clause forbade some of it. */
function* inMind(token, place, goOn) {
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
      make("td", {}, isTaken ? "✓ taken" : !each.allowed ? forbidden(each) : goOn && each.base64 === undefined ? goOnWith(each, place, goOn) : ""));
  });
  const head = ["token", "probability", "", ""].map((each) => make("th", { scope: "col" }, each));
  yield make("table", { class: "alternatives" }, make("thead", { class: "unseen" }, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

function goOnWith(alternative, place, goOn) {
  const says = alternative.text === null ? "end here" : "go on with it";
  const name = alternative.text === null ? "end the hole here" : `go on with ${onOneLine(alternative.text)}`;
  return make("button", { type: "button", "aria-label": name, onclick: () => goOn(withAlternative(place, alternative)) }, says);
}

/** The hole's text, to be changed: a run that takes it as it is, or goes on from it. */
function* onward(place, goOn) {
  const field = make("textarea", { rows: "2", "aria-label": `text of ${place.name}` });
  field.value = place.value;
  yield make("details", { class: "onward" }, make("summary", {}, `Change [${visible(place.name)}] and go on`), field,
    make("p", { class: "row" },
      make("button", { type: "button", onclick: () => goOn(withBeginning(place, field.value)) }, "Go on from this text"),
      make("button", { type: "button", onclick: () => goOn(withValue(place, field.value)) }, "Take it as the value")),
    make("p", { class: "hint" }, "All that stands before it stays as it is, and costs nothing."));
}

function forbidden({ clause }) {
  if (clause === null) return "✕ forbidden by the conditions together";
  return make("span", {}, "✕ forbidden by ", make("code", {}, visible(clause.split(/\s+/).join(" "))));
}

function unasked(token) {
  if (token.source === "forced") return "Nobody was asked: a condition left nothing else, or the text was given.";
  if (token.hole === null) return token.logprob === null ? "Nobody was asked: this is the program's own text." : "This is the program's own text; the model only decided where to cut it into tokens.";
  if (token.allowed !== undefined) return "No notable alternative: the token was nearly certain.";
  return "Not recorded in this run.";
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
