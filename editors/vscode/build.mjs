// Builds lmql-lite.vsix: `npm ci --ignore-scripts && npm run package`, then `code --install-extension lmql-lite.vsix`.
// `npm run package -- FILE.vsix` names another file.
//
// A .vsix is a zip with the extension, its manifest and the types of its files. It is the same bytes in every build.
import { build } from "esbuild";
import { readFile, readdir, rename, rm, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { crc32, deflateRawSync } from "node:zlib";
import { bundledView } from "../../playground/view.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const top = join(here, "..", "..");
const about = JSON.parse(await readFile(join(here, "package.json"), "utf8"));
const made = await build({
  absWorkingDir: here,
  entryPoints: ["src/extension.js"],
  bundle: true,
  write: false,
  metafile: true,
  platform: "node",
  target: "node18",
  format: "cjs",
  external: ["vscode"],
  minify: true,
  legalComments: "none",
});
const { scripts, devDependencies, private: _, ...manifest } = about;
const files = {
  "[Content_Types].xml": contentTypes(),
  "extension.vsixmanifest": vsixManifest(),
  "extension/package.json": `${JSON.stringify(manifest, null, 2)}\n`,
  "extension/extension.js": made.outputFiles[0].text,
  "extension/lq-view.js": await bundledView(build),
  "extension/lq.tmLanguage.json": await readFile(join(top, "grammar", "lq.tmLanguage.json")),
  "extension/docstring.tmLanguage.json": await readFile(join(here, "docstring.tmLanguage.json")),
  "extension/language-configuration.json": await readFile(join(here, "language-configuration.json")),
  "extension/README.md": await readFile(join(here, "README.md")),
  "extension/LICENSE.txt": await readFile(join(top, "LICENSE")),
  "extension/THIRD_PARTY_NOTICES.txt": await notices(Object.keys(made.metafile.inputs)),
};
const target = resolve(process.env.INIT_CWD ?? ".", process.argv[2] ?? join(here, "lmql-lite.vsix"));
await write(target, zip(files));
console.log(target);

/** Writes the package, or ends with a sentence. A package that was there stays until the new one is whole. */
async function write(file, data) {
  const beside = `${file}.new`;
  try {
    if (!file.endsWith(".vsix")) throw new Error("a package's name ends in .vsix");
    await writeFile(beside, data);
    await rename(beside, file);
  } catch (error) {
    await rm(beside, { force: true }).catch(() => {});
    console.error(`${file} cannot be written: ${error.message}\nname another file: npm run package -- FILE.vsix`);
    process.exit(1);
  }
}

/** The licences of the packages in the bundle. */
async function notices(inputs) {
  const names = new Set(inputs.map((path) => path.match(/^(?:.*\/)?node_modules\/((?:@[^/]+\/)?[^/]+)/)?.[1]).filter(Boolean));
  if (!names.size) throw new Error("no package was found in the bundle, and so no licence");
  const parts = ["The extension contains these packages.\n"];
  for (const name of [...names].sort()) {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
    if (!file) throw new Error(`${name} has no file with its licence`);
    parts.push(`${"-".repeat(80)}\n${name} ${version} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`);
  }
  return parts.join("\n");
}

function contentTypes() {
  const types = { json: "application/json", js: "application/javascript", md: "text/markdown", txt: "text/plain", vsixmanifest: "text/xml" };
  const rows = Object.entries(types).map(([name, type]) => `<Default Extension=".${name}" ContentType="${type}"/>`);
  return `<?xml version="1.0" encoding="utf-8"?>\n<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">${rows.join("")}</Types>\n`;
}

function vsixManifest() {
  return `<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id="${about.name}" Version="${about.version}" Publisher="${about.publisher}"/>
    <DisplayName>${about.displayName}</DisplayName>
    <Description xml:space="preserve">${about.description}</Description>
    <Tags>${about.keywords.join(",")}</Tags>
    <Categories>${about.categories.join(",")}</Categories>
    <License>extension/LICENSE.txt</License>
    <Properties>
      <Property Id="Microsoft.VisualStudio.Code.Engine" Value="${about.engines.vscode}"/>
      <Property Id="Microsoft.VisualStudio.Code.ExtensionKind" Value="workspace"/>
    </Properties>
  </Metadata>
  <Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
  <Dependencies/>
  <Assets>
    <Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.Details" Path="extension/README.md" Addressable="true"/>
    <Asset Type="Microsoft.VisualStudio.Services.Content.License" Path="extension/LICENSE.txt" Addressable="true"/>
  </Assets>
</PackageManifest>
`;
}

/** A zip of texts and buffers, with the date of the format's beginning. */
function zip(contents) {
  const parts = [];
  const directory = [];
  let offset = 0;
  for (const [name, content] of Object.entries(contents)) {
    const path = Buffer.from(name);
    const data = Buffer.from(content);
    const packed = deflateRawSync(data, { level: 9 });
    const common = Buffer.alloc(26); // version, flags, method, time, date, checksum, sizes, lengths
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(0x800, 2); // names are UTF-8
    common.writeUInt16LE(8, 4);
    common.writeUInt16LE(0x21, 8);
    common.writeUInt32LE(crc32(data), 10);
    common.writeUInt32LE(packed.length, 14);
    common.writeUInt32LE(data.length, 18);
    common.writeUInt16LE(path.length, 22);
    const entry = Buffer.alloc(46);
    entry.writeUInt32LE(0x02014b50, 0);
    entry.writeUInt16LE(20, 4);
    common.copy(entry, 6);
    entry.writeUInt32LE(offset, 42);
    directory.push(entry, path);
    const head = Buffer.concat([Buffer.from("PK\x03\x04"), common, path]);
    parts.push(head, packed);
    offset += head.length + packed.length;
  }
  const index = Buffer.concat(directory);
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(directory.length / 2, 8);
  end.writeUInt16LE(directory.length / 2, 10);
  end.writeUInt32LE(index.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...parts, index, end]);
}
