// Looks for mistakes while somebody types: the server reads the text and runs nothing.
import { byId, make, visible } from "./dom.js";

const QUIET_MS = 250;
const LONGEST_MS = 5_000; // that a run waits for a check

export class Checker {
  constructor({ server, editor, onInputs }) {
    this._server = server;
    this._editor = editor;
    this._onInputs = onInputs;
    this._number = 0;
    this._timer = null;
    this._known = null; // the text that the last answer is about
    this._found = []; // by the check
    this._problems = []; // all that are shown
    this._failure = null; // where the last run failed, as long as the text is that one
    this._current = -1;
    this.completions = [];
  }

  /** The text has changed: what was said of it counts no more when this is answered. */
  changed() {
    this._number += 1;
    this._failure = null;
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this.now(), QUIET_MS);
  }

  async now() {
    if (!this._server) return;
    const number = ++this._number;
    const text = this._editor.text();
    let found;
    try {
      found = await this._server.post("/api/check", { text });
    } catch {
      return; // the next change asks again; a run says what is wrong with the server
    }
    if (number !== this._number) return;
    this._known = text;
    this.completions = found.completions.map(({ label, kind }) => ({ label, detail: kind, type: kind }));
    this._onInputs(found.inputs, /\binput\s*\(/.test(text));
    this.show(found.problems);
  }

  /** Until it is known which inputs the text has: somebody may paste a query and run it at once. */
  async upToDate() {
    if (this._known === this._editor.text()) return;
    clearTimeout(this._timer);
    await Promise.race([this.now(), new Promise((done) => setTimeout(done, LONGEST_MS))]);
  }

  /** A run of this text failed here. */
  fail(problem) {
    this._failure = problem;
    this.show(this._found);
  }

  show(found) {
    this._found = found;
    const isKnown = found.some((each) => each.from === this._failure?.from && each.message === this._failure?.message);
    const problems = this._failure && !isKnown ? [...found, this._failure] : found;
    this._problems = problems;
    this._current = -1;
    this._editor.setProblems(problems);
    byId("problem-count").textContent = problems.length ? String(problems.length) : "none";
    byId("problems").replaceChildren(...problems.map((problem, at) => this._row(problem, at)));
  }

  /** Selects the next problem, or the one before. */
  go(step) {
    const { length } = this._problems;
    if (!length) return;
    this._current = (this._current + step + (this._current < 0 && step < 0 ? 1 : 0) + length) % length;
    const { from, to } = this._problems[this._current];
    this._editor.select(from, to);
  }

  _row(problem, at) {
    const place = `${problem.line}:${problem.column}`;
    const go = () => {
      this._current = at;
      this._editor.select(problem.from, problem.to);
    };
    return make(
      "li",
      {},
      make("button", { type: "button", class: "link", onclick: go }, `line ${place}`),
      make("span", {}, ` ${visible(problem.message)}`),
      problem.hint ? make("span", { class: "hint" }, visible(problem.hint)) : null,
    );
  }
}
