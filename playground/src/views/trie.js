// The tree of what was said: shared beginnings are drawn once, an edge is as thick as it was often come by, and what was
// taken back stays as a ghost. The list beside it says the same in a table.
import { counted, draw as svg, make, onOneLine, shortened, visible } from "../dom.js";
import { FATES, MARKS, SOURCES } from "../kinds.js";
import { Trie } from "../scene.js";
import { times } from "./card.js";

const MOST_RUNS = 300; // drawn at once
const LABEL = 26; // characters
const CHARACTER = 7.3;
const ROW = 34;
const GAP = 34;
const PADDING = 9;
const MOST_NEW = 40; // of them, in one frame
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
    this._painted = new Map(); // first token of a run -> {stamp, node, edge}
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
    let isLeft = false;
    if (isList) this._tabulate(drawn);
    else {
      this._tidyRows(top);
      place(top);
      isLeft = this._paint(drawn, scene.end ? null : trie.latest);
    }
    const now = performance.now();
    this._notBefore = now + REST * (now - began);
    if (isLeft) this._drawn = null;
    return isLeft;
  }

  /** What looks as it did before is left where it is: a run that grows changes little of its tree. Says whether some
   * that are new are left for the next frame. */
  _paint(drawn, latest) {
    const focused = this._places.get(document.activeElement)?.tokens[0];
    const before = this._painted;
    this._painted = new Map();
    this._places.clear();
    if (!drawn.length) {
      this._root.replaceChildren(make("p", { class: "empty" }, "Nothing was said yet. A run grows from left to right here."));
      return false;
    }
    const parts = [];
    let width = 0;
    let height = 0;
    let made = 0;
    for (const run of drawn) {
      width = Math.max(width, run.x + run.width + (run.hidden ? 70 : 0));
      height = Math.max(height, (run.row + 1) * ROW);
      if (made === MOST_NEW) continue;
      const stamp = looks(run, run.last === latest);
      const known = before.get(run.tokens[0]);
      const isNew = known?.stamp !== stamp;
      const part = isNew ? { stamp, node: this._node(run, run.last === latest), edge: run.parent.tokens.length ? edge(run) : null } : known;
      made += isNew ? 1 : 0;
      parts.push(part);
      this._painted.set(run.tokens[0], part);
      this._places.set(part.node, run);
      run.element = part.node;
    }
    const follows = latest && this._root.scrollLeft + this._root.clientWidth >= this._root.scrollWidth - 40;
    const [edges, nodes] = this._sheet(width + 2 * PADDING, height + PADDING);
    fill(edges, parts.flatMap((part) => part.edge ?? []));
    fill(nodes, parts.map((part) => part.node));
    const again = focused && this._painted.get(focused)?.node;
    if (again && again !== document.activeElement) again.focus({ preventScroll: true });
    if (!nodes.querySelector('[tabindex="0"]')) (again ?? parts[0].node).setAttribute("tabindex", "0");
    if (follows) this._root.scrollLeft = this._root.scrollWidth;
    return parts.length < drawn.length;
  }

  /** Where edges and nodes are drawn. */
  _sheet(width, height) {
    let sheet = this._root.querySelector("svg");
    if (!sheet) {
      sheet = svg("svg", { role: "tree", "aria-label": "what was said" }, svg("g"), svg("g"));
      this._root.replaceChildren(sheet);
    }
    sheet.setAttribute("width", width);
    sheet.setAttribute("height", height);
    return sheet.children;
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
  return `${SOURCES[run.tokens[0].source]}${fate}${hole}, ${counted(run.tokens.length, "token")}, come by ${times(run.passes)}`;
}

/** All that its node and its edge are drawn from. */
function looks(run, isLatest) {
  const { parent } = run;
  return [run.kind, run.fate, isLatest, run.depth, run.x, run.row, run.width, run.hidden, run.passes, run.tokens.length, parent.x + parent.width, parent.row].join();
}

/** Puts the elements into a group that may have the first of them. */
function fill(group, elements) {
  let at = 0;
  for (let child = group.firstChild; child && child === elements[at]; child = child.nextSibling) at += 1;
  while (group.childNodes.length > at) group.lastChild.remove();
  group.append(...elements.slice(at));
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
