// The runs of this page as a grid: what they were given down, queries and models across, and answers in the cells.
import { counted, make, onOneLine, shortened, visible } from "../dom.js";
import { told } from "../onward.js";

const MAX_RUNS = 50; // runs that are shown
const LONGEST = 300; // characters of a failure
const LONGEST_ANSWER = 120; // characters of an answer
const SHORT = 40; // of an input, and of the text beside a difference between queries
const MAX_ANSWERS = 3; // holes of a run

export class RunsView {
  /** `onShow(recording)`: a run is to be seen again. */
  constructor({ empty, grid, onShow }) {
    this._empty = empty;
    this._grid = grid;
    this._onShow = onShow;
    this._runs = []; // {number, recording, summary}
    this._drawn = null;
  }

  /** A run has begun, or a recording was opened. */
  add(recording) {
    const number = (this._runs.at(-1)?.number ?? 0) + 1;
    this._runs = [...this._runs, { number, recording, summary: null }].slice(-MAX_RUNS);
  }

  draw() {
    const stamp = `${this._runs.at(-1)?.number} ${this._runs.filter(({ recording }) => recording.end).length}`;
    if (stamp === this._drawn) return;
    this._drawn = stamp;
    for (const run of this._runs) if (run.recording.end && !run.summary) run.summary = summary(run.recording);
    this._empty.hidden = this._runs.length > 0;
    const focused = document.activeElement?.id;
    this._grid.replaceChildren(...(this._runs.length ? this._table() : []));
    if (focused?.startsWith("run-")) document.getElementById(focused)?.focus();
  }

  *_table() {
    const columns = grouped(this._runs, columnOf);
    const queries = [...columns.values()].map(([{ recording }]) => recording);
    const heads = queries.map((each) => make("th", { scope: "col" }, ...heading(each, queries[0])));
    yield make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "inputs"), ...heads));
    const rows = grouped(this._runs, rowOf);
    yield make("tbody", {}, ...[...rows.values()].map((runs) => this._row(runs, [...columns.keys()])));
  }

  /** The runs that were given the same, newest first in each cell. Their answers are compared with the first one. */
  _row(runs, columns) {
    const cells = grouped(runs.toReversed(), columnOf);
    const inOrder = columns.map((column) => cells.get(column) ?? []);
    const first = inOrder.flat().find(({ summary: each }) => each)?.summary ?? null;
    return make("tr", {}, make("th", { scope: "row" }, given(runs[0].recording)),
      ...inOrder.map((cell) => make("td", {}, ...cell.map((run) => this._answer(run, first)))));
  }

  _answer({ number, recording, summary: found }, first) {
    const show = make("button", { type: "button", class: "link", id: `run-${number}`, onclick: () => this._onShow(recording) }, `Run ${number}`);
    return make("div", { class: "answer" }, ...(found ? answers(found, first === found ? null : first) : []),
      make("small", { class: "hint" }, show, ` ${found ? [found.ended, ...costs(found)].join(" · ") : "running"}`));
  }
}

/** The runs by what `keyOf` gives for them, in their order. */
function grouped(runs, keyOf) {
  const found = new Map();
  for (const run of runs) {
    const key = keyOf(run.recording);
    found.set(key, [...(found.get(key) ?? []), run]);
  }
  return found;
}

function columnOf({ asked, name }) {
  return JSON.stringify(asked ? [asked.name, asked.text, asked.options?.model ?? null] : name);
}

function rowOf({ asked }) {
  return JSON.stringify(asked ? { ...asked, name: null, text: null, options: { ...asked.options, model: null } } : null);
}

/** The query and the model; of a text that is not that of the first column, the part that differs. */
function* heading({ asked, name, source }, first) {
  yield visible(asked?.name ?? String(name));
  if (asked?.options?.model) yield make("div", {}, make("small", {}, visible(asked.options.model)));
  if (source === null || first.source === null || source === first.source) return;
  const { before, part, after } = difference(source, first.source);
  yield make("div", {}, make("code", {}, onOneLine(before.slice(-SHORT)), make("mark", {}, onOneLine(shortened(part, SHORT)) || "∅"), onOneLine(after.slice(0, SHORT))));
}

/** What the run was given: inputs, options, and where it goes on from. */
function given({ asked }) {
  if (!asked) return "a recording";
  const named = (values) => Object.entries(values ?? {}).filter(([, value]) => value !== null).map(([name, value]) => `${name} = ${shortened(onOneLine(shown(value)), SHORT)}`);
  const { model, ...options } = asked.options ?? {};
  const parts = [
    ...named(asked.inputs),
    ...(asked.prefill ? [`continued: [${told(asked.prefill).name}]`] : named(options)),
  ];
  return visible(parts.join(" · ") || "no inputs");
}

/** What a run came to. */
function summary({ end, ms, lines }) {
  const isDone = end.type === "done";
  const values = new Map();
  if (lines.some(({ type }) => type === "forked")) for (const [name, value] of Object.entries(end.vars ?? {})) values.set(name, shown(value));
  else for (const { type, name, value } of lines) if (type === "hole.closed") values.set(numbered(values, name), value);
  if (isDone && end.value !== null) values.set("value", shown(end.value));
  const ended = isDone ? "✓ done" : end.kind === "Stopped" ? "stopped" : `✕ ${visible(shortened(end.message, LONGEST))}`;
  return { values, usage: end.usage ?? null, ms, ended };
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

/** The run's value, else its holes; what differs from those of another run is marked. */
function* answers({ values }, other) {
  const wanted = values.has("value") ? [["value", values.get("value")]] : [...values];
  for (const [name, text] of wanted.slice(0, MAX_ANSWERS)) {
    yield make("div", {}, name === "value" ? null : make("small", {}, `${visible(name)} `), make("code", {}, ...marked(text, other?.values.get(name) ?? (other ? "" : text))));
  }
  if (wanted.length > MAX_ANSWERS) yield make("div", {}, make("small", {}, `and ${wanted.length - MAX_ANSWERS} more`));
}

function* marked(text, other) {
  const { before, part, after } = difference(text, other);
  if (text === other) yield onOneLine(shortened(text, LONGEST_ANSWER));
  else yield* [onOneLine(before.slice(-LONGEST_ANSWER)), make("mark", {}, onOneLine(shortened(part, LONGEST_ANSWER)) || "∅"), onOneLine(after.slice(0, LONGEST_ANSWER))];
}

/** The part of a text in which it differs from another one, and what is the same before and after it. */
function difference(text, other) {
  const most = Math.min(text.length, other.length);
  let from = 0;
  while (from < most && text[from] === other[from]) from += 1;
  let behind = 0;
  while (behind < most - from && text.at(-1 - behind) === other.at(-1 - behind)) behind += 1;
  const to = text.length - behind;
  return { before: text.slice(0, from), part: text.slice(from, to), after: text.slice(to) };
}

/** Tokens in the text by where they came from, and the time. */
function costs({ usage, ms }) {
  const seconds = `${(ms / 1000).toFixed(2)} s`;
  if (!usage) return [seconds];
  const cache = usage.tokens_from_cache ?? 0;
  const model = (usage.tokens_from_model ?? 0) + (usage.draft_accepted ?? 0);
  return [`${counted(cache + model + (usage.tokens_forced ?? 0), "token")}: ${cache} from the cache, ${model} from the model`, seconds];
}
