// Elements. Whatever a model said comes in as a text node, never as markup.

/** An element: attributes and `on...` listeners first, then children, texts among them. */
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// What would act on a screen or turn its direction.
const ACTING = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu;

/** The text with marks for characters that nobody could see, or that would turn what follows. */
export function visible(text) {
  return text.replace(ACTING, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** The text on one line: spaces and line feeds are shown. */
export function onOneLine(text) {
  return visible(text.replaceAll("\n", "⏎").replaceAll("\t", "⇥"));
}

export function shortened(text, most) {
  const characters = Array.from(text.slice(0, 2 * most + 2));
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
}

export function counted(count, word, words = `${word}s`) {
  return `${count} ${count === 1 ? word : words}`;
}

export function byId(id) {
  return document.getElementById(id);
}

export function download(name, parts, type) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
