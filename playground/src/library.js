// Documents: files of the folder, examples, queries that are new or from links. Each has its own text and undo history.
// One with changes that no file has is a draft: it is listed, and kept over a reload.
import { byId, counted, make, onOneLine, shortened, visible } from "./dom.js";
import { Drafts } from "./drafts.js";

const UNTITLED = "untitled.lq";
const LONGEST = 70; // characters of a text in the list
const ENDING = /\.(lq|lmql)$/;

/** A document is {kind, name, version, saved, draft, theirs}. `kind`: "file", "example" or "new". `saved` is the text
 * without changes, null where nobody knows it; `draft` the id of its draft; `theirs` the file where it is another one
 * than the draft began with: {text, version}, both null where it is gone. */
function newDocument(name) {
  return { kind: "new", name, version: null, saved: "", draft: null, theirs: null };
}

export class Library {
  constructor({ server, editor, onOpen, onExample, onFailure }) {
    this._server = server;
    this._editor = editor;
    this._onOpen = onOpen;
    this._onExample = onExample;
    this._onFailure = onFailure;
    this._undo = new Map(); // id of a draft -> the editor's document, with its history
    this._open = newDocument(UNTITLED);
    this._drafts = null; // as soon as it is known whose they are
    this._isSaving = false;
    this._isUnkept = false; // the browser does not keep the draft that is shown
    this._hasServer = false;
    this._takesFiles = false;
    this._examples = [];
    this._files = [];
    this._clash = null; // {name, text, version}: the file that a save would overwrite
    this._listen();
  }

  get name() {
    return this._open.name;
  }

  get isDirty() {
    return this._editor.text() !== this._open.saved;
  }

  /** True if closing the page leaves changes that no file has. */
  get isUnsaved() {
    return this.isDirty || this._undo.size > 0;
  }

  /** What a page that is loaded anew needs to go on with this document. */
  get remembered() {
    return this._open;
  }

  /** True if the folder is a copy of the examples; more may be in it. */
  get isExamples() {
    return this._examples.length > 0 && this._files.filter(({ shipped }) => shipped).length === this._examples.length;
  }

  /** The file that a page shows first where nothing is named. */
  get firstFile() {
    return (this._files.find(({ shipped }) => !shipped) ?? this._files[0])?.name ?? null;
  }

  restore(open) {
    this._open = { ...newDocument(UNTITLED), ...open };
    this.showName();
  }

  /** From now on drafts are kept, for this folder. */
  begin(place) {
    this._drafts = new Drafts({ place, onChange: () => this._drawList(), onTaken: (id) => this._taken(id) });
    if (this._open.draft !== null) this._drafts.opened(this._open.draft, this._editor.text(), true);
    this.keep();
  }

  /** Gives the examples. */
  async fill() {
    const [{ examples }, { files, folder }] = await Promise.all([this._server.get("/api/examples"), this._server.get("/api/files")]);
    this._hasServer = true;
    this._takesFiles = folder;
    this._examples = examples;
    this._files = files;
    byId("new").hidden = false;
    byId("save-as").hidden = !folder;
    this._drawList();
    this.showName();
    return examples;
  }

  /** Shows the list, and brings it up to date. */
  async show() {
    this._drawGallery();
    byId("examples-dialog").showModal();
    if (!this._hasServer) return;
    try {
      await this.fill();
    } catch (error) {
      this._onFailure(error);
    }
  }

  /** Opens a file, or an example of this name where there is no file: its newest draft if it has one. */
  async open(name) {
    const example = this._examples.find((each) => each.name === name);
    if (example && !this._files.some((each) => each.name === name)) return this.openExample(example);
    const draft = this._draftOf("file", name);
    if (draft) return this._openDraft(draft);
    try {
      this._openFile(await this._read(name));
    } catch (error) {
      this._onFailure(error);
    }
  }

  openExample(example) {
    const draft = this._draftOf("example", example.name);
    if (draft) return this._openDraft(draft);
    this._show({ ...newDocument(example.name), kind: "example", saved: example.text }, example.text);
    this._onExample(example);
  }

  /** A query that no file has, from a link or a recording: a draft from the beginning. */
  openText(name, text) {
    const known = this._drafts?.list().find((draft) => draft.kind === "new" && draft.text === text);
    if (known) return this._openDraft(known);
    this._show(newDocument(this._free(name)), text);
  }

  /** The document that is shown after the page was loaded anew, compared with its file. */
  async again() {
    const open = this._open;
    if (open.kind !== "file") return;
    let file;
    try {
      file = await this._read(open.name);
    } catch (error) {
      if (error.status !== 404) throw error;
      file = { text: null, version: null };
    }
    if (this._open !== open || file.version === open.version) return;
    const text = this._editor.text();
    if (text === file.text || (text === open.saved && file.text !== null)) {
      this.keep();
      this._openFile(file);
    } else {
      open.theirs = file;
      open.saved = null;
      this.keep();
      this.showName();
    }
  }

  /** Saves to the file of this document; asks for a name where it has none. */
  async save() {
    if (this._open.kind === "file") await this._saveTo(this._open.name, this._open.version);
    else if (this._takesFiles) this._askName();
    else this._onFailure(null, "There is no folder to save to: start `lq playground FOLDER`. Until then this browser keeps the text as a draft, and Share has it as a file.");
  }

  /** Keeps the text that is shown as a draft if it has changes that no file has. */
  keep() {
    const open = this._open;
    if (!this._drafts) return;
    const text = this._editor.text();
    const before = open.draft;
    if (text !== open.saved) open.draft = this._drafts.put(open.draft, { ...open, text });
    else if (open.draft !== null) this._dropDraft(open);
    if (open.draft !== before) this._drawList();
    const isUnkept = open.draft !== null && !this._drafts.isKept(open.draft);
    if (isUnkept && !this._isUnkept) {
      this._onFailure(null, `This browser does not keep the draft of ${open.name}: its storage is full or forbidden. The text is there only while this page is open; save it, or delete drafts.`);
    }
    this._isUnkept = isUnkept;
  }

  /** Shows the name of the document, with a mark where it has changes that no file has. */
  showName() {
    const { name, kind, theirs } = this._open;
    const isDirty = this.isDirty;
    byId("name").textContent = `${isDirty ? "● " : ""}${visible(name)}`;
    byId("name").title = `${visible(name)}${kind === "example" ? ", an example" : ""}${isDirty ? ": has changes that are not saved" : ""}`;
    byId("save").hidden = kind !== "file" && !this._takesFiles;
    byId("conflict").hidden = theirs === null;
    if (theirs) byId("conflict-says").textContent = visible(differing(name, theirs));
    document.title = `${isDirty ? "● " : ""}${name} – lq playground`;
  }

  _listen() {
    byId("save").addEventListener("click", () => this.save());
    byId("save-as").addEventListener("click", () => this._askName());
    byId("new").addEventListener("click", () => this._show(newDocument(this._free(UNTITLED)), ""));
    byId("save-form").addEventListener("submit", async (event) => {
      event.preventDefault();
      const name = byId("save-name").value.trim();
      byId("save-says").textContent = "";
      if (name) await this._saveAs(ENDING.test(name) ? name : `${name}.lq`);
    });
    byId("conflict-show").addEventListener("click", () => this._showClash(this._open.name, this._open.theirs));
    byId("conflict-load").addEventListener("click", () => {
      const { name, text, version } = this._clash;
      byId("conflict-dialog").close();
      this._openFile({ name, text, version });
    });
    byId("conflict-overwrite").addEventListener("click", () => {
      byId("conflict-dialog").close();
      this._saveTo(this._clash.name, this._clash.version);
    });
    byId("conflict-rename").addEventListener("click", () => {
      byId("conflict-dialog").close();
      this._askName();
    });
    byId("delete-form").addEventListener("submit", (event) => {
      event.preventDefault();
      byId("delete-dialog").close();
      this._delete(this._deleted);
    });
  }

  // Opening --------------------------------------------------------------------------------------------------------

  _read(name) {
    return this._server.get(`/api/files/${addressOf(name)}`);
  }

  _draftOf(kind, name) {
    if (this._open.draft !== null && this._open.kind === kind && this._open.name === name) return this._drafts.get(this._open.draft);
    const found = (this._drafts?.list() ?? []).filter((draft) => draft.kind === kind && draft.name === name);
    return found.find(({ id }) => this._undo.has(id)) ?? found[0];
  }

  _openFile({ name, text, version }) {
    this._show({ ...newDocument(name), kind: "file", version, saved: text }, text);
    const example = this._examples.find((each) => each.name === name && each.text === text);
    if (example) this._onExample(example);
  }

  async _openDraft({ id, kind, name, version, text }) {
    if (this._open.draft === id) return byId("examples-dialog").close();
    const open = { ...newDocument(name), kind, version, draft: id };
    if (kind === "example") open.saved = this._examples.find((each) => each.name === name)?.text ?? null;
    if (kind === "file") {
      open.saved = null;
      try {
        const file = await this._read(name);
        if (file.version === version) open.saved = file.text;
        else if (file.text === text) Object.assign(open, { version: file.version, saved: text });
        else open.theirs = file;
      } catch (error) {
        if (error.status === 404) open.theirs = { text: null, version: null };
        else this._onFailure(error);
      }
    }
    this._drafts.opened(id, text);
    this._show(open, this._undo.get(id) ?? text);
  }

  _show(open, document) {
    this.keep();
    const { draft } = this._open;
    if (draft !== null) this._undo.set(draft, this._editor.document());
    this._put(open, document);
  }

  /** Shows a document in place of the one that is shown, whose text is not kept by this. */
  _put(open, document) {
    this._undo.delete(open.draft);
    this._open = open;
    this._isUnkept = false;
    byId("examples-dialog").close();
    this._onOpen(document);
    this._drawList();
  }

  /** A name for a new document. */
  _free(wanted) {
    const others = [...(this._drafts?.list() ?? []), this._open].filter(({ kind }) => kind === "new");
    return free(wanted, [...this._files, ...others]);
  }

  // Drafts ---------------------------------------------------------------------------------------------------------

  /** Another tab writes to this draft by now: what this page has becomes a draft of its own. */
  _taken(id) {
    if (this._open.draft === id) {
      this._open.draft = null;
      this.keep();
      this._onOpen(null);
    } else this._undo.delete(id);
  }

  _dropDraft(open) {
    this._drafts.remove(open.draft);
    this._undo.delete(open.draft);
    open.draft = null;
  }

  _askToDelete(draft) {
    this._deleted = draft;
    byId("delete-says").textContent = `Delete the draft of ${visible(draft.name)}? Its changes are in no file.`;
    byId("delete-dialog").showModal();
  }

  async _delete({ id, kind, name }) {
    const file = kind === "file" ? await this._read(name).catch(() => null) : null; // null: gone, or the server is
    this._drafts.discard(id);
    this._undo.delete(id);
    if (this._open.draft === id) {
      const example = kind === "example" && this._examples.find((each) => each.name === name);
      if (file) this._put({ ...newDocument(name), kind, version: file.version, saved: file.text }, file.text);
      else if (example) this._put({ ...newDocument(name), kind, saved: example.text }, example.text);
      else this._put(newDocument(UNTITLED), "");
    }
    this._drawList();
  }

  // Saving ---------------------------------------------------------------------------------------------------------

  async _saveTo(name, version) {
    if (this._isSaving) return;
    try {
      await this._write(name, version);
    } catch (error) {
      if (error.status === 409) await this._clashed(name, error);
      else this._onFailure(error);
    }
  }

  async _write(name, version) {
    const open = this._open;
    const text = this._editor.text();
    this._isSaving = true;
    try {
      const saved = await this._server.put(`/api/files/${addressOf(name)}`, { text, version });
      if (open.draft !== null) this._dropDraft(open);
      Object.assign(open, { kind: "file", name: saved.name, version: saved.version, saved: text, theirs: null });
    } finally {
      this._isSaving = false;
    }
    if (this._open === open) {
      this._onOpen(null);
      this.keep(); // what was typed meanwhile
    }
    this._onFailure(null, `${open.name} is saved`);
    if (!this._files.some((each) => each.name === open.name && !each.shipped)) await this.fill();
    this._drawList();
  }

  /** Asks for a name, whose stem is selected: it is typed over, or taken with Enter. */
  _askName() {
    const name = free(this._open.name, this._files);
    const field = byId("save-name");
    field.value = name;
    byId("save-says").textContent = "";
    byId("save-dialog").showModal();
    field.focus();
    field.setSelectionRange(name.lastIndexOf("/") + 1, name.replace(ENDING, "").length);
  }

  async _saveAs(name) {
    if (this._isSaving) return;
    const { kind, name: own, version } = this._open;
    try {
      await this._write(name, kind === "file" && name === own ? version : null);
      byId("save-dialog").close();
    } catch (error) {
      if (error.status !== 409) return this._refuse(error);
      byId("save-dialog").close();
      await this._clashed(name, error);
    }
  }

  _refuse(error) {
    byId("save-says").textContent = visible([error.message, error.hint].filter(Boolean).join(" — "));
    byId("save-name").focus();
  }

  async _clashed(name, error) {
    let file;
    try {
      file = await this._read(name);
    } catch (failure) {
      if (failure.status !== 404) return this._onFailure(failure);
      file = { text: null, version: null };
    }
    this._onFailure(error);
    this._showClash(name, file);
  }

  /** The file and the text that is shown, and three ways on. */
  _showClash(name, { text, version }) {
    const isGone = text === null;
    const isAnother = this._open.kind !== "file" || this._open.name !== name;
    this._clash = { name, text, version };
    byId("conflict-message").textContent = visible(isAnother ? `There is already a file ${name}.` : differing(name, { text }));
    byId("conflict-theirs").textContent = isGone ? "" : visible(text);
    byId("conflict-mine").textContent = visible(this._editor.text());
    byId("conflict-load").hidden = isGone;
    byId("conflict-rename").hidden = !this._takesFiles;
    byId("conflict-overwrite").textContent = isGone ? "Save it again" : "Overwrite the file";
    byId("conflict-dialog").showModal();
    (this._takesFiles ? byId("conflict-rename") : isGone ? byId("conflict-overwrite") : byId("conflict-load")).focus();
  }

  // The list -------------------------------------------------------------------------------------------------------

  _drawList() {
    const drafts = this._drafts?.list() ?? [];
    byId("examples").querySelector("span").textContent = drafts.length ? `Open ●${drafts.length}` : "Open";
    byId("examples").title = drafts.length ? `${counted(drafts.length, "draft")} with changes that no file has` : "Open";
    if (byId("examples-dialog").open) this._drawGallery(drafts);
  }

  _drawGallery(drafts = this._drafts?.list() ?? []) {
    const marked = (kind, name) => (drafts.some((draft) => draft.kind === kind && draft.name === name) ? "● " : "");
    const copies = new Set(this._files.filter(({ shipped }) => shipped).map(({ name }) => name));
    const files = this._files.filter(({ shipped }) => !shipped).map(({ name, bytes }) =>
      card(`${marked("file", name)}${name}`, `${bytes} bytes`, "", () => this.open(name)));
    const examples = this._examples.map((example) => {
      const kind = copies.has(example.name) ? "file" : "example";
      return card(`${marked(kind, example.name)}${spoken(example.name)}`, example.name, example.title, () => (kind === "file" ? this.open(example.name) : this.openExample(example)));
    });
    const parts = [["files", "Files", files], ["shipped", "Examples", examples]];
    if (this.isExamples) parts.reverse();
    const focused = document.activeElement?.dataset?.key;
    byId("gallery").replaceChildren(...[["drafts", "Drafts", drafts.map((draft) => this._draftCard(draft))], ...parts].map(([id, title, cards]) =>
      make("section", { id, "aria-label": title, hidden: !cards.length }, make("h3", {}, title), make("ul", {}, ...cards))));
    if (focused) [...byId("gallery").querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused)?.focus();
  }

  _draftCard(draft) {
    const { id, kind, name, text, at, isKept } = draft;
    const says = { file: "changes to the file", example: "changes to the example", new: "new" }[kind];
    const line = text.split("\n", 20).find((each) => each.trim()) ?? "";
    const when = new Date(at).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
    const remove = make("button", { type: "button", class: "quiet", "aria-label": `delete the draft of ${visible(name)}`, onclick: () => this._askToDelete(draft) }, "Delete");
    return make("li", { class: "draft-card" },
      opener(`draft ${id}`, `● ${name}`, `${says}, ${when}${isKept ? "" : ", only in this page"}`, onOneLine(shortened(line, LONGEST)), () => this._openDraft(draft)),
      make("span", { class: "draft-acts" }, remove));
  }

}

function differing(name, { text }) {
  return text === null ? `${name} is no longer in the folder.` : `${name} has changed on disk since you began to edit it.`;
}

/** The name, with a number where one of these has it. */
function free(wanted, others) {
  const taken = new Set(others.map(({ name }) => name));
  const [, stem, ending] = wanted.match(/^(.*?)(\.\w+)$/s) ?? [null, wanted, ".lq"];
  let name = `${stem}${ending}`;
  for (let number = 2; taken.has(name); number++) name = `${stem}-${number}${ending}`;
  return name;
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
  return make("li", {}, opener(`${title} ${name}`, title, name, says, onclick));
}

function opener(key, title, name, says, onclick) {
  return make("button", { type: "button", class: "example", "data-key": key, onclick },
    make("span", {}, make("b", {}, visible(title)), " ", make("code", {}, visible(name))), says ? make("span", { class: "hint" }, visible(says)) : null);
}
