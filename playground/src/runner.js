// Runs: started, followed, stopped, and found again after the page was loaded anew.
import { Broken, Recording } from "./recording.js";
import { linesOf } from "./server.js";

const SLICE_MS = 8;

/** Lines come faster than anybody can look at them: gives the page its turn. */
function turns() {
  let began = performance.now();
  return async () => {
    if (performance.now() - began < SLICE_MS) return;
    await new Promise((done) => setTimeout(done));
    began = performance.now();
  };
}

export class Runner {
  /** `onLines(recording)`: some are new. `onEnd(recording)`; `onTrouble(error)`; `onBack()`: the connection stands again. */
  constructor({ server, onLines, onEnd, onTrouble, onBack }) {
    this._server = server;
    this._onLines = onLines;
    this._onEnd = onEnd;
    this._onTrouble = onTrouble;
    this._onBack = onBack;
    this.run = null; // the number of the run that is under way
    this.over = Promise.resolve(); // when the last one has ended
  }

  async start(asked) {
    const { run } = await this._server.post("/api/runs", asked);
    const recording = new Recording(run, asked.text);
    recording.asked = asked;
    this.over = this.follow(recording);
    return recording;
  }

  /** Reads the lines of a run until its last one. */
  async follow(recording) {
    const run = recording.name;
    this.run = run;
    const rest = turns();
    let isLost = false;
    try {
      const lost = (times) => {
        isLost = true;
        this._onTrouble(new Broken(`the connection is lost; asked again ${times} times`));
      };
      for await (const text of this._server.lines(run, () => recording.seq, () => recording.end !== null, lost)) {
        if (isLost) this._onBack();
        isLost = false;
        recording.add(text);
        this._onLines(recording);
        await rest();
      }
    } catch (error) {
      this._onTrouble(error);
    }
    if (this.run === run) this.run = null;
    this._onEnd(recording);
  }

  async stop() {
    if (this.run !== null) await this._server.delete(`/api/runs/${this.run}`);
  }

  /** The last run of this page, if the server still has it: one that ended is shown, one under way is followed. */
  async again(run, source) {
    const { runs } = await this._server.get("/api/runs");
    if (!runs.some((each) => each.run === run)) return null;
    const recording = new Recording(run, source);
    this.follow(recording);
    return recording;
  }
}

/** The recording that comes piece by piece. Raises Broken where it is none. */
export async function readRecording(name, stream, onLines, source = null) {
  const recording = new Recording(name, source);
  const rest = turns();
  for await (const text of linesOf(stream)) {
    if (!text) continue;
    recording.add(text);
    onLines(recording);
    await rest();
  }
  if (!recording.lines.length) throw new Broken("it has no lines of a run");
  return recording;
}
