// What the browser keeps for this page: for the tab, and for all tabs. Where it keeps nothing (a private window, storage
// that is forbidden or full), the page does, as long as it is open.

class Area {
  constructor(name) {
    this._name = name;
    this._unkept = new Map(); // key -> what the browser did not keep
  }

  get(key) {
    if (this._unkept.has(key)) return this._unkept.get(key);
    try {
      return window[this._name].getItem(key);
    } catch {
      return null;
    }
  }

  /** True if the browser keeps it, false if only the page does. */
  set(key, text) {
    try {
      window[this._name].setItem(key, text);
      this._unkept.delete(key);
      return true;
    } catch {
      this._unkept.set(key, text);
      return false;
    }
  }

  isKept(key) {
    return !this._unkept.has(key);
  }

  remove(key) {
    this._unkept.delete(key);
    try {
      window[this._name].removeItem(key);
    } catch {
      // nothing is kept, so nothing is left
    }
  }

  keys() {
    const unkept = [...this._unkept.keys()];
    try {
      return [...new Set([...Object.keys(window[this._name]), ...unkept])];
    } catch {
      return unkept;
    }
  }
}

export const ofTab = new Area("sessionStorage");
export const ofBrowser = new Area("localStorage");
