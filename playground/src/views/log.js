// What happened, line by line: prints and warnings of the query among it. Tokens and texts are not: they have views.
import { make, visible } from "../dom.js";

const MAX_ENTRIES = 2_000;

export class LogView {
  constructor(root) {
    this._root = root;
    this._scene = null;
  }

  draw(scene, deadline) {
    if (scene !== this._scene) {
      this._scene = scene;
      this._at = 0;
      this._root.replaceChildren();
    }
    const rows = document.createDocumentFragment();
    while (this._at < scene.log.length) {
      if (performance.now() > deadline) break;
      const { ms, what, text } = scene.log[this._at++];
      rows.append(make("li", { class: what.replace(".", "-") }, make("span", { class: "ms" }, `${ms} ms`), " ",
        make("b", {}, what), " ", make("span", { class: "said" }, visible(text))));
    }
    this._root.append(rows);
    while (this._root.childElementCount > MAX_ENTRIES) this._root.firstElementChild.remove();
    return this._at < scene.log.length;
  }
}
