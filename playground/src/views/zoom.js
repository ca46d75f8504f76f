// The part of a drawing that a panel shows: all of it at first, then what somebody zooms and drags to.
const STEP = 1.3;
const LARGEST = 4; // pixels on the screen for one of the drawing
const LEAST_HEIGHT = 180;

export class Zoom {
  /** `buttons` are `inward`, `outward` and `fit`. */
  constructor(root, { inward, outward, fit }) {
    this._root = root;
    this._sheet = null;
    this._size = { width: 1, height: 1 };
    this._view = null; // {x, y, scale}; null: all of it
    inward.addEventListener("click", () => this._scale(STEP));
    outward.addEventListener("click", () => this._scale(1 / STEP));
    fit.addEventListener("click", () => this._move(null));
    root.addEventListener("wheel", (event) => this._wheel(event), { passive: false });
    root.addEventListener("pointerdown", (event) => this._drag(event));
  }

  /** Room for the drawing, in pixels. */
  get panel() {
    const { width, height, top } = this._root.getBoundingClientRect();
    return { width: Math.round(width), height: Math.max(Math.round(height), Math.min(LEAST_HEIGHT, Math.round(innerHeight - top))) };
  }

  /** The drawing has this size by now. */
  fit(sheet, width, height) {
    this._sheet = sheet;
    this._size = { width, height };
    this._apply();
  }

  /** Moves so that a part can be seen. */
  show(x, y, width, height) {
    if (!this._view) return;
    const { panel, _view: view } = this;
    const inside = (at, size, from, room) => Math.min(Math.max(from, at + size - room), at);
    this._move({ ...view, x: inside(x, width, view.x, panel.width / view.scale), y: inside(y, height, view.y, panel.height / view.scale) });
  }

  get _all() {
    const { panel, _size: size } = this;
    return { x: 0, y: 0, scale: Math.min(1, panel.width / size.width, panel.height / size.height) };
  }

  _move(view) {
    this._view = view;
    this._apply();
  }

  _apply() {
    if (!this._sheet) return;
    const { panel } = this;
    const { x, y, scale } = this._view ?? this._all;
    this._sheet.setAttribute("width", panel.width);
    this._sheet.setAttribute("height", panel.height);
    this._sheet.setAttribute("viewBox", `${x} ${y} ${panel.width / scale} ${panel.height / scale}`);
  }

  /** Zooms around a point of the panel, its middle unless told. */
  _scale(factor, at = { x: this.panel.width / 2, y: this.panel.height / 2 }) {
    const before = this._view ?? this._all;
    const scale = Math.min(Math.max(before.scale * factor, this._all.scale), LARGEST);
    if (scale === this._all.scale) return this._move(null);
    this._move({ scale, x: before.x + at.x / before.scale - at.x / scale, y: before.y + at.y / before.scale - at.y / scale });
  }

  /** The wheel zooms with Ctrl held, and moves where not all is in view; else the page scrolls. */
  _wheel(event) {
    if (!event.ctrlKey && !this._view) return;
    event.preventDefault();
    if (event.ctrlKey) {
      const { left, top } = this._root.getBoundingClientRect();
      this._scale(Math.exp(-event.deltaY / 300), { x: event.clientX - left, y: event.clientY - top });
    } else this._move({ ...this._view, x: this._view.x + event.deltaX / this._view.scale, y: this._view.y + event.deltaY / this._view.scale });
  }

  _drag(event) {
    if (!this._view || event.button !== 0) return;
    const from = { ...this._view, clientX: event.clientX, clientY: event.clientY };
    const moved = (move) => this._move({
      scale: from.scale,
      x: from.x - (move.clientX - from.clientX) / from.scale,
      y: from.y - (move.clientY - from.clientY) / from.scale,
    });
    addEventListener("pointermove", moved);
    addEventListener("pointerup", () => removeEventListener("pointermove", moved), { once: true });
  }
}
