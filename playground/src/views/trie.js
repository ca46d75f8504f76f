// The tree of what was said: shared beginnings are drawn once, an edge is as thick as it was often come by, and what was
// taken back stays as a ghost.
import { counted, draw as svg, make, onOneLine, shortened, visible } from "../dom.js";
import { FATES, MARKS, SOURCES } from "../kinds.js";
import { ROW, layOut } from "../layout.js";
import { times } from "./card.js";
import { percent } from "./tokens.js";

const MAX_RUNS = 300; // drawn at once
const MAX_TOKENS_WITH_GHOSTS = 150; // tokens of a tree that shows alternatives
const LABEL = 26; // characters
const CHARACTER = 7.3;
const PADDING = 9;
const MARGIN = 60; // pixels at the right, for lines that go down
const MAX_NEW = 40; // of them, in one frame
const REST = 6; // drawing takes at most one part in so many of the time

export class TrieView {
  /** `ghosts` is a check box. */
  constructor({ root, ghosts, onChoose }) {
    this._root = root;
    this._ghosts = ghosts;
    this._onChoose = onChoose;
    this._drawn = null;
    this._notBefore = 0;
    this._places = new Map(); // element -> run
    this._painted = new Map(); // first token of a run -> {stamp, node, edge}
    ghosts.addEventListener("change", () => (this._drawn = null));
    root.addEventListener("click", (event) => this._choose(event.target.closest("[role=treeitem]")));
    root.addEventListener("keydown", (event) => this._key(event));
  }

  /** The element with the focus, also where the tree stands in an element of its own. */
  get _focused() {
    return this._root.getRootNode().activeElement;
  }

  draw(scene) {
    const width = this._root.clientWidth;
    const stamp = `${scene.count} ${width}`;
    if (this._scene === scene && this._drawn === stamp) return false;
    const began = performance.now();
    if (this._scene === scene && began < this._notBefore) return true;
    this._scene = scene;
    this._drawn = stamp;
    const { trie } = scene;
    const hasGhosts = this._ghosts.checked && trie.size <= MAX_TOKENS_WITH_GHOSTS;
    const { top, drawn } = trie.runs(MAX_RUNS, best(scene, trie), hasGhosts);
    for (const run of drawn) run.width = widthOf(run);
    const isLeft = this._paint(drawn, scene.end ? null : trie.latest, layOut(top, width - MARGIN));
    const now = performance.now();
    this._notBefore = now + REST * (now - began);
    if (isLeft) this._drawn = null;
    return isLeft;
  }

  /** What looks as it did before is left where it is: a run that grows changes little of its tree. Says whether some
   * that are new are left for the next frame. */
  _paint(drawn, latest, size) {
    const focused = this._places.get(this._focused)?.tokens[0];
    const before = this._painted;
    this._painted = new Map();
    this._places.clear();
    if (!drawn.length) {
      this._root.replaceChildren(make("p", { class: "empty" }, "No tokens yet. A run grows from left to right here."));
      return false;
    }
    const parts = [];
    let made = 0;
    for (const run of drawn) {
      if (made === MAX_NEW) continue;
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
    const [edges, nodes] = this._sheet(size.width + 2 * PADDING, size.height + PADDING);
    fill(edges, parts.flatMap((part) => part.edge ?? []));
    fill(nodes, parts.map((part) => part.node));
    const again = focused && this._painted.get(focused)?.node;
    if (again && again !== this._focused) again.focus({ preventScroll: true });
    if (!nodes.querySelector('[tabindex="0"]')) (again ?? parts[0].node).setAttribute("tabindex", "0");
    return parts.length < drawn.length;
  }

  /** Where edges and nodes are drawn. */
  _sheet(width, height) {
    let sheet = this._root.querySelector("svg");
    if (!sheet) {
      sheet = svg("svg", { role: "tree", "aria-label": "token tree" }, svg("g"), svg("g"));
      this._root.replaceChildren(sheet);
    }
    sheet.setAttribute("width", width);
    sheet.setAttribute("height", height);
    return sheet.children;
  }

  _node(run, isLatest) {
    const shownLabel = labelOf(run); // a name has to begin with what is to be seen
    const node = svg(
      "g",
      {
        class: classOf(run) + (isLatest ? " latest" : ""),
        role: "treeitem",
        tabindex: "-1",
        "aria-level": run.depth,
        "aria-selected": "false",
        "aria-label": `${shownLabel}: ${described(run)}`,
        transform: `translate(${run.x + PADDING} ${run.row * ROW + PADDING})`,
      },
      svg("rect", { width: run.width, height: ROW - 10, rx: 5 }),
      svg("text", { x: PADDING, y: 16.5 }, shownLabel),
      run.alternative?.clause ? svg("title", {}, `forbidden by ${visible(run.alternative.clause)}`) : null,
    );
    if (run.hidden) node.append(svg("text", { class: "more", x: run.width + 6, y: 16.5 }, `+${run.hidden} more`));
    return node;
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
    this._onChoose(run.alternative?.asked ?? run.tokens[0], run.alternative ? null : run, () => element.getBoundingClientRect());
  }

  _key(event) {
    const run = this._places.get(this._focused);
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

/** Nodes of the result, where there are branches that did not become it. */
function best(scene, trie) {
  const winner = scene.hypotheses.size > 1 ? scene.winner : null;
  return new Set(winner?.path.map((at) => trie.nodeOf(winner.tokens[at])));
}

function classOf(run) {
  const marks = [run.isBest && "best", run.alternative && !run.alternative.allowed && "struck"];
  return [run.alternative ? "ghost" : "run", run.kind, ...marks.filter(Boolean)].join(" ");
}

function labelOf(run) {
  if (run.alternative) {
    const text = run.alternative.text === null ? "end" : label(run.alternative.text);
    return `${text} ${percent(Math.exp(Math.min(run.alternative.logprob, 0)))}${run.alternative.allowed ? "" : " ✕"}`;
  }
  const mark = MARKS[run.kind] ? `${MARKS[run.kind]} ` : "";
  return mark + label(run.tokens.map((token) => token.text).join(""));
}

function widthOf(run) {
  return labelOf(run).length * CHARACTER + 2 * PADDING;
}

/** Text on one line; spaces that nobody would see are signs. */
function label(text) {
  return shortened(onOneLine(/^ +$/.test(text) ? text.replaceAll(" ", "␣") : text), LABEL);
}

function described(run) {
  if (run.alternative) {
    const { allowed, clause } = run.alternative;
    return allowed ? "not taken" : clause ? `forbidden by ${visible(clause)}` : "forbidden by the conditions together";
  }
  const fate = run.kind === "dropped" ? `, ${FATES[run.fate]}` : "";
  const hole = run.hole === null ? "" : `, in ${visible(run.hole)}`;
  return `${SOURCES[run.tokens[0].source]}${fate}${hole}, ${counted(run.tokens.length, "token")}, reached ${times(run.passes)}`;
}

/** All that its node and its edge are drawn from. */
function looks(run, isLatest) {
  const { parent } = run;
  return [classOf(run), run.fate, isLatest, run.isWrapped, run.turn, run.depth, run.x, run.row, run.width, run.hidden, run.passes, run.tokens.length, parent.x + parent.width, parent.row].join();
}

/** Puts the elements into a group that may have the first of them. */
function fill(group, elements) {
  let at = 0;
  for (let child = group.firstChild; child && child === elements[at]; child = child.nextSibling) at += 1;
  while (group.childNodes.length > at) group.lastChild.remove();
  group.append(...elements.slice(at));
}

function edge(run) {
  const { parent } = run;
  const from = { x: parent.x + parent.width + PADDING, y: parent.row * ROW + PADDING + (ROW - 10) / 2 };
  const to = { x: run.x + PADDING, y: run.row * ROW + PADDING + (ROW - 10) / 2 };
  const middle = (from.x + to.x) / 2;
  const side = to.y - ROW / 2;
  return svg("path", {
    class: `edge ${run.kind}${run.isBest ? " best" : ""}`,
    d: run.isWrapped ? `M${from.x} ${from.y}H${run.turn + PADDING}V${side}H${to.x - 10}V${to.y}h10` : `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`,
    "stroke-width": 1.5 + 2 * Math.log2(Math.max(1, run.passes)),
  });
}
