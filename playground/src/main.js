// The page: joins the editor, the runs and the views.
import { Cases } from "./cases.js";
import { Checker } from "./check.js";
import { byId, make, visible } from "./dom.js";
import { loadRich, plainEditor } from "./editor.js";
import { Guide } from "./guide.js";
import { Inputs, Options } from "./inputs.js";
import { listen, nameKeys } from "./keys.js";
import { Library } from "./library.js";
import { applyTheme, fromAddress, nextTheme, remember, remembered } from "./memory.js";
import { askedFrom } from "./onward.js";
import { Player } from "./player.js";
import { rangeOf } from "./positions.js";
import { Runner, readRecording } from "./runner.js";
import { Server } from "./server.js";
import { Sharing } from "./sharing.js";
import { Stage } from "./stage.js";
import { Tabs } from "./tabs.js";
import { showPlan } from "./views/plan.js";
import { RunsView } from "./views/runs.js";

const FIRST = '"Q: What is the capital of France?\\nA:[ANSWER]" where STOPS_BEFORE(ANSWER, "\\n")\n';

class Page {
  async start() {
    this.nameTheme(applyTheme());
    const address = fromAddress();
    const before = remembered();
    this.isReloading = false;
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
    this.options = new Options();
    this.inputs.saved = before.inputs ?? [];
    byId("typed").value = before.typed ?? "";
    this.checker = new Checker({ server: this.server, editor: this.editor, onInputs: (names, isTyped) => {
        this.inputs.show(names);
        this.inputs.showTyped(isTyped);
      } });
    this.stage = new Stage({
      onPlace: (place) => this.goTo(place),
      onGoOn: (prefill) => this.goOn(prefill),
      onCard: () => this.guide.did("token"),
      mayRun: () => this.server !== null && this.runner.run === null && (this.player.recording?.asked ?? null) !== null,
    });
    this.player = new Player((scene, deadline) => this.draw(scene, deadline), byId("panels"));
    this.stage.player = this.player;
    this.guide = new Guide();
    this.runs = new RunsView({
      empty: byId("runs-empty"),
      grid: byId("runs-grid"),
      onShow: (recording) => {
        this.show(recording);
        this.tabs.show("output");
      },
    });
    this.tabs = new Tabs((name) => {
      this.player?.wake();
      if (name === "plan" && this.planned !== this.editor.text()) this.askPlan();
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
      onOpen: (document) => this.open(document),
      onExample: (example) => this.showExample(example),
      onFailure: (error, text) => this.tell(error, text),
    });
    this.sharing = new Sharing({
      editor: this.editor,
      player: this.player,
      server: this.server,
      name: () => this.library.name,
      onCode: (text) => this.openShared(text),
      onRecording: (file) => this.openRecording(file),
      isOfServer: (recording) => recording.source !== null,
    });
    this.cases = new Cases({
      server: this.server,
      asked: () => this.asked(),
      inputs: () => this.inputs.sets()[0],
      onRun: (list) => this.run(list),
      onFailure: (error) => this.tell(error),
    });
    if (before.open) this.library.restore(before.open);
    this.listen(address);
    nameKeys();
    await this.greet(address, before);
    document.documentElement.dataset.ready = rich ? "rich" : "plain";
  }

  listen(address) {
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("run", () => this.run());
    on("stop", () => this.stop());
    on("share", () => this.sharing.show());
    on("examples", () => this.library.show());
    on("help", () => byId("help-dialog").showModal());
    on("ask-plan", () => this.plan());
    on("theme", () => this.nameTheme(nextTheme()));
    for (const button of document.querySelectorAll("[data-close]")) {
      button.addEventListener("click", () => button.closest("dialog").close());
    }
    addEventListener("hashchange", async () => {
      const { code, token } = fromAddress();
      if (token !== address.token) return this.reload(); // of a server that was started anew on this port
      if (code) await this.sharing.open(`#code=${code}`);
    });
    addEventListener("pagehide", () => this.remember());
    addEventListener("beforeunload", (event) => {
      if (this.library.isUnsaved && !this.isReloading) event.preventDefault();
    });
    listen({
      run: () => this.run(),
      stop: () => this.stop(),
      save: () => this.library.save(),
      plan: () => this.plan(),
      help: () => byId("help-dialog").showModal(),
      problem: (step) => this.checker.go(step),
      tabs: this.tabs,
      card: this.stage.card,
      say: (text) => this.say(text),
      isRunning: () => this.runner.run !== null,
    });
  }

  /** Loads the page anew; it then shows the same text. */
  reload() {
    this.remember();
    this.isReloading = true;
    location.reload();
  }

  nameTheme(theme) {
    byId("theme").title = `theme: ${theme}`;
    byId("theme").setAttribute("aria-label", `theme: ${theme}`);
  }

  /** What the page shows first: a link's query, what stood there before, the named file, or an example. */
  async greet(address, before) {
    let about = null;
    let failure = address.token ? null : [null, "This page can show recordings. To run queries, open the address that `lq playground` has printed."];
    try {
      if (address.token) about = await this.server.get("/api/about");
    } catch (error) {
      failure = [error];
    }
    const isBack = before.text !== undefined && (!about || before.place === about.drafts);
    if (!isBack && before.text !== undefined) this.leave();
    const place = about?.drafts ?? before.place ?? "";
    this.library.begin(place);
    remember({ place });
    try {
      if (about) await this.meet(about, address, isBack ? before : {});
      else if (address.code) await this.sharing.open(`#code=${address.code}`);
    } catch (error) {
      failure = [error];
    }
    if (failure) this.tell(...failure);
    if (!address.token) this.server = null;
    this.showState();
  }

  async meet(about, address, before) {
    this.introduce(about);
    const examples = await this.library.fill();
    if (address.code) await this.sharing.open(`#code=${address.code}`);
    else if (before.text !== undefined) await this.library.again();
    else await this.openFirst(address.file ?? about.start?.file, examples);
    if (before.text !== undefined) this.cases.open(this.library.remembered);
    this.checker.now();
    const last = before.run ? await this.runner.again(before.run, before.source ?? "") : null;
    const example = examples.find(({ text }) => text === this.editor.text());
    if (last) this.show(last);
    else if (example) await this.showExample(example);
  }

  async openFirst(file, examples) {
    const first = file ?? (this.library.isExamples ? null : this.library.firstFile);
    if (first) await this.library.open(first);
    else if (examples.length) await this.library.open(examples[0].name);
    else this.library.openText("query.lq", FIRST);
    if (!file && this.library.isExamples) this.library.show();
  }

  /** This tab has shown a playground of another folder, which has its drafts. */
  leave() {
    this.library.restore({});
    this.editor.open("");
    this.inputs.saved = [];
    byId("typed").value = "";
  }

  introduce(about) {
    const [first] = about.models;
    byId("option-model").replaceChildren(...about.models.map(({ id }) => make("option", { value: id }, id)));
    const name = (model) => {
      byId("model").textContent = model?.id ?? "";
      byId("model").title = `${model?.id}${model?.demo ? " (a demo: small, and often wrong)" : ""}; cache: ${about.cache.name}`;
    };
    name(first);
    this.cases.models = about.models.map(({ id }) => id);
    byId("option-model").addEventListener("change", (event) => {
      name(about.models.find(({ id }) => id === event.target.value));
    });
    this.options.show(about.options);
    this.options.saved = remembered().options ?? {};
    byId("build").hidden = !about.build;
    byId("build").textContent = about.build ?? "";
  }

  asked() {
    return {
      text: this.editor.text(),
      name: this.library.name,
      typed: this.inputs.typed,
      options: {
        model: byId("option-model").value || null,
        ...this.options.values(),
      },
    };
  }

  /** A run like the one that is shown, whose first holes have these texts. */
  goOn(prefill) {
    this.tabs.show("output");
    return this.run(() => [askedFrom(this.player.recording.asked, this.player.scene.started, prefill)]);
  }

  /** Runs what is asked for, one after the other: what stands on the page, once for each set of inputs, unless it is
   * told. Several are then shown as a grid. Gives their recordings, which have ended where there are several. */
  async run(list = () => this.inputs.sets().map((inputs) => ({ ...this.asked(), inputs }))) {
    const recordings = [];
    if (!this.server || this.isStarting || this.runner.run !== null) return recordings;
    this.quiet();
    this.isStarting = true;
    this.awaited = null;
    this.showState();
    try {
      await this.checker.upToDate();
      const wanted = list();
      for (const asked of wanted) {
        await this.begin(asked);
        recordings.push(this.player.recording);
        if (wanted.length > 1 || asked.case) await this.runner.over;
        if (recordings.at(-1).end?.kind === "Stopped") break;
      }
      if (recordings.length > 1 || wanted[0].case) this.tabs.show("runs");
    } catch (error) {
      this.tell(error);
    }
    this.isStarting = false;
    this.showState();
    return recordings;
  }

  async begin(asked) {
    this.isStarting = true;
    const recording = await this.runner.start(asked);
    this.isStarting = false;
    this.show(recording);
    this.remember({ run: recording.name, source: asked.text });
    this.runs.add(recording);
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
      const asked = { ...this.asked(), inputs: this.inputs.given() };
      this.planned = asked.text;
      byId("plan").replaceChildren(make("p", { class: "empty" }, "Planning."));
      const found = await this.server.post("/api/plan", asked);
      showPlan(byId("plan"), found);
      if (found.problems) this.checker.show(found.problems);
    } catch (error) {
      this.planned = null;
      byId("plan").replaceChildren();
      this.tell(error);
    }
  }

  /** A run of it that was recorded. Nothing is run. */
  async showExample(example) {
    this.inputs.offer(example.inputs);
    if (!byId("typed").value) byId("typed").value = example.typed.join("\n");
    if (this.isStarting || this.runner.run !== null) return; // what is under way is to be seen
    this.awaited = example;
    try {
      const recording = await readRecording(example.name, await this.server.recorded(example.name), () => {}, example.text);
      if (this.awaited !== example) return;
      recording.isExample = true;
      recording.asked = { text: example.text, name: example.name, inputs: example.inputs, typed: example.typed, options: {} };
      this.show(recording);
      this.say("a recorded run of the example is shown");
    } catch (error) {
      this.tell(error);
    }
  }

  show(recording) {
    this.player.show(recording);
    this.showStale();
    this.stage.began(recording);
    this.showState();
  }

  ended(recording) {
    this.player.wake();
    this.showState();
    const { end } = recording;
    if (end?.type === "done") this.guide.ran(end.usage.tokens_from_cache);
    if (end?.type === "error" && end.span && recording.source === this.editor.text()) {
      const { line, column } = end.span;
      this.checker.fail({ ...rangeOf(recording.source, end.span), line, column, message: end.message, hint: end.hint });
    }
  }

  draw(scene, deadline) {
    this.stage.announce(scene, (text) => this.say(text));
    if (this.tabs.shown === "runs") this.runs.draw();
    return this.stage.draw(scene, this.tabs.shown, deadline);
  }

  changed() {
    this.checker?.changed();
    this.library?.keep();
    this.library?.showName();
    this.showStale();
    this.remember();
  }

  /** Another document is shown: its text, or as it was left; null where only its name has changed. */
  open(document) {
    this.awaited = null;
    if (document !== null) {
      if (this.player.recording?.isExample) this.show(null);
      this.editor.open(document);
    }
    this.quiet();
    this.library.showName();
    if (this.server) this.cases.open(this.library.remembered);
    this.remember();
  }

  openShared(text) {
    this.library.openText("shared.lq", text);
    this.tell(null, "This query is from a link. Read it before you run it: it may run Python.");
  }

  async openRecording(file) {
    this.awaited = null;
    const recording = await readRecording(file.name, file.stream(), (each) => this.player.recording === each && this.player.wake());
    const { query, name, inputs } = recording.lines.find(({ type }) => type === "started") ?? {};
    if (query) {
      this.library.openText(name || "shared.lq", query);
      this.inputs.offer(Object.fromEntries(Object.entries(inputs).map(([input, value]) => [input, typeof value === "string" ? value : JSON.stringify(value)])));
      recording.source = this.editor.text();
      recording.asked = { text: query, name, inputs, options: {} };
    }
    this.show(recording);
    this.runs.add(recording);
    this.tell(null, query ? `${file.name} is a recording, and this is its query. Read it before you run it: it may run Python.` : `${file.name} is a recording without its query; the query in the editor may be a different one.`);
  }

  goTo(place) {
    const range = rangeOf(this.editor.text(), { end_line: place.line, end_column: place.column, ...place });
    this.editor.select(range.from, range.to);
  }

  remember(more = {}) {
    const open = this.library?.remembered;
    remember({ open, text: this.editor?.text(), inputs: this.inputs?.saved, typed: byId("typed").value, options: this.options?.saved, ...more });
  }

  /** Marks output of a text that is not the editor's any more. */
  showStale() {
    const { source } = this.player?.recording ?? {};
    byId("stale").hidden = source === undefined || source === null || source === this.editor.text();
  }

  showState() {
    const isRunning = this.runner.run !== null;
    // not `disabled`: that would take the focus from whoever runs by keyboard
    byId("run").setAttribute("aria-disabled", String(isRunning || this.isStarting || !this.server));
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
