// The views of a run.
import { byId, make, onOneLine, shortened, visible } from "./dom.js";
import { MARKS, SOURCES } from "./kinds.js";
import { placeOf, told } from "./onward.js";
import { Branches } from "./views/branches.js";
import { Card } from "./views/card.js";
import { LedgerView } from "./views/ledger.js";
import { LogView } from "./views/log.js";
import { OutputView } from "./views/output.js";
import { ResultView } from "./views/result.js";
import { TokensView } from "./views/tokens.js";
import { TrieView } from "./views/trie.js";

const SPOKEN = 300; // characters of a value

export class Stage {
  /** `onGoOn(prefill)`: a run is wanted that goes on from a place of the one that is shown. */
  constructor({ onPlace, onGoOn, mayRun }) {
    this.player = null;
    this.card = new Card(byId("card"), onGoOn);
    this._mayRun = mayRun;
    this._shown = null; // the scene
    this._told = 0;
    this._branches = new Branches({ select: byId("hypothesis"), label: byId("hypothesis-label"), onChoose: () => this.player.wake() });
    this._output = new OutputView(byId("output"), (token, anchor) => this._card(token, null, anchor));
    this._result = new ResultView(byId("result"), byId("holes"), onPlace);
    this._tokens = new TokensView(byId("tokens"), (token, anchor) => this._card(token, null, anchor));
    this._trie = new TrieView({
      root: byId("trie"),
      ghosts: byId("trie-ghosts"),
      onChoose: (token, run, anchor) => this._card(token, run, anchor),
    });
    this._log = new LogView(byId("log"));
    this._ledger = new LedgerView(byId("ledger"));
    byId("legend-kinds").replaceChildren(...Object.keys(SOURCES).map(sample));
    byId("legend").replaceChildren(...legend());
    byId("welcome-kinds").replaceChildren(...["cache", "model", "draft", "forced"].map((kind) => make("li", {}, sample(kind), ` ${SOURCES[kind]}`)));
    byId("trie-ghosts").addEventListener("change", () => this.player.wake());
  }

  /** Another run is shown from now on. */
  began(recording) {
    this._recording = recording;
    this._tellOnward(recording?.asked?.prefill);
    this._told = 0;
    this.card.close();
    this._branches.forget();
  }

  _card(token, run, anchor) {
    const place = this._mayRun() ? placeOf(this._branches.shown(this._shown), run ? run.tokens[0] : token) : null;
    this.card.show(token, this._shown, { run, place, anchor: anchor() });
  }

  /** Draws what is in view until `deadline`; says whether something is left. */
  draw(scene, tab, deadline) {
    this._shown = scene;
    this.card.isWanted = ["output", "trie", "tokens"].includes(tab);
    const hypothesis = this._branches.shown(scene);
    const isLedgerLeft = this._ledger.draw(scene, hypothesis);
    return this._view(tab, scene, hypothesis, deadline) || isLedgerLeft;
  }

  _tellOnward(prefill) {
    byId("onward").hidden = !prefill;
    if (!prefill) return;
    const { name, text, verb } = told(prefill);
    byId("onward").replaceChildren(make("b", {}, "Continued from another run. "), `[${visible(name)}] ${verb} `, make("code", {}, onOneLine(text) || "nothing"), "; the text before it is unchanged.");
  }

  /** Says what a reader of the screen should hear: holes and the end, not every token. */
  announce(scene, say) {
    const closed = scene.holes.findLast((hole) => hole.ending !== null);
    if (scene.end && this._told !== scene.end) {
      this._told = scene.end;
      say(scene.end.type === "done" ? "the run is done" : scene.end.kind === "Stopped" ? scene.end.message : `the run has ended: ${scene.end.message}`);
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
}

function sample(kind) {
  return make("span", { class: `token ${kind} p2`, "data-mark": MARKS[kind] }, kind);
}

function* legend() {
  for (const [kind, says] of Object.entries(SOURCES)) {
    yield make("li", {}, sample(kind), ` ${says}`);
  }
  yield make("li", {}, "A thicker line means a more probable token.");
}
