// Drafts: texts with changes that no file has. The browser keeps each for the folder of its playground, under a number of
// its own, so that two tabs never write to the same one.
import { ofBrowser } from "./storage.js";

const PAGE = numbered(); // this page; another one after it was loaded anew

export class Drafts {
  /** `place` is the folder, by the key that its server gives it. `onChange()`: the list is another one. `onTaken(id)`:
   * another tab has changed or removed this draft. */
  constructor({ place, onChange, onTaken }) {
    this._prefix = `lq-draft/${place}/`;
    this._known = new Map(); // id -> the text that this page has read or written
    this._own = new Set(); // ids of those that this tab has written
    addEventListener("storage", ({ key, newValue }) => {
      if (key === null || !key.startsWith(this._prefix)) return;
      const id = key.slice(this._prefix.length);
      const draft = parsed(newValue);
      if (this._own.has(id) && draft?.by !== PAGE && draft?.text !== this._known.get(id)) onTaken(id);
      onChange();
    });
  }

  /** All drafts of the folder, newest first: {id, kind, name, version, text, at, isKept}. */
  list() {
    const ids = ofBrowser.keys().filter((key) => key.startsWith(this._prefix)).map((key) => key.slice(this._prefix.length));
    return ids.map((id) => this.get(id)).filter(Boolean).sort((one, other) => other.at - one.at);
  }

  get(id) {
    const draft = this._read(id);
    return draft && { ...draft, id, isKept: this.isKept(id) };
  }

  /** False if only this page has the draft, or its latest text. */
  isKept(id) {
    return ofBrowser.isKept(this._prefix + id);
  }

  /** The page shows this text of a draft. `isOwn`: this tab has written it, before it was loaded anew. */
  opened(id, text, isOwn = false) {
    this._known.set(id, text);
    if (isOwn) this._own.add(id);
  }

  /** Keeps a text, under `id` unless another tab has changed that draft meanwhile. Gives its id. */
  put(id, { kind, name, version, text }) {
    const kept = id === null ? null : this._read(id);
    if (kept !== null && text === this._known.get(id) && name === kept.name) return id;
    const own = id === null || this._isOthers(id, kept) ? numbered() : id;
    this._known.set(own, text);
    this._own.add(own);
    ofBrowser.set(this._prefix + own, JSON.stringify({ kind, name, version, text, at: Date.now(), by: PAGE }));
    return own;
  }

  /** Removes a draft that is saved, or is as it was before; one that another tab has changed meanwhile stays. */
  remove(id) {
    if (!this._isOthers(id, this._read(id))) this.discard(id);
    this._known.delete(id);
  }

  /** Removes a draft, whoever has written it. */
  discard(id) {
    this._known.delete(id);
    this._own.delete(id);
    ofBrowser.remove(this._prefix + id);
  }

  _isOthers(id, kept) {
    return kept !== null && kept.by !== PAGE && kept.text !== this._known.get(id);
  }

  _read(id) {
    return parsed(ofBrowser.get(this._prefix + id));
  }
}

function parsed(value) {
  try {
    const draft = JSON.parse(value);
    return typeof draft?.text === "string" && typeof draft.name === "string" ? draft : null;
  } catch {
    return null;
  }
}

function numbered() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
