// Builds the page: bundles it, gives its parts names with their hashes, and compresses them into dist/.
//
//   node build.mjs            writes dist/
//   node build.mjs --check    fails if dist/ is not what it would write
//
// The files in dist/ are committed, so that building the server needs no Node. All versions are fixed by
// package-lock.json, and the compressor is one of its packages: the same sources give the same bytes.
import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { build } from 'esbuild';
import { gzipSync } from 'fflate';

const here = new URL('./', import.meta.url);
const out = new URL('dist/', here);
const read = (path) => readFileSync(new URL(path, here));
const manifest = JSON.parse(read('package.json'));

/** The licences of the packages that the bundle contains, as their authors wrote them. */
function licences(inputs) {
  const names = new Set();
  for (const path of Object.keys(inputs)) {
    const name = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1];
    if (name) names.add(name);
  }
  const parts = [...names].sort().map((name) => {
    const folder = `node_modules/${name}/`;
    const { version } = JSON.parse(read(`${folder}package.json`));
    const file = readdirSync(new URL(folder, here)).sort().find((file) => /^licen[cs]e/i.test(file));
    if (!file) throw new Error(`${name} has no licence`);
    return `${name} ${version}\n\n${read(folder + file).toString().trim()}\n`;
  });
  return parts.join(`\n${'='.repeat(80)}\n`);
}

async function bundle(entry, loader) {
  const made = await build({
    absWorkingDir: here.pathname,
    entryPoints: [entry],
    bundle: true,
    write: false,
    minify: true,
    metafile: true,
    format: 'esm',
    target: ['chrome123', 'firefox120', 'safari17.5'],
    jsx: 'automatic',
    jsxImportSource: 'preact',
    legalComments: 'none',
    ...loader,
  });
  return { bytes: made.outputFiles[0].contents, inputs: made.metafile.inputs };
}

const script = await bundle('src/main.tsx', {});
const style = await bundle('styles/main.css', {});
const notices = licences(script.inputs);
const parts = {
  script: ['page.js', script.bytes],
  style: ['page.css', style.bytes],
  icon: ['icon.svg', read('src/icon.svg')],
  licences: ['licences.txt', Buffer.from(notices)],
};

const files = new Map();
let html = read('src/index.html').toString();
const index = [];
for (const [part, [name, bytes]] of Object.entries(parts)) {
  const hash = createHash('sha256').update(bytes).digest('hex').slice(0, 16);
  const hashed = name.replace('.', `-${hash}.`);
  html = html.replace(`{{${part}}}`, `page/${hashed}`);
  files.set(`${name}.gz`, gzip(bytes));
  index.push(`${name} ${hashed}`);
}
html = html.replace(/\n/g, '');
files.set('index.html.gz', gzip(Buffer.from(html)));
index.push(`index.html ${createHash('sha256').update(html).digest('hex').slice(0, 16)}`);
files.set('names.txt', Buffer.from(`${index.join('\n')}\n`));
files.set('licences.txt', Buffer.from(notices));

function gzip(bytes) {
  return gzipSync(bytes, { level: 9, mem: 12, mtime: 0 });
}

const compressed = [...files].filter(([name]) => name.endsWith('.gz'));
const weight = compressed.reduce((sum, [, bytes]) => sum + bytes.length, 0);
if (weight > manifest.maxWeightBytes) throw new Error(`the page has ${weight} bytes, more than ${manifest.maxWeightBytes}`);

if (process.argv.includes('--check')) {
  const present = readdirSync(out).sort();
  const stale = [...files].filter(([name, bytes]) => !present.includes(name) || !read(`dist/${name}`).equals(Buffer.from(bytes)));
  const extra = present.filter((name) => !files.has(name));
  if (stale.length || extra.length) {
    const names = [...stale.map(([name]) => name), ...extra].join(', ');
    console.error(`hosted/serve/page/dist is not what its sources make (${names}): run npm ci && npm run build there`);
    process.exit(1);
  }
} else {
  rmSync(out, { recursive: true, force: true });
  mkdirSync(out);
  for (const [name, bytes] of files) writeFileSync(new URL(name, out), bytes);
}
for (const [name, bytes] of compressed) console.log(`${String(bytes.length).padStart(7)} ${name}`);
console.log(`${String(weight).padStart(7)} in all`);
