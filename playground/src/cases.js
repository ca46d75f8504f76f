// The cases beside the open file (`lq test`), each run on the page with a mark; and one query with each model.
import { byId, counted } from "./dom.js";

export class Cases {
  /** `onRun(list)` runs what `list()` gives, one after the other, and gives the recordings; `asked()` is what the page would
   * run, but for `inputs()`. */
  constructor({ server, asked, inputs, onRun, onFailure }) {
    this._server = server;
    this._asked = asked;
    this._onRun = onRun;
    this._onFailure = onFailure;
    this._cases = [];
    this._models = [];
    byId("run-cases").addEventListener("click", () => this._runCases());
    byId("run-models").addEventListener("click", () => this._onRun(() => this._models.map((model) => ({ ...asked(), inputs: inputs(), options: { ...asked().options, model } }))));
  }

  set models(ids) {
    this._models = ids;
    byId("run-models").hidden = ids.length < 2;
  }

  /** Looks for the cases of a document; one that no file has has none. */
  async open({ name, version }) {
    this._cases = [];
    this._draw("");
    if (version === null || version === undefined) return;
    try {
      const found = await this._server.get(`/api/cases/${name.split("/").map(encodeURIComponent).join("/")}`);
      if (found.name !== this._asked().name) return; // another one was opened meanwhile
      this._cases = found.cases;
      this._draw(found.cases.length ? "The cases beside this file, as `lq test` runs them, of the text in the editor." : "");
    } catch (error) {
      this._onFailure(error);
    }
  }

  _draw(says) {
    byId("run-cases").hidden = !this._cases.length;
    byId("run-cases").textContent = `Run the ${counted(this._cases.length, "case")}`;
    byId("cases-say").textContent = says;
  }

  async _runCases() {
    const { text, name, options } = this._asked();
    const cases = this._cases;
    const list = cases.flatMap((each) => each.seeds.map((seed) => ({
      text, name, inputs: each.inputs, case: each.name, options: { model: options.model, ...(seed === null ? {} : { seed }) },
    })));
    const recordings = await this._onRun(() => list);
    const passed = cases.filter((each) => {
      const own = recordings.filter(({ asked }) => asked.case === each.name);
      return own.length === each.seeds.length && own.filter(isPassed).length >= each.pass_rate * own.length - 1e-9;
    });
    byId("cases-say").textContent = `${passed.length} of ${counted(cases.length, "case")} passed${passed.length < cases.length ? `; failed: ${cases.filter((each) => !passed.includes(each)).map((each) => each.name).join(", ")}` : ""}`;
  }
}

function isPassed({ lines, end }) {
  return end?.type === "done" && lines.find(({ type }) => type === "judged")?.problems.length === 0;
}
