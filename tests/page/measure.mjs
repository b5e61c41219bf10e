// Measures the page: its weight, the time to its first paint, and what it costs the stream that it shows.
//
//   node measure.mjs [--runs 5] [--tokens 256] MODEL [PROGRAM]
//
// Needs two CPUs: the engine computes on CPU 0 with one thread, curl and the browser run on CPU 1. The first paint is measured
// without such bounds.
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';
import { status } from './world.mjs';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { runs: { type: 'string', default: '5' }, tokens: { type: 'string', default: '256' }, port: { type: 'string', default: '21750' } },
});
const [model, program = new URL('../../target/release/sluice', import.meta.url).pathname] = positionals;
if (!model) throw new Error('which model?');
const port = Number(values.port);
const tokens = Number(values.tokens);
const url = `http://127.0.0.1:${port}/`;
const prompt = 'Tell me how a river gets from its spring to the sea, in many words.';
const CHROMIUM = process.env.SLUICE_CHROMIUM ?? '/usr/bin/chromium';
const folder = mkdtempSync(`${tmpdir()}/page-measure-`);

const server = spawn(program, ['serve', '-m', model, '-c', '2048', '-np', '1', '--threads', '1', '--cpu-range', '0-0', '--cache-ram', '0',
  '--spec-type', 'none', '--port', String(port)], { stdio: 'ignore' });
/** Chromium on CPU 1 alone. */
writeFileSync(`${folder}/browser`, `#!/bin/sh\nexec taskset -c 1 ${CHROMIUM} "$@"\n`, { mode: 0o755 });

const median = (all) => [...all].sort((a, b) => a - b)[all.length >> 1];
const shown = (all) => all.map((x) => x.toFixed(2)).join(' ');

/** The time per token of one stream, by the server's own clock. */
function curl() {
  const body = { messages: [{ role: 'user', content: prompt }], stream: true, seed: 1, n_predict: tokens, ignore_eos: true };
  const run = spawnSync('taskset', ['-c', '1', 'curl', '-sN', `${url}v1/chat/completions`, '-d', JSON.stringify(body)], { encoding: 'utf8' });
  const last = run.stdout.split('\n').filter((line) => line.includes('"seed"')).at(-1);
  return perToken(JSON.parse(last.slice(6)).timings);
}

function perToken({ predicted_ms: ms, predicted_n: n }) {
  if (n !== tokens) throw new Error(`${n} tokens instead of ${tokens}`);
  return ms / (n - 1);
}

async function shownByPage(page) {
  await page.goto(url);
  await page.getByRole('textbox', { name: 'Message', exact: true }).fill(prompt);
  await page.getByRole('button', { name: 'Send', exact: true }).click();
  await page.locator('.reply[aria-busy=true]').waitFor();
  await page.locator('.reply[aria-busy=true]').waitFor({ state: 'detached', timeout: 120_000 });
  const timings = await page.evaluate(() => new Promise((resolve) => {
    const opening = indexedDB.open('sluice/');
    opening.onsuccess = () => {
      const all = opening.result.transaction('messages').objectStore('messages').getAll();
      all.onsuccess = () => {
        opening.result.close();
        const replies = all.result.filter((message) => message.runs).sort((a, b) => a.created - b.created);
        resolve(replies.at(-1).runs[0].timings);
      };
    };
  }));
  return perToken(timings);
}

try {
  while ((await status(port, '/health')) !== 200) {
    if (server.exitCode !== null) throw new Error(`the server ended with ${server.exitCode}`);
    await new Promise((done) => setTimeout(done, 100));
  }
  const open = (name, executablePath) => chromium.launchPersistentContext(`${folder}/${name}`, {
    executablePath, args: ['--no-sandbox', '--disable-gpu'], viewport: { width: 1280, height: 800 },
  });
  let context = await open('free', CHROMIUM);
  let first = await context.newPage();
  let weight = 0;
  const cdp = await context.newCDPSession(first);
  await cdp.send('Network.enable');
  const parts = new Set();
  cdp.on('Network.responseReceived', ({ requestId, response }) => /\/($|page\/)/.test(new URL(response.url).pathname) && parts.add(requestId));
  cdp.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => { if (parts.has(requestId)) weight += encodedDataLength; });
  await first.goto(url, { waitUntil: 'networkidle' });
  console.log(`weight of the page with headers, compressed: ${(weight / 1000).toFixed(1)} kB`);
  const paints = [];
  for (let i = 0; i < 9; i += 1) {
    const page = await context.newPage();
    await page.goto(url);
    await page.getByRole('textbox', { name: 'Message', exact: true }).waitFor();
    const paint = () => performance.getEntriesByName('first-contentful-paint')[0]?.startTime;
    await page.waitForFunction(paint);
    paints.push(await page.evaluate(paint));
    await page.close();
  }
  console.log(`first paint, warm profile, ms: median ${median(paints).toFixed(0)} of ${shown(paints)}`);
  await context.close();
  context = await open('pinned', `${folder}/browser`);
  first = await context.newPage();
  await first.goto(url);
  // Defaults that no interface shows are set as its settings would store them.
  await first.evaluate((tokens) => localStorage.setItem('sluice.preferences/', JSON.stringify({
    settings: { system: '', params: { n_predict: tokens, seed: 1, ignore_eos: true } } })), tokens);
  const [plain, paged] = [[], []];
  curl();
  await shownByPage(first);
  for (let i = 0; i < Number(values.runs); i += 1) {
    await first.goto('about:blank');
    plain.push(curl());
    paged.push(await shownByPage(first));
  }
  console.log(`ms per token, curl: median ${median(plain).toFixed(3)} of ${shown(plain)}`);
  console.log(`ms per token, page: median ${median(paged).toFixed(3)} of ${shown(paged)}`);
  console.log(`page / curl: ${(median(paged) / median(plain)).toFixed(3)} (medians), ${(Math.min(...paged) / Math.min(...plain)).toFixed(3)} (fastest)`);
  await context.close();
} finally {
  server.kill();
  rmSync(folder, { recursive: true, force: true });
}
