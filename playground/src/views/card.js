// What is known of one token, the one that was chosen in the text, the grid or the tree; and another run from there on.
import { make, onOneLine, visible } from "../dom.js";
import { FATES, SOURCES, probability } from "../kinds.js";
import { withAlternative, withBeginning, withValue } from "../onward.js";
import { percent } from "./tokens.js";

const GAP = 6; // pixels between the card and what was chosen
const MIN_HEIGHT = 140;

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
    markToken([]);
  }

  /** `place` is where another run may continue from, null where none can; `anchor` the rectangle of what was chosen. */
  show(token, scene, { run = null, place = null, anchor = null }) {
    const goOn = place && ((prefill) => this._onGoOn(prefill));
    const share = probability(token);
    const fate = run?.fate ?? token.fate;
    const text = run ? run.tokens.map((each) => each.text).join("") : token.text;
    const facts = [["text", make("code", {}, onOneLine(text))], ["from", `${token.source}: ${SOURCES[token.source]}`]];
    if (!run) facts.push(["probability", share === null ? "the model was not called" : percent(share)]);
    if (fate !== "kept") facts.push(["fate", FATES[fate]]);
    const more = [["hole", token.hole === null ? "none, the program's own text" : visible(token.hole)]];
    if (run) more.push(["tokens", String(run.tokens.length)], ["reached", times(run.passes)]);
    else more.push(["bytes", hex(token)], ["token id", String(token.id)]);
    if (!run && share !== null) more.push(["log-probability", token.logprob.toFixed(3)]);
    if (!run && token.allowed !== undefined) more.push(["allowed", `${many(token.allowed)} of ${many(token.vocabulary)} tokens`]);
    this._root.replaceChildren(
      make("div", { class: "card-head" },
        make("h3", {}, run ? "Part of the tree" : "Token"),
        make("button", { type: "button", class: "quiet", "aria-label": "close", onclick: () => this.close() }, "✕")),
      list(facts),
      ...inMind(run ? run.tokens[0] : token, place, goOn), ...(goOn ? onward(place, goOn) : []), ...alsoTried(run ? run.tokens[0] : token, scene),
      make("details", { class: "facts" }, make("summary", {}, "Details"), list(more)),
    );
    this._isOpen = true;
    this._root.hidden = false;
    this._root.scrollTop = 0;
    if (anchor && getComputedStyle(this._root).position === "absolute") this._place(anchor);
  }

  /** Puts the card below what was chosen, or above it where there is more room, so that nothing moves. */
  _place(anchor) {
    const { style } = this._root;
    style.maxHeight = "";
    const box = this._root.offsetParent.getBoundingClientRect();
    const bottom = Math.min(box.bottom, innerHeight);
    const below = bottom - anchor.bottom - GAP;
    const above = anchor.top - Math.max(box.top, 0) - GAP;
    const isBelow = below >= this._root.offsetHeight || below >= above;
    style.maxHeight = `${Math.max(MIN_HEIGHT, Math.min(this._root.offsetHeight, isBelow ? below : above))}px`;
    const top = isBelow ? anchor.bottom + GAP : anchor.top - GAP - this._root.offsetHeight;
    const left = Math.max(0, Math.min(anchor.left - box.left, box.width - this._root.offsetWidth));
    style.top = `${top - box.top + this._root.offsetParent.scrollTop}px`;
    style.left = `${left}px`;
  }
}

function list(facts) {
  return make("dl", {}, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/** Marks the text of one token, as ranges of the page; none marks nothing. */
export function markToken(ranges) {
  if (!globalThis.CSS?.highlights) return; // the card names the token
  if (ranges.length) CSS.highlights.set("lq-token", new Highlight(...ranges));
  else CSS.highlights.delete("lq-token");
}

/** Alternatives at this place, and the clause that forbade some of them. */
function* inMind(token, place, goOn) {
  yield make("h4", {}, "Alternatives");
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
  const says = alternative.text === null ? "end here" : "continue from here";
  const name = alternative.text === null ? "end the hole here" : `continue from here with ${onOneLine(alternative.text)}`;
  return make("button", { type: "button", "aria-label": name, onclick: () => goOn(withAlternative(place, alternative)) }, says);
}

/** The hole's text, to be changed: a run that takes it as it is, or goes on from it. */
function* onward(place, goOn) {
  const field = make("textarea", { rows: "2", "aria-label": `text of ${place.name}` });
  field.value = place.value;
  yield make("details", { class: "onward" }, make("summary", {}, `Change [${visible(place.name)}] and continue`), field,
    make("p", { class: "row" },
      make("button", { type: "button", onclick: () => goOn(withBeginning(place, field.value)) }, "Continue from this text"),
      make("button", { type: "button", onclick: () => goOn(withValue(place, field.value)) }, "Use it as the whole value")),
    make("p", { class: "hint" }, "The text before it is unchanged, and costs nothing."));
}

function forbidden({ clause }) {
  if (clause === null) return "✕ forbidden by the conditions together";
  return make("span", {}, "✕ forbidden by ", make("code", {}, visible(clause.split(/\s+/).join(" "))));
}

function unasked(token) {
  if (token.source === "forced") return "No request was sent: the conditions allowed nothing else, or the text was given.";
  if (token.hole === null) return token.logprob === null ? "No request was sent: this is the program's own text." : "This is the program's own text; only its division into tokens depends on the model.";
  if (token.allowed !== undefined) return "No notable alternative: the token was nearly certain.";
  return "Not recorded in this run.";
}

/** Other tokens at this place in the run: taken back, or drafted. */
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
