// Bundles the JavaScript of the pages, one file a page. Python reads the bundles, so they are kept
// with the sources, and nobody needs npm to install attnflow. `node bundle.mjs` makes them anew, and
// `node bundle.mjs --check` fails if that would change one.

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { build } from "esbuild";

const ENTRIES = {
  "src/attnflow/view/bundles/page.js": "src/attnflow/view/page/start.js",
  "src/attnflow/view/bundles/generation.js": "src/attnflow/view/generation/start.js",
  "src/attnflow/view/bundles/browse.js": "src/attnflow/view/browse/start.js",
  "src/attnflow/view/bundles/widget.js": "src/attnflow/view/widget.js",
  "src/attnflow/serve/bundles/serve.js": "src/attnflow/serve/page/start.js",
};

// The same as in tests/view/test_bundles.py, which tells without npm whether a bundle is up to date.
function digest() {
  const hash = createHash("sha256");
  const sources = readdirSync("src/attnflow", { recursive: true })
    .filter((path) => path.endsWith(".js") && !path.includes("bundles/"))
    .sort();
  for (const path of sources) {
    hash.update(`${path}\n`).update(readFileSync(`src/attnflow/${path}`));
  }
  return hash.digest("hex");
}

const check = process.argv.includes("--check");
const sources = digest();
let stale = 0;
for (const [output, entry] of Object.entries(ENTRIES)) {
  const { outputFiles } = await build({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: "esm",
    charset: "utf8",
    target: "es2022",
    legalComments: "none",
    banner: { js: `// Made by bundle.mjs of attnflow's sources, sha256 ${sources}.` },
    write: false,
  });
  const made = outputFiles[0].text;
  if (!check) {
    mkdirSync(dirname(output), { recursive: true });
    writeFileSync(output, made);
    continue;
  }
  let kept = "";
  try {
    kept = readFileSync(output, "utf8");
  } catch {
    // It was never made.
  }
  if (kept !== made) {
    console.error(`${output} is not up to date: run make bundles`);
    stale += 1;
  }
}
process.exitCode = stale ? 1 : 0;
