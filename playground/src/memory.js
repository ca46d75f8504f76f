// What this tab remembers when it is loaded anew. Never a key.
import { ofTab } from "./storage.js";

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
  return { token: ofTab.get("token"), file: found.get("file") };
}
