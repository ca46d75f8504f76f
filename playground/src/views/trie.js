// The tree of what was said: shared beginnings are drawn once, an edge is as thick as it was often come by, and what was
// taken back stays as a ghost. The list beside it says the same in a table.
import { draw as svg, make, onOneLine, shortened, visible } from "../dom.js";
import { FATES, MARKS, SOURCES } from "../kinds.js";
import { Trie } from "../scene.js";
import { times } from "./card.js";

const MOST_RUNS = 300; // drawn at once
const LABEL = 26; // characters
const CHARACTER = 7.3;
const ROW = 34;
const GAP = 34;
const PADDING = 9;
const REST = 6; // drawing takes at most one part in so many of the time

export class TrieView {
  constructor({ root, list, scope, tidyRows, onChoose }) {
    this._root = root;
    this._list = list;
    this._scope = scope;
    this._tidyRows = tidyRows ?? plainRows;
    this._onChoose = onChoose;
    this._drawn = null;
    this._notBefore = 0;
    this._places = new Map(); // element -> run
    this._current = null;
    this._others = [];
    root.addEventListener("click", (event) => this._choose(event.target.closest("[role=treeitem]")));
    root.addEventListener("keydown", (event) => this._key(event));
    scope.addEventListener("change", () => (this._drawn = null));
  }

  /** Recordings of other runs on this page, as scenes: drawn together with the one that is shown, where that is wanted. */
  setOthers(scenes) {
    this._others = scenes;
    this._drawn = null;
  }

  draw(scene) {
    const isList = !this._list.closest("[hidden]");
    const stamp = `${scene.count} ${this._scope.value} ${this._others.length} ${isList}`;
    if (this._scene === scene && this._drawn === stamp) return false;
    const began = performance.now();
    if (this._scene === scene && began < this._notBefore) return true;
    this._scene = scene;
    this._drawn = stamp;
    const trie = this._scope.value === "page" ? joined([...this._others, scene]) : scene.trie;
    const { top, drawn } = trie.runs(MOST_RUNS);
    if (isList) this._tabulate(drawn);
    else {
      this._tidyRows(top);
      place(top);
      this._paint(drawn, scene.end ? null : trie.latest);
    }
    const now = performance.now();
    this._notBefore = now + REST * (now - began);
    return false;
  }

  _paint(drawn, latest) {
    const focused = this._places.get(document.activeElement)?.tokens[0];
    this._places.clear();
    const edges = [];
    const nodes = [];
    let width = 0;
    let height = 0;
    for (const run of drawn) {
      if (run.parent.tokens.length) edges.push(edge(run));
      const node = this._node(run, run.last === latest);
      nodes.push(node);
      this._places.set(node, run);
      run.element = node;
      width = Math.max(width, run.x + run.width + (run.hidden ? 70 : 0));
      height = Math.max(height, (run.row + 1) * ROW);
    }
    const follows = this._root.scrollLeft + this._root.clientWidth >= this._root.scrollWidth - 40;
    const shown = svg("svg", { width: width + 2 * PADDING, height: height + PADDING, role: "tree", "aria-label": "what was said" }, ...edges, ...nodes);
    this._root.replaceChildren(drawn.length ? shown : make("p", { class: "empty" }, "Nothing was said yet. A run grows from left to right here."));
    const again = focused && drawn.find((run) => run.tokens[0] === focused);
    (again ?? drawn[0])?.element.setAttribute("tabindex", "0");
    again?.element.focus({ preventScroll: true });
    if (latest && follows) this._root.scrollLeft = this._root.scrollWidth;
  }

  _node(run, isLatest) {
    const text = run.tokens.map((token) => token.text).join("");
    const mark = MARKS[run.kind] ? `${MARKS[run.kind]} ` : "";
    const shownLabel = mark + label(text); // a name has to begin with what is to be seen
    const node = svg(
      "g",
      {
        class: `run ${run.kind}${isLatest ? " latest" : ""}`,
        role: "treeitem",
        tabindex: "-1",
        "aria-level": run.depth,
        "aria-selected": "false",
        "aria-label": `${shownLabel}: ${described(run)}`,
        transform: `translate(${run.x + PADDING} ${run.row * ROW + PADDING})`,
      },
      svg("rect", { width: run.width, height: ROW - 10, rx: 5 }),
      svg("text", { x: PADDING, y: 16.5 }, shownLabel),
    );
    if (run.hidden) node.append(svg("text", { class: "more", x: run.width + 6, y: 16.5 }, `+${run.hidden} more`));
    return node;
  }

  _tabulate(drawn) {
    const head = make("tr", {}, ...["text", "from", "hole", "tokens", "times", "what became of it"].map((name) => make("th", { scope: "col" }, name)));
    const rows = drawn.map((run) =>
      make(
        "tr",
        { class: run.kind },
        make("td", {}, make("code", {}, onOneLine(shortened(run.tokens.map((token) => token.text).join(""), 300)))),
        make("td", {}, run.tokens[0].source),
        make("td", {}, run.hole === null ? "–" : visible(run.hole)),
        make("td", { class: "number" }, String(run.tokens.length)),
        make("td", { class: "number" }, String(run.passes)),
        make("td", {}, FATES[run.fate]),
      ),
    );
    this._list.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
  }

  _choose(element) {
    const run = this._places.get(element);
    if (!run) return;
    this._root.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    this._root.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    element.setAttribute("tabindex", "0");
    element.setAttribute("aria-selected", "true");
    element.focus({ preventScroll: true });
    element.scrollIntoView({ block: "nearest", inline: "nearest" });
    this._onChoose(run.tokens[0], run);
  }

  _key(event) {
    const run = this._places.get(document.activeElement);
    if (!run || event.altKey || event.ctrlKey || event.metaKey) return;
    const runs = [...this._places.values()];
    const inRows = () => runs.toSorted((a, b) => a.row - b.row || a.x - b.x);
    const beside = (step) => inRows()[inRows().indexOf(run) + step];
    const ways = {
      ArrowLeft: () => run.parent,
      ArrowRight: () => run.children[0],
      ArrowDown: () => beside(1),
      ArrowUp: () => beside(-1),
      Home: () => runs[0],
      End: () => runs.at(-1),
      Enter: () => run,
      " ": () => run,
    };
    if (!(event.key in ways)) return;
    event.preventDefault();
    this._choose(ways[event.key]()?.element);
  }
}

function joined(scenes) {
  const all = new Trie();
  for (const scene of scenes) all.join(scene.trie);
  return all;
}

function label(text) {
  return shortened(onOneLine(text), LABEL);
}

function described(run) {
  const fate = run.kind === "dropped" ? `, ${FATES[run.fate]}` : "";
  const hole = run.hole === null ? "" : `, in ${visible(run.hole)}`;
  return `${SOURCES[run.tokens[0].source]}${fate}${hole}, ${run.tokens.length} tokens, come by ${times(run.passes)}`;
}

/** A row for each end, a parent beside its first child: where there is no layout from npm. */
function plainRows(top) {
  let row = 0;
  const stack = [top];
  while (stack.length) {
    const run = stack.pop();
    run.row = row;
    if (run.children.length === 0) row += 1;
    stack.push(...run.children.toReversed());
  }
}

function place(top) {
  const stack = [top];
  while (stack.length) {
    const run = stack.pop();
    const text = run.tokens.map((token) => token.text).join("");
    const long = label(text).length + (MARKS[run.kind] ? 2 : 0);
    run.width = run.tokens.length ? long * CHARACTER + 2 * PADDING : 0;
    run.x = run.parent?.tokens.length ? run.parent.x + run.parent.width + GAP : 0;
    stack.push(...run.children);
  }
}

function edge(run) {
  const { parent } = run;
  const from = { x: parent.x + parent.width + PADDING, y: parent.row * ROW + PADDING + (ROW - 10) / 2 };
  const to = { x: run.x + PADDING, y: run.row * ROW + PADDING + (ROW - 10) / 2 };
  const middle = (from.x + to.x) / 2;
  return svg("path", {
    class: `edge ${run.kind}`,
    d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`,
    "stroke-width": 1.5 + 2 * Math.log2(Math.max(1, run.passes)),
  });
}
