// A query in a link: `#code=`, deflated, in base64url. Nothing of it reaches a server.

const MAX_CHARACTERS = 1_000_000;

export async function packed(text) {
  const bytes = await through(new Blob([text]).stream(), new CompressionStream("deflate-raw"));
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Raises where it is no such code, or would be very long. */
export async function unpacked(code) {
  const binary = atob(code.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  const found = await through(new Blob([bytes]).stream(), new DecompressionStream("deflate-raw"), MAX_CHARACTERS);
  return new TextDecoder("utf-8", { fatal: true }).decode(found);
}

async function through(stream, change, most = Infinity) {
  const parts = [];
  let size = 0;
  const reader = stream.pipeThrough(change).getReader();
  while (true) {
    const { value, done } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) throw new Error("it is too long");
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** The code of a link or of what follows its `#`; null where there is none. */
export function codeIn(link) {
  return link.match(/(?:^|[#&])code=([\w-]+)/)?.[1] ?? null;
}
