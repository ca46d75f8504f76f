// The lines of a run of which no more is known than the tokens of its text and its counts: a result in a notebook, a row
// of a data set.

/** `tokens` are [text, source, hole, log-probability, bytes in base64], the last two where they are known; `endings` are
 * by hole. */
export function* linesOf({ tokens, usage, vars = {}, endings = {}, value = null, cost = null }) {
  let seq = 0;
  const line = (type, fields) => ({ schema: 1, seq: seq++, ms: 0, type, ...fields });
  const decoder = new TextDecoder();
  let prompt = "";
  let hole = null;
  let said = ""; // in the hole
  let node = 0;
  for (const [text, source, name, logprob = null, base64] of [...tokens, ["", "prompt", null]]) {
    if (name !== hole) {
      if (hole !== null) yield line("hole.closed", { name: hole, value: said, ending: endings[hole] ?? "", state: 0 });
      if (name !== null) yield line("hole.opened", { name, span: null, state: 0 });
      hole = name;
      said = "";
    }
    const shown = base64 === undefined ? text : decoder.decode(Uint8Array.from(atob(base64), (each) => each.charCodeAt(0)), { stream: true });
    if (text) {
      yield line("token", { id: -1, text, base64, hole, source, fate: "kept", logprob, node: ++node, parent: node - 1, state: 0 });
      yield line("text", { text: shown, hole, state: 0 });
    }
    prompt += shown;
    said += shown;
  }
  yield line("done", { value, vars, prompt, endings, usage, cost, notices: [] });
}
