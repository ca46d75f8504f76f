// Which of several branches of a run is shown.
import { make } from "../dom.js";

export class Branches {
  /** `label` is hidden as long as there is one branch. */
  constructor({ select, label, onChoose }) {
    this._select = select;
    this._label = label;
    this._chosen = null; // the state of the branch that somebody wants to see
    this._names = "";
    select.addEventListener("change", () => {
      this._chosen = Number(select.value);
      onChoose();
    });
  }

  /** Another run is shown. */
  forget() {
    this._chosen = null;
  }

  /** The one that somebody chose; else the result, and before there is one the first that was not given up. */
  shown(scene) {
    const all = [...scene.hypotheses.values()];
    this._label.hidden = all.length < 2;
    const { winner } = scene;
    const shown = scene.hypotheses.get(this._chosen) ?? winner ?? all.find((each) => !each.isPruned) ?? all[0] ?? null;
    const names = all.map((each) => `${each.state}${each === winner ? ": the result" : each.isPruned ? ": given up" : ""}`);
    if (names.join() !== this._names) {
      this._names = names.join();
      this._select.replaceChildren(...names.map((name, at) => make("option", { value: String(all[at].state) }, name)));
    }
    if (shown && this._select.value !== String(shown.state)) this._select.value = String(shown.state);
    return shown;
  }
}
