// The views of a run beside each other, and the slider that goes through it.
import { byId, make, shortened } from "./dom.js";
import { MARKS, SOURCES } from "./kinds.js";
import { Card } from "./views/card.js";
import { ConstraintsView } from "./views/constraints.js";
import { LedgerView } from "./views/ledger.js";
import { LogView } from "./views/log.js";
import { OutputView } from "./views/output.js";
import { ResultView } from "./views/result.js";
import { TokensView } from "./views/tokens.js";
import { TrieView } from "./views/trie.js";

const SPOKEN = 300; // characters of a value
const MOST_BEFORE = 20; // runs on this page that the tree remembers

export class Stage {
  constructor({ tidyRows, onPlace }) {
    this.player = null;
    this.plan = null; // of a query that was not run
    this.card = new Card(byId("card"));
    this._shown = null; // the scene
    this._before = []; // scenes of runs that have ended
    this._told = 0;
    this._chosen = null; // the hypothesis that somebody wants to see
    this._names = "";
    this._output = new OutputView(byId("output"));
    this._result = new ResultView(byId("result"), onPlace);
    this._tokens = new TokensView(byId("tokens"), (token) => this.card.show(token, this._shown));
    this._trie = new TrieView({
      root: byId("trie"),
      list: byId("trie-list"),
      scope: byId("trie-scope"),
      tidyRows,
      onChoose: (token, run) => this.card.show(token, this._shown, run),
    });
    this._constraints = new ConstraintsView(byId("constraints"), onPlace);
    this._log = new LogView(byId("log"));
    this._ledger = new LedgerView(byId("ledger"));
    byId("legend-kinds").replaceChildren(...Object.keys(SOURCES).map(sample));
    byId("legend").replaceChildren(...legend());
    byId("welcome-kinds").replaceChildren(...["cache", "model", "draft", "forced"].map((kind) => make("li", {}, sample(kind), ` ${SOURCES[kind]}`)));
    this._listen();
  }

  /** Another run is shown from now on. */
  began(recording) {
    if (this._shown?.end && this._shown.count && !this._recording?.isExample) this._before = [...this._before, this._shown].slice(-MOST_BEFORE);
    this._trie.setOthers(this._before);
    this._recording = recording;
    byId("recorded").hidden = !recording?.isExample;
    this._told = 0;
    this.plan = null;
    this.card.close();
    this._chosen = null;
  }

  /** Draws what is in view until `deadline`; says whether something is left. */
  draw(scene, tab, deadline) {
    this._shown = scene;
    this.card.isWanted = tab === "trie" || tab === "tokens";
    const hypothesis = this._hypothesis(scene);
    this._slider(scene);
    const isLedgerLeft = this._ledger.draw(scene, hypothesis, this._recording?.isExample);
    return this._view(tab, scene, hypothesis, deadline) || isLedgerLeft;
  }

  /** Says what a reader of the screen should hear: holes and the end, not every token. */
  announce(scene, say) {
    if (this.player.at !== null || this._recording?.isExample) return;
    const closed = scene.holes.findLast((hole) => hole.ending !== null);
    if (scene.end && this._told !== scene.end) {
      this._told = scene.end;
      say(scene.end.type === "done" ? "the run is done" : `the run has ended: ${scene.end.message}`);
    } else if (!scene.end && closed && this._told !== closed) {
      this._told = closed;
      say(`hole completed: ${closed.name} = ${shortened(closed.value, SPOKEN)}`);
    }
  }

  _view(tab, scene, hypothesis, deadline) {
    switch (tab) {
      case "output":
        this._result.draw(scene);
        this._nothing(hypothesis === null && scene.end === null);
        return this._output.draw(scene, hypothesis, deadline);
      case "trie":
        return this._trie.draw(scene);
      case "tokens":
        return this._tokens.draw(scene, hypothesis, deadline);
      case "constraints":
        this._constraints.draw(scene, this.plan ?? this._recording?.plan ?? null, this._recording?.plan === undefined);
        return false;
      case "log":
        return this._log.draw(scene, deadline);
      default:
        return false;
    }
  }

  /** What stands in Output as long as nothing was said. */
  _nothing(isEmpty) {
    const recording = this._recording ?? null;
    byId("output-empty").hidden = !isEmpty || recording !== null;
    byId("output-waiting").hidden = !isEmpty || recording === null || recording.end !== null;
  }

  /** The one that somebody chose; else the result, and before there is one the first that was not given up. */
  _hypothesis(scene) {
    const all = [...scene.hypotheses.values()];
    byId("hypothesis-label").hidden = all.length < 2;
    const { winner } = scene;
    const shown = scene.hypotheses.get(this._chosen) ?? winner ?? all.find((each) => !each.isPruned) ?? all[0] ?? null;
    const names = all.map((each) => `${each.state}${each === winner ? ": the result" : each.isPruned ? ": given up" : ""}`);
    const select = byId("hypothesis");
    if (names.join() !== this._names) {
      this._names = names.join();
      select.replaceChildren(...names.map((name, at) => make("option", { value: String(all[at].state) }, name)));
    }
    if (shown && select.value !== String(shown.state)) select.value = String(shown.state);
    return shown;
  }

  _slider(scene) {
    const lines = this.player.recording?.lines.length ?? 0;
    const slider = byId("at");
    slider.disabled = byId("play").disabled = lines === 0;
    if (slider.max !== String(lines)) slider.max = String(lines);
    if (slider.value !== String(scene.count)) slider.value = String(scene.count);
    const says = lines ? `${scene.count} of ${lines} · ${scene.ms} ms` : this.player.recording ? "nothing yet" : "no run yet";
    if (byId("at-says").textContent !== says) byId("at-says").textContent = says;
    const isPlaying = String(this.player.isPlaying);
    if (byId("play").dataset.playing !== isPlaying) {
      byId("play").dataset.playing = isPlaying;
      byId("play").textContent = this.player.isPlaying ? "❚❚" : "▶";
      byId("play").setAttribute("aria-label", this.player.isPlaying ? "pause" : "replay");
    }
  }

  _listen() {
    byId("at").addEventListener("input", () => {
      this.player.pause();
      this.player.seek(Number(byId("at").value));
    });
    byId("play").addEventListener("click", () => {
      if (this.player.isPlaying) this.player.pause();
      else this.player.play();
      this.player.wake();
    });
    byId("hypothesis").addEventListener("change", (event) => {
      this._chosen = Number(event.target.value);
      this.player.wake();
    });
    byId("trie-scope").addEventListener("change", () => this.player.wake());
    byId("trie-as-list").addEventListener("change", (event) => {
      byId("trie").hidden = event.target.checked;
      byId("trie-list-box").hidden = !event.target.checked;
      this.player.wake();
    });
  }
}

function sample(kind) {
  return make("span", { class: `token ${kind} p2`, "data-mark": MARKS[kind] }, kind);
}

function* legend() {
  for (const [kind, says] of Object.entries(SOURCES)) {
    yield make("li", {}, sample(kind), ` ${says}`);
  }
  yield make("li", {}, "The thicker the line under a token, the likelier the model found it.");
}
