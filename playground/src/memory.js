// What this tab remembers when it is loaded anew, and what the browser remembers of its owner's taste. Never a key.
import { ofBrowser, ofTab } from "./storage.js";

const TAB = "lq";

export function remembered() {
  try {
    return JSON.parse(ofTab.get(TAB)) ?? {};
  } catch {
    return {};
  }
}

export function remember(changes) {
  ofTab.set(TAB, JSON.stringify({ ...remembered(), ...changes }));
}

/** The token of the address's fragment, taken out of the address; and what else stands there. */
export function fromAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  const token = found.get("token");
  if (token) ofTab.set("token", token);
  if (location.hash) history.replaceState(null, "", location.pathname);
  return { token: ofTab.get("token"), file: found.get("file"), code: found.get("code") };
}

/** The first steps that somebody has done, in any tab. */
export function stepsDone() {
  return (ofBrowser.get("lq-steps") ?? "").split(" ").filter(Boolean);
}

export function keepSteps(steps) {
  ofBrowser.set("lq-steps", steps.join(" "));
}

const THEMES = ["system", "light", "dark"];

export function applyTheme(theme = ofBrowser.get("lq-theme") ?? "system") {
  const known = THEMES.includes(theme) ? theme : "system";
  document.documentElement.dataset.theme = known;
  return known;
}

export function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(applyTheme()) + 1) % THEMES.length];
  ofBrowser.set("lq-theme", theme);
  return applyTheme(theme);
}
