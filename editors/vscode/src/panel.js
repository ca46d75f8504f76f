// A run beside its query: output, tree and ledger, drawn by the element <lq-view> while `lq run` goes on.
const { spawn } = require("node:child_process");
const { randomBytes } = require("node:crypto");

const FEED = `
const api = acquireVsCodeApi();
const view = document.querySelector("lq-view");
addEventListener("message", ({ data }) => {
  if (data.lines) view.take(data.lines);
  if (data.said) document.getElementById("said").textContent = data.said;
});
view.addEventListener("lq-place", ({ detail }) => api.postMessage({ place: detail }));
api.postMessage({ ready: true });
`;

/** The page of a panel. `script` is the address of lq-view.js. */
function pageOf({ script, source, nonce }) {
  const policy = `default-src 'none'; img-src data:; style-src ${source}; script-src 'nonce-${nonce}'`;
  return `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${policy}"><title>lq</title></head>
<body><lq-view></lq-view><pre id="said"></pre>
<script nonce="${nonce}" src="${script}"></script>
<script nonce="${nonce}">${FEED}</script>
</body></html>
`;
}

class RunPanel {
  constructor(vscode, extensionUri) {
    this._vscode = vscode;
    this._extensionUri = extensionUri;
    this._panel = undefined;
    this._process = undefined;
  }

  /** Runs a query file with the command lq; a run that is under way is stopped. */
  run(command, file) {
    this._process?.kill();
    const { webview } = this._open(`lq: ${file.replace(/^.*[\\/]/, "")}`);
    const ready = new Promise((resolve) => {
      this._told = (message) => {
        if (message.ready) resolve();
        if (message.place) this._show(file, message.place);
      };
    });
    webview.html = pageOf({
      script: webview.asWebviewUri(this._vscode.Uri.joinPath(this._extensionUri, "lq-view.js")),
      source: webview.cspSource,
      nonce: randomBytes(16).toString("hex"),
    });
    const child = spawn(command, ["run", "--format", "events", file], { stdio: ["ignore", "pipe", "pipe"] });
    this._process = child;
    let rest = "";
    let said = "";
    let isOver = false;
    const take = (text) => {
      const parts = (rest + text).split("\n");
      rest = parts.pop();
      const lines = parts.map((part) => JSON.parse(part));
      isOver ||= lines.some(({ type }) => type === "done" || type === "error");
      if (lines.length && this._process === child) ready.then(() => webview.postMessage({ lines }));
    };
    child.stdout.setEncoding("utf8").on("data", take);
    child.stderr.setEncoding("utf8").on("data", (text) => (said += text));
    child.on("error", (error) => ready.then(() => webview.postMessage({ said: `${command} cannot be started: ${error.message}` })));
    return new Promise((resolve) =>
      child.on("close", () => ready.then(() => resolve(!isOver && this._process === child && webview.postMessage({ said })))));
  }

  dispose() {
    this._panel?.dispose();
  }

  _open(title) {
    if (!this._panel) {
      const { ViewColumn } = this._vscode;
      const options = { enableScripts: true, localResourceRoots: [this._extensionUri], retainContextWhenHidden: true };
      const panel = this._vscode.window.createWebviewPanel("lq.run", title, { viewColumn: ViewColumn.Beside, preserveFocus: true }, options);
      panel.webview.onDidReceiveMessage((message) => this._told(message));
      panel.onDidDispose(() => {
        this._process?.kill();
        this._panel = this._process = undefined;
      });
      this._panel = panel;
    }
    this._panel.title = title;
    return this._panel;
  }

  /** The place of an error in the query. */
  async _show(file, { line, column, end_line, end_column }) {
    const { Range, Uri, ViewColumn, window } = this._vscode;
    const selection = new Range(line - 1, column - 1, (end_line ?? line) - 1, (end_column ?? column) - 1);
    await window.showTextDocument(Uri.file(file), { viewColumn: ViewColumn.One, selection });
  }
}

module.exports = { RunPanel };
