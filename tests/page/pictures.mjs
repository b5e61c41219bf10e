// Takes the pictures of docs/page.md, of the page that its build wrote.
//
//   node pictures.mjs MODEL [PROGRAM]
import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { built, Front } from './front.mjs';
import { launch, status } from './world.mjs';

const [model, program = new URL('../../target/release/sluice', import.meta.url).pathname] = process.argv.slice(2);
const port = 21760;
const folder = new URL('../../docs/images/', import.meta.url).pathname;
mkdirSync(folder, { recursive: true });
const server = spawn(program, ['serve', '-m', model, '-c', '4096', '--port', String(port)], { stdio: 'ignore' });

const front = new Front(port);
front.dist = built();
await front.listen(port + 1);

/** Asks questions with a seed, and waits for the last answer. */
async function talk(page, seed, questions) {
  await page.goto(front.url);
  const settings = { settings: { system: '', params: { seed, n_predict: 300 } } };
  await page.evaluate((value) => localStorage.setItem(`sluice.preferences${location.pathname}`, JSON.stringify(value)), { ...settings, sidebar: true, theme: 'system' });
  await page.reload();
  for (const question of questions) {
    await page.getByRole('textbox', { name: 'Message', exact: true }).fill(question);
    await page.getByRole('button', { name: 'Send', exact: true }).click();
    await page.locator('.reply[aria-busy=true]').waitFor();
    await page.locator('.reply[aria-busy=true]').waitFor({ state: 'detached', timeout: 120_000 });
  }
}

async function prove(page) {
  await page.getByRole('button', { name: 'run again' }).last().click();
  await page.getByText(/✓ same text/).waitFor({ timeout: 60_000 });
  await page.mouse.move(2, 2);
  await page.evaluate(() => document.activeElement?.blur());
}

try {
  while ((await status(port, '/health')) !== 200) await new Promise((done) => setTimeout(done, 100));
  const browser = await launch();
  const desktop = await browser.newPage({ viewport: { width: 1100, height: 700 }, colorScheme: 'light' });
  await talk(desktop, 35, ['Name three rivers of Europe, as a list.']);
  await talk(desktop, 4, ['Write a Python function that says whether a number is even.']);
  await prove(desktop);
  await desktop.screenshot({ path: `${folder}page-desktop.png` });
  const phone = await browser.newPage({ viewport: { width: 390, height: 700 }, hasTouch: true, isMobile: true, colorScheme: 'dark' });
  await talk(phone, 35, ['Name three rivers of Europe, as a list.']);
  await prove(phone);
  await phone.screenshot({ path: `${folder}page-phone.png` });
  await browser.close();
} finally {
  front.close();
  server.kill();
}
