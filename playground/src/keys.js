// Keys of the whole page.
import { VIEWS } from "./tabs.js";

const TWICE_MS = 2_000;

/** Shortcuts are written as the machine's keyboard has them. */
export function nameKeys() {
  if (/Mac|iP/.test(navigator.platform)) for (const key of document.querySelectorAll("kbd.mod")) key.textContent = "⌘";
}

export function listen({ run, stop, save, help, tabs, card, say, problem, isRunning }) {
  let escaped = -Infinity;
  const held = (event) => (event.ctrlKey || event.metaKey) && !event.altKey;
  const actions = [
    [(event) => held(event) && event.key === "Enter", () => run()],
    [(event) => held(event) && event.key === ".", () => stop()],
    [(event) => held(event) && event.key === "s", () => save()],
    [(event) => event.altKey && !held(event) && /^Digit[1-5]$/.test(event.code), (event) => tabs.show(VIEWS[Number(event.code.at(-1)) - 1], true)],
    [(event) => event.key === "F8", (event) => problem(event.shiftKey ? -1 : 1)],
    [(event) => event.key === "?" && !event.target.closest("input,textarea,select,[contenteditable]"), () => help()],
  ];
  // before the editor, which has some of them for itself
  addEventListener(
    "keydown",
    (event) => {
      if (document.querySelector("dialog[open]")) {
        if (held(event) && event.key === "s") event.preventDefault(); // the browser would save the page
        return;
      }
      const found = actions.find(([fits]) => fits(event));
      if (!found) return;
      event.preventDefault();
      event.stopPropagation();
      found[1](event);
    },
    true,
  );
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (card.isOpen) return card.close();
    if (!isRunning()) return;
    if (event.timeStamp - escaped < TWICE_MS) return stop();
    escaped = event.timeStamp;
    say("press Escape again to stop the run");
  });
}
