// Documents: files of the folder, examples, queries from links. Each has its own text, undo history and dirty mark.
import { byId, make, visible } from "./dom.js";

const UNTITLED = "untitled.lq";

export class Library {
  constructor({ server, editor, onOpen, onExample, onFailure }) {
    this._server = server;
    this._editor = editor;
    this._onOpen = onOpen;
    this._onExample = onExample;
    this._onFailure = onFailure;
    this._documents = new Map(); // name -> document that was left with changes
    this._open = { name: UNTITLED, version: null, saved: "" }; // `version` is null where no file has it
    this._takesFiles = false;
    this.files = []; // names in the folder that was named
    this.isExamples = false;
    byId("save").addEventListener("click", () => this.save());
    byId("save-as").addEventListener("click", () => this._ask());
    byId("new").addEventListener("click", () => this._show({ name: this._free(), version: null, saved: "" }, ""));
    byId("save-form").addEventListener("submit", (event) => {
      event.preventDefault();
      byId("save-dialog").close();
      this._write(named(byId("save-name").value), null);
    });
  }

  get name() {
    return this._open.name;
  }

  get isDirty() {
    return this._editor.text() !== this._open.saved;
  }

  /** What a page that is loaded anew needs to go on with this document. */
  get remembered() {
    return this._open;
  }

  restore(open) {
    this._open = open;
    this.showName();
  }

  async fill() {
    const [{ examples }, { files, folder }] = await Promise.all([this._server.get("/api/examples"), this._server.get("/api/files")]);
    this._takesFiles = folder;
    const shipped = new Set(examples.map(({ name }) => name));
    const own = files.filter(({ name }) => !shipped.has(name));
    this.files = own.map(({ name }) => name);
    // the folder that was named is the one of the examples, or a copy of it; more may be in it
    this.isExamples = shipped.size > 0 && files.length - own.length === shipped.size;
    byId("new").hidden = byId("save-as").hidden = !folder;
    const cards = examples.map((example) => card(spoken(example.name), example.name, example.title, () => this._example(example)));
    const more = own.map(({ name, bytes }) => card(name, `${bytes} bytes`, "", () => this.open(name)));
    byId("gallery").replaceChildren(
      make("h3", {}, "Examples"),
      make("ul", {}, ...cards),
      ...(more.length ? [make("h3", {}, "Files"), make("ul", {}, ...more)] : []),
    );
    this.showName();
    return examples;
  }

  async open(name) {
    if (this._documents.has(name)) return this._show(this._documents.get(name), this._documents.get(name).document);
    try {
      const file = await this._server.get(`/api/files/${addressOf(name)}`);
      this._show({ name: file.name, version: file.version, saved: file.text }, file.text);
    } catch (error) {
      this._onFailure(error);
    }
  }

  /** A query that no file of the folder has. */
  openText(name, text) {
    this._show({ name, version: null, saved: text }, text);
  }

  /** Saves to the file of this document; asks for a name where it has none. */
  async save() {
    if (this._open.version !== null) await this._write(this._open.name, this._open.version);
    else if (this._takesFiles) this._ask();
    else this._onFailure(null, "There is no folder to save to. Share has this query as a file; `lq playground FOLDER` opens a folder.");
  }

  /** Shows the name of the document, with a mark where it has changes that no file has. */
  showName() {
    const isDirty = this.isDirty;
    byId("name").textContent = `${isDirty ? "● " : ""}${visible(this._open.name)}`;
    byId("name").title = isDirty ? "has changes that are not saved" : "";
    byId("save").hidden = this._open.version === null && !this._takesFiles;
    document.title = `${isDirty ? "● " : ""}${this._open.name} – lq playground`;
  }

  _example(example) {
    if (this._documents.has(example.name)) this._show(this._documents.get(example.name), this._documents.get(example.name).document);
    else this.openText(example.name, example.text);
    this._onExample(example);
  }

  _ask() {
    byId("save-name").value = this._open.version === null && this._open.name !== UNTITLED ? this._open.name : "";
    byId("save-dialog").showModal();
  }

  async _write(name, version) {
    const text = this._editor.text();
    try {
      const saved = await this._server.put(`/api/files/${addressOf(name)}`, { text, version });
      this._documents.delete(this._open.name);
      this._open = { name: saved.name, version: saved.version, saved: text };
      this._onOpen(null);
      this._onFailure(null, `${saved.name} is saved`);
      if (version === null) await this.fill();
    } catch (error) {
      this._onFailure(error);
    }
  }

  _show(open, document) {
    if (this.isDirty) this._documents.set(this._open.name, { ...this._open, document: this._editor.document() });
    else this._documents.delete(this._open.name);
    this._open = open;
    byId("examples-dialog").close();
    this._onOpen(document);
  }

  _free() {
    let name = UNTITLED;
    for (let number = 2; this._documents.has(name) || this.files.includes(name) || this._open.name === name; number++) name = `untitled-${number}.lq`;
    return name;
  }
}

function named(text) {
  return /\.(lq|lmql)$/.test(text) ? text : `${text}.lq`;
}

function addressOf(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}

/** "01_packing_list.lq" as somebody would say it. */
function spoken(name) {
  const words = name.replace(/^\d+_/, "").replace(/\.lq$/, "").replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function card(title, name, says, onclick) {
  return make("li", {}, make("button", { type: "button", class: "example", onclick },
    make("span", {}, make("b", {}, visible(title)), " ", make("code", {}, visible(name))), says ? make("span", { class: "hint" }, visible(says)) : null));
}
