// The page: joins the editor, the runs and the views.
import { Checker } from "./check.js";
import { byId, make, visible } from "./dom.js";
import { loadRich, plainEditor } from "./editor.js";
import { Inputs } from "./inputs.js";
import { listen } from "./keys.js";
import { Library } from "./library.js";
import { applyTheme, fromAddress, nextTheme, remember, remembered } from "./memory.js";
import { Player } from "./player.js";
import { rangeOf } from "./positions.js";
import { Runner, readRecording } from "./runner.js";
import { Server } from "./server.js";
import { Sharing } from "./sharing.js";
import { Stage } from "./stage.js";
import { Tabs } from "./tabs.js";
import { showPlan } from "./views/plan.js";

const FIRST = '"Q: What is the capital of France?\\nA:[ANSWER]" where STOPS_BEFORE(ANSWER, "\\n")\n';

class Page {
  async start() {
    byId("theme").textContent = `Theme: ${applyTheme()}`;
    const address = fromAddress();
    const before = remembered();
    this.name = before.name ?? "query.lq";
    this.isStarting = false; // a run was asked for, and the server has not answered
    this.awaited = null; // the example whose recorded run is to be shown
    this.planned = null; // the text whose plan is shown
    this.server = new Server(address.token);
    const rich = await loadRich();
    const nonce = document.querySelector('meta[name="csp-nonce"]').content;
    this.editor = (rich?.richEditor ?? plainEditor)({
      parent: byId("query"),
      text: before.text ?? "",
      nonce,
      onChange: () => this.changed(),
      completions: () => this.checker.completions,
    });
    this.inputs = new Inputs();
    this.inputs.saved = before.inputs ?? [];
    this.checker = new Checker({ server: this.server, editor: this.editor, onInputs: (names) => this.inputs.show(names) });
    this.stage = new Stage({ tidyRows: rich?.tidyRows, onPlace: (place) => this.goTo(place) });
    this.player = new Player((scene, deadline) => this.draw(scene, deadline), byId("panels"));
    this.stage.player = this.player;
    this.tabs = new Tabs((name) => {
      this.player?.wake();
      if (name === "plan" && this.planned !== this.editor.text()) this.askPlan();
      if (name === "constraints") this.askClauses();
    });
    this.runner = new Runner({
      server: this.server,
      onLines: () => this.player.wake(),
      onEnd: (recording) => this.ended(recording),
      onTrouble: (error) => this.tell(error),
      onBack: () => this.quiet(),
    });
    this.library = new Library({
      server: this.server,
      editor: this.editor,
      onOpen: (name, text) => this.open(name, text),
      onExample: (example) => this.showExample(example),
      onFailure: (error, text) => this.tell(error, text),
    });
    this.sharing = new Sharing({
      editor: this.editor,
      player: this.player,
      server: this.server,
      name: () => this.name,
      onCode: (text) => this.openShared(text),
      onRecording: (file) => this.openRecording(file),
      isOfServer: (recording) => recording.source !== null,
    });
    this.listen();
    this.showName();
    await this.greet(address, before);
    document.documentElement.dataset.ready = rich ? "rich" : "plain";
  }

  listen() {
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("run", () => this.run());
    on("stop", () => this.stop());
    on("share", () => this.sharing.show());
    on("examples", () => byId("examples-dialog").showModal());
    on("help", () => byId("help-dialog").showModal());
    on("ask-plan", () => this.plan());
    on("theme", () => (byId("theme").textContent = `Theme: ${nextTheme()}`));
    for (const button of document.querySelectorAll("[data-close]")) {
      button.addEventListener("click", () => button.closest("dialog").close());
    }
    addEventListener("hashchange", async () => {
      const { code } = fromAddress();
      if (code) await this.sharing.open(`#code=${code}`);
    });
    addEventListener("pagehide", () => this.remember());
    listen({
      run: () => this.run(),
      stop: () => this.stop(),
      plan: () => this.plan(),
      help: () => byId("help-dialog").showModal(),
      problem: (step) => this.checker.go(step),
      tabs: this.tabs,
      card: this.stage.card,
      say: (text) => this.say(text),
      isRunning: () => this.runner.run !== null,
    });
  }

  /** What the page shows first: a link's query, what stood there before, the named file, or an example. */
  async greet(address, before) {
    if (address.code) await this.sharing.open(`#code=${address.code}`);
    if (!address.token) {
      this.tell(null, "This page can show recordings. To run queries, open the address that `lq playground` has printed.");
      byId("run").disabled = true;
      this.server = null;
      return;
    }
    try {
      const about = await this.server.get("/api/about");
      this.introduce(about);
      const examples = await this.library.fill();
      const file = address.file ?? about.start?.file;
      if (!address.code && before.text === undefined) {
        if (file) await this.library.open(file);
        else this.open(examples[0]?.name ?? "query.lq", examples[0]?.text ?? FIRST);
      }
      this.checker.now();
      const last = before.run ? await this.runner.again(before.run, before.source ?? "") : null;
      const example = examples.find(({ text }) => text === this.editor.text());
      if (last) this.show(last);
      else if (example) await this.showExample(example);
    } catch (error) {
      this.tell(error);
    }
  }

  introduce(about) {
    const [first] = about.models;
    byId("option-model").replaceChildren(...about.models.map(({ id }) => make("option", { value: id }, id)));
    byId("model").textContent = first ? `${first.id}${first.demo ? " (a demo: small, and often wrong)" : ""}` : "";
    byId("model").title = `cache: ${about.cache.name}`;
    byId("option-model").addEventListener("change", (event) => {
      const model = about.models.find(({ id }) => id === event.target.value);
      byId("model").textContent = `${model.id}${model.demo ? " (a demo: small, and often wrong)" : ""}`;
    });
    byId("build").hidden = !about.build;
    byId("build").textContent = about.build ?? "";
  }

  asked() {
    const number = (id) => (byId(id).value === "" ? null : Number(byId(id).value));
    return {
      text: this.editor.text(),
      name: this.name,
      inputs: this.inputs.values(),
      options: {
        model: byId("option-model").value || null,
        cache_mode: byId("option-cache").value || null,
        seed: number("option-seed"),
        max_tokens: number("option-max"),
        speculate: byId("option-speculate").checked ? null : false,
      },
    };
  }

  async run() {
    if (!this.server || this.isStarting || this.runner.run !== null) return;
    this.quiet();
    this.isStarting = true;
    this.awaited = null;
    this.showState();
    try {
      await this.checker.upToDate();
      const asked = this.asked();
      const recording = await this.runner.start(asked);
      this.isStarting = false;
      this.show(recording);
      this.remember({ run: recording.name, source: asked.text });
      recording.asked = asked;
      if (this.tabs.shown === "constraints") this.askClauses();
    } catch (error) {
      this.tell(error);
    }
    this.isStarting = false;
    this.showState();
  }

  async stop() {
    try {
      await this.runner.stop();
    } catch (error) {
      this.tell(error);
    }
  }

  /** Asks anew, also where the text is the same: inputs and options may be others. */
  plan() {
    this.planned = null;
    this.tabs.show("plan");
  }

  async askPlan() {
    if (!this.server) return;
    try {
      const asked = this.asked();
      this.planned = asked.text;
      byId("plan").replaceChildren(make("p", { class: "empty" }, "The plan is on its way."));
      const found = await this.server.post("/api/plan", asked);
      showPlan(byId("plan"), found);
      if (found.problems) this.checker.show(found.problems);
      this.stage.plan = found.plan ?? null;
      this.player.wake();
    } catch (error) {
      this.planned = null;
      byId("plan").replaceChildren();
      this.tell(error);
    }
  }

  /** What the clauses of the run are that is shown. Asked for once somebody wants to know: it takes a process. */
  async askClauses() {
    const { recording } = this.player;
    if (!recording?.asked) return;
    const { asked } = recording;
    recording.asked = null;
    recording.plan = undefined;
    const found = await this.server.post("/api/plan", asked).catch(() => ({}));
    recording.plan = found.plan ?? null;
    this.player.wake();
  }

  /** A run of it that was recorded. Nothing is run. */
  async showExample(example) {
    this.inputs.offer(example.inputs);
    if (this.isStarting || this.runner.run !== null) return; // what is under way is to be seen
    this.awaited = example;
    try {
      const recording = await readRecording(example.name, await this.server.recorded(example.name), () => {});
      if (this.awaited !== example) return;
      recording.isExample = true;
      recording.asked = { text: example.text, name: example.name, inputs: example.inputs, options: {} };
      this.show(recording);
      this.say("a recorded run of the example is shown");
    } catch (error) {
      this.tell(error);
    }
  }

  show(recording) {
    this.player.show(recording);
    this.stage.began(recording);
    this.showState();
  }

  ended(recording) {
    this.player.wake();
    this.showState();
    const { end } = recording;
    if (end?.type === "error" && end.span && recording.source === this.editor.text()) {
      const { line, column } = end.span;
      this.checker.fail({ ...rangeOf(recording.source, end.span), line, column, message: end.message, hint: end.hint });
    }
  }

  draw(scene, deadline) {
    this.stage.announce(scene, (text) => this.say(text));
    return this.stage.draw(scene, this.tabs.shown, deadline);
  }

  changed() {
    this.checker?.changed();
    this.remember();
  }

  open(name, text) {
    this.name = name;
    this.awaited = null;
    if (this.player.recording?.isExample) this.show(null);
    this.editor.setText(text);
    this.quiet();
    this.showName();
  }

  openShared(text) {
    this.library.leave();
    this.open("shared.lq", text);
    this.tell(null, "This query is from a link. Read it before you run it: it may run Python.");
  }

  async openRecording(file) {
    this.awaited = null;
    const recording = await readRecording(file.name, file.stream(), (each) => this.player.recording === each && this.player.wake());
    this.show(recording);
    this.tell(null, `${file.name} is a recording. The query on this page may be another one.`);
  }

  goTo(place) {
    const range = rangeOf(this.editor.text(), { end_line: place.line, end_column: place.column, ...place });
    this.editor.select(range.from, range.to);
  }

  remember(more = {}) {
    remember({ name: this.name, text: this.editor?.text(), inputs: this.inputs?.saved, ...more });
  }

  showName() {
    byId("name").textContent = this.name;
    document.title = `${this.name} – lq playground`;
    this.remember();
  }

  showState() {
    const isRunning = this.runner.run !== null;
    byId("run").disabled = isRunning || this.isStarting || !this.server;
    byId("stop").disabled = !isRunning;
    const { end, isExample } = this.player.recording ?? {};
    const says = this.isStarting ? "starting" : isRunning ? "running" : isExample ? "recorded" : end?.type === "done" ? "done" : end?.kind === "Stopped" ? "stopped" : end ? "failed" : "";
    byId("state").textContent = says;
    byId("state").hidden = !says;
    byId("state").dataset.state = says;
  }

  /** A sentence for everybody, where nobody can miss it. */
  tell(error, text = error?.message) {
    byId("banner").textContent = visible([text, error?.hint].filter(Boolean).join(" — "));
    byId("banner").hidden = false;
  }

  quiet() {
    byId("banner").hidden = true;
  }

  /** A sentence for those who do not see the page. */
  say(text) {
    byId("say").textContent = visible(text);
  }
}

await new Page().start();
