// The element <lq-view> as one script, for pages that have no other file of ours.
import { fileURLToPath } from "node:url";

/** Bundles it with the `build` of esbuild. */
export async function bundledView(build) {
  const made = await build({
    entryPoints: [fileURLToPath(new URL("src/component.js", import.meta.url))],
    bundle: true,
    write: false,
    format: "iife",
    target: "es2022",
    minify: true,
    charset: "ascii",
    legalComments: "none",
    loader: { ".css": "text" },
  });
  const [{ text }] = made.outputFiles;
  if (/<\/script|<!--/i.test(text)) throw new Error("the script cannot stand in a page");
  return text;
}
