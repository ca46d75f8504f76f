// The language server `lq lsp` for queries and for docstrings of Python files, and commands that run a query: in a panel
// beside it, and in a terminal.
const { spawn } = require("node:child_process");
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");
const { RunPanel } = require("./panel.js");

/** @type {LanguageClient | undefined} */
let client;

async function activate(context) {
  const panel = new RunPanel(vscode, context.extensionUri);
  context.subscriptions.push(
    panel,
    vscode.commands.registerCommand("lq.view", () => view(panel)),
    vscode.commands.registerCommand("lq.run", run),
    vscode.commands.registerCommand("lq.restart", restart),
    vscode.workspace.onDidChangeConfiguration((change) => change.affectsConfiguration("lq") && restart()),
  );
  await start();
}

async function start() {
  const command = vscode.workspace.getConfiguration("lq").get("command");
  const problem = await cannotStart(command);
  if (problem) {
    vscode.window.showWarningMessage(
      `${problem} Colours work without it; for mistakes and help: pip install 'lmql-lite[lsp]', or name lq in lq.command.`,
    );
    return;
  }
  client = new LanguageClient("lq", "lmql_lite", { command, args: ["lsp"] }, {
    documentSelector: [{ language: "lq" }, { language: "python" }],
  });
  await client.start();
}

/** The reason why there is no server; undefined where there is one. */
function cannotStart(command) {
  return new Promise((resolve) => {
    const tried = spawn(command, ["lsp", "--help"], { stdio: "ignore" });
    tried.on("error", () => resolve(`The command ${command} is not there.`));
    tried.on("exit", (code) => resolve(code ? `${command} has no language server.` : undefined));
  });
}

async function restart() {
  await deactivate();
  await start();
}

/** Saves the query of the active editor and gives its document; undefined where it has no file. */
async function saved() {
  const document = vscode.window.activeTextEditor?.document;
  if (document && !document.isUntitled && (await document.save())) return document;
  vscode.window.showWarningMessage("Save the query to a file first: lq runs files.");
}

/** Runs the query of the active editor in a panel beside it. */
async function view(panel) {
  const document = await saved();
  if (document) panel.run(vscode.workspace.getConfiguration("lq").get("command"), document.uri.fsPath);
}

/** Runs the query of the active editor in a terminal, where it may read what is typed. */
async function run() {
  const document = await saved();
  if (!document) return;
  const command = vscode.workspace.getConfiguration("lq").get("command");
  const task = new vscode.Task(
    { type: "lq" },
    vscode.workspace.getWorkspaceFolder(document.uri) ?? vscode.TaskScope.Workspace,
    "run",
    "lq",
    new vscode.ProcessExecution(command, ["run", document.uri.fsPath]),
  );
  await vscode.tasks.executeTask(task);
}

async function deactivate() {
  await client?.stop();
  client = undefined;
}

module.exports = { activate, deactivate };
