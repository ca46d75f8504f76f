// Every token in a grid, with where it came from. Only blocks near the window hold cells.
import { make, onOneLine } from "../dom.js";
import { FATES, MARKS, probability, sourceOf } from "../kinds.js";

const BLOCK = 120;
const CELL_HEIGHT = 32;
const ROW = 12; // cells in a row, before anything was measured

export class TokensView {
  constructor(root, onChoose) {
    this._root = root;
    this._onChoose = onChoose;
    this._hypothesis = null;
    this._near = new IntersectionObserver((entries) => this._moved(entries), { rootMargin: "500px" });
    root.addEventListener("click", (event) => this._clicked(event));
    root.addEventListener("focusin", (event) => this._focused(event));
    root.addEventListener("keydown", (event) => this._key(event));
  }

  draw(scene, hypothesis, deadline) {
    if (hypothesis !== this._hypothesis) this._reset(hypothesis);
    if (!hypothesis) return false;
    const { tokens, changed } = hypothesis;
    while (this._count < tokens.length) {
      const block = this._blocks.at(-1);
      if (!block || block.to - block.from === BLOCK) {
        if (performance.now() > deadline) return true;
        this._addBlock();
        continue;
      }
      const more = Math.min(tokens.length, block.from + BLOCK);
      if (block.isFull) this._cells(block, block.to, more);
      this._count = block.to = more;
    }
    while (this._seen < changed.length) this._refresh(changed[this._seen++]);
    return false;
  }

  /** Moves the focus to a token. */
  focus(index) {
    const tokens = this._hypothesis?.tokens ?? [];
    if (!tokens.length) return;
    const at = Math.max(0, Math.min(index, tokens.length - 1));
    this._current = at;
    const block = this._blocks[Math.floor(at / BLOCK)];
    if (!block.isFull) this._fill(block);
    const cell = this._cell(at);
    this._root.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    cell.tabIndex = 0;
    cell.scrollIntoView({ block: "nearest" });
    cell.focus({ preventScroll: true });
  }

  _reset(hypothesis) {
    this._hypothesis = hypothesis;
    this._near.disconnect();
    this._root.replaceChildren();
    this._blocks = [];
    this._measured = 0; // pixels of a whole block, once one was laid out
    this._count = 0;
    this._seen = 0;
    this._current = 0;
  }

  _addBlock() {
    const from = this._count;
    const element = make("div", { class: "cells", role: "group", "aria-label": `tokens from ${from + 1}` });
    const block = { element, from, to: from, isFull: this._blocks.length === 0 };
    element.block = block;
    this._blocks.push(block);
    this._root.append(element);
    if (!block.isFull) element.style.minHeight = `${this._height()}px`;
    this._near.observe(element);
  }

  _height() {
    const [first] = this._blocks;
    if (!this._measured && first?.isFull && first.to - first.from === BLOCK) this._measured = first.element.offsetHeight;
    return this._measured || (BLOCK / ROW) * CELL_HEIGHT;
  }

  _moved(entries) {
    for (const { target, isIntersecting } of entries) {
      const { block } = target;
      if (isIntersecting && !block.isFull) this._fill(block);
      else if (!isIntersecting && block.isFull && target.offsetParent && !target.contains(document.activeElement)) {
        target.style.minHeight = `${target.offsetHeight}px`;
        target.replaceChildren();
        block.isFull = false;
      }
    }
  }

  _fill(block) {
    block.isFull = true;
    this._cells(block, block.from, block.to);
    block.element.style.minHeight = "";
  }

  _cells(block, from, to) {
    const { tokens } = this._hypothesis;
    const cells = document.createDocumentFragment();
    for (let at = from; at < to; at++) {
      cells.append(this._newCell(tokens[at], at));
      if (tokens[at].text.includes("\n")) cells.append(make("br"));
    }
    block.element.append(cells);
  }

  _newCell(token, at) {
    const cell = document.createElement("span");
    cell.textContent = onOneLine(token.text) || "∅";
    cell.setAttribute("role", "option");
    cell.setAttribute("aria-posinset", at + 1);
    cell.setAttribute("aria-setsize", -1);
    cell.tabIndex = at === this._current ? 0 : -1;
    cell.dataset.at = at;
    this._dress(cell, token);
    return cell;
  }

  _dress(cell, token) {
    const kind = sourceOf(token);
    cell.className = `token ${kind} ${weight(token)}`;
    cell.setAttribute("aria-label", described(token));
    cell.setAttribute("aria-selected", "false");
    if (MARKS[kind]) cell.dataset.mark = MARKS[kind];
    else delete cell.dataset.mark;
  }

  _refresh(at) {
    const cell = this._cell(at);
    if (cell) this._dress(cell, this._hypothesis.tokens[at]);
  }

  _cell(at) {
    const block = this._blocks[Math.floor(at / BLOCK)];
    return block?.isFull ? block.element.querySelector(`[data-at="${at}"]`) : null;
  }

  _clicked(event) {
    const cell = event.target.closest("[data-at]");
    if (cell) this.focus(Number(cell.dataset.at));
  }

  _focused(event) {
    const at = event.target.dataset?.at;
    if (at === undefined) return;
    this._current = Number(at);
    this._root.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    event.target.setAttribute("aria-selected", "true");
    this._onChoose(this._hypothesis.tokens[this._current], () => event.target.getBoundingClientRect());
  }

  _key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1, PageDown: 50, PageUp: -50 }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Home") this.focus(0);
    else if (event.key === "End") this.focus(Infinity);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.focus(this._below(step));
    else if (step) this.focus(this._current + step);
    else return;
    event.preventDefault();
  }

  /** The token under the current one, or above it: nearest from left to right in the next row. */
  _below(step) {
    const here = this._cell(this._current)?.getBoundingClientRect();
    if (!here) return this._current + step;
    let best = this._current + step;
    let row = null;
    for (let at = best; at >= 0 && at < this._count && Math.abs(at - this._current) < 3 * BLOCK; at += step) {
      const place = this._cell(at)?.getBoundingClientRect();
      if (!place) return at;
      if (Math.abs(place.top - here.top) < 4) continue;
      row ??= { top: place.top, distance: Infinity };
      if (Math.abs(place.top - row.top) > 4) break;
      if (Math.abs(place.left - here.left) >= row.distance) continue;
      row.distance = Math.abs(place.left - here.left);
      best = at;
    }
    return best;
  }
}

/** How likely it was, as the weight of its line. */
function weight(token) {
  const share = probability(token);
  if (share === null) return "p0";
  return share >= 0.9 ? "p4" : share >= 0.5 ? "p3" : share >= 0.1 ? "p2" : "p1";
}

function described(token) {
  const share = probability(token);
  const fate = token.fate === "kept" ? "" : `, ${FATES[token.fate]}`;
  return `${onOneLine(token.text) || "nothing"}: ${token.source}${fate}${share === null ? "" : `, ${percent(share)}`}`;
}

export function percent(share) {
  if (share === 0) return "0 %";
  return share >= 0.0995 ? `${Math.round(100 * share)} %` : `${(100 * share).toPrecision(2)} %`;
}
