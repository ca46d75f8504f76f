// The views of a run. One is shown, and only that one is drawn. The first three are tabs, the others options of a menu.

import { byId } from "./dom.js";

const MAIN = ["output", "trie", "runs"];
export const VIEWS = [...MAIN, "tokens", "log"];

export class Tabs {
  constructor(onShow) {
    this._onShow = onShow;
    for (const name of MAIN) {
      byId(`tab-${name}`).addEventListener("click", () => this.show(name));
      byId(`tab-${name}`).addEventListener("keydown", (event) => this._key(event));
    }
    byId("more").addEventListener("change", (event) => this.show(event.target.value || MAIN[0]));
    this.show(MAIN[0]);
  }

  show(name, withFocus = false) {
    this.shown = name;
    const isMain = MAIN.includes(name);
    for (const each of MAIN) {
      const tab = byId(`tab-${each}`);
      tab.setAttribute("aria-selected", String(each === name));
      tab.tabIndex = each === (isMain ? name : MAIN[0]) ? 0 : -1;
    }
    byId("more").value = isMain ? "" : name;
    for (const each of VIEWS) byId(`panel-${each}`).hidden = each !== name;
    if (withFocus) byId(isMain ? `tab-${name}` : "more").focus();
    this._onShow(name);
  }

  _key(event) {
    const at = MAIN.findIndex((name) => event.target.id === `tab-${name}`);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: MAIN.length - 1 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.show(MAIN[(to + MAIN.length) % MAIN.length], true);
  }
}
