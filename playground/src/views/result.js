// How a run ended: its value or what went wrong, above its text; and below the text, its holes.
import { make, shortened, visible } from "../dom.js";
import { ENDINGS, endingOf } from "../kinds.js";

const LONGEST = 4_000; // characters of a value

export class ResultView {
  constructor(root, holes, onPlace) {
    this._root = root;
    this._holes = holes;
    this._onPlace = onPlace;
    this._end = undefined;
  }

  draw(scene) {
    if (scene.end === this._end) return;
    this._end = scene.end;
    const isDone = scene.end?.type === "done";
    this._root.replaceChildren(...(isDone ? value(scene.end) : scene.end ? [this._failed(scene.end)] : []));
    this._holes.replaceChildren(...(isDone ? holes(scene.end) : []));
  }

  _failed(line) {
    if (line.kind === "Stopped") return make("p", { class: "stopped" }, "The run was stopped. The text so far is below.");
    const place = line.span
      ? make("button", { type: "button", class: "link", onclick: () => this._onPlace(line.span) }, `line ${line.span.line}`)
      : null;
    return make(
      "div",
      { class: "failure", role: "group", "aria-label": "what went wrong" },
      make("p", {}, make("strong", {}, visible(line.kind)), " ", place),
      make("p", { class: "message" }, visible(line.message)),
      line.hint ? make("p", { class: "hint" }, visible(line.hint)) : null,
      ...(line.others ?? []).map((other) => this._failed(other)),
    );
  }
}

function* value(line) {
  if (line.value !== null) yield make("div", {}, make("h3", {}, "Value"), make("pre", { class: "value" }, shown(line.value)));
  for (const notice of line.notices) yield make("p", { class: "notice" }, visible(notice));
}

function* holes(line) {
  const names = Object.keys(line.vars);
  if (names.length) {
    const rows = names.map((name) =>
      make("tr", {}, make("th", { scope: "row" }, visible(name)), make("td", {}, said(name, line.vars[name])),
        make("td", { title: ENDINGS[line.endings[name]] }, visible(endingOf(line.endings[name] ?? "")))),
    );
    const head = make("tr", {}, ...["hole", "last value", "ended by"].map((each) => make("th", { scope: "col" }, each)));
    yield make("table", { class: "values" }, make("thead", {}, head), make("tbody", {}, ...rows));
  }
}

function said(name, value) {
  if (!name.startsWith("P(") || !Array.isArray(value)) return make("pre", {}, shown(value));
  return make("ul", { class: "weights" }, ...value.map(([option, share]) =>
    make("li", {}, make("meter", { value: String(share), "aria-label": `probability of ${option}` }),
      ` ${share.toFixed(4)} `, make("q", {}, visible(String(option))))));
}

/** A long one is cut off here: it stands in the text above, and laying it out twice would hold up the page. */
function shown(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return visible(shortened(text, LONGEST));
}
