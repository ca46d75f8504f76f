// What a run would ask, before it asks: the sentences of `lq run --dry-run`, and what it may cost as a table.
import { make, visible } from "../dom.js";

const SPENDING = /^(?:if all that|(?:requests|tokens in|tokens out|cost) {2})/; // the same as lines for a terminal
const ROWS = [
  ["requests", "requests"],
  ["prompt_tokens", "tokens in"],
  ["completion_tokens", "tokens out"],
  ["cost", "cost"],
];

/** Shows the answer of `/api/plan`: a plan, or why there is none. */
export function showPlan(root, { plan, lines, problems }) {
  if (problems) {
    root.replaceChildren(...problems.map(({ line, message }) => make("p", {}, `line ${line}: ${visible(message)}`)));
    return;
  }
  const said = lines.filter((line) => !SPENDING.test(line)).map((line) => make("p", {}, visible(line)));
  root.replaceChildren(table(plan.spending), ...said);
}

function table(spending) {
  const head = ["", "at most, if all fits"].map((each) => make("th", { scope: "col" }, each));
  const rows = ROWS.filter(([name]) => spending[name] || name.endsWith("tokens")).map(([name, label]) =>
    make("tr", {}, make("th", { scope: "row" }, label), make("td", { class: "number" }, bound(spending[name]))),
  );
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

function bound(count) {
  return count === null ? "no bound" : count.toLocaleString("en");
}
