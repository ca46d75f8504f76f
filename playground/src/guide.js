// Three steps for somebody who sees the page for the first time. They are ticked off as they are done, and gone for good
// once they all are, or somebody closes them.
import { byId } from "./dom.js";
import { keepSteps, stepsDone } from "./memory.js";

const STEPS = ["run", "again", "token"];

export class Guide {
  constructor() {
    this._done = new Set(stepsDone());
    byId("guide-close").addEventListener("click", () => this.did(...STEPS));
    this._show();
  }

  /** A run has ended well; `known` are its tokens that nobody was asked for. */
  ran(known) {
    this.did("run", ...(known && this._done.has("run") ? ["again"] : []));
  }

  /** Ticks off steps. */
  did(...steps) {
    if (steps.every((step) => this._done.has(step))) return;
    for (const step of steps) this._done.add(step);
    keepSteps([...this._done]);
    this._show();
  }

  _show() {
    byId("guide").hidden = STEPS.every((step) => this._done.has(step));
    for (const step of STEPS) byId(`guide-${step}`).classList.toggle("done", this._done.has(step));
  }
}
