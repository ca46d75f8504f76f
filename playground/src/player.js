// Shows a recording as it grows, a slice of the work in each frame, so that no frame is late.
import { Scene } from "./scene.js";

const READING_MS = 8;
const DRAWING_MS = 8;
const HIDDEN_MS = 200;

export class Player {
  /** `draw(scene, deadline)` says whether something is left to draw; while it is, `element` is busy. */
  constructor(draw, element) {
    this._draw = draw;
    this._element = element;
    this.recording = null;
    this.scene = new Scene();
    this._isAsked = false;
  }

  show(recording) {
    this.recording = recording;
    this.scene = new Scene();
    this.wake();
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
    const deadline = performance.now() + READING_MS;
    while (this.scene.count < lines.length) {
      if (this.scene.count % 64 === 0 && performance.now() > deadline) break;
      this.scene.take(lines[this.scene.count]);
    }
    const isLeft = this._draw(this.scene, performance.now() + DRAWING_MS);
    if (isLeft || this.scene.count < lines.length) this.wake();
    else this._element.setAttribute("aria-busy", "false");
  }
}
