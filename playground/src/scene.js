// What a run looks like after its first lines. Views read it; they remember how far they have drawn, since pieces and
// tokens are only ever added, and what changed is put down in `changed`.

import { shortened } from "./dom.js";

const LONGEST = 2_000; // characters of a value in the log

/** One hypothesis: what it says, token by token and as text. */
class Hypothesis {
  constructor(state, pieces = [], tokens = [], places = new Map()) {
    this.state = state;
    this.pieces = pieces; // {kind: "text" | "opened" | "closed" | "tool", ...}
    this.tokens = tokens; // lines of type `token`, with the fate they have by now
    this.changed = []; // indices of tokens whose fate changed
    this.hole = null; // the hole that is open
    this.isPruned = false;
    this.places = places; // node -> index of its token
    this.leaf = null; // where it stands in the tree
  }

  get text() {
    return this.pieces.map((piece) => (piece.kind === "text" ? piece.text : "")).join("");
  }

  fork(state) {
    const tokens = this.tokens.map((token) => ({ ...token }));
    const fork = new Hypothesis(state, [...this.pieces], tokens, new Map(this.places));
    fork.leaf = this.leaf;
    fork.hole = this.hole;
    return fork;
  }

  move(line) {
    const at = this.places.get(line.node);
    if (line.fate === "kept" || at === undefined) {
      if (line.fate === "kept") this.places.set(line.node, this.tokens.length);
      this.tokens.push({ ...line });
      return;
    }
    this.tokens[at].fate = line.fate;
    this.changed.push(at);
    this.places.delete(line.node);
  }
}

export const KINDS = ["prompt", "cache", "model", "draft", "forced"];

export class Scene {
  constructor() {
    this.count = 0; // lines taken
    this.ms = 0;
    this.started = null;
    this.end = null;
    this.log = []; // {ms, what, text}
    this.holes = []; // every hole that was opened, in order: {name, span, state, value, ending, ms, from}
    this.choices = new Map(); // name of a hole -> what its conditions left the model to choose from
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
    if (text !== undefined) this.log.push({ ms: line.ms, what: line.type, text });
  }
}

const QUIET = new Set(["token", "text", "guessed"]);

const TAKES = {
  started: (scene, line) => void (scene.started = line),
  text: (scene, line) => {
    scene.latest = line.state;
    scene.hypothesis(line.state).pieces.push({ kind: "text", text: line.text, hole: line.hole });
  },
  token: (scene, line) => {
    scene.latest = line.state;
    const hypothesis = scene.hypothesis(line.state);
    hypothesis.move(line);
    hypothesis.leaf = scene.trie.move(line);
    if (line.allowed !== undefined && line.hole !== null) choose(scene.choices, line);
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
    if (hole) Object.assign(hole, { value: line.value, ending: line.ending, took: line.ms });
    const said = hole ? hypothesis.tokens.slice(hole.from).filter((token) => token.hole === line.name) : [];
    hypothesis.hole = null;
    hypothesis.pieces.push({ kind: "closed", name: line.name, value: line.value, ending: line.ending, counts: tally(said) });
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
  error: (scene, line) => void (scene.end = line),
};

const NOTES = {
  started: (line) => `${line.model}, ${line.decoder}, seed ${line.seed}`,
  notice: (line) => line.message,
  log: (line) => line.text,
  "hole.opened": (line) => `[${line.name}] in line ${line.span.line}`,
  "hole.closed": (line) => `[${line.name}] = ${JSON.stringify(shortened(line.value, LONGEST))}, ended by ${line.ending}`,
  forked: (line) => `hypothesis ${line.parent} became ${line.children.join(", ")}`,
  pruned: (line) => `hypothesis ${line.state} was given up`,
  tool: (line) => `${line.name}(${line.arguments}) → ${line.output}`,
  bound: (line) => `${line.name} = ${shortened(JSON.stringify(line.value), LONGEST)}`,
  done: () => "the run has ended",
  error: (line) => `${line.kind}: ${line.message}`,
};

/** Counts how often a hole's conditions forbade what the model liked best, and by which clause. */
function choose(choices, line) {
  let found = choices.get(line.hole);
  if (!found) choices.set(line.hole, (found = { times: 0, allowed: 0, vocabulary: line.vocabulary, overruled: new Map() }));
  found.times += 1;
  found.allowed += line.allowed;
  const [first] = line.alternatives ?? [];
  if (first && !first.allowed) found.overruled.set(first.clause, (found.overruled.get(first.clause) ?? 0) + 1);
}

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
      node.kept = Math.max(0, node.kept - 1);
      node.fate = line.fate;
      return node.parent;
    }
    if (node.passes === 0) node.token = line; // it was guessed before
    node.passes += 1;
    node.kept += 1;
    this.latest = node;
    return node;
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

  /** Adds what another tree has: a later run says where its tokens came from then. */
  join(other) {
    const pairs = [[this.root, other.root]];
    while (pairs.length) {
      const [mine, theirs] = pairs.pop();
      for (const [key, child] of theirs.children) {
        let node = mine.children.get(key);
        if (!node) {
          node = { parent: mine, children: new Map(), token: child.token, passes: 0, kept: 0, fate: child.fate };
          mine.children.set(key, node);
          this.size += 1;
        }
        node.token = child.token;
        node.passes += child.passes;
        node.kept += child.kept;
        node.fate = child.fate;
        if (child === other.latest) this.latest = node;
        pairs.push([node, child]);
      }
    }
  }

  /** Runs of tokens that nothing branches off and that are of one kind, as {tokens, kind, hole, passes, children};
   * breadth first, at most `most` of them. A run that was left out is counted in `hidden` of its parent. */
  runs(most) {
    const top = { tokens: [], kind: "root", hole: null, passes: 0, children: [], hidden: 0, last: this.root, depth: 0 };
    const drawn = [top];
    for (let at = 0; at < drawn.length; at++) {
      const run = drawn[at];
      for (const child of run.last.children.values()) {
        if (drawn.length > most) {
          run.hidden += 1;
          continue;
        }
        const next = runFrom(child, run);
        run.children.push(next);
        drawn.push(next);
      }
    }
    return { top, drawn: drawn.slice(1) };
  }
}

export function kindOf(node) {
  if (node.kept === 0) return "dropped";
  return node.token.hole === null ? "prompt" : node.token.source;
}

function runFrom(first, parent) {
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
    last = next;
  }
  const fate = kind === "dropped" ? first.fate : "kept";
  const { passes } = first;
  return { tokens, kind, fate, hole, passes, children: [], hidden: 0, last, parent, depth: parent.depth + 1 };
}
