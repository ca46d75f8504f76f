// Runs a query in the extension's panel with a VS Code that only remembers: node panel.mjs COMMAND FILE prints the page and
// what the panel was sent.
import { createRequire } from "node:module";

const { RunPanel } = createRequire(import.meta.url)("../src/panel.js");
const sent = [];
let told;
const webview = {
  html: "",
  cspSource: "https://panel.example",
  asWebviewUri: (uri) => `https://panel.example${uri.path}`,
  postMessage: (message) => sent.push(message),
  onDidReceiveMessage: (listener) => (told = listener),
};
const vscode = {
  ViewColumn: { Beside: -2, One: 1 },
  Uri: { joinPath: (uri, ...parts) => ({ path: [uri.path, ...parts].join("/") }), file: (path) => ({ path }) },
  Range: class {},
  window: {
    createWebviewPanel: (_kind, title) => ({ title, webview, onDidDispose() {}, dispose() {} }),
    showTextDocument: (uri) => sent.push({ shown: uri.path }),
  },
};
const [command, file] = process.argv.slice(2);
const panel = new RunPanel(vscode, { path: "/extension" });
const over = panel.run(command, file);
told({ ready: true });
await over;
told({ place: { line: 1, column: 1 } });
console.log(JSON.stringify({ html: webview.html, sent }));
