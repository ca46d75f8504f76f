// What the run cost, and what it saved; every number says how it was found.
import { counted, make } from "../dom.js";
import { MARKS } from "../kinds.js";
import { tally } from "../scene.js";
import { percent } from "./tokens.js";

const ROWS = [
  ["requests", "requests to a server", "counted by the run; a retry counts again"],
  ["forward_passes", "forward passes", "calls of the model in this process that the run took part in"],
  ["prompt_tokens", "tokens of the prompt", "the program's own tokens in the final text, or what the server charged for"],
  ["completion_tokens", "tokens chosen", "all tokens that were chosen for holes, also those that are not in the text"],
  ["tokens_from_cache", "↺ from the cache", "in the text, and in the cache before the run began"],
  ["tokens_from_model", "from the model", "in the text, and requested from the model"],
  ["draft_accepted", "» drafted", "in the text: drafted, and accepted by the model in the same pass"],
  ["tokens_forced", "■ forced", "in the text: a condition allowed nothing else, so the model was not asked"],
  ["wasted_tokens", "✕ wasted", "chosen, but not in the text: taken back, cut or given up"],
  ["draft_rejected", "drafts rejected", "drafted, but not reached by the run"],
  ["received_tokens", "received", "tokens that the server sent"],
  ["provider_cached_tokens", "the server's own cache", "tokens of the prompt that the server reports as cached"],
  ["reasoning_tokens", "thoughts", "tokens of the answers that the server reports as thoughts"],
  ["tokens_fed", "tokens fed", "computed by the network in this process for this run"],
  ["kv_from_memory", "attention KV in memory", "tokens whose keys and values were in memory"],
  ["kv_from_disk", "attention KV on disk", "tokens whose keys and values another run or process had stored"],
  ["kv_from_redis", "attention KV on Redis", "tokens whose keys and values were on a Redis server"],
  ["close_calls", "close calls", "choices that the noise of the scores might have made otherwise"],
];

export class LedgerView {
  constructor(root) {
    this._root = root;
    this._stamp = null;
    this._notBefore = 0;
    this._open = new Set();
  }

  /** Says whether it has to be asked again, because it was drawn just now. */
  draw(scene, hypothesis) {
    const usage = scene.end?.type === "done" ? scene.end.usage : null;
    const stamp = usage ?? `${scene.count}`;
    if (this._scene === scene && stamp === this._stamp) return false;
    const now = performance.now();
    if (!usage && this._scene === scene && now < this._notBefore) return true;
    this._scene = scene;
    this._stamp = stamp;
    this._notBefore = now + 120;
    if (!hypothesis && !usage) {
      this._root.replaceChildren(make("p", { class: "empty" }, "After a run: where its tokens came from, and what the cache saved."));
      return false;
    }
    const counts = usage ?? soFar(hypothesis);
    this._root.replaceChildren(...this._headline(counts, scene), this._details(counts, scene, usage !== null));
    return false;
  }

  *_headline(counts, scene) {
    const { kept, cache, model, draft, forced } = kinds(counts);
    if (kept) {
      yield make("p", { class: "hero", id: "hero" }, make("strong", {}, `${counted(kept, "token")}: ${cache} from the cache, ${asking(counts, model + draft)}`),
        scene.ms ? make("span", { class: "hint" }, ` · ${(scene.ms / 1000).toFixed(2)} s in all`) : null);
      yield shares({ cache, model, draft, forced }, kept);
    }
  }

  *_sums(counts, scene) {
    const { kept, cache, model, draft, forced } = kinds(counts);
    yield make("p", { class: "sum" }, make("strong", {}, `${counted(kept, "token")} of output`),
      ` = ${cache} cache + ${model} model + ${draft} drafted + ${forced} forced`);
    const share = kept ? cache / kept : 0;
    yield make("p", { class: "sum saved" },
      make("strong", { id: "saved" }, `saved ${cache} of ${counted(kept, "token")}${kept ? ` (${percent(share)})` : ""}`), " versus no cache ",
      this._how("saved", `from the cache ÷ tokens of output = ${cache} ÷ ${kept}. Compared with the same run on an empty tree: there the model would generate each of these ${cache} tokens.`));
    const cost = scene.end?.cost;
    if (cost) yield make("p", { class: "sum" }, `cost ${cost.told ? "" : "at most "}${cost.amount.toFixed(6)}`);
    else if (counts.requests === 0 && counts.forward_passes !== null) yield make("p", { class: "sum" }, `cost: free; the model runs in this process`);
    else if (counts.requests) yield make("p", { class: "sum" }, "cost: no price known");
  }

  _details(counts, scene, isFinal) {
    const rows = ROWS.filter(([name]) => isFinal || counts[name] !== undefined).map(([name, says, how]) =>
      make("tr", { "data-count": name }, make("th", { scope: "row" }, says, " ", this._how(name, how)),
        make("td", { class: "number" }, counts[name] === null || counts[name] === undefined ? "not reported" : String(counts[name]))));
    return make("details", { class: "all", open: this._open.has("all"), ontoggle: (event) => this._toggled("all", event) },
      make("summary", {}, isFinal ? "Details" : "Details so far"), ...this._sums(counts, scene), make("table", {}, make("tbody", {}, ...rows)));
  }

  _how(name, text) {
    return make("details", { class: "how", open: this._open.has(name), ontoggle: (event) => this._toggled(name, event) },
      make("summary", { "aria-label": `how: ${name.replaceAll("_", " ")}` }, "how?"), make("span", {}, text));
  }

  _toggled(name, event) {
    if (event.target.open) this._open.add(name);
    else this._open.delete(name);
  }
}

/** Tokens in the text, by where they came from. */
function kinds(counts) {
  const [cache, model, draft, forced] = ["tokens_from_cache", "tokens_from_model", "draft_accepted", "tokens_forced"].map((name) => counts[name] ?? 0);
  return { cache, model, draft, forced, kept: cache + model + draft + forced };
}

/** How often the model was asked; as long as that is not known, for how many tokens. */
function asking({ forward_passes: passes, requests }, asked) {
  if (passes) return `${counted(passes, "pass", "passes")} of the model`;
  if (requests) return `${counted(requests, "request")} to the model`;
  return asked ? `${asked} from the model` : "the model was not called";
}

/** The sources as lengths. */
function shares(counts, kept) {
  const parts = Object.entries(counts).filter(([, count]) => count).map(([kind, count]) => {
    const part = make("span", { class: `share ${kind}`, title: `${count} ${kind}` }, `${MARKS[kind] ?? ""} ${kind === "draft" ? "drafted" : kind} ${count}`.trim());
    part.style.flexGrow = String(count / kept);
    return part;
  });
  return make("div", { class: "shares", "aria-hidden": "true" }, ...parts);
}

/** Counts of a run that is under way, as far as its lines tell. */
function soFar(hypothesis) {
  const found = tally(hypothesis.tokens);
  return {
    prompt_tokens: found.prompt,
    tokens_from_cache: found.cache,
    tokens_from_model: found.model,
    draft_accepted: found.draft,
    tokens_forced: found.forced,
    wasted_tokens: found.dropped,
  };
}
