// The dialog for links, files and reports.
import { byId, download } from "./dom.js";
import { codeIn, packed, unpacked } from "./share.js";

export class Sharing {
  constructor({ editor, player, server, name, onCode, onRecording, isOfServer }) {
    this._editor = editor;
    this._player = player;
    this._onCode = onCode;
    byId("copy").addEventListener("click", () => this._copy());
    byId("download-lq").addEventListener("click", () => download(ending(name(), ".lq"), [editor.text()], "text/plain"));
    byId("download-lqrun").addEventListener("click", () => {
      const lines = player.recording.texts.map((text) => `${text}\n`);
      download(ending(name(), ".lqrun"), lines, "application/x-ndjson");
    });
    byId("download-report").addEventListener("click", async () => {
      try {
        download(ending(name(), ".html"), [await server.report(player.recording.name)], "text/html");
      } catch (error) {
        this._say(error.message);
      }
    });
    byId("open-link").addEventListener("click", () => this.open(byId("paste").value));
    byId("open-lqrun").addEventListener("change", async (event) => {
      const [file] = event.target.files;
      if (!file) return;
      event.target.value = "";
      try {
        await onRecording(file);
        byId("share-dialog").close();
      } catch (error) {
        this._say(`${file.name} is not a recording of a run: ${error.message}`);
      }
    });
    this._isOfServer = isOfServer;
  }

  async show() {
    this._say("");
    const { recording } = this._player;
    byId("download-lqrun").disabled = !recording?.lines.length;
    byId("download-report").disabled = !recording?.end || !this._isOfServer(recording);
    byId("link").value = `${location.origin}/#code=${await packed(this._editor.text())}`;
    byId("share-dialog").showModal();
  }

  /** Fills the editor from a link; runs nothing. Says whether there was a query in it. */
  async open(link) {
    const code = codeIn(link);
    if (code === null) {
      this._say("there is no query in this link");
      return false;
    }
    try {
      this._onCode(await unpacked(code));
    } catch {
      this._say("the query in this link cannot be read");
      return false;
    }
    byId("share-dialog").close();
    return true;
  }

  async _copy() {
    const link = byId("link");
    link.select();
    try {
      await navigator.clipboard.writeText(link.value);
      this._say("copied");
    } catch {
      this._say("press Ctrl+C to copy the link that is selected");
    }
  }

  _say(text) {
    byId("share-says").textContent = text;
  }
}

function ending(name, suffix) {
  return `${(name.split("/").at(-1) || "query").replace(/\.(lq|lmql)$/, "")}${suffix}`;
}
