// Where each kept token of a branch stands in the text that the run has shown, so that a text can be drawn in the colours
// of its tokens.

const AHEAD = 4_000; // characters to look ahead for a token after text that has no tokens, such as the marks of a turn

/** Counts of the tokens of one hole, by source. */
function zero() {
  return { cache: 0, model: 0, draft: 0, forced: 0 };
}

/** The text of bytes; null where the last character is not whole. */
function whole(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

export class Colours {
  constructor(hypothesis) {
    this._hypothesis = hypothesis;
    this.text = ""; // all pieces joined
    this.holes = []; // {name, from, to, ending, counts, version}; `to` is null while the hole is open
    this._pieces = 0; // pieces taken
    this._named = new Map(); // name -> its holes, in order
    this._starts = []; // place on the path -> offset in the text, -1 where the token has no place in it
    this._ends = [];
    this._owners = []; // place on the path -> {hole, source}, null for the program's own text
    this._spelled = new Map(); // place on the path -> text, where a token ends a character that another one begins
    this._at = 0; // end of the last token that was found
    this._version = 0;
  }

  /** Takes what is new. Gives the first offset whose colours may have changed, or null. */
  update() {
    const { pieces, path, tokens } = this._hypothesis;
    let changed = null;
    while (this._pieces < pieces.length) this._piece(pieces[this._pieces++]);
    const kept = Math.min(this._hypothesis.takePathChange(), this._starts.length);
    if (kept < this._starts.length) changed = this._forget(kept);
    while (this._starts.length < path.length) {
      const token = tokens[path[this._starts.length]];
      const before = this._at;
      if (!this._find(token)) break;
      if (token.hole !== null) changed = Math.min(changed ?? before, before);
    }
    return changed;
  }

  /** The text from `from` to `to` in runs of one source: {text, kind, at}; `kind` is null for the program's own text. */
  *runs(from, to) {
    const { path, tokens } = this._hypothesis;
    let at = from;
    let run = null;
    for (let place = this._first(from); at < to; place++) {
      while (place < this._starts.length && (this._starts[place] < 0 || this._ends[place] <= at)) place += 1;
      const isToken = place < this._starts.length && this._starts[place] <= at;
      const token = isToken ? tokens[path[place]] : null;
      const end = isToken ? this._ends[place] : place < this._starts.length ? this._starts[place] : to;
      const stop = Math.min(end, to);
      const kind = token && token.hole !== null ? token.source : null;
      if (run && run.kind === kind) run.text += this.text.slice(at, stop);
      else {
        if (run) yield run;
        run = { text: this.text.slice(at, stop), kind, at };
      }
      at = stop;
      if (!isToken) place -= 1;
    }
    if (run) yield run;
  }

  /** The token at an offset of the text, with its own offsets: {token, from, to}; null where there is none. */
  tokenAt(offset) {
    const { path, tokens } = this._hypothesis;
    for (let place = this._first(offset); place < this._starts.length && this._starts[place] <= offset; place++) {
      if (this._starts[place] >= 0 && offset < this._ends[place]) return { token: tokens[path[place]], from: this._starts[place], to: this._ends[place] };
    }
    return null;
  }

  /** The hole of the token at a place of the path, and the offset where the token begins; null where either is unknown. */
  placeAt(place) {
    const hole = this._owners[place]?.hole;
    const start = this._starts[place] ?? -1;
    return hole && start >= 0 ? { hole, start } : null;
  }

  /** A place of the path at or before the first token that ends behind an offset. */
  _first(offset) {
    let low = 0;
    let high = this._starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this._ends[middle] <= offset) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  _piece(piece) {
    switch (piece.kind) {
      case "opened": {
        const hole = { name: piece.name, from: this.text.length, to: null, ending: null, counts: zero(), version: 0 };
        this.holes.push(hole);
        if (this._named.has(piece.name)) this._named.get(piece.name).push(hole);
        else this._named.set(piece.name, [hole]);
        break;
      }
      case "closed": {
        const hole = this._named.get(piece.name)?.at(-1);
        if (hole) Object.assign(hole, { to: this.text.length, ending: piece.ending, version: ++this._version });
        break;
      }
      case "text":
        this.text += piece.text;
    }
  }

  /** Looks for the next token of the path in the text. False where its text has not come yet. */
  _find(token) {
    const place = this._starts.length;
    const text = this._spelling(place);
    if (text === null) return false;
    let at = this._at;
    if (!this.text.startsWith(text, at)) {
      const rest = this.text.slice(at, at + text.length);
      if (text.startsWith(rest) && rest.length < text.length) return false;
      at = token.hole === null ? -1 : this.text.slice(at, at + AHEAD).indexOf(text);
      if (at >= 0) at += this._at;
    }
    if (at >= 0) this._at = at + text.length;
    this._starts.push(at);
    this._ends.push(this._at); // also of a token without a place, so that they are in order
    const hole = token.hole === null ? null : this._owner(token.hole, at);
    this._owners.push(hole && { hole, source: token.source });
    if (hole) this._count(hole, token.source, 1);
    return true;
  }

  /** Text of the token at a place; null where its last bytes have not come yet. A character whose bytes several tokens
   * have belongs to the first of them. */
  _spelling(place) {
    const { path, tokens } = this._hypothesis;
    if (tokens[path[place]].base64 === undefined) return tokens[path[place]].text;
    if (this._spelled.has(place)) return this._spelled.get(place);
    const bytes = [];
    let end = place;
    for (; end < path.length && tokens[path[end]].base64 !== undefined; end++) {
      bytes.push(...Array.from(atob(tokens[path[end]].base64), (character) => character.charCodeAt(0)));
      const text = whole(bytes);
      if (text === null) continue;
      for (let each = place + 1; each <= end; each++) this._spelled.set(each, "");
      return text;
    }
    return end < path.length ? "" : null;
  }

  /** The hole of this name that a token at an offset is of: one that was healed begins before its hole, and one that
   * met a stop may begin where the value ends. */
  _owner(name, offset) {
    const holes = this._named.get(name);
    if (!holes || offset < 0) return holes?.at(-1) ?? null;
    let low = 0;
    let high = holes.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (holes[middle].to !== null && holes[middle].to < offset) low = middle + 1;
      else high = middle;
    }
    while (low + 1 < holes.length && holes[low + 1].from <= offset) low += 1;
    return holes[low];
  }

  _count(hole, source, more) {
    hole.counts[source] += more;
    hole.version = ++this._version;
  }

  /** Forgets the tokens from a place of the path on. Gives the offset where they began. */
  _forget(kept) {
    let first = this._at;
    while (this._starts.length > kept) {
      const start = this._starts.pop();
      this._ends.pop();
      const owner = this._owners.pop();
      if (owner) this._count(owner.hole, owner.source, -1);
      if (start >= 0) first = start;
    }
    for (const place of this._spelled.keys()) if (place >= kept) this._spelled.delete(place);
    this._at = first;
    return first;
  }
}
