// The text as the model saw it, in the colours of its tokens; every hole is a box with its name. Blocks of a bounded size,
// so that a long text is laid out piece by piece.
import { Colours } from "../colours.js";
import { make, visible } from "../dom.js";
import { markToken } from "./card.js";
import { ENDINGS, MARKS, SOURCES, endingOf } from "../kinds.js";

const SOFT = 4_000; // characters of a block: it ends with the next line feed
const HARD = 8_000; // it ends here
const THUMBNAIL = /^data:image\/jpeg;base64,[A-Za-z0-9+/]+=*$/;

export class OutputView {
  constructor(root, onChoose) {
    this._root = root;
    this._hypothesis = null;
    root.addEventListener("click", (event) => {
      const part = event.target.closest("[data-from]");
      if (!part || !getSelection().isCollapsed) return;
      const found = this._colours.tokenAt(offsetIn(part, event));
      if (!found) return;
      const ranges = this._ranges(found);
      const here = ranges.find((range) => range.intersectsNode(part)) ?? part;
      onChoose(found.token, () => here.getBoundingClientRect());
      markToken(ranges);
    });
  }

  /** Draws what is new until `deadline`; says whether something is left. */
  draw(scene, hypothesis, deadline) {
    if (hypothesis !== this._hypothesis) this._reset(hypothesis);
    if (!hypothesis) return false;
    const scroller = this._root.closest(".panels");
    const follows = !scene.end && scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 40;
    const changed = this._colours.update();
    this._divide();
    if (changed !== null) for (const block of this._blocks) block.isDrawn &&= block.to < changed;
    for (const block of this._blocks) {
      if (block.isDrawn) continue;
      if (performance.now() > deadline) return true;
      this._paint(block);
    }
    if (follows) scroller.scrollTop = scroller.scrollHeight;
    for (const [hole, label] of this._labels) if (label.version !== hole.version) this._name(hole, label);
    return false;
  }

  /** Where the text from one offset to another stands on the page. */
  _ranges({ from, to }) {
    return [...this._root.querySelectorAll("[data-from]")].flatMap((part) => {
      const start = Number(part.dataset.from);
      const text = part.firstChild;
      if (start >= to || start + text.length <= from) return [];
      const range = new Range();
      range.setStart(text, Math.max(0, from - start));
      range.setEnd(text, Math.min(text.length, to - start));
      return [range];
    });
  }

  _reset(hypothesis) {
    this._hypothesis = hypothesis;
    this._colours = hypothesis && new Colours(hypothesis);
    this._blocks = []; // {element, first, last, from, to, open, isDrawn}: pieces, offsets of the text, holes at its beginning
    this._pieces = 0;
    this._opened = 0;
    this._open = []; // holes, inner ones last
    this._labels = new Map(); // hole -> {element, version}
    this._root.replaceChildren();
  }

  /** Gives new pieces to blocks. */
  _divide() {
    const { pieces } = this._hypothesis;
    for (; this._pieces < pieces.length; this._pieces++) {
      const piece = pieces[this._pieces];
      let block = this._blocks.at(-1);
      const size = block ? block.to - block.from : Infinity;
      if (size > HARD || (size > SOFT && pieces[this._pieces - 1].text?.endsWith("\n"))) {
        const at = block?.to ?? 0;
        block = { element: make("div", { class: "block" }), first: this._pieces, from: at, to: at, opened: this._opened, open: this._open };
        this._blocks.push(block);
        this._root.append(block.element);
      }
      block.last = this._pieces + 1;
      block.to += piece.text?.length ?? 0;
      block.isDrawn = false;
      if (piece.kind === "opened") this._open = [...this._open, this._colours.holes[this._opened++]];
      if (piece.kind === "closed") this._open = without(this._open, piece.name);
    }
  }

  _paint(block) {
    const parts = document.createDocumentFragment();
    let { from: offset, opened, open } = block;
    let box = null; // the box that the text before this one stands in
    for (const piece of this._hypothesis.pieces.slice(block.first, block.last)) {
      switch (piece.kind) {
        case "opened":
          open = [...open, this._colours.holes[opened++]];
          parts.append((box = this._box(open.at(-1), false)));
          break;
        case "closed":
          open = without(open, piece.name);
          box = null;
          break;
        case "tool":
          parts.append(make("b", { class: "label" }, `${visible(piece.name)}()`));
          box = null;
          break;
        case "media":
          if (THUMBNAIL.test(piece.thumbnail)) (box ?? parts).append(make("img", { class: "thumbnail", src: piece.thumbnail, alt: "", title: visible(piece.name) }));
          break;
        default: {
          const hole = piece.hole === null ? null : open.findLast(({ name }) => name === piece.hole);
          if (!hole) box = null;
          else if (box?.dataset.hole !== hole.name) parts.append((box = this._box(hole, true)));
          for (const run of this._colours.runs(offset, offset + piece.text.length)) write(box ?? parts, run);
          offset += piece.text.length;
        }
      }
    }
    block.element.replaceChildren(parts);
    block.isDrawn = true;
  }

  _box(hole, isContinued) {
    const box = make("span", { class: isContinued ? "hole continued" : "hole", "data-hole": hole.name });
    box.classList.toggle("open", hole.to === null);
    if (isContinued) return box;
    const label = { element: make("b", { class: "label" }), box };
    this._labels.set(hole, label);
    this._name(hole, label);
    box.append(label.element);
    return box;
  }

  /** Name, ending and sources of a hole, as far as they are known. */
  _name(hole, label) {
    label.version = hole.version;
    label.box.classList.toggle("open", hole.to === null);
    const said = Object.entries(hole.counts).filter(([, count]) => count);
    label.element.replaceChildren(visible(hole.name));
    label.element.dataset.counts = JSON.stringify(hole.counts);
    if (hole.to === null) return;
    const marks = said.filter(([kind]) => MARKS[kind]).map(([kind, count]) => ` ${MARKS[kind]}${count}`);
    label.element.append(make("small", {}, ` ${visible(endingOf(hole.ending))}`), ...marks.map((mark) => make("small", { class: "marks" }, mark)));
    label.element.title = `${said.map(([kind, count]) => `${count} ${kind}`).join(", ")}; ended by ${endingOf(hole.ending)}: ${ENDINGS[hole.ending] ?? ""}`;
  }
}

function without(open, name) {
  const at = open.findLastIndex((hole) => hole.name === name);
  return at < 0 ? open : open.toSpliced(at, 1);
}

/** Writes text of one source, joined to the same before it. */
function write(target, { text, kind, at }) {
  const last = target.lastChild;
  if (kind === null) {
    if (last instanceof Text) last.appendData(visible(text));
    else target.append(visible(text));
  } else if (last?.dataset?.kind === kind) last.firstChild.appendData(visible(text));
  else target.append(make("span", { class: `source ${kind}`, "data-kind": kind, "data-from": String(at), title: SOURCES[kind] }, visible(text)));
}

/** The offset in the run's text of the character under the pointer. */
function offsetIn(part, event) {
  const found = caretAt(part.getRootNode(), event);
  const inside = found && part.contains(found.offsetNode) ? found.offset : 0;
  return Number(part.dataset.from) + inside;
}

/** In an element of its own a document tells of the text inside only where it is told of the element. */
function caretAt(root, { clientX, clientY }) {
  return document.caretPositionFromPoint?.(clientX, clientY, root instanceof ShadowRoot ? { shadowRoots: [root] } : {});
}
