// The page: joins the editor, the runs and the views.
import { Checker } from "./check.js";
import { byId, make, visible } from "./dom.js";
import { loadRich, plainEditor } from "./editor.js";
import { Inputs, Options } from "./inputs.js";
import { listen, nameKeys } from "./keys.js";
import { Library } from "./library.js";
import { fromAddress, remember, remembered } from "./memory.js";
import { askedFrom } from "./onward.js";
import { Player } from "./player.js";
import { rangeOf } from "./positions.js";
import { Runner, readRecording } from "./runner.js";
import { Server } from "./server.js";
import { Sharing } from "./sharing.js";
import { Stage } from "./stage.js";
import { Tabs } from "./tabs.js";
import { RunsView } from "./views/runs.js";

const FIRST = '"Q: What is the capital of France?\\nA:[ANSWER]" where STOPS_BEFORE(ANSWER, "\\n")\n';

class Page {
  async start() {
    const address = fromAddress();
    const before = remembered();
    this.isReloading = false;
    this.isStarting = false; // a run was asked for, and the server has not answered
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
      mayRun: () => this.server !== null && this.runner.run === null && (this.player.recording?.asked ?? null) !== null,
    });
    this.player = new Player((scene, deadline) => this.draw(scene, deadline), byId("panels"));
    this.stage.player = this.player;
    this.runs = new RunsView({
      empty: byId("runs-empty"),
      grid: byId("runs-grid"),
      onShow: (recording) => {
        this.show(recording);
        this.tabs.show("output");
      },
    });
    this.tabs = new Tabs(() => this.player.wake());
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
      onExample: (example) => this.offer(example),
      onFailure: (error, text) => this.tell(error, text),
    });
    this.sharing = new Sharing({
      editor: this.editor,
      player: this.player,
      server: this.server,
      name: () => this.library.name,
      onRecording: (file) => this.openRecording(file),
      isOfServer: (recording) => recording.source !== null,
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
    on("run-models", () => this.runModels());
    for (const button of document.querySelectorAll("[data-close]")) {
      button.addEventListener("click", () => button.closest("dialog").close());
    }
    addEventListener("hashchange", () => {
      if (fromAddress().token !== address.token) this.reload(); // of a server that was started anew on this port
    });
    addEventListener("pagehide", () => this.remember());
    addEventListener("beforeunload", (event) => {
      if (this.library.isUnsaved && !this.isReloading) event.preventDefault();
    });
    listen({
      run: () => this.run(),
      stop: () => this.stop(),
      save: () => this.library.save(),
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

  /** What the page shows first: what stood there before, the named file, or an example. */
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
    if (before.text !== undefined) await this.library.again();
    else await this.openFirst(address.file ?? about.start?.file, examples);
    this.checker.now();
    const last = before.run ? await this.runner.again(before.run, before.source ?? "") : null;
    if (last) this.show(last);
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
    byId("run-models").hidden = about.models.length < 2;
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
    this.showState();
    try {
      await this.checker.upToDate();
      const wanted = list();
      for (const asked of wanted) {
        await this.begin(asked);
        recordings.push(this.player.recording);
        if (wanted.length > 1) await this.runner.over;
        if (recordings.at(-1).end?.kind === "Stopped") break;
      }
      if (recordings.length > 1) this.tabs.show("runs");
    } catch (error) {
      this.tell(error);
    }
    this.isStarting = false;
    this.showState();
    return recordings;
  }

  /** Runs the query with each model. */
  runModels() {
    const models = Array.from(byId("option-model").options, ({ value }) => value);
    return this.run(() => this.inputs.sets().flatMap((inputs) => models.map((model) => {
      const asked = this.asked();
      return { ...asked, inputs, options: { ...asked.options, model } };
    })));
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

  /** Inputs that fit an example, for boxes that are empty. */
  offer({ inputs, typed }) {
    this.inputs.offer(inputs);
    if (!byId("typed").value) byId("typed").value = typed.join("\n");
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
    if (document !== null) this.editor.open(document);
    this.quiet();
    this.library.showName();
    this.remember();
  }

  async openRecording(file) {
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
    const { end } = this.player.recording ?? {};
    const says = this.isStarting ? "starting" : isRunning ? "running" : end?.type === "done" ? "done" : end?.kind === "Stopped" ? "stopped" : end ? "failed" : "";
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
