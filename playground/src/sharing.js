// The dialog for files and reports.
import { byId, download } from "./dom.js";

export class Sharing {
  constructor({ editor, player, server, name, onRecording, isOfServer }) {
    this._player = player;
    this._isOfServer = isOfServer;
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
  }

  show() {
    this._say("");
    const { recording } = this._player;
    byId("download-lqrun").disabled = !recording?.lines.length;
    byId("download-report").disabled = !recording?.end || !this._isOfServer(recording);
    byId("share-dialog").showModal();
  }

  _say(text) {
    byId("share-says").textContent = text;
  }
}

function ending(name, suffix) {
  return `${(name.split("/").at(-1) || "query").replace(/\.(lq|lmql)$/, "")}${suffix}`;
}
