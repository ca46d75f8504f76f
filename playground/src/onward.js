// Where a run may go on from: the texts that its holes keep, as the option `prefill` of another run.
import { Colours } from "./colours.js";

/** The place of a kept token: {name, value, before, pairs}, `before` being what stands in its hole before it, `value` all
 * of its hole and `pairs` the holes that were opened earlier. Null for the program's own text, and where the text of the
 * place is not known. */
export function placeOf(hypothesis, token) {
  const copy = hypothesis?.fork(hypothesis.state);
  const at = copy?.path.findIndex((each) => copy.tokens[each].node === token.node) ?? -1;
  if (at < 0 || token.hole === null) return null;
  const colours = new Colours(copy);
  colours.update();
  const found = colours.placeAt(at);
  if (!found) return null;
  const { hole, start } = found;
  const { text, holes } = colours;
  const of = ({ from, to }) => text.slice(from, to ?? from);
  return {
    name: hole.name,
    value: text.slice(hole.from, hole.to ?? text.length),
    before: text.slice(hole.from, Math.max(hole.from, start)),
    healed: Math.max(0, hole.from - start), // characters of the token that stand before the hole
    pairs: holes.slice(0, holes.indexOf(hole)).map((each) => [each.name, of(each)]),
  };
}

/** The place with another token, which is continued; the end of the text ends the hole. */
export function withAlternative(place, { text }) {
  if (text === null) return withValue(place, place.before);
  return [...place.pairs, [place.name, place.before + text.slice(place.healed)]];
}

/** The place's hole begins with this text. */
export function withBeginning(place, text) {
  return [...place.pairs, [place.name, text]];
}

/** The place's hole is this text. */
export function withValue(place, text) {
  return [...place.pairs, [place.name, text], ["", ""]];
}

const BRANCHING = ["beam", "beam_search", "beam_sample", "best_k", "var", "beam_var", "smc"];

/** What to ask for a run that goes on from these texts: one result, drawn as before. */
export function askedFrom(asked, started, prefill) {
  const decoder = BRANCHING.includes(started?.decoder) ? "argmax" : (asked.options?.decoder ?? null);
  return { ...asked, prefill, options: { ...asked.options, decoder, n: 1, seed: started?.seed ?? asked.options?.seed ?? null } };
}

/** A sentence about where a run goes on from. */
export function told(prefill) {
  const isWhole = prefill.at(-1)[0] === "";
  const [name, text] = prefill.at(isWhole ? -2 : -1);
  return { name, text, verb: isWhole ? "is" : "begins with" };
}
