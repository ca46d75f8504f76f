// Bundles the page into dist/: `npm ci && npm run build`. The page's modules stay as they are where nothing is built.
//
// dist/ has the page, its styles, the bundled modules and the licences of every package that is in them; and lq-view.js,
// the element that shows a run in notebooks, reports and VS Code. A bundle that is too big is an error.
import { build } from "esbuild";
import { chmod, cp, mkdtemp, readFile, readdir, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { bundledView } from "./view.mjs";

const MAX_BYTES = 200_000; // JavaScript, compressed
const here = dirname(fileURLToPath(import.meta.url));
const dist = await mkdtemp(join(here, "node_modules", ".dist-")); // a page that is being served is there until the new one is whole

const made = await build({
  absWorkingDir: here,
  entryPoints: ["src/main.js"],
  outdir: join(dist, "src"),
  bundle: true,
  splitting: true, // the page stands before the editor is read
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  metafile: true,
});
await writeFile(join(dist, "lq-view.js"), await bundledView(build));
for (const name of ["index.html", "view.css", "style.css"]) await cp(join(here, name), join(dist, name));
await writeFile(join(dist, "THIRD_PARTY_NOTICES.txt"), await notices(Object.keys(made.metafile.inputs)));
await measure(Object.keys(made.metafile.outputs));
await rm(join(here, "dist"), { recursive: true, force: true });
await chmod(dist, 0o755);
await rename(dist, join(here, "dist"));

/** The licences of the packages that a bundle is made of. */
async function notices(inputs) {
  const names = new Set(inputs.map((path) => path.match(/^(?:.*\/)?node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]).filter(Boolean));
  if (!names.size) throw new Error("no package was found in the bundle, and so no licence");
  const parts = ["The page of `lq playground` contains these packages.\n"];
  for (const name of [...names].sort()) {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
    if (!file) throw new Error(`${name} has no file with its licence`);
    parts.push(`${"-".repeat(80)}\n${name} ${version} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`);
  }
  return parts.join("\n");
}

async function measure(outputs) {
  let bytes = 0;
  for (const path of outputs) bytes += gzipSync(await readFile(join(here, path)), { level: 9 }).length;
  if (bytes > MAX_BYTES) throw new Error(`the bundle has ${bytes} bytes compressed, and may have ${MAX_BYTES}`);
  console.log(`dist: ${bytes} bytes of JavaScript, compressed`);
}
