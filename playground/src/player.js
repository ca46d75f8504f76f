// Shows a recording up to some line, a slice of the work in each frame, so that no frame is late.
import { Scene } from "./scene.js";

const READING_MS = 8;
const DRAWING_MS = 8;
const HIDDEN_MS = 200;
const REPLAY_MS = 12_000; // the longest replay

export class Player {
  /** `draw(scene, deadline)` says whether something is left to draw; while it is, `element` is busy. */
  constructor(draw, element) {
    this._draw = draw;
    this._element = element;
    this.recording = null;
    this.scene = new Scene();
    this.at = null; // how many lines are shown; null: all there are
    this._isAsked = false;
    this._playing = null;
  }

  show(recording) {
    this.recording = recording;
    this.pause();
    this.scene = new Scene();
    this.at = null;
    this.wake();
  }

  seek(at) {
    const { length } = this.recording?.lines ?? [];
    this.at = at === null || at >= length ? null : at;
    if (this.at !== null && this.at < this.scene.count) this.scene = new Scene();
    this.wake();
  }

  get isPlaying() {
    return this._playing !== null;
  }

  /** Goes through the lines at the pace at which they came, from the beginning where the end is shown. */
  play() {
    if (!this.recording?.lines.length) return;
    if (this.at === null) this.seek(0);
    const pace = Math.max(1, this.recording.ms / REPLAY_MS);
    const from = this.scene.ms;
    this._playing = { began: performance.now(), from, pace };
    this.wake();
  }

  pause() {
    this._playing = null;
  }

  /** Something is new. */
  wake() {
    if (this._isAsked) return;
    this._isAsked = true;
    this._element.setAttribute("aria-busy", "true");
    const frame = () => {
      this._isAsked = false;
      this._frame();
    };
    if (document.visibilityState === "visible") requestAnimationFrame(frame);
    else setTimeout(frame, HIDDEN_MS);
  }

  _frame() {
    const lines = this.recording?.lines ?? [];
    if (this._playing) this._advance(lines);
    const until = this.at ?? lines.length;
    const deadline = performance.now() + READING_MS;
    while (this.scene.count < until) {
      if (this.scene.count % 64 === 0 && performance.now() > deadline) break;
      this.scene.take(lines[this.scene.count]);
    }
    const isLeft = this._draw(this.scene, performance.now() + DRAWING_MS);
    if (isLeft || this.scene.count < until || this._playing) this.wake();
    else this._element.setAttribute("aria-busy", "false");
  }

  _advance(lines) {
    const { began, from, pace } = this._playing;
    const ms = from + (performance.now() - began) * pace;
    let at = this.at ?? lines.length;
    while (at < lines.length && lines[at].ms <= ms) at += 1;
    this.at = at;
    if (at < lines.length) return;
    this.at = null;
    this._playing = null;
  }
}
