// <lq-view>: output, tree and ledger of one run, for a notebook, a report and an editor's panel. Its lines stand in it as
// JSON, or come with `take`. What else stands in it is for places where no script runs.
import style from "../view.css";
import { make } from "./dom.js";
import { linesOf } from "./kept.js";
import { Player } from "./player.js";
import { Broken, Recording } from "./recording.js";
import { Branches } from "./views/branches.js";
import { Card } from "./views/card.js";
import { LedgerView } from "./views/ledger.js";
import { OutputView } from "./views/output.js";
import { ResultView } from "./views/result.js";
import { TrieView } from "./views/trie.js";

const TABS = ["Output", "Tree"];

/** The parts of one run and what draws them. */
class RunView {
  constructor(onPlace) {
    this.recording = new Recording("", null);
    this.parts = {
      output: make("div", { class: "output", role: "log", "aria-live": "off", "aria-label": "text of the run" }),
      result: make("div", { class: "result" }),
      holes: make("div", { class: "holes" }),
      trie: make("div", { class: "trie" }),
      card: make("aside", { class: "card", role: "region", "aria-label": "token", hidden: true }),
      ledger: make("div"),
      select: make("select", { "aria-label": "branch" }),
    };
    const { parts } = this;
    this._tabs = TABS.map((name, at) => make("button", { type: "button", role: "tab", onclick: () => this._show(at), onkeydown: (event) => this._key(event) }, name));
    const label = make("label", {}, "branch ", parts.select);
    const ghosts = make("input", { type: "checkbox", checked: true, onchange: () => this._player.wake() });
    this._panels = [
      make("div", { role: "tabpanel", "aria-label": "Output", tabindex: "0" }, parts.result, parts.output, parts.holes),
      make("div", { role: "tabpanel", "aria-label": "Tree" },
        make("div", { class: "bar" }, make("label", {}, ghosts, " alternatives")), parts.trie),
    ];
    this._box = make("div", { class: "panels", "aria-busy": "false" }, ...this._panels);
    this.root = make("div", { class: "lq-run" }, make("div", { class: "row" }, make("div", { class: "tabs", role: "tablist", "aria-label": "views of the run" }, ...this._tabs), label),
      this._box, parts.card, make("section", { class: "ledger", "aria-label": "ledger" }, parts.ledger));
    this._card = new Card(parts.card, null);
    const choose = (token, run) => this._card.show(token, this._player.scene, { run });
    this._output = new OutputView(parts.output, (token) => choose(token, null));
    this._result = new ResultView(parts.result, parts.holes, onPlace);
    this._ledger = new LedgerView(parts.ledger);
    this._trie = new TrieView({ root: parts.trie, ghosts, onChoose: choose });
    this._branches = new Branches({ select: parts.select, label, onChoose: () => this._player.wake() });
    this._player = new Player((scene, deadline) => this._draw(scene, deadline), this._box);
    this._player.show(this.recording);
    this._show(0);
  }

  take(lines) {
    for (const line of lines) this.recording.take(line);
    this._player.wake();
  }

  _draw(scene, deadline) {
    const branch = this._branches.shown(scene);
    const isLedgerLeft = this._ledger.draw(scene, branch);
    if (this._at === 1) return this._trie.draw(scene) || isLedgerLeft;
    this._result.draw(scene);
    return this._output.draw(scene, branch, deadline) || isLedgerLeft;
  }

  _show(at) {
    this._at = at;
    this._tabs.forEach((tab, each) => {
      tab.setAttribute("aria-selected", String(each === at));
      tab.tabIndex = each === at ? 0 : -1;
      this._panels[each].hidden = each !== at;
    });
    this._player.wake();
  }

  _key(event) {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    this._show(1 - this._at);
    this._tabs[this._at].focus();
  }
}

const underWay = new Map(); // id of a run -> its view, which goes on in the next element of the run
const sheet = new CSSStyleSheet();
sheet.replaceSync(style);

class LqView extends HTMLElement {
  connectedCallback() {
    if (this.shadowRoot) return;
    this.attachShadow({ mode: "open" }).append(make("slot"));
    this.shadowRoot.adoptedStyleSheets = [sheet];
    this.style.colorScheme = isLight(getComputedStyle(this.parentElement ?? document.body).color) ? "dark" : "light";
    if (!this.hasAttribute("lazy")) return this._start();
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      this._start();
    });
    seen.observe(this);
  }

  /** Takes the next lines of the run, as objects. */
  take(lines) {
    this._view ??= this._viewOf(lines[0]?.run);
    this._view.take(lines);
    if (this._view.root.getRootNode() !== this.shadowRoot) this.shadowRoot.replaceChildren(this._view.root);
    if (this._view.recording.end) underWay.delete(lines[0]?.run);
  }

  _start() {
    const data = this.querySelector(":scope > script[type='application/json']");
    if (!data) return;
    try {
      const found = JSON.parse(data.textContent);
      this.take(Array.isArray(found) ? found : [...linesOf(found)]);
    } catch (error) {
      if (!(error instanceof Broken)) throw error;
      this.shadowRoot.replaceChildren(make("slot"), make("p", { class: "hint" }, `The run cannot be drawn: ${error.message}.`));
    }
  }

  _viewOf(run) {
    const found = underWay.get(run) ?? new RunView((span) => this.dispatchEvent(new CustomEvent("lq-place", { detail: span, composed: true })));
    if (run !== undefined) underWay.set(run, found);
    return found;
  }
}

/** Whether a colour such as rgb(20, 20, 20) is nearer to white. */
function isLight(colour) {
  const [red, green, blue] = colour.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0];
  return 0.3 * red + 0.6 * green + 0.1 * blue > 127;
}

if (!customElements.get("lq-view")) customElements.define("lq-view", LqView);
