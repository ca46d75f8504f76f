// The lines of one run, as they came: to be shown up to any of them, and to be kept as a file.

const SCHEMA = 1;

export class Broken extends Error {}

export class Recording {
  constructor(name, source = null) {
    this.name = name;
    this.source = source; // the query's text, where it is known
    this.asked = null; // the run as it was asked for, where that is known
    this.lines = [];
    this.texts = [];
    this.end = null; // the last line: `done` or `error`
  }

  get seq() {
    return this.lines.length - 1;
  }

  get ms() {
    return this.lines.at(-1)?.ms ?? 0;
  }

  /** Takes the next line as it was written; `texts` keep it. */
  add(text) {
    let line;
    try {
      line = JSON.parse(text);
    } catch {
      throw new Broken(`line ${this.lines.length + 1} is not JSON`);
    }
    if (this.take(line)) this.texts.push(text);
  }

  /** Takes the next line and says that it is new. One that was read before is passed over; raises Broken where one is
   * missing. */
  take(line) {
    if (line?.schema > SCHEMA) throw new Broken(`it has schema ${line.schema}, and this page reads up to ${SCHEMA}`);
    if (line?.schema !== SCHEMA || !Number.isInteger(line.seq) || typeof line.type !== "string") {
      throw new Broken(`line ${this.lines.length + 1} is not a line of a run`);
    }
    if (line.seq < this.lines.length) return false;
    if (line.seq > this.lines.length) throw new Broken(`line ${this.lines.length} is missing`);
    if (this.lines.length && line.run !== this.lines[0].run) throw new Broken("a line of another run stands in it");
    this.lines.push(line);
    if (line.type === "done" || line.type === "error") this.end = line;
    return true;
  }
}
