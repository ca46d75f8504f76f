// Examples, and the files that the playground was started with.
import { byId, make, visible } from "./dom.js";

export class Library {
  constructor({ server, editor, onOpen, onExample, onFailure }) {
    this._server = server;
    this._editor = editor;
    this._onOpen = onOpen;
    this._onExample = onExample;
    this._onFailure = onFailure;
    this._file = null; // {name, version} of the file that is open
    byId("save").addEventListener("click", () => this.save());
  }

  async fill() {
    const [{ examples }, { files }] = await Promise.all([this._server.get("/api/examples"), this._server.get("/api/files")]);
    const cards = examples.map((example) => card(spoken(example.name), example.name, example.title, () => this._example(example)));
    const more = files.map(({ name, bytes }) => card(name, `${bytes} bytes`, "", () => this.open(name)));
    byId("gallery").replaceChildren(
      ...(more.length ? [make("h3", {}, "Files"), make("ul", {}, ...more)] : []),
      make("h3", {}, "Examples"),
      make("ul", {}, ...cards),
    );
    return examples;
  }

  _example(example) {
    this._chosen(example.name, example.text, null);
    this._onExample(example);
  }

  async open(name) {
    try {
      const file = await this._server.get(`/api/files/${name.split("/").map(encodeURIComponent).join("/")}`);
      this._chosen(file.name, file.text, { name: file.name, version: file.version });
    } catch (error) {
      this._onFailure(error);
    }
  }

  async save() {
    if (!this._file) return;
    try {
      const path = this._file.name.split("/").map(encodeURIComponent).join("/");
      const { version } = await this._server.put(`/api/files/${path}`, { text: this._editor.text(), version: this._file.version });
      this._file.version = version;
      this._onFailure(null, `${this._file.name} is saved`);
    } catch (error) {
      this._onFailure(error);
    }
  }

  /** What is in the editor comes from elsewhere now. */
  leave() {
    this._file = null;
    byId("save").hidden = true;
  }

  _chosen(name, text, file) {
    this._file = file;
    byId("save").hidden = file === null;
    byId("examples-dialog").close();
    this._onOpen(name, text);
  }
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
