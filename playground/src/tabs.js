// The views of a run. One is shown, and only that one is drawn.

import { byId } from "./dom.js";

export const TABS = ["output", "trie", "tokens", "constraints", "plan", "log", "runs"];

export class Tabs {
  constructor(onShow) {
    this._onShow = onShow;
    this.shown = "output";
    for (const name of TABS) {
      byId(`tab-${name}`).addEventListener("click", () => this.show(name));
      byId(`tab-${name}`).addEventListener("keydown", (event) => this._key(event));
    }
    this.show("output");
  }

  show(name, withFocus = false) {
    this.shown = name;
    for (const each of TABS) {
      const tab = byId(`tab-${each}`);
      tab.setAttribute("aria-selected", String(each === name));
      tab.tabIndex = each === name ? 0 : -1;
      byId(`panel-${each}`).hidden = each !== name;
    }
    if (withFocus) byId(`tab-${name}`).focus();
    this._onShow(name);
  }

  _key(event) {
    const at = TABS.indexOf(this.shown);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.show(TABS[(to + TABS.length) % TABS.length], true);
  }
}
