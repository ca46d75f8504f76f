// What a run looks like after its first lines. Views read it; they remember how far they have drawn, since pieces and
// tokens are only ever added, and what changed is put down in `changed`.

import { shortened } from "./dom.js";
import { endingOf } from "./kinds.js";

const LONGEST = 2_000; // characters of a value in the log

/** One branch: its text and its tokens. Tokens on its `path` make up its text as far as it has tokens. */
class Hypothesis {
  constructor(state) {
    this.state = state;
    this.pieces = []; // {kind: "text" | "opened" | "closed" | "tool", ...}
    this.tokens = []; // lines of type `token`, with the fate they have by now
    this.path = []; // indices of the tokens that are kept, in the order of the text
    this.changed = []; // indices of tokens whose fate changed
    this.hole = null; // the hole that is open
    this.isPruned = false;
    this.places = new Map(); // node -> index of its token
    this.leaf = null; // where it stands in the tree
    this._same = Infinity; // tokens of the path that have stayed since somebody asked
  }

  get text() {
    return this.pieces.map((piece) => (piece.kind === "text" ? piece.text : "")).join("");
  }

  fork(state) {
    const fork = new Hypothesis(state);
    fork.pieces = [...this.pieces];
    fork.tokens = this.tokens.map((token) => ({ ...token }));
    fork.path = [...this.path];
    fork.places = new Map(this.places);
    fork.leaf = this.leaf;
    fork.hole = this.hole;
    return fork;
  }

  /** Tokens at the beginning of the path that have stayed since the last call. */
  takePathChange() {
    const same = this._same;
    this._same = Infinity;
    return same;
  }

  /** Takes a token. Gives the tokens that left the path because the run went back, and those that came back to it. */
  move(line) {
    const at = this.places.get(line.node);
    if (line.fate === "kept" || at === undefined) {
      const moved = line.fate === "kept" ? this._goBack(line.parent) : NOTHING;
      if (line.fate === "kept") {
        this.places.set(line.node, this.tokens.length);
        this.path.push(this.tokens.length);
      }
      this.tokens.push({ ...line });
      return moved;
    }
    if (this._isOnPath(at)) this._cut(this.path.lastIndexOf(at), (each) => each !== at);
    this._fate(at, line.fate);
    this.places.delete(line.node);
    return NOTHING;
  }

  /** The run goes on from `node`. Tokens behind it are rejected, as far as is known, and those that lead to it are kept. */
  _goBack(node) {
    const last = this.tokens[this.path.at(-1)];
    if (!last || last.node === node || !this.places.has(node)) return NOTHING;
    const back = [];
    let at = this.places.get(node);
    while (at !== undefined && !this._isOnPath(at)) {
      back.unshift(at);
      at = this.places.get(this.tokens[at].parent);
    }
    if (at === undefined) return NOTHING; // it begins anew
    const left = this.path.slice(this.path.lastIndexOf(at) + 1);
    this._cut(this.path.length - left.length);
    for (const each of left) this._fate(each, "rejected");
    for (const each of back) this._fate(each, "kept");
    this.path.push(...back);
    return { left: left.map((each) => this.tokens[each]), back: back.map((each) => this.tokens[each]) };
  }

  /** The run has failed. What was generated for a hole whose value nobody has seen is no part of the text. */
  fail() {
    const first = this.hole && this.pieces.at(-1)?.kind === "opened" ? this.path.findIndex((at) => at >= this.hole.from && this.tokens[at].hole === this.hole.name) : -1;
    if (first < 0) return [];
    const left = this.path.slice(first);
    this._cut(first);
    for (const each of left) this._fate(each, "rejected");
    return left.map((each) => this.tokens[each]);
  }

  _isOnPath(at) {
    return this.tokens[at].fate === "kept";
  }

  _cut(length, stays = () => false) {
    const rest = this.path.slice(length).filter(stays);
    this.path.length = length;
    this.path.push(...rest);
    this._same = Math.min(this._same, length);
  }

  _fate(at, fate) {
    this.tokens[at].fate = fate;
    this.changed.push(at);
  }
}

const NOTHING = { left: [], back: [] };

export const KINDS = ["prompt", "cache", "model", "draft", "forced"];

export class Scene {
  constructor() {
    this.count = 0; // lines taken
    this.ms = 0;
    this.started = null;
    this.end = null;
    this.log = []; // {ms, what, text}
    this.holes = []; // every hole that was opened, in order: {name, span, state, value, ending, ms, from}
    this.hypotheses = new Map();
    this.latest = 0; // the hypothesis that the last line was of
    this.trie = new Trie();
    this.winner = null; // the hypothesis that became the result
  }

  hypothesis(state) {
    let found = this.hypotheses.get(state);
    if (!found) this.hypotheses.set(state, (found = new Hypothesis(state)));
    return found;
  }

  take(line) {
    this.count += 1;
    this.ms = line.ms;
    const take = TAKES[line.type];
    if (take) take(this, line);
    if (!QUIET.has(line.type)) this._note(line);
  }

  _note(line) {
    const text = NOTES[line.type]?.(line);
    if (text !== undefined) this.log.push({ ms: line.ms, what: line.kind === "Stopped" ? "stopped" : line.type, text });
  }
}

const QUIET = new Set(["token", "text", "guessed"]);

const TAKES = {
  started: (scene, line) => void (scene.started = line),
  text: (scene, line) => {
    scene.latest = line.state;
    scene.hypothesis(line.state).pieces.push({ kind: "text", text: line.text, hole: line.hole });
  },
  media: (scene, line) => {
    scene.hypothesis(line.state).pieces.push({ kind: "media", name: line.name, thumbnail: line.thumbnail });
  },
  token: (scene, line) => {
    scene.latest = line.state;
    const hypothesis = scene.hypothesis(line.state);
    const { left, back } = hypothesis.move(line);
    for (const token of left) scene.trie.turn(token, false);
    for (const token of back) scene.trie.turn(token, true);
    hypothesis.leaf = scene.trie.move(line);
  },
  guessed: (scene, line) => scene.trie.guess(line),
  "hole.opened": (scene, line) => {
    const hypothesis = scene.hypothesis(line.state);
    const hole = { name: line.name, span: line.span, state: line.state, value: null, ending: null, ms: line.ms, from: hypothesis.tokens.length };
    scene.holes.push(hole);
    hypothesis.hole = hole;
    hypothesis.pieces.push({ kind: "opened", name: line.name });
  },
  "hole.closed": (scene, line) => {
    const hypothesis = scene.hypothesis(line.state);
    const { hole } = hypothesis;
    if (hole) Object.assign(hole, { value: line.value, ending: line.ending });
    hypothesis.hole = null;
    hypothesis.pieces.push({ kind: "closed", name: line.name, ending: line.ending });
  },
  forked: (scene, line) => {
    const parent = scene.hypothesis(line.parent);
    for (const child of line.children) {
      if (child !== line.parent) scene.hypotheses.set(child, parent.fork(child));
    }
    if (!line.children.includes(line.parent)) parent.isPruned = true;
    scene.trie.count(parent.leaf, line.children.length - 1);
  },
  pruned: (scene, line) => {
    const hypothesis = scene.hypothesis(line.state);
    hypothesis.isPruned = true;
    scene.trie.count(hypothesis.leaf, -1);
  },
  tool: (scene, line) => void scene.hypothesis(line.state).pieces.push({ kind: "tool", name: line.name }),
  done: (scene, line) => {
    scene.end = line;
    const left = [...scene.hypotheses.values()].filter((each) => !each.isPruned);
    scene.winner = (left.length > 1 && left.find((each) => each.text === line.prompt)) || left[0] || null;
  },
  error: (scene, line) => {
    scene.end = line;
    for (const each of scene.hypotheses.values()) for (const token of each.fail()) scene.trie.turn(token, false);
  },
};

const NOTES = {
  started: (line) => `${line.model}, ${line.decoder}, seed ${line.seed}`,
  notice: (line) => line.message,
  log: (line) => line.text,
  media: (line) => line.name,
  thought: (line) => shortened(line.text, LONGEST),
  "hole.opened": (line) => `[${line.name}]${line.span ? ` in line ${line.span.line}` : ""}`,
  "hole.closed": (line) => `[${line.name}] = ${JSON.stringify(shortened(line.value, LONGEST))}, ended by ${endingOf(line.ending)}`,
  forked: (line) => `branch ${line.parent} became ${line.children.join(", ")}`,
  pruned: (line) => `branch ${line.state} was given up`,
  tool: (line) => `${line.name}(${line.arguments}) → ${line.output}`,
  bound: (line) => `${line.name} = ${shortened(JSON.stringify(line.value), LONGEST)}`,
  done: () => "the run has ended",
  error: (line) => (line.kind === "Stopped" ? line.message : `${line.kind}: ${line.message}`),
};

/** Counts of tokens by source, of what stands in the text by now. */
export function tally(tokens) {
  const counts = { prompt: 0, cache: 0, model: 0, draft: 0, forced: 0, dropped: 0 };
  for (const token of tokens) {
    if (token.fate !== "kept") counts.dropped += 1;
    else counts[token.hole === null ? "prompt" : token.source] += 1;
  }
  return counts;
}

// The tree of what was said ---------------------------------------------------------------------------------------

/** Paths of tokens, shared beginnings once. A node says how often it was come by, and how often that was taken back. */
export class Trie {
  constructor() {
    this.root = { parent: null, children: new Map(), token: null, passes: 0, kept: 0 };
    this.latest = this.root;
    this.size = 0;
    this._places = new Map(); // a run's number of a node -> node
    this._waiting = new Map(); // a run's number of a node -> guesses of what follows it
  }

  /** Gives the node where the hypothesis stands by now. */
  move(line) {
    const node = this._child(this._places.get(line.parent) ?? this.root, line);
    this._place(line.node, node);
    if (line.fate !== "kept") {
      if (node.fate !== "rejected") node.kept = Math.max(0, node.kept - 1);
      node.fate = line.fate;
      return node.parent;
    }
    if (node.passes === 0) node.token = line; // it was guessed before
    node.passes += 1;
    node.kept += 1;
    node.fate = "kept";
    this.latest = node;
    return node;
  }

  /** A token left the text of a branch, or came back to it, before its fate was told. */
  turn(token, isBack) {
    const node = this._places.get(token.node);
    if (!node) return;
    node.kept = Math.max(0, node.kept + (isBack ? 1 : -1));
    node.fate = isBack ? "kept" : "rejected";
  }

  /** A token that the run may come by. */
  guess(line) {
    const parent = this._places.get(line.parent);
    if (parent) {
      this._place(line.node, this._child(parent, line));
      return;
    }
    this._waiting.set(line.parent, [...(this._waiting.get(line.parent) ?? []), line]);
  }

  /** So many hypotheses more, or less, stand at a node. */
  count(node, more) {
    for (let each = node; each && each !== this.root; each = each.parent) {
      each.kept = Math.max(0, each.kept + more);
      if (each.kept === 0) each.fate = "pruned";
    }
  }

  _child(parent, line) {
    const key = `${line.id} ${line.text}`;
    let node = parent.children.get(key);
    if (!node) {
      node = { parent, children: new Map(), token: line, passes: 0, kept: 0, fate: "missed" };
      parent.children.set(key, node);
      this.size += 1;
    }
    return node;
  }

  _place(number, node) {
    this._places.set(number, node);
    const waiting = this._waiting.get(number);
    if (!waiting) return;
    this._waiting.delete(number);
    for (const line of waiting) this.guess(line);
  }

  /** The other nodes that follow the same text as a token that moved here, likeliest first. */
  beside(token) {
    const node = this._places.get(token.node);
    const others = [...(node?.parent.children.values() ?? [])].filter((each) => each !== node);
    return others.sort((a, b) => (b.token.logprob ?? -Infinity) - (a.token.logprob ?? -Infinity));
  }

  /** The node of a token that moved here. */
  nodeOf(token) {
    return this._places.get(token.node);
  }

  /** Runs of tokens that nothing branches off and that are of one kind, as {tokens, kind, hole, passes, children};
   * breadth first, at most `most` of them. A run that was left out is counted in `hidden` of its parent. `best` are the
   * nodes of the result, which come first. With `ghosts` a place where the model was asked has its alternatives
   * as runs with an `alternative`. */
  runs(most, best = new Set(), ghosts = false) {
    const top = { tokens: [], kind: "root", hole: null, passes: 0, children: [], hidden: 0, last: this.root, depth: 0 };
    const drawn = [top];
    for (let at = 0; at < drawn.length; at++) {
      const run = drawn[at];
      if (run.alternative) continue;
      const rank = (node) => (best.has(node) ? 0 : node.kept ? 1 : 2);
      const children = [...run.last.children.values()].sort((a, b) => rank(a) - rank(b));
      for (const child of children) {
        if (drawn.length > most) {
          run.hidden += 1;
          continue;
        }
        const next = runFrom(child, run, best, ghosts);
        run.children.push(next);
        drawn.push(next);
      }
      if (!ghosts || drawn.length > most) continue;
      for (const alternative of thoughtOf(children)) {
        const ghost = { ...NO_RUN, tokens: [alternative.token], alternative, parent: run, depth: run.depth + 1 };
        run.children.push(ghost);
        drawn.push(ghost);
      }
    }
    return { top, drawn: drawn.slice(1) };
  }
}

export function kindOf(node) {
  if (node.kept === 0) return "dropped";
  return node.token.hole === null ? "prompt" : node.token.source;
}

const MAX_GHOSTS = 3; // at one place
const MIN_GHOST_PROBABILITY = 0.005;
const NO_RUN = { kind: "ghost", fate: "missed", hole: null, passes: 0, children: [], hidden: 0, isBest: false };

/** Alternatives where one of these nodes was chosen, likeliest first, without the nodes themselves. */
function thoughtOf(nodes) {
  const asked = nodes.find((node) => node.kept && node.token?.alternatives)?.token;
  if (!asked) return [];
  const known = new Set(nodes.map((node) => node.token.id));
  return asked.alternatives
    .filter((each) => !known.has(each.id) && Math.exp(each.logprob) >= MIN_GHOST_PROBABILITY)
    .slice(0, MAX_GHOSTS)
    .map((each) => (each.ghost ??= { ...each, asked, token: { ...asked, id: each.id, text: each.text ?? "", logprob: each.logprob } }));
}

function runFrom(first, parent, best, ghosts) {
  const kind = kindOf(first);
  const hole = first.token.hole;
  const tokens = [];
  let last = first;
  while (true) {
    tokens.push(last.token);
    if (last.children.size !== 1) break;
    const [next] = last.children.values();
    if (kindOf(next) !== kind || next.token.hole !== hole || next.passes !== first.passes) break;
    if (kind === "dropped" && next.fate !== first.fate) break;
    if (best.has(next) !== best.has(first) ) break;
    if (ghosts && thoughtOf([next]).length) break;
    last = next;
  }
  const fate = kind === "dropped" ? first.fate : "kept";
  const { passes } = first;
  return { tokens, kind, fate, hole, passes, isBest: best.has(first), children: [], hidden: 0, last, parent, depth: parent.depth + 1 };
}
