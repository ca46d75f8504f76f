// What a run would ask, before it asks: the sentences of `lq run --dry-run`.
import { make, visible } from "../dom.js";

/** Shows the answer of `/api/plan`: a plan, or why there is none. */
export function showPlan(root, { lines, problems }) {
  const said = problems ? problems.map(({ line, message }) => `line ${line}: ${message}`) : lines;
  root.replaceChildren(...said.map((line) => make("p", {}, visible(line))));
}
