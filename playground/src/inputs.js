// The form for a query's inputs: one field each, for text or for JSON.
import { byId, make } from "./dom.js";

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

  /** Texts for inputs that have none yet. */
  offer(texts) {
    for (const [name, text] of Object.entries(texts)) {
      if (this._value(name).text === "") this._values.set(name, { kind: "text", text });
    }
    const names = this._names;
    this._names = [];
    this.show(names);
  }

  /** Raises SyntaxError with a sentence where one is no JSON. */
  values() {
    return Object.fromEntries(
      this._names.map((name) => {
        const { kind, text } = this._value(name);
        if (kind === "text") return [name, text];
        try {
          return [name, JSON.parse(text)];
        } catch {
          throw new SyntaxError(`the input ${name} is no JSON`);
        }
      }),
    );
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
    const area = make("textarea", { rows: "1", "aria-label": `input ${name}`, oninput: () => (value.text = area.value) });
    area.value = value.text;
    const kind = make("select", { "aria-label": `kind of ${name}`, onchange: () => (value.kind = kind.value) },
      make("option", { value: "text" }, "text"), make("option", { value: "json" }, "JSON"));
    kind.value = value.kind;
    return make("div", { class: "input" }, make("span", { class: "input-name" }, name), area, kind);
  }
}
