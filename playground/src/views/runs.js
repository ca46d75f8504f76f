// The runs of this page: a comparison of some of them, with what differs marked, and a list with their answers.
import { counted, make, onOneLine, shortened, visible } from "../dom.js";
import { told } from "../onward.js";

const MOST = 50; // runs that are listed
const MOST_BESIDE = 8;
const LONGEST = 300; // characters of a cell
const SHORT = 40; // of an input in the list
const MOST_ANSWERS = 3; // holes of a run in the list
const LONGEST_ANSWER = 120; // characters of one of them

export class RunsView {
  /** `onShow(recording)`: a run is to be seen again. */
  constructor({ empty, list, grid, onShow }) {
    this._empty = empty;
    this._list = list;
    this._grid = grid;
    this._onShow = onShow;
    this._runs = []; // {number, recording, summary}
    this._chosen = null; // numbers; null: the last two
    this._drawn = null;
  }

  /** A run has begun, or a recording was opened. */
  add(recording) {
    const number = (this._runs.at(-1)?.number ?? 0) + 1;
    this._runs = [...this._runs, { number, recording, summary: null }].slice(-MOST);
    if (this._chosen) this._chosen = [...this._chosen, number].slice(-MOST_BESIDE);
    return number;
  }

  /** Puts these runs beside each other. */
  compare(numbers) {
    this._chosen = numbers.slice(0, MOST_BESIDE);
    this._drawn = null;
  }

  draw() {
    const stamp = `${this._runs.length} ${this._runs.at(-1)?.number} ${this._runs.filter(({ recording }) => recording.end).length} ${this._chosen}`;
    if (stamp === this._drawn) return;
    this._drawn = stamp;
    for (const run of this._runs) if (run.recording.end && !run.summary) run.summary = summary(run.recording);
    this._empty.hidden = this._runs.length > 0;
    const focused = document.activeElement?.id;
    this._list.replaceChildren(...(this._runs.length ? this._rows() : []));
    const beside = this._beside;
    this._grid.replaceChildren(...(beside.length > 1 ? grid(beside) : []));
    if (focused?.startsWith("beside-")) document.getElementById(focused)?.focus();
  }

  get _beside() {
    const ended = this._runs.filter(({ summary }) => summary);
    return this._chosen ? ended.filter(({ number }) => this._chosen.includes(number)) : ended.slice(-2);
  }

  *_rows() {
    const names = ["compare", "run", "status", "query", "answer"];
    yield make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name))));
    const beside = this._beside.map(({ number }) => number);
    yield make("tbody", {}, ...this._runs.toReversed().map((run) => this._row(run, beside.includes(run.number))));
  }

  _row({ number, recording, summary }, isBeside) {
    const box = make("input", { type: "checkbox", id: `beside-${number}`, checked: isBeside, "aria-label": `compare run ${number}`, onchange: () => this._toggle(number) });
    return make("tr", {},
      make("td", {}, box),
      make("td", {}, make("button", { type: "button", class: "link", onclick: () => this._onShow(recording) }, `Run ${number}`)),
      make("td", {}, summary ? summary.ended : "running"),
      make("td", {}, given(recording)),
      make("td", {}, ...(summary ? answer(summary) : [])));
  }

  _toggle(number) {
    const shown = this._beside.map((run) => run.number);
    this._chosen = shown.includes(number) ? shown.filter((each) => each !== number) : [...shown, number].slice(-MOST_BESIDE);
    this.draw();
  }
}

/** What a run came to. */
function summary({ end, ms, lines }) {
  const isDone = end.type === "done";
  const values = new Map();
  if (lines.some(({ type }) => type === "forked")) for (const [name, value] of Object.entries(end.vars ?? {})) values.set(name, shown(value));
  else for (const { type, name, value } of lines) if (type === "hole.closed") values.set(numbered(values, name), value);
  if (isDone && end.value !== null) values.set("value", shown(end.value));
  const { usage = null } = end;
  const ended = isDone ? "✓ done" : end.kind === "Stopped" ? "stopped" : `✕ ${shortened(end.message, LONGEST)}`;
  const judged = lines.find(({ type }) => type === "judged");
  return { values, usage, ms, ended: judged && isDone ? verdict(judged.problems) : ended };
}

function verdict(problems) {
  return problems.length ? `✕ failed: ${shortened(problems.map(visible).join("; "), LONGEST)}` : "✓ passed";
}

/** The name of a hole that is filled more than once has the number of the time. */
function numbered(values, name) {
  if (!values.has(name)) return name;
  let times = 2;
  while (values.has(`${name} (${times})`)) times += 1;
  return `${name} (${times})`;
}

function shown(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function seconds(ms) {
  return `${(ms / 1000).toFixed(2)} s`;
}

function kept({ tokens_from_cache, tokens_from_model, draft_accepted, tokens_forced }) {
  return { cache: tokens_from_cache ?? 0, model: tokens_from_model ?? 0, draft: draft_accepted ?? 0, forced: tokens_forced ?? 0 };
}

/** What the run answered: its value, else its holes; and in small what that took. */
function* answer({ values, usage, ms }) {
  const shownFirst = values.has("value") ? [["value", values.get("value")]] : [...values];
  for (const [name, text] of shownFirst.slice(0, MOST_ANSWERS)) {
    yield make("div", {}, name === "value" ? null : make("small", {}, `${visible(name)} `), make("code", {}, onOneLine(shortened(text.trim(), LONGEST_ANSWER))));
  }
  if (shownFirst.length > MOST_ANSWERS) yield make("div", {}, make("small", {}, `and ${shownFirst.length - MOST_ANSWERS} more`));
  const counts = usage && kept(usage);
  const sum = counts ? Object.values(counts).reduce((all, each) => all + each, 0) : 0;
  const tokens = counts ? `${counted(sum, "token")}: ${counts.cache} from the cache, ${counts.model + counts.draft} from the model · ` : "";
  yield make("small", { class: "hint" }, `${tokens}${seconds(ms)}`);
}

/** What the run was given: inputs, and where it goes on from. */
function given({ asked, name }) {
  if (!asked) return visible(String(name));
  const inputs = Object.entries(asked.inputs ?? {}).map(([input, value]) => `${input} = ${shortened(onOneLine(shown(value)), SHORT)}`);
  const onward = asked.prefill ? [`continued: [${told(asked.prefill).name}]`] : [];
  const model = asked.options?.model ? [asked.options.model] : [];
  const cases = asked.case ? [`case ${asked.case}`] : [];
  return [asked.name, ...cases, ...model, ...inputs, ...onward].map(visible).join(" · ");
}

// Runs beside each other ------------------------------------------------------------------------------------------

function* grid(runs) {
  yield make("thead", {}, make("tr", {}, make("th", { scope: "col" }, ""), ...runs.map(({ number }) => make("th", { scope: "col" }, `Run ${number}`))));
  const rows = [...askedRows(runs), ...valueRows(runs), ...countRows(runs), ...queryRows(runs)];
  yield make("tbody", {}, ...rows.map(([name, cells, isText]) => {
    const first = cells[0] ?? "";
    return make("tr", {}, make("th", { scope: "row" }, visible(name)), ...cells.map((cell, at) => {
      const differs = at > 0 && cell !== first;
      return make("td", { class: differs ? "differs" : "" }, ...(isText ? marked(cell, differs ? first : null) : [cell ?? "–"]));
    }));
  }));
}

/** Options and inputs that are not the same in all of them. */
function* askedRows(runs) {
  const asked = runs.map(({ recording }) => recording.asked);
  if (asked.some((each) => !each)) return;
  for (const part of ["inputs", "options"]) {
    const names = new Set(asked.flatMap((each) => Object.keys(each[part] ?? {})));
    for (const name of names) {
      const values = asked.map((each) => each[part]?.[name] ?? null).map((value) => (value === null ? null : shown(value)));
      if (new Set(values).size > 1) yield [name, values, true];
    }
  }
}

/** The text of the query, where it is not the same in all of them. */
function* queryRows(runs) {
  const texts = runs.map(({ recording }) => recording.asked?.text ?? null);
  if (!texts.includes(null) && new Set(texts).size > 1) yield ["query", texts, true];
}

function* valueRows(runs) {
  const names = new Set(runs.flatMap(({ summary }) => [...summary.values.keys()]));
  for (const name of names) yield [name, runs.map(({ summary }) => summary.values.get(name) ?? null), true];
}

function* countRows(runs) {
  const of = (says) => runs.map(({ summary }) => (summary.usage ? says(kept(summary.usage), summary) : null));
  yield ["tokens of output", of((counts) => String(Object.values(counts).reduce((all, each) => all + each, 0)))];
  yield ["from the cache", of(({ cache }) => String(cache))];
  yield ["of the model", of(({ model, draft }) => String(model + draft))];
  yield ["time", runs.map(({ summary }) => seconds(summary.ms))];
  yield ["ended", runs.map(({ summary }) => summary.ended)];
}

/** A text in which the part is marked that differs from another one; null where there is no text. */
function* marked(text, other) {
  if (text === null) {
    yield "–";
    return;
  }
  const cut = shortened(text, LONGEST);
  if (other === null) {
    yield make("code", {}, onOneLine(cut));
    return;
  }
  const most = Math.min(cut.length, other.length);
  let from = 0;
  while (from < most && cut[from] === other[from]) from += 1;
  let behind = 0;
  while (behind < most - from && cut.at(-1 - behind) === other.at(-1 - behind)) behind += 1;
  const to = cut.length - behind;
  yield make("code", {}, onOneLine(cut.slice(0, from)), make("mark", {}, onOneLine(cut.slice(from, to)) || "∅"), onOneLine(cut.slice(to)));
}
