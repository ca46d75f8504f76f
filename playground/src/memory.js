// What this tab remembers when it is loaded anew, and what the browser remembers of its owner's taste. Never a key.

const TAB = "lq";

export function remembered() {
  try {
    return JSON.parse(sessionStorage.getItem(TAB)) ?? {};
  } catch {
    return {};
  }
}

export function remember(changes) {
  try {
    sessionStorage.setItem(TAB, JSON.stringify({ ...remembered(), ...changes }));
  } catch {
    // full, or forbidden: then it is forgotten
  }
}

/** The token of the address's fragment, taken out of the address; and what else stands there. */
export function fromAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  const token = found.get("token");
  if (token) sessionStorage.setItem("token", token);
  if (location.hash) history.replaceState(null, "", location.pathname);
  return { token: sessionStorage.getItem("token"), file: found.get("file"), code: found.get("code") };
}

/** The first steps that somebody has done, in any tab. */
export function stepsDone() {
  return (localStorage.getItem("lq-steps") ?? "").split(" ").filter(Boolean);
}

export function keepSteps(steps) {
  localStorage.setItem("lq-steps", steps.join(" "));
}

const THEMES = ["system", "light", "dark"];

export function applyTheme(theme = localStorage.getItem("lq-theme") ?? "system") {
  const known = THEMES.includes(theme) ? theme : "system";
  document.documentElement.dataset.theme = known;
  return known;
}

export function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(applyTheme()) + 1) % THEMES.length];
  localStorage.setItem("lq-theme", theme);
  return applyTheme(theme);
}
