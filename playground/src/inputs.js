// The form for a query's inputs: one field each, for text, for JSON, or for a text on each line.
import { byId, make } from "./dom.js";

const MAX_RUNS = 50; // of one click

export class Inputs {
  constructor() {
    this._names = [];
    this._values = new Map(); // name -> {kind, text}; also of inputs that the text has no more
  }

  show(names) {
    if (names.join() === this._names.join()) return;
    this._names = names;
    byId("inputs-section").hidden = !names.length;
    byId("inputs").replaceChildren(...names.map((name) => this._field(name)));
  }

  /** The lines that `input()` reads, for a query that calls it; null for any other. */
  get typed() {
    return byId("typed-section").hidden ? null : byId("typed").value === "" ? [] : byId("typed").value.split("\n");
  }

  showTyped(isShown) {
    byId("typed-section").hidden = !isShown;
  }

  /** Texts for inputs that have none yet. */
  offer(texts) {
    for (const [name, text] of Object.entries(texts)) {
      if (this._value(name).text === "") this._values.set(name, { kind: "text", text });
    }
    const names = this._names;
    this._names = [];
    this.show(names);
  }

  /** The inputs of each run: one, unless some have a value on each line. Raises SyntaxError with a sentence where one is
   * empty or no JSON, and where there are too many. */
  sets() {
    const empty = this._names.filter((name) => this._isEmpty(name));
    if (empty.length) {
      for (const name of empty) fieldOf(name).setAttribute("aria-invalid", "true");
      fieldOf(empty[0]).focus();
      const says = empty.length === 1 ? `the input ${empty[0]} is empty` : `the inputs ${empty.join(", ")} are empty`;
      throw new SyntaxError(`${says}: fill in the box, or choose JSON and write "" for an empty text`);
    }
    let sets = [{}];
    for (const name of this._names) {
      const values = this._read(name);
      sets = sets.flatMap((set) => values.map((value) => ({ ...set, [name]: value })));
      if (sets.length > MAX_RUNS) throw new SyntaxError(`the inputs make more than ${MAX_RUNS} runs`);
    }
    return sets;
  }

  _isEmpty(name) {
    const { kind, text } = this._value(name);
    return kind === "text" && text === "";
  }

  _read(name) {
    const { kind, text } = this._value(name);
    if (kind === "text") return [text];
    if (kind === "lines") {
      const lines = text.split("\n").filter((line) => line.trim());
      if (!lines.length) throw new SyntaxError(`the input ${name} has no line`);
      return lines;
    }
    try {
      return [JSON.parse(text)];
    } catch {
      throw new SyntaxError(`the input ${name} is not JSON`);
    }
  }

  get saved() {
    return [...this._values];
  }

  set saved(values) {
    this._values = new Map(values);
    this._names = [];
  }

  _value(name) {
    if (!this._values.has(name)) this._values.set(name, { kind: "text", text: "" });
    return this._values.get(name);
  }

  _field(name) {
    const value = this._value(name);
    const area = make("textarea", { rows: "1", "aria-label": `input ${name}`, oninput: () => {
      value.text = area.value;
      area.removeAttribute("aria-invalid");
    } });
    area.value = value.text;
    const kind = make("select", { "aria-label": `kind of ${name}`, onchange: () => {
      value.kind = kind.value;
      area.removeAttribute("aria-invalid");
    } },
      make("option", { value: "text" }, "text"), make("option", { value: "json" }, "JSON"), make("option", { value: "lines" }, "each line"));
    kind.value = value.kind;
    return make("div", { class: "input" }, make("span", { class: "input-name" }, name), area, kind);
  }
}

function fieldOf(name) {
  return byId("inputs").querySelector(`textarea[aria-label="input ${CSS.escape(name)}"]`);
}

/** A field for each option that `about.options` names, the model apart. Empty is "as the query says". */
export class Options {
  show(rows) {
    this._rows = rows.filter(({ name }) => name !== "model");
    byId("options").replaceChildren(...this._rows.map((row) => this._field(row)));
  }

  values() {
    const given = this._rows.map(({ name, type }) => {
      const { value } = byId(`option-${name}`);
      if (value === "") return [name, null];
      if (type === "bool") return [name, value === "true"];
      return [name, type === "text" ? value : Number(value)];
    });
    return Object.fromEntries(given);
  }

  /** Texts of the fields, the model's too. */
  get saved() {
    const names = ["model", ...(this._rows ?? []).map(({ name }) => name)];
    return Object.fromEntries(names.map((name) => [name, byId(`option-${name}`).value]));
  }

  /** Fills the fields; a value that is no longer offered is left out. */
  set saved(values) {
    for (const [name, value] of Object.entries(values)) {
      const field = byId(`option-${name}`);
      const isOffered = field && (!field.options || Array.from(field.options).some((option) => option.value === value));
      if (!isOffered || field.value === value) continue;
      field.value = value;
      field.dispatchEvent(new Event("change", { bubbles: true }));
    }
  }

  _field({ name, help, type, low, choices }) {
    const id = `option-${name}`;
    const listed = type === "bool" ? ["true", "false"] : choices;
    const unset = make("option", { value: "" }, "as the query says");
    const input = listed.length
      ? make("select", { id }, unset, ...listed.map((value) => make("option", { value }, value)))
      : make("input", { id, type: type === "text" ? "text" : "number", min: low, step: type === "float" ? "any" : "1" });
    return make("label", { title: help }, `${name} `, input);
  }
}
