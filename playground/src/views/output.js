// The text as the model saw it; every hole is a box with its name. Blocks of a bounded size, so that a long text is
// laid out piece by piece.
import { make, visible } from "../dom.js";
import { MARKS } from "../kinds.js";

const SOFT = 4_000; // characters of a block: it ends with the next line feed
const HARD = 8_000; // it ends here

export class OutputView {
  constructor(root) {
    this._root = root;
    this._hypothesis = null;
  }

  /** Draws what is new until `deadline`; says whether something is left. */
  draw(scene, hypothesis, deadline) {
    if (hypothesis !== this._hypothesis) this._reset(hypothesis);
    if (!hypothesis) return false;
    const { pieces } = hypothesis;
    while (this._at < pieces.length) {
      if (this._at % 64 === 0 && performance.now() > deadline) return true;
      this._piece(pieces[this._at++]);
    }
    return false;
  }

  _reset(hypothesis) {
    this._hypothesis = hypothesis;
    this._root.replaceChildren();
    this._at = 0;
    this._box = null;
    this._block = null;
    this._beginBlock();
  }

  _piece(piece) {
    switch (piece.kind) {
      case "opened":
        this._box = this._newBox(piece.name);
        break;
      case "closed":
        this._close(piece);
        break;
      case "tool":
        this._block.append(make("b", { class: "label" }, `${visible(piece.name)}()`));
        break;
      default:
        this._write(piece);
    }
  }

  _newBox(name, isContinued = false) {
    const box = make("span", { class: isContinued ? "hole open continued" : "hole open", "data-hole": name });
    if (!isContinued) {
      this._label = make("b", { class: "label" }, visible(name));
      box.append(this._label);
    }
    this._block.append(box);
    return box;
  }

  _close(piece) {
    if (this._box?.dataset.hole !== piece.name) return;
    const said = Object.entries(piece.counts).filter(([kind, count]) => count && kind !== "prompt" && kind !== "dropped");
    for (const box of this._root.querySelectorAll(".hole.open")) {
      box.classList.remove("open");
      dress(box, said);
    }
    const marks = said.filter(([kind]) => MARKS[kind]).map(([kind, count]) => ` ${MARKS[kind]}${count}`);
    this._label.append(make("small", {}, ` ${visible(piece.ending)}`), ...marks.map((mark) => make("small", { class: "marks" }, mark)));
    this._label.title = `${said.map(([kind, count]) => `${count} ${kind}`).join(", ")}; ended by ${piece.ending}`;
    this._box = null;
  }

  _write({ text, hole }) {
    if (hole !== null && this._box?.dataset.hole !== hole) this._box = this._newBox(hole);
    const target = hole === null ? this._block : this._box;
    if (target.lastChild instanceof Text) target.lastChild.appendData(visible(text));
    else target.append(visible(text));
    this._size += text.length;
    if (this._size > HARD || (this._size > SOFT && text.endsWith("\n"))) this._beginBlock();
  }

  _beginBlock() {
    this._block = make("div", { class: "block" });
    this._root.append(this._block);
    this._size = 0;
    if (this._box) this._box = this._newBox(this._box.dataset.hole, true);
  }
}

/** A box has the colours of where its tokens came from, as wide as they are many. */
function dress(box, said) {
  const all = said.reduce((sum, [, count]) => sum + count, 0);
  if (!all) return;
  let at = 0;
  const parts = said.map(([kind, count]) => {
    const from = at;
    at += (100 * count) / all;
    return `var(--${kind}-fill) ${from}% ${at}%`;
  });
  const [[most]] = said.toSorted((a, b) => b[1] - a[1]);
  box.style.background = `linear-gradient(90deg, ${parts.join(", ")})`;
  box.style.outlineColor = `var(--${most})`;
}
