// The conditions of each hole, clause by clause, as far as the plan and the run tell of them.
import { make, shortened, visible } from "../dom.js";
import { endingOf } from "../kinds.js";
import { times } from "./card.js";

export class ConstraintsView {
  constructor(root, onPlace) {
    this._root = root;
    this._onPlace = onPlace;
    this._drawn = null;
  }

  /** `plan` says what the clauses are; `isAsked`: it is on its way. */
  draw(scene, plan, isAsked) {
    const stamp = [scene.holes.length, scene.holes.at(-1)?.ending, scene.end?.type, plan, isAsked];
    if (this._scene === scene && stamp.every((each, at) => each === this._drawn?.[at])) return;
    this._scene = scene;
    this._drawn = stamp;
    const names = new Set([...(plan?.holes ?? []).map((hole) => hole.name), ...scene.holes.map((hole) => hole.name)]);
    const unmet = scene.end?.kind === "ConstraintError" ? [this._unmet(scene.end)] : [];
    if (!names.size && !unmet.length) {
      this._root.replaceChildren(make("p", { class: "empty" }, "After a run or a plan: each clause of each hole, how it guides the model, and its state."));
      return;
    }
    this._root.replaceChildren(...unmet, ...[...names].map((name) => this._hole(name, scene, plan, isAsked)));
  }

  /** The clauses that cannot be met, as the error names them. */
  _unmet({ message, hint, span }) {
    const place = span ? make("button", { type: "button", class: "link", onclick: () => this._onPlace(span) }, `line ${span.line}`) : null;
    const rows = clausesIn(message).map((clause) =>
      make("tr", {}, make("td", {}, make("code", {}, visible(clause))), make("td", { class: "state violated" }, "✕ cannot be met")));
    return make("section", { class: "clauses", "aria-label": "clauses that cannot be met" }, make("h3", {}, "Cannot be met ", place), make("p", {}, visible(message)),
      rows.length ? make("table", {}, make("tbody", {}, ...rows)) : null, hint ? make("p", { class: "hint" }, visible(hint)) : null);
  }

  _hole(name, scene, plan, isAsked) {
    const planned = plan?.holes.filter((hole) => hole.name === name) ?? [];
    const filled = scene.holes.filter((hole) => hole.name === name);
    const span = filled[0]?.span ?? planned[0];
    const title = make("h3", {}, `[${visible(name)}] `, span
      ? make("button", { type: "button", class: "link", onclick: () => this._onPlace(span) }, `line ${span.line}`)
      : null);
    const choices = scene.choices.get(name);
    const table = plan ? clauses(planned, filled, scene, choices?.overruled) : make("p", { class: "empty" }, isAsked ? "Looking up the clauses." : "The clauses come from the plan, and a recording has no plan.");
    return make("section", { class: "clauses" }, title, table, ...narrowed(choices), ...fillings(filled));
  }
}

/** What stands between backquotes. */
function clausesIn(message) {
  return [...message.matchAll(/`([^`]+)`/g)].map(([, clause]) => clause.split(/\s+/).join(" "));
}

/** How much the conditions left the model to choose from. */
function* narrowed(choices) {
  if (!choices) return;
  const mean = Math.round(choices.allowed / choices.times).toLocaleString("en");
  const overruled = [...choices.overruled.values()].reduce((sum, each) => sum + each, 0);
  yield make("p", {}, `${choices.times === 1 ? "1 token was" : `${choices.times} tokens were`} chosen; `
    + `${choices.times === 1 ? "" : "on average, "}${mean} of ${choices.vocabulary.toLocaleString("en")} tokens were allowed. `
    + (overruled ? `The model's first choice was overruled ${times(overruled)}.` : "The model's first choice was always allowed."));
}

function clauses(planned, filled, scene, overruled) {
  const rows = [];
  for (const hole of planned) {
    const later = new Set(hole.later);
    for (const clause of hole.conditions) rows.push([clause, later.has(clause) ? "known during the run" : "guides token by token"]);
    for (const clause of hole.judged) rows.push([clause, "Python checks the whole value"]);
    for (const clause of later) if (!hole.conditions.includes(clause)) rows.push([clause, "known during the run"]);
    rows.push([`ends ${hole.ends.join(", or ")}`, ""]);
  }
  if (!rows.length) return make("p", { class: "empty" }, "This hole has no conditions.");
  const state = stateOf(filled, scene);
  const head = make("tr", {}, ...["clause", "how", "overruled the model", "state"].map((each) => make("th", { scope: "col" }, each)));
  const body = rows.map(([clause, how]) =>
    make("tr", {}, make("td", {}, make("code", {}, visible(clause.split(/\s+/).join(" ")))), make("td", {}, how),
      make("td", {}, overruled?.has(clause) ? times(overruled.get(clause)) : "–"),
      make("td", { class: `state ${state.kind}` }, state.says)));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}

function stateOf(filled, scene) {
  const last = filled.at(-1);
  if (!last) return { kind: "undecided", says: "? not reached yet" };
  if (last.ending !== null) return { kind: "met", says: `✓ met${filled.length > 1 ? ` ${filled.length} times` : ""}` };
  if (scene.end?.type === "error") {
    return scene.end.kind === "ConstraintError"
      ? { kind: "violated", says: "✕ cannot be met" }
      : { kind: "undecided", says: "? the run ended first" };
  }
  return { kind: "holds", says: "… met so far" };
}

const SHOWN = 20;
const LONGEST = 400; // characters of a value

function* fillings(filled) {
  if (!filled.length) return;
  const items = filled.slice(0, SHOWN).map((hole) =>
    make("li", {}, hole.value === null ? "open" : make("code", {}, visible(JSON.stringify(shortened(hole.value, LONGEST)))), hole.ending ? ` ended by ${visible(endingOf(hole.ending))}` : ""));
  yield make("ol", { class: "fillings" }, ...items);
  if (filled.length > SHOWN) yield make("p", { class: "empty" }, `and ${filled.length - SHOWN} more`);
}
